"""A comparison, small: the same tokens for every encoding, rows that say what they are, trackers that mirror them."""

import dataclasses
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tiny_runs import ROOT, config, environment, launch, tiny

import lab.train
from lab import LabError
from lab.compare import compare, parts_of
from lab.config import read as read_config
from lab.evaluate import outcomes
from lab.rows import Row, read
from lab.settings import Run
from lab.train import accelerator_for

SIX = ["nope", "sinusoidal", "learned", "relative", "alibi", "rope"]
SWAPS = ["rope-linear", "rope-ntk"]
RUNS = (
    f"compare.runs=[{', '.join(f'{{train: {kind}}}' for kind in SIX[:-1])}, "
    "{train: rope, swap: [{kind: rope-linear, factor: auto}, {kind: rope-ntk, factor: auto}]}]"
)
TWO = "compare.runs=[{train: nope}, {train: rope, swap: [{kind: rope-ntk, factor: auto}]}]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def six(folder) -> tuple[Run, list[Row]]:
    run = tiny(folder, "name=six", RUNS)
    assert compare(run) == run.path / "compare"
    return run, read(run.path / "compare/rows.jsonl")


def perplexity(rows: list[Row]) -> dict[str, dict[int, Row]]:
    """scheme -> length -> row."""
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        if (row.probe, row.metric) == ("perplexity", "nats") and row.seed is not None:
            found.setdefault(row.scheme, {})[row.length] = row
    return found


# What a comparison leaves


def test_a_comparison_leaves_rows_a_table_and_a_figure_of_each_probe(six):
    run, rows = six
    drawn = {f"{probe}.png" for probe in ("perplexity", "position", "gain", "copyable")}
    assert {path.name for path in (run.path / "compare").iterdir()} == {"rows.jsonl", "table.md", *drawn}
    assert all((run.path / "compare" / name).stat().st_size > 20_000 for name in drawn)
    assert {row.probe for row in rows} == {"perplexity", "position", "gain", "copyable", "reach"}
    assert {path.name for path in run.path.iterdir()} == {"compare", *(f"{kind}-seed0" for kind in SIX)}


def test_every_encoding_is_scored_on_as_many_tokens_at_every_length(six):
    table = perplexity(six[1])
    assert list(table) == [*SIX, *SWAPS]
    for scheme, line in table.items():
        assert list(line) == [16, 32, 64]
        wanted = [96, 0, 0] if scheme == "learned" else [96, 96, 96]
        assert [row.count for row in line.values()] == wanted


def test_every_encoding_is_scored_on_the_same_tokens_of_the_same_documents(six):
    read = set()
    for _, part in parts_of(six[0]):
        for outcome in outcomes(part, accelerator_for(part)):
            which = outcome.measured.plan
            assert len(which.documents) == 3
            for at, record in [(n, record) for n in range(3) for record in which.records() if record[0] == "equal"]:
                target, _ = outcome.measured.targets(record, at)
                read.add((at, tuple(which.documents[at].ids[target].tolist()), tuple(target.tolist())))
    assert len(read) == 3


def test_encodings_differ_in_what_they_lose(six):
    values = [line[16].value for scheme, line in perplexity(six[1]).items() if scheme not in SWAPS]
    assert len(set(values)) == 6 and all(3 < value < 7 for value in values)


def test_learned_has_no_value_beyond_its_table_but_a_reason(six):
    line = perplexity(six[1])["learned"]
    assert line[16].value is not None and line[16].note == ""
    assert all(line[n].value is None and line[n].note == "takes at most 16 tokens" for n in (32, 64))
    written = [json.loads(text) for text in (six[0].path / "compare/rows.jsonl").read_text().splitlines()]
    probes = {
        (row["probe"], row["metric"]): row["value"]
        for row in written
        if row["scheme"] == "learned" and row["length"] == 32
    }
    assert probes == {("perplexity", "nats"): None, ("perplexity", "bits per byte"): None, ("position", "nats"): None}


def test_swapped_rows_are_named_by_their_kind_and_say_what_was_trained(six):
    for row in six[1]:
        assert row.trained_as == ("rope" if row.scheme in SWAPS else row.scheme)
        assert row.run == ("six" if row.probe == "reach" else f"{row.trained_as}-seed0")


def test_at_the_training_length_the_automatic_factors_are_plain_rope(six):
    table = perplexity(six[1])
    for scheme in SWAPS:
        assert table[scheme][16].value == pytest.approx(table["rope"][16].value, abs=1e-6)
        assert table[scheme][64].value != pytest.approx(table["rope"][64].value, abs=1e-6)


def test_a_row_has_exactly_these_fields(six):
    wanted = "run scheme trained_as seed probe metric length value count note low high".split()
    assert [field.name for field in dataclasses.fields(Row)] == wanted
    for text in (six[0].path / "compare/rows.jsonl").read_text().splitlines():
        assert list(json.loads(text)) == wanted


def test_no_two_rows_measure_the_same(six):
    assert len({row.what for row in six[1]}) == len(six[1])


def test_by_place_there_is_a_row_an_octave(six):
    rope = {row.length: row for row in six[1] if row.probe == "position" and row.scheme == "rope"}
    assert {n: row.count for n, row in rope.items()} == {1: 3, 2: 3, 4: 6, 8: 12, 16: 24, 32: 48, 64: 96}


def test_the_table_is_that_of_the_rows(six):
    run, rows = six
    lines = (run.path / "compare/table.md").read_text().splitlines()
    assert lines[0] == "| nats per token | 16 (1×) | 32 (2×) | 64 (4×) |"
    table = perplexity(rows)
    for scheme, line in zip([*SIX, *SWAPS], lines[2:], strict=False):
        name = f"rope → {scheme}" if scheme in SWAPS else scheme
        values = ["–" if row.value is None else f"{row.value:.3f} ±{reach(row):.3f}" for row in table[scheme].values()]
        assert line == f"| {' | '.join([name, *values])} |"
    note = "96 scored tokens, the same at every length; 1 seed(s). ± is a 95 % interval of each by itself.  "
    assert note in lines and "– learned: takes at most 16 tokens.  " in lines
    # Below it what may be said of the differences, and what is to be kept in mind.
    assert [line.split(":")[0] for line in lines if " tokens: " in line] == ["16 tokens", "32 tokens", "64 tokens"]
    assert "3 documents: intervals from fewer than 6 cover less than 95 %; use 30 or more  " in lines
    assert any(line.startswith("1 training seed: ") for line in lines)


def reach(row: Row) -> float:
    """How far an interval reaches on the wider side."""
    return max(row.value - row.low, row.high - row.value)


def test_how_far_each_encoding_reads_is_a_row(six):
    found = {(row.trained_as, row.scheme, row.metric): row for row in six[1] if row.probe == "reach"}
    lines = {(row.trained_as, row.scheme) for row in six[1] if row.probe == "perplexity"}
    metrics = [name + by for name in ("L_ppl(0.02)", "L_gain") for by in ("", ", by the means alone")]
    assert set(found) == {(*line, metric) for line in lines for metric in metrics}
    for (_, scheme, metric), row in found.items():
        assert row.value in (0, 16, 32, 64) and (row.length, row.seed) == (64, 0)
        assert {row.low, row.high} <= {None, 0, 16, 32, 64}
        if scheme == "learned":
            assert row.value == (16 if metric.startswith("L_ppl(0.02)") else 0)


def test_nothing_is_written_for_a_tracker_when_there_is_none(six):
    assert not [path for path in six[0].path.rglob("*") if "wandb" in path.name or "tfevents" in path.name]


def contents(run: Run) -> dict[str, bytes]:
    return {name: (run.path / "compare" / name).read_bytes() for name in ("rows.jsonl", "table.md")}


def test_a_comparison_again_trains_nothing_and_runs_no_model(six, monkeypatch):
    run, rows = six
    before = contents(run)
    monkeypatch.setattr(lab.train, "one_step", lambda *_: pytest.fail("trained again"))
    monkeypatch.setattr("eval.scorer.score", lambda *_, **__: pytest.fail("a forward pass"))
    compare(run)
    assert contents(run) == before


def test_a_line_more_trains_that_line_alone(folder, monkeypatch):
    compare(tiny(folder, "name=more", "compare.runs=[{train: nope}]"))
    trained, real = [], lab.train.one_step
    monkeypatch.setattr(lab.train, "one_step", lambda run, *rest: trained.append(run.name) or real(run, *rest))
    compare(tiny(folder, "name=more", "compare.runs=[{train: nope}, {train: alibi}]"))
    assert set(trained) == {"alibi-seed0"}


def test_fewer_lengths_leave_no_row_of_other_tokens(folder):
    """The targets hang on the longest length; rows of two measurements in one table could not be compared."""
    compare(tiny(folder, "name=shorter", TWO))
    run = tiny(folder, "name=shorter", TWO, "eval.lengths=[1x, 2x]")
    compare(run)
    rows = [row for row in read(run.path / "compare/rows.jsonl") if row.probe == "perplexity"]
    rows = [row for row in rows if row.metric == "nats"]
    assert {row.count for row in rows} == {48} and {row.length for row in rows} == {16, 32}


def test_a_swap_taken_out_leaves_no_row(folder):
    compare(tiny(folder, "name=unswapped", TWO))
    run = tiny(folder, "name=unswapped", "compare.runs=[{train: nope}, {train: rope}]")
    compare(run)
    assert {row.scheme for row in read(run.path / "compare/rows.jsonl")} == {"nope", "rope"}


def test_an_encoding_written_twice_is_not_counted_twice(folder):
    run = tiny(folder, "name=twice", "compare.runs=[{train: nope}, {train: nope}]")
    try:
        compare(run)
    except LabError:
        return  # to refuse it is as good
    rows = read(run.path / "compare/rows.jsonl")
    assert len({row.what for row in rows}) == len(rows)


def test_two_seeds_are_two_runs_and_one_line_with_its_spread(folder):
    run = tiny(folder, "name=seeds", TWO, "compare.seeds=[0, 3]")
    compare(run)
    rows = read(run.path / "compare/rows.jsonl")
    of_one = {f"{kind}-seed{seed}" for kind in ("nope", "rope") for seed in (0, 3)}
    assert {row.run for row in rows} == {*of_one, "seeds"}
    assert all((row.run == "seeds") if row.seed is None else row.run.endswith(f"-seed{row.seed}") for row in rows)
    nope = [
        row for row in rows if (row.scheme, row.probe, row.metric, row.length) == ("nope", "perplexity", "nats", 16)
    ]
    a, b, both = nope
    assert (a.seed, b.seed, both.seed) == (0, 3, None) and a.value != b.value
    assert both.value == pytest.approx((a.value + b.value) / 2) and both.count == a.count + b.count == 192
    assert both.low < min(a.value, b.value) < max(a.value, b.value) < both.high
    lines = (run.path / "compare/table.md").read_text().splitlines()
    assert lines[2].startswith(f"| nope | {both.value:.3f} ±{reach(both):.3f} |") and len(lines[2:5]) == 3
    assert any(line.startswith("96 scored tokens") and "2 seed(s)" in line for line in lines)
    assert {row.seed for row in rows if row.probe == "reach"} == {None}
    assert not {row.what for row in rows if row.seed is None} & {row.what for row in rows if row.seed is not None}


def test_the_same_seed_gives_the_same_rows_in_another_folder(six, folder):
    run = tiny(folder, "name=elsewhere", TWO)
    compare(run)
    wanted = [row for row in six[1] if row.scheme in ("nope", "rope", "rope-ntk")]
    assert by_what(read(run.path / "compare/rows.jsonl")) == by_what(wanted)


def by_what(rows: list[Row]) -> dict[tuple, Row]:
    """Without the name of the comparison, which rows over all of it carry."""
    found = {(row.scheme, row.seed, row.probe, row.metric, row.length): row for row in rows}
    assert len(found) == len(rows)
    return {key: dataclasses.replace(row, run="" if row.probe == "reach" else row.run) for key, row in found.items()}


def test_one_encoding_with_two_options_is_two_lines(folder):
    both = "compare.runs=[{train: {kind: rope-linear, factor: 1}}, {train: {kind: rope-linear, factor: 2}}]"
    run = tiny(folder, "name=options", both)
    compare(run)
    names = {row.scheme: row.run for row in read(run.path / "compare/rows.jsonl") if row.probe != "reach"}
    assert len(names) == 2 and len(set(names.values())) == 2


def test_a_swap_that_needs_training_has_a_note_and_no_value(folder):
    run = tiny(folder, "name=needs", "compare.runs=[{train: nope, swap: [learned, alibi]}]")
    compare(run)
    table = perplexity(read(run.path / "compare/rows.jsonl"))
    assert {(row.value, row.count, row.note) for row in table["learned"].values()} == {
        (None, 0, "needs training: table")
    }
    assert all(row.value is not None for row in table["alibi"].values())
    assert "– nope → learned: needs training: table." in (run.path / "compare/table.md").read_text()


def test_a_swap_leaves_the_trained_encoding_as_it_was_for_the_next(folder):
    """`relative` learns a bias; a swap to alibi and back must find it again."""
    line = "compare.runs=[{train: relative, swap: [alibi, {kind: relative, buckets: 32}]}]"
    run = tiny(folder, "name=back", line)
    compare(run)
    table = perplexity(read(run.path / "compare/rows.jsonl"))
    own, alibi, back = table.values()
    assert [row.value for row in back.values()] == [row.value for row in own.values()]
    assert [row.value for row in alibi.values()] != [row.value for row in own.values()]


def test_a_comparison_by_published_protocols_has_their_tables_and_no_verdict(folder):
    """Nothing promises there that the same tokens are scored at every length."""
    run = tiny(folder, "name=published", TWO, "eval.protocols=[hf-stride, yarn-prefix]", "eval.stride=8")
    compare(run)
    rows = read(run.path / "compare/rows.jsonl")
    assert {row.probe for row in rows} == {"hf-stride", "yarn-prefix"}
    assert {path.name for path in (run.path / "compare").glob("*.png")} == {"hf-stride.png", "yarn-prefix.png"}
    text = (run.path / "compare/table.md").read_text()
    assert "| hf-stride, nats per token | 16 (1×) |" in text and "loses least" not in text
    assert all(row.value is not None for row in rows)
    whole = {row.count for row in rows if row.probe == "hf-stride"}
    assert len(whole) == 1 and whole.pop() > 3 * 64  # documents to their ends


def test_lengths_beyond_every_table_leave_dashes_and_no_error(folder):
    run = tiny(folder, "name=beyond", "compare.runs=[{train: learned}, {train: nope}]", "eval.lengths=[2x, 4x]")
    compare(run)
    table = perplexity(read(run.path / "compare/rows.jsonl"))
    assert {row.value for row in table["learned"].values()} == {None}
    assert all(row.value is not None for row in table["nope"].values())


def test_a_swap_that_needs_training_has_a_dash_for_each_protocol(folder):
    line = "compare.runs=[{train: nope, swap: [learned]}]"
    run = tiny(
        folder, "name=needs-too", line, "eval.protocols=[equal, position, yarn-prefix]", "eval.lengths=[1x, 2x, 16]"
    )
    compare(run)
    rows = [row for row in read(run.path / "compare/rows.jsonl") if row.scheme == "learned"]
    assert [(row.probe, row.length, row.value) for row in rows] == [
        (probe, length, None) for probe in ("perplexity", "yarn-prefix") for length in (16, 32)
    ]


# Trackers


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    """A comparison tracked by wandb where nobody has ever logged in."""
    folder = tmp_path_factory.mktemp("wandb")
    path, home = config(folder), folder / "home"
    home.mkdir()
    alone = {name: None for name in os.environ if name.startswith("WANDB_")} | {"HOME": str(home), "NETRC": None}
    done = launch("compare", path, "name=mirrored", "track=wandb", TWO, **alone)
    return folder / "runs/mirrored", done


def records(folder: Path) -> list[dict]:
    """What wandb itself reads from the files of one run."""
    (log,) = folder.glob("run-*.wandb")
    tool = Path(sys.executable).with_name("wandb")
    done = subprocess.run(
        [tool, "leet", "inspect", "--json", log], env=environment(), capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def wandb_runs(mirrored) -> dict[str, tuple[Path, list[dict]]]:
    """Name -> the folder and the records of each run that is kept offline."""
    found = {}
    for folder in mirrored[0].glob("*/wandb/offline-run-*"):
        read_back = records(folder)
        (run,) = (record["run"] for record in read_back if record["type"] == "run")
        assert run["display_name"] not in found
        found[run["display_name"]] = folder, read_back
    return found


def history(records: list[dict], *keys: str) -> list[tuple]:
    items = [record["history"]["item"] for record in records if record["type"] == "history"]
    return [tuple(item[key] for key in keys) for item in items if all(key in item for key in keys)]


def test_wandb_without_a_login_stays_offline_and_says_so_once(mirrored):
    folder, done = mirrored
    assert done.returncode == 0, done.stderr
    said = "wandb: not logged in, runs are kept offline; `wandb sync "
    assert done.stderr.count(said) == 1 and f"{folder}/*/wandb/offline-run-*" in done.stderr


def test_wandb_has_a_run_an_encoding_and_one_of_the_comparison(wandb_runs):
    assert set(wandb_runs) == {"nope-seed0", "rope-seed0", "rope-seed0 rope-ntk", "compare"}


def test_wandb_groups_the_runs_of_a_comparison_under_its_name(wandb_runs):
    for _, read_back in wandb_runs.values():
        (run,) = (record["run"] for record in read_back if record["type"] == "run")
        assert (run["run_group"], run["project"]) == ("mirrored", "context-lab")


def test_wandb_history_holds_the_values_of_the_rows(mirrored, wandb_runs):
    rows = read(mirrored[0] / "compare/rows.jsonl")
    for name, scheme in {"nope-seed0": "nope", "rope-seed0": "rope", "rope-seed0 rope-ntk": "rope-ntk"}.items():
        for probe in ("perplexity", "position"):
            of_probe = [row for row in rows if (row.scheme, row.probe, row.metric) == (scheme, probe, "nats")]
            wanted = [(row.length, row.value) for row in of_probe]
            assert history(wandb_runs[name][1], "eval/length", f"eval/{probe}/nats") == wanted
            assert len(wanted) > 2


def test_wandb_history_holds_the_log_of_training(mirrored, wandb_runs):
    for name in ("nope-seed0", "rope-seed0"):
        log = [json.loads(line) for line in (mirrored[0] / name / "train.jsonl").read_text().splitlines()]
        wanted = [(line["step"], line["loss"], line["lr"], line["grad_norm"]) for line in log]
        keys = "train/step", "train/loss", "train/lr", "train/grad_norm"
        assert history(wandb_runs[name][1], *keys) == wanted
    assert history(wandb_runs["rope-seed0 rope-ntk"][1], "train/loss") == []


def test_wandb_draws_over_context_length_and_over_steps(wandb_runs):
    metrics = [record["metric"] for record in wandb_runs["rope-seed0"][1] if record["type"] == "metric"]
    assert {(one["glob_name"], one["step_metric"]) for one in metrics if "glob_name" in one} >= {
        ("eval/*", "eval/length"),
        ("train/*", "train/step"),
    }


def test_wandb_has_the_settings_and_the_data(mirrored, wandb_runs):
    update = {}
    for record in wandb_runs["rope-seed0"][1]:
        update |= record["config"]["update"] if record["type"] == "config" else {}
    data = json.loads((mirrored[0] / "rope-seed0/data.json").read_text())
    wanted = {"model.positional": "rope", "model.width": 32, "train.length": 16, "train.lr": 0.003, "seed": 0}
    assert wanted.items() <= update.items()
    assert data["sha256"] in update.values()


def test_wandb_has_a_table_of_the_rows(mirrored, wandb_runs):
    rows = read(mirrored[0] / "compare/rows.jsonl")
    wanted = {
        "nope-seed0": [row for row in rows if (row.run, row.scheme) == ("nope-seed0", "nope")],
        "rope-seed0": [row for row in rows if (row.run, row.scheme) == ("rope-seed0", "rope")],
        "rope-seed0 rope-ntk": [row for row in rows if (row.run, row.scheme) == ("rope-seed0", "rope-ntk")],
        "compare": rows,
    }
    for name, (folder, _) in wandb_runs.items():
        (path,) = (folder / "files/media/table").glob("rows_*.table.json")
        table = json.loads(path.read_text())
        assert table["columns"] == [field.name for field in dataclasses.fields(Row)]
        assert [Row(*line) for line in table["data"]] == wanted[name]


def test_wandb_has_the_figures(wandb_runs):
    for probe in ("perplexity", "position", "gain"):
        (path,) = (wandb_runs["compare"][0] / "files/media/images").glob(f"{probe}_*.png")
        assert path.read_bytes()[:4] == b"\x89PNG"


def test_what_wandb_shows_changes_no_number(mirrored, folder):
    run = tiny(folder, "name=unmirrored", TWO)
    compare(run)
    assert by_what(read(run.path / "compare/rows.jsonl")) == by_what(read(mirrored[0] / "compare/rows.jsonl"))


@pytest.mark.skipif(find_spec("tensorboard") is not None, reason="tensorboard is installed")
def test_tensorboard_without_its_package_is_told_how_to_get_it(folder):
    run = tiny(folder, "name=board", "track=tensorboard", TWO)
    with pytest.raises(LabError) as caught:
        compare(run)
    assert str(caught.value) == ("track: tensorboard needs its package: pip install tensorboard, or write track: none")
    assert not run.path.exists()  # said before any work


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_writes_a_file_of_events_for_each_encoding(folder):
    run = tiny(folder, "name=board", "track=tensorboard", TWO)
    compare(run)
    assert {path.relative_to(run.path).parts[:2] for path in run.path.rglob("events.out.tfevents*")} >= {
        ("nope-seed0", "curves"),
        ("rope-seed0", "curves"),
        ("rope-seed0", "rope-ntk"),
    }


# The picture


@pytest.fixture(scope="module")
def picture(tmp_path_factory) -> dict[str, dict[int, float | None]]:
    """The quickstart as it is shipped: scheme -> times the training length -> nats. Minutes."""
    folder = tmp_path_factory.mktemp("quickstart")
    run = read_config(ROOT / "configs/quickstart.yaml", [f"folder={folder}", f"data.cache={folder}/data", "track=none"])
    table = perplexity(read(compare(run) / "rows.jsonl"))
    return {scheme: {n // run.train.length: row.value for n, row in line.items()} for scheme, line in table.items()}


@pytest.mark.slow
def test_alibi_reads_sixteen_times_its_training_length_without_loss(picture):
    assert picture["alibi"][16] <= picture["alibi"][1] + 0.05


@pytest.mark.slow
def test_rope_fails_beyond_its_training_length(picture):
    assert picture["rope"][16] >= picture["rope"][1] + 0.3


@pytest.mark.slow
def test_an_extension_reads_further_than_plain_rope(picture):
    assert picture["rope-ntk"][2] < picture["rope"][2]
    assert min(picture["rope-linear"][4], picture["rope-ntk"][4]) < picture["rope"][4]


@pytest.mark.slow
def test_sinusoidal_fails_beyond_its_training_length(picture):
    assert picture["sinusoidal"][16] >= picture["sinusoidal"][1] + 0.5


@pytest.mark.slow
def test_learned_ends_at_its_training_length(picture):
    assert picture["learned"][1] is not None
    assert [picture["learned"][n] for n in (2, 4, 8, 16)] == [None] * 4
