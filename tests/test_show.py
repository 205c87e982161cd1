"""`lab schemes show`: what it says of an encoding, and the picture, whose lines are the encoding's own numbers."""

import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from lab import cli, portrait
from lab.describe import Option, described, facts, options, shape_of
from lab.portrait import beside, draw, panels_of
from positional import Shape, build
from positional.alibi import slopes

SHAPE = Shape(width=256, heads=4, kv_heads=4, layers=2, train_length=512)


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """`lab schemes …` in this process, in an empty folder: (exit code, stdout, stderr)."""

    def call(*words) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lab", "schemes", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.chdir(tmp_path)
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def write(tmp_path):
    def write(body: str) -> str:
        (tmp_path / "mine.py").write_text(
            "import torch\nfrom positional import Scheme, Scores\n" + textwrap.dedent(body)
        )
        return str(tmp_path / "mine.py")

    return write


def drawn(spec, shape: Shape = SHAPE) -> list:
    """The axes of its picture, one for each panel."""
    figure = Figure()
    found = []
    for panel in panels_of(build(spec, shape)):
        found.append(figure.add_subplot())
        panel(found[-1])
    return found


def line(axes, label: str) -> np.ndarray:
    return next(one.get_ydata() for one in axes.get_lines() if one.get_label() == label)


def labels(axes) -> list[str]:
    return axes.get_legend_handles_labels()[1]


# What is said


def test_it_prints_line_one_the_docstring_the_options_and_the_facts(call, tmp_path):
    code, said, err = call("show", "rope-ntk", "factor=8")
    assert (code, err) == (0, "")
    for part in (
        "RoPE, NTK-aware scaling: a larger base",
        "arXiv:2309.00071",
        "base' = base · factor^(D/(D-2))",
        "factor",
        "a number or auto",
        "needed, here 8",
        "10000.0",
        "prefix-consistent  yes",
        "auto picks",
        "runs/schemes/rope-ntk.png",
    ):
        assert part in said
    assert imread(tmp_path / "runs/schemes/rope-ntk.png").shape[2] == 4


def test_options_are_told_with_meaning_type_and_default():
    """Also those that a class inherits, in the words of the class that has them."""
    factor, base, layout = options("rope-linear", {"factor": 8})
    times = "how many times longer the input is than in training; auto: length being run ÷ train length, at least 1."
    assert factor == Option("factor", times, "a number or auto", "needed, here 8")
    assert base == Option("base", "the slowest lane turns once in about 2π·base tokens.", "a number", "10000.0")
    assert layout.type == "half or interleaved" and layout.meaning.startswith("which channels are lane i's pair: ")


def test_every_option_has_a_meaning(any_spec):
    """An example in the docstring is none: `{kind: window, window: 64}`."""
    found = options(any_spec["kind"], {})
    assert all(len(option.meaning) > 5 and "}" not in option.meaning.split("{")[0] for option in found)


@pytest.mark.parametrize(
    ("spec", "fact", "said"),
    [
        ("nope", "acts on", "nothing"),
        ("rope", "acts on", "queries and keys"),
        (["rope", {"kind": "window", "window": 64}], "acts on", "queries and keys, scores"),
        ("sinusoidal", "acts on", "embeddings"),
        ("alibi", "says of scores", "slopes"),
        (["alibi", {"kind": "window", "window": 64}], "says of scores", "slopes, window"),
        ({"kind": "window", "window": 64}, "sees", "a token and the 63 before it"),
        ({"kind": "window", "window": 64, "sinks": 4}, "sees", "a token and all before it, but for what it hides"),
        ("learned", "longest input", "512 tokens"),
        ("rope", "longest input", "any"),
        ("rope", "in an encoder", "yes"),
        ("logn", "in an encoder", "no: it takes a query to see as many tokens as lie up to it"),
        ("relative", "learned numbers", "128 (table 32 × 4)"),
        ("rope", "learned numbers", "none"),
        ("rope", "prefix-consistent", "yes: what follows a token changes nothing at it, and a cache is exact"),
        (
            {"kind": "rope-ntk", "factor": "auto"},
            "prefix-consistent",
            "no: it depends on the length being run, so no cache is exact and `generate` runs without one",
        ),
        (
            "relative",
            "backends",
            "sdpa; flex (GPUs; CPUs without gradients); eager (everything, with a T×T matrix). "
            "Not flash3, flash4, flash2, varlen, which do not run bias",
        ),
    ],
    ids=str,
)
def test_a_fact_is_what_holds(spec, fact, said):
    assert facts(spec, described(spec, SHAPE))[fact] == said


def test_flash2_alone_has_slopes_of_its_own():
    said = facts("alibi", build("alibi", SHAPE))["backends"]
    assert "flash2 (GPUs from Ampere on), natively; sdpa" in said and said.count("natively") == 1


def test_parts_are_said_to_train_only_where_they_do():
    spec = {"kind": "self-extend", "group": 4, "window": 128}
    found = facts(spec, build(spec, SHAPE))
    assert found["backends"].endswith(
        "Its parts are merged by log-sum-exp, whose gradient flex (on a GPU), sdpa and eager have"
    )
    if "cpu" in found["here"]:
        assert found["here"] == "auto picks sdpa (cpu, float32)"


def test_every_kind_can_be_shown(any_spec, tmp_path, shape):
    scheme = build(any_spec, shape)
    assert facts(any_spec, scheme)["here"].startswith("auto picks ")
    path = draw(any_spec, scheme, tmp_path / "one.png")
    assert (path is None) == (any_spec["kind"] == "nope")
    if path is not None:
        assert imread(path)[..., :3].std() > 0.01  # not a blank sheet


def test_what_does_nothing_has_no_picture(call, tmp_path):
    code, said, _ = call("show", "nope")
    assert code == 0 and "no picture: it does nothing that one could draw" in said
    assert not (tmp_path / "runs").exists()


def test_a_stack_says_what_each_member_is(call):
    code, said, _ = call("show", "[rope, {kind: window, window: 64}]", "--out", "both.png")
    assert code == 0 and Path("both.png").exists()
    assert "queries and keys turned by an angle" in said and "a token sees only those near it" in said


def test_the_shape_is_what_was_asked_for(call):
    code, said, _ = call("show", "relative", "--heads", 8, "--width", 64, "--length", 128)
    assert code == 0 and "256 (table 32 × 8)" in said


def test_a_users_file_that_says_nothing_of_itself_is_shown(call, write):
    code, said, _ = call("show", write("class Mine(Scheme):\n    def embed(self, x, pos):\n        return x + 1\n"))
    assert code == 0 and "(its file has no first line that says what it does)" in said
    assert "Scheme" not in said.partition("acts on")[0]  # and not with the base class's docstring


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "ropee"], "unknown encoding `ropee`: did you mean rope?"),
        (["show", "rope-ntk"], "rope-ntk needs `factor`"),
        (["show", "rope-ntk", "factor=0.5"], "factor must be at least 1, or auto, got 0.5"),
        (["show", "rope", "--width", 30], "width 30 is not a multiple of heads 4"),
        (["show"], "Missing argument"),
        (
            ["show", "rope", "--beside", "alibi"],
            "lab: --beside compares the lanes of RoPEs, and `alibi` has none: show it by itself, or give encodings "
            "such as rope-linear and rope-ntk\n",
        ),
        (["show", "rope", "--beside", "rope-ntk"], "rope-ntk needs `factor`"),
    ],
)
def test_a_call_that_cannot_be_carried_out_exits_with_2(call, words, said):
    code, out, err = call(*words)
    assert (code, out) == (2, "") and said in err


# What is drawn


def test_wavelengths_are_those_of_the_lanes():
    (axes,) = drawn({"kind": "rope-linear", "factor": 4})
    assert labels(axes) == ["plain RoPE", "stretched 4 ×: 32 lanes"]
    plain = 2 * np.pi * 10000 ** (np.arange(32) / 32)
    np.testing.assert_allclose(line(axes, "plain RoPE"), plain, rtol=1e-12)
    (points,) = axes.collections
    np.testing.assert_allclose(points.get_offsets()[:, 1], 4 * plain, rtol=1e-12)
    assert "at 2048 tokens" in axes.get_title(loc="left")  # the factor times the train length


def test_ntk_keeps_one_lane_and_stretches_one():
    (axes,) = drawn({"kind": "rope-ntk", "factor": 8})
    assert labels(axes) == ["plain RoPE", "kept: 1 lane", "blended: 30 lanes", "stretched 8 ×: 1 lane"]


def test_lanes_at_an_automatic_factor_are_those_of_eight_train_lengths():
    (auto,), (given,) = drawn({"kind": "rope-ntk", "factor": "auto"}), drawn({"kind": "rope-ntk", "factor": 8})
    for mine, exact in zip(auto.collections, given.collections, strict=True):
        np.testing.assert_allclose(mine.get_offsets(), exact.get_offsets(), rtol=1e-12)


def test_lanes_of_several_are_drawn_beside_each_other(call, monkeypatch, tmp_path):
    """Linear scaling slows every lane by the factor, NTK lane n of 32 by factor^(n/31): the first by none."""
    sheets = []
    monkeypatch.setattr(beside, "save", lambda panels, title, path: sheets.append((panels, title)) or path)
    code, said, _ = call("show", "rope-linear", "factor=8", "--beside", "rope-ntk factor=8", "--beside", "rope")
    assert code == 0 and said.endswith("\nruns/schemes/rope-linear-beside-rope-ntk-beside-rope.png\n")
    assert "positions divided by a factor" in said and "a larger base" not in said  # it is the first that is told of
    ((panels, title),) = sheets
    assert title == "4 heads of 64 channels, trained on 512 tokens, run at 4096"
    figure, lanes = Figure(), np.arange(32)
    waves, slower = figure.subplots(1, 2)
    panels[0](waves), panels[1](slower)
    assert labels(waves) == ["plain RoPE", "rope-linear factor=8", "rope-ntk factor=8", "rope"]
    plain = 2 * np.pi * 10000 ** (lanes / 32)
    for name, times in {"rope-linear factor=8": 8, "rope-ntk factor=8": 8 ** (lanes / 31), "rope": 1}.items():
        np.testing.assert_allclose(line(waves, name), plain * times, rtol=1e-12)
        np.testing.assert_allclose(line(slower, name), np.full(32, times), rtol=1e-12)
    np.testing.assert_allclose(line(waves, "plain RoPE"), plain, rtol=1e-12)


def test_lanes_beside_each_other_are_a_picture(call, tmp_path):
    """Also where one has fewer lanes, or lanes that stand still."""
    words = ["--beside", "rope-partial share=0.5", "--beside", "rope-proportional", "--out", "lanes.png"]
    code, said, _ = call("show", "[rope, {kind: window, window: 64}]", *words)
    assert code == 0 and said.endswith("\nlanes.png\n") and imread(tmp_path / "lanes.png")[..., :3].std() > 0.01


def test_penalties_are_alibi_s_slopes_times_the_distance():
    (axes,) = drawn("alibi")
    for head, slope in enumerate(slopes(4)):
        np.testing.assert_allclose(line(axes, f"head {head}"), -slope * np.arange(2048), rtol=1e-6)


def test_a_bias_that_starts_at_zero_says_so():
    (axes,) = drawn("relative")
    assert "all zero until it is trained" in [text.get_text() for text in axes.texts]
    assert labels(axes) == ["every head"]


def test_a_penalty_under_a_window_is_dotted_where_the_key_is_hidden():
    penalty, sight = drawn(["alibi", {"kind": "window", "window": 100}])
    seen = line(penalty, "head 0")
    assert np.isfinite(seen[:100]).all() and np.isnan(seen[100:]).all()
    assert "of keys that are hidden" in labels(penalty)
    assert sight.get_images()[0].get_array().shape == (250, 250)


def test_who_sees_whom_is_a_band_and_the_sinks():
    (axes,) = drawn({"kind": "window", "window": 9, "sinks": 2})
    picture = axes.get_images()[0].get_array()
    i, j = np.indices(picture.shape)
    np.testing.assert_array_equal(picture, (j <= i) & ((i - j < 9) | (j < 2)))


def test_parts_show_at_what_distance_a_key_is_made_to_look():
    _, distances, sight = drawn({"kind": "self-extend", "group": 4, "window": 128})
    near, far = (line(distances, f"part {n}") for n in (1, 2))
    d = np.arange(4096)
    np.testing.assert_allclose(near[:128], d[:128], atol=0.01)
    last = 4095
    wanted = last // 4 + 128 - 128 // 4 - (last - d) // 4
    np.testing.assert_allclose(far[128:], wanted[128:], atol=0.01)  # fp32 angles over the slowest lane's 1.3e-4
    assert np.isnan(near[128:]).all() and np.isnan(far[:128]).all()
    assert set(np.unique(sight.get_images()[0].get_array())) == {0, 1, 2}


def test_a_heat_map_is_what_is_added_to_embeddings():
    (axes,) = drawn("sinusoidal")
    picture = axes.get_images()[0].get_array()
    assert picture.shape == (512, 256)
    np.testing.assert_allclose(picture[:, 0], np.sin(np.arange(512)), atol=1e-6)
    assert "untrained" not in axes.get_title(loc="left")


def test_a_learned_table_is_said_to_be_untrained():
    (axes,) = drawn("learned")
    assert axes.get_title(loc="left") == "The first vectors, which nothing has trained"


def test_a_scheme_of_ones_own_is_drawn_by_what_it_does(write):
    kind = write("""
        class Mine(Scheme):
            def rotate(self, q, k, pos):
                scale = 1 + pos.of_queries.to(q.dtype)[:, None, :, None] / 1000
                return q * scale, k

            def scores(self, q, k, pos):
                return Scores(keep=lambda b, h, i, j: (i - j) % 2 == 0)
    """)
    factor, sight = drawn(kind)
    np.testing.assert_allclose(line(factor, "queries"), 1 + np.arange(4096) / 1000, rtol=1e-5)
    i, j = np.indices((48, 48))
    np.testing.assert_array_equal(sight.get_images()[0].get_array(), (j <= i) & ((i - j) % 2 == 0))


def test_a_turn_that_is_no_rope_is_drawn_as_an_angle(write):
    kind = write("""
        class Mine(Scheme):
            def rotate(self, q, k, pos):
                def turn(x, ids):
                    angle = ids[:, None, :, None] * 0.01
                    a, b = x.chunk(2, -1)
                    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

                return turn(q, pos.of_queries), turn(k, pos.ids)
    """)
    (axes,) = drawn(kind)
    np.testing.assert_allclose(line(axes, "every head"), np.cos(0.01 * np.arange(4096)), atol=1e-4)


def test_layers_that_differ_have_a_panel_each(write):
    kind = write("""
        from positional.window import Window


        class Mine(Scheme):
            def __init__(self, shape):
                super().__init__(shape)
                self.near = Window(shape, window=20)

            def at(self, layer):
                return self.near if layer == 1 else self
    """)
    (axes,) = drawn(kind)
    assert axes.get_title(loc="left") == "Who sees whom, layer 1 of 2"


def test_a_long_name_is_cut():
    spec = {"kind": "rope", "base": 10000.0, "layout": "half" + "x" * 200}
    assert len(portrait.titled(spec)) == 90


def test_a_picture_s_name_is_one_that_a_file_may_have():
    assert portrait.file_of(["rope", {"kind": "window", "window": 3}]) == Path("runs/schemes/rope+window.png")
    assert portrait.file_of("~/ideas/mine.py") == Path("runs/schemes/mine.png")
    assert portrait.file_of("package.kind") == Path("runs/schemes/package-kind.png")


def test_sizes_that_do_not_fit_are_refused():
    from lab import LabError

    with pytest.raises(LabError, match="width 100 is not a multiple of heads 3"):
        shape_of(100, 3, 512)


def test_a_picture_takes_seconds(tmp_path):
    begun = time.process_time()
    draw("alibi", build("alibi", SHAPE), tmp_path / "one.png")
    assert time.process_time() - begun < 10
