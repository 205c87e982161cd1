"""Byte-pair encoding that source and target share (Sennrich et al. 2016, arXiv:1508.07909), and bytes in its place."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from lab import LabError
from lab.sources import first_line
from lab.tokenizer import printable

SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
"""In the order of their ids, 0, 1 and 2."""


def trained(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A vocabulary of at most so many tokens, learned from the texts of both sides; any text can be written in it."""
    rules = by_bytes(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rules.train_from_iterator(texts, trainer)
    return wrapped(rules)


def of_bytes() -> PreTrainedTokenizerFast:
    """The three tokens of its own and the 256 bytes: a letter of a problem is a token."""
    letters = [*SPECIAL.values(), *printable().values()]
    return wrapped(by_bytes(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[])))


def by_bytes(model: models.BPE) -> Tokenizer:
    rules = Tokenizer(model)
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = decoders.ByteLevel()
    return rules


def wrapped(rules: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=rules, clean_up_tokenization_spaces=False, **SPECIAL)


def read(name: str | Path) -> PreTrainedTokenizerFast:
    """A tokenizer of transformers. Raises LabError where it cannot be read, pad a batch or end a sentence."""
    try:
        found = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # transformers, tokenizers and huggingface_hub raise errors of their own
        raise LabError(
            f"data.tokenizer: no tokenizer `{name}`: {first_line(error).rstrip('.')}. Write `bpe` to train one, "
            "`bytes`, or a folder that holds one"
        ) from error
    for what, why in (("pad", "to fill up the shorter sources of a batch"), ("eos", "to end a target")):
        if getattr(found, f"{what}_token_id") is None:
            raise LabError(
                f"data.tokenizer: `{name}` has no {what} token {why}: add one to it, or write `bpe` to train one",
                code=2,
            )
    return found


def encoded(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    """The ids of each text with the end token after them; a text that spells a special token does not become it."""
    how = {"add_special_tokens": False, "split_special_tokens": True, "return_attention_mask": False, "verbose": False}
    return [[*ids, tokenizer.eos_token_id] for ids in tokenizer(texts, **how)["input_ids"]]
