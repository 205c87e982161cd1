"""Encodings made of others, and those that say where tokens sit: who acts when, in what order, and what is refused."""

# B batch · T tokens · H heads · D head size · C width · N notes

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lab.attention import attend_parts
from lab.cache import cache_for
from lab.model import LabConfig, LabModel
from positional import Positions, SchemeError, Shape, build

T, V = 24, 50
LOCAL = ["rope", {"kind": "window", "window": 5}]
RNOPE = {"kind": "alternate", "schemes": [LOCAL, "nope"], "pattern": [0, 0, 0, 1]}
DEEP = Shape(width=64, heads=4, kv_heads=4, layers=8, train_length=64)

NOTING = '''"""Two encodings that note numbers about tokens and add what keys have noted to the scores."""

from positional import Scheme, Scores


class One(Scheme):
    notes = 1

    def note(self, x, pos):
        return x[..., :1].float() * (pos.layer + 1)

    def scores(self, q, k, pos):
        assert pos.notes.shape[-1] == 1
        return Scores(bias=lambda b, h, i, j: pos.notes[b, j, 0])


class Two(Scheme):
    notes = 2

    def note(self, x, pos):
        return x[..., 1:3].float()

    def rotate(self, q, k, pos):
        assert pos.notes.shape[-1] == 2
        return q, k * (1 + pos.notes[:, None, :, 1:].to(k.dtype))
'''

LOGN = '''"""What log-n scaling looks like in a user's file: queries grow with the logarithm of their position."""

from positional import Scheme


class LogN(Scheme):
    def rotate(self, q, k, pos):
        return q * (1 + pos.of_queries).clamp(min=2).log2()[:, None, :, None].to(q.dtype), k
'''


@pytest.fixture
def noting(tmp_path) -> str:
    (tmp_path / "noting.py").write_text(NOTING)
    return str(tmp_path / "noting.py")


@pytest.fixture
def logn(tmp_path) -> str:
    (tmp_path / "logn_of_mine.py").write_text(LOGN)
    return str(tmp_path / "logn_of_mine.py")


def refusal(spec, shape: Shape) -> str:
    with pytest.raises(SchemeError) as caught:
        build(spec, shape)
    return str(caught.value)


def made(spec, layers: int = 2, **changes) -> LabModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "width": 64, "layers": layers, "heads": 4, "train_length": 32}
    model = LabModel(LabConfig(**sizes | changes, positional=spec)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def tokens(batch: int = 3) -> Tensor:
    return torch.randint(V, (batch, T), generator=torch.Generator().manual_seed(7))


def inputs(shape: Shape) -> list[Tensor]:
    draw = torch.Generator().manual_seed(3)
    return [torch.randn(2, shape.heads, T, shape.head_dim, generator=draw, dtype=torch.float64) for _ in range(3)]


def decoded(model: LabModel, ids: Tensor, size: int = 1) -> Tensor:
    cache, found = cache_for(model.scheme, model.config.layers), []
    with torch.no_grad():
        for piece in ids.split(size, 1):
            found.append(model(piece, cache=cache).logits)
    return torch.cat(found, 1)


# alternate


def test_layers_take_turns_by_the_pattern():
    scheme = build(RNOPE, DEEP)
    assert [type(scheme.at(layer)).__name__ for layer in range(8)] == ["Stack", "Stack", "Stack", "NoPE"] * 2
    assert [scheme.at(layer).reach for layer in range(4)] == [5, 5, 5, None]
    gemma = {"kind": "alternate", "schemes": [LOCAL, {"kind": "rope", "base": 1e6}], "pattern": [0, 0, 0, 0, 0, 1]}
    assert [scheme.base for layer in (5,) for scheme in [build(gemma, DEEP).at(layer)]] == [1e6]
    each = build({"kind": "alternate", "schemes": ["rope", "nope", "alibi"]}, DEEP)
    assert [type(each.at(layer)).__name__ for layer in range(4)] == ["Rope", "NoPE", "ALiBi", "Rope"]


def test_each_layer_attends_as_its_scheme_alone_does():
    scheme, (q, k, v) = build(RNOPE, DEEP), inputs(DEEP)
    for layer, spec in enumerate([LOCAL, LOCAL, LOCAL, "nope", LOCAL]):
        pos = replace(Positions.first(T), layer=layer)
        found, wanted = (attend_parts(one.parts(q, k, pos), v, pos) for one in (scheme.at(layer), build(spec, DEEP)))
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


def test_a_model_of_one_scheme_in_all_turns_is_the_model_of_that_scheme():
    for spec in (LOCAL, "alibi", {"kind": "self-extend", "group": 2, "window": 6}):
        turns = made({"kind": "alternate", "schemes": [spec, spec]})
        with torch.no_grad():
            assert torch.equal(turns(tokens()).logits, made(spec)(tokens()).logits)


def test_what_turns_have_in_common_is_that_of_the_narrowest(tmp_path):
    (tmp_path / "short.py").write_text(
        "from positional import Scheme\n\n\nclass Short(Scheme):\n    limit = 40\n    prefix_consistent = False\n"
    )
    short = str(tmp_path / "short.py")
    both = build({"kind": "alternate", "schemes": ["rope", short]}, DEEP)
    assert both.limit == 40 and not both.prefix_consistent and both.reach is None
    windows = [{"kind": "window", "window": n} for n in (5, 9)]
    assert build({"kind": "alternate", "schemes": windows}, DEEP).reach == 9  # of the layer that reaches farthest
    assert build(RNOPE, DEEP).reach is None and build(RNOPE, DEEP).prefix_consistent
    auto = {"kind": "alternate", "schemes": ["nope", {"kind": "rope-ntk", "factor": "auto"}]}
    assert not build(auto, DEEP).prefix_consistent


def test_a_layer_with_a_window_forgets_and_a_global_one_does_not():
    model = made(RNOPE, layers=4)
    cache = cache_for(model.scheme, 4)
    with torch.no_grad():
        for piece in tokens().split(1, 1):
            model(piece, cache=cache)
    assert [layer.keys.shape[2] for layer in cache.layers] == [4, 4, 4, T, T]  # the last: where the tokens sit


@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("spec", [RNOPE, ["sinusoidal", RNOPE], {"kind": "alternate", "schemes": ["relative", LOCAL]}])
def test_decoding_is_the_full_forward(spec, size):
    model = made(spec, layers=4).double()
    with torch.no_grad():
        torch.testing.assert_close(decoded(model, tokens(), size), model(tokens()).logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize("order", ["noted last", "noted first", "in a stack", "in all"])
def test_layers_that_note_and_layers_that_do_not_decode_alike(noting, order):
    one, two = f"{noting}:One", f"{noting}:Two"
    spec = {
        "noted last": {"kind": "alternate", "schemes": ["rope", one]},
        "noted first": {"kind": "alternate", "schemes": [[two, "rope"], "rope"]},
        "in a stack": [two, {"kind": "alternate", "schemes": [LOCAL, one]}],
        "in all": {"kind": "alternate", "schemes": [[one, two, "rope"], two]},
    }[order]
    model = made(spec, layers=4).double()
    with torch.no_grad():
        wanted = model(tokens()).logits
        for size in (1, 5):
            torch.testing.assert_close(decoded(model, tokens(), size), wanted, rtol=0, atol=1e-7)  # notes are fp32
        # And what is noted has a part in it.
        assert (made("rope", layers=4).double()(tokens()).logits - wanted).abs().max() > 1e-3


@pytest.mark.parametrize("how", [{"num_beams": 3}, {"prompt_lookup_num_tokens": 3}], ids=str)
def test_beams_and_guessed_tokens_are_kept_right_where_some_layers_note(noting, how):
    model = made({"kind": "alternate", "schemes": ["rope", f"{noting}:One"]})
    prompt = torch.tensor([[3, 4, 5, 3, 4, 5, 3, 4]])
    found, wanted = (
        model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0, use_cache=use, **more)
        for use, more in ((True, how), (False, how if "num_beams" in how else {}))
    )
    assert found.tolist() == wanted.tolist()


def test_what_a_scheme_learns_is_shared_by_its_layers_and_named_once():
    scheme = build({"kind": "alternate", "schemes": ["relative", ["rope", "relative"]], "pattern": [0, 1, 1]}, DEEP)
    assert [name for name, _ in scheme.named_parameters()] == ["schemes.0.table", "schemes.1.members.1.table"]
    stack = build(["rope", {"kind": "alternate", "schemes": ["relative", "nope"]}], DEEP)
    assert list(stack.state_dict()) == ["members.1.schemes.0.table"]
    assert stack.at(0).members[1].table is stack.members[1].schemes[0].table


def test_a_copy_of_a_stack_has_layers_of_its_own():
    stack = build(["rope", {"kind": "alternate", "schemes": ["relative", "nope"]}], DEEP)
    other = copy.deepcopy(stack)
    assert other.at(0).members[1].table is other.members[1].schemes[0].table is not stack.members[1].schemes[0].table


def test_a_model_of_turns_trains_with_gradients_for_all(noting):
    model = made({"kind": "alternate", "schemes": ["relative", LOCAL, f"{noting}:One"]}, layers=3).train()
    model(tokens(), labels=tokens()).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schemes": []}, "alternate: pattern must be numbers of the 0 schemes, from 0, such as [0, 0, 0, 1], got []"),
        ({"schemes": "rope"}, "alternate: `schemes` must be a list of encodings, got 'rope'"),
        (
            {"schemes": ["rope", "nope"], "pattern": [0, 2]},
            "alternate: pattern must be numbers of the 2 schemes, from 0, such as [0, 0, 0, 1], got [0, 2]",
        ),
        (
            {"schemes": ["rope", "nope"], "pattern": [0, -1]},
            "alternate: pattern must be numbers of the 2 schemes, from 0, such as [0, 0, 0, 1], got [0, -1]",
        ),
        (
            {"schemes": ["rope", "nope"], "pattern": []},
            "alternate: pattern must be numbers of the 2 schemes, from 0, such as [0, 0, 0, 1], got []",
        ),
        (
            {"schemes": ["rope", "nope"], "pattern": [0, 0]},
            "alternate: with 2 layers and pattern [0, 0], no layer has scheme 1",
        ),
        (
            {"schemes": ["rope", "nope"], "pattern": [0, 0, 0, 1]},
            "alternate: with 2 layers and pattern [0, 0, 0, 1], no layer has scheme 1",
        ),
        (
            {"schemes": ["rope", ["sinusoidal", "alibi"]]},
            "alternate: Stack acts on embeddings, once and before the first layer, so it cannot take turns: write it "
            "in front, as in [sinusoidal, {kind: alternate, schemes: …}]",
        ),
        (
            {"schemes": [{"kind": "pose", "longest": 100}, "rope"]},
            "alternate: PoSE places tokens, once and before the first layer, so it cannot take turns: write it in "
            "front, as in [pose, {kind: alternate, schemes: …}]",
        ),
        ({"schemes": ["rope", "rop"]}, "alternate: unknown encoding `rop`: did you mean rope?"),
        (
            {"schemes": ["rope", ["alibi", "alibi"]]},
            "alternate: ALiBi and ALiBi both set `slopes`: stack only one of them",
        ),
    ],
    ids=str,
)
def test_turns_that_cannot_be_taken_are_refused(options, message, shape):
    assert refusal({"kind": "alternate", **options}, shape).removesuffix("; schemes: encodings") == message


# where tokens sit in training


PLACING = {
    "random-positions": {"kind": "random-positions", "longest": 100},
    "pose": {"kind": "pose", "longest": 100},
    "pose of five": {"kind": "pose", "longest": 100, "chunks": 5},
}


def placed(spec, pos: Positions, rows: int) -> Tensor:
    found = build(spec, DEEP).place(pos, rows)
    assert found.length == 100 and not found.contiguous and found.queries == pos.queries
    return found.ids


@pytest.mark.parametrize("name", PLACING)
def test_places_rise_and_lie_below_longest_and_rows_draw_apart(name):
    for length in (1, 2, 64, 100):
        ids = placed(PLACING[name], Positions.first(length), 50)
        assert ids.shape == (50, length) and ids.dtype == torch.int64
        assert (ids.diff(dim=1) > 0).all() and ids.min() >= 0 and ids.max() < 100
    assert len({tuple(row) for row in placed(PLACING[name], Positions.first(64), 50).tolist()}) > 40


def frequencies(spec, length: int, rows: int = 60000) -> dict[tuple[int, ...], float]:
    ids = build(spec, replace(DEEP, train_length=length)).place(Positions.first(length), rows).ids
    found, counts = ids.unique(dim=0, return_counts=True)
    return {tuple(row): count / rows for row, count in zip(found.tolist(), counts.tolist(), strict=True)}


def test_every_set_of_random_positions_is_as_likely():
    found = frequencies({"kind": "random-positions", "longest": 6}, 3)
    assert len(found) == 20  # 6 over 3
    assert found == pytest.approx(dict.fromkeys(found, 1 / 20), abs=0.004)  # 4.5 standard errors of 9e-4


def test_pose_cuts_and_skips_as_likely_as_the_paper_says():
    """3 tokens below 5 in two chunks: each of 2 cuts has 1/2, each of 3 skips 1/3; without a skip cuts are alike."""
    found = frequencies({"kind": "pose", "longest": 5}, 3)
    cut_at_1, cut_at_2 = [(0, 1, 2), (0, 2, 3), (0, 3, 4)], [(0, 1, 2), (0, 1, 3), (0, 1, 4)]
    wanted = {row: ((row in cut_at_1) + (row in cut_at_2)) / 6 for row in cut_at_1 + cut_at_2}
    assert found.keys() == wanted.keys()
    assert found == pytest.approx(wanted, abs=0.009)  # 4.5 standard errors of 1.9e-3


def test_a_later_skip_of_pose_is_uniform_from_the_one_before():
    """3 tokens in three chunks below 5: u_1 in 0 … 2, u_2 in u_1 … 2."""
    found = frequencies({"kind": "pose", "longest": 5, "chunks": 3}, 3)
    wanted = {(0, 1 + u, 2 + v): 1 / 3 / (3 - u) for u in range(3) for v in range(u, 3)}
    assert found.keys() == wanted.keys()
    assert found == pytest.approx(wanted, abs=0.009)


@pytest.mark.parametrize("name", PLACING)
def test_documents_in_a_row_rise_each_from_the_first_of_its_draw(name):
    ids = torch.cat([torch.arange(30), torch.arange(20), torch.arange(14)])[None]
    segments = torch.cat([torch.full((30,), 0), torch.full((20,), 1), torch.full((14,), 2)])[None]
    found = placed(PLACING[name], Positions(ids, 64, 30, segments=segments), 4)
    assert torch.equal(found[:, :20], found[:, 30:50]) and torch.equal(found[:, :14], found[:, 50:])
    assert (found[:, :30].diff(dim=1) > 0).all()


@pytest.mark.parametrize("name", PLACING)
def test_evaluation_is_as_without(name):
    ids = tokens()
    with torch.no_grad():
        assert torch.equal(made([PLACING[name], "rope"])(ids).logits, made("rope")(ids).logits)


@pytest.mark.parametrize("name", PLACING)
def test_training_is_at_the_places_drawn(name):
    """The same logits as an evaluation that is told these positions, and others at the next draw."""
    model, ids = made([PLACING[name], "rope"]).train(), tokens()
    torch.manual_seed(3)
    with torch.no_grad():
        found, next_ = model(ids).logits, model(ids).logits
    torch.manual_seed(3)
    places = model.scheme.place(Positions.first(T), len(ids)).ids
    with torch.no_grad():
        wanted = made("rope")(ids, position_ids=places).logits
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert (next_ - found).abs().max() > 1e-3


@pytest.mark.parametrize("name", PLACING)
def test_rows_run_in_parts_draw_what_the_batch_draws(name):
    scheme = build(PLACING[name], DEEP)
    torch.manual_seed(3)
    whole = scheme.place(Positions.first(T), 6).ids
    torch.manual_seed(3)
    assert torch.equal(torch.cat([scheme.place(Positions.first(T), n).ids for n in (2, 2, 1, 1)]), whole)


def test_generation_in_the_midst_of_training_leaves_tokens_where_they_are():
    """With a cache: what it holds was not drawn anew."""
    model = made([PLACING["pose"], "rope"])
    call = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    wanted = model.generate(tokens()[:, :9], **call)
    assert torch.equal(model.train().generate(tokens()[:, :9], **call), wanted)


@pytest.mark.parametrize("name", PLACING)
def test_a_forward_run_again_for_its_gradient_finds_the_same_places(name):
    model, ids = made([PLACING[name], "rope"]).train(), tokens()

    def gradients(run) -> tuple[Tensor, ...]:
        torch.manual_seed(3)
        return torch.autograd.grad(run(lambda x: model(x, labels=x).loss), list(model.parameters()))

    found = gradients(lambda loss: checkpoint(loss, ids, use_reentrant=False))
    assert all(torch.equal(*pair) for pair in zip(found, gradients(lambda loss: loss(ids)), strict=True))


@pytest.mark.parametrize("name", PLACING)
def test_training_goes_into_one_graph(name):
    model = made([PLACING[name], "rope"]).train()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.manual_seed(3)
    with torch.no_grad():
        found = compiled(tokens()).logits
    torch.manual_seed(3)
    with torch.no_grad():
        torch.testing.assert_close(found, model(tokens()).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"kind": "random-positions", "longest": 63},
            "random-positions: longest must be at least the train length 64, got 63 tokens: it is the length to "
            "train for",
        ),
        (
            {"kind": "pose", "longest": 10},
            "pose: longest must be at least the train length 64, got 10 tokens: it is the length to train for",
        ),
        (
            {"kind": "pose", "longest": 100, "chunks": 0},
            "pose: chunks must be between 1 and the train length 64, got 0; the paper has 2",
        ),
    ],
    ids=str,
)
def test_where_tokens_cannot_sit_is_refused(spec, message):
    assert refusal(spec, DEEP) == message


@pytest.mark.parametrize("name", PLACING)
def test_more_tokens_than_positions_are_refused_in_training(name):
    with pytest.raises(SchemeError) as caught:
        build(PLACING[name], DEEP).place(Positions.first(101), 2)
    assert str(caught.value) == "there are 100 positions to place 101 tokens at: raise `longest`"


# learned


def test_a_learned_table_may_be_longer_and_is_its_limit(shape):
    scheme = build({"kind": "learned", "positions": 100}, shape)
    assert scheme.limit == 100 and scheme.table.shape == (100, 64)
    assert build(["rope", {"kind": "nope"}], shape).limit is None
    assert refusal({"kind": "learned", "positions": 63}, shape) == (
        "learned: positions must be at least the train length 64, got 63"
    )


def test_random_positions_train_a_learned_table_that_holds_them(shape):
    spec = [{"kind": "random-positions", "longest": 100}, {"kind": "learned", "positions": 100}]
    model = made(spec, train_length=64).train()
    for _ in range(20):
        model(tokens(), labels=tokens()).loss.backward()
    reached = model.scheme.members[1].table.grad.any(1)
    assert reached[:-1].all() and not reached[-1]  # only the last token of a row can sit there, and it predicts nothing


def test_random_positions_beyond_a_learned_table_are_refused_when_built(shape):
    for first in PLACING["random-positions"], PLACING["pose"]:
        assert refusal([first, "learned"], shape) == (
            "in training tokens are placed up to position 99, and Learned has positions for 64 tokens: give it more "
            "(learned has the option `positions`), or place them nearer"
        )


def test_building_draws_nothing_but_first_weights(shape):
    torch.manual_seed(3)
    build([PLACING["pose"], "rope"], shape)
    found = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3), found)


# stacks


def test_stacks_in_stacks_are_one(shape):
    stack = build(["nope", ["rope", ["nope", {"kind": "window", "window": 9}]]], shape)
    assert [type(member).__name__ for member in stack.members] == ["NoPE", "Rope", "NoPE", "Window"]


SELF_EXTEND = {"kind": "self-extend", "group": 2, "window": 9}
SPLITS = (
    "{} splits the keys into parts, which it rotates and hides itself: write it last, after encodings that only change "
    "queries and keys"
)
FIRST = "{} acts on embeddings, before any rotation of queries and keys: write it first"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ([SELF_EXTEND, "rope"], SPLITS.format("SelfExtend")),
        (["alibi", SELF_EXTEND], SPLITS.format("SelfExtend")),
        ([{"kind": "window", "window": 9}, {"kind": "rerope", "window": 9}], SPLITS.format("ReRoPE")),
        ([["nope", {"kind": "dual-chunk"}], "nope"], SPLITS.format("DualChunk")),
        ([{"kind": "alternate", "schemes": ["rope", SELF_EXTEND]}, "alibi"], SPLITS.format("SelfExtend")),
        (["rope", "sinusoidal"], FIRST.format("Sinusoidal")),
        (["nope", ["rope", "learned"]], FIRST.format("Learned")),
        ([LOCAL, {"kind": "window", "window": 5}], "Window and Window both set `window`: stack only one of them"),
        (
            ["alibi", {"kind": "alternate", "schemes": ["nope", "alibi"]}],
            "ALiBi and ALiBi both set `slopes`: stack only one of them",
        ),
    ],
    ids=str,
)
def test_encodings_that_cannot_follow_one_another_are_refused(spec, message, shape):
    assert refusal(spec, shape) == message


def test_queries_may_be_scaled_before_keys_are_split(logn, shape):
    q, k, v = inputs(shape)
    pos = Positions.first(T)
    scaled = q * torch.arange(1, T + 1).clamp(min=2).log2()[:, None]
    found = attend_parts(build([logn, SELF_EXTEND], shape).parts(q, k, pos), v, pos)
    wanted = attend_parts(build(SELF_EXTEND, shape).parts(scaled.double(), k, pos), v, pos)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)  # the logarithm is fp32
    assert (attend_parts(build(SELF_EXTEND, shape).parts(q, k, pos), v, pos) - wanted).abs().max() > 1e-3


def test_members_that_note_are_told_their_own_notes(noting, shape):
    one, two = f"{noting}:One", f"{noting}:Two"
    for spec, sizes in ([[one, "rope", two], [1, 0, 2]], [[two, one, SELF_EXTEND], None], [["rope", two], [0, 2]]):
        if sizes is None:  # One says something of the scores, which parts would leave out
            assert refusal(spec, shape) == SPLITS.format("SelfExtend")
            continue
        stack, x = build(spec, shape), torch.randn(2, T, 64)
        notes = stack.note(x, replace(Positions.first(T), layer=1))
        told = list(stack.told(replace(Positions.first(T), notes=notes)))
        assert stack.notes == sum(sizes)
        assert [0 if pos.notes is None else pos.notes.shape[-1] for _, pos in told] == sizes
        for member, pos in told:
            if member.notes:
                assert torch.equal(pos.notes, member.note(x, replace(pos, layer=1)))


def test_members_that_note_stand_before_one_that_splits_the_keys(noting):
    spec = [f"{noting}:Two", {"kind": "rerope", "window": 6}]
    model = made(spec).double()
    with torch.no_grad():
        torch.testing.assert_close(decoded(model, tokens(), 4), model(tokens()).logits, rtol=0, atol=1e-7)
