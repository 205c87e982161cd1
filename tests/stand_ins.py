"""Stand-ins for packages with flash kernels: their signatures as published, their layouts and rules, in eager maths.

What the lab says to these kernels is thereby tested where they cannot run; the kernels themselves are not.
"""

# B batch · Q queries · T keys · H query heads · G key heads · D head size · N tokens of all sequences, end to end

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor

from lab.attention import flash, flash2, flash3, flash4, flex, varlen


def softmax_attention(q, k, v, scale, causal, left, right, slopes, softcap) -> tuple[Tensor, Tensor]:
    """(Q, H, D) queries, (T, G, D) keys and values of one sequence -> (Q, H, D) output, (H, Q) log-sum-exp."""
    assert q.shape[-1] == k.shape[-1] == v.shape[-1] and q.dtype == k.dtype == v.dtype
    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    q, k, v = (x.to(torch.promote_types(dtype, torch.float32)) for x in (q, k, v))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = torch.einsum("qhd,khd->hqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = softcap * (s / softcap).tanh() if softcap else s  # before slopes, as in flash-attn 2
    behind = torch.arange(len(q))[:, None] + len(k) - len(q) - torch.arange(len(k))  # the last sits on the last
    if slopes is not None:
        assert slopes.dtype == torch.float32 and slopes.shape == q.shape[1:2] and not slopes.requires_grad
        s = s - slopes[:, None, None] * behind.abs()
    right = 0 if causal else right
    seen = torch.ones_like(behind, dtype=torch.bool)
    seen &= behind <= left if left >= 0 else True
    seen &= -behind <= right if right >= 0 else True
    s = s.masked_fill(~seen, float("-inf"))
    out = torch.einsum("hqk,khd->qhd", s.softmax(-1).nan_to_num(), v)
    sums = s.logsumexp(-1).detach().float()
    return out.to(dtype), sums.masked_fill(sums == float("-inf"), float("inf"))  # as flash-attn 2 leaves them


def dense(q, k, v, *how) -> tuple[Tensor, Tensor]:
    """(B, Q, H, D) and (B, T, G, D) -> (B, Q, H, D), (B, H, Q)."""
    assert q.dim() == 4 and all(x.stride(-1) == 1 for x in (q, k, v))
    found = [softmax_attention(*row, *how) for row in zip(q, k, v, strict=True)]
    return torch.stack([out for out, _ in found]), torch.stack([sums for _, sums in found])


def ragged(q, k, v, starts_q, starts_k, most_q, most_k, *how) -> tuple[Tensor, Tensor]:
    """(N, H, D) and (N, G, D) -> (N, H, D), (H, N)."""
    assert q.dim() == 3 and all(x.stride(-1) == 1 for x in (q, k, v))
    for starts, most, x in ((starts_q, most_q, q), (starts_k, most_k, k)):
        assert starts.dtype == torch.int32 and starts[0] == 0 and starts[-1] == len(x)
        assert isinstance(most, int) and most == starts.diff().max()
    cuts_q, cuts_k = (starts[1:-1].tolist() for starts in (starts_q, starts_k))
    parts = zip(q.tensor_split(cuts_q), *(x.tensor_split(cuts_k) for x in (k, v)), strict=True)
    found = [softmax_attention(*part, *how) for part in parts]
    return torch.cat([out for out, _ in found]), torch.cat([sums for _, sums in found], 1)


# flash-attn 2.8 (flash_attn/flash_attn_interface.py)


def two(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    assert dropout_p == 0
    out, sums = dense(q, k, v, softmax_scale, causal, *window_size, alibi_slopes, softcap)
    return (out, sums, None) if return_attn_probs else out


def two_ragged(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    assert dropout_p == 0
    lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    out, sums = ragged(q, k, v, *lengths, softmax_scale, causal, *window_size, alibi_slopes, softcap)
    return (out, sums, None) if return_attn_probs else out


# flash-attn 3 (hopper/flash_attn_interface.py)


def three(
    q,
    k,
    v,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    out, sums = dense(q, k, v, softmax_scale, causal, *window_size, None, softcap)
    return (out, sums) if return_attn_probs else out


def three_ragged(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    seqused_q=None,
    seqused_k=None,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    out, sums = ragged(q, k, v, *lengths, softmax_scale, causal, *window_size, None, softcap)
    return (out, sums) if return_attn_probs else out


# flash-attn 4 (flash_attn/cute/interface.py)


def four(
    q,
    k,
    v,
    qv=None,
    gather_kv_indices=None,
    softmax_scale=None,
    causal=False,
    window_size=(None, None),
    learnable_sink=None,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    score_mod=None,
    score_mod_bwd=None,
    mask_mod=None,
    aux_tensors=None,
    aux_scalars=None,
    block_sparse_tensors=None,
    block_sparse_tensors_bwd=None,
    return_lse=False,
):
    left, right = (-1 if side is None else side for side in window_size)
    out, sums = dense(q, k, v, softmax_scale, causal, left, right, None, softcap)
    return out, sums if return_lse else None


def four_ragged(
    q,
    k,
    v,
    qv=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    min_seqlen_k=None,
    seqused_q=None,
    seqused_k=None,
    gather_kv_indices=None,
    page_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(None, None),
    learnable_sink=None,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    score_mod=None,
    score_mod_bwd=None,
    mask_mod=None,
    block_sparse_tensors=None,
    aux_tensors=None,
    aux_scalars=None,
    return_lse=False,
    scheduler_metadata=None,
    seqlen_k_per_split=None,
    disable_scheduler_metadata=False,
):
    left, right = (-1 if side is None else side for side in window_size)
    lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    out, sums = ragged(q, k, v, *lengths, softmax_scale, causal, left, right, None, softcap)
    return out, sums if return_lse else None


# torch.nn.attention.varlen (torch 2.12 and 2.13; 2.11 has no enable_gqa)


def torch_ragged(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
    enable_gqa=False,
    seqused_k=None,
    block_table=None,
    num_splits=None,
):
    assert enable_gqa or query.shape[1] == key.shape[1]
    lengths = cu_seq_q, cu_seq_k, max_q, max_k
    out, sums = ragged(query, key, value, *lengths, scale, False, *window_size, None, 0.0)
    return (out, sums) if return_aux is not None and return_aux.lse else out


def torch_ragged_before(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
):
    return torch_ragged(
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        max_q,
        max_k,
        return_aux=return_aux,
        scale=scale,
        window_size=window_size,
    )


def module(name: str, **content) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(content)
    return made


def install(patch: pytest.MonkeyPatch, torch_varlen=torch_ragged) -> None:
    """Every package there is, and a device that all of them run on; flex without its compiler."""
    cute = module("flash_attn.cute", flash_attn_func=four, flash_attn_varlen_func=four_ragged)
    versioned = {"__version__": "2.8.3", "flash_attn_func": two, "flash_attn_varlen_func": two_ragged}
    packages = [
        module("flash_attn", cute=cute, **versioned),
        cute,
        module("flash_attn_interface", flash_attn_func=three, flash_attn_varlen_func=three_ragged),
    ]
    for package in packages:
        patch.setitem(sys.modules, package.__name__, package)
    patch.setattr("torch.nn.attention.varlen.varlen_attn", torch_varlen)
    patch.setattr(flash, "hardware", lambda *_: None)
    for name, owner in (("installed", flash3), ("installed", flash4), ("arguments", varlen), ("version", flash2)):
        found = getattr(owner, name)
        patch.setattr(owner, name, getattr(found, "__wrapped__", found))  # asked anew, not remembered from before
    patch.setattr(flex, "refuses", lambda *_: None)
    patch.setattr(flex, "compiled", lambda: uncompiled)


def uncompiled(*args, **options):
    """Flex in torch's own maths: every score and mask as the kernel would be given them, without compiling one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        return torch.nn.attention.flex_attention.flex_attention(*args, **options)


def gpu(major: int, minor: int = 0, dtype=torch.bfloat16, size: int = 64, heads: int = 4) -> SimpleNamespace:
    """What looks like (2, heads, 8, size) queries on a GPU, to those who only ask."""
    return SimpleNamespace(
        is_cuda=True,
        is_cpu=False,
        device=SimpleNamespace(type="cuda", capability=(major, minor)),
        dtype=dtype,
        shape=(2, heads, 8, size),
        requires_grad=False,
    )
