"""Attention maps: how much each token of an encoder–decoder looks at each other one, by layer and head."""

# S source tokens · T target tokens · Q queries · K keys · H heads

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from lab import LabError
from lab.attention import attend_parts
from lab.seq2seq import bpe
from lab.seq2seq.decode import room_of, written
from lab.seq2seq.layers import Attention, Inputs
from lab.seq2seq.map_figure import draw, refuse_format
from lab.seq2seq.model import Seq2Seq
from lab.seq2seq.translate import opened, texts
from lab.settings import Training

Ids = Sequence[int] | np.ndarray | Tensor


@torch.no_grad()
def maps(
    model: Seq2Seq, source: Ids, target: Ids, source_mask: Ids | None = None, target_mask: Ids | None = None
) -> dict[str, Tensor]:
    """The weights of every attention, fp32 at least: encoder (layers, H, S, S), decoder (…, T, T), cross (…, T, S).

    Row i holds what token i looks at; of a row of padding, which no output hangs on, it is the padding.

    source: (S,) ids, with their end token.   target: (T,) ids that the decoder reads, from the start token on.
    masks: of as many, 0 for padding.   Raises LabError for a model that is none of `lab.seq2seq.model`.
    """
    if not isinstance(model, Seq2Seq):
        raise LabError(
            f"attention maps are of a Seq2Seq of lab.seq2seq.model, got {type(model).__name__}: train one, for example "
            "with `lab train configs/paper/reverse.yaml`"
        )
    layers = {
        "encoder": [layer.attention for layer in model.encoder.layers],
        "decoder": [layer.attention for layer in model.decoder.layers],
        "cross": [layer.cross for layer in model.decoder.layers],
    }
    found: dict[Attention, Tensor] = {}

    def look(attention: Attention, args: tuple) -> None:
        found[attention] = weights(attention.inputs(*args))[0]

    hooks = [one.register_forward_pre_hook(look) for some in layers.values() for one in some]
    given = {"input_ids": source, "attention_mask": source_mask}
    given |= {"decoder_input_ids": target, "decoder_attention_mask": target_mask}
    rows = {name: torch.as_tensor(x, device=model.device)[None] for name, x in given.items() if x is not None}
    training = model.training
    try:
        model.eval()(**rows)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return {name: torch.stack([found[one] for one in some]) for name, some in layers.items()}


def weights(inputs: Inputs) -> Tensor:
    """(B, H, Q, K): what attention gives where values are the rows of an identity, by the written-out definition."""
    parts, v, pos = inputs
    exact = torch.promote_types(v.dtype, torch.float32)
    ones = torch.eye(v.shape[2], dtype=exact, device=v.device).expand(*v.shape[:2], -1, -1)  # (B, H, K, K)
    return attend_parts([(q.to(exact), k.to(exact), scores) for q, k, scores in parts], ones, pos, "eager")


def mapped(run: Training, sources: list[str], path: Path) -> str:
    """What the run writes for the one source, whose maps are drawn as a PNG, PDF or SVG. Raises as `translate` does."""
    if len(sources) != 1:
        raise LabError(
            f"--maps draws one source, got {len(sources)}: call it once for each, with a file of its own", code=2
        )
    refuse_format(path)
    model, (ids,) = opened(run, sources)
    (line,) = written(model, [ids], run, lambda s: room_of(model, s))
    read = [model.config.decoder_start_token_id, *line[:-1]]
    (text,), tokenizer = texts(run, [line]), bpe.read(run.path / "model")
    names = [[label(tokenizer, one) for one in some] for some in (ids.tolist(), read, line)]
    draw(maps(model, ids, read), *names, path, f"{run.name}: {sources[0].strip()} → {text}")
    return text


def label(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """A token as one may read it on an axis."""
    text = tokenizer.decode([token])
    if not text or "\N{REPLACEMENT CHARACTER}" in text:  # less than a character: the letter it has in the vocabulary
        text = tokenizer.convert_ids_to_tokens(token)
    text = text.replace(" ", "␣")
    return text if text.isprintable() else repr(text)[1:-1]
