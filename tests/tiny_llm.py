"""A language model on disk as anyone may have one: a tiny Llama or GPT-2, a BPE tokenizer trained on a few words."""

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = "the of and a model reads on past its length where positions end then far near über naïve 長い 文脈 😀".split()


def text(words: int, seed: int = 0) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words))


def tokenizer(begins: bool = True, named: bool = True) -> PreTrainedTokenizerFast:
    """Byte-level BPE. begins: whether it puts <s> before a text; named: whether it has an <s> at all."""
    own = Tokenizer(models.BPE())
    own.pre_tokenizer, own.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<s>", "</s>"] if named else ["</s>"]
    # Trained without the last words: their characters are split over tokens.
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    own.train_from_iterator([" ".join(WORDS[:-3])] * 5, trainer)
    if begins:
        own.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    names = {"eos_token": "</s>"} | ({"bos_token": "<s>"} if named else {})
    return PreTrainedTokenizerFast(tokenizer_object=own, **names)


def save(folder: Path, model, words: PreTrainedTokenizerFast) -> Path:
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def llama(folder: Path, words: PreTrainedTokenizerFast | None = None, seed: int = 0, **more) -> Path:
    torch.manual_seed(seed)
    words = tokenizer() if words is None else words
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(words), bos_token_id=words.bos_token_id, initializer_range=0.2, **sizes, **more)
    return save(folder, LlamaForCausalLM(config), words)


def gpt2(folder: Path, longest: int) -> Path:
    torch.manual_seed(0)
    words = tokenizer(begins=False)
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": longest}
    return save(folder, GPT2LMHeadModel(GPT2Config(vocab_size=len(words), bos_token_id=0, **sizes)), words)
