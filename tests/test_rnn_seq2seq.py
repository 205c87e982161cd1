"""Sequence to sequence before the paper: both kinds of attention by hand, padding, caches, runs, and that it learns."""

# B batch · S source tokens · T target tokens

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from lab import LabError
from lab.cache import NAME
from lab.compare import compare, parts_of
from lab.config import dump, of_run, read
from lab.evaluate import evaluate
from lab.rows import read as rows_in
from lab.seq2seq.evaluate import trained_model
from lab.seq2seq.rnn import RNNSeq2Seq, RNNSeq2SeqConfig
from lab.seq2seq.settings import Translation
from lab.seq2seq.tasks import tasks_of
from lab.seq2seq.train import Translating
from lab.seq2seq.translate import translate
from lab.train import accelerator_for, train

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


def test_labels_are_smoothed_in_training_alone():
    model, source, labels = made("gru", "luong", label_smoothing=0.3), ids(2, S), ids(2, T)
    with torch.no_grad():
        read = torch.cat([torch.full((2, 1), 1), labels[:, :-1]], 1)
        logits = model(source, decoder_input_ids=read).logits.float().flatten(0, 1)
        plain, smoothed = model(source, labels=labels).loss, model.train()(source, labels=labels).loss
    torch.testing.assert_close(plain, F.cross_entropy(logits, labels.flatten()))
    torch.testing.assert_close(smoothed, F.cross_entropy(logits, labels.flatten(), label_smoothing=0.3))
    assert smoothed - plain > 0.01


def test_source_target_and_output_have_one_matrix_or_one_each():
    tied, untied = (made("gru", "luong", tie_word_embeddings=tie) for tie in (True, False))
    matrices = [[one.encoder.embed.weight, one.embed.weight, one.head.weight] for one in (tied, untied)]
    assert [len({id(matrix) for matrix in three}) for three in matrices] == [1, 3]


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


# runs


def run_of(folder: Path, **more) -> Translation:
    """A run whose settings are these, small and fast, everything below `folder`."""
    settings = {
        "name": "tiny",
        "folder": str(folder / "runs"),
        "track": "none",
        "data": {"task": "reverse", "sizes": [1, 4]},
        "model": {"width": 16, "recurrent": {"cell": "lstm", "attention": "luong"}},
        "train": {"length": 12, "batch": 96, "steps": 4, "warmup": 2, "log_every": 1, "save_every": 2},
        "eval": {"problems": 3, "sizes": [2, 5]},
        **more,
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(settings))
    return read(path)


@pytest.mark.parametrize(("cell", "attention"), MAKES)
def test_a_recurrent_run_is_trained_measured_and_answers(tmp_path, cell, attention):
    run = run_of(tmp_path, model={"width": 16, "recurrent": {"cell": cell, "attention": attention}})
    accelerator = accelerator_for(run)
    folder = train(run, accelerator)
    assert [json.loads(line)["step"] for line in (run.path / "train.jsonl").open()] == [1, 2, 3, 4]
    assert train(run, accelerator) == folder
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert type(model) is RNNSeq2Seq and (model.config.cell, model.config.attention) == (cell, attention)
    assert (model.config.width, model.config.vocab_size, model.config.label_smoothing) == (16, 259, 0.1)
    rows = [row for row in evaluate(of_run(run.path), accelerator) if row.metric == "exact"]
    named = f"{cell} {attention}"
    assert [(row.scheme, row.trained_as, row.length, row.count) for row in rows] == [
        (named, named, size, 3) for size in (2, 5)
    ]
    assert len(translate(of_run(run.path, ["eval.beams=2"]), ["abc", "d"])) == 2


def test_an_interrupted_recurrent_run_goes_on_to_the_same_weights(tmp_path, monkeypatch):
    import lab.train

    whole, crashed = (run_of(tmp_path, name=name) for name in ("whole", "crashed"))
    train(whole)
    real = lab.train.rate

    def failing(step, settings):
        if step == 3:
            raise RuntimeError("crash")
        return real(step, settings)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="crash"):
        patch.setattr(lab.train, "rate", failing)
        train(crashed)
    train(crashed)
    one, two = (trained_model(run).state_dict() for run in (whole, crashed))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_recurrent_settings_read_back_as_they_were_and_defaults_may_stand_beside_them(tmp_path):
    run = run_of(tmp_path)
    (tmp_path / "again.yaml").write_text(dump(run))
    assert read(tmp_path / "again.yaml") == run
    documented = yaml.safe_load((Path(__file__).parents[1] / "configs/paper/seq2seq.yaml").read_text())["model"]
    assert run_of(tmp_path, model=documented | {"recurrent": {}}).encoding == "gru bahdanau"


def refused(folder: Path, **more) -> list[str]:
    with pytest.raises(LabError) as caught:
        run_of(folder, **more)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_settings_that_a_recurrent_model_does_not_have_are_refused(tmp_path):
    model = {"recurrent": {"cell": "gru"}, "width": 16, "heads": 4, "encoder": {"positional": "rope"}}
    assert refused(tmp_path, model=model) == [
        "model: a recurrent model has no heads, encoder: leave out all but recurrent, width, dropout, label_smoothing "
        "and tie"
    ]
    assert refused(tmp_path, model={"recurrent": {"cell": "rnn", "heads": 2}}) == [
        "model.recurrent.cell: must be 'gru' or 'lstm', got 'rnn'",
        "model.recurrent.heads: unknown key; known here: cell, attention",
    ]
    assert refused(tmp_path, eval={"swap": ["rope"]}, compare={"runs": [{"train": "rope"}]}) == [
        "eval.swap[0]: a recurrent model has no encodings: leave it out",
        "compare.runs[0].train: a recurrent model has no encodings: leave it out",
    ]


PAPERS = {"width": 16, "hidden": 32, "heads": 2, "encoder": {"layers": 1}, "decoder": {"layers": 1}}


def test_a_recurrent_model_is_a_line_beside_attention(tmp_path):
    lines = [{"train": "rope"}, {"model": {"recurrent": {"cell": "lstm", "attention": "luong"}}}]
    lines += [{"model": {"recurrent": {}, "width": 8}}]
    run = run_of(tmp_path, model=PAPERS, compare={"runs": lines}, eval={"sizes": [2], "problems": 3})
    named = ["rope", "lstm luong", "gru bahdanau width=8"]
    assert run.names_of_lines(run.compare.runs) == named
    rows = [row for row in rows_in(compare(run) / "rows.jsonl") if row.metric == "exact" and row.seed == 0]
    assert [(row.scheme, row.trained_as, row.length) for row in rows] == [(name, name, 2) for name in named]
    one, *others = (trained_model(part) for _, part in parts_of(run))
    assert not isinstance(one, RNNSeq2Seq) and [(m.config.cell, m.config.width) for m in others] == [
        ("lstm", 16),
        ("gru", 8),
    ]
    table = (run.path / "compare/table.md").read_text()
    assert f"lstm luong, seed 0: {others[0].num_parameters():,} parameters" in table
    assert compare(run) == run.path / "compare"  # what is there is its own


def test_what_a_recurrent_line_does_not_have_is_refused(tmp_path):
    lines = [
        {"train": "rope", "swap": ["alibi"], "model": {"recurrent": {}}},
        {"model": {"recurrent": {}, "heads": 4}},
        {"model": {"recurrent": {"cell": "rnn"}}},
    ]
    assert refused(tmp_path, model=PAPERS, compare={"runs": lines}, eval={"swap": ["nope"]}) == [
        "compare.runs[0].train: a recurrent model has no encodings: leave it out",
        "compare.runs[0].swap[0]: a recurrent model has no encodings: leave it out",
        "compare.runs[0] with eval.swap[0]: a recurrent model has no encodings: leave it out",
        "compare.runs[1].model: a recurrent model has no heads: leave out all but recurrent, width, dropout, "
        "label_smoothing and tie",
        "compare.runs[2].model.recurrent.cell: must be 'gru' or 'lstm', got 'rnn'",
    ]


def test_the_configuration_that_compares_them_gives_each_about_as_many_parameters():
    run = read(Path(__file__).parents[1] / "configs/paper/recurrent.yaml")
    assert len(run.compare.runs) == 3
    counts = [Translating().model(part, tasks_of(part), None).num_parameters() for _, part in parts_of(run)[:3]]
    assert max(counts) < 1.1 * min(counts)
