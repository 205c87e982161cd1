"""ahead: whether a model sees what it is to tell; of one that does, losses say nothing."""

import torch

from eval import EvalError
from eval.score import vocabulary

NEAR = 8
"""Tokens on which it is tried."""


@torch.no_grad()
def refuse_looking_ahead(name: str, model) -> None:
    """Raise EvalError where the last token changes what the model tells before it.

    BERT and its kin load as causal language models, and read both ways all the same.
    """
    ids = torch.arange(NEAR, device=model.device)[None] % vocabulary(model)
    other = torch.cat([ids[:, :-1], ids[:, :1]], 1)
    one, two = (model(input_ids=x, use_cache=False).logits[:, :-1].float() for x in (ids, other))
    close = 1e-4 if model.dtype in (torch.float32, torch.float64) else 0.05
    if (one - two).abs().max() > close * one.abs().max():
        raise EvalError(
            f"{name} is no causal language model: what it says of a token changes with the tokens after it. Give a "
            "model that reads from first to last",
            code=2,
        )
