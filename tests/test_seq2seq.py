"""The encoder–decoder beside torch's own layers, its padding, cache, beams, and what it refuses."""

# B batch · S source tokens · T target tokens · C width · V vocabulary

import itertools

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM

from lab import LabError
from lab.seq2seq.config import Seq2SeqConfig
from lab.seq2seq.model import Seq2Seq, swap
from positional import SchemeError

V, S, T = 20, 7, 6
BOTH_WAYS = ["sinusoidal", "learned", "rope", "relative", "relative-shaw", "alibi", "kerple", ["rope", "alibi"]]
LOOKING_BACK = [*BOTH_WAYS, "fox", "fire", {"kind": "window", "window": 3}, ["rope", "logn"]]


def made(**changes) -> Seq2Seq:
    """A small model in float64 whose weights, those of its schemes too, are not what they begin with."""
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "width": 16, "hidden": 24, "heads": 2, "train_length": 16}
    sizes |= {"encoder_layers": 2, "decoder_layers": 2}
    model = Seq2Seq(Seq2SeqConfig(**sizes | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double()


def ids(batch: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(3, V, (batch, length), generator=torch.Generator().manual_seed(seed))


def logits(model: Seq2Seq, source: Tensor, target: Tensor, mask: Tensor | None = None, **how) -> Tensor:
    with torch.no_grad():
        return model(source, attention_mask=mask, decoder_input_ids=target, **how).logits


# beside torch


def loaded(ours: nn.Module, theirs: nn.MultiheadAttention) -> None:
    theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
    theirs.out_proj.weight.copy_(ours.out.weight)
    theirs.in_proj_bias.zero_(), theirs.out_proj.bias.zero_()


@torch.no_grad()
def of_torch(ours: nn.Module, theirs: nn.Module) -> nn.Module:
    """Torch's layer with the weights of ours."""
    loaded(ours.attention, theirs.self_attn)
    theirs.linear1.load_state_dict(ours.feed_forward.up.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.down.state_dict())
    norms = [ours.around_attention, ours.around_feed_forward]
    if hasattr(ours, "cross"):
        loaded(ours.cross, theirs.multihead_attn)
        norms.insert(1, ours.around_cross)
    for number, around in enumerate(norms, 1):
        getattr(theirs, f"norm{number}").load_state_dict(around.norm.state_dict())
    return theirs.double().eval()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_whole_is_what_torch_s_own_layers_make_of_the_same_weights(norm):
    model = made(norm=norm)
    how = {"batch_first": True, "norm_first": norm == "pre", "dim_feedforward": 24, "dropout": 0.0}
    source, target = ids(2, S), ids(2, T, seed=2)
    mask = torch.ones_like(source)
    mask[1, -3:] = 0
    hidden = mask == 0
    with torch.no_grad():
        place = model.encoder.scheme.table(torch.arange(S)).double()
        x = model.encoder.embed(source) * 4.0 + place
        for layer in model.encoder.layers:
            x = of_torch(layer, nn.TransformerEncoderLayer(16, 2, **how))(x, src_key_padding_mask=hidden)
        x = model.encoder.last(x)
        y = model.decoder.embed(target) * 4.0 + place[:T]
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        for layer in model.decoder.layers:
            theirs = of_torch(layer, nn.TransformerDecoderLayer(16, 2, **how))
            y = theirs(y, x, tgt_mask=future, memory_key_padding_mask=hidden)
        wanted = model.decoder.last(y) @ model.encoder.embed.weight.T
    torch.testing.assert_close(logits(model, source, target, mask), wanted, rtol=0, atol=1e-10)


def test_one_matrix_embeds_both_sides_and_makes_the_logits():
    model = made()
    assert model.encoder.embed.weight is model.decoder.embed.weight is model.head.weight
    apart = made(tie_word_embeddings=False)
    more = sum(p.numel() for p in apart.parameters()) - sum(p.numel() for p in model.parameters())
    assert more == 2 * V * 16


def test_dropout_is_where_the_paper_has_it_and_nowhere_else():
    model, seen = made(dropout=0.4).train(), []
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda *_, name=name: seen.append(name))
    model(ids(2, S), labels=ids(2, T))
    of_layer = {"encoder": ["attention", "feed_forward"], "decoder": ["attention", "cross", "feed_forward"]}
    wanted = [f"{side}.dropout" for side in of_layer]
    wanted += [f"{s}.layers.{n}.around_{part}.dropout" for s in of_layer for n in (0, 1) for part in of_layer[s]]
    assert sorted(seen) == sorted(wanted)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    source, target = ids(2, S), ids(2, T)
    trained = model(source, decoder_input_ids=target).logits
    torch.testing.assert_close(trained, logits(model.eval(), source, target), rtol=0, atol=0)  # no other dropout


def test_labels_are_smoothed_in_training_alone():
    model, source, labels = made(dropout=0.0), ids(2, S), ids(2, T)
    labels[1, -2:] = -100
    start = torch.cat([torch.ones(2, 1, dtype=torch.int64), labels[:, :-1].clamp(min=0)], 1)
    logs = logits(model, source, start).float().log_softmax(-1)[labels >= 0]
    picked = -logs.gather(-1, labels[labels >= 0][:, None])[:, 0]
    torch.testing.assert_close(model(source, labels=labels).loss, picked.mean(), rtol=1e-6, atol=0)
    smoothed = 0.9 * picked.mean() + 0.1 * -logs.mean()
    torch.testing.assert_close(model.train()(source, labels=labels).loss, smoothed, rtol=1e-6, atol=0)


def test_every_weight_learns():
    model = made(encoder_positional="relative", decoder_positional="learned")
    model(ids(2, S), labels=ids(2, T)).loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


# padding and order


@pytest.mark.parametrize("spec", BOTH_WAYS, ids=str)
@pytest.mark.parametrize("where", ["right", "left"])
def test_padding_of_the_source_changes_no_output(spec, where):
    model = made(encoder_positional=spec)
    source, target = ids(1, S), ids(1, T, seed=2)
    padding = ids(1, 4, seed=3)  # any tokens
    zeros, ones = torch.zeros_like(padding), torch.ones_like(source)
    parts = [(source, ones), (padding, zeros)]
    padded, mask = (torch.cat(x, 1) for x in zip(*(parts if where == "right" else parts[::-1]), strict=True))
    wanted = logits(model, source, target)
    torch.testing.assert_close(logits(model, padded, target, mask), wanted, rtol=0, atol=1e-11)


def test_what_the_encoder_and_the_decoder_are_given_matters():
    model, source, target = made(), ids(1, S), ids(1, T)
    wanted = logits(model, source, target)
    assert (logits(model, source.flip(1), target) - wanted).abs().min() > 1e-6
    assert (logits(model, source, target.flip(1)) - wanted).abs().max() > 1e-3


# decoding


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("spec", LOOKING_BACK, ids=str)
def test_decoding_with_a_cache_is_the_full_forward(spec, size):
    model = made(decoder_positional=spec)
    source, target = ids(2, S), ids(2, T, seed=2)
    encoded, cache, found = model.encoder(source), model.new_cache(), []
    for piece in target.split(size, 1):
        found.append(logits(model, None, piece, encoder_outputs=encoded, cache=cache))
    torch.testing.assert_close(torch.cat(found, 1), logits(model, source, target), rtol=0, atol=1e-10)


@pytest.mark.parametrize("how", [{}, {"num_beams": 3, "length_penalty": 0.6}], ids=["greedy", "beams"])
@pytest.mark.parametrize("spec", ["sinusoidal", "relative", "fox", {"kind": "window", "window": 3}], ids=str)
def test_generate_writes_the_same_with_and_without_a_cache(spec, how):
    model, source = made(decoder_positional=spec), ids(3, S)
    mask = torch.ones_like(source)
    mask[1, -3:] = 0
    call = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, **how}
    kept, anew = (model.generate(source, use_cache=use, **call).tolist() for use in (True, False))
    assert kept == anew
    alone = model.generate(source[1:2, :-3], **{**call, "attention_mask": mask[1:2, :-3]})[0].tolist()
    assert kept[1][: len(alone)] == alone


def test_keys_of_the_source_are_made_once():
    model, made_for = made(), []
    model.decoder.layers[1].cross.key.register_forward_hook(lambda _, args, out: made_for.append(args[0].shape[1]))
    model.generate(ids(1, S), max_new_tokens=5, min_new_tokens=5, do_sample=False)
    assert made_for == [S]


@pytest.mark.parametrize("penalty", [-2.0, 0.0, 3.0])
def test_beams_find_the_best_answer_there_is_under_the_length_penalty(penalty):
    """Six tokens, of which 2 ends; all answers of at most two tokens, so that six beams lose none of them."""
    model, source = made(vocab_size=6, eos_token_id=2), torch.tensor([[3, 4, 5]])

    def score(answer: tuple[int, ...]) -> float:
        logs = logits(model, source, torch.tensor([[1, *answer[:-1]]])).log_softmax(-1)[0]
        return float(sum(logs[n, token] for n, token in enumerate(answer))) / len(answer) ** penalty

    every = [(2,), *(pair for pair in itertools.product(range(6), repeat=2) if pair[0] != 2)]
    wanted = max(every, key=score)
    found = model.generate(source, max_new_tokens=2, num_beams=6, length_penalty=penalty, do_sample=False)[0, 1:]
    assert tuple(found.tolist())[: len(wanted)] == wanted


def test_an_encoding_that_no_cache_can_hold_is_written_without_one():
    dynamic = {"kind": "rope-dynamic", "factor": 2}
    model = made(decoder_positional=dynamic, train_length=4)
    assert model.generate(ids(1, S), max_new_tokens=4, do_sample=False).shape[1] > 1
    with pytest.raises(LabError, match="rope-dynamic encodes all tokens anew"):
        logits(model, ids(1, S), ids(1, T), use_cache=True)


# folders and swaps


def test_a_model_is_saved_and_loaded_by_the_auto_class(tmp_path):
    model, source, target = made(encoder_positional="relative").float(), ids(1, S), ids(1, T)
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(again, source, target), logits(model, source, target))
    assert again.head.weight is again.encoder.embed.weight


def test_a_scheme_that_is_a_stranger_s_file_is_not_run(tmp_path):
    (tmp_path / "mine.py").write_text("from positional import Scheme\n\n\nclass Mine(Scheme):\n    pass\n")
    made(decoder_positional=str(tmp_path / "mine.py")).save_pretrained(tmp_path / "model")
    with pytest.raises(SchemeError, match="code outside the lab; read it, then pass trust_remote_code=True"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", trust_remote_code=True)


def test_a_side_is_given_another_scheme_and_keeps_its_weights():
    model, source, target = made(), ids(1, S), ids(1, T)
    before = logits(model, source, target)
    assert swap(model, {"encoder": "rope", "decoder": "relative"}) == ["decoder.table"]
    assert (model.config.encoder_positional, model.config.decoder_positional) == ("rope", "relative")
    assert not torch.allclose(logits(model, source, target), before)
    assert swap(model, {"encoder": "sinusoidal", "decoder": "sinusoidal"}) == []
    torch.testing.assert_close(logits(model, source, target), before, rtol=0, atol=0)


# refusals


def refusal(run) -> str:
    with pytest.raises((LabError, SchemeError)) as caught:
        run()
    return str(caught.value)


def test_an_encoding_that_only_looks_back_is_not_the_encoder_s():
    assert refusal(lambda: made(encoder_positional=["rope", "fox"])) == (
        "rope+fox cannot be the encoder's, where a token also sees those after it: a token's gate says how much is "
        "forgotten of what came before it. Give it to the decoder alone"
    )


def test_a_learned_table_that_ends_is_named_with_its_side():
    model = made(encoder_positional="learned", decoder_positional="learned", train_length=5)
    assert refusal(lambda: logits(model, ids(1, 6), ids(1, 5))) == (
        "learned takes at most 5 tokens, the source has 6: shorten it or train at a longer length"
    )
    assert refusal(lambda: logits(model, ids(1, 5), ids(1, 6))) == (
        "learned takes at most 5 tokens, the target has 6: shorten it or train at a longer length"
    )


def test_an_empty_source_is_named_by_its_row():
    model, mask = made(), torch.tensor([[1, 1], [0, 0]])
    said = refusal(lambda: logits(model, ids(2, 2), ids(2, 1), mask))
    assert said == "row 1 of the source is empty: leave it out, or end it with an end token"
    said = refusal(lambda: logits(model, ids(1, 0), ids(1, 1)))
    assert said == "the source is empty: give it at least an end token"


def test_more_beams_than_tokens_are_refused():
    said = refusal(lambda: made().generate(ids(1, S), num_beams=21))
    assert said == "21 beams begin with 21 different tokens, and the vocabulary has 20: ask for fewer beams"


def test_heads_that_do_not_share_the_width_say_what_to_set():
    said = refusal(lambda: Seq2SeqConfig(width=10, heads=4))
    assert said == "width 10 is not a multiple of heads 4: set key_size and value_size"


def test_keys_of_another_size_than_values():
    """As rows B of the paper's table 3 have them; rotations are of the keys' size."""
    model = made(key_size=6, value_size=10, encoder_positional="rope", decoder_positional="rope")
    assert model.encoder.layers[0].attention.query.weight.shape == (12, 16)
    assert model.encoder.layers[0].attention.out.weight.shape == (16, 20)
    source, target = ids(1, S), ids(1, T)
    before = logits(model, source, target)
    other = torch.cat([target[:, :3], ids(1, 3, seed=9)], 1)
    torch.testing.assert_close(logits(model, source, other)[:, :3], before[:, :3], rtol=0, atol=1e-12)
