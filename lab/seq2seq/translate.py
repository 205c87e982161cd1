"""What a trained encoder–decoder writes for sources of the user's own."""

from pathlib import Path

import numpy as np
import torch

from lab import LabError
from lab.config import of_run
from lab.progress import quiet
from lab.seq2seq import bpe
from lab.seq2seq.base import Translator
from lab.seq2seq.decode import limit_of, room_of, written
from lab.seq2seq.evaluate import trained_model
from lab.seq2seq.settings import Translation
from lab.seq2seq.tasks import ids_of, text_of
from lab.settings import Training
from positional.build import name_of


def asked(folder: Path, beams: int, length_penalty: float) -> Translation:
    """The settings of a run's folder, to decode so. Raises LabError for another kind of run."""
    refuse_other(of_run(folder))  # before the settings that only an encoder–decoder has
    return of_run(folder, [f"eval.beams={beams}", f"eval.length_penalty={length_penalty}"])


def refuse_other(run: Training) -> None:
    if not isinstance(run, Translation):
        raise LabError(f"{run.path} is no encoder–decoder: `lab generate {run.path} --prompt …`", code=2)


def translate(run: Training, sources: list[str]) -> list[str]:
    """A line for each source, greedy or by run.eval.beams. Raises LabError for another kind of run, and a source
    that is empty or too long."""
    model, ids = opened(run, sources)
    return texts(run, written(model, ids, run, lambda s: room_of(model, s)))


def opened(run: Training, sources: list[str]) -> tuple[Translator, list[np.ndarray]]:
    """The model of a run, and the ids of each source with their end token. Raises as `translate` does."""
    refuse_other(run)
    for number, source in enumerate(sources, 1):
        if not source.strip():
            raise LabError(f"source {number} is empty: there is nothing to translate", code=2)
    quiet()
    model = trained_model(run).to("cuda" if torch.cuda.is_available() else "cpu")
    if run.data.source == "algorithmic":
        ids = [ids_of(source.encode()) for source in sources]
    else:
        lines = [" ".join(source.split()) for source in sources]
        ids = [np.array(one) for one in bpe.encoded(bpe.read(run.path / "model"), lines)]
    refuse_too_long(model, ids)
    return model, ids


def refuse_too_long(model: Translator, sources: list[np.ndarray]) -> None:
    """Raise LabError for the first source that the encoder's table of positions does not reach."""
    for number, ids in enumerate(sources, 1):
        if len(ids) > limit_of(model):
            raise LabError(
                f"source {number} has {len(ids)} tokens with its end, and {name_of(model.config.encoder_positional)} "
                f"in the encoder takes at most {limit_of(model)}: shorten it, or train at a longer length",
                code=2,
            )


def texts(run: Translation, said: list[list[int]]) -> list[str]:
    """What is written, as text up to its end."""
    if run.data.source == "algorithmic":
        return [text_of(line).decode(errors="replace") for line in said]
    return bpe.read(run.path / "model").batch_decode(said, skip_special_tokens=True)
