"""The optimizer's groups and the learning rate as a pure function of the step."""

import math

import torch
from torch import nn

from lab.settings import Train


def optimizer(model: nn.Module, settings: Train) -> torch.optim.AdamW:
    """AdamW over what is not frozen; weight decay on the matrices of the layers alone: not on norms, embeddings or what
    a scheme learns."""
    decayed, free = [], []
    for name, parameter in model.named_parameters():
        inside = ".layers." in name or ".h." in name  # which GPT-2 and its kin call them
        if parameter.requires_grad:
            (decayed if inside and parameter.ndim > 1 else free).append(parameter)
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True)


def rate(step: int, settings: Train) -> float:
    """The learning rate of a step, counted from 0: linear warm-up, then

    cosine: half a cosine down to floor · lr.   stable: lr, then a line down to it over the last `decay` of steps.
    inverse-sqrt: lr · √(warmup / step), steps counted from 1, which is section 5.3 of arXiv:1706.03762 with lr set to
    1 / √(width · warmup).
    """
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    if settings.schedule == "inverse-sqrt":
        return settings.lr * math.sqrt(max(1, settings.warmup) / (step + 1))
    if settings.schedule == "cosine":
        done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
        fall = (1 - math.cos(math.pi * min(1.0, done))) / 2
    else:
        tail = settings.decay * settings.steps
        fall = min(1.0, max(0.0, (step + 1 - (settings.steps - tail)) / tail))
    return settings.lr * (1 - (1 - settings.floor) * fall)
