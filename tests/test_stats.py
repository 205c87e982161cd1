"""Intervals: numbers worked out by hand, and how often they hold the truth in data where it is known."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, norm, t

from eval import EvalError
from eval.lengths import Reach, l_gain, l_ppl, l_ret, ruler
from eval.resample import effective, widened
from eval.stats import bits_per_byte, cautions, curve, paired, rate, verdict, wilson

SIMULATIONS = 1000


def allowed(cases: int) -> tuple[float, float]:
    """How often an interval of 95 % holds the truth in so many cases, but for 1 chance in 1000: 926 … 971 of 1000."""
    return binom.interval(0.999, cases, 0.95)


def as_often(low, high, true=0.0) -> bool:
    """Whether so many intervals hold the truth as often as those of 95 % do."""
    least, most = allowed(len(low))
    return least <= held(low, high, true) <= most


def texts(seed: int, documents: int = 40, lengths: int = 3, difficulty: float = 0.35) -> tuple:
    """Sums and counts of documents that differ in difficulty and in size; the mean of all documents is 2 nats."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(100, 3000, (documents, 1)).repeat(lengths, 1).astype(float)
    mean = 2 + rng.normal(0, difficulty, (documents, 1)) + rng.normal(0, 0.05, (documents, lengths))
    return counts * mean + np.sqrt(counts) * rng.normal(0, 2.5, counts.shape), counts


def same(one, other) -> bool:
    return all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(vars(one).values(), vars(other).values(), strict=True)
    )


# Means


def test_a_mean_weighs_tokens_not_documents():
    assert curve([[10.0], [2.0]], [[5], [4]]).value == pytest.approx([12 / 9])


def test_the_interval_of_two_documents_ends_at_these():
    found = curve([[10.0], [2.0]], [[5], [5]])
    assert (found.low[0], found.high[0]) == (0.4, 2.0)


@pytest.mark.parametrize("documents", [10, 40, 200])
def test_documents_of_one_size_have_nearly_the_t_interval(documents):
    """Quantiles of normal numbers, so that the bootstrap has no skewness of its own to show."""
    means = norm.ppf((np.arange(documents) + 0.5) / documents)[:, None]
    found = curve(100 * means, np.full((documents, 1), 100), replicates=40000)
    half = t.ppf(0.975, documents - 1) * means.std(ddof=1) / math.sqrt(documents)
    assert found.high[0] == pytest.approx(half, rel=0.04)
    assert found.low[0] == pytest.approx(-half, rel=0.04)


def test_the_reach_of_an_interval_by_hand():
    assert widened(5) == pytest.approx(math.sqrt(5 / 4) * 2.7764, rel=1e-4)
    assert norm.cdf(-widened(40)) == pytest.approx(0.0203, abs=1e-4)


def test_documents_of_unequal_size_count_as_fewer():
    assert effective(np.array([[3.0, 5.0, 7.0], [1.0, 5.0, 0.0]]))[:2] == pytest.approx([1.6, 2.0])
    assert math.isnan(effective(np.array([[7.0], [0.0]]))[0])


def test_one_document_has_a_mean_and_no_interval():
    found = curve([[10.0, 8.0]], [[5, 5]])
    assert found.value.tolist() == [2.0, 1.6]
    assert np.isnan([found.low, found.high]).all()


def test_a_length_that_was_not_measured_stays_nan():
    sums, counts = texts(0)
    sums[:, 1] = np.nan
    found, alone = curve(sums, counts), curve(sums[:, [0, 2]], counts[:, [0, 2]])
    assert np.isnan([found.value[1], found.low[1], found.high[1]]).all()
    assert found.low[[0, 2]].tolist() == alone.low.tolist()
    assert np.isnan(paired(sums, np.nan_to_num(sums), counts).wins).tolist() == [False, True, False]


def test_documents_missing_at_one_length_only_are_an_error():
    sums, counts = texts(0)
    sums[:2, 1] = np.nan
    with pytest.raises(
        EvalError, match=r"length number 1 \(from 0\), 2 of 40 sums are NaN: every length needs the same"
    ):
        curve(sums, counts)


@pytest.mark.parametrize(
    ("sums", "counts", "message"),
    [
        ([[1.0]], [[1, 1]], r"sums have the shape \(1, 1\) and counts \(1, 2\); both must be"),
        ([1.0], [1], r"sums have the shape \(1,\)"),
        ([[1.0]], [[0]], "a length has sums but no scored tokens"),
    ],
)
def test_arrays_that_do_not_fit_are_an_error(sums, counts, message):
    with pytest.raises(EvalError, match=message):
        curve(sums, counts)


def test_models_with_other_documents_cannot_be_paired():
    with pytest.raises(EvalError, match=r"one model has sums of \(1, 2, 1\), the other of \(3, 2, 1\)"):
        paired(np.ones((2, 1)), np.ones((3, 2, 1)), np.ones((2, 1)))


def test_the_order_of_documents_changes_nothing():
    sums, counts = texts(0)
    other = texts(1)[0]
    mixed = np.random.default_rng(0).permutation(len(sums))
    assert same(curve(sums, counts), curve(sums[mixed], counts[mixed]))
    assert same(paired(sums, other, counts), paired(sums[mixed], other[mixed], counts[mixed]))
    assert l_ppl(sums, counts, [1, 2, 4], 1) == l_ppl(sums[mixed], counts[mixed], [1, 2, 4], 1)


def test_bits_per_byte_are_over_the_bytes_that_were_scored():
    found = bits_per_byte([[2 * math.log(2)], [6 * math.log(2)]], [[1], [3]])
    assert (found.value[0], found.low[0], found.high[0]) == pytest.approx((2, 2, 2))


# Two models


def test_a_model_against_itself_is_undecided():
    sums, counts = texts(0)
    found = paired(sums, sums, counts)
    assert found.value.tolist() == found.low.tolist() == found.high.tolist() == [0, 0, 0]
    assert found.wins.tolist() == [0.5, 0.5, 0.5]
    assert verdict(found.low[0], found.high[0]) == "undecided"


@pytest.mark.parametrize(
    ("low", "high", "winner"),
    [(-2, -1, "a"), (1, 2, "b"), (-1, 1, "undecided"), (0, 1, "undecided"), (-1, 0, "undecided")]
    + [(math.nan, math.nan, "undecided")],
)
def test_a_winner_is_named_only_where_the_interval_leaves_zero_out(low, high, winner):
    assert verdict(low, high) == winner


def test_pairing_leaves_out_what_makes_documents_hard():
    """Here all that differs between models is 0.01 nats, on each document: the curves are 0.1 nats wide."""
    sums, counts = texts(0)
    found = paired(sums - 0.01 * counts, sums, counts)
    assert found.value == pytest.approx([-0.01] * 3)
    assert (found.high - found.low < 1e-12).all()
    assert (curve(sums, counts).high - curve(sums, counts).low > 0.1).all()
    assert found.wins.tolist() == [1, 1, 1]


def test_to_swap_the_models_is_to_swap_the_signs():
    (a, counts), (b, _) = texts(0), texts(1)
    one, other = paired(a, b, counts), paired(b, a, counts)
    assert one.value.tolist() == (-other.value).tolist()
    assert one.low == pytest.approx(-other.high, rel=1e-9)
    assert one.wins == pytest.approx(1 - other.wins)


# Seeds


def test_an_interval_says_whether_it_covers_training_seeds():
    sums, counts = texts(0)
    assert curve(sums, counts).covers == "documents, not training seeds"
    assert curve(np.stack([sums, sums]), counts).covers == "documents and training seeds"


def test_one_seed_with_a_dimension_of_its_own_is_one_seed():
    sums, counts = texts(0)
    assert same(curve(sums[None], counts), curve(sums, counts))


def test_seeds_that_agree_add_nothing():
    sums, counts = texts(0)
    one, three = curve(sums, counts, replicates=20000), curve(np.stack([sums] * 3), counts, replicates=20000)
    assert three.value == pytest.approx(one.value)
    assert three.high - three.low == pytest.approx(one.high - one.low, rel=0.03)


def test_the_interval_of_seeds_alone_is_the_widened_one_of_all_their_drawings():
    """All documents equal, so that all which varies is the seed: 3^3 drawings of three seeds, each as likely."""
    means, counts = np.array([1.0, 2.0, 5.0]), np.full((40, 1), 10.0)
    drawn = np.array([np.mean(one) for one in itertools.product(means, repeat=3)])
    ends = np.quantile(drawn, norm.cdf([-widened(40), widened(40)]), method="inverted_cdf")
    low, high = means.mean() + (ends - means.mean()) * math.sqrt(3 / 2) * 4.30265 / 1.95996
    found = curve(means[:, None, None] * counts, counts)
    assert (found.low[0], found.high[0]) == pytest.approx((low, high), rel=1e-5)


# How often an interval holds the truth


def held(low, high, true=0.0) -> int:
    """How many of so many intervals hold the truth."""
    return int(((low <= true) & (true <= high)).sum())


def simulated(seeds: int = 1, documents: int = 40, *, of_seed=0.0, of_document=0.35, of_both=0.1, sizes=None):
    """Sums and counts around 0 nats. Each length is a simulation of its own, with its own documents and seeds."""
    rng = np.random.default_rng(1)
    counts = np.full((documents, SIMULATIONS), 1000.0) if sizes is None else sizes(rng, (documents, SIMULATIONS))
    mean = rng.normal(0, of_document, counts.shape) + rng.normal(0, of_seed, (seeds, 1, SIMULATIONS))
    mean = mean + rng.normal(0, of_both, (seeds, *counts.shape))
    return mean * counts + np.sqrt(counts) * rng.normal(0, 2.5, mean.shape), counts


def uniform(rng, shape):
    return rng.integers(100, 3000, shape).astype(float)


def lognormal(rng, shape):
    return 10 + np.round(np.exp(rng.normal(6, 1, shape)))


@pytest.mark.parametrize(
    ("documents", "sizes"), [(10, None), (10, uniform), (40, None), (40, uniform), (40, lognormal)]
)
def test_the_interval_of_a_curve_holds_the_truth_as_often_as_it_says(documents, sizes):
    found = curve(*simulated(1, documents, sizes=sizes), replicates=2000)
    assert as_often(found.low, found.high)


def test_ten_documents_of_very_unequal_size_have_an_interval_that_is_rather_too_wide():
    """96.4 % in 4000 simulations; taken for ten of equal size they would have 93.6 %."""
    found = curve(*simulated(1, 10, sizes=lognormal), replicates=2000)
    assert held(found.low, found.high) >= allowed(SIMULATIONS)[0]


def test_the_interval_of_a_difference_holds_the_truth_as_often_as_it_says():
    sums, counts = simulated(sizes=uniform)
    rng = np.random.default_rng(2)
    other = counts * rng.normal(0, 0.02, counts.shape) + np.sqrt(counts) * rng.normal(0, 0.5, counts.shape)
    found = paired(sums, sums + other, counts, replicates=2000)
    assert as_often(found.low, found.high)


@pytest.mark.parametrize("seeds", [3, 5])
def test_where_seeds_are_what_varies_few_of_them_do_as_documents_do(seeds):
    """A bootstrap without the widening has 75 % here with 3 seeds, and 85 % with 5."""
    found = curve(*simulated(seeds, of_seed=1, of_document=0.1), replicates=2000)
    assert as_often(found.low, found.high)


@pytest.mark.parametrize("spread", [(0, 0.35, 0.1), (0.1, 0.6, 0.3), (0.05, 0.05, 0.3)])
def test_where_documents_vary_as_much_five_seeds_do_at_least_as_well(spread):
    """What is of a seed and a document at once is in both drawings: the last has 99 %, wider than it needs to be."""
    of_seed, of_document, of_both = spread
    data = simulated(5, of_seed=of_seed, of_document=of_document, of_both=of_both)
    found = curve(*data, replicates=2000)
    assert held(found.low, found.high) >= allowed(SIMULATIONS)[0]


# Rates


@pytest.mark.parametrize(
    ("hits", "samples", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611), (1, 29, 0.0061, 0.1718)]  # Newcombe 1998
    + [(500, 500, 0.9924, 1), (20, 20, 0.8389, 1), (10, 10, 0.7225, 1)],
)
def test_wilsons_interval_of_published_rates(hits, samples, low, high):
    assert wilson(hits, samples) == pytest.approx((low, high), abs=6e-5)


@pytest.mark.parametrize("samples", [10, 20, 50, 100])
def test_wilsons_interval_holds_the_rate_in_95_percent_of_all_outcomes_on_average(samples):
    hits = np.arange(samples + 1)
    low, high = np.transpose([wilson(one, samples) for one in hits])

    def coverage(rates):
        inside = (low <= rates[:, None]) & (rates[:, None] <= high)
        return (inside * binom.pmf(hits, samples, rates[:, None])).sum(1)

    assert coverage(np.linspace(0, 1, 2001)).mean() == pytest.approx(0.95, abs=0.005)
    assert 0.83 < coverage(high[:-1] + 1e-9).min() < 0.85  # it is least just beyond an end: what the docstring says


def test_samples_that_share_nothing_have_wilsons_interval():
    found = rate([1] * 15 + [0] * 5)
    assert (found.low, found.high) == wilson(15, 20)
    assert rate([1] * 15 + [0] * 5, range(20)) == found


@pytest.mark.parametrize("hit", [0, 1])
def test_a_haystack_all_of_one_kind_counts_as_one_sample(hit):
    found = rate([hit] * 500, np.repeat(np.arange(20), 25))
    assert (found.low, found.high) == wilson(20 * hit, 20)
    assert (found.samples, found.groups) == (500, 20)


def test_samples_of_one_haystack_are_one_sample():
    found = rate([1, 0, 1, 1], [7, 7, 7, 7])
    assert (found.low, found.high) == wilson(0.75, 1)


def test_haystacks_that_differ_widen_the_interval_by_hand():
    """Hits 4, 4, 1, 1 of 5: variance 9 · 4/3 / 20² = 0.03, of independent samples 1/80: worth 25/3; t(3) is 3.18245."""
    found = rate([1, 1, 1, 1, 0] * 2 + [1, 0, 0, 0, 0] * 2, np.repeat([0, 1, 2, 3], 5))
    half = 3.18245 / (1 + 3.18245**2 * 0.12) * math.sqrt(0.03 + 3.18245**2 * 0.12**2 / 4)
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-5)


def test_haystacks_that_find_all_or_nothing_leave_the_rate_open():
    """Each of four drawings may be of one kind, with probability 1/16: the bootstrap goes further than Wilson here."""
    found = rate([1] * 10 + [0] * 10, np.repeat([0, 1, 2, 3], 5))
    assert (found.low, found.high) == (0, 1)


def test_no_samples_have_no_rate():
    found = rate([])
    assert np.isnan([found.value, found.low, found.high]).all()


@pytest.mark.parametrize(("true", "alike"), [(0.5, 0.2), (0.9, 0.05), (0.9, 0.2)])
def test_a_rate_of_shared_haystacks_holds_the_truth_as_often_as_it_says(true, alike):
    """alike: the correlation of samples of a haystack. Taken for independent, they would have 57 %, 82 % and 59 %."""
    spread, rng = (1 - alike) / alike, np.random.default_rng(1)
    hits = rng.random((400, 40, 25)) < rng.beta(true * spread, (1 - true) * spread, (400, 40, 1))
    found = [rate(one.ravel(), np.repeat(np.arange(40), 25)) for one in hits]
    low, high = np.array([one.low for one in found]), np.array([one.high for one in found])
    assert as_often(low, high, true)


# Lengths

GRID = [512, 1024, 2048, 4096, 8192]


def falls(*means: float, documents: int = 40, noise: float = 0.0, rng=None) -> tuple:
    """Documents of very different difficulty, of which each follows `means` over the lengths, up to noise."""
    rng = rng or np.random.default_rng(0)
    difficulty = rng.normal(0, 1, (documents, 1))
    means = difficulty + np.array(means) + rng.normal(0, noise, (documents, len(means)))
    return 1000 * means, np.full(means.shape, 1000)


def test_l_ppl_is_where_the_loss_has_risen_by_eps():
    """The curve is ±0.3 nats; that its lengths share documents tells 0.019 from 0.021."""
    sums, counts = falls(3, 2, 2.019, 2.021, 2)
    assert l_ppl(sums, counts, GRID, 1024) == Reach(2048, 2048, 2048, 2048)
    assert l_ppl(sums, counts, GRID, 1024, eps=0.03) == Reach(8192, 8192, 8192, 8192)


def test_a_rise_within_the_noise_is_seen_and_not_shown():
    found = l_ppl(*falls(3, 2, 1.97, 2.01, 3, noise=0.05), GRID, 1024, eps=0.02)
    assert found == Reach(shown=2048, seen=4096, low=2048, high=4096)


def test_a_length_beyond_the_models_limit_ends_l_ppl():
    sums, counts = falls(3, 2, 2, 2, 2)
    sums[:, 3] = np.nan
    assert l_ppl(sums, counts, GRID, 1024) == Reach(2048, 2048, 2048, 2048)


@pytest.mark.parametrize("unmeasured", [1024, 1000])
def test_l_ppl_needs_the_training_length(unmeasured):
    sums, counts = falls(3, 2, 2, 2, 2)
    sums[:, 1] = np.nan
    with pytest.raises(EvalError, match=rf"{unmeasured} tokens were not measured, only \[512, 2048, 4096, 8192\]"):
        l_ppl(sums, counts, GRID, unmeasured)


@pytest.mark.parametrize("lengths", [[512, 1024], [1024, 512, 2048, 4096, 8192]])
def test_lengths_that_do_not_fit_the_sums_are_an_error(lengths):
    with pytest.raises(EvalError, match="must ascend, one for each of the 5 columns"):
        l_ppl(*falls(3, 2, 2, 2, 2), lengths, 1024)


def test_l_gain_is_where_context_stops_to_help():
    assert l_gain(*falls(3, 2, 1.9, 1.9, 1.9), GRID) == Reach(2048, 2048, 2048, 2048)
    assert l_gain(*falls(3, 3, 1, 1, 1), GRID) == Reach(0, 0, 0, 0)


def test_a_model_less_broken_at_twice_the_length_has_not_gained():
    assert l_gain(*falls(3, 2, 1.9, 6, 5), GRID).seen == 2048


def test_a_length_without_its_half_is_passed_over():
    assert l_gain(*falls(3, 2.5, 2), [512, 768, 1024]).shown == 1024
    with pytest.raises(EvalError, match=r"lengths \[512, 768\]: none is twice another"):
        l_gain(*falls(3, 2), [512, 768])


def test_one_document_shows_no_length():
    assert l_ppl(*falls(3, 2, 2, 2, 2, documents=1), GRID, 1024) == Reach(0, 8192, None, None)


@pytest.mark.parametrize("seed", range(20))
def test_a_shown_length_is_within_the_interval_or_below_and_never_beyond_what_is_seen(seed):
    rng = np.random.default_rng(seed)
    sums, counts = falls(3, 2, 2.005, 2.01, 2.02, noise=0.05, documents=int(rng.integers(5, 50)), rng=rng)
    for found in (l_ppl(sums, counts, GRID, 1024), l_gain(sums, counts, GRID)):
        assert found.low <= found.shown <= found.seen <= found.high


def too_long(length, limit: int) -> int:
    """How many of 400 simulations show a length beyond the limit."""
    rng = np.random.default_rng(2)
    return sum(length(rng) > limit for _ in range(400))


def test_a_length_too_long_is_shown_in_one_of_forty_cases_at_most():
    """For l_ppl, the loss has risen by just eps at 2048; for l_gain, nothing is gained at any of four lengths."""
    most = binom.ppf(0.999, 400, 0.025)

    def ppl(rng):
        return l_ppl(*falls(3, 2, 2.02, 2.02, 2.02, noise=0.1, documents=20, rng=rng), GRID, 1024, replicates=500).shown

    def gain(rng):
        return l_gain(*falls(2, 2, 2, 2, 2, noise=0.1, documents=20, rng=rng), GRID, replicates=500).shown

    assert too_long(ppl, 1024) <= most
    assert too_long(gain, 0) <= most


def hits(*counts: int, samples: int = 100) -> dict[int, list[int]]:
    return {length: [1] * one + [0] * (samples - one) for length, one in zip(GRID, counts, strict=False)}


def test_l_ret_is_where_the_lower_bound_is_at_85_percent_of_the_training_lengths_rate():
    """Of 100: the mark is 0.85 · 0.95 = 0.8075; the lower bound of 95 is 0.888, of 89 0.814, of 88 0.802."""
    assert l_ret(hits(95, 95, 89, 88, 50), 1024).shown == 2048
    assert l_ret(hits(95, 95, 89, 89, 50), 1024).shown == 4096
    assert l_ret(hits(95, 95, 89, 88, 50), 1024).seen == 4096
    assert l_ret(hits(10, 95, 95, 95, 95), 1024) == Reach(0, 0, 0, 0)


def test_l_ret_ends_at_a_length_without_samples():
    assert l_ret({**hits(95, 95, 95, 95, 95), 4096: []}, 1024) == Reach(2048, 2048, 2048, 2048)


def test_a_model_without_hits_has_no_l_ret():
    assert l_ret(hits(0, 0, 0, 0, 0), 1024) == Reach(0, 0, 0, 0)


def test_tau_of_one_lets_the_training_length_itself_be_seen():
    assert l_ret(hits(61, 61, 20), 1024, tau=1).seen == 1024


def test_few_haystacks_show_less_than_as_many_samples():
    groups = {length: np.repeat(np.arange(5), 20) for length in GRID}
    assert l_ret(hits(100, 100, 100, 100, 0), 1024).shown == 4096
    found = l_ret(hits(100, 100, 100, 100, 0), 1024, groups=groups)  # 5 of 5 have a lower bound of 57 %
    assert (found.shown, found.seen) == (0, 4096)


def test_l_ret_shows_a_length_too_long_as_seldom_as_it_says():
    def length(rng):
        drawn = {n: rng.random(200) < p for n, p in [(1024, 0.9), (2048, 0.765)]}
        return l_ret(drawn, 1024, replicates=10).shown

    assert too_long(length, 1024) <= binom.ppf(0.999, 400, 0.05)


def test_rulers_length_is_the_longest_above_its_mark():
    assert ruler({4096: 0.9, 8192: 0.85, 16384: 0.857, 32768: 0.856, 65536: math.nan}) == 16384
    assert ruler({4096: 0.5}) is None


# Words of caution


def test_few_documents_and_seeds_are_said_to_be_few():
    assert cautions(30, 3) == []
    assert cautions(29, 3) == ["29 documents: intervals are rough; use 30 or more"]
    assert cautions(5, 3) == ["5 documents: intervals from fewer than 6 cover less than 95 %; use 30 or more"]
    assert cautions(30, 1) == ["1 training seed: intervals leave out what another seed would change; train 3 or more"]
    assert cautions(30, 2) == ["2 training seeds: intervals are rough, and wide; train 3 or more"]
