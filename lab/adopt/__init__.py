"""Put any encoding into a pretrained model of transformers, by the seams that it has: its code and weights stay."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from eval.cap import keep_cap
from lab import LabError
from lab.adopt.attention import NAME, Seated, install
from lab.adopt.rotary import Rotary, Where, paired
from lab.rope.config import Described, Rotation, described
from lab.rope.left_out import completed
from lab.rope.modules import rotary_modules, turns
from positional import Positions, Scheme, Scores, build
from positional.build import Spec, name_of
from positional.rope import Layout
from positional.stack import acts

NEAR = 16
"""Tokens on which a model's own encoding, said by the lab, is compared with what the model does."""


def adopt(model: PreTrainedModel, spec: Spec, *, train_length: int | None = None) -> PreTrainedModel:
    """The same model, which from now on encodes positions as `spec` says, in place of what it did.

    A `base` or `layout` that spec leaves out is the model's own. Where layers differ by type, those that see the whole
    input change and the others keep what they have. A layer without positions stays so, but for a window.
    train_length: tokens, L0 of every formula; default: as the configuration says.
    Before anything changes, the model's own encoding, as the lab says it, is compared with what the model does.
    Raises LabError, naming model and reason, where the encoding cannot be put in exactly; SchemeError as `build` does.
    The model is then as it was loaded.
    """
    keep_cap(release(model))
    own = described(model.config)
    main = own.rotations[own.main]
    seat = Seat(model, own)
    spec = completed(spec, base_of(main, model), seat.layout)
    shape = main.shape if train_length is None else replace(main.shape, train_length=train_length)
    scheme = build(spec, shape).to(model.device)
    refuse_unreachable(scheme, name_of(spec), model)
    rotary = seat.rotary(scheme, name_of(spec))
    if rotary.where == "attention":
        seat.compare_inside(model)
    take(model, own, rotary)
    return model


def release(model: PreTrainedModel) -> PreTrainedModel:
    """The same model with its own encoding again, as it was loaded."""
    for name, rotary in [(n, m) for n, m in model.named_modules() if isinstance(m, Rotary)]:
        set_module(model, name, rotary.native)
        if rotary.where == "attention":
            model.set_attn_implementation(rotary.before)
            for module in attentions(model):
                del module.seated
        if rotary.cached is not None:
            model.generation_config.use_cache = rotary.cached
    return model


def adopted(model: PreTrainedModel) -> Rotary | None:
    """What was put in; None: the model is as it was loaded."""
    return next((module for module in model.modules() if isinstance(module, Rotary)), None)


class Seat:
    """Where an encoding goes in a model: its one rotary module, and what that gives.

    Raises LabError where there is none, or several, or one that does not do what the configuration says.
    """

    def __init__(self, model: PreTrainedModel, own: Described):
        self.model, self.own, self.title = model, own, type(model).__name__
        found = list(rotary_modules(model))
        if len(found) != 1:
            names = ", ".join(name for name, *_ in found) or "none"
            raise LabError(f"{self.title} must have one rotary module for all its layers, found {names}")
        self.name, self.module, _ = found[0]
        self.layout, self.channels = self.checked()
        half = self.module(*self.inputs(torch.bfloat16))[0]
        self.exact = half.dtype == torch.float32  # OLMo turns in fp32 whatever it computes in

    @torch.no_grad()
    def checked(self) -> tuple[Layout, int]:
        """The layout and the number of the cosines that the module gives for the first tokens, if they are as said."""
        main = self.own.rotations[self.own.main]
        scheme = main.scheme()
        x, ids, *told = self.inputs(torch.float32)
        given = self.module(x, ids, *told)
        if not isinstance(given, tuple) or given[0].shape != (1, NEAR, main.size):
            raise LabError(f"{self.title}'s rotary module does not give cosines and sines of {main.size} channels")
        said = scheme.turn(ids, NEAR)
        radians = turns(self.module, self.own.main, NEAR)[0].cpu().double()
        if not torch.allclose(radians, scheme.frequencies(NEAR), rtol=1e-4, atol=0):
            raise LabError(f"{self.title} turns by other angles than its configuration says: {main.spec}")
        for layout in ("half", "interleaved"):
            if all(torch.allclose(g, paired(s[:, 0], layout), atol=1e-4) for g, s in zip(given, said, strict=True)):
                return layout, main.size
        raise LabError(f"{self.title}'s rotary module gives other cosines than its configuration says: {main.spec}")

    def inputs(self, dtype: torch.dtype) -> tuple:
        """What the module is called with: hidden states, positions, and the type of layer where they differ."""
        ids = torch.arange(NEAR, device=self.model.device)[None]
        x = torch.zeros(1, NEAR, 1, dtype=dtype, device=ids.device)
        return (x, ids, self.own.main) if self.own.main else (x, ids)

    def rotary(self, scheme: Scheme, name: str, where: Where | None = None) -> Rotary:
        keeps = [key for key in self.own.rotations if key not in ("nope", self.own.main)]
        return Rotary(self.module, scheme, name, self.layout, self.channels, self.exact, keeps, where)

    def own_scheme(self) -> Scheme:
        main = self.own.rotations[self.own.main]
        return build(completed(main.spec, base_of(main, self.model), self.layout), main.shape).to(self.model.device)

    def compare_inside(self, model: PreTrainedModel) -> None:
        """Raise LabError where the model's own encoding, put inside attention, gives other logits than the model."""
        if getattr(self.module, "compared_inside", False):
            return
        ids = torch.arange(NEAR, device=model.device)[None] % model.config.get_text_config().vocab_size
        before, training = None, model.training
        model.eval()
        try:
            with torch.no_grad():
                before = model(input_ids=ids, use_cache=False).logits.float()
                take(model, self.own, self.rotary(self.own_scheme(), "its own", "attention"))
                apart = (model(input_ids=ids, use_cache=False).logits.float() - before).abs().max()
        finally:
            release(model)
            model.train(training)
        close = 1e-4 if model.dtype in (torch.float32, torch.float64) else 0.05
        if not apart <= close * before.abs().max():
            raise LabError(
                f"{self.title} does something in its attention that the lab's does not do: with its own encoding put "
                f"there, logits are {float(apart):.2g} off. Encodings that only change the angles can be put in"
            )
        self.module.compared_inside = True


def take(model: PreTrainedModel, own: Described, rotary: Rotary) -> None:
    """Put a rotary module in place of the model's own and, where it asks for it, the lab's attention."""
    name = next(name for name, module in model.named_modules() if module is rotary.native)
    if not rotary.scheme.prefix_consistent and model.generation_config is not None:
        rotary.cached, model.generation_config.use_cache = model.generation_config.use_cache, False
    set_module(model, name, rotary.train(model.training))
    if rotary.where == "rotary":
        return
    install()
    rotary.before = model.config._attn_implementation
    for module in attentions(model):
        module.seated = Seated(rotary, of_layer(own, rotary, module.layer_idx))
    model.set_attn_implementation(NAME)


def of_layer(own: Described, rotary: Rotary, layer: int) -> Scheme:
    """What one layer does inside attention."""
    kind, scheme = own.layers[layer], rotary.scheme.at(layer)
    if kind in rotary.keeps:
        return Scheme(scheme.shape)  # the model has turned its queries and keys already
    return Still(scheme) if kind == "nope" and own.main != "nope" else scheme


class Still(Scheme):
    """Of a scheme, what it does to the scores, in a layer that has no positions."""

    def __init__(self, scheme: Scheme):
        super().__init__(scheme.shape)
        self.told = (scheme,)  # in a tuple, so that no parameter has two names

    def scores(self, q: Tensor, k: Tensor, pos: Positions) -> Scores:
        return self.told[0].scores(q, k, pos)


def attentions(model: nn.Module) -> Iterator[nn.Module]:
    """The modules that call transformers' attention interface, one a layer."""
    for module in model.modules():
        if type(module).__name__.endswith("Attention") and hasattr(module, "layer_idx"):
            yield module


def set_module(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def base_of(rotation: Rotation, model: PreTrainedModel) -> float:
    if not isinstance(rotation.spec, dict):
        raise LabError(f"{type(model).__name__} turns neither queries nor keys in the layers that see the whole input")
    return rotation.spec["base"]


def refuse_unreachable(scheme: Scheme, name: str, model: PreTrainedModel) -> None:
    """Raise LabError for an encoding that acts where no seam reaches."""
    hooks = acts(scheme).union(*(acts(scheme.at(layer)) for layer in range(scheme.shape.layers)))
    for hook, doing in {"embed": "acts on embeddings", "note": "reads the hidden states of each layer"}.items():
        if hook in hooks:
            raise LabError(
                f"{name} {doing}, which {type(model).__name__} gives no way into: encodings that change queries, keys "
                "or scores can be put into a pretrained model"
            )
