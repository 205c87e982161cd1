"""device: whether this machine has the one that was asked for, said before anything is read into it."""

import torch

from eval import EvalError


def refuse_absent(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):  # the second where torch was built without CUDA
        here = ["cpu", *(f"cuda:{n}" for n in range(torch.cuda.device_count()))]
        raise EvalError(f"device {device} is none of this machine, which has {', '.join(here)}", code=2) from None
