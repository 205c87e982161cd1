"""torch.compile: the whole model as one graph with every encoding, and the list of what does not go into one."""

# B batch · T tokens · V vocabulary

import pytest
import torch
import torch.nn.functional as F
from conftest import spec_of
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.utils import counters

from lab import model as lab_model
from lab.model import LabConfig, LabModel
from positional import kinds

T, V = 24, 50

BROKEN: dict[str, str] = {}
"""Encodings that do not compile into one graph: their kind, and a piece of torch's reason."""

ONE_OF_EACH = {"sinusoidal", "rope", "rope-dynamic", "alibi", "relative", "kerple", "fox", "window", "self-extend"}
"""Of each way to act on a model one that is tried every time; the others are slow."""

READ = {
    "attention_mask": "padded = attention_mask is not None",
    "position_ids": "if bool((position_ids",
    "packed": "if bool((position_ids",
}
"""Inputs whose numbers the model reads before it starts, which ends a graph: their name, and a piece of the line."""

KERPLE = '''"""Kerple (log): a learned logarithmic penalty (Chi et al. 2022, arXiv:2205.09921)."""

import torch

from positional import Scheme, Scores


class Kerple(Scheme):
    def __init__(self, shape, *, start: float = 1.0):
        super().__init__(shape)
        self.a = torch.nn.Parameter(torch.full((shape.heads,), start))
        self.b = torch.nn.Parameter(torch.full((shape.heads,), start))

    def scores(self, q, k, pos):
        return Scores.of_distance(lambda d, h: -self.a[h] * torch.log1p(self.b[h] * d.clamp(min=0)), pos)
'''

LEARNED = '''"""Learned: scores with a gradient of their own, some of which are made again for it."""

import torch

from positional import Scheme, Scores


class Learned(Scheme):
    def __init__(self, shape, *, word: str):
        super().__init__(shape)
        self.word, self.a = word, torch.nn.Parameter(torch.ones(shape.heads))

    def scores(self, q, k, pos):
        decay = torch.nn.functional.softplus(k.mean(-1) * self.a[:, None]).cumsum(-1)
        said = {
            "decay": decay,
            "rows": lambda i, j: (self.a[:, None, None] * torch.sin(i[:, None] - 2.0 * j))[None],
            "bias": lambda b, h, i, j: self.a[h] * torch.sin(i - 2.0 * j),
        }
        return Scores(**{self.word: said[self.word]})
'''


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()
    counters.clear()


@pytest.fixture
def kerple(tmp_path) -> str:
    (tmp_path / "kerple.py").write_text(KERPLE)
    return str(tmp_path / "kerple.py")


def made(positional, **changes) -> LabModel:
    """With every weight moved, as training would: a learned bias of zero would hide that it was lost."""
    sizes = {"vocab_size": V, "width": 32, "layers": 2, "heads": 2, "train_length": 32}
    model = LabModel(LabConfig(**sizes | changes, positional=positional))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def whole(model: LabModel, backend: str = "aot_eager"):
    """The model compiled, so that a break of its graph is an error.

    aot_eager traces forward and backward as for any backend, and runs both on torch's own kernels.
    """
    return torch.compile(model, fullgraph=True, backend=backend)


def tokens(length: int = T) -> Tensor:
    return torch.randint(V, (2, length), generator=torch.Generator().manual_seed(7))


def run(call, model: LabModel, ids: Tensor, **inputs) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of `call`, and what the gradient of their loss is for every parameter of the model."""
    model.zero_grad()
    logits = call(ids, **inputs).logits
    F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    return logits.detach(), {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def same(model: LabModel, backend: str = "aot_eager") -> None:
    """Whether the compiled model gives what the model gives, forward and backward."""
    ids = tokens()
    found, wanted = run(whole(model, backend), model, ids), run(model, model, ids)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]


@pytest.mark.parametrize("kind", [pytest.param(k, marks=() if k in ONE_OF_EACH else pytest.mark.slow) for k in kinds()])
def test_the_whole_model_is_one_graph(kind):
    model = made(spec_of(kind))
    if kind not in BROKEN:
        return same(model)
    with pytest.raises(TorchDynamoException) as caught:
        whole(model)(tokens())
    assert BROKEN[kind] in str(caught.value)


def test_the_lists_name_kinds_that_there_are():
    assert BROKEN.keys() | ONE_OF_EACH <= set(kinds())


def test_a_stack_with_shared_keys_and_normed_queries_is_one_graph():
    same(made(["rope", {"kind": "window", "window": 9}], kv_heads=1, qk_norm=True))


def test_a_scheme_from_a_users_file_is_one_graph(kerple):
    same(made(kerple, layers=1))


@pytest.mark.parametrize("word", ["decay", "rows", "bias"])
def test_what_is_learned_in_the_scores_is_in_the_graph(word, tmp_path):
    (tmp_path / "learned.py").write_text(LEARNED)
    same(made({"kind": str(tmp_path / "learned.py"), "word": word}, layers=1))


def test_sinks_beside_a_window_are_in_the_graph():
    same(made(["rope", {"kind": "window", "window": 3, "sinks": 2}]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rope", "relative"])
def test_what_inductor_makes_of_it_gives_the_same(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # a minute; not what an earlier run has left
    same(made(kind), "inductor")


@pytest.mark.parametrize("rows", [1000, 25], ids=["at once", "by chunks"])
def test_the_loss_is_in_the_graph_and_its_count_in_no_guard(rows, monkeypatch):
    monkeypatch.setattr(lab_model, "LOSS_LOGITS", rows * V)
    model, ids = made("nope", layers=1), tokens()
    call = whole(model)
    for count in (31.0, 33.5, 40.25):
        gradients = {}
        for name, one in (("compiled", call), ("plain", model)):
            model.zero_grad()
            loss = one(ids, labels=ids, num_items_in_batch=count).loss
            loss.backward()
            gradients[name] = [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]
        torch.testing.assert_close(gradients["compiled"], gradients["plain"], rtol=0, atol=1e-5)
    assert counters["stats"]["unique_graphs"] <= 2  # of a number that changes torch makes an input, at the second call


@pytest.mark.parametrize("kind", ["rope", "alibi"])
def test_two_graphs_serve_all_lengths(kind):
    """The first is for one length; from the second length on, torch takes it for an unknown."""
    model = made(kind).eval()
    call = whole(model, "eager")
    with torch.no_grad():
        for length in (24, 16, 20, 11, 32):
            ids = tokens(length)
            torch.testing.assert_close(call(ids).logits, model(ids).logits, rtol=0, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 2


def inputs(name: str) -> dict[str, Tensor]:
    places = torch.arange(T).expand(2, -1)
    inputs = {"attention_mask": (places >= 3).long(), "position_ids": places + 5, "segments": places // 10}
    return {"segments": inputs["segments"], "position_ids": places % 10} if name == "packed" else {name: inputs[name]}


@pytest.mark.parametrize("name", READ)
def test_inputs_whose_numbers_are_read_break_the_graph_and_change_nothing_else(name):
    model, ids = made("rope", layers=1).eval(), tokens()
    with pytest.raises(TorchDynamoException) as caught:
        whole(model, "eager")(ids, **inputs(name))
    assert READ[name] in str(caught.value)
    torch._dynamo.reset()
    with torch.no_grad():
        found, wanted = (call(ids, **inputs(name)).logits for call in (torch.compile(model, backend="eager"), model))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_segments_alone_break_nothing():
    model, ids = made("rope", layers=1).eval(), tokens()
    found, wanted = (run(call, model, ids, **inputs("segments")) for call in (whole(model, "eager"), model))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
