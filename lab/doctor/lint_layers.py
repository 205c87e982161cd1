"""Lints of layers: those without RoPE, and those that see a window only."""

from collections.abc import Iterator

from lab.doctor.config import Config
from lab.doctor.entries import LOCAL, entries
from lab.doctor.finding import Finding


def layers_without(config: Config) -> Iterator[Finding]:
    """Layers without RoPE, which no extension touches."""
    for entry in entries(config):
        if entry.off:
            problem = f"is null: layers of the type {entry.layers} have no RoPE"
            yield Finding("note", "no-rope-layers", entry.where, problem)
    chosen = config.raw.get("no_rope_layers")
    if isinstance(chosen, list) and chosen and all(one in (0, 1) for one in chosen):
        problem = f"{chosen.count(0)} of {len(chosen)} layers have no RoPE (0 means none, in spite of the name)"
        yield Finding("note", "no-rope-layers", "no_rope_layers", problem)
        layers = config.whole("num_hidden_layers")
        if layers and len(chosen) != layers:
            problem = f"has {len(chosen)} entries for {layers} layers"
            yield Finding("error", "no-rope-layers-length", "no_rope_layers", problem, f"{layers} entries")


def windows(config: Config) -> Iterator[Finding]:
    """A layer that sees a window only meets no distance beyond it."""
    window = config.whole("sliding_window")
    if not window or config.value("use_sliding_window") is False or "sliding_window" not in config.raw:
        return
    some = f"{config.types.count(LOCAL)} of {len(config.types)} layers see" if LOCAL in config.types else "layers see"
    problem = f"{some} {window} tokens only: no distance is longer there, and no extension is needed for them"
    yield Finding("note", "window", "sliding_window", problem)
    for entry in entries(config):
        if entry.layers == LOCAL and entry.type not in ("default", None) and (entry.factor or 1) > 1:
            problem = f"slows lanes by {entry.factor:g} in layers that see {window} tokens only"
            yield Finding("warning", "scaled-window", entry.where, problem, '"rope_type": "default"')


OF_CONFIG = (layers_without, windows)
