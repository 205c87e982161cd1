"""What no single setting of an encoder–decoder run shows: sizes, encodings, lines and problems that do not fit."""

import difflib
from collections.abc import Iterator

from pydantic import ValidationError

from lab.seq2seq.settings import SIDES, EncoderDecoder, Line, Sides, Translation, sides_of


def misfits(run: Translation) -> Iterator[str]:
    """All that is wrong."""
    if flaw := unshared(run.model):
        yield f"model: {flaw}"
        return
    swaps = {f"eval.swap[{i}]": spec for i, spec in enumerate(run.eval.swap)}
    yield from unbuilt(run, {"model": run.sides, **swaps})
    for i, line in enumerate(run.compare.runs):
        key, flaws = f"compare.runs[{i}]", list(unchangeable(run, line))
        yield from (f"{key}.{one}" for one in flaws)
        if flaws:
            continue
        changed = run.model_copy(update={"model": run.with_line(line)})
        own = {f"{key}.train": line.train or changed.sides}
        own |= {f"{key}.swap[{j}]": spec for j, spec in enumerate(line.swap)}
        own |= {f"{key} with {swap}": spec for swap, spec in swaps.items() if line.model}
        if flaw := unshared(changed.model):
            yield f"{key}.model: {flaw}"
        else:
            yield from unbuilt(changed, own)
    if run.data.source == "algorithmic":
        yield from unfitting(run)


def unshared(m: EncoderDecoder) -> str:
    """Why the heads cannot share the width; empty where they can, or where there are none."""
    if m.recurrent is not None or not m.width % m.heads or None not in (m.key_size, m.value_size):
        return ""
    return f"width {m.width} is not a multiple of heads {m.heads}: set key_size and value_size"


def unchangeable(run: Translation, line: Line) -> Iterator[str]:
    """What is wrong with what a line of a comparison says of the model beside its encodings."""
    from lab.config import explained

    if line.mixer is not None:
        yield "mixer: an encoder–decoder has no mixers to choose: leave it out"
    for side in {"encoder", "decoder"} & line.model.keys():
        if isinstance(line.model[side], dict) and "positional" in line.model[side]:
            yield (
                f"model.{side}.positional: the encodings of a line stand in its `train`: "
                "{encoder: rope, decoder: alibi}"
            )
    try:
        EncoderDecoder.model_validate({"recurrent": run.model.recurrent, **line.model})
    except ValidationError as error:
        for one in error.errors():
            yield from explained({**one, "loc": ("model", *one["loc"])}, Translation)


def unsided(spec: Sides) -> str:
    """What is wrong with the keys of an encoding that is said for each side; empty where nothing is."""
    unknown = [key for key in spec if key not in SIDES] if isinstance(spec, dict) and "kind" not in spec else []
    if not unknown:
        return ""
    near = difflib.get_close_matches(str(unknown[0]), SIDES, 1)
    hint = f"did you mean {near[0]}?" if near else "write kind: for both sides, or encoder: and decoder:"
    return f"{unknown[0]}: no side has this name; {hint}"


def unbuilt(run: Translation, specs: dict[str, Sides]) -> Iterator[str]:
    """Encodings that cannot be built at the sizes of the run, or that its model has no use for."""
    from lab.seq2seq.config import scheme_of
    from positional import SchemeError

    for key, spec in specs.items():
        if run.model.recurrent is not None and spec:
            yield f"{key}: a recurrent model has no encodings: leave it out"
            continue
        if wrong := unsided(spec):
            yield f"{key}.{wrong}"
            continue
        for side, one in sides_of(spec).items():
            try:
                scheme_of(side, one, shape_of(run, side))
            except SchemeError as error:
                yield f"{key}.{side}: {error}"


def shape_of(run: Translation, side: str):
    """What the scheme of a side is told."""
    from positional import Shape

    m = run.model
    size = m.width // m.heads if m.key_size is None else m.key_size
    return Shape(m.width, m.heads, m.heads, getattr(m, side).layers, run.train.length, size)


def unfitting(run: Translation) -> Iterator[str]:
    """Sizes of problems that do not exist, or do not fit the training length."""
    from eval import EvalError
    from eval.algorithmic import problems
    from eval.problems import task_of

    (task,), (smallest, largest) = run.data.task, run.data.sizes
    if smallest > largest:
        yield f"data.sizes: [{smallest}, {largest}] holds no size: write the smallest first"
    try:
        source = max(map(len, problems(task, largest, range(64), 0, "train")[0]))
        needed = 1 + max(source, task_of(task).longest(largest) - source)
    except EvalError as error:
        yield f"data.{'sizes' if 'size' in str(error) else 'task'}: {error}"
        return
    if needed > run.train.length:
        yield (
            f"train.length: {task} with {largest} {task_of(task).unit} takes {needed} tokens on one side with its end, "
            f"{run.train.length} are given: raise train.length or lower data.sizes"
        )
