"""Mixers: what stands in the place of attention is what its definition says, for each document, read in any pieces."""

# B batch · T tokens · V vocabulary · C width · H hidden size · K kernel

import json

import pytest
import torch
from tiny_runs import tiny
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from lab import LabError
from lab.cache import NAME
from lab.compare import compare, parts_of
from lab.mixers import build, by_layer, name_of
from lab.mixers.base import fitting
from lab.model import LabConfig, LabModel, swap
from lab.optim import optimizer
from lab.rows import read
from lab.settings import Train
from positional import Shape

T, V = 24, 50
MIXERS = {
    "lstm": "lstm",
    "gru": "gru",
    "convolution": "convolution",
    "kernel of 4, tripled": {"kind": "convolution", "kernel": 4, "growth": 3},
    "window": {"kind": "window", "window": 5},
    "every second attends": ["lstm", "attention"],
    "all kinds": ["convolution", "gru", {"kind": "window", "window": 3}, "attention"],
}
SHAPE = Shape(width=6, heads=2, kv_heads=2, layers=2, train_length=32)


@pytest.fixture(params=MIXERS.values(), ids=MIXERS)
def mixer(request):
    return request.param


def model_of(mixer, positional=None, **changes) -> LabModel:
    """In fp64, with every weight moved."""
    torch.manual_seed(0)
    attends = any(kind.attends for kind in by_layer(mixer, 4))
    positional = positional or ("rope" if attends else "nope")
    sizes = {"vocab_size": V, "width": 32, "layers": 4, "heads": 4, "train_length": 32}
    model = LabModel(LabConfig(**sizes | changes, mixer=mixer, positional=positional)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.double()


def tokens(batch: int = 3, length: int = T) -> Tensor:
    return torch.randint(V, (batch, length), generator=torch.Generator().manual_seed(7))


@torch.no_grad()
def logits(model: LabModel, ids: Tensor, **inputs) -> Tensor:
    return model(ids, **inputs).logits


@torch.no_grad()
def in_pieces(model: LabModel, ids: Tensor, sizes: list[int], cache=None, mask=None, **each: Tensor) -> Tensor:
    parts, start = [], 0
    for size in sizes:
        new = slice(start, start + size)
        given = {name: value[:, new] for name, value in each.items()}
        seen = None if mask is None else mask[:, : new.stop]
        out = model(ids[:, new], attention_mask=seen, use_cache=True, **given, **{NAME: cache})
        parts.append(out.logits)
        cache, start = out[NAME], new.stop
    return torch.cat(parts, 1)


def same(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


def refusal(call, *args, **kwargs) -> str:
    with pytest.raises(LabError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


# what each computes, written out


def made(spec, layer: int = 0, shape: Shape = SHAPE):
    return build(by_layer(spec, shape.layers), layer, shape).double()


def read_through(mixer, x: Tensor) -> Tensor:
    with torch.no_grad():
        return mixer.read(x, mixer.begin(len(x), x))[0]


def test_an_lstm_is_its_recurrence_step_by_step():
    mixer, x = made({"kind": "lstm", "size": 4}), torch.randn(2, 9, 6, dtype=torch.float64)
    p = dict(mixer.lstm.named_parameters())
    h = c = torch.zeros(2, 4, dtype=torch.float64)
    for t, y in enumerate(read_through(mixer, x).unbind(1)):
        gates = x[:, t] @ p["weight_ih_l0"].T + p["bias_ih_l0"] + h @ p["weight_hh_l0"].T + p["bias_hh_l0"]
        i, f, g, o = gates.split(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        same(y, h)


def test_a_gru_is_its_recurrence_step_by_step():
    mixer, x = made({"kind": "gru", "size": 4}), torch.randn(2, 9, 6, dtype=torch.float64)
    p = dict(mixer.gru.named_parameters())
    h = torch.zeros(2, 4, dtype=torch.float64)
    for t, y in enumerate(read_through(mixer, x).unbind(1)):
        r, z, n = (x[:, t] @ p["weight_ih_l0"].T + p["bias_ih_l0"]).split(4, -1)
        hr, hz, hn = (h @ p["weight_hh_l0"].T + p["bias_hh_l0"]).split(4, -1)
        z = torch.sigmoid(z + hz)
        h = (1 - z) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + z * h
        same(y, h)


@pytest.mark.parametrize(("layer", "dilation"), [(0, 1), (1, 3)])
def test_a_convolution_is_its_sum_tap_by_tap(layer, dilation):
    mixer = made({"kind": "convolution", "kernel": 4, "growth": 3, "size": 5}, layer)
    x = torch.randn(2, 15, 6, dtype=torch.float64)
    weight, bias = mixer.conv.weight, mixer.conv.bias  # (2·5, 6, 4), the last tap is the token itself
    for t, y in enumerate(read_through(mixer, x).unbind(1)):
        total = bias.expand(2, -1)
        for tap in range(4):
            if (place := t - (3 - tap) * dilation) >= 0:
                total = total + x[:, place] @ weight[:, :, tap].T
        same(y, total[:, :5] * torch.sigmoid(total[:, 5:]))


def test_the_dilation_doubles_from_one_convolution_to_the_next_whatever_lies_between():
    model = model_of(["convolution", "attention"], layers=6)
    assert [layer.mixer.conv.dilation[0] for layer in model.model.layers[::2]] == [1, 2, 4]
    assert [layer.mixer.span for layer in model_of("convolution").model.layers] == [2, 4, 8, 16]


def test_an_lstm_remembers_at_first():
    torch.manual_seed(0)
    mixer = build(by_layer({"kind": "lstm", "size": 64}, 2), 0, SHAPE)
    bias = mixer.lstm.bias_ih_l0
    assert (bias[64:128] == 1).all() and bias[:64].abs().max() <= 1 / 8 and mixer.lstm.bias_hh_l0.abs().max() <= 1 / 8


def test_a_window_is_the_encoding_stacked_with_one():
    ids, window = tokens(), {"kind": "window", "window": 5}
    for options in ({}, {"sinks": 2}):
        mixed, stacked = model_of(window | options), model_of("attention", ["rope", window | options])
        same(logits(mixed, ids), logits(stacked, ids))
    alternating = {"kind": "alternate", "schemes": [["rope", window], "rope"]}
    same(logits(model_of([window, "attention"]), ids), logits(model_of("attention", alternating), ids))


def test_attention_is_what_there_was_before_there_were_mixers():
    names = [name for name, _ in model_of("attention").named_parameters() if ".layers.3." in name]
    parts = "attention_norm", "attention.qkv", "attention.out", "mlp_norm", "mlp.gate", "mlp.up", "mlp.down"
    assert names == [f"model.layers.3.{part}.weight" for part in parts]


# what every mixer must hold to


def test_other_tokens_behind_change_nothing(mixer):
    model, ids = model_of(mixer), tokens()
    whole = logits(model, ids)
    for cut in (1, 13, T - 1):
        same(logits(model, ids[:, :cut]), whole[:, :cut])
        same(logits(model, torch.cat([ids[:, :cut], (ids[:, cut:] + 1) % V], 1))[:, :cut], whole[:, :cut])


@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_reading_in_pieces_is_reading_at_once(mixer, padding):
    model, ids, mask = model_of(mixer), tokens(), torch.ones(3, T, dtype=torch.int64)
    if padding == "left":
        mask[1, :4] = mask[2, :11] = 0
    if padding == "right":  # of a prompt: what is decoded comes after it
        mask[1, 9:13] = mask[2, 2:13] = 0
    wanted = logits(model, ids, attention_mask=mask)[mask.bool()]
    for sizes in ([1] * T, [13, 1, 1, 9]):
        same(in_pieces(model, ids, sizes, mask=mask)[mask.bool()], wanted)
    same(in_pieces(model, ids, [3] * 8, DynamicCache(), mask)[mask.bool()], wanted)
    if padding == "right" and any(kind.name == "window" for kind in by_layer(mixer, 4)):
        return  # a window counts places
    for row in range(3):  # and padding, wherever it is, is as if it were not there
        real = mask[row].bool()
        same(logits(model, ids[row : row + 1, real])[0], wanted[mask[:row].sum() : mask[: row + 1].sum()])


def test_packed_documents_are_each_as_if_alone(mixer):
    lengths, ids = (7, 1, 13, 3), tokens(2)
    segments = torch.cat([torch.full((n,), d) for d, n in enumerate(lengths)]).expand(2, -1)
    places = torch.cat([torch.arange(n) for n in lengths]).expand(2, -1)
    model = model_of(mixer)
    whole = logits(model, ids, segments=segments, position_ids=places)
    for document in range(len(lengths)):
        inside = segments[0] == document
        same(whole[:, inside], logits(model, ids[:, inside]))
        other = logits(model, torch.where(inside, (ids + 1) % V, ids), segments=segments, position_ids=places)
        assert torch.equal(other[:, ~inside], whole[:, ~inside]) and not torch.equal(other, whole)


def test_packed_documents_are_read_in_pieces_too(mixer):
    model, ids = model_of(mixer), tokens(2)
    segments = torch.stack([torch.arange(T) // 9, torch.arange(T) // 16])
    places = torch.stack([torch.arange(T) % 9, torch.arange(T) % 16])
    each = {"segments": segments, "position_ids": places}
    for sizes in ([1] * T, [5, 7, 2, 10]):
        same(in_pieces(model, ids, sizes, **each), logits(model, ids, **each))


def test_no_gradient_crosses_from_one_document_to_another(mixer):
    model, segments = model_of(mixer), (torch.arange(T) // 9)[None]
    x = model.model.embed(tokens(1)).detach().requires_grad_()
    model.model.embed.forward = lambda _: x
    inside = segments == 1
    model(tokens(1), segments=segments).logits[inside].sum().backward()
    assert (x.grad[~inside] == 0).all() and (x.grad[inside] != 0).any(-1).all()


@pytest.mark.parametrize("beams", [1, 3])
def test_generate_with_a_cache_writes_what_it_writes_without(mixer, beams):
    model, ids, mask = model_of(mixer), tokens(2, 9), torch.ones(2, 9, dtype=torch.int64)
    mask[1, :4] = 0
    how = {"attention_mask": mask, "max_new_tokens": 7, "do_sample": False, "num_beams": beams, "pad_token_id": 0}
    assert torch.equal(model.generate(ids, **how), model.generate(ids, **how, use_cache=False))


def test_a_saved_model_gives_the_same_logits(mixer, tmp_path):
    model = model_of(mixer).float()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.mixer == mixer and torch.equal(logits(loaded, tokens()), logits(model, tokens()))


def test_bf16_stays_close(mixer):
    model = model_of(mixer)
    wanted = logits(model, tokens())
    found = logits(model.to(torch.bfloat16), tokens()).double()
    # Weights and activations are rounded by 2^-9, several times over in four layers.
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.05 * wanted.abs().max().item())


def test_a_gradient_reaches_every_parameter_and_decay_every_matrix(mixer):
    model = model_of(mixer)
    model(tokens(), labels=tokens()).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name
    decayed = {id(p) for p in optimizer(model, Train()).param_groups[0]["params"]}
    assert {n for n, p in model.model.layers.named_parameters() if id(p) in decayed} == {
        n for n, p in model.model.layers.named_parameters() if "norm" not in n and "bias" not in n
    }


# as many parameters as attention


@pytest.mark.parametrize("width", [64, 128, 512])
@pytest.mark.parametrize("kv_heads", [None, 1])
@pytest.mark.parametrize("spec", ["lstm", "gru", "convolution", {"kind": "convolution", "kernel": 7}], ids=str)
def test_without_a_size_a_model_has_as_many_parameters_as_one_with_attention(spec, width, kv_heads):
    sizes = {"vocab_size": 257, "width": width, "layers": 4, "heads": 4, "kv_heads": kv_heads, "positional": "nope"}
    with torch.device("meta"):
        counts = [LabModel(LabConfig(**sizes, mixer=one)).num_parameters() for one in (spec, "attention")]
    assert counts[0] == pytest.approx(counts[1], rel=0.01)


def test_the_sizes_at_width_128_are_those_solved_for_by_hand():
    """65536 is 4h(128 + h + 2) + 128h for h = 70.5, 3h(128 + h + 2) + 128h for 85.4, 2s(3·128 + 1) + 128s for 72.98."""
    sizes = {"vocab_size": 9, "width": 128, "layers": 3, "heads": 4, "positional": "nope"}
    model = LabModel(LabConfig(**sizes, mixer=["lstm", "gru", "convolution"]))
    assert [layer.mixer.size for layer in model.model.layers] in ([70, 85, 73], [71, 85, 73])


def test_a_size_is_the_nearest_to_what_may_be_spent():
    assert [fitting(lambda n: n * n, budget) for budget in (1, 2, 3, 6, 7, 100, 111)] == [1, 1, 2, 2, 3, 10, 11]


# what cannot be


@pytest.mark.parametrize(
    ("mixer", "said"),
    [
        ("lstn", "unknown mixer `lstn`: did you mean lstm?"),
        ("mamba-7", "unknown mixer `mamba-7`: there are attention, window, lstm, gru, convolution"),
        ([], "an empty list of mixers; write attention, or a pattern such as [lstm, lstm, lstm, attention]"),
        (["lstm", "gru", "attention"], "a pattern of 3 mixers for 2 layers: no layer has number 3"),
        ({"kernel": 3}, "a mixer is a name, {kind: name, option: value} or a list of these, got {'kernel': 3}"),
        (
            "window",
            "mixer window needs `window` (a whole number): write {kind: window, window: …}; "
            "window: tokens, at least 1 (512 is usual)",
        ),
        (
            {"kind": "window", "window": 0},
            "mixer window: window must be at least 1 and sinks not negative, got window 0 and sinks 0; "
            "512 and 4 are usual",
        ),
        (
            {"kind": "attention", "heads": 2},
            "mixer attention has no option `heads`: its settings stand beside the mixer",
        ),
        ({"kind": "convolution", "kernal": 3}, "mixer convolution has no option `kernal`: did you mean kernel?"),
        (
            {"kind": "convolution", "kernel": 1},
            "mixer convolution: kernel must be at least 2 and growth at least 1, got kernel 1 and growth 2; "
            "a kernel of 1 sees no other token",
        ),
        (
            {"kind": "lstm", "size": "wide"},
            "mixer lstm: `size` must be a whole number or null, got 'wide'; size: H",
        ),
        ({"kind": "gru", "size": 0}, "mixer gru: size must be at least 1, got 0"),
    ],
    ids=str,
)
def test_a_mixer_that_cannot_be_made_is_refused(mixer, said):
    assert refusal(lambda: LabModel(LabConfig(vocab_size=9, width=32, layers=2, mixer=mixer))) == said


def test_an_encoding_that_no_layer_would_use_is_refused():
    said = (
        "an encoding acts in attention, and no layer of mixer lstm has any: write positional: nope, or a pattern with "
        "attention in it, such as [lstm, lstm, lstm, attention]"
    )
    alternate = {"kind": "alternate", "schemes": ["rope", "nope"]}
    for spec in ("rope", alternate, ["nope", "alibi"]):
        assert refusal(model_of, "lstm", spec) == said
    assert refusal(swap, model_of("lstm"), "rope") == said
    model_of("lstm", "sinusoidal")  # it acts on embeddings, which every layer reads


def test_two_windows_in_one_layer_are_refused():
    window = {"kind": "window", "window": 5}
    said = "mixer window: Window and Window both set `window`: stack only one of them"
    assert refusal(model_of, window, ["rope", window]) == said


def test_a_state_cannot_forget_nor_go_back_to_an_earlier_document():
    model, ids = model_of("lstm"), tokens(1)
    cache = model(ids, use_cache=True)[NAME]
    assert "cannot forget" in refusal(cache.crop, -3)
    segments = torch.tensor([[0] * 5 + [1] * 5 + [0]])
    each = {"segments": segments, "position_ids": torch.arange(11)[None]}
    assert refusal(in_pieces, model, ids[:, :11], [10, 1], **each) == (
        "segment 0 goes on after another one of its row, and a layer that carries a state has kept only that of the "
        "last: read a document to its end, or pass all tokens at once without a cache"
    )


# in a configuration


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mixers")


def test_what_is_wrong_with_mixers_is_told_by_key_and_all_at_once(folder):
    runs = (
        "compare.runs=[{train: nope, mixer: gur}, {train: rope, mixer: gru}, {train: nope, mixer: gru, swap: [alibi]}]"
    )
    said = refusal(tiny, folder, "model.mixer={kind: convolution, kernel: 0}", runs, "eval.swap=[rope-linear]")
    for line in (
        "model.mixer: mixer convolution: kernel must be at least 2",
        "eval.swap[0]: rope-linear needs `factor`",
        "compare.runs[0].mixer: unknown mixer `gur`: did you mean gru?",
        "compare.runs[1].train: an encoding acts in attention, and no layer of mixer gru has any",
        "compare.runs[2].swap[0]: an encoding acts in attention, and no layer of mixer gru has any",
    ):
        assert f"\n  {line}" in said


def test_lines_of_a_comparison_are_named_by_what_differs(folder):
    runs = [
        "{train: rope}",
        "{train: rope, mixer: attention}",
        "{train: nope, mixer: lstm}",
        "{train: {kind: rope, base: 500}, mixer: [lstm, attention]}",
        "{train: nope, mixer: {kind: convolution, kernel: 2}}",
        "{train: nope, mixer: {kind: convolution, kernel: 2}}",
    ]
    run = tiny(folder, f"compare.runs=[{', '.join(runs)}]")
    assert run.names_of_lines(run.compare.runs) == [
        "rope",
        "attention rope",
        "lstm",
        "lstm-attention rope base=500",
        "convolution kernel=2",
        "convolution kernel=2 (2)",
    ]
    assert [part.model.mixer for _, part in parts_of(run)][:3] == ["attention", "attention", "lstm"]
    assert name_of(["gru", "gru", "attention"]) == "gru-gru-attention"


def test_mixers_are_compared_by_loss_parameters_and_speed(folder):
    run = tiny(
        folder, "name=both", "compare.runs=[{train: rope}, {train: nope, mixer: lstm}]", "data.packing=documents"
    )
    out = compare(run)
    found = {
        (row.scheme, row.length): row for row in read(out / "rows.jsonl") if row.metric == "nats" and row.seed == 0
    }
    assert {scheme for scheme, _ in found} == {"rope", "lstm"}
    assert all(0 < found[scheme, 64].value < 7 for scheme in ("rope", "lstm"))
    table = (out / "table.md").read_text()
    config = json.loads((run.path / "lstm-seed0/model/config.json").read_text())
    assert config["mixer"] == "lstm"
    for name in ("rope", "lstm"):
        count = LabModel.from_pretrained(run.path / f"{name}-seed0/model").num_parameters()
        assert f"\n{name}, seed 0: {count:,} parameters, trained at " in table


def test_the_papers_comparison_has_models_of_equal_size():
    from tiny_runs import ROOT

    from lab.config import read as read_config
    from lab.subject import model_for

    class Bytes:
        meta = {"vocab_size": 256, "eos": 0}

    counts = {}
    for name, part in parts_of(read_config(ROOT / "configs/paper/mixers.yaml")):
        with torch.device("meta"):
            counts[name] = model_for(part, Bytes).num_parameters()
    assert {"attention rope", "lstm", "gru"} <= counts.keys() and any("convolution" in name for name in counts)
    assert max(counts.values()) <= 1.01 * min(counts.values())


def test_flops_of_a_layer_are_twice_its_weights_for_each_token():
    """All a mixer's matrices meet every token once: counted by torch, in fp64, where nothing is one opaque call."""
    for spec in ("lstm", "gru", "convolution"):
        mixer, x = made(spec), torch.randn(1, 50, 6, dtype=torch.float64)
        with FlopCounterMode(display=False) as counter:
            mixer.out(read_through(mixer, x))
        matrices = sum(p.numel() for n, p in mixer.named_parameters() if "bias" not in n)
        assert counter.get_total_flops() == 2 * 50 * matrices
