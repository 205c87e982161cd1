"""Which windows: counted by hand, and every target once; what a plan refuses, shares, and calls the same."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from known_models import documents, drawn, plan, to_the_end

from eval import EvalError
from eval.plan import Document, forwards
from eval.protocols import (
    PROTOCOLS,
    Window,
    all_of_each,
    disjoint,
    equal_token,
    hf_stride,
    second_half,
    suffix,
    yarn_prefix,
)


def targets(windows: list[Window]) -> list[int]:
    return [w.start + p + 1 for w in windows for p in range(w.first, w.length)]


# Windows


@given(half=st.integers(1, 40), more=st.integers(0, 200), beyond=st.integers(0, 300))
def test_equal_scores_every_target_once_from_the_far_half_of_a_window(half, more, beyond):
    length, longest = 2 * half, 2 * (half + more)
    windows = equal_token(longest + 1 + beyond, length, longest, 256)
    assert targets(windows) == list(range(longest // 2 + 1, longest + 1 + beyond))
    assert all(w.length == length and length // 2 <= w.first < length for w in windows)
    assert all(w.start >= 0 and w.start + w.length <= longest + beyond for w in windows)


@given(half=st.integers(1, 40), more=st.integers(0, 200), stride=st.integers(1, 300), beyond=st.integers(0, 300))
def test_suffix_scores_the_same_last_tokens_at_every_length(half, more, stride, beyond):
    length, longest = 2 * half, 2 * (half + more)
    windows = suffix(longest + 1 + beyond, length, longest, stride)
    last = longest + beyond
    assert targets(windows) == list(range(last - min(stride, longest // 2) + 1, last + 1))
    assert all(length // 2 <= w.first < length and w.start >= 0 for w in windows)
    assert len(windows) == 1 or length < 2 * stride


@given(tokens=st.integers(2, 200), half=st.integers(1, 40), stride=st.integers(1, 80))
def test_hf_stride_scores_every_token_but_the_first_once(tokens, half, stride):
    length = 2 * half
    stride = min(stride, length - 1)
    windows = hf_stride(tokens, length, length, stride)
    assert targets(windows) == list(range(1, tokens))
    assert all(0 <= w.start and w.start + w.length < tokens and w.length < length for w in windows)


@given(tokens=st.integers(2, 200), half=st.integers(1, 40))
def test_hf_stride_without_overlap_scores_no_first_token_of_a_window(tokens, half):
    windows = hf_stride(tokens, 2 * half, 2 * half, 2 * half)
    assert targets(windows) == [n for n in range(1, tokens) if n % (2 * half)]
    assert all(w.scored > 0 for w in windows)


@given(tokens=st.integers(2, 200), half=st.integers(1, 40))
def test_lm_eval_scores_every_token_but_the_first_once(tokens, half):
    windows = disjoint(tokens, 2 * half, 2 * half, 256)
    assert targets(windows) == list(range(1, tokens))
    assert all(w.length == min(2 * half, tokens - 1) and w.start >= 0 for w in windows)


def test_windows_counted_by_hand():
    # Targets 5 6 7 8. Read 2–5 to predict 5 and 6 from places 2 and 3; then 4–7 to predict 7 and 8.
    assert equal_token(9, 4, 8, 0) == [Window(2, 4, 2), Window(4, 4, 2)]
    # 6 does not divide 8: the last window overlaps the one before it and scores only what is left.
    assert equal_token(9, 6, 8, 0) == [Window(1, 6, 3), Window(2, 6, 5)]
    assert equal_token(9, 8, 8, 0) == [Window(0, 8, 4)]
    assert equal_token(5, 2, 4, 0) == [Window(1, 2, 1), Window(2, 2, 1)]
    # Four tokens more are four targets more, 9 10 11 12: a second window of 8, two more of 4.
    assert equal_token(13, 8, 8, 0) == [Window(0, 8, 4), Window(4, 8, 4)]
    assert equal_token(13, 4, 8, 0) == [Window(2, 4, 2), Window(4, 4, 2), Window(6, 4, 2), Window(8, 4, 2)]
    # Where they end at 11, the last windows reach as far back as any, and score one token less.
    assert equal_token(12, 8, 8, 0) == [Window(0, 8, 4), Window(3, 8, 5)]
    assert equal_token(12, 4, 8, 0) == [Window(2, 4, 2), Window(4, 4, 2), Window(6, 4, 2), Window(7, 4, 3)]
    assert suffix(13, 4, 8, 3) == [Window(7, 4, 2), Window(8, 4, 3)]
    # The last 3 targets of 9: 6 7 8.
    assert suffix(9, 8, 8, 3) == [Window(0, 8, 5)]
    assert suffix(9, 4, 8, 3) == [Window(3, 4, 2), Window(4, 4, 3)]
    assert yarn_prefix(99, 6, 6, 0) == [Window(0, 5, 0)]
    # Ten tokens 0–9, windows of 6 begin at 0 and 3; the second has 6–8 to add, and 9 is left for a third.
    assert hf_stride(10, 6, 6, 3) == [Window(0, 5, 0), Window(3, 5, 2), Window(6, 3, 2)]
    # Targets 1–4, 5–8, then 9 alone, with 5–8 before it.
    assert disjoint(10, 4, 4, 0) == [Window(0, 4, 0), Window(4, 4, 0), Window(5, 4, 3)]
    assert disjoint(3, 4, 4, 0) == [Window(0, 2, 0)]
    # 11 tokens hold two windows of 4; of 0–3 token 3 is scored, half of 4 less one.
    assert second_half(11, 4, 4, 0) == [Window(0, 3, 2), Window(4, 3, 2)]
    # Windows of 4 begin at 0, 2, 4 (and 6, which is dropped); each scores three.
    assert all_of_each(11, 4, 4, 2) == [Window(0, 3, 0), Window(2, 3, 0), Window(4, 3, 0)]


@pytest.mark.parametrize("name", PROTOCOLS)
@given(half=st.integers(2, 20), stride=st.integers(1, 40), more=st.integers(0, 30))
def test_a_document_of_the_least_size_is_enough_and_one_token_less_is_not(name, half, stride, more):
    protocol, length = PROTOCOLS[name], 2 * half
    stride = min(stride, length)
    least = protocol.needs(length, stride)
    for tokens in (least, least + more):
        windows = protocol.windows(tokens, length, length, stride)
        assert sum(w.scored for w in windows) > 0 and all(w.scored > 0 for w in windows)
        assert all(w.start + w.length < tokens for w in windows)
    with pytest.raises(EvalError, match=f"needs documents of {least} tokens: 1 of 1 are shorter"):
        plan([length], documents(least - 1), name, stride=stride)


# Plans


def test_lengths_and_protocols_count_once_and_ascend():
    which = plan([16, 4, 16, 8], protocols="equal position equal")
    assert which.lengths == [4, 8, 16] and which.longest == 16
    assert list(which.records()) == [("equal", 4), ("equal", 8), ("equal", 16), ("position", 16)]


@pytest.mark.parametrize("lengths", [[], [0, 4], [4, 7], [-2]])
def test_lengths_that_cannot_be_halved_are_refused(lengths):
    with pytest.raises(EvalError, match="each must be an even number of tokens, 2 or more"):
        plan(lengths, documents(40))


def test_a_plan_without_documents_is_refused():
    with pytest.raises(EvalError, match="there is no document to measure"):
        plan([4], [])


def test_short_documents_are_counted_and_named():
    with pytest.raises(EvalError) as caught:
        plan([4, 8], documents(9, 1, 30, 8))
    assert str(caught.value) == (
        "equal at 8 tokens needs documents of 9 tokens: 2 of 4 are shorter (document 1 has 1, the longest 30). "
        "Take shorter lengths, or leave the short documents out"
    )


def test_a_stride_that_leaves_tokens_out_is_refused():
    with pytest.raises(EvalError, match="hf-stride: windows of 8 tokens, 9 apart, leave tokens out: take at most 8"):
        plan([8, 16], documents(40), "hf-stride", stride=9)
    with pytest.raises(EvalError, match="stride 0: must be 1 token or more"):
        plan([8], documents(40), "suffix", stride=0)


def test_a_length_at_which_nothing_is_scored_is_refused():
    with pytest.raises(EvalError, match=r"llama\.cpp-half scores no token of a window of 2: take longer lengths"):
        plan([2, 8], documents(40), "llama.cpp-half")


def test_a_document_that_does_not_begin_as_its_windows_do_is_refused():
    given = [Document("a.txt", torch.tensor([3, *range(10)]))]
    with pytest.raises(EvalError, match=r"a\.txt begins with token 3, and windows are to begin with 1"):
        plan([4], given, bos=1)
    assert plan([4], given, bos=3)


def test_beyond_the_limit_there_are_no_records_and_position_goes_as_far_as_it_can():
    which = plan([4, 8, 16, 32], limit=16)
    assert [record for record in which.records() if record[0] == "equal"] == [("equal", n) for n in (4, 8, 16)]
    assert ("position", 16) in which.records() and which.reachable == [4, 8, 16]
    assert list(plan([8, 16], limit=7).records()) == []


# Forward passes


def served(which, document) -> dict:
    """What each record gets: {record: [target, tokens before it] in order}."""
    found = {record: {} for record in which.records()}
    for run in which.runs(document):
        for piece in run.pieces:
            for n, place in enumerate(range(piece.first, piece.stop)):
                assert run.first <= place < run.length
                assert piece.at + n not in found[piece.record], "made twice"
                found[piece.record][piece.at + n] = run.start + place + 1, place + 1
    return {record: [made[n] for n in range(len(made))] for record, made in found.items()}


@pytest.mark.parametrize("bos", [None, 7])
@pytest.mark.parametrize("shared", [False, True])
def test_forward_passes_serve_every_record_whole(shared, bos):
    ids = torch.cat([torch.tensor([7]), drawn(76)])
    document = Document("a", ids)
    which = plan([4, 6, 16, 32], [document], " ".join(PROTOCOLS), shared=shared, stride=3, bos=bos)
    for record, made in served(which, document).items():
        windows = which.windows(record, document)
        assert made == [(w.start + p + 1, p + 1) for w in windows for p in range(w.first, w.length)]


def test_a_window_is_only_read_off_one_that_begins_alike():
    """With the token that begins a text in the place of its first, and without, are two windows."""
    which = plan(
        [4, 8], [Document("a", torch.cat([torch.tensor([7]), drawn(40)]))], "equal hf-stride", shared=True, stride=2
    )
    both = replace(which, bos=7)
    starts = [(run.start, run.bos) for run in both.runs(both.documents[0])]
    assert len(set(starts)) == len(starts)
    assert (2, True) in starts and (2, False) in starts and (0, True) not in starts
    assert not any(run.bos for run in replace(both, bos=None).runs(both.documents[0]))


def test_sharing_saves_what_it_should():
    """Ten lengths of powers of two: 521 forward passes and 6.5 times the longest length in place of 10 times."""
    lengths = [256 * 2**n for n in range(10)]
    document = Document("long", torch.zeros(lengths[-1] + 1, dtype=torch.int64))
    apart, shared = (plan(lengths, [document], "equal", shared=shared) for shared in (False, True))
    assert apart.tokens(document) == 10 * lengths[-1]
    assert len(shared.runs(document)) == 521 and shared.tokens(document) / lengths[-1] == pytest.approx(6.5, abs=0.05)
    run = [run.length for run in shared.runs(document)]
    assert run == sorted(run, reverse=True)  # what does not fit memory shows at once


def test_forward_passes_of_a_long_document_by_hand():
    """Targets 9 … 32. Windows of 16 begin at 0, 8, 16; of 8 at 4, 8 … 24; of 4 at 6, 8 … 28: of these 21, 7 begin where
    a longer one does."""
    document = Document("long", torch.arange(33))
    apart, shared = (to_the_end(plan([4, 8, 16], [document], "equal", shared=share)) for share in (False, True))
    assert apart.tokens(document) == 3 * 48 and len(apart.runs(document)) == 3 + 6 + 12
    assert [(run.length, run.start) for run in shared.runs(document)] == [
        *[(16, start) for start in (0, 8, 16)],
        *[(8, start) for start in (4, 12, 20, 24)],
        *[(4, start) for start in (6, 10, 14, 18, 22, 26, 28)],
    ]
    for which in (apart, shared):
        for (_, length), made in served(which, document).items():
            assert [target for target, _ in made] == list(range(9, 33))
            assert all(length // 2 < seen <= length for _, seen in made)


@pytest.mark.parametrize("others", ["", " hf-stride"])
def test_a_document_is_read_to_its_end_only_where_that_is_asked_for(others):
    """Whether or not another protocol reads it to its end."""
    document, record = Document("long", drawn(41)), ("equal", 8)
    which = plan([8, 16], [document], "equal" + others, stride=4)
    assert targets(which.windows(record, document)) == list(range(9, 17))
    assert targets(to_the_end(which).windows(record, document)) == list(range(9, 41))


def test_forward_passes_by_hand():
    records = {("equal", 4): equal_token(9, 4, 8, 0), ("equal", 8): equal_token(9, 8, 8, 0)}
    records[("position", 8)] = [Window(0, 8, 0)]
    apart = forwards(records, shared=False)
    assert [(run.start, run.length, run.first) for run in apart] == [(0, 8, 0), (2, 4, 2), (4, 4, 2)]
    assert [piece.record for piece in apart[0].pieces] == [("equal", 8), ("position", 8)]


# Keys


def key(which, protocol="equal", length=8, identity="m", document=0) -> str:
    return which.key(identity, which.documents[document], (protocol, length))


def test_a_key_changes_with_all_that_losses_depend_on():
    given = documents(70, 70)
    which = plan([8, 16], given, " ".join(PROTOCOLS), stride=4)
    known = {key(which), key(which, length=16), key(which, identity="n"), key(which, document=1)}
    known |= {key(which, name) for name in PROTOCOLS}
    assert len(known) == 4 + len(PROTOCOLS) - 1
    assert key(replace(which, lengths=[8, 32])) not in known  # other targets
    assert key(replace(which, stride=5), "suffix") not in known
    begun = replace(which, documents=[Document("b", torch.cat([torch.tensor([9]), d.ids[1:]])) for d in given])
    assert key(replace(begun, bos=9)) != key(begun)
    changed = given[0].ids.clone()
    changed[16] += 1  # the last target
    assert key(replace(which, documents=[Document("c", changed)])) not in known


def test_a_key_is_of_the_end_of_a_document_where_that_is_read():
    which = to_the_end(plan([8, 16], documents(17, 41), "equal"))
    as_ever = plan([8, 16], which.documents, "equal")
    assert key(which) == key(as_ever) and key(which, document=1) != key(as_ever, document=1)
    changed = which.documents[1].ids.clone()
    changed[40] += 1
    later = replace(which, documents=[which.documents[0], Document("d", changed)])
    assert key(later, document=1) != key(which, document=1)


def test_a_key_does_not_change_with_what_losses_do_not_depend_on():
    given = documents(41)
    which = plan([8, 16], given, "equal position hf-stride", stride=4)
    later = Document("by another name", torch.cat([given[0].ids[:17], drawn(30, seed=9)]))  # 17: all that equal reads
    assert key(replace(which, documents=[later])) == key(which)
    assert key(replace(which, documents=[later]), "hf-stride") != key(which, "hf-stride")
    assert key(replace(which, stride=5)) == key(which) and key(replace(which, shared=True)) == key(which)
    assert key(replace(which, lengths=[6, 8, 16])) == key(which)
    assert key(which, "position", 8) == key(replace(which, lengths=[8, 32]), "position", 8)
