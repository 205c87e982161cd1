"""Summed: torch's fused attention for a CPU with the log-sum-exp of its scores, and the gradient of both."""

# B batch · T tokens (keys) · Q queries · H heads · D head size

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten


def runs(q: Tensor) -> bool:
    """Whether the kernel is for these queries; with halves its sums would come from rounded scores."""
    return q.is_cpu and q.dtype in (torch.float32, torch.float64)


def summed(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """(B, H, Q, D) output and (B, H, Q) log-sum-exp, -inf where a query sees nothing.

    q: (B, H, Q, D).   k, v: (B, H, T, D).   mask: True where a key is seen, or what to add; it receives no gradient.
    """
    if mask is None:
        return Summed.apply(q, k, v, None, scale, causal)
    if mask.dtype == torch.bool:
        mask = torch.zeros((), dtype=q.dtype).masked_fill(~mask, float("-inf"))
    out, sums = Summed.apply(q, k, v, mask.expand(q.shape[0], q.shape[1], -1, -1), scale, causal)
    # Where a query sees nothing the kernel leaves a sum that is no sum, and that its backward pass needs.
    return out, sums.masked_fill((mask == float("-inf")).all(-1), float("-inf"))


class Summed(torch.autograd.Function):
    """The kernel under its inner name, under which it gives out the sum.

    Its backward pass takes from each weight's gradient what all keys of a query share, grad · out. The gradient of the
    sum goes in there: as one more channel that is 1 in grad, -dsums in out, and nothing in the values.
    """

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, causal: bool):
        out, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        ctx.save_for_backward(q, k, v, mask, out, sums)
        ctx.scale, ctx.causal = scale, causal
        return out, sums

    @staticmethod
    def backward(ctx, grad: Tensor, dsums: Tensor):
        q, k, v, mask, out, sums = ctx.saved_tensors
        q, k, v, grad = (F.pad(x, (0, 1), value=value) for x, value in ((q, 0.0), (k, 0.0), (v, 0.0), (grad, 1.0)))
        out = torch.cat([out, -dsums[..., None]], -1)
        found = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, sums, 0.0, ctx.causal, attn_mask=mask, scale=ctx.scale
        )
        return *(x[..., :-1] for x in found), None, None, None
