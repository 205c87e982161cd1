"""One task asked in several ways: rows, figures and reaches of each under a name of its own."""

import pytest
from test_retrieval import BYTES, Finder
from test_rows import row
from tiny_runs import tiny

import eval.draw
from eval import EvalError
from eval.asked import Questions, Session, retention
from eval.draw import figures
from eval.entries import Asked, named
from eval.report import asking, by_ruler
from eval.store import Store
from lab import LabError
from lab.evaluate import evaluate
from lab.figure import figures as figures_of_rows
from lab.rows import read
from lab.train import accelerator_for, train


def keyed(**options) -> Asked:
    return Asked("niah-multi-key", 4, options=options)


def names(*tasks: Asked) -> list[str]:
    return [one.name for one in named(tasks)]


def test_a_task_that_is_asked_once_goes_by_itself_whatever_its_options():
    assert names(keyed(keys=8), Asked("grid", depths=5), Asked("niah")) == ["niah-multi-key", "grid", "niah"]
    assert named([keyed(keys=8)]) == [keyed(keys=8)]


def test_what_is_not_as_by_default_tells_entries_of_one_task_apart():
    assert names(keyed(), keyed(keys=8), Asked("niah"), keyed(keys=8, depth=0.5)) == [
        "niah-multi-key",
        "niah-multi-key(keys=8)",
        "niah",
        "niah-multi-key(depth=0.5, keys=8)",
    ]
    assert names(Asked("grid", depths=3), Asked("grid")) == ["grid(depths=3)", "grid"]


def test_a_name_hangs_neither_on_the_order_of_options_nor_on_what_stands_beside():
    assert named([keyed(depth=0.5, keys=8), keyed()])[0].name == named([keyed(), keyed(keys=8, depth=0.5)])[1].name
    assert named([keyed(keys=8), keyed(keys=2), keyed()])[0].name == "niah-multi-key(keys=8)"


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        (keyed(keys=8), keyed(keys=8), "niah-multi-key(keys=8)"),
        (keyed(), keyed(keys=4), "niah-multi-key"),  # which is the default
        (Asked("niah", 50), Asked("niah", 100), "niah"),
        (Asked("niah", depths=3), Asked("niah", depths=5), "niah"),  # which only a grid has
        (Asked("grid", 20, 5), Asked("grid", 30, 5), "grid(depths=5)"),
    ],
)
def test_what_asks_the_same_twice_is_refused(one, other, name):
    with pytest.raises(EvalError) as caught:
        Questions([one, Asked("passkey"), other], [128], BYTES)
    assert str(caught.value) == (
        f"tasks 1 and 3 of the list both ask {name}: keep one of them, with the larger count, or give them different "
        "options"
    )


def test_numbers_go_by_the_name_from_the_question_to_the_rule(tmp_path):
    tasks = keyed(), keyed(keys=1, depth=0.0), Asked("grid", 2, 2), Asked("grid", 2, 3)
    asked = Session(Questions(tasks, [128], BYTES), Store(tmp_path), "a model", limit=None)
    asked.ask(Finder(5, 60), prefix_consistent=False)
    found, entries = list(asked.points()), asked.questions.tasks
    assert [(p.probe, p.count) for p in found if p.metric == "exact"] == [
        ("niah-multi-key", 4),
        ("niah-multi-key(depth=0.0, keys=1)", 4),
        ("grid(depths=2)", 4),
        ("grid(depths=3)", 6),
    ]
    # Of 60 tokens back: nothing that lies at the beginning of 128.
    assert next(p.value for p in found if p.probe == "niah-multi-key(depth=0.0, keys=1)") == 0
    assert asking(entries, [128], []).startswith(
        "4 × niah-multi-key, 4 × niah-multi-key(depth=0.0, keys=1), 2 × grid(depths=2), 2 × grid(depths=3) at 128"
    )
    [shown, _] = retention(entries[2], [asked.hits(entries[2])], 128)
    assert shown.metric == "L_ret(0.85) grid(depths=2)"
    assert "niah-multi-key(depth=0.0, keys=1), grid(depths=2), grid(depths=3)" in by_ruler(found, entries)


def test_each_grid_has_a_heat_map_of_its_own(tmp_path, monkeypatch):
    drawn = []

    def note(squares, path, title, _):
        drawn.append((len(squares), path.name, title))

    monkeypatch.setattr(eval.draw, "heatmap", note)
    asked = Session(Questions([Asked("grid", 1, 2), Asked("grid", 1, 3)], [128], BYTES), Store(tmp_path), "a model")
    asked.ask(Finder(5), prefix_consistent=False)
    figures(list(asked.points()), tmp_path)
    assert drawn == [
        (2, "grid-depths-2-by-depth.png", "grid(depths=2): answers with every token right, %"),
        (3, "grid-depths-3-by-depth.png", "grid(depths=3): answers with every token right, %"),
    ]
    assert (tmp_path / "grid-depths-2.png").exists() and (tmp_path / "grid-depths-3.png").exists()


def test_the_figures_of_a_run_are_called_after_all_that_they_show(tmp_path):
    rows = [row(length=32, value=0.5, probe=name, metric="exact") for name in ("grid", "niah(depth=0.5)")]
    rows += [row(length=32, value=0.5, probe=f"grid{one}", metric="exact at depth 0.50") for one in ("", "(depths=3)")]
    assert sorted(path.name for path in figures_of_rows(rows, tmp_path, 32)) == [
        "grid-depths-3-rope-seed-0.png",
        "grid-rope-seed-0.png",
        "grid.png",
        "niah-depth-0.5.png",
    ]


# Runs of the lab


def test_a_run_that_is_asked_a_task_in_two_ways_has_rows_of_both(tmp_path):
    tasks = "{task: niah, count: 2}, {task: niah, count: 2, options: {depth: 1.0}}, {task: passkey, count: 2}"
    run = tiny(tmp_path, "train.length=64", "train.steps=2", "eval.lengths=[64]", f"eval.tasks=[{tasks}]")
    train(run)
    rows = list(evaluate(run, accelerator_for(run)))
    assert read(run.path / "rows.jsonl") == rows
    assert [one.probe for one in rows if one.metric == "exact"] == ["niah", "niah(depth=1.0)", "passkey"]
    reached = {one.metric for one in rows if one.probe == "reach" and "(0.85)" in one.metric}
    assert {"L_ret(0.85) niah", "L_ret(0.85) niah(depth=1.0)"} <= reached


def test_a_configuration_that_asks_the_same_twice_is_refused_before_training(tmp_path):
    with pytest.raises(LabError) as caught:
        tiny(tmp_path, "eval.tasks=[{task: grid, depths: 5}, {task: grid, depths: 5, count: 20}]")
    assert (
        "eval.tasks: tasks 1 and 2 of the list both ask grid(depths=5): keep one of them, with the larger count, or "
        "give them different options"
    ) in str(caught.value)
