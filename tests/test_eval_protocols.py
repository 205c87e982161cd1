"""Protocols: each as its script computes it, by loops written from descriptions; models that show what it measures."""

import numpy as np
import pytest
import torch
from known_models import ByPlace, Copier, V, documents, llama, measured, plan, to_the_end

from eval.plan import Document


def value(found, protocol: str) -> np.ndarray:
    """(lengths,) the number that a protocol reports, in nats."""
    sums, counts = found.sums(protocol)
    return sums.sum(0) / counts.sum(0)


# As published: each loop written from its description, on the full logits, one window at a time


@torch.no_grad()
def nats(model, window: torch.Tensor) -> torch.Tensor:
    """(L - 1,) float64: what each token of a window but the first costs."""
    logits = model(input_ids=window[None]).logits[0, :-1].double()
    return -logits.log_softmax(-1).gather(1, window[1:, None])[:, 0]


def yarn_prefix(model, texts: list, length: int, stride: int, bos: int | None):
    """Truncate to the length less one, put the first token before, mean over tokens; then mean over documents."""
    means = []
    for text in texts:
        window = text[:length] if bos is None else torch.cat([torch.tensor([bos]), text[1:][: length - 1]])
        means.append(nats(model, window).mean())
    return torch.stack(means).mean()


def hf_stride(model, texts: list, length: int, stride: int, bos: int | None):
    """Labels of -100 hide what the last window has scored; sums over all counted labels, not means of means."""
    total = count = 0
    for text in texts:
        before = 0
        for begin in range(0, len(text), stride):
            end = min(begin + length, len(text))
            labels = text[begin:end].clone()
            labels[: len(labels) - (end - before)] = -100
            each = nats(model, text[begin:end])[labels[1:] != -100]
            total, count = total + each.sum(), count + len(each)
            before = end
            if end == len(text):
                break
    return total / count


def lm_eval_disjoint(model, texts: list, length: int, stride: int, bos: int | None):
    """The first token is the prefix; each window predicts `length` more, the last what is left, and is filled up."""
    total = count = 0
    for text in texts:
        prefix, tokens = text[:1], text[1:]
        first = min(length, len(tokens))
        windows, predicted = [(torch.cat([prefix, tokens[:first]]), first)], first
        while predicted < len(tokens):
            more = min(length, len(tokens) - predicted)
            end = predicted + more
            windows.append((torch.cat([prefix, tokens])[1 + end - length - 1 : 1 + end], more))
            predicted = end
        for window, scored in windows:
            assert len(window) <= length + 1
            total, count = total + nats(model, window)[-scored:].sum(), count + scored
    return total / count


def llama_cpp_half(model, texts: list, length: int, stride: int, bos: int | None):
    """Chunks of n_ctx, the first token of each overwritten, logits from n_ctx/2 to n_ctx-2 scored."""
    total = count = 0
    for text in texts:
        for chunk in range(len(text) // length):
            window = text[chunk * length : (chunk + 1) * length].clone()
            if bos is not None:
                window[0] = bos
            for place in range(length // 2, length - 1):
                total, count = total + nats(model, window)[place], count + 1
    return total / count


def longlora_all(model, texts: list, length: int, stride: int, bos: int | None):
    """Every window a `stride` further, labels the whole window, the last start popped; the mean of window means."""
    means = []
    for text in texts:
        starts = list(range(0, len(text) - length, stride))
        starts.pop()
        means += [nats(model, text[start : start + length]).mean() for start in starts]
    return torch.stack(means).mean()


LOOPS = {
    "yarn-prefix": yarn_prefix,
    "hf-stride": hf_stride,
    "lm-eval-disjoint": lm_eval_disjoint,
    "llama.cpp-half": llama_cpp_half,
    "longlora-all": longlora_all,
}


@pytest.mark.parametrize("bos", [None, 49])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", LOOPS)
def test_a_protocol_is_what_its_script_computes(tmp_path, name, shared, bos):
    """Documents of three sizes, so that means of tokens, windows and documents all differ."""
    model, lengths, stride = llama().double(), [6, 10, 16], 5
    given = [Document(one.name, one.ids % 49) for one in documents(33, 47, 70)]
    for one in given:
        one.ids[0] = 49
    found = measured(tmp_path, model, plan(lengths, given, name, shared=shared, stride=stride, bos=bos))
    wanted = [float(LOOPS[name](model, [one.ids for one in given], n, stride, bos)) for n in lengths]
    assert value(found, name) == pytest.approx(wanted, abs=1e-6)
    others = [other for other in LOOPS if other != name]
    for other in others:  # and no other's
        assert abs(float(LOOPS[other](model, [one.ids for one in given], 10, stride, bos)) - wanted[1]) > 1e-4


def test_hf_stride_of_the_whole_length_is_its_script_too(tmp_path):
    model, given = llama().double(), documents(33, 25)  # 25: a last window of one token
    found = measured(tmp_path, model, plan([8], given, "hf-stride", stride=8))
    assert value(found, "hf-stride") == pytest.approx([float(hf_stride(model, [d.ids for d in given], 8, 8, None))])


@pytest.mark.parametrize("bos", [None, 49])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_the_labs_own_protocols_are_what_they_say(tmp_path, whole, shared, bos):
    model, lengths, stride = llama().double(), [4, 6, 16], 5
    given = [Document(one.name, one.ids % 49) for one in documents(17, 30)]
    for one in given:
        one.ids[0] = 49
    which = plan(lengths, given, "equal suffix position", shared=shared, stride=stride, bos=bos)
    found = measured(tmp_path, model, to_the_end(which) if whole else which)

    def last(ids, target: int, seen: int):
        """The loss of one token after `seen` others."""
        window = ids[target - seen : target + 1].clone()
        if bos is not None:
            window[0] = bos
        return nats(model, window)[-1]

    for protocol in ("equal", "suffix"):
        for at, length in enumerate(lengths):
            for n, one in enumerate(given):
                stop = len(one.ids) if whole else 17
                target, seen = found.targets((protocol, length), n)
                assert target.tolist() == list(range(9 if protocol == "equal" else stop - 5, stop))
                assert all(length / 2 < s <= length for s in seen)
                each = [float(last(one.ids, int(t), int(s))) for t, s in zip(target, seen, strict=True)]
                assert found.losses((protocol, length), n) == pytest.approx(each, abs=1e-6)
                assert found.sums(protocol)[0][n, at] == pytest.approx(sum(each), abs=1e-5)
    for n, one in enumerate(given):
        assert found.losses(("position", 16), n) == pytest.approx(nats(model, one.ids[:17]).numpy(), abs=1e-6)


# What a protocol measures


def test_a_model_that_cannot_use_more_than_1024_tokens_looks_so_on_equal_tokens_alone(tmp_path):
    """Losses of 1.9 + 2.2 · min(p, 1024)^-0.35 nats after p tokens."""
    places = torch.arange(1, 8193).clamp(max=1024)
    text = Document("counts up", torch.arange(16385) % V)
    which = plan([1024, 2048, 4096, 8192], [text], "equal yarn-prefix llama.cpp-half suffix", shared=True)
    found = measured(tmp_path, ByPlace(1.9 + 2.2 * places**-0.35), which)
    perplexity = {name: np.exp(value(found, name)).round(3).tolist() for name in ("yarn-prefix", "suffix")}
    assert perplexity["yarn-prefix"] == pytest.approx([8.999, 8.549, 8.332, 8.226], abs=2e-3)  # looks as if it helped
    assert np.exp(value(found, "equal")) == pytest.approx([8.306, 8.121, 8.121, 8.121], abs=1e-3)
    assert np.exp(value(found, "llama.cpp-half")) == pytest.approx([8.306, 8.121, 8.121, 8.121], abs=1e-3)
    # 256 tokens, after 768 or more: all but flat from the start.
    assert perplexity["suffix"] == pytest.approx([8.199, 8.121, 8.121, 8.121], abs=1e-3)


def test_a_prefix_mean_hides_a_failure_that_equal_tokens_show(tmp_path):
    """The same with half a nat more beyond 2048."""
    places = torch.arange(1, 8193)
    losses = 1.9 + 2.2 * places.clamp(max=1024) ** -0.35 + 0.5 * (places > 2048)
    text = Document("counts up", torch.arange(8193) % V)
    found = measured(tmp_path, ByPlace(losses), plan([2048, 4096, 8192], [text], "equal yarn-prefix", shared=True))
    assert np.exp(value(found, "yarn-prefix")) == pytest.approx([8.549, 10.70, 11.97], abs=6e-3)
    assert np.exp(value(found, "equal")) == pytest.approx([8.121, 13.39, 13.39], abs=6e-3)


def test_a_long_document_shows_of_every_stretch_what_a_short_one_shows_of_one(tmp_path):
    """The same model: three more windows of 8192, and as many of each place in them."""
    places = torch.arange(1, 8193)
    losses = 1.9 + 2.2 * places.clamp(max=1024) ** -0.35 + 0.5 * (places > 2048)
    which = to_the_end(plan([2048, 4096, 8192], documents(4 * 4096 + 4097, back=V), "equal", shared=True))
    found = measured(tmp_path, ByPlace(losses), which)
    assert found.sums()[1].tolist() == [[16384] * 3]
    assert np.exp(value(found, "equal")) == pytest.approx([8.121, 13.39, 13.39], abs=6e-3)


def test_a_model_that_forgets_after_16_tokens_falls_there(tmp_path):
    which = plan([8, 16, 24, 32], documents(33, 33, back=3), "equal")
    # At 24 the sixteen targets are predicted from places 12 … 23 and 20 … 23: four of them lie below 16.
    found = value(measured(tmp_path, Copier(3, until=16), which), "equal")
    assert found / np.log(V) == pytest.approx([0, 0, 12 / 16, 1], abs=1e-6)
