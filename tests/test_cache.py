"""The cache: at every step, whatever was read before in whatever pieces, the logits are those of the full forward."""

# B batch · T tokens · V vocabulary

import time

import pytest
import torch
from conftest import spec_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.cache_utils import DynamicCache, StaticCache

from lab import LabError
from lab.cache import NAME, cache_for
from lab.model import LabConfig, LabModel
from positional import SchemeError

T, V = 24, 50
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 0.03}
"""Of the largest logit: the order of sums differs with the number of queries, nothing else. bf16 rounds by 2^-9."""

ALTERNATE = '''"""Alternate: a window in every other layer."""

from positional.base import Scheme
from positional.rope import Rope
from positional.stack import Stack
from positional.window import Window


class Alternate(Scheme):
    def __init__(self, shape, *, window: int = 6):
        super().__init__(shape)
        self.far = Rope(shape)
        self.near = Stack(shape, [Rope(shape), Window(shape, window=window)])

    def at(self, layer):
        return self.far if layer % 2 else self.near
'''

MORE = {
    "rope+window": ["rope", {"kind": "window", "window": 9}],
    "rope+window of 1": ["rope", {"kind": "window", "window": 1}],
    "rope+window and sinks": ["rope", {"kind": "window", "window": 5, "sinks": 2}],
    "alibi+window": ["alibi", {"kind": "window", "window": 6}],
    "relative+window": ["relative", {"kind": "window", "window": 6}],
    "rope+relative": ["rope", "relative"],
    "local and global": {"kind": "alternate", "schemes": [["rope", {"kind": "window", "window": 6}], "nope"]},
    "two windows": {"kind": "alternate", "schemes": [{"kind": "window", "window": n} for n in (3, 9)]},
    "rope in chunks": {"kind": "dual-chunk", "chunk": 5},
    "rope+first tokens": {"kind": "lambda-mask", "window": 5, "sinks": 2},
    "learned+local and global": ["learned", {"kind": "alternate", "schemes": ["relative", "alibi"]}],
}
MAKES = {"plain": {}, "grouped and normed": {"kv_heads": 2, "qk_norm": True}}
SIZES = {"one by one": 1, "by three": 3, "by seven": 7, "whole": T}


def made(positional, dtype=torch.float32, **changes) -> LabModel:
    """With every weight moved, as training would: biases that start at zero would hide a mistake in them."""
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "width": 64, "layers": 2, "heads": 4, "train_length": 32}
    model = LabModel(LabConfig(**sizes | changes, positional=positional)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype)


def tokens(batch: int = 3, length: int = T) -> Tensor:
    return torch.randint(V, (batch, length), generator=torch.Generator().manual_seed(7))


def left_padding() -> Tensor:
    """(3, T) ones, but for 4 and 11 places at the beginning of two rows: less than the window of 9, and more."""
    mask = torch.ones(3, T, dtype=torch.int64)
    mask[1, :4] = mask[2, :11] = 0
    return mask


@torch.no_grad()
def in_pieces(model: LabModel, ids: Tensor, sizes: list[int], mask: Tensor | None = None, **each: Tensor):
    """Logits of the tokens read piece by piece, and the cache; each: (B, T) inputs that go with the new tokens."""
    cache, parts, start = None, [], 0
    for size in sizes:
        new = slice(start, start + size)
        given = {name: value[:, new] for name, value in each.items()}
        seen = None if mask is None else mask[:, : new.stop]
        out = model(ids[:, new], attention_mask=seen, use_cache=True, **given, **{NAME: cache})
        parts.append(out.logits)
        cache, start = out[NAME], new.stop
    return torch.cat(parts, 1), cache


def pieces(size: int) -> list[int]:
    return [min(size, T - start) for start in range(0, T, size)]


@torch.no_grad()
def full(model: LabModel, ids: Tensor, mask: Tensor | None = None, **inputs: Tensor) -> Tensor:
    out = model(ids, attention_mask=mask, **inputs)
    assert out.get(NAME) is None
    return out.logits


def assert_equal(found: Tensor, wanted: Tensor, mask: Tensor | None = None) -> None:
    """At every real token, by what the dtype allows."""
    real = torch.ones(wanted.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
    scale = wanted.abs().max().item()
    torch.testing.assert_close(found[real], wanted[real], rtol=0, atol=TOLERANCE[wanted.dtype] * scale)


def assert_exact(spec, size: int, mask: Tensor | None, dtype: torch.dtype, **make) -> None:
    model, ids = made(spec, dtype, **make), tokens()
    found, _ = in_pieces(model, ids, pieces(size), mask)
    assert_equal(found, full(model, ids, mask), mask)
    for end in (1, T // 2, T - 1):  # and what comes after had no part in it
        seen = None if mask is None else mask[:, :end]
        assert_equal(found[:, :end], full(model, ids[:, :end], seen), seen)


# exact


@pytest.mark.parametrize("padded", [False, True], ids=["unpadded", "left-padded"])
@pytest.mark.parametrize(("make", "size"), [*(("plain", size) for size in SIZES), ("grouped and normed", "one by one")])
def test_reading_in_pieces_is_reading_at_once(steady_spec, size, make, padded):
    mask = left_padding() if padded else None
    for dtype in (torch.float32, torch.float64):
        assert_exact(steady_spec, SIZES[size], mask, dtype, **MAKES[make])


@pytest.mark.parametrize("padded", [False, True], ids=["unpadded", "left-padded"])
@pytest.mark.parametrize("size", ["one by one", "by seven"])
@pytest.mark.parametrize("name", MORE)
def test_so_it_is_for_encodings_together(name, size, padded):
    mask = left_padding() if padded else None
    for dtype in (torch.float32, torch.float64):
        assert_exact(MORE[name], SIZES[size], mask, dtype)


def test_in_bf16_it_is_as_close_as_bf16_is(steady_spec):
    assert_exact(steady_spec, 5, None, torch.bfloat16)


def test_the_definition_reads_in_pieces_too(steady_spec):
    assert_exact(steady_spec, 5, left_padding(), torch.float64, attention="eager")


@pytest.mark.parametrize("spec", [*map(spec_of, ("rope", "relative", "self-extend", "window"))], ids=str)
def test_any_pieces_will_do(spec):
    model, ids, mask = made(spec, torch.float64), tokens(), left_padding()
    wanted = full(model, ids, mask)

    @settings(max_examples=15, deadline=None, derandomize=True)
    @given(st.sets(st.integers(1, T - 1)))
    def exact(cuts):
        ends = [*sorted(cuts), T]
        sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        assert_equal(in_pieces(model, ids, sizes, mask)[0], wanted, mask)

    exact()


def test_layers_may_reach_back_differently(tmp_path):
    (tmp_path / "alternate.py").write_text(ALTERNATE)
    spec = str(tmp_path / "alternate.py")
    assert_exact(spec, 1, left_padding(), torch.float64)
    model = made(spec)
    assert model.scheme.reach is None
    # The layer's own scheme says how far it reaches.
    assert kept(in_pieces(model, tokens(), pieces(3))[1]) == [5, T]


def test_positions_that_skip_are_remembered():
    model, ids = made("rope", torch.float64), tokens()
    places = torch.cumsum(torch.randint(1, 4, (3, T), generator=torch.Generator().manual_seed(2)), -1)
    found, _ = in_pieces(model, ids, pieces(5), position_ids=places)
    assert_equal(found, full(model, ids, position_ids=places))


def test_without_position_ids_counting_goes_on_from_the_last():
    model, ids = made("rope", torch.float64), tokens()
    places = torch.arange(T)[None] + torch.tensor([[0], [7], [100]])
    with torch.no_grad():
        begun = model(ids[:, :10], position_ids=places[:, :10], use_cache=True)
        found = model(ids[:, 10:], **{NAME: begun[NAME]}).logits
    assert_equal(found, full(model, ids, position_ids=places)[:, 10:])


@pytest.mark.parametrize("spec", ["rope", "alibi", "relative", spec_of("window")], ids=str)
def test_packed_documents_stay_apart(spec):
    model, ids = made(spec, torch.float64), tokens()
    segments = (torch.arange(T) >= 10).long().expand(3, -1) + 5
    places = (torch.arange(T) % 10).expand(3, -1)
    apart = {"segments": segments, "position_ids": places}
    assert_equal(in_pieces(model, ids, pieces(4), **apart)[0], full(model, ids, **apart))


def test_a_mask_that_is_not_given_again_is_remembered():
    model, ids, mask = made("rope", torch.float64), tokens(), left_padding()
    with torch.no_grad():
        begun = model(ids[:, :15], attention_mask=mask[:, :15], use_cache=True)
        found = model(ids[:, 15:], **{NAME: begun[NAME]}).logits
    assert_equal(found, full(model, ids, mask)[:, 15:])


# what is kept


def kept(cache) -> list[int]:
    """How many keys each of the two layers holds; behind them in the cache is where the tokens sit, and any notes."""
    assert all(layer.keys.shape[2] == layer.values.shape[2] for layer in cache.layers)
    return [layer.keys.shape[2] for layer in cache.layers[:2]]


@pytest.mark.parametrize("size", SIZES.values())
@pytest.mark.parametrize("window", [1, 2, 9, 40])
def test_a_window_keeps_what_the_next_token_will_see(window, size):
    model = made(["rope", {"kind": "window", "window": window}])
    _, cache = in_pieces(model, tokens(), pieces(size))
    # Of a window of 1 nothing need be kept, and one key is.
    assert kept(cache) == [min(T, max(1, window - 1))] * 2


def test_without_a_window_all_is_kept(steady_spec):
    model = made(steady_spec)
    _, cache = in_pieces(model, tokens(), pieces(7))
    assert kept(cache) == ([8, 8] if steady_spec["kind"] == "window" else [T, T])


def test_layers_that_take_turns_keep_each_its_own():
    for name, counts in {"local and global": [5, T], "two windows": [2, 8], "rope in chunks": [T, T]}.items():
        assert kept(in_pieces(made(MORE[name]), tokens(), pieces(7))[1]) == counts


def test_sinks_keep_all():
    _, cache = in_pieces(made(MORE["rope+window and sinks"]), tokens(), pieces(7))
    assert kept(cache) == [T, T]


def test_what_is_kept_is_not_rotated():
    """Else an encoding that rotates by where the queries are could not be exact."""
    model, ids = made("rope"), tokens()
    _, moved = in_pieces(model, ids, [T], position_ids=torch.arange(T)[None] + 5)
    _, cache = in_pieces(model, ids, [T])
    assert torch.equal(moved.layers[0].keys, cache.layers[0].keys)


def test_nothing_is_kept_unless_asked_for():
    model, ids = made("rope"), tokens()
    assert model.config.use_cache and model(ids).get(NAME) is None and model(ids, use_cache=False).get(NAME) is None
    assert model(ids, labels=ids).get(NAME) is None
    assert model.train()(ids, use_cache=True).get(NAME) is None


def test_a_loss_can_be_had_of_new_tokens():
    model, ids = made("rope", torch.float64), tokens()
    with torch.no_grad():
        begun = model(ids[:, :10], use_cache=True)
        found = model(ids[:, 10:], labels=ids[:, 10:], **{NAME: begun[NAME]})
        wanted = torch.nn.functional.cross_entropy(
            full(model, ids)[:, 10:-1].flatten(0, 1).float(), ids[:, 11:].flatten()
        )
    assert found.loss.item() == pytest.approx(wanted.item(), rel=1e-6) and found[NAME] is begun[NAME]


# names and makes


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_cache_is_taken_under_either_name(name):
    model, ids = made("rope"), tokens()
    with torch.no_grad():
        begun = model(ids[:, :10], use_cache=True)
        out = model(ids[:, 10:], **{name: begun[NAME]})
    assert out[NAME] is out.past_key_values is getattr(out, NAME) is begun[NAME]
    assert_equal(out.logits, full(model, ids)[:, 10:])


@pytest.mark.parametrize("spec", ["rope", spec_of("window")], ids=str)
def test_an_empty_cache_of_transformers_will_do(spec):
    model, ids = made(spec), tokens()
    for cache in (DynamicCache(), DynamicCache(config=model.config)):
        with torch.no_grad():
            for new in (slice(0, 10), slice(10, T)):
                out = model(ids[:, new], **{NAME: cache})
        assert_equal(out.logits, full(model, ids)[:, 10:])


def test_one_with_empty_room_is_refused():
    model = made("rope")
    with pytest.raises(LabError) as caught:
        model(tokens(), **{NAME: StaticCache(config=model.config, max_cache_len=40)})
    assert str(caught.value) == (
        "a cache of StaticLayer hands out room that no token fills yet: pass none, and one is made, "
        "or transformers' DynamicCache()"
    )


def test_a_mask_of_the_new_tokens_alone_is_refused():
    model, ids = made("rope"), tokens()
    begun = model(ids[:, :10], use_cache=True)
    with pytest.raises(LabError) as caught:
        model(ids[:, 10:], attention_mask=torch.ones(3, T - 10), **{NAME: begun[NAME]})
    assert str(caught.value) == (
        "attention_mask is of 14 tokens where there are 24, 10 of them in the cache: pass one of all"
    )
    assert begun[NAME].get_seq_length(2) == 10  # and nothing was added


@pytest.mark.parametrize("use", ["asked for", "passed"])
def test_an_encoding_that_depends_on_the_length_is_refused_a_cache(use, growing_spec):
    """Keys of the second layer are of hidden states that a shorter input made."""
    assert_refused_a_cache(growing_spec, use)


@pytest.mark.parametrize("use", ["asked for", "passed"])
def test_so_is_one_by_a_factor_of_the_length(use):
    assert_refused_a_cache({"kind": "rope-ntk", "factor": "auto"}, use)


def assert_refused_a_cache(spec: dict, use: str) -> None:
    model, ids = made(spec), tokens()
    cache = {"use_cache": True} if use == "asked for" else {NAME: cache_for(model.scheme, 2)}
    with pytest.raises(LabError) as caught:
        model(ids, **cache)
    assert str(caught.value) == (
        f"{spec['kind']} encodes all tokens anew when the input grows: what a cache holds of them would be of a "
        "shorter input. Pass use_cache=False; `generate` does so by itself"
    )


# generate


@torch.no_grad()
def likeliest(model: LabModel, ids: Tensor, count: int, mask: Tensor | None = None) -> Tensor:
    """Each next token by a full forward of everything before it."""
    for _ in range(count):
        ids = torch.cat([ids, model(ids, attention_mask=mask).logits[:, -1:].argmax(-1)], 1)
        mask = None if mask is None else torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
    return ids


AUTO = [{"kind": kind, "factor": "auto"} for kind in ("rope-linear", "rope-ntk")]


def assert_generates(spec, **how) -> None:
    model, ids = made(spec, torch.float64, train_length=64), tokens()  # fp64: in fp32 two tokens may be as likely
    for mask in (torch.ones_like(ids), left_padding()):
        found = model.generate(ids, attention_mask=mask, max_new_tokens=16, do_sample=False, **how)
        assert torch.equal(found, likeliest(model, ids, 16, mask))


def test_generation_is_the_likeliest_token_of_full_forwards(steady_spec):
    assert_generates(steady_spec)
    assert_generates(steady_spec, prefill_chunk_size=5)


def test_generation_in_the_midst_of_training_is_the_same():
    model, ids = made("rope", torch.float64), tokens()
    wanted = likeliest(model, ids, 5)
    assert torch.equal(model.train().generate(ids, max_new_tokens=5, do_sample=False), wanted) and model.training


@pytest.mark.parametrize("name", MORE)
def test_generation_is_so_for_encodings_together(name):
    assert_generates(MORE[name])


@pytest.mark.parametrize("use_cache", [True, None])
@pytest.mark.parametrize(
    "spec", [*AUTO, *map(spec_of, ("rope-dynamic", "rope-dynamic-yarn", "rope-longrope"))], ids=str
)
def test_an_encoding_that_depends_on_the_length_generates_without_a_cache(spec, use_cache, monkeypatch):
    """Past the train length, too: it lies between the 24 tokens given and the 32 there are in the end."""
    model, ids, read = made(spec, torch.float64, train_length=28), tokens(), []
    forward = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda ids, *rest: read.append(ids.shape[1]) or forward(ids, *rest))
    found = model.generate(ids, max_new_tokens=8, do_sample=False, use_cache=use_cache)
    assert read == [*range(T, T + 8)]
    assert torch.equal(found, likeliest(model, ids, 8))


def test_with_a_cache_each_step_reads_one_token(monkeypatch):
    model, read = made("rope"), []
    forward = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda ids, *rest: read.append(ids.shape[1]) or forward(ids, *rest))
    model.generate(tokens(), max_new_tokens=4, do_sample=False)
    assert read == [T, 1, 1, 1]


@pytest.mark.slow
def test_256_tokens_after_4096_come_twenty_times_sooner():
    """In seconds of this process; the recomputed ones are read off 3 tokens, each as dear as the next."""
    model, ids = made("rope", width=128, layers=4, train_length=8192), tokens(1, 4096)

    def seconds(count: int, use_cache: bool) -> float:
        begun = time.process_time()
        model.generate(ids, max_new_tokens=count, do_sample=False, use_cache=use_cache)
        return time.process_time() - begun

    assert 256 / 3 * seconds(3, False) > 20 * seconds(256, True)


@pytest.mark.parametrize("spec", ["rope", "relative", spec_of("self-extend"), MORE["rope+window"], AUTO[1]], ids=str)
def test_beams_are_those_without_a_cache(spec):
    model, ids = made(spec, torch.float64), tokens()
    how = {"attention_mask": left_padding(), "max_new_tokens": 10, "do_sample": False, "num_beams": 3}
    how |= {"num_return_sequences": 2, "return_dict_in_generate": True, "output_scores": True}
    found, wanted = (model.generate(ids, use_cache=use, **how) for use in (True, False))
    assert torch.equal(found.sequences, wanted.sequences)
    torch.testing.assert_close(found.sequences_scores, wanted.sequences_scores, rtol=1e-4, atol=0)


@pytest.mark.parametrize("spec", ["rope", MORE["rope+window"]], ids=str)
def test_guessed_tokens_that_do_not_fit_are_taken_back(spec):
    """Prompt lookup reads several guesses at once and crops the cache where they were wrong."""
    model, ids = made(spec, torch.float64), tokens(1).repeat(1, 2)
    how = {"max_new_tokens": 12, "do_sample": False}
    assert torch.equal(model.generate(ids, prompt_lookup_num_tokens=3, **how), model.generate(ids, **how))


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_generation_goes_on_from_a_cache_under_either_name(name):
    model, ids = made("rope", torch.float64), tokens()
    with torch.no_grad():
        begun = model(ids[:, :10], use_cache=True)
    how = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True}
    found = model.generate(ids, **{name: begun[NAME]}, **how)
    assert torch.equal(found.sequences, likeliest(model, ids, 5))
    assert found[NAME] is begun[NAME] and found[NAME].get_seq_length() == T + 4


def test_generation_past_a_learned_table_is_refused_where_it_ends():
    model, ids = made("learned"), tokens()
    # The last token is not read: 32 places are for 33 tokens.
    assert model.generate(ids, max_new_tokens=9, do_sample=False).shape == (3, 33)
    with pytest.raises(SchemeError, match="learned takes at most 32 tokens, got 33"):
        model.generate(ids, max_new_tokens=10, do_sample=False)
