"""Checks of an encoding's numbers: options, casts, gradients, what is saved, and what each backend makes of them."""

# B batch · T tokens (keys) · Q queries (the last Q of the T) · H query heads · D head size

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from lab.attention import eager, obstacle, order
from lab.check.places import FAR, model_of
from lab.probe import (
    Fails,
    Skips,
    at,
    few,
    hidden,
    in_each_layer,
    left_padded,
    made,
    many,
    no_number,
    output,
    packed,
    parts_of,
    same,
    skipping,
)
from positional import Positions, Scheme, Scores, Shape, build
from positional.build import Spec

ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-5}
"""Between backends, which order sums differently and do nothing else differently."""


def keeps_no_buffers(spec: Spec, shape: Shape) -> None:
    """It keeps no buffers, which casts and loading would change."""
    if names := [name for name, _ in build(spec, shape).named_buffers()]:
        raise Fails(f"buffer {', '.join(names)}: compute it from Python numbers where it is needed")


def is_finite(spec: Spec, shape: Shape) -> None:
    """Scores and outputs are finite, of one token, of two and of more than in training."""
    scheme = made(spec, shape)
    for tokens in sorted({1, few(scheme, 2), many(scheme)}):

        def tried(layer: int, tokens: int = tokens) -> None:
            if place := no_number(scheme, hidden(shape, tokens), Positions.first(tokens), layer):
                raise Fails(f"of {tokens} token{'s' * (tokens > 1)}, {place}")

        in_each_layer(shape, tried)


def survives_bf16(spec: Spec, shape: Shape) -> None:
    """Casting it to bf16 changes no angle, slope or bias."""
    exact, cast = made(spec, shape), made(spec, shape).to(torch.bfloat16)
    with torch.no_grad():
        for own, full in zip(cast.parameters(), exact.parameters(), strict=True):
            full.copy_(own)  # parameters are rounded, which is their own
    ids = torch.tensor([0, 1, 63, 1000, 65537, FAR - 1])
    ids = ids if exact.limit is None else ids[ids < exact.limit]
    x = hidden(shape, len(ids), dtype=torch.bfloat16)
    pos = at(ids)
    rounded(cast.embed(x, pos), exact.embed(x.float(), pos), ids, "embeddings")
    draw = torch.Generator().manual_seed(3)
    sizes = [(1, heads, len(ids), shape.head_dim) for heads in (shape.heads, shape.kv_heads)]
    q, k = (torch.randn(size, generator=draw).bfloat16() for size in sizes)
    for layer in sorted({0, shape.layers - 1}):
        mine, other = cast.at(layer), exact.at(layer)
        here = replace(pos, layer=layer)
        if other.notes:
            notes = other.note(x.float(), here)
            rounded(mine.note(x, here).to(x.dtype), notes, ids, f"layer {layer}, notes")
            here = replace(here, notes=notes)
        half = mine.parts(q, k, here)
        full, other_q = other.parts(q.float(), k.float(), here), other.parts(-q.float(), k.float(), here)
        if len(half) != len(full):
            raise Fails(f"layer {layer}: {len(half)} parts and not {len(full)}")
        for (half_q, half_k, said), (full_q, full_k, wanted), (*_, beside) in zip(half, full, other_q, strict=True):
            rounded(half_q, full_q, ids, f"layer {layer}, queries")
            rounded(half_k, full_k, ids, f"layer {layer}, keys")
            if said.needs != wanted.needs:
                raise Fails(f"layer {layer}: scores say {sorted(said.needs)} and not {sorted(wanted.needs)}")
            same_words(said, wanted, beside, ids, shape, f"layer {layer}")


def same_words(said: Scores, wanted: Scores, beside: Scores, ids: Tensor, shape: Shape, what: str) -> None:
    """beside: what the exact one says to other queries; numbers that these enter may be rounded as they are."""
    for word in sorted({"slopes", "decay", "bias", "rows", "keep"} & said.needs):
        found, exact, other = (values(one, word, len(ids), shape) for one in (said, wanted, beside))
        of_query = other.shape != exact.shape or not torch.equal(other, exact)
        close(found, exact, ids, f"{what}, {word}", rtol=2**-8 if of_query else 1e-6)


def values(scores: Scores, word: str, tokens: int, shape: Shape) -> Tensor:
    """The numbers of a word of `Scores`; its last dimension is keys, where it has one."""
    said = getattr(scores, word)
    if word in ("bias", "keep"):
        said = said(*eager.grid(1, shape.heads, tokens, tokens, "cpu"))
    elif word == "rows":
        said = said(torch.arange(tokens), torch.arange(tokens))
    return said.detach().float()


def rounded(half: Tensor, full: Tensor, ids: Tensor, what: str) -> None:
    """One bf16 rounding of the result, 2^-9 of it, and of the largest input to a sum that cancels."""
    if half.dtype != torch.bfloat16:
        raise Fails(f"{what} come back as {half.dtype} where the model is bf16: cast at the end to the dtype of x")
    close(half.detach().float().transpose(-1, -2), full.detach().float().transpose(-1, -2), ids, what, atol=2**-9)


def close(found: Tensor, wanted: Tensor, ids: Tensor, what: str, rtol: float = 2**-8, atol: float = 1e-6) -> None:
    """The last dimension, if it is as long, is positions."""
    off = (found - wanted).abs()
    bad = ~(off <= atol + rtol * wanted.abs())
    if bad.any():
        place = [int(n) for n in bad.nonzero()[0]]
        at = f" at position {int(ids[place[-1]])}" if found.shape[-1] == len(ids) else ""
        mine, exact = found[tuple(place)].item(), wanted[tuple(place)].item()
        raise Fails(f"{what}{at} are {mine:.4g} and without the cast {exact:.4g}")


def sends_gradient_to_every_parameter(spec: Spec, shape: Shape) -> None:
    """A gradient reaches every parameter, in every layer that has a part of it."""
    scheme = made(spec, shape)
    named = [(name, parameter) for name, parameter in scheme.named_parameters() if parameter.requires_grad]
    if not named:
        raise Skips("it has no parameters")
    tokens = many(scheme)
    x, total = hidden(shape, tokens), 0.0
    for layer in range(shape.layers):
        out = output(scheme, x, Positions.first(tokens), layer)
        weight = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(4))
        total = total + (out * weight).sum()
    if not total.requires_grad:
        raise Fails(f"parameter {named[0][0]}: no gradient reaches it")
    gradients = torch.autograd.grad(total, [parameter for _, parameter in named], allow_unused=True)
    for (name, parameter), gradient in zip(named, gradients, strict=True):
        if gradient is None or not gradient.any():
            raise Fails(f"parameter {name}: no gradient reaches it")
        if not gradient.isfinite().all():
            raise Fails(f"parameter {name}: its gradient is no number")
        if parameter.dim() and len(parameter) == shape.layers:
            if missed := [n for n, of_layer in enumerate(gradient) if not of_layer.any()]:
                raise Fails(f"parameter {name}: no gradient reaches its part for layer {missed[0]}; is it [pos.layer]?")


def is_saved_whole(spec: Spec, shape: Shape) -> None:
    """What is saved of it makes another the same."""
    one, other = made(spec, shape, seed=0), made(spec, shape, seed=1)
    other.load_state_dict(one.state_dict())
    tokens = few(one)
    x, pos = hidden(shape, tokens), Positions.first(tokens)
    in_each_layer(
        shape,
        lambda layer: same(
            output(other, x, pos, layer), output(one, x, pos, layer), "loaded into another", tolerance=0
        ),
    )


def runs_alike_on_every_backend(spec: Spec, shape: Shape) -> str | None:
    """Every backend that runs it here gives what the definition gives, forward and backward."""
    scheme = made(spec, shape)
    tokens, limited = few(scheme), scheme.limit is not None
    layouts = {
        "": Positions.first(tokens),
        " of the last 5 queries": Positions.first(tokens, queries=min(5, tokens)),
        " behind padding": left_padded(few(scheme, 17), 7),
        " packed": packed([few(scheme, 10), few(scheme, 14)]),
    } | ({} if limited else {" at skipping positions": skipping(tokens)})
    ran, reasons = {}, {}
    for layer in sorted({0, shape.layers - 1}):
        for layout, pos in layouts.items():
            for dtype in ROUNDING:
                agree(scheme, shape, layer, layout, pos, dtype, ran, reasons)
    if not ran:
        raise Skips("only eager runs it here: " + "; ".join(f"{name} {why}" for name, why in reasons.items()))
    return ", ".join(f"{name} {how}" for name, how in ran.items())


def agree(scheme, shape, layer, layout, pos, dtype, ran: dict[str, str], reasons: dict[str, str]) -> None:
    """Try each backend at one layout; note in `ran` which could, and in `reasons` why one could not."""
    exact = with_gradients(lambda x: output(scheme, x, pos, layer), hidden(shape, pos.tokens), scheme)
    x = hidden(shape, pos.tokens, dtype=dtype)
    for name in order(parts_of(scheme, x, pos, layer)[0][0][2], x, pos):
        if name == "eager":
            continue
        if obstructed(name, scheme, x.clone().requires_grad_(), pos, layer) is None:
            found = with_gradients(partial(output, scheme, pos=pos, layer=layer, backend=name), x, scheme)
            ran[name] = "forward and backward"
        else:
            with torch.no_grad():
                if reason := obstructed(name, scheme, x, pos, layer):
                    reasons.setdefault(name, reason)
                    continue
                found = {"the output": output(scheme, x, pos, layer, name)}
            ran.setdefault(name, "forward alone")
        compare(found, exact, f"{name}, layer {layer}, {pos.tokens} tokens{layout}, {str(dtype)[6:]}", dtype, pos)


def obstructed(backend: str, scheme: Scheme, x: Tensor, pos: Positions, layer: int) -> str | None:
    """Why a backend cannot run a part of it; None: it can."""
    parts, _, pos = parts_of(scheme, x, pos, layer)
    reasons = [obstacle(backend, scores, q, k, pos, len(parts) > 1) for q, k, scores in parts]
    return next((reason for reason in reasons if reason), None)


def compare(found: dict[str, Tensor], exact: dict[str, Tensor], what: str, dtype: torch.dtype, pos: Positions) -> None:
    same(found["the output"], exact["the output"], what, pos.tokens - pos.queries, ROUNDING[dtype])
    for name in found.keys() - {"the output"}:
        # Parameters are fp32, and so is the sum of the many terms of their gradients.
        loose = ROUNDING[dtype] if exact[name].dtype == torch.float64 else 1e-5
        off = (found[name].double() - exact[name].double()).abs().max().item()
        if not off <= loose * max(1.0, exact[name].abs().max().item()):
            raise Fails(f"{what}: the gradient of {name} is off by {off:.2g}")


def with_gradients(run: Callable[[Tensor], Tensor], x: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """The output of `run(x)`, and what flows back to the embeddings and the scheme's parameters."""
    x = x.clone().requires_grad_()
    named = {"the embeddings": x, **{name: p for name, p in scheme.named_parameters() if p.requires_grad}}
    out = run(x)
    weight = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).to(out.dtype)
    gradients = torch.autograd.grad((out * weight).sum(), list(named.values()), allow_unused=True)
    back = {n: torch.zeros(()) if g is None else g for n, g in zip(named, gradients, strict=True)}
    return {"the output": out.detach(), **back}


def compiles_whole(spec: Spec, shape: Shape) -> None:
    """torch.compile makes one graph of the model, which gives the same, forward and backward."""
    scheme, model = build(spec, shape), model_of(spec, shape)
    ids = torch.randint(50, (2, few(scheme)), generator=torch.Generator().manual_seed(7))
    torch._dynamo.reset()
    results = []
    for call in (torch.compile(model, fullgraph=True, backend="aot_eager"), model):
        model.zero_grad()
        try:
            logits = call(ids).logits
            logits.square().mean().backward()
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = next(line.strip() for line in str(error).splitlines() if line.strip())
            raise Fails(f"torch makes no single graph of it: {reason}") from None
        gradients = {n: p.grad.clone() for n, p in model.model.scheme.named_parameters() if p.grad is not None}
        results.append((logits.detach(), gradients))
    (found, mine), (wanted, exact) = results
    same(found[:1, None], wanted[:1, None], "compiled")
    for name in exact:
        if not torch.allclose(mine[name], exact[name], rtol=1e-4, atol=1e-6):
            raise Fails(f"compiled, the gradient of {name} differs")
