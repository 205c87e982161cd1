"""What all tests share: a quiet, offline, single-threaded machine; a small shape; every kind of encoding."""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "WANDB_SILENT": "true"}  # read when imported

import inspect

import hypothesis
import pytest
import torch
import transformers

from positional import Shape, build
from positional.build import find, kinds
from positional.options import options_of

VALUES = {
    "factor": 4.0,
    "group": 2,
    "window": 9,
    "longest": 256,
    "of": "rope",
    "schemes": ["rope", "nope"],
    "short": [1.0, 1.0, 1.0, 1.0, 1.1, 1.2, 1.3, 1.4],  # of the 8 lanes of `shape`
    "long": [1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 4.0, 4.0],
}
"""A value for every option that has no default, under whatever kind it stands."""

SHAPE = Shape(width=64, heads=4, kv_heads=4, layers=2, train_length=64)
"""Heads of 16 channels: 1/√16 is exact, so that fp64 comparisons see the code's rounding and not the scale's."""


def pytest_configure():
    hypothesis.settings.register_profile("busy", deadline=None)  # a loaded machine is no failure
    hypothesis.settings.load_profile("busy")
    torch.set_num_threads(1)  # so that sums are taken in one order, and timings mean something
    torch.set_flush_denormal(True)  # ALiBi's far keys underflow; without it they are four times slower
    transformers.utils.logging.disable_progress_bar()


def spec_of(kind: str) -> dict:
    """A kind with a value for each option it cannot be built without."""
    options = options_of(find(kind)).items()
    return {"kind": kind} | {n: VALUES[n] for n, option in options if option.default is inspect.Parameter.empty}


def depends_on_length(kind: str) -> bool:
    """Whether what follows a token changes what is made of it, be it by how much follows."""
    return not build(spec_of(kind), SHAPE).prefix_consistent


def pytest_generate_tests(metafunc):
    """A test that asks for `any_spec` runs once for each kind, so that a new file is tested the moment it exists.

    One that asks for `steady_spec` runs for those of them that a cache can hold, for `growing_spec` for the others.
    """
    for name in {"any_spec", "steady_spec", "growing_spec"} & {*metafunc.fixturenames}:
        chosen = [k for k in kinds() if name == "any_spec" or depends_on_length(k) == (name == "growing_spec")]
        metafunc.parametrize(name, [pytest.param(spec_of(kind), id=kind) for kind in chosen])


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shape() -> Shape:
    return SHAPE
