"""What a fine-tuning comes to: encoding and lengths in numbers, by what the checkpoint's configuration says."""

from dataclasses import replace

from transformers import PreTrainedConfig

from lab import LabError
from lab.extend.methods import EVERY, FOR_TRAINING
from lab.finetune.settings import Finetuning
from lab.pretrained import config_of
from lab.rope.config import Described, described
from lab.settings import Length, tokens
from positional import SchemeError, Shape, build
from positional.build import Spec


def settled(asked: Finetuning) -> Finetuning:
    """The same with nothing left open. Raises LabError where the checkpoint does not say, or forbids it."""
    config, model = config_of(asked.model.name), asked.model
    own = rotations(config, needed=bool(model.method or model.positional))
    reads = getattr(config.get_text_config(), "max_position_embeddings", None)
    train_length = model.train_length or (reads if own is None else own.rotations[own.main].train_length)
    if train_length is None:
        raise LabError(f"{model.name} does not say on how many tokens it was trained: set model.train_length", code=2)
    longest = model.longest and length_of("model.longest", model.longest, train_length)
    if longest and longest <= train_length and model.method not in (None, "drope"):
        raise LabError(
            f"model.longest: {model.name} was trained on {train_length} tokens, and {longest} are within: "
            f"{model.method} is to reach further (--to)",
            code=2,
        )
    spec = model.positional if model.method is None else EVERY[model.method](train_length, longest)
    if own is not None and spec is not None:
        refuse_unbuildable(spec, replace(own.rotations[own.main].shape, train_length=train_length))
    length = train_length if model.method in FOR_TRAINING else longest or reads or train_length
    if asked.train.length is not None:
        length = length_of("train.length", asked.train.length, train_length)
    longest = longest or max(reads or 0, train_length, length)
    about = {"positional": spec, "method": None, "longest": longest, "train_length": train_length}
    return asked.model_copy(
        update={
            "model": model.model_copy(update=about),
            "train": asked.train.model_copy(update={"length": length}),
        }
    )


def rotations(config: PreTrainedConfig, needed: bool) -> Described | None:
    try:
        return described(config)
    except LabError:
        if needed:
            raise
        return None


def refuse_unbuildable(spec: Spec, shape: Shape) -> None:
    """Raise LabError for an encoding that there is not, or that has other options; before weights are loaded."""
    try:
        build(spec, shape)
    except SchemeError as error:
        raise LabError(f"model.positional: {error}", code=2) from None


def length_of(key: str, length: Length, train_length: int) -> int:
    try:
        return tokens(length, train_length)
    except ValueError as error:
        raise LabError(f"{key}: {error}", code=2) from None
