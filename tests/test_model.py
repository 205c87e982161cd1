"""The model: saved and loaded, masked, padded, its loss and its first weights, and encodings swapped into it."""

# B batch · T tokens · C width · V vocabulary

import math
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from lab import LabError
from lab import model as lab_model
from lab.attention import BACKENDS
from lab.model import LabConfig, LabModel, swap
from lab.model.config import misfits
from positional import Positions, SchemeError, Shape
from positional.alibi import slopes

T, V = 24, 50
SIZES = {"vocab_size": V, "width": 64, "layers": 2, "heads": 4, "train_length": 32}

TINT = '''"""Tint: adds one learned number to every embedding."""

import torch

from positional import Scheme


class Tint(Scheme):
    def __init__(self, shape):
        super().__init__(shape)
        self.tint = torch.nn.Parameter(torch.ones(1))

    def embed(self, x, pos):
        return x + self.tint
'''


def config(**changes) -> LabConfig:
    return LabConfig(**SIZES | changes)


def made(positional="rope", seed: int = 0, **changes) -> LabModel:
    torch.manual_seed(seed)
    return LabModel(config(positional=positional, **changes)).eval()


def trained(positional="rope", **changes) -> LabModel:
    """With every weight moved, as training would: a learned bias of zero would hide that it was lost."""
    model = made(positional, **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def tokens(batch: int = 2, length: int = T) -> Tensor:
    return torch.randint(V, (batch, length), generator=torch.Generator().manual_seed(7))


def logits(model: LabModel, ids: Tensor, **inputs) -> Tensor:
    with torch.no_grad():
        return model(ids, **inputs).logits


@pytest.fixture
def tint(tmp_path) -> str:
    (tmp_path / "tint.py").write_text(TINT)
    return str(tmp_path / "tint.py")


# saved and loaded


def test_a_saved_model_gives_the_same_logits_through_auto_classes(any_spec, tmp_path):
    model = trained(any_spec)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is LabModel and type(loaded.scheme) is type(model.scheme)
    assert loaded.config.positional == any_spec and not loaded.training
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))


@pytest.mark.parametrize(
    "changes",
    [{"tie_word_embeddings": False}, {"qk_norm": True}, {"kv_heads": 2}, {"positional": ["rope", "relative"]}],
    ids=str,
)
def test_a_saved_model_of_any_make_gives_the_same_logits(changes, tmp_path):
    model = trained(**changes)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(LabModel.from_pretrained(tmp_path), tokens()), logits(model, tokens()))


def test_a_saved_config_reads_back_with_its_other_names(tmp_path):
    config(kv_heads=2, positional={"kind": "rope-ntk", "factor": "auto"}).save_pretrained(tmp_path)
    back = AutoConfig.from_pretrained(tmp_path)
    assert type(back) is LabConfig and back.positional == {"kind": "rope-ntk", "factor": "auto"}
    assert back.shape == Shape(width=64, heads=4, kv_heads=2, layers=2, train_length=32)
    assert (back.hidden_size, back.num_key_value_heads, back.max_position_embeddings) == (64, 2, 32)
    assert back.hidden == 192  # 8/3 · 64 = 170.7, up to a multiple of 32


def test_loading_in_bf16_rounds_the_weights_and_nothing_else(any_spec, tmp_path):
    model = trained(any_spec)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    rounded = trained(any_spec).to(torch.bfloat16).float()
    # Activations are rounded by 2^-9 several times over in two layers; logits are a few units.
    torch.testing.assert_close(logits(loaded, tokens()).float(), logits(rounded, tokens()), rtol=0.05, atol=0.1)


@pytest.mark.parametrize("kind", ["rope", "sinusoidal", "alibi"])
def test_angles_are_right_at_position_100000_after_loading_in_bf16(kind, tmp_path):
    """In bf16 a position of 100000 would be off by 256, in fp32 an angle by 4e-3."""
    made(kind).save_pretrained(tmp_path)
    scheme = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).scheme
    ids = torch.tensor([[99_999, 100_000]])
    pos = Positions(ids, 2, 100_001)
    if kind == "alibi":
        assert scheme.scores(torch.zeros(1), None, pos).slopes.tolist() == slopes(4)
        return
    size = 16 if kind == "rope" else 64
    angles = ids.double()[0, :, None] * 10000 ** (-torch.arange(0, size, 2).double() / size)
    cos = scheme.turn(pos.ids, pos.length)[0][0, 0] if kind == "rope" else scheme.table(ids)[0, :, 1::2]
    torch.testing.assert_close(cos.double(), angles.cos(), rtol=0, atol=4e-8)


# It was not always so: transformers' from_pretrained takes `trust_remote_code` for itself and does not hand it to
# `LabModel.__init__`, whose default is to trust: a stranger's file runs without being asked for.
@pytest.mark.parametrize("by", [AutoModelForCausalLM, LabModel], ids=lambda by: by.__name__)
@pytest.mark.parametrize("asked", [{}, {"trust_remote_code": False}, {"trust_remote_code": None}], ids=str)
def test_code_that_a_saved_model_names_is_not_run_unless_trusted(by, asked, tint, tmp_path):
    made(tint).save_pretrained(tmp_path / "model")
    with pytest.raises(SchemeError) as caught:
        by.from_pretrained(tmp_path / "model", **asked)
    assert str(caught.value) == (
        f"this model's encoding `{tint}` is code outside the lab; read it, then pass trust_remote_code=True"
    )


@pytest.mark.parametrize("by", [AutoModelForCausalLM, LabModel], ids=lambda by: by.__name__)
def test_code_that_a_saved_model_names_is_run_when_trusted(by, tint, tmp_path):
    model = trained(tint)
    model.save_pretrained(tmp_path / "model")
    loaded = by.from_pretrained(tmp_path / "model", trust_remote_code=True)
    assert torch.equal(loaded.scheme.tint, model.scheme.tint)
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))


# BUG, left failing: a config made beforehand takes no settings from the call, which then reach `LabModel.__init__`.
@pytest.mark.parametrize("by", [AutoModelForCausalLM, LabModel], ids=lambda by: by.__name__)
def test_a_setting_may_be_changed_while_loading(by, tmp_path):
    trained().save_pretrained(tmp_path)
    assert by.from_pretrained(tmp_path, attention="eager").model.layers[0].attention.backend == "eager"


def test_a_name_or_a_path_of_a_config_may_be_given_as_in_transformers(tmp_path):
    trained().save_pretrained(tmp_path)
    assert type(LabModel.from_pretrained(pretrained_model_name_or_path=tmp_path)) is LabModel
    assert type(LabModel.from_pretrained(tmp_path, config=str(tmp_path))) is LabModel


def test_generation_appends_the_likeliest_token():
    model, ids = trained(), tokens()
    longer = model.generate(ids, max_new_tokens=3, do_sample=False)
    assert torch.equal(longer[:, :T], ids)
    for length in range(T, T + 3):
        assert torch.equal(longer[:, length], logits(model, longer[:, :length])[:, -1].argmax(-1))


# first weights


def test_weights_around_the_encoding_are_the_same_for_every_encoding(any_spec):
    plain, other = made("nope").state_dict(), made(any_spec).state_dict()
    shared = {name for name in other if not name.startswith("model.scheme.")}
    assert shared == plain.keys()
    assert all(torch.equal(plain[name], other[name]) for name in shared)


def test_another_seed_draws_other_weights_of_the_encoding_too():
    tables = [made("learned", seed=seed).scheme.table for seed in (0, 0, 1)]
    assert torch.equal(tables[0], tables[1]) and not torch.equal(tables[0], tables[2])


def test_a_schemes_first_weights_are_its_own():
    """transformers would draw an embedding's anew, or leave them as memory happens to be."""
    assert made({"kind": "learned", "std": 0.5}).scheme.table.std().item() == pytest.approx(0.5, rel=0.1)
    assert not made("relative").scheme.table.any()


# BUG, left failing: `_init_weights` takes any module with an attribute `std` for one of the model's matrices: a scheme
# that keeps its option `std` fails for want of a `weight`, or has its `weight` drawn anew.
@pytest.mark.parametrize("parameter", ["tint", "weight"])
def test_a_scheme_may_call_what_it_has_what_it_likes(tmp_path, parameter):
    text = TINT.replace("torch.ones(1))", "torch.ones(1))\n        self.std = 0.5").replace(
        "self.tint", f"self.{parameter}"
    )
    (tmp_path / "named.py").write_text(text)
    assert getattr(made(str(tmp_path / "named.py")).scheme, parameter).tolist() == [1]


# It was not always so: for a class outside transformers, `_initialize_weights` passes by every module that
# has no parameters of its own, so that `_init_weights` never sees Attention or MLP: their weights stay nn.Linear's.
def test_what_writes_to_the_residual_stream_starts_smaller_by_the_root_of_its_writers():
    model = made(width=256, layers=8, vocab_size=400, tie_word_embeddings=False, hidden=512)
    layer, std = model.model.layers[3], 256**-0.5
    wanted = {
        layer.attention.qkv: std,
        layer.attention.out: std / 4,  # √(2 · 8 layers)
        layer.mlp.gate: std,
        layer.mlp.up: std,
        layer.mlp.down: 512**-0.5 / 4,
        model.model.embed: std,
        model.head: std,
    }
    for module, value in wanted.items():
        # At least 65536 numbers: the spread of their spread is 0.3 %.
        assert module.weight.std().item() == pytest.approx(value, rel=0.02)
    norms = [m.weight for m in model.modules() if isinstance(m, torch.nn.RMSNorm)]
    assert len(norms) == 2 * 8 + 1 and all((weight == 1).all() for weight in norms)


def test_embeddings_reach_the_first_layer_with_unit_variance():
    model, seen = made("nope", width=256), []
    model.model.layers[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    logits(model, tokens())
    assert seen[0].std().item() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "extra"),
    [
        ({}, 0),
        ({"tie_word_embeddings": False}, V * 64),
        ({"qk_norm": True}, 2 * 2 * 16),
        ({"kv_heads": 1}, -2 * 2 * 3 * 16 * 64),
        ({"hidden": 100}, 2 * 3 * (100 - 192) * 64),
        ({"positional": "learned"}, 32 * 64),
        ({"positional": "relative"}, 32 * 4),
    ],
    ids=str,
)
def test_the_number_of_parameters_is_the_formula(changes, extra):
    layer = 4 * 64 * 64 + 3 * 192 * 64 + 2 * 64  # attention, MLP, two norms
    assert made(**changes).num_parameters() == V * 64 + 2 * layer + 64 + extra


def test_tied_weights_are_one_and_untied_two(tmp_path):
    tied, untied = made(), made(tie_word_embeddings=False)
    assert tied.head.weight is tied.model.embed.weight
    assert not torch.equal(untied.head.weight, untied.model.embed.weight)
    tied.save_pretrained(tmp_path)
    loaded = LabModel.from_pretrained(tmp_path)
    assert loaded.head.weight is loaded.model.embed.weight


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True, "kv_heads": 2, "tie_word_embeddings": False}], ids=str)
def test_a_gradient_reaches_every_parameter(any_spec, changes):
    model = trained(any_spec, **changes)
    model(tokens(), labels=tokens()).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


# forward


def test_future_tokens_change_no_earlier_logit(any_spec):
    model, ids = trained(any_spec), tokens()
    other = torch.cat([ids[:, :13], (ids[:, 13:] + 1) % V], 1)
    before, after = logits(model, ids), logits(model, other)
    torch.testing.assert_close(after[:, :13], before[:, :13], rtol=0, atol=2e-5)  # fp32, kernels of other sizes
    assert (after[:, 13:] - before[:, 13:]).abs().amax(-1).min() > 1e-2


def test_what_follows_changes_no_earlier_logit_where_a_scheme_says_so(steady_spec):
    """A longer input too, unless the encoding depends on its length."""
    model, ids = trained(steady_spec), tokens()
    assert model.scheme.prefix_consistent
    torch.testing.assert_close(logits(model, ids[:, :13]), logits(model, ids)[:, :13], rtol=0, atol=2e-5)


def test_an_encoding_that_depends_on_the_length_is_not_prefix_consistent_and_says_so(growing_spec):
    model, ids = trained(growing_spec), tokens(length=64)
    assert not model.scheme.prefix_consistent
    assert (logits(model, ids[:, :20]) - logits(model, ids)[:, :20]).abs().max() > 1e-2


def test_an_auto_factor_is_not_prefix_consistent_and_says_so():
    model, ids = trained({"kind": "rope-ntk", "factor": "auto"}), tokens(length=64)
    assert not model.scheme.prefix_consistent
    assert (logits(model, ids[:, :40]) - logits(model, ids)[:, :40]).abs().max() > 1e-2


def test_a_longer_input_than_the_encoding_takes_is_refused():
    model = made("learned")
    assert logits(model, tokens(length=32)).shape == (2, 32, V)
    with pytest.raises(SchemeError) as caught:
        model(tokens(length=33))
    assert str(caught.value) == (
        "learned takes at most 32 tokens, got 33: shorten the input or train at a longer length"
    )
    with pytest.raises(SchemeError, match="learned takes at most 32 tokens, got 101"):
        model(tokens(1, 1), position_ids=torch.tensor([[100]]))


def test_some_logits_are_those_of_all():
    model, ids = trained(), tokens()
    every = logits(model, ids)
    assert torch.equal(logits(model, ids, logits_to_keep=0), every)
    for keep, places in ((1, slice(-1, None)), (5, slice(-5, None)), (99, slice(None))):
        torch.testing.assert_close(logits(model, ids, logits_to_keep=keep), every[:, places], rtol=0, atol=1e-5)
    some = torch.tensor([3, 0, 17])
    torch.testing.assert_close(logits(model, ids, logits_to_keep=some), every[:, some], rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_logit_of_a_real_token(any_spec, side):
    model, ids, pad = trained(any_spec), tokens(), 9
    mask = torch.ones(2, T, dtype=torch.int64)
    real = slice(pad, None) if side == "left" else slice(None, T - pad)
    mask[1] = 0
    mask[1, real] = 1
    padded = logits(model, ids, attention_mask=mask)
    torch.testing.assert_close(padded[1:, real], logits(model, ids[1:, real]), rtol=0, atol=2e-5)
    torch.testing.assert_close(padded[:1], logits(model, ids[:1]), rtol=0, atol=2e-5)


def test_a_mask_of_ones_is_no_mask(any_spec):
    model, ids = trained(any_spec), tokens()
    assert torch.equal(logits(model, ids, attention_mask=torch.ones_like(ids)), logits(model, ids))


def test_position_ids_are_where_the_tokens_sit():
    model, ids = trained("learned"), tokens(1, 8)
    places = torch.arange(8)[None] + 5
    moved = logits(model, ids, position_ids=places)
    table = model.scheme.table.data.clone()
    model.scheme.table.data[:8] = table[5:13]
    torch.testing.assert_close(moved, logits(model, ids), rtol=0, atol=1e-5)


def test_layers_ask_the_scheme_for_their_own(tmp_path):
    text = TINT.replace("def embed(self, x, pos)", "def at(self, layer)").replace(
        "return x + self.tint", "ASKED.append(layer)\n        return self"
    )
    (tmp_path / "layered.py").write_text(text + "\n\nASKED = []\n")
    model = made(str(tmp_path / "layered.py"))
    logits(model, tokens())
    assert sys.modules[type(model.scheme).__module__].ASKED == [0, 1]


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_the_attention_asked_for_is_used(monkeypatch, backend):
    used, attend = [], BACKENDS[backend].attend
    monkeypatch.setattr(BACKENDS[backend], "attend", lambda *inputs: used.append(backend) or attend(*inputs))
    other = made(attention="eager" if backend == "sdpa" else "sdpa")
    torch.testing.assert_close(logits(made(attention=backend), tokens()), logits(other, tokens()), rtol=0, atol=1e-5)
    assert used == [backend, backend]  # one a layer, and none of the other model's


# loss


def reference_loss(model: LabModel, ids: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """The loss of all logits at once: targets (B, T), what each place predicts."""
    return F.cross_entropy(model(ids).logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction=reduction)


def targets_of(ids: Tensor) -> Tensor:
    """Some of the next tokens; the last place has none."""
    targets = torch.cat([ids[:, 1:], torch.full((len(ids), 1), -100)], 1)
    targets[0, 3:9] = -100
    return targets


def labels_of(ids: Tensor) -> Tensor:
    labels = ids.clone()
    labels[0, 4:10] = -100  # the label that place p predicts stands at p + 1
    return labels


@pytest.fixture(params=["at once", "by chunks"])
def loss_at(request, monkeypatch):
    """The loss with all logits at once, and with room for 7 rows of them, which divides nothing here."""
    if request.param == "by chunks":
        monkeypatch.setattr(lab_model, "LOSS_LOGITS", 7 * V + V // 2)


def test_labels_are_shifted_and_minus_100_is_left_out(loss_at):
    model, ids = trained(), tokens()
    found, wanted = model(ids, labels=labels_of(ids)), reference_loss(model, ids, targets_of(ids))
    assert found.logits is None
    torch.testing.assert_close(found.loss, wanted, rtol=1e-6, atol=0)


def test_shifted_labels_are_taken_as_they_are(loss_at):
    model, ids = trained(), tokens()
    for labels in (None, tokens().flip(1)):  # shifted ones win
        found = model(ids, labels=labels, shift_labels=targets_of(ids)).loss
        torch.testing.assert_close(found, reference_loss(model, ids, targets_of(ids)), rtol=1e-6, atol=0)


@pytest.mark.parametrize("count", [100, torch.tensor(100)], ids=["int", "tensor"])
def test_the_loss_is_divided_by_the_count_of_the_whole_batch(loss_at, count):
    model, ids = trained(), tokens()
    found = model(ids, labels=labels_of(ids), num_items_in_batch=count).loss
    torch.testing.assert_close(found, reference_loss(model, ids, targets_of(ids), "sum") / 100, rtol=1e-6, atol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_the_gradient_is_that_of_the_loss_of_all_logits(loss_at, tied):
    model, ids = trained(tie_word_embeddings=tied), tokens()
    found = torch.autograd.grad(model(ids, labels=labels_of(ids)).loss, list(model.parameters()))
    wanted = torch.autograd.grad(reference_loss(model, ids, targets_of(ids)), list(model.parameters()))
    for mine, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, exact, rtol=0, atol=1e-6 * max(1, exact.abs().max().item()))


def test_a_loss_over_nothing_is_not_a_number_as_torchs_is_not():
    ids = tokens()
    assert made()(ids, labels=torch.full_like(ids, -100)).loss.isnan()


class RowsOfLogits(TorchDispatchMode):
    """Records the most rows of logits made at once, and how often."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        shapes = [x.shape for x in tree_leaves(out) if isinstance(x, Tensor)]
        self.rows += [math.prod(shape[:-1]) for shape in shapes if len(shape) > 1 and shape[-1] == 53]
        return out


@pytest.mark.parametrize(("room", "rows"), [(7 * 53 + 3, 7), (2**23, 2 * T), (1, 1)])
def test_no_more_logits_are_held_than_there_is_room_for(monkeypatch, room, rows):
    monkeypatch.setattr(lab_model, "LOSS_LOGITS", room)
    model = made(vocab_size=53, tie_word_embeddings=False, width=40)  # a vocabulary that no other size equals
    embedding_rows = model.config.width  # the head's weight transposed is (C, V)
    with RowsOfLogits() as seen:
        model(tokens(), labels=tokens()).loss.backward()
    assert max(n for n in seen.rows if n != embedding_rows) == rows


def test_logits_made_by_chunks_are_not_kept_for_the_gradient(monkeypatch):
    monkeypatch.setattr(lab_model, "LOSS_LOGITS", 7 * 53)
    model, kept = made(vocab_size=53, tie_word_embeddings=False, width=40), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.shape) or x, lambda x: x):
        model(tokens(), labels=tokens())
    assert kept and not [shape for shape in kept if shape == (7, 53)]


# swapped encodings


def test_swapping_keeps_the_weights_and_lists_what_is_untrained():
    model = trained("rope")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert swap(model, "alibi") == []
    assert swap(model, "relative") == ["table"]
    assert not model.scheme.table.any()
    after = model.state_dict()
    assert set(after) - set(before) == {"model.scheme.table"}
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_swapping_keeps_parameters_of_the_same_name_and_shape():
    model = trained("relative")
    table = model.scheme.table.data.clone()
    assert swap(model, {"kind": "relative", "farthest": 256}) == []
    assert torch.equal(model.scheme.table, table) and model.scheme.farthest == 256
    assert swap(model, {"kind": "relative", "buckets": 16}) == ["table"]  # another shape
    assert swap(model, ["rope", "relative"]) == ["members.1.table"]  # another name


@pytest.mark.parametrize("kind", ["rope-linear", "rope-ntk"])
def test_swapping_in_a_factor_of_one_changes_no_logit(kind):
    model, ids = trained("rope"), tokens()
    before = logits(model, ids)
    assert swap(model, {"kind": kind, "factor": 1}) == []
    assert torch.equal(logits(model, ids), before)
    assert swap(model, {"kind": kind, "factor": 4}) == []
    assert (logits(model, ids) - before).abs().max() > 1e-2


def test_a_model_swapped_there_and_back_gives_the_same_logits(any_spec):
    model, ids = trained("rope"), tokens()
    before = logits(model, ids)
    swap(model, any_spec)
    swap(model, "rope")
    assert torch.equal(logits(model, ids), before)


def test_a_swapped_model_is_saved_with_its_new_encoding(tmp_path):
    model = trained("rope")
    swap(model, {"kind": "rope-ntk", "factor": 4})
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.positional == {"kind": "rope-ntk", "factor": 4}
    assert torch.equal(logits(loaded, tokens()), logits(model, tokens()))


def test_a_swap_that_cannot_be_made_leaves_the_model_as_it_was():
    model, ids = trained("rope"), tokens()
    before, scheme = logits(model, ids), model.scheme
    with pytest.raises(SchemeError, match="rope-ntk needs `factor`"):
        swap(model, "rope-ntk")
    assert model.scheme is scheme and model.config.positional == "rope"
    assert torch.equal(logits(model, ids), before)


def test_what_a_model_refuses_is_named_as_swapped_in():
    model = trained("rope")
    swap(model, "learned")
    with pytest.raises(SchemeError, match="^learned takes at most 32 tokens, got 33"):
        model(tokens(length=33))


# sizes


def test_sizes_that_do_not_fit_are_all_named():
    with pytest.raises(LabError) as caught:
        LabModel(config(width=65, heads=4, kv_heads=3))
    assert str(caught.value) == (
        "width 65 is not a multiple of heads 4: each head takes width / heads channels; "
        "heads 4 is not a multiple of kv_heads 3: each key head serves as many query heads"
    )
    assert misfits(64, 4, None) == misfits(64, 4, 2) == [] and len(misfits(64, 4, 8)) == 1


def test_an_encoding_that_does_not_fit_the_sizes_is_refused_when_built():
    with pytest.raises(SchemeError, match=r"even head size, got 15 \(width 60 / heads 4\)"):
        LabModel(config(width=60))


def test_the_shape_is_that_of_the_sizes():
    shape = config().shape
    assert shape == Shape(64, 4, 4, 2, 32) and shape.head_dim == 16
    assert config(kv_heads=2).shape == replace(shape, kv_heads=2)
