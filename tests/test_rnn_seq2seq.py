"""Sequence to sequence before the paper: both kinds of attention by hand, padding, caches, and that it learns."""

# B batch · S source tokens · T target tokens

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from lab import LabError
from lab.cache import NAME
from lab.seq2seq.rnn import RNNSeq2Seq, RNNSeq2SeqConfig

V, S, T = 20, 7, 6
MAKES = [(cell, attention) for cell in ("lstm", "gru") for attention in ("bahdanau", "luong")]


@pytest.fixture(params=MAKES, ids="-".join)
def model(request) -> RNNSeq2Seq:
    return made(*request.param)


def made(cell: str, attention: str, **changes) -> RNNSeq2Seq:
    torch.manual_seed(0)
    sizes = {"vocab_size": V, "width": 8, "dropout": 0.0}
    model = RNNSeq2Seq(RNNSeq2SeqConfig(**sizes | changes, cell=cell, attention=attention)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double()


def ids(batch: int, length: int) -> Tensor:
    return torch.randint(3, V, (batch, length), generator=torch.Generator().manual_seed(7))


def same(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


@torch.no_grad()
def by_hand(model: RNNSeq2Seq, source: Tensor, target: Tensor) -> Tensor:
    """(T, V) logits of one pair by the papers' formulas, a step at a time with torch's cells."""
    encoder, decoder, lstm = model.encoder, model.decoder, model.config.cell == "lstm"

    def step(rnn, suffix, x, h, c):
        p = [getattr(rnn, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        return torch.lstm_cell(x, (h, c), *p) if lstm else (torch.gru_cell(x, h, *p), c)

    def read(tokens, suffix):
        h = c = torch.zeros(1, 8, dtype=torch.float64)
        states = []
        for token in tokens:
            h, c = step(encoder.rnn, suffix, encoder.embed(token)[None], h, c)
            states.append(h[0])
        return states

    forward, backward = read(source, ""), read(source.flip(0), "_reverse")[::-1]
    annotations = torch.stack([torch.cat(pair) for pair in zip(forward, backward, strict=True)])  # (S, 16)
    h = torch.tanh(model.first(backward[0]))[None]
    c, logits = torch.zeros_like(h), []
    for token in target:
        x = encoder.embed(token)[None]
        if model.config.attention == "bahdanau":
            energies = [decoder.score(torch.tanh(decoder.of_state(h[0]) + decoder.of_source(a))) for a in annotations]
            context = (torch.cat(energies).softmax(0) @ annotations)[None]
            h, c = step(decoder.rnn, "", torch.cat([x, context], -1), h, c)
            out = torch.tanh(decoder.out(torch.cat([h, x, context], -1)))
        else:
            h, c = step(decoder.rnn, "", x, h, c)
            energies = torch.stack([h[0] @ decoder.of_source(a) for a in annotations])
            context = (energies.softmax(0) @ annotations)[None]
            out = torch.tanh(decoder.out(torch.cat([context, h], -1)))
        logits.append(model.head(out)[0])
    return torch.stack(logits)


def test_it_is_what_the_papers_write(model):
    source, target = ids(2, S), ids(2, T)
    with torch.no_grad():
        logits = model(source, decoder_input_ids=target).logits
    for row in range(2):
        same(logits[row], by_hand(model, source[row], target[row]))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_the_source_changes_nothing(model, side):
    source, target = ids(2, S), ids(2, T)
    mask = torch.ones_like(source)
    pad = slice(None, 3) if side == "left" else slice(S - 3, None)
    mask[1, pad] = 0
    with torch.no_grad():
        found = model(source, attention_mask=mask, decoder_input_ids=target).logits
        wanted = model(source[1:, mask[1].bool()], decoder_input_ids=target[1:]).logits
    same(found[1:], wanted)


def test_a_decoder_never_sees_what_comes_after(model):
    source, target = ids(1, S), ids(1, T)
    other = torch.cat([target[:, :3], (target[:, 3:] + 1) % V], 1)
    with torch.no_grad():
        before, after = (model(source, decoder_input_ids=one).logits[:, :3] for one in (target, other))
    same(after, before)


def test_reading_in_pieces_is_reading_at_once(model):
    source, target, cache, parts = ids(2, S), ids(2, T), None, []
    with torch.no_grad():
        wanted = model(source, decoder_input_ids=target).logits
        for piece in target.split([1, 2, 3], 1):
            out = model(source, decoder_input_ids=piece, use_cache=True, **{NAME: cache})
            cache, parts = out[NAME], [*parts, out.logits]
    same(torch.cat(parts, 1), wanted)
    assert cache.get_seq_length() == T


@pytest.mark.parametrize("beams", [1, 3])
def test_generate_with_a_cache_writes_what_it_writes_without(model, beams):
    source, mask = ids(2, S), torch.ones(2, S, dtype=torch.int64)
    mask[1, 4:] = 0
    how = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "num_beams": beams}
    assert torch.equal(model.generate(source, **how), model.generate(source, **how, use_cache=False))


def test_a_saved_model_gives_the_same_logits(model, tmp_path):
    model = model.float()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(loaded) is RNNSeq2Seq and loaded.config.cell == model.config.cell
    with torch.no_grad():
        assert torch.equal(*(one(ids(2, S), decoder_input_ids=ids(2, T)).logits for one in (model, loaded)))


def test_the_loss_is_of_targets_shifted_by_one_and_of_no_padding(model):
    source, labels = ids(2, S), ids(2, T)
    labels[1, 4:] = -100
    with torch.no_grad():
        loss = model(source, labels=labels).loss
        read = torch.cat([torch.full((2, 1), 1), labels[:, :-1].clamp(min=0)], 1)
        log_p = model(source, decoder_input_ids=read).logits.log_softmax(-1)
    real = labels != -100
    picked = log_p.gather(-1, labels.clamp(min=0)[..., None])[..., 0][real]
    torch.testing.assert_close(loss.double(), -picked.mean(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("attention", ["bahdanau", "luong"])
def test_it_learns_to_reverse(attention):
    torch.manual_seed(0)
    model = RNNSeq2Seq(RNNSeq2SeqConfig(vocab_size=8, width=32, attention=attention, dropout=0.0))
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        source = torch.randint(3, 8, (32, 4))
        model(source, labels=ended(source.flip(1))).loss.backward()
        adam.step(), adam.zero_grad()
    source = torch.randint(3, 8, (50, 4))
    written = model.eval().generate(source, max_new_tokens=5, do_sample=False)[:, 1:]
    assert written.shape == (50, 5) and (written == ended(source.flip(1))).all(-1).float().mean() > 0.9


def ended(ids: Tensor) -> Tensor:
    return torch.cat([ids, torch.full((len(ids), 1), 2)], 1)


def test_an_empty_source_and_a_padded_target_are_refused(model):
    mask = torch.ones(2, S, dtype=torch.int64)
    mask[1] = 0
    with pytest.raises(LabError) as caught:
        model(ids(2, S), attention_mask=mask, decoder_input_ids=ids(2, T))
    assert str(caught.value) == "source 1 of the batch is empty: leave it out"
    with pytest.raises(LabError, match="put padding behind, as -100"):
        model(ids(2, S), decoder_input_ids=ids(2, T), decoder_attention_mask=torch.zeros(2, T))
