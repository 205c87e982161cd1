"""lab extend: methods measured on the same tokens and questions, judged beside two honest baselines."""

import json
import math
import re
import shutil
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_llm
import torch
from transformers import BloomConfig, LlamaConfig, ModernBertConfig
from typer.testing import CliRunner

from eval import EvalError
from eval.asked import Questions
from eval.entries import Asked
from lab import LabError
from lab.cli import app
from lab.extend.measure import CutQuestions, bench_of
from lab.extend.methods import METHODS, method, reach
from lab.extend.needles import by_depth
from lab.extend.recommend import Curve, chosen, holds, judged, said
from lab.extend.run import extend
from lab.extend.settings import Extending, asked
from lab.fits import needed
from lab.pretrained import config_of
from lab.rows import Row, read
from positional import Shape, build

L0, TO = 256, 512


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    return tiny_llm.llama(folder / "tiny", max_position_embeddings=L0)


@pytest.fixture
def settings(model, tmp_path):
    for n in range(2):
        (tmp_path / f"{n}.txt").write_text(tiny_llm.text(900, seed=n))
    return {
        "model": str(model),
        "to": TO,
        "folder": str(tmp_path / "runs"),
        "data": {"source": "text", "path": [str(tmp_path / "*.txt")]},
        "targets": 16,
        "lengths": [64, TO],
        "needles": {"count": 1, "depths": 2},
        "methods": ["yarn", {"mine": {"kind": "rope-linear", "factor": 2.0}}, "dual-chunk", "dynamic"],
    }


def quiet(_: str) -> None:
    pass


def test_every_method_on_the_same_tokens(settings, tmp_path):
    bench, _, rows = extend(Extending(**settings), quiet)
    assert (bench.train_length, bench.to) == (L0, TO)
    by_name = {}
    for row in rows:
        if row.probe == "suffix":
            by_name.setdefault(row.scheme, {})[row.length] = row
    assert {name: sorted(line) for name, line in by_name.items()} == {
        "raw": [64, L0, TO],
        "text cut to 256": [TO],
        "yarn": [64, TO],
        "mine": [64, TO],
        "dual-chunk": [64, TO],
        "dynamic": [64, TO],
    }
    assert all(
        row.count == 2 * 16 and row.low <= row.value <= row.high for line in by_name.values() for row in line.values()
    )
    assert by_name["text cut to 256"][TO].value == by_name["raw"][L0].value
    # Within the train length these two are the model as it is.
    for name in ("dual-chunk", "dynamic"):
        assert by_name[name][64].value == pytest.approx(by_name["raw"][64].value, abs=1e-5)
    assert by_name["yarn"][64].value != by_name["raw"][64].value
    needles = {(row.scheme, row.length) for row in rows if (row.probe, row.metric) == ("grid", "exact")}
    assert needles == {("raw", L0), ("raw", TO), *((name, TO) for name in by_name if name != "raw")}
    report = (bench.folder / "report.md").read_text()
    assert "raw → yarn" in report and "Recommended: " in report and f"| dual-chunk at {TO} |" in report
    assert (bench.folder / "suffix.png").exists() and (bench.folder / "grid.png").exists()
    assert read(bench.folder / "rows.jsonl") == rows


def test_needles_are_told_by_depth_at_the_length_to_reach():
    def row(scheme: str, length: int, depth: str, value: float) -> Row:
        return Row("tiny", scheme, "raw", 0, "grid", f"answer nats at depth {depth}", length, value, 2)

    of_raw = [
        row("raw", length, depth, length + float(depth)) for length in (64, 256, 512) for depth in ("0.50", "0.00")
    ]
    rows = [*of_raw, row("yarn", 256, "0.00", 9), row("yarn", 512, "0.00", 1.25), row("yarn", 512, "0.50", 2)]
    assert by_depth(rows, 256, 512).splitlines() == [
        "| answers to needles, nats per token, by depth | 0.00 | 0.50 |",
        "| --- | ---: | ---: |",
        "| raw at 256 | 256.000 | 256.500 |",
        "| raw at 512 | 512.000 | 512.500 |",
        "| yarn at 512 | 1.250 | 2.000 |",
        "",
        "2 needles a depth: 0 is the beginning of the text, 1 its end. A guessed digit costs ln 10 = 2.303.",
    ]
    assert by_depth([row("raw", 64, "0.00", 1)], 256, 512) == ""


def test_losses_are_those_of_transformers(settings, model):
    """Of the model as it is and of YaRN, by transformers' own forward pass and its own type."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    bench, _, rows = extend(Extending(**settings | {"methods": ["yarn"], "needles": {"count": 0}}), quiet)
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 2.0,
        "original_max_position_embeddings": L0,
    }
    ids = torch.stack([one.ids[: TO + 1] for one in bench.texts])
    assert ids[0, 0] == AutoTokenizer.from_pretrained(model).bos_token_id
    for name, more in {"raw": {}, "yarn": {"rope_parameters": yarn}}.items():
        own = AutoModelForCausalLM.from_pretrained(model, **more).eval()
        for length in (64, TO):
            window = ids[:, TO - length : TO].clone()
            window[:, 0] = ids[:, 0]
            with torch.no_grad():
                logits = own(input_ids=window, use_cache=False).logits[:, -16:]
            wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, TO - 15 : TO + 1].flatten())
            [row] = [row for row in rows if (row.scheme, row.length, row.probe) == (name, length, "suffix")]
            assert row.value == pytest.approx(float(wanted), abs=1e-4)


def test_progress_ends_where_it_said_it_would(settings, monkeypatch):
    """Also where nothing is left to run: what is found counts as what was run."""
    import lab.extend.run

    bars = []

    @contextmanager
    def recorded(what, total, show=True):
        bars.append([total, 0])
        yield SimpleNamespace(advance=lambda n, name="": bars[-1].__setitem__(1, bars[-1][1] + n))

    monkeypatch.setattr(lab.extend.run, "progress", recorded)
    for _ in range(2):
        extend(Extending(**settings | {"methods": ["yarn", "dynamic"], "needles": {"count": 0}}), quiet)
    assert len(bars) == 2 and all(total == done > 0 for total, done in bars)


def test_the_same_call_goes_on_where_it_was(settings, monkeypatch):
    asked_for = Extending(**settings | {"methods": ["yarn", "linear"]})

    class Killed(BaseException):
        pass

    import lab.extend.run

    put_in, seen = lab.extend.run.put_in, []

    def killed(bench, one):
        seen.append(one.name)
        if seen.count("linear") == 2:  # once it is only tried whether it can be put in
            raise Killed
        put_in(bench, one)

    monkeypatch.setattr(lab.extend.run, "put_in", killed)
    with pytest.raises(Killed):
        extend(asked_for, quiet)
    monkeypatch.undo()
    told = []
    bench, _, rows = extend(asked_for, told.append)
    assert [text.splitlines()[1] for text in told[:3]] == ["nothing is left to run"] * 3
    assert told[2].startswith("yarn: ") and "all is answered" in told[2]
    again = (bench.folder / "rows.jsonl").read_bytes()
    other = Extending(**settings | {"methods": ["yarn", "linear"], "name": "other"})
    fresh, *_ = extend(other, quiet)
    assert (fresh.folder / "rows.jsonl").read_text().replace('"other"', '"extend"') == again.decode()


def test_longrope_is_searched_and_then_measured(settings):
    """By other needles than it is measured by; the search is not run again."""
    effort = {"budget": 5, "haystacks": 1, "needles": 2}
    wanted = Extending(**settings | {"methods": ["longrope"], "longrope": effort})
    bench, methods, rows = extend(wanted, quiet)
    spec = methods[-1].spec
    assert spec["kind"] == "rope-longrope" and spec["factor"] == TO / L0 and len(spec["long"]) == 8
    kept = (bench.folder / f"longrope-{TO}.jsonl").read_bytes()
    told = []
    assert extend(wanted, told.append)[2] == rows and any("all are measured" in text for text in told)
    assert (bench.folder / f"longrope-{TO}.jsonl").read_bytes() == kept


def test_a_dry_run_measures_nothing(settings):
    told = []
    bench, _, rows = extend(Extending(**settings), told.append, dry=True)
    assert not rows and not bench.folder.exists()
    assert [text.partition(":")[0] for text in told] == [
        "raw",
        "text cut to 256",
        "yarn",
        "mine",
        "dual-chunk",
        "dynamic",
    ]
    assert "forward passes" in told[0] and "1 × grid at 256, 512 tokens" in told[0]


def test_needles_that_the_cut_text_no_longer_has(settings):
    bench = bench_of(Extending(**settings), quiet)
    task = Asked("grid", 1, 2)
    whole = Questions([task], [TO], bench.voice).made(task, TO, 0)
    cut = CutQuestions([task], [TO], bench.voice, L0).made(task, TO, 0)
    for a, b in zip(whole.samples, cut.samples, strict=True):
        gone = len(a.ids) - len(b.ids)
        assert b.ids[0] == bench.voice.start[0] and np.array_equal(b.ids[1:], a.ids[gone + 1 :])
        [(first, past)], [(of_cut, past_cut)] = a.answers, b.answers
        assert np.array_equal(a.ids[first:past], b.ids[of_cut:past_cut]) and b.about["depth"] == a.about["depth"]
    assert max(len(b.ids) for b in cut.samples) == L0
    assert all(np.array_equal(b.ids[: cut.shared], cut.samples[0].ids[: cut.shared]) for b in cut.samples)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("train, to", [(128, 256), (2048, 32768), (8192, 12288)])
def test_each_method_reaches_as_far_as_it_is_asked_to(name, train, to):
    spec = method(name, train, to)
    build(spec, Shape(64, 4, 2, 2, train))
    assert reach(spec, train) >= to


def test_the_group_of_self_extend_is_no_larger_than_needed():
    spec = method("self-extend", 8192, 32768)
    assert spec == {"kind": "self-extend", "window": 2048, "group": 5}  # (8192 - 2048) · 5 + 2048 = 32768
    assert reach({**spec, "group": 4}, 8192) == 26624
    assert reach(["rope", {"kind": "window", "window": 8}], 128) == math.inf
    assert reach({"kind": "rope-resonance", "of": {"kind": "rope-yarn", "factor": 2.0}}, 128) == 256


# What is said of it


def line(name, losses, needles=None, documents=8):
    """A curve over lengths 64, 128, 256 whose documents differ, but differ alike at every length."""
    hard = np.linspace(-0.5, 0.5, documents)[:, None]
    sums = (np.array(losses)[None] + hard) * 100
    rows = {}
    if needles is not None:
        rows = {
            256: Row(
                "r", name, "raw", 0, "grid", "exact", 256, needles, 50, "", max(0, needles - 0.1), min(1, needles + 0.1)
            )
        }
    return Curve(name, {"kind": "rope-linear", "factor": 2.0}, [64, 128, 256], sums, np.full_like(sums, 100), rows)


RAW = line("raw", [3.0, 2.5, 6.0])


def test_how_far_a_method_holds():
    assert holds(line("good", [3.0, 2.5, 2.4]), RAW, 128) == 256
    assert holds(line("as good", [3.0, 2.5, 2.519]), RAW, 128) == 256
    assert holds(line("worse", [3.0, 2.5, 2.53]), RAW, 128) is None


def test_the_recommended_one_finds_needles_and_loses_least():
    blind, good, poor = (
        line("blind", [3.0, 2.5, 2.3], 0.1),
        line("good", [3.0, 2.5, 2.4], 0.95),
        line("poor", [3.0, 2.5, 2.45], 0.9),
    )
    found = judged(RAW, [blind, good, poor], 128, 256)
    assert chosen(found, 256).curve.name == "good"
    assert chosen(judged(RAW, [line("a", [3, 2.5, 2.3]), line("b", [3, 2.5, 2.4])], 128, 256), 256).curve.name == "a"
    assert chosen(judged(RAW, [line("bad", [3.0, 2.5, 3.0], 1.0)], 128, 256), 256) is None


def test_what_is_said():
    good = line("good", [3.1, 2.5, 2.4], 0.96)
    lines = [*said(RAW, judged(RAW, [good], 128, 256), 128, 256)]
    assert (
        lines[0]
        == "As it is, a token costs 3.500 nats more (95 %: +3.500 to +3.500) at 256 than with the text cut to 128."
    )
    assert lines[1].startswith("good holds to 256: at 256, 0.100 nats less")
    assert lines[1].endswith("96% of 50 needles at 256; at 64, 0.100 nats more (95 %: +0.100 to +0.100) than as it is.")
    assert lines[2].startswith("Recommended: good (rope-linear factor=2.0), which holds to 256 tokens: 0.100 nats less")
    [*_, none] = said(RAW, judged(RAW, [line("bad", [3.0, 2.5, 3.0])], 128, 256), 128, 256)
    assert none.startswith("Recommended: cut the text to 128 tokens, or fine-tune: no method is shown to hold at 256")


# Mistakes


@pytest.mark.parametrize(
    "change, says",
    [
        ({"to": 256}, "was trained on 256 tokens, and 256 are within: nothing is to be extended"),
        ({"to": 64}, "was trained on 256 tokens, and 64 are within"),
        ({"to": 513}, "to: 513 is odd (513): half of each window is context, half is scored"),
        ({"to": "long"}, "to: 'long' is no length: write tokens (4096), thousands (4k) or train lengths (8x)"),
        ({"to": "0.5x"}, "to: '0.5x' is no length"),
        ({"methods": ["yarm"]}, "no method `yarm`: did you mean yarn? there are linear, ntk,"),
        ({"methods": ["qqq"]}, "no method `qqq`; there are linear, ntk,"),
        ({"methods": ["pose"]}, "method pose is for training: lab finetune --method pose"),
        ({"methods": [{"mine": "rope-yran"}]}, "methods: mine: unknown encoding `rope-yran`: did you mean rope-yarn?"),
        (
            {"methods": [{"mine": {"kind": "rope-yarn", "facto": 2.0}}]},
            "methods: mine: rope-yarn has no option `facto`",
        ),
        ({"device": "gpu"}, "device gpu is none of this machine, which has cpu"),
        (
            {"methods": [{"short": {"kind": "rope-yarn", "factor": 1.5}}]},
            "short (rope-yarn factor=1.5) is for 384 tokens, and 512 are asked for",
        ),
        ({"to": 100_000}, "the 100001 tokens that these lengths need"),
    ],
)
def test_mistakes_are_told(settings, change, says):
    with pytest.raises(Exception) as told:
        extend(Extending(**settings | change), quiet)
    assert says in str(told.value) and type(told.value).__name__ in ("LabError", "EvalError")
    assert "\n" not in str(told.value) and told.value.code == 2


@pytest.mark.parametrize(
    "data, says",
    [
        ("gone.txt", "data.path: nothing at {0}/gone.txt: give a file, a folder or a glob, seen from {1}"),
        (
            "empty.txt",
            "none of 1 documents has the 513 tokens that these lengths need; the longest has 1: take shorter lengths "
            "or longer texts",
        ),
        (
            "short.txt",
            "none of 1 documents has the 513 tokens that these lengths need; the longest has 4: take shorter lengths "
            "or longer texts",
        ),
    ],
)
def test_texts_that_do_not_reach_are_told_before_weights_are_loaded(settings, tmp_path, monkeypatch, data, says):
    monkeypatch.setattr("lab.extend.measure.load", lambda *_, **__: pytest.fail("weights were loaded"))
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("zzz")
    with pytest.raises((LabError, EvalError)) as told:
        extend(Extending(**settings | {"data": {"source": "text", "path": [str(tmp_path / data)]}}), quiet)
    assert str(told.value) == says.format(tmp_path, Path.cwd()) and told.value.code == 2


def test_an_encoding_that_cannot_be_put_in_is_told_before_anything_is_measured(settings, monkeypatch):
    monkeypatch.setattr("lab.extend.run.measure", lambda *_, **__: pytest.fail("something was measured"))
    with pytest.raises(LabError, match="sinusoidal acts on embeddings, which LlamaForCausalLM gives no way into"):
        extend(Extending(**settings | {"methods": ["yarn", {"mine": "sinusoidal"}]}), quiet)


def test_models_that_cannot_be_extended(settings, tmp_path):
    table = (
        LabError,
        (
            "gpt2 has no rope_parameters: it does not turn queries and keys, so there is no RoPE to read or extend. "
            "Position is told by a learned vector for each position, and it has none for longer inputs: take a model "
            "with RoPE"
        ),
    )
    penalty = (
        LabError,
        (
            "bloom has no rope_parameters: it does not turn queries and keys, so there is no RoPE to read or extend. "
            "Position is told by ALiBi: a penalty on the score that grows with distance; how far it reads as it is, "
            "python -m eval measures"
        ),
    )
    masked = (
        EvalError,
        (
            "{} is no causal language model: transformers has none for ModernBertConfig. Give a model that tells the "
            "next token"
        ),
    )
    tiny_llm.gpt2(tmp_path / "gpt2", 128)
    BloomConfig(hidden_size=32, n_layer=1, n_head=2).save_pretrained(tmp_path / "bloom")
    ModernBertConfig().save_pretrained(tmp_path / "bert")
    for name, (kind, says) in (("gpt2", table), ("bloom", penalty), ("bert", masked)):
        with pytest.raises(kind) as told:
            extend(Extending(**settings | {"model": str(tmp_path / name)}), quiet)
        assert str(told.value) == says.format(tmp_path / name) and told.value.code == 2
    with pytest.raises(LabError, match="package:nothing: no package nothing is installed"):
        extend(Extending(**settings | {"model": "package:nothing"}), quiet)


def test_what_does_not_fit_is_told_before_weights_are_loaded(settings, monkeypatch):
    import lab.extend.measure
    import lab.fits

    monkeypatch.setattr(lab.extend.measure, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    monkeypatch.setattr(lab.fits, "free_bytes", lambda device: 4 * 2**20)
    with pytest.raises(LabError) as told:
        extend(Extending(**settings | {"to": 2**16}), quiet)
    found = re.fullmatch(
        r"65536 tokens through llama take about 0\.[0-9] GiB, and 0\.0 GiB are free: (\d+) tokens would fit; or take a "
        "smaller model, or dtype: bfloat16",
        str(told.value),
    )
    config = config_of(settings["model"])
    assert lab.fits.needed(config, int(found[1]), torch.float32, 16) <= 4 * 2**20
    assert lab.fits.needed(config, 2 * int(found[1]), torch.float32, 16) > 4 * 2**20
    monkeypatch.setattr(lab.fits, "free_bytes", lambda device: 2**10)
    with pytest.raises(LabError, match="its weights alone do not fit: take a smaller model"):
        extend(Extending(**settings), quiet)


def test_code_that_comes_along_is_run_where_asked_alone(settings, model, tmp_path, monkeypatch):
    folder = tmp_path / "coded"
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "of-its-own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n\n\n"
        "class C(LlamaConfig):\n    model_type = 'of-its-own'\n\n\n"
        "class M(LlamaForCausalLM):\n    config_class = C\n"
    )
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    coded = settings | {"model": str(folder), "methods": ["linear"], "needles": {"count": 0}}
    with pytest.raises(EvalError) as told:
        extend(Extending(**coded), quiet)
    assert str(told.value) == (
        f"{folder} brings code of its own, which is run only where you say so: read it, then pass --trust-remote-code "
        "to python -m eval, trust_remote_code=true to lab extend, or in Python load(…, remote_code=True); lab finetune "
        "runs none"
    )
    _, _, rows = extend(Extending(**coded, trust_remote_code=True), quiet)
    _, _, plain = extend(
        Extending(**settings | {"methods": ["linear"], "needles": {"count": 0}, "name": "plain"}), quiet
    )
    assert [row.value for row in rows] == [row.value for row in plain]


def test_what_is_needed_is_near_what_is_taken():
    """Weights and cache by hand: 2 layers of width 32, keys and values in fp32."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    weights = 2 * 64 * 32 + 2 * (4 * 32 * 32 + 3 * 32 * 64 + 2 * 32) + 32
    held = 1000 * 32 * 15 * 4 + 1000 * 64 * 4 * 2  # hidden states of a layer, and the logits
    assert needed(config, 1000, torch.float32, 1000) == 4 * weights + held + 2 * 2 * 32 * 1000 * 4


def test_settings_by_file_and_by_options(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("model: there\nto: 32k\ndocuments: 3\n")
    made = asked(str(path), ["documents=4"], to="64k", methods=["yarn"], data=["a.txt"])
    assert (made.model, made.to, made.documents, made.methods, made.data.path) == (
        "there",
        "64k",
        4,
        ["yarn"],
        ["a.txt"],
    )
    path.write_text("model: there\nto: 32k\ndocumnets: 3\n")
    with pytest.raises(LabError, match="documnets: unknown key, did you mean documents?"):
        asked(str(path), [])
    with pytest.raises(LabError, match="how far is there to read\\? write --to 32k"):
        asked("there", [])
    with pytest.raises(LabError, match="is for one method and there are 8: name it with --method"):
        asked("there", [], to="2x", out=tmp_path / "out")
    with pytest.raises(LabError) as told:
        asked("there", [], to="2x", methods=["yarn"], out=tmp_path)
    assert str(told.value) == f"--out {tmp_path} is there already: give another folder, or remove it first"
    with pytest.raises(LabError, match="what runs code of its own is measured, and not written anew. Leave out --out"):
        asked("there", ["trust_remote_code=true"], to="2x", methods=["yarn"], out=tmp_path / "out")
    with pytest.raises(LabError, match="no method `yran`: did you mean yarn\\? there are linear, "):
        asked("there", [], to="2x", methods=["yran"])


def test_the_command(settings, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(json.dumps(settings | {"methods": ["linear"], "needles": {"count": 0}}))
    run = CliRunner().invoke(app, ["extend", str(path)])
    assert run.exit_code == 0 and "raw → linear" in run.output and "Recommended" in run.output
    dry = CliRunner().invoke(app, ["extend", str(path), "--dry-run"])
    assert dry.exit_code == 0 and "Recommended" not in dry.output


def test_what_is_exported_is_what_was_measured(settings, model, tmp_path, monkeypatch):
    """Loaded by transformers alone, it loses what the report says; the card tells the curve."""
    from transformers import AutoModelForCausalLM

    path, out = tmp_path / "x.yaml", tmp_path / "longer"
    path.write_text(json.dumps(settings | {"methods": ["yarn"], "needles": {"count": 0}}))
    run = CliRunner().invoke(app, ["extend", str(path), "--out", str(out)])
    assert run.exit_code == 0, run.output
    assert f"{out}: rope-yarn, {L0} → {TO} tokens; load it with transformers" in run.output
    rows = read(tmp_path / "runs/extend/rows.jsonl")
    [row] = [row for row in rows if (row.scheme, row.length, row.probe) == ("yarn", TO, "suffix")]
    bench = bench_of(Extending(**settings), quiet)
    ids = torch.stack([one.ids[: TO + 1] for one in bench.texts])
    window = ids[:, :TO].clone()
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(out)(input_ids=window).logits[:, -16:]
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, TO - 15 : TO + 1].flatten())
    assert row.value == pytest.approx(float(wanted), abs=1e-4)
    assert f"| {TO} | yarn | {row.value:.4f} |" in (out / "README.md").read_text()
    assert CliRunner().invoke(app, ["doctor", str(out)]).exit_code == 0
    monkeypatch.setattr("lab.extend.run.extend", lambda *_: pytest.fail("it was measured again"))
    again = CliRunner().invoke(app, ["extend", str(path), "--out", str(out)])
    assert again.exit_code != 0 and "is there already" in str(again.exception)
