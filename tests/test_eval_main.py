"""`python -m eval` on a model from disk: numbers, resuming, what it says of what it cannot do."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_llm
import torch
from safetensors.torch import load_file, save_file
from tiny_runs import ROOT, environment

import eval.__main__
import eval.scorer
from eval.load import load


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Six long texts, a short one, an empty one; a Llama."""
    folder = tmp_path_factory.mktemp("eval")
    (folder / "texts").mkdir()
    for n in range(6):
        (folder / f"texts/{n}.txt").write_text(tiny_llm.text(60, n))
    (folder / "texts/short.txt").write_text("the end")
    (folder / "texts/empty.txt").write_text("")
    tiny_llm.llama(folder / "llama")
    return folder


@pytest.fixture
def call(monkeypatch, capsys, folder):
    """`python -m eval …` on the texts, in this process: (exit code, stdout, stderr)."""

    def call(model: Path, out: Path, *words, data: list[Path] | None = None) -> tuple[int, str, str]:
        data = sorted((folder / "texts").glob("*.txt")) if data is None else data
        words = [str(model), "--out", str(out), "--data", *map(str, data), *words]
        words += [] if "--lengths" in words else ["--lengths", "8,16,32"]
        monkeypatch.setattr(sys, "argv", ["eval", *words])
        try:
            code = eval.__main__.main()
        except SystemExit as ended:
            code = ended.code
        return code, *capsys.readouterr()

    return call


def rows(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]


def values(out: Path, probe: str = "perplexity", metric: str = "nats") -> dict[int, float | None]:
    return {row["length"]: row["value"] for row in rows(out) if (row["probe"], row["metric"]) == (probe, metric)}


def test_a_process_measures_and_a_call_after_it_runs_nothing(folder, tmp_path, call, monkeypatch):
    texts = sorted((folder / "texts").glob("*.txt"))
    words = ["-m", "eval", folder / "llama", "--lengths", "8,16,32", "--out", tmp_path / "out", "--data", *texts]
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "2 of 8 documents are left out: they have 1 to " in done.stderr
    assert "equal, position at 8, 16, 32 tokens on 6 documents" in done.stderr
    assert "short windows are read off long ones" in done.stderr
    for probe in ("perplexity", "position"):
        assert f"{tmp_path}/out/{probe}.png" in done.stdout and (tmp_path / f"out/{probe}.png").stat().st_size > 5000
    before = (tmp_path / "out/rows.jsonl").read_bytes()
    for row in rows(tmp_path / "out"):
        assert row["value"] is None or f"{row['value']:.3f}" in done.stdout
    monkeypatch.setattr(eval.scorer, "score", lambda *_, **__: pytest.fail("a forward pass"))
    code, out, err = call(folder / "llama", tmp_path / "out")
    assert code == 0 and "nothing is left to run" in err and out == done.stdout
    assert (tmp_path / "out/rows.jsonl").read_bytes() == before


def test_the_numbers_are_those_of_transformers(folder, tmp_path, call):
    """The last 16 of 33 tokens, after half of each length or more; of which the whole length is one forward."""
    assert call(folder / "llama", tmp_path / "out")[0] == 0
    model, words = load(str(folder / "llama"), "auto", "cpu")
    nats, sizes = [], []
    for n in range(6):
        text = tiny_llm.text(60, n)
        ids = torch.tensor(words(text)["input_ids"])[None, :33]
        assert ids[0, 0] == 0
        with torch.no_grad():
            losses = -model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        nats.append(losses[16:])
        sizes.append(len(words.decode(ids[0, 1:]).encode()) - len(words.decode(ids[0, 1:17]).encode()))
    assert values(tmp_path / "out")[32] == pytest.approx(float(torch.cat(nats).mean()), abs=1e-5)
    bits = float(torch.cat(nats).sum()) / torch.log(torch.tensor(2.0)).item()
    # A character that is cut in two at an end may count for more, or less, by up to three bytes.
    assert values(tmp_path / "out", metric="bits per byte")[32] == pytest.approx(bits / sum(sizes), rel=0.05)


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(folder, tmp_path, call):
    code, out, err = call(folder / "llama", tmp_path / "out", "--dry-run")
    assert code == 0 and out == "" and not (tmp_path / "out").exists()
    plan, cost, why = err.splitlines()[-3:]
    assert plan == "equal, position at 8, 16, 32 tokens on 6 documents"
    # Of each text windows of 32 from 0, 16 from 8 and 16, 8 from 12, 20 and 24; the one of 8 from 16 is in another.
    # Scored: 16 tokens at each of 3 lengths, 32 by position.
    assert cost.startswith("36 forward passes, 528 tokens run, 480 scored, ")
    assert "FLOPs, about 1 s, " in cost and cost.endswith("MiB beside the weights (estimates)")
    assert why.startswith("short windows are read off long ones: on ")
    call(folder / "llama", tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    code, out, err = call(folder / "llama", tmp_path / "out", "--dry-run", "--lengths", "8,16,32,64")
    assert code == 0 and {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_killed_in_the_middle_it_gives_the_rows_of_one_that_was_not(folder, tmp_path, call):
    """Sixty texts, each run and kept by itself."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": tiny_llm.text(400, n)}) + "\n" for n in range(60)))
    words = ["--lengths", "8,32,128", "--batch-tokens", "64", "--documents", "60"]
    command = ["-m", "eval", folder / "llama", "--data", tmp_path / "a.jsonl", "--out", tmp_path / "killed", *words]
    how = {"cwd": ROOT, "env": environment(), "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, *map(str, command)], **how)
    index = tmp_path / "killed/losses/0.jsonl"
    while not index.exists() or index.read_bytes().count(b"\n") < 20:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.001)
    process.kill()
    process.communicate()
    assert not (tmp_path / "killed/rows.jsonl").exists(), "it was done before it was killed: give it more to measure"
    for out in ("killed", "whole"):
        assert call(folder / "llama", tmp_path / out, *words, data=[tmp_path / "a.jsonl"])[0] == 0
    assert (tmp_path / "killed/rows.jsonl").read_bytes() == (tmp_path / "whole/rows.jsonl").read_bytes()


def test_other_weights_under_the_same_name_are_told_and_measured(folder, tmp_path, call):
    model = tiny_llm.llama(tmp_path / "mine")
    assert "is not what it was" not in call(model, tmp_path / "out")[2]
    first = values(tmp_path / "out")
    weights = load_file(model / "model.safetensors")
    weights["lm_head.weight"] *= 0.5
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    code, _, err = call(model, tmp_path / "out", "--dry-run")
    code, _, err = call(model, tmp_path / "out")
    assert code == 0 and f"{model} is not what it was when it was last measured here: measuring it again" in err
    second = values(tmp_path / "out")
    assert all(abs(second[n] - first[n]) > 1e-3 for n in first)
    assert "is not what it was" not in call(model, tmp_path / "out")[2]
    tiny_llm.llama(tmp_path / "mine")  # and back: its losses are still there
    _, _, err = call(model, tmp_path / "out")
    assert "is not what it was" in err and "nothing is left to run" in err and values(tmp_path / "out") == first


def test_another_text_under_the_same_name_is_measured_anew(folder, tmp_path, call):
    data = [tmp_path / f"{n}.txt" for n in range(2)]
    for n, path in enumerate(data):
        path.write_text(tiny_llm.text(60, n))
    call(folder / "llama", tmp_path / "out", data=data)
    first = values(tmp_path / "out")
    data[1].write_text(tiny_llm.text(60, 9))
    _, _, err = call(folder / "llama", tmp_path / "out", data=data)
    assert " forward passes, " in err and values(tmp_path / "out") != first


def test_too_short_texts_are_an_error_that_says_what_they_have(folder, tmp_path, call):
    code, out, err = call(folder / "llama", tmp_path / "out", "--lengths", "4k")
    assert code == 2 and out == ""
    assert err.startswith("eval: none of 8 documents has the 4097 tokens that these lengths need; the longest has ")


def test_a_first_token_is_put_where_asked(folder, tmp_path, call):
    model = tiny_llm.llama(tmp_path / "plain", tiny_llm.tokenizer(begins=False))
    code, _, err = call(model, tmp_path / "auto")
    assert code == 0 and "names a token that begins a text (0), its tokenizer puts none there" in err
    _, _, err = call(model, tmp_path / "yes", "--bos", "yes")
    assert "puts none there" not in err
    assert values(tmp_path / "yes") != values(tmp_path / "auto")
    # The same weights and texts as of the tokenizer that puts it by itself.
    call(folder / "llama", tmp_path / "begins")
    assert values(tmp_path / "yes") == values(tmp_path / "begins")
    call(folder / "llama", tmp_path / "no", "--bos", "no")
    assert values(tmp_path / "no") == values(tmp_path / "auto")
    nameless = tiny_llm.llama(tmp_path / "nameless", tiny_llm.tokenizer(begins=False, named=False))
    code, _, err = call(nameless, tmp_path / "none", "--bos", "yes")
    assert code == 1 and err == "eval: this tokenizer has no token that begins a text: leave --bos yes out\n"


def test_beyond_a_table_of_positions_there_is_a_dash_and_the_reason(tmp_path, call):
    model = tiny_llm.gpt2(tmp_path / "gpt2", 24)
    code, out, err = call(model, tmp_path / "out")
    assert code == 0 and "not at 32: the model takes at most 24 tokens" in err
    found = values(tmp_path / "out")
    assert found[8] is not None and found[16] is not None and found[32] is None
    (line,) = (line for line in out.splitlines() if line.startswith("perplexity (nats)"))
    assert line.split()[-1] == "–" and "– takes at most 24 tokens" in out.splitlines()
    code, out, err = call(model, tmp_path / "beyond", "--lengths", "32,64")
    assert code == 0 and set(values(tmp_path / "beyond").values()) == {None}


def test_a_model_that_follows_the_length_is_found_out_and_order_does_not_matter(tmp_path, call):
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    model = tiny_llm.llama(tmp_path / "ntk", max_position_embeddings=16, rope_parameters=rope)
    code, _, err = call(model, tmp_path / "out", "--lengths", "8,24,32")
    assert code == 0 and "each length is run by itself: on " in err
    wanted = values(tmp_path / "out")
    for n, order in enumerate(("32", "32,24", "8,32")):  # one alone after, before and between the others
        call(model, tmp_path / f"{n}", "--lengths", order, "--protocols", "equal")
        assert values(tmp_path / f"{n}") == pytest.approx({int(k): wanted[int(k)] for k in order.split(",")}, abs=1e-5)


def test_texts_are_read_to_their_end_where_that_is_asked_for(folder, tmp_path, call):
    """Of each text all tokens behind the first 17, here in a forward pass of its own for each window of 32."""
    assert call(folder / "llama", tmp_path / "out")[0] == 0
    assert call(folder / "llama", tmp_path / "whole", "--whole")[0] == 0
    model, words = load(str(folder / "llama"), "auto", "cpu")
    total = count = 0
    for n in range(6):
        ids = torch.tensor(words(tiny_llm.text(60, n))["input_ids"])
        done = 17  # targets below are scored, or have too little before them
        while done < len(ids):
            end = min(done + 16, len(ids))
            window = torch.cat([torch.tensor([0]), ids[end - 32 : end]])
            with torch.no_grad():
                losses = model(input_ids=window[None, :-1]).logits[0].log_softmax(-1).gather(1, window[1:, None])
            total, count, done = total - float(losses[done - end :].sum()), count + end - done, end
    assert count > 6 * 20
    assert values(tmp_path / "whole")[32] == pytest.approx(total / count, abs=1e-5)
    counts = {
        (row["probe"], row["length"]): row["count"] for row in rows(tmp_path / "whole") if row["metric"] == "nats"
    }
    assert all(counts["perplexity", length] == count for length in (8, 16, 32))
    assert values(tmp_path / "whole", "position") == values(tmp_path / "out", "position")


def test_published_protocols_go_by_their_names(folder, tmp_path, call):
    words = ["--protocols", "yarn-prefix,hf-stride,lm-eval-disjoint,llama.cpp-half,longlora-all", "--stride", "8"]
    code, out, err = call(folder / "llama", tmp_path / "out", *words)
    assert code == 0, err
    for name in words[1].split(","):
        assert f"{name} (nats)" in out and list(values(tmp_path / "out", name)) == [8, 16, 32]
        assert (tmp_path / f"out/{name}.png").exists()


@pytest.mark.parametrize(
    "words, code, said",
    [
        (["--lengths", "7"], 2, "'7' is no even number of tokens: write 512,1k,2k"),
        (["--lengths", "1x"], 2, "is no even number"),
        (["--protocols", "equal,mine"], 2, "no protocol 'mine'; there are equal, position, suffix"),
        (["--documents", "0"], 2, "'0' must be a whole number, 1 or more"),
        (["--protocols", "hf-stride"], 1, "eval: hf-stride: windows of 8 tokens, 256 apart, leave tokens out"),
    ],
)
def test_a_call_that_cannot_be_carried_out_is_told_so(folder, tmp_path, call, words, code, said):
    got, out, err = call(folder / "llama", tmp_path / "out", *words)
    assert got == code and out == "" and said in err and not (tmp_path / "out").exists()


def test_what_is_not_there_is_told(folder, tmp_path, call):
    code, _, err = call(folder / "llama", tmp_path / "out", data=[tmp_path / "gone.txt"])
    assert (code, err) == (2, f"eval: --data {tmp_path}/gone.txt: there is no such file, seen from {Path.cwd()}\n")
    code, _, err = call(folder / "llama", tmp_path / "out", data=[folder])
    assert (code, err) == (2, f"eval: --data {folder} is a folder: give the files in it, such as {folder}/*.txt\n")
    code, _, err = call(tmp_path / "gone", tmp_path / "out")
    assert (code, err) == (
        2,
        f"eval: no file or folder {tmp_path}/gone, nor could it be a name on the Hugging Face hub\n",
    )
    (tmp_path / "taken").write_text("")
    code, _, err = call(folder / "llama", tmp_path / "taken")
    assert (code, err) == (2, f"eval: --out {tmp_path}/taken is a file: give a folder\n")


def test_a_store_of_another_version_is_told(folder, tmp_path, call):
    (tmp_path / "out/losses").mkdir(parents=True)
    (tmp_path / "out/losses/0.jsonl").write_text('{"store": 99}\n')
    code, _, err = call(folder / "llama", tmp_path / "out")
    assert code == 1 and "was written by another version of the lab (99, this one writes 2)" in err


def test_half_precision_is_measured_as_such(folder, tmp_path, call):
    code, _, err = call(folder / "llama", tmp_path / "half", "--dtype", "bfloat16")
    assert code == 0 and "short windows are read off long ones" in err
    call(folder / "llama", tmp_path / "whole")
    half, whole = values(tmp_path / "half"), values(tmp_path / "whole")
    assert half != whole and half == pytest.approx(whole, abs=0.05)
