"""Attention maps: the weights are those that the model runs with, by torch's own layers and by what came of them."""

# S source tokens · T target tokens · Q queries · K keys

import sys

import pytest
import torch
from matplotlib.image import imread
from test_pairs import files, run_of
from test_seq2seq import BOTH_WAYS, LOOKING_BACK, S, T, ids, loaded, made
from torch import Tensor, nn

from lab import LabError, cli
from lab.seq2seq import bpe, map_figure
from lab.seq2seq.maps import label, mapped, maps
from lab.seq2seq.rnn import RNNSeq2Seq, RNNSeq2SeqConfig
from lab.seq2seq.translate import translate
from lab.train import train

SHAPES = {"encoder": (2, 2, S, S), "decoder": (2, 2, T, T), "cross": (2, 2, T, S)}
IN_PARTS = {"kind": "self-extend", "group": 2, "window": 3}
SIDES = [*((spec, spec) for spec in BOTH_WAYS), *(("rope", spec) for spec in LOOKING_BACK), ("alibi", IN_PARTS)]


def source_and_target() -> tuple[Tensor, Tensor]:
    return ids(1, S)[0], ids(1, T, seed=2)[0]


# what the weights are


@torch.no_grad()
def recorded(model, source: Tensor, target: Tensor) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Of each attention of a forward pass: the (H, K, D) values and the (Q, C) output."""
    found = {"encoder": [], "decoder": [], "cross": []}

    def listen(where):
        def hook(attention, args, out):
            read = args[1] if where == "cross" else args[0]
            found[where].append((attention.split(attention.value(read))[0], out[0]))

        return hook

    for side in ("encoder", "decoder"):
        for layer in getattr(model, side).layers:
            layer.attention.register_forward_hook(listen(side))
    for layer in model.decoder.layers:
        layer.cross.register_forward_hook(listen("cross"))
    model(source[None], decoder_input_ids=target[None])
    return found


@pytest.mark.parametrize("backend", ["auto", "eager"])
@pytest.mark.parametrize(("encoder", "decoder"), SIDES, ids=str)
def test_weights_times_values_are_what_the_attention_of_the_model_returned(encoder, decoder, backend):
    model = made(encoder_positional=encoder, decoder_positional=decoder, attention=backend)
    found = maps(model, *source_and_target())
    assert {name: tuple(weights.shape) for name, weights in found.items()} == SHAPES
    for name, layers in recorded(model, *source_and_target()).items():
        attentions = [layer.cross if name == "cross" else layer.attention for layer in layers_of(model, name)]
        for weights, (values, out), attention in zip(found[name], layers, attentions, strict=True):
            made_of = attention.joined((weights @ values)[None])[0]
            torch.testing.assert_close(made_of, out, rtol=0, atol=1e-6)


def layers_of(model, name: str) -> nn.ModuleList:
    return (model.encoder if name == "encoder" else model.decoder).layers


@pytest.mark.parametrize(("encoder", "decoder"), SIDES, ids=str)
def test_weights_sum_to_one_and_the_future_has_none(encoder, decoder):
    found = maps(made(encoder_positional=encoder, decoder_positional=decoder), *source_and_target())
    for weights in found.values():
        assert weights.dtype == torch.float64 and weights.min() >= 0
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), rtol=0, atol=1e-12)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    assert (found["decoder"][..., future] == 0).all()
    assert (found["encoder"][..., torch.ones(S, S, dtype=torch.bool).triu(1)] > 0).all()


def test_weights_of_the_first_layers_are_torch_s_own():
    model, (source, target) = made(), source_and_target()
    found = maps(model, source, target)
    seen = {}
    for side in ("encoder", "decoder"):
        getattr(model, side).layers[0].register_forward_pre_hook(lambda _, args, side=side: seen.update({side: args}))
    with torch.no_grad():
        model(source[None], decoder_input_ids=target[None])
        for side, mask in (("encoder", None), ("decoder", torch.ones(T, T, dtype=torch.bool).triu(1))):
            theirs, x = nn.MultiheadAttention(16, 2, batch_first=True), seen[side][0]
            loaded(getattr(model, side).layers[0].attention, theirs)
            _, wanted = theirs.double()(x, x, x, attn_mask=mask, average_attn_weights=False)
            torch.testing.assert_close(found[side][0], wanted[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", ["sinusoidal", "relative", "alibi", "rope"])
def test_padding_has_no_weight_and_changes_none(spec):
    model, (source, target) = made(encoder_positional=spec, decoder_positional=spec), source_and_target()
    alone = maps(model, source, target)
    more = (
        torch.cat([source, torch.zeros(3, dtype=torch.int64)]),
        torch.cat([target, torch.zeros(2, dtype=torch.int64)]),
    )
    masks = [(torch.arange(len(x)) < n).long() for x, n in zip(more, (S, T), strict=True)]
    found = maps(model, *more, *masks)
    for name, (rows, columns) in {"encoder": (S, S), "decoder": (T, T), "cross": (T, S)}.items():
        assert (found[name][..., :rows, columns:] == 0).all()
        torch.testing.assert_close(found[name][..., :rows, :columns], alone[name], rtol=0, atol=1e-9)


def test_a_window_hides_what_is_beyond_it():
    found = maps(made(decoder_positional={"kind": "window", "window": 2}), *source_and_target())
    i, j = torch.meshgrid(torch.arange(T), torch.arange(T), indexing="ij")
    assert ((found["decoder"] > 0) == ((i >= j) & (i - j < 2))).all()


def test_a_model_in_half_precision_has_weights_of_single():
    for weights in maps(made().bfloat16(), *source_and_target()).values():
        assert weights.dtype == torch.float32
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_a_model_is_left_as_it_was():
    model, (source, target) = made(dropout=0.5).train(), source_and_target()
    found, again = maps(model, source, target), maps(model, source.tolist(), target.numpy())
    assert model.training and all(torch.equal(found[name], again[name]) for name in found)  # no dropout
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_another_model_is_refused():
    model = RNNSeq2Seq(RNNSeq2SeqConfig(vocab_size=20, width=8))
    with pytest.raises(LabError) as caught:
        maps(model, *source_and_target())
    assert str(caught.value) == (
        "attention maps are of a Seq2Seq of lab.seq2seq.model, got RNNSeq2Seq: train one, for example with "
        "`lab train configs/paper/reverse.yaml`"
    )


# what is drawn


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = run_of(tmp_path_factory.mktemp("maps"), {"task": "reverse", "sizes": [1, 4]})
    train(run)
    return run


def called(monkeypatch, capsys, *words) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["lab", "translate", *map(str, words)])
    try:
        cli.main()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    return code, *capsys.readouterr()


def test_the_command_says_the_answer_and_draws_its_maps(run, monkeypatch, capsys, tmp_path):
    path = tmp_path / "new" / "maps.png"
    code, said, _ = called(monkeypatch, capsys, run.path, "abc", "--beams", 2, "--maps", path)
    assert (code, said) == (0, f"{called(monkeypatch, capsys, run.path, 'abc', '--beams', 2)[1]}{path}\n")
    assert imread(path)[..., :3].std() > 0.01  # not a blank sheet


def test_a_figure_has_a_named_map_for_each_layer_and_head(run, monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr("lab.seq2seq.maps.draw", lambda *args: drawn.append(args))
    (line,) = translate(run, ["ab$"])
    assert mapped(run, [" ab$"], tmp_path / "maps.svg") == translate(run, [" ab$"])[0]
    found, source, read, said, path, title = drawn[0]
    assert source == ["␣", "a", "b", "$", "</s>"] and read == ["<s>", *said[:-1]]
    assert found["cross"].shape == (1, 2, len(said), 5) and title.startswith("tiny: ab$ → ")
    map_figure.draw(*drawn[0])
    assert path.read_text().count("<image") == 3 * 2 + 3  # of 2 heads in 3 parts, and their colour bars


def test_a_figure_s_cells_are_the_weights_and_zero_is_left_out():
    from matplotlib.figure import Figure

    weights, names = maps(made(), *source_and_target())["decoder"], list("abcdef")
    sheet = Figure(layout="constrained").subfigures(1, 1)
    map_figure.grid(sheet, "Decoder", "to write", names, ["<s>", *names[:-1]], weights)
    axes = sheet.get_axes()[:4]
    assert [one.get_ylabel() for one in axes] == ["layer 0: to write", "", "layer 1: to write", ""]
    assert [one.get_text() for one in axes[2].get_xticklabels()] == ["<s>", *names[:-1]]
    assert [one.get_text() for one in axes[0].get_yticklabels()] == names
    for one, wanted in zip(axes, weights.flatten(0, 1), strict=True):
        cells = one.get_images()[0].get_array()
        assert (cells.mask == (wanted == 0).numpy()).all() and (cells.data == wanted.numpy()).all()


def test_letters_become_smaller_where_a_text_is_long():
    assert map_figure.side(["a"] * 5) == 1.7 and map_figure.side(["a"] * 20) == 2.6
    assert map_figure.side(["a"] * 500) == 4.0


def test_a_token_is_named_so_that_it_can_be_read(tmp_path):
    tokenizer = bpe.trained((line for path in files(tmp_path) for line in open(path)), 300)
    ids = dict(zip(["eins", "grün"], bpe.encoded(tokenizer, ["eins", "grün"]), strict=True))
    assert "".join(label(tokenizer, one) for one in ids["eins"]) == "eins</s>"
    letters = bpe.of_bytes()
    names = [label(letters, one) for one in bpe.encoded(letters, ["a ü\n"])[0]]
    assert names == ["a", "␣", "Ã", "¼", "\\n", "</s>"]  # half a character has the letter of its byte


# what is refused


def test_another_kind_of_run_is_refused_with_what_to_write(monkeypatch, capsys, tmp_path):
    folder = tmp_path / "rope"
    folder.mkdir()
    (folder / "config.yaml").write_text("model: {positional: rope}\n")
    code, said, error = called(monkeypatch, capsys, folder, "abc", "--maps", tmp_path / "maps.png")
    assert (code, said) == (2, "")
    assert error == f"lab: {folder} is no encoder–decoder: `lab generate {folder} --prompt …`\n"


@pytest.mark.parametrize(
    ("sources", "name", "message"),
    [
        (["a", "b"], "maps.png", "--maps draws one source, got 2: call it once for each, with a file of its own"),
        (["a"], "maps.txt", "--maps: `maps.txt` is to be a .png, .pdf, .svg file: write maps.png"),
        ([" "], "maps.png", "source 1 is empty: there is nothing to translate"),
    ],
)
def test_a_call_that_cannot_be_drawn_says_why(run, monkeypatch, capsys, tmp_path, sources, name, message):
    monkeypatch.chdir(tmp_path)
    assert called(monkeypatch, capsys, run.path.resolve(), *sources, "--maps", name) == (2, "", f"lab: {message}\n")
