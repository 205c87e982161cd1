"""The masked language model: it reads both ways and no further, padding and other documents change nothing."""

# B batch · T tokens · C width · V vocabulary

import math

import pytest
import torch
from conftest import SHAPE
from torch import Tensor
from transformers import AutoConfig, AutoModelForMaskedLM

from lab import LabError
from lab.masked.model import LabMaskedModel, MaskedConfig
from lab.model import LabModel, swap
from positional import SchemeError, build

V, T = 30, 12
SIZES = {"vocab_size": V, "width": 64, "layers": 2, "heads": 4, "train_length": 64, "mask_token_id": V - 1}


def made(spec="rope", **changes) -> LabMaskedModel:
    """In float64, with weights that are not what they begin with, those of its scheme too."""
    torch.manual_seed(0)
    model = LabMaskedModel(MaskedConfig(**SIZES | {"positional": spec} | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.double()


def ids(batch: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(0, V, (batch, length), generator=torch.Generator().manual_seed(seed))


def logits(model: LabMaskedModel, tokens: Tensor, **how) -> Tensor:
    with torch.no_grad():
        return model(tokens, **how).logits


def skip_unless_both_ways(spec) -> None:
    if (why := build(spec, SHAPE).causal_only) is not None:
        pytest.skip(why)


# against the formula


@torch.no_grad()
def written_out(model: LabMaskedModel, tokens: Tensor) -> Tensor:
    """(T,) ids -> (T, V) logits: the blocks one head, one query and one key at a time, turned as RoFormer has it."""
    config, size = model.config, model.config.width // model.config.heads
    frequencies = [10000 ** (-2 * lane / size) for lane in range(size // 2)]

    def turned(x: Tensor, place: int) -> Tensor:
        """Pairs are (lane, lane + D/2), as the rope of the lab has them."""
        out = x.clone()
        for lane, frequency in enumerate(frequencies):
            a, b, angle = x[lane], x[lane + size // 2], place * frequency
            out[lane] = a * math.cos(angle) - b * math.sin(angle)
            out[lane + size // 2] = a * math.sin(angle) + b * math.cos(angle)
        return out

    def normed(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + config.norm_eps).sqrt() * weight

    x = model.model.embed.weight[tokens] * config.width**0.5
    for layer in model.model.layers:
        qkv = normed(x, layer.attention_norm.weight) @ layer.attention.qkv.weight.T
        q, k, v = (part.unflatten(-1, (config.heads, size)) for part in qkv.split(config.width, -1))  # (T, H, D)
        out = torch.zeros_like(q)
        for i in range(len(tokens)):
            for h in range(config.heads):
                query = turned(q[i, h], i)
                scores = [float(query @ turned(k[j, h], j)) / size**0.5 for j in range(len(tokens))]
                weights = torch.tensor(scores, dtype=torch.float64).exp()
                out[i, h] = (weights / weights.sum()) @ v[:, h]
        x = x + out.flatten(1) @ layer.attention.out.weight.T
        y = normed(x, layer.mlp_norm.weight)
        gate = y @ layer.mlp.gate.weight.T
        x = x + (gate * torch.sigmoid(gate) * (y @ layer.mlp.up.weight.T)) @ layer.mlp.down.weight.T
    return normed(x, model.model.norm.weight) @ model.head.weight.T


def test_it_is_what_the_formula_makes_of_the_same_weights():
    model, tokens = made(), ids(1, T)
    torch.testing.assert_close(
        logits(model, tokens)[0], written_out(model, tokens[0]), rtol=0, atol=1e-5
    )  # fp32 angles


def test_without_positions_it_is_permutation_equivariant_and_with_them_it_is_not():
    tokens, order = ids(1, T), torch.randperm(T, generator=torch.Generator().manual_seed(3))
    for spec, same in (("nope", True), ("rope", False), ("alibi", False)):
        model = made(spec)
        apart = (logits(model, tokens)[:, order] - logits(model, tokens[:, order])).abs().max()
        assert (apart < 1e-10) == same


def test_every_token_changes_every_place(any_spec):
    skip_unless_both_ways(any_spec)
    model = made(any_spec)
    embedded = model.model.embed(ids(1, T)).detach().requires_grad_()
    model.model.embed.forward = lambda _: embedded
    out = model(ids(1, T)).logits
    for place in (0, T - 1):
        [grad] = torch.autograd.grad(out[0, place].sum(), embedded, retain_graph=True)
        assert (grad[0].abs().sum(-1) > 0).all()  # a window of nine reaches twelve in two layers


# padding, packing, batches


@pytest.mark.parametrize("where", ["right", "left"])
def test_padding_changes_no_output(any_spec, where):
    skip_unless_both_ways(any_spec)
    model, tokens, padding = made(any_spec), ids(1, T), ids(1, 5, seed=2)
    ones, zeros = torch.ones_like(tokens), torch.zeros_like(padding)
    parts = [(tokens, ones), (padding, zeros)]
    padded, mask = (torch.cat(x, 1) for x in zip(*(parts if where == "right" else parts[::-1]), strict=True))
    found = logits(model, padded, attention_mask=mask)[mask.bool()]
    torch.testing.assert_close(found, logits(model, tokens)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("spec", ["rope", "alibi", "learned", "relative", {"kind": "window", "window": 4}], ids=str)
def test_documents_in_a_row_are_each_as_if_alone(spec):
    model, one, two = made(spec), ids(1, 7), ids(1, 5, seed=2)
    segments = torch.tensor([[4] * 7 + [9] * 5])
    places = torch.cat([torch.arange(7), torch.arange(5)])[None]
    found = logits(model, torch.cat([one, two], 1), segments=segments, position_ids=places)
    torch.testing.assert_close(found, torch.cat([logits(model, one), logits(model, two)], 1), rtol=0, atol=1e-6)
    crossed = logits(model, torch.cat([one, two], 1))
    assert (crossed - found).abs().max() > 1e-3


def test_rows_of_a_batch_do_not_touch():
    model, tokens = made(), ids(3, T)
    alone = torch.cat([logits(model, row[None]) for row in tokens])
    torch.testing.assert_close(logits(model, tokens), alone, rtol=0, atol=1e-12)


# the loss


def test_the_loss_is_of_the_tokens_at_their_own_places():
    model, tokens = made(), ids(2, T)
    labels = torch.full_like(tokens, -100)
    labels[0, 3], labels[1, 0], labels[1, 11] = 5, 6, 7
    logs = logits(model, tokens).log_softmax(-1)
    wanted = -(logs[0, 3, 5] + logs[1, 0, 6] + logs[1, 11, 7])
    torch.testing.assert_close(model(tokens, labels=labels).loss.double(), wanted / 3, rtol=1e-6, atol=0)
    loss = model(tokens, shift_labels=labels, num_items_in_batch=2).loss
    torch.testing.assert_close(loss.double(), wanted / 2, rtol=1e-6, atol=0)


def test_every_weight_learns_and_a_batch_without_targets_moves_none():
    model, tokens = made("relative"), ids(2, T)
    model(tokens, labels=tokens).loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    model.zero_grad()
    loss = model(tokens, labels=torch.full_like(tokens, -100), num_items_in_batch=1).loss
    loss.backward()
    assert float(loss.detach()) == 0 and all(p.grad is None or not p.grad.any() for p in model.parameters())


# transformers


def test_the_auto_classes_load_what_was_saved(tmp_path):
    model, tokens = made(["rope", "alibi"]).float(), ids(2, T)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is LabMaskedModel and loaded.config.mask_token_id == V - 1
    assert type(AutoConfig.from_pretrained(tmp_path)) is MaskedConfig
    torch.testing.assert_close(logits(loaded, tokens), logits(model, tokens), rtol=0, atol=0)
    assert not loaded.can_generate()


def test_a_scheme_is_swapped_in_and_its_weights_are_named():
    model, tokens = made(), ids(1, T)
    before = logits(model, tokens)
    assert swap(model, "alibi") == [] and (logits(model, tokens) - before).abs().max() > 1e-3
    assert swap(model, "rope") == []
    torch.testing.assert_close(logits(model, tokens), before, rtol=0, atol=0)
    assert swap(model, "learned") == ["table"]


# what is refused


def test_every_kind_is_built_or_refused_by_name_with_the_reason(any_spec):
    kind, why = any_spec["kind"], build(any_spec, SHAPE).causal_only
    if why is None:
        assert made(any_spec).scheme.causal_only is None
        return
    with pytest.raises(SchemeError) as caught:
        made(any_spec)
    assert str(caught.value) == (
        f"{kind} cannot be a masked language model's, where a token also sees those after it: {why}"
    )


def test_a_scheme_that_cannot_look_ahead_is_not_swapped_in_either():
    model = made()
    with pytest.raises(SchemeError) as caught:
        swap(model, ["rope", "logn"])
    assert str(caught.value) == (
        "rope+logn cannot be a masked language model's, where a token also sees those after it: it takes a query to "
        "see as many tokens as lie up to it"
    )
    assert model.config.positional == "rope"


def test_more_tokens_than_positions_are_refused():
    with pytest.raises(SchemeError, match="learned takes at most 64 tokens, got 65"):
        made("learned")(ids(1, 65))


def test_it_writes_nothing():
    with pytest.raises(LabError) as caught:
        made().generate(ids(1, 3))
    assert str(caught.value) == (
        "a masked language model tells hidden tokens from those around them, and goes on from nothing"
    )


def test_the_model_that_it_comes_from_still_sees_nothing_ahead():
    model = LabModel(LabModel.config_class(**{k: v for k, v in SIZES.items() if k != "mask_token_id"})).eval()
    tokens = ids(1, T)
    torch.testing.assert_close(logits(model, tokens[:, :5]), logits(model, tokens)[:, :5], rtol=0, atol=1e-5)


def test_what_reads_from_first_to_last_is_refused():
    with pytest.raises(
        SchemeError, match="mixer lstm reads from first to last: a masked language model's is attention"
    ):
        LabMaskedModel(MaskedConfig(vocab_size=16, width=32, layers=2, heads=2, mixer="lstm"))
