"""LongRoPE's search finds what was planted, keeps to its bounds, and ends the same after any interruption."""

import json
import math
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from lab import LabError
from lab.extend.longrope import PARENTS, POPULATION, Evaluated, Found, done, offspring, search
from lab.extend.longrope_factors import Individual, Space, bent, curve_of, straight

BASE, L0, FACTOR, N = 10000.0, 512, 8.0, 32
SPACE = Space(N, FACTOR, critical=16)
NTK = [FACTOR ** (i / (N - 1)) for i in range(N)]
RAMP = np.clip((np.arange(N) - 3) / (16 - 3), 0, 1)  # YaRN's, of a train length of 512 and a base of 10000
START = {
    "linear": [FACTOR] * N,
    "ntk": NTK,
    "yarn": (1 / (1 - RAMP + RAMP / FACTOR)).tolist(),
    "critical": list(SPACE.plain().factors),
}
TOLERANCE = 0.1 * math.log(BASE) * 2 / (2 * N)
"""A tenth of what lies between the frequencies of neighbouring lanes, as logarithms: 2.9 %. Nearer than that, factors
say which lane reads which distances; a critical lane that is off by one costs more than this by itself."""


def planted(seed: int) -> Individual:
    """What the published methods are far from: an early critical lane, factors that rise late or soon, bent below."""
    random = np.random.default_rng(seed)
    critical, power = int(random.integers(9, 15)), [0.3, 1, 3][seed % 3]
    shares = random.random(N - critical) ** power
    return SPACE.laid(critical, bent(straight, random.uniform(0.8, 1.5)), shares)


def distance(factors, from_) -> float:
    """Root mean square of the differences of logarithms."""
    return float(np.sqrt(np.mean(np.log(np.array(factors) / from_) ** 2)))


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_optimum_is_found_and_random_search_of_the_same_budget_comes_less_near(seed, tmp_path):
    wanted, budget = planted(seed).factors, 400
    fitness = partial(distance, from_=wanted)
    found = search(SPACE, START, fitness, budget=budget, path=tmp_path / "log.jsonl", seed=seed)
    assert found.best.cost == distance(found.best.factors, wanted) < TOLERANCE
    assert abs(found.best.individual.critical - planted(seed).critical) <= 1
    assert min(fitness(factors) for factors in START.values()) > 5 * TOLERANCE
    random = np.random.default_rng(seed)
    assert min(fitness(SPACE.drawn(random).factors) for _ in range(budget)) > 1.5 * TOLERANCE


def test_what_a_published_method_has_already_is_not_lost(tmp_path):
    for name, factors in START.items():
        fitness = partial(distance, from_=factors)
        found = search(SPACE, START, fitness, budget=30, path=tmp_path / f"{name}.jsonl")
        assert (found.best.origin, found.best.factors, found.best.cost) == (name, list(factors), 0)


def test_published_lists_are_tried_first_and_as_they_are(tmp_path):
    tried = []
    search(SPACE, START, lambda factors: tried.append(factors) or 1.0, budget=len(START), path=tmp_path / "log.jsonl")
    assert tried == list(START.values())


# Bounds


@pytest.fixture(scope="module")
def history(tmp_path_factory) -> list[Evaluated]:
    """Pulled to where bounds are: lanes of 1, and beyond twice the factor."""
    wanted = [1.0] * (N // 2) + [100.0] * (N // 2)
    path = tmp_path_factory.mktemp("bounds") / "log.jsonl"
    return search(SPACE, START, partial(distance, from_=wanted), budget=150, path=path).history


def test_factors_never_fall_from_lane_to_lane_and_start_at_one_or_more(history):
    for one in history:
        assert len(one.factors) == N
        assert (np.diff(one.factors) >= -1e-12).all()
        assert one.factors[0] >= 1


def test_children_interpolate_all_of_it_from_the_critical_lane_on_and_at_most_twice(history):
    for one in history[len(START) :]:
        slow = np.array(one.factors[one.individual.critical :])
        assert (slow >= FACTOR * (1 - 1e-12)).all()
        assert (slow <= 2 * FACTOR * (1 + 1e-12)).all()
    assert history[-1].factors[-1] == pytest.approx(2 * FACTOR)  # pulled beyond, it stays at the bound


def test_no_list_is_tried_twice(history):
    assert len({one.individual for one in history}) == len(history)


def test_the_critical_lane_is_searched_around_the_theoretical_one(history):
    drawn = {one.individual.critical for one in history if one.origin == "drawn"}
    assert len(drawn) > 4
    assert all(abs(lane - SPACE.critical) <= N // 4 for lane in drawn)


def test_below_the_critical_lane_drawn_factors_rise_as_ntks_do(history):
    for one in history:
        if one.origin == "drawn":
            c = one.individual.critical
            assert one.factors[:c] == pytest.approx([one.factors[c] ** (i / c) for i in range(c)])


def test_position_interpolation_and_ntk_are_in_the_space_at_its_ends():
    assert list(SPACE.laid(0, straight, np.zeros(N)).factors) == START["linear"]
    assert SPACE.laid(N - 1, straight, np.zeros(1)).factors == pytest.approx(NTK)


def test_published_lists_have_the_critical_lane_at_which_they_interpolate_all():
    assert {name: SPACE.given(factors).critical for name, factors in START.items()} == {
        "linear": 0,
        "ntk": N - 1,
        "yarn": 16,
        "critical": 16,
    }


def test_a_curve_below_the_critical_lane_survives_a_move_of_that_lane():
    yarn = SPACE.given(START["yarn"])
    moved = SPACE.laid(16, curve_of(yarn), np.zeros(N - 16))
    assert moved.factors == pytest.approx(START["yarn"])
    ntk = SPACE.given(NTK)
    assert SPACE.laid(10, curve_of(ntk), np.zeros(N - 10)).factors[:10] == pytest.approx(
        [FACTOR ** (i / 10) for i in range(10)]
    )


def test_a_critical_lane_beyond_the_last_is_the_last():
    assert Space(8, 4.0, critical=11).critical == 7


def test_a_child_of_two_has_each_lane_from_one_of_them():
    random = np.random.default_rng(0)
    a, b = SPACE.laid(10, straight, np.full(N - 10, 0.1)), SPACE.laid(12, straight, np.full(N - 12, 0.9))
    for _ in range(20):
        child = SPACE.crossed(a, b, random)
        assert child.critical in (10, 12)
        own = {*a.factors[child.critical :], *b.factors[child.critical :], FACTOR}  # FACTOR: for less than it
        assert all(min(abs(one - wanted) for wanted in own) < 1e-9 for one in child.factors[child.critical :])


def test_only_the_best_have_children():
    """Costs fall with the number of the individual, so that the last ones are the best."""
    lists = [SPACE.drawn(np.random.default_rng(n)) for n in range(POPULATION)]
    history = [Evaluated(n, "drawn", one, float(-n)) for n, one in enumerate(lists)]
    best = {str(n) for n in range(POPULATION - PARENTS, POPULATION)}
    random = np.random.default_rng(0)
    named = [offspring(SPACE, history, random)[0].removeprefix("of ").split(" and ") for _ in range(100)]
    assert {name for one in named for name in one} == best
    assert {len(one) for one in named} == {1, 2}


# The same again, or not


def run(path: Path, budget: int = 40, seed: int = 0) -> Found:
    return search(SPACE, START, partial(distance, from_=planted(7).factors), budget=budget, path=path, seed=seed)


def test_a_seed_gives_the_same_search_and_another_seed_another(tmp_path):
    first, again, other = run(tmp_path / "a"), run(tmp_path / "b"), run(tmp_path / "c", seed=1)
    assert first == again
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert first.history[: len(START)] == other.history[: len(START)]
    assert not {one.individual for one in first.history[len(START) :]} & {one.individual for one in other.history[4:]}


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from test_longrope import START, SPACE, distance, planted
from lab.extend.longrope import search
wanted, asked = planted(7).factors, []
def fitness(factors):
    asked.append(factors)
    if len(asked) == 23:
        os.kill(os.getpid(), signal.SIGKILL)
    return distance(factors, wanted)
search(SPACE, START, fitness, budget=40, path=Path({path!r}))
"""


def test_killed_and_started_again_it_ends_as_it_would_have_ended(tmp_path):
    code = KILLED.format(tests=str(Path(__file__).parent), path=str(tmp_path / "killed"))
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert done(tmp_path / "killed") == 22
    assert run(tmp_path / "killed") == run(tmp_path / "whole")
    assert (tmp_path / "killed").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("cut", [1, 40, 3000])
def test_wherever_a_crash_cuts_the_file_the_search_ends_the_same(tmp_path, cut):
    whole, path = run(tmp_path / "whole"), tmp_path / "cut"
    path.write_bytes((tmp_path / "whole").read_bytes()[:-cut])
    assert run(path) == whole


def test_what_is_in_the_file_is_not_evaluated_again(tmp_path):
    asked = []

    def fitness(factors):
        asked.append(factors)
        return distance(factors, planted(7).factors)

    search(SPACE, START, fitness, budget=20, path=tmp_path / "log")
    search(SPACE, START, fitness, budget=25, path=tmp_path / "log")
    assert len(asked) == 25


def test_a_larger_budget_goes_on_where_a_smaller_one_ended(tmp_path):
    short = run(tmp_path / "log", budget=25)
    longer = run(tmp_path / "log", budget=40)
    assert longer == run(tmp_path / "whole", budget=40)
    assert longer.history[:25] == short.history
    assert run(tmp_path / "log", budget=25) == short


def test_progress_is_told_of_each_new_individual_and_the_least_cost(tmp_path):
    told = []
    costs = iter([5.0, 3.0, math.nan, 4.0, 2.0])
    search(
        SPACE,
        START,
        lambda factors: next(costs),
        budget=5,
        path=tmp_path / "log",
        advance=lambda one, least: told.append((one.number, least)),
    )
    assert told == [(0, 5), (1, 3), (2, 3), (3, 3), (4, 2)]


# What cannot be


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_cost_that_is_no_number_is_the_worst_and_stops_nothing(tmp_path, bad):
    def fitness(factors):
        return bad if factors[0] > 1 or factors == NTK else 1e9

    found = search(SPACE, START, fitness, budget=20, path=tmp_path / "log")
    assert found.history[0].cost == found.history[1].cost == math.inf  # linear, ntk
    assert found.best.origin == "yarn"
    for line in (tmp_path / "log").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert search(SPACE, START, fitness, budget=20, path=tmp_path / "log") == found


def test_where_no_cost_is_a_number_it_says_so(tmp_path):
    with pytest.raises(LabError, match="none of 6 lists of factors costs a finite number of nats"):
        search(SPACE, START, lambda factors: math.nan, budget=6, path=tmp_path / "log")


def test_a_budget_below_the_starting_lists_is_refused_before_anything_is_evaluated(tmp_path):
    with pytest.raises(LabError, match=r"budget of 3 evaluations .* the 4 .* \(linear, ntk, yarn, critical\): write"):
        search(SPACE, START, lambda factors: pytest.fail("evaluated"), budget=3, path=tmp_path / "log")
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_target_within_the_train_length_is_refused(factor):
    with pytest.raises(LabError, match="which is within: nothing is to be searched. Write a longer target"):
        Space(N, factor, 16)


def test_a_space_with_nothing_to_vary_is_refused():
    with pytest.raises(LabError, match="must be above 1"):
        Space(N, FACTOR, 16, most=1.0)


def test_a_file_of_another_search_is_not_continued(tmp_path):
    run(tmp_path / "log")
    with pytest.raises(LabError, match=r"log is of a search with another seed: rename or delete it to begin anew"):
        run(tmp_path / "log", seed=1)
    with pytest.raises(LabError, match="with another space and another start:"):
        space = Space(N, 4.0, 16)
        start = {"linear": [4.0] * N}
        search(space, start, lambda factors: 1.0, budget=9, path=tmp_path / "log")
    with pytest.raises(LabError, match="with another model:"):
        search(SPACE, START, lambda factors: 1.0, budget=9, path=tmp_path / "log", about={"model": "another"})
