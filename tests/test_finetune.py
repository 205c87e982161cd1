"""Fine-tuning: the loss of a pretrained model, positions that leap, adapters, one result however interrupted."""

import json
import shutil
import sys
from pathlib import Path

import families
import numpy as np
import pytest
import tiny_llm
import tiny_runs
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from safetensors.torch import load_file
from tiny_runs import kill, launch, start, wait_for_lines
from tiny_tuned import READS, equal, made, tuning, weights
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

import lab.finetune.learner
import lab.finetune.run
import lab.finetune.write
import lab.train
from lab import LabError
from lab.adopt import adopt, adopted
from lab.cli import app
from lab.config import of_run, read, tree
from lab.data import corpus, long_documents
from lab.data.batches import packed
from lab.finetune.learner import Learner
from lab.finetune.run import finetune
from lab.finetune.settings import Finetuning, asked
from lab.finetune.settled import settled
from lab.optim import optimizer, rate
from lab.rows import read as rows_of
from lab.settings import Train

POSE = [{"kind": "rope-yarn", "factor": 4.0}, {"kind": "pose", "longest": 256}]
LORA = ["lora={rank: 4, dropout: 0.2}", "train.lr=0.01"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One model, one text, one cache; each test names a run of its own."""
    return made(tmp_path_factory.mktemp("tuned"))


@pytest.fixture(scope="module")
def whole(folder) -> Finetuning:
    """A run that nothing has interrupted, with the model's own encoding."""
    run = settled(tuning(folder, "name=whole"))
    finetune(run)
    return run


def log(run: Finetuning) -> list[dict]:
    lines = [json.loads(line) for line in (run.path / "train.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "tokens_per_s"} for line in lines]


def refusal(run: Finetuning) -> str:
    with pytest.raises(LabError) as caught:
        finetune(run)
    return str(caught.value)


class Stopped(Exception):
    pass


def stop_after(run: Finetuning, step: int, monkeypatch) -> None:
    """Train the first `step` steps, then end as a crash does."""

    def rate_or_crash(n, settings):
        if n == step:
            raise Stopped
        return rate(n, settings)

    with monkeypatch.context() as patched, pytest.raises(Stopped):
        patched.setattr(lab.train, "rate", rate_or_crash)
        finetune(run)


# The loss


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_neox"])  # gemma2 caps its logits
def test_the_loss_and_its_gradient_are_those_of_all_logits(family, monkeypatch):
    monkeypatch.setattr(lab.finetune.learner, "LOGITS", 7 * 128)  # seven rows at once, which divides nothing here
    model = families.model(family)
    ids = torch.randint(3, 128, (2, 20))
    targets = ids.roll(-1, 1)
    targets[0, 3:9] = -100
    wanted = F.cross_entropy(model(ids, use_cache=False).logits.flatten(0, 1), targets.flatten(), reduction="sum") / 50
    exact = torch.autograd.grad(wanted, list(model.parameters()))
    found = Learner(model)(ids, targets, num_items_in_batch=50).loss
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)
    for mine, other in zip(torch.autograd.grad(found, list(model.parameters())), exact, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=2e-5 * max(1, float(other.abs().max())))


def test_packed_documents_lose_what_each_loses_alone(folder):
    run = settled(tuning(folder))
    side = corpus(run.data).train
    offset = np.array([side.starts[1] - 24])  # the end of one document, and the beginning of the next
    ids = np.array(side.ids[offset[:, None] + np.arange(65)], np.int64)
    call = {name: torch.from_numpy(x) for name, x in packed(side, ids, offset).items()}
    model = Learner(AutoModelForCausalLM.from_pretrained(run.model.name)).eval()
    ids = torch.from_numpy(ids)
    both = model(ids[:, :-1], num_items_in_batch=1, **call).loss
    parts = [ids[:, :24], ids[:, 24:]]  # no target crosses from one to the other
    alone = sum(model(part[:, :-1], part[:, 1:], num_items_in_batch=1).loss for part in parts)
    torch.testing.assert_close(both, alone, rtol=1e-5, atol=0)


def test_fsdp_cuts_between_the_layers():
    plugin = FullyShardedDataParallelPlugin(auto_wrap_policy="transformer_based_wrap", fsdp_version=2)
    model = Learner(families.model("llama"))
    plugin.set_auto_wrap_policy(model)
    assert plugin.auto_wrap_policy.keywords["transformer_layer_cls"] == {type(model.lm.model.layers[0])}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_matrices_of_the_layers_decay_whatever_they_are_called(folder, tmp_path, name):
    where = tiny_llm.gpt2(tmp_path / "gpt2", 64) if name == "gpt2" else folder / "llama"
    model = Learner(AutoModelForCausalLM.from_pretrained(where))
    model.requires_grad_(name == "gpt2")
    model.lm.lm_head.weight.requires_grad_(True)
    decayed, free = optimizer(model, Train(weight_decay=0.1)).param_groups
    assert len(decayed["params"]) == (4 if name == "gpt2" else 0)  # of attention two, of the MLP two, in one layer
    assert any(parameter is model.lm.lm_head.weight for parameter in free["params"])
    assert len(free["params"]) == (12 if name == "gpt2" else 1)


# Positions


def last_loss(model: torch.nn.Module, first: int, **how) -> torch.Tensor:
    """The loss of what follows the last of 32 tokens, of which the first is the given one."""
    ids = torch.arange(32)[None] + 3
    ids[0, 0] = first
    targets = torch.full((1, 32), -100)
    targets[0, -1] = 5
    torch.manual_seed(1)
    return model(ids, targets, **how).loss


def test_pose_leaps_and_what_is_before_the_leap_is_still_seen():
    lm = adopt(families.model("llama"), POSE)
    model = Learner(lm).train()
    far = last_loss(model, 7) - last_loss(model, 8)
    steps = adopted(lm).call.ids.diff(dim=-1)[0]
    assert steps.max() > 1 and (steps > 1).sum() == 1
    assert abs(far.item()) > 1e-6
    model.zero_grad()
    last_loss(model, 7).backward()
    assert float(lm.get_input_embeddings().weight.grad[7].abs().max()) > 1e-6  # the token stands first, and only there


def test_the_same_leap_in_position_ids_would_cut_the_row_in_two():
    """What is avoided: transformers takes a leap for the start of another document."""
    model = Learner(families.model("llama")).train()
    ids = torch.cat([torch.arange(16), torch.arange(100, 116)])[None]
    assert torch.equal(last_loss(model, 7, position_ids=ids), last_loss(model, 8, position_ids=ids))


def test_a_model_whose_positions_are_dropped_is_told_none(folder):
    run = settled(tuning(folder, "model.method=drope"))
    lm = lab.finetune.run.loaded(run, Accelerator(cpu=True))
    ids = torch.arange(32)[None] + 3
    told = {"attention_mask": torch.ones_like(ids), "use_cache": False}
    with torch.no_grad():
        near, far = (lm(ids, position_ids=places * torch.arange(32)[None], **told).logits for places in (1, 5))
    torch.testing.assert_close(near, far, rtol=0, atol=0)


# What was asked for, in numbers


@pytest.mark.parametrize(
    ("words", "spec", "length", "longest"),
    [
        ([], None, 64, 64),
        (["model.method=yarn", "model.longest=256"], {"kind": "rope-yarn", "factor": 4.0}, 256, 256),
        (["model.method=linear", "model.longest=2x"], {"kind": "rope-linear", "factor": 2.0}, 128, 128),
        (["model.method=ntk", "model.longest=8x", "train.length=2x"], {"kind": "rope-ntk", "factor": 8.0}, 128, 512),
        (["model.method=pose", "model.longest=4x"], POSE, 64, 256),
        (["model.method=drope"], "nope", 64, 64),
        (["model.positional={kind: rope, base: 1e6}", "model.longest=1k"], {"kind": "rope", "base": 1e6}, 1024, 1024),
        (["train.length=256"], None, 256, 256),
        (
            ["model.method=yarn", "model.longest=256", "model.train_length=32"],
            {"kind": "rope-yarn", "factor": 8.0},
            256,
            256,
        ),
    ],
)
def test_encoding_and_lengths_follow_from_the_checkpoint(folder, words, spec, length, longest):
    default = [] if any(word.startswith("train.length") for word in words) else ["train.length=null"]
    run = settled(tuning(folder, *default, *words))
    assert (run.model.positional, run.train.length, run.model.longest, run.model.method) == (
        spec,
        length,
        longest,
        None,
    )
    assert settled(run) == run


def test_the_file_of_all_settings_says_the_defaults():
    values = tree(Path(__file__).parents[1] / "configs" / "finetune.yaml")
    values["model"] |= {"longest": None, "method": None}
    assert Finetuning.model_validate(values) == Finetuning(name="finetune", model={"name": "./my-model"})
    assert values.keys() | {"lora"} == Finetuning.model_fields.keys()
    assert values["model"].keys() == type(Finetuning.model_validate(values).model).model_fields.keys()


def test_the_command_line_in_settings(tmp_path):
    options = {"model.method": "yarn", "model.longest": "16k", "train.steps": 400, "train.length": "4k", "seed": None}
    run = asked("x/my-model.gguf", ["b.txt", "lora.alpha=8", "c.txt"], data=["a.txt"], lora=16, **options)
    assert run.name == "my-model-yarn" and run.folder == "runs" and run.seed == 0
    assert run.data.path == ["a.txt", "b.txt", "c.txt"] and run.data.source == "text"
    assert run.data.tokenizer == run.model.name == "x/my-model.gguf"
    assert (run.model.method, run.model.longest, run.train.steps, run.train.length) == ("yarn", "16k", 400, "4k")
    assert (run.lora.rank, run.lora.alpha, run.lora.targets) == (16, 8, "attention")
    based = asked("my-model", [], scheme="rope base=1e6", out=tmp_path / "out")
    assert based.model.positional == {"kind": "rope", "base": 1e6} and based.path == tmp_path / "out"


# A run and what it leaves


def test_a_run_leaves_a_model_that_loads_and_has_learned(whole):
    names = {"model", "checkpoints", "config.yaml", "data.json", "train.jsonl", "rows.jsonl"}
    assert {path.name for path in whole.path.iterdir()} == names
    model = AutoModelForCausalLM.from_pretrained(whole.path / "model")
    assert model.config.max_position_embeddings == READS
    assert len(AutoTokenizer.from_pretrained(whole.path / "model")) == model.config.vocab_size
    losses = [line["loss"] for line in log(whole) if "loss" in line]
    assert len(losses) == 6 and losses[-1] < losses[0] - 0.1


def test_held_out_losses_before_and_after_are_those_of_the_model(whole, folder):
    """At every length the second half of the longest, four lengths of each document; by transformers' own forward."""
    texts = [torch.from_numpy(ids) for _, ids, _ in long_documents(corpus(whole.data).held_out, length=257, count=3)]
    rows = {(row.trained_as, row.length): row for row in rows_of(whole.path / "rows.jsonl")}
    assert {length for _, length in rows} == {64, 128, 256} and len(rows) == 6
    for trained_as, where in (("raw", folder / "llama"), ("own", whole.path / "model")):
        model = AutoModelForCausalLM.from_pretrained(where).eval()
        for length in (64, 256):
            row = rows[trained_as, length]
            assert row.value == pytest.approx(far_half(model, texts, length), rel=1e-4) and row.count == 3 * 128
    assert all(rows["own", length].value < rows["raw", length].value for length in (64, 128, 256))
    assert log(whole)[0] == {"step": 0, **{f"held_out_{n}": rows["raw", n].value for n in (64, 128, 256)}}


@torch.no_grad()
def far_half(model, texts: list[torch.Tensor], length: int) -> float:
    """The mean loss of tokens 129 … 256, each read in the far half of a window of `length`."""
    losses = []
    for ids in texts:
        for first in range(128 - length // 2, 256 - length // 2, length // 2):
            logits = model(ids[None, first : first + length], use_cache=False).logits[0]
            targets = ids[first + 1 : first + length + 1]
            losses.append(F.cross_entropy(logits, targets, reduction="none")[length // 2 :])
    assert sum(map(len, losses)) == 3 * 128
    return float(torch.cat(losses).mean())


def test_the_command_ends_with_the_losses_and_the_folder_and_finds_them_again(whole, folder):
    (folder / "whole.yaml").write_text(json.dumps(tuning(folder, "name=whole").model_dump(mode="json")))
    said = CliRunner().invoke(app, ["finetune", str(folder / "whole.yaml")], env={"COLUMNS": "120"})
    assert said.exit_code == 0, said.output
    rows = {(row.trained_as, row.length): f"{row.value:.3f}" for row in rows_of(whole.path / "rows.jsonl")}
    for label, trained_as in (("raw → own", "raw"), ("own", "own")):
        line = " ".join([label, *(rows[trained_as, length] for length in (64, 128, 256))])
        assert line in " ".join(said.output.replace("│", " ").split())
    assert said.output.endswith(f"{whole.path / 'model'}\n")


def test_an_extended_model_is_exported_as_what_transformers_loads(folder):
    run = settled(tuning(folder, "name=extended", "model.method=pose", "model.longest=256", "train.steps=2"))
    finetune(run)
    config = AutoModelForCausalLM.from_pretrained(run.path / "model").config
    assert config.max_position_embeddings == 256
    assert config.rope_parameters["rope_type"] == "yarn" and config.rope_parameters["factor"] == 4
    assert config.rope_parameters["original_max_position_embeddings"] == 64
    assert "| 256 |" in (run.path / "model" / "README.md").read_text()


def test_a_learned_table_is_trained_as_far_as_it_reaches(folder, tmp_path):
    tiny_llm.gpt2(tmp_path / "gpt2", 128)
    name = f"model.name={tmp_path / 'gpt2'}"
    run = settled(tuning(folder, "name=gpt2", name, "train.steps=1"))
    finetune(run)
    rows = {row.length: row for row in rows_of(run.path / "rows.jsonl") if row.trained_as == "own"}
    assert rows[128].value > 0 and rows[256].value is None and rows[256].note == "takes at most 128 tokens"


# Interrupted


def test_a_run_that_crashed_goes_on_to_the_same_weights(folder, whole, monkeypatch):
    run = settled(tuning(folder, "name=crashed"))
    stop_after(run, 3, monkeypatch)
    finetune(run)
    assert equal(run, whole) and log(run) == log(whole)


def test_what_pose_and_dropout_draw_is_drawn_again_after_a_crash(folder, monkeypatch):
    monkeypatch.setattr(lab.finetune.write, "export", lambda lm, _, __, folder, **___: lm.save_pretrained(folder))
    words = ["model.method=pose", "model.longest=256", *LORA]
    alone, run = (settled(tuning(folder, f"name=pose-{how}", *words)) for how in ("alone", "crashed"))
    finetune(alone)
    stop_after(run, 5, monkeypatch)
    finetune(run)
    assert equal(run, alone) and log(run) == log(alone)


def test_a_run_killed_goes_on_to_the_same_weights(folder, whole):
    words = [f"{key}={value}" for key, value in (("folder", folder / "runs"), ("name", "killed"), ("track", "none"))]
    words += [f"data.path={folder / 'text'}", "data.source=text", "data.held_out=0.4", f"data.cache={folder / 'cache'}"]
    words += ["train.batch=2", "train.steps=6", "train.warmup=2", "train.lr=1e-3", "train.log_every=1"]
    words += ["train.save_every=2", "train.length=64", "eval.documents=3"]
    process = start("finetune", folder / "llama", *words)
    run = settled(tuning(folder, "name=killed"))
    wait_for_lines(process, run.path / "train.jsonl", 4)
    kill(process)
    assert not (run.path / "model").exists(), "it was done before it was killed"
    finetune(run)
    assert equal(run, whole) and log(run) == log(whole)


@pytest.mark.slow
def test_two_processes_train_what_one_does(folder, whole):
    path = folder / "two.yaml"
    path.write_text(json.dumps(tuning(folder, "name=two").model_dump(mode="json")))
    done = launch("finetune", path, processes=2)
    assert done.returncode == 0, done.stderr
    run = settled(tuning(folder, "name=two"))
    for name, value in weights(run).items():
        torch.testing.assert_close(value, weights(whole)[name], rtol=0, atol=1e-5)
    assert log(run)[0] == pytest.approx(log(whole)[0], rel=1e-5)


def test_less_kept_for_the_gradient_gives_the_same_weights(folder, whole):
    run = settled(tuning(folder, "name=checkpointing", "train.checkpointing=true", "train.accumulate=2"))
    finetune(run)
    for name, value in weights(run).items():
        torch.testing.assert_close(value, weights(whole)[name], rtol=0, atol=1e-5)


# Adapters


@pytest.fixture(scope="module")
def adapted(folder) -> Finetuning:
    run = settled(tuning(folder, "name=lora", *LORA))
    finetune(run)
    return run


def test_adapters_change_the_matrices_of_attention_alone_and_are_merged(folder, adapted):
    before, after = load_file(folder / "llama" / "model.safetensors"), weights(adapted)
    assert before.keys() == after.keys()
    changed = {name.rpartition(".weight")[0] for name in before if not torch.equal(before[name], after[name])}
    matrices = ("q_proj", "k_proj", "v_proj", "o_proj")
    assert changed == {f"model.layers.{n}.self_attn.{matrix}" for n in range(2) for matrix in matrices}


def test_the_adapter_beside_it_gives_the_same_on_the_model_that_was_tuned(folder, adapted):
    from peft import PeftModel

    ids = torch.arange(40)[None]
    base = AutoModelForCausalLM.from_pretrained(folder / "llama")
    with torch.no_grad():
        beside = PeftModel.from_pretrained(base, adapted.path / "adapter").eval()(ids).logits
        merged = AutoModelForCausalLM.from_pretrained(adapted.path / "model").eval()(ids).logits
    torch.testing.assert_close(beside, merged, rtol=0, atol=1e-4)


def test_checkpoints_hold_the_adapters_alone(adapted):
    held = load_file(next((adapted.path / "checkpoints").iterdir()) / "model.safetensors")
    assert len(held) == 2 * 4 * 2 and all("lora_" in name for name in held)


def test_norms_and_embeddings_are_trained_as_well_where_longlora_asks(folder):
    run = settled(tuning(folder, "name=also", "lora={rank: 4, also: [embed, norm]}", "train.steps=1"))
    finetune(run)
    before, after = load_file(folder / "llama" / "model.safetensors"), weights(run)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {"model.embed_tokens.weight", "model.norm.weight"} <= changed
    assert not any("mlp" in name for name in changed)


# Errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.steps=0"], "train.steps: must be greater than 0, got 0"),
        (["train.lenght=4k"], "train.lenght: unknown key, did you mean length?"),
        (
            ["model.method=yarnn", "model.longest=4k"],
            "model.method: no method `yarnn`: did you mean yarn? there are linear,",
        ),
        (["model.method=yarn"], "model.longest: yarn needs the length to reach (--to): 16384, 16k or 4x"),
        (["model.method=drope", "model.positional=nope"], "model.method: it is a short way to say model.positional"),
        (["data.tokenizer=bytes"], "data.tokenizer: bytes is not the model's own, which is taken: leave it out"),
        (["data.source=algorithmic"], "data.source: a pretrained model is trained further on text"),
        (["data.mix=[{task: passkeys, share: 0.1}]"], "data.mix[0]: "),
    ],
)
def test_what_is_wrong_with_the_settings_is_told(folder, words, said):
    with pytest.raises(LabError) as caught:
        tuning(folder, *words)
    assert said in str(caught.value) and caught.value.code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.method=yarn", "model.longest=64"], "was trained on 64 tokens, and 64 are within: yarn is to reach"),
        (["train.length=63"], "train.length: 63 is odd"),
        (["model.positional=rope-yran"], "model.positional: unknown encoding `rope-yran`: did you mean rope-yarn?"),
        (["lora={targets: [q_proj, qkv]}"], "has no matrix qkv; it has down_proj, gate_proj, k_proj, lm_head, o_proj"),
        (["eval.lengths=[64x]"], "held-out documents have 4097 tokens"),
    ],
)
def test_what_the_model_or_the_text_does_not_allow_is_told(folder, words, said):
    run = tuning(folder, "name=refused", *words)
    assert said in (message := refusal(run)) and message.count("\n") < 4
    assert not (run.path / "checkpoints").exists()
    shutil.rmtree(run.path, ignore_errors=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.method=yarn", "model.longest=256"], "gpt2 has no rope_parameters: it does not turn queries and keys"),
        (
            ["train.length=256"],
            "has a table of 128 positions and takes no more tokens, got 256; only a model that turns",
        ),
    ],
)
def test_a_learned_table_cannot_be_extended(folder, tmp_path, words, said):
    tiny_llm.gpt2(tmp_path / "gpt2", 128)
    assert said in refusal(tuning(folder, "name=table", f"model.name={tmp_path / 'gpt2'}", *words))


def test_a_model_without_a_rotary_module_is_told(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("lab.adopt.rotary_modules", lambda model: iter([]))
    said = refusal(tuning(folder, "name=no-rotary", "model.method=yarn", "model.longest=256"))
    assert said == "LlamaForCausalLM must have one rotary module for all its layers, found none"


def test_a_tokenizer_that_cannot_end_a_document_is_told(folder, tmp_path):
    words = tiny_llm.tokenizer()
    words.eos_token = None
    tiny_llm.llama(tmp_path / "llama", words)
    said = refusal(tuning(folder, "name=no-eos", f"model.name={tmp_path / 'llama'}"))
    assert "has no eos or sep token to end documents with" in said


@pytest.mark.parametrize("own", ["kerple", "mine.py"])
def test_what_could_not_be_written_at_the_end_is_told_before_the_first_step(folder, tmp_path, own):
    (tmp_path / "mine.py").write_text('"""Mine."""\nfrom positional import Scheme\n\n\nclass Mine(Scheme):\n    pass\n')
    kind = str(tmp_path / own) if own.endswith(".py") else own
    run = tuning(folder, f"name=own-{own}", f"model.positional=[rope, {kind}]")
    said = refusal(run)
    assert "a checkpoint that others load has no place for" in said and not run.path.exists()


def test_adapters_without_peft_are_told_in_one_line(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    said = refusal(tuning(folder, "name=no-peft", "lora={}"))
    assert said == "lora needs PEFT: pip install peft, or leave lora out to train all weights"


def test_a_folder_of_other_settings_is_refused(folder, whole):
    said = refusal(tuning(folder, "name=whole", "train.lr=0.5", "model.method=yarn", "model.longest=256"))
    assert said.startswith(f"{whole.path} holds a run with other settings:\n")
    assert "  train.lr: 0.001 there, 0.5 asked for\n" in said and "\n  model.positional" in said
    finetune(tuning(folder, "name=whole", "train.checkpointing=true"))  # which changes no weight


def test_a_folder_that_is_no_run_is_not_written_into(folder, whole, tmp_path):
    for out in (folder / "llama", folder / "text" / "00.txt"):
        with pytest.raises(LabError) as caught:
            asked(str(folder / "llama"), [], out=out)
        assert str(caught.value) == (
            f"--out {out} holds something else than a run of lab finetune: give another folder"
        )
    for out in (whole.path, tmp_path, tmp_path / "new"):
        assert asked(str(folder / "llama"), [], out=out).path == out


def test_the_folder_of_a_pretrained_model_is_no_run_of_a_new_one_and_the_other_way_round(folder, whole, tmp_path):
    with pytest.raises(LabError, match=r"is a pretrained model's: measure it with python -m eval .*whole/model"):
        of_run(whole.path)
    new = read(tiny_runs.config(tmp_path), [f"folder={folder / 'runs'}", "name=whole"])
    with pytest.raises(LabError, match=r"holds a run of another kind, .*: choose another name \(name=whole-2\)"):
        lab.train.train(new)
