"""The end of `lab finetune`: the model as a folder that transformers loads; what would not get there is told first."""

from dataclasses import replace

from transformers import PreTrainedModel

from lab import LabError
from lab.adopt import adopted
from lab.checkpoint import replacing
from lab.export.write import export
from lab.finetune.settings import Finetuning
from lab.rope.config import described
from lab.rope.fields import written
from lab.rows import Row
from lab.tokenizer import of_hub
from positional import Shape, build
from positional.build import Spec
from positional.stack import acts


def write(lm: PreTrainedModel, run: Finetuning, measured: list[Row]) -> None:
    """Make the folder of the model: as it came where nothing in its configuration changes, else as an export."""
    tokenizer, final = of_hub(run.data.tokenizer), run.path / "model"
    reads = getattr(lm.config.get_text_config(), "max_position_embeddings", None)
    if run.model.positional is None and run.model.longest in (reads, None):
        with replacing(final) as side:
            lm.save_pretrained(side)
            tokenizer.save_pretrained(side)
        return
    own = described(lm.config)
    main = own.rotations[own.main]
    shape = replace(main.shape, train_length=run.model.train_length)
    spec = main.spec if run.model.positional is None else as_read(run.model.positional, shape)
    export(lm, tokenizer, spec, final, **lengths(run), measured=measured)


def lengths(run: Finetuning) -> dict[str, int]:
    return {"target": run.model.longest, "train_length": run.model.train_length}


def refuse_unwritable(run: Finetuning, lm: PreTrainedModel) -> None:
    """Raise LabError before the first step for an encoding that would be refused after the last."""
    if run.model.positional is None:
        return
    scheme = adopted(lm).scheme
    fields, why = written(as_read(run.model.positional, scheme.shape), lm.config, **lengths(run))
    own = [name for name, _ in scheme.named_parameters()] + [path.name for path in run.sources]
    if fields is None and own:
        raise LabError(
            f"{run.encoding}: a checkpoint that others load has no place for {', '.join(own)} ({why}): train a new "
            "model with it, by `lab train`",
            code=2,
        )


def as_read(spec: Spec, shape: Shape) -> Spec:
    """An encoding without what it does in training alone, which is to place tokens."""
    if not isinstance(spec, list):
        return spec
    kept = [one for one in spec if acts(build(one, shape)) != {"place"}]
    return kept[0] if len(kept) == 1 else kept or "nope"
