"""What a trained encoder–decoder writes for sources of the user's own."""

import numpy as np
import torch

from lab import LabError
from lab.progress import quiet
from lab.seq2seq import bpe
from lab.seq2seq.decode import room_of, written
from lab.seq2seq.evaluate import trained_model
from lab.seq2seq.settings import Translation
from lab.seq2seq.tasks import ids_of, text_of
from lab.settings import Training


def translate(run: Training, sources: list[str]) -> list[str]:
    """A line for each source, greedy or by run.eval.beams. Raises LabError for another kind of run, an empty source."""
    if not isinstance(run, Translation):
        raise LabError(f"{run.path} is no encoder–decoder: `lab generate {run.path} --prompt …`", code=2)
    for number, source in enumerate(sources, 1):
        if not source.strip():
            raise LabError(f"source {number} is empty: there is nothing to translate", code=2)
    quiet()
    model = trained_model(run).to("cuda" if torch.cuda.is_available() else "cpu")
    if run.data.source == "algorithmic":
        ids = [ids_of(source.encode()) for source in sources]
        return [
            text_of(line).decode(errors="replace") for line in written(model, ids, run, lambda s: room_of(model, s))
        ]
    tokenizer = bpe.read(run.path / "model")
    ids = [np.array(one) for one in bpe.encoded(tokenizer, [" ".join(source.split()) for source in sources])]
    said = written(model, ids, run, lambda s: room_of(model, s))
    return tokenizer.batch_decode(said, skip_special_tokens=True)
