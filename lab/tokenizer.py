"""Text -> token ids and back: bytes as they are, or any Hugging Face tokenizer."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab import LabError
from lab.pretrained import opened
from lab.sources import first_line


@dataclass(frozen=True)
class Tokenizer:
    encode: Callable[[list[str]], list[np.ndarray]]
    decode: Callable[[list[int]], str]  # U+FFFD for what is not, or not yet, a whole character
    vocab_size: int
    eos: int
    identity: dict[str, Any]  # what makes its ids differ from another's
    sizes: Callable[[str], np.ndarray] | None  # bytes of a text that each of its tokens stands for; None: not known
    mask: int | None = None  # the token that stands for a hidden one, where it has one

    @property
    def dtype(self) -> np.dtype:
        return np.min_scalar_type(self.vocab_size - 1)


def tokenizer_of(name: str) -> Tokenizer:
    return as_bytes() if name == "bytes" else pretrained(name)


def as_bytes() -> Tokenizer:
    """UTF-8 itself. Documents hold no NUL (see `distinct`), so it is free to end them."""

    def encode(texts):
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    def decode(ids):
        return bytes(ids).decode(errors="replace")

    def sizes(text):
        return np.ones(len(text.encode()), np.uint8)

    return Tokenizer(encode, decode, 256, 0, {"name": "bytes"}, sizes)


def of_hub(name: str):
    from transformers import AutoTokenizer

    where, options = opened(name)
    try:
        return AutoTokenizer.from_pretrained(where, **options)
    except Exception as error:  # transformers, tokenizers, huggingface_hub and httpx raise errors of their own
        raise LabError(
            f"data.tokenizer: no tokenizer `{name}`: {first_line(error)}\n"
            "write `bytes`, a folder or a .gguf file that holds a tokenizer, or a name on the Hub that is "
            "downloaded or can be reached"
        ) from error


def for_transformers(name: str):
    """The same tokenizer as transformers has it, for programs that take no other."""
    return bytes_for_transformers() if name == "bytes" else of_hub(name)


def bytes_for_transformers():
    """Ids are the bytes of UTF-8, and nothing else."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    letters = printable()
    letters[0] = "\0"  # itself: it is a special token, and what stands for a byte here may stand in a text
    rules = Tokenizer(BPE(vocab={letter: byte for byte, letter in letters.items()}, merges=[]))
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rules.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=rules, eos_token="\0", pad_token="\0", clean_up_tokenization_spaces=False
    )


def printable() -> dict[int, str]:
    """The letter that stands for a byte in byte-level vocabularies: itself; where that is blank, one from U+0100 on."""
    own = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return {byte: chr(byte if byte in own else next(others)) for byte in range(256)}


def pretrained(name: str) -> Tokenizer:
    """A Hugging Face tokenizer, by name or folder. Raises LabError if it is not found or cannot end a document."""
    from eval.texts import bytes_of

    loaded = of_hub(name)
    eos = loaded.sep_token_id if loaded.eos_token_id is None else loaded.eos_token_id
    if eos is None:
        raise LabError(f"data.tokenizer: `{name}` has no eos or sep token to end documents with; add one to it")
    # split_special_tokens: a text that spells out the end token must not end there.
    how = {"add_special_tokens": False, "split_special_tokens": True, "return_attention_mask": False, "verbose": False}
    vocabulary = loaded.get_vocab()
    rules = json.dumps(vocabulary, sort_keys=True) + (loaded.backend_tokenizer.to_str() if loaded.is_fast else "")

    def encode(texts):
        return [np.array(ids, np.int64) for ids in loaded(texts, **how)["input_ids"]]

    def decode(ids):
        return loaded.decode(ids, clean_up_tokenization_spaces=False)

    def sizes(text):
        return bytes_of(text, loaded(text, return_offsets_mapping=True, **how)["offset_mapping"])

    size = max(len(loaded), max(vocabulary.values()) + 1)  # a vocabulary may have holes
    identity = {"name": name, "sha256": hashlib.sha256(rules.encode()).hexdigest()}
    return Tokenizer(encode, decode, size, eos, identity, sizes if loaded.is_fast else None, loaded.mask_token_id)
