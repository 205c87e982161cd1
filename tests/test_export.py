"""Exported checkpoints: what is loaded is what was measured, or there is no checkpoint."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import families
import pytest
import tiny_llm
import torch
from safetensors.torch import load_file, save_file
from test_rope_fields import BOTH
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from turned_models import turned

import lab.export.write
from lab import LabError
from lab.export.verify import compared, differences
from lab.export.write import export
from lab.rope.config import described
from lab.rows import Row

TARGET = 256
YARN = {"kind": "rope-yarn", "factor": "auto"}
SPECS = {
    "linear": {"kind": "rope-linear", "factor": "auto"},
    "ntk": {"kind": "rope-ntk", "factor": "auto"},
    "dynamic": {"kind": "rope-dynamic", "factor": 4.0},
    "yarn": YARN,
    "longrope": {"kind": "rope-longrope", **BOTH, "factor": 4.0},
    "llama3": {"kind": "rope-llama3", "factor": "auto"},
    "proportional": {"kind": "rope-proportional", "share": 0.5},
}


def test_the_fresh_process_finds_this_lab(monkeypatch, tmp_path):
    """Also where none is installed: the first folder that it looks in is the one that holds the package."""
    seen = {}

    def run(command, env, **_):
        seen.update(env)
        return SimpleNamespace(returncode=0, stdout="[]")

    monkeypatch.setattr(lab.export.verify.subprocess, "run", run)
    assert differences(tmp_path, SimpleNamespace(write=lambda path: None), code=False) == []
    first = Path(seen["PYTHONPATH"].split(os.pathsep)[0])
    assert (first / "lab/export/verify.py").is_file() and (first / "eval/cap.py").is_file()


@pytest.fixture
def here(monkeypatch, tmp_path):
    """Comparisons in this process, which saves seconds each; one test below does without."""

    def differences(folder, reference, *, code):
        reference.write(tmp_path / "reference.safetensors")
        return compared(folder, tmp_path / "reference.safetensors", code=code)

    monkeypatch.setattr(lab.export.write, "differences", differences)


def words():
    return tiny_llm.tokenizer()


@pytest.mark.parametrize("name", SPECS)
def test_each_type_loads_as_what_was_measured(here, tmp_path, name):
    model = turned(families.model("llama"), SPECS[name], TARGET)
    done = export(model, words(), SPECS[name], tmp_path / "out", target=TARGET)
    assert not done.code and "load it with transformers" in done.message
    assert {path.name for path in tmp_path.iterdir()} >= {"out"} and not (tmp_path / "out.tmp").exists()


@pytest.mark.parametrize("family", sorted(families.FAMILIES.keys() - {"phi3", "llama"}))
def test_each_family_loads_as_what_was_measured(here, tmp_path, family):
    export(turned(families.model(family), YARN, TARGET), words(), YARN, tmp_path / "out", target=TARGET)


def test_phi3(here, tmp_path):
    spec = SPECS["longrope"]
    export(turned(families.model("phi3"), spec, TARGET), words(), spec, tmp_path / "out", target=TARGET)


def exported(tmp_path, spec=YARN, family: str = "llama", **how):
    model = turned(families.model(family), spec, TARGET)
    return export(model, words(), spec, tmp_path / "out", target=TARGET, **how).folder


def test_in_a_process_of_its_own(tmp_path):
    """The layers of a window keep their base; both forms of the fields are read as one."""
    folder = exported(tmp_path, family="gemma3")
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_parameters"]["full_attention"]["rope_type"] == config["rope_scaling"]["rope_type"] == "yarn"
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (1e6, 1e4)
    assert described(AutoConfig.from_pretrained(folder)).of(0).spec == {"kind": "rope", "base": 1e4}


def test_what_is_in_the_folder(here, tmp_path):
    model = turned(families.model("llama"), YARN, TARGET)
    model.generation_config.update(do_sample=True, temperature=0.7)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train()
    folder = export(model, words(), YARN, tmp_path / "out", target=TARGET).folder
    assert model.training and model.dtype == torch.float32  # it is as it was
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    stored = load_file(folder / "model.safetensors")
    assert stored.keys() == before.keys() and all(torch.equal(before[name], stored[name]) for name in stored)
    config = json.loads((folder / "config.json").read_text())
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert config["rope_parameters"] == scaling | {"rope_theta": 10000.0}
    assert (config["rope_scaling"], config["rope_theta"]) == (scaling, 10000.0)
    assert config["max_position_embeddings"] == TARGET and config["model_type"] == "llama"
    assert json.loads((folder / "generation_config.json").read_text())["temperature"] == 0.7
    text = tiny_llm.text(9)
    assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == words()(text)["input_ids"]


def test_a_tokenizer_that_says_it_reads_less_is_told_better(here, tmp_path):
    short = words()
    short.model_max_length = 64
    model = turned(families.model("llama"), YARN, TARGET)
    folder = export(model, short, YARN, tmp_path / "out", target=TARGET).folder
    assert AutoTokenizer.from_pretrained(folder).model_max_length == TARGET


def test_a_model_in_half_precision_stays_so(here, tmp_path):
    """And its angles are not rounded with it."""
    model = turned(families.model("llama").bfloat16(), YARN, TARGET)
    folder = export(model, words(), YARN, tmp_path / "out", target=TARGET).folder
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert loaded.dtype == torch.bfloat16 and loaded.model.rotary_emb.inv_freq.dtype == torch.float32


def refusal(tmp_path, model, spec, **how) -> str:
    """Why it is not exported; and nothing that looks finished, or half, is left."""
    with pytest.raises(LabError) as refused:
        export(model, words(), spec, tmp_path / "out", target=TARGET, **how)
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.tmp").exists()
    return str(refused.value)


def test_another_encoding_than_was_measured_is_no_export(here, tmp_path):
    """The model turns by 3, and says 4."""
    model = turned(families.model("llama"), {"kind": "rope-yarn", "factor": 3.0}, TARGET)
    said = refusal(tmp_path, model, {"kind": "rope-yarn", "factor": 4.0})
    assert "does not load as the model that was measured:\n  float32: logits of 32 tokens are" in said
    assert "would be the same model" in said and "nothing was written" in said


def test_a_model_without_the_encoding_is_no_export(here, tmp_path):
    assert "logits of 80 tokens" in refusal(tmp_path, families.model("llama"), YARN)


def test_angles_that_were_rounded_are_no_export(here, tmp_path):
    """Of layers of a window, which keep the module that they came with."""
    model = turned(families.model("gemma3"), YARN, TARGET)
    for _, module in model.named_modules():
        if hasattr(module, "sliding_attention_inv_freq"):
            module.sliding_attention_inv_freq = module.sliding_attention_inv_freq.bfloat16()
    assert "float32: logits of" in refusal(tmp_path, model, YARN)


def test_angles_and_growth_are_compared_by_themselves(here, tmp_path, monkeypatch):
    """As a reader would see that takes no heed of what is written."""
    from transformers import modeling_rope_utils as theirs

    model, real = turned(families.model("llama"), YARN, TARGET), theirs.ROPE_INIT_FUNCTIONS["yarn"]

    def other(*args, **how):
        angles, growth = real(*args, **how)
        return angles * (1 + 1e-5), growth * (1 + 1e-5)

    monkeypatch.setitem(theirs.ROPE_INIT_FUNCTIONS, "yarn", other)
    said = refusal(tmp_path, model, YARN)
    assert "float32: model.rotary_emb turns by other angles at 1 tokens, by up to 1e-05 of them" in said
    assert "float32: model.rotary_emb grows queries and keys by 1.13864 at 1 tokens, not by 1.13863" in said
    assert said.count("\n") <= 10


@pytest.mark.parametrize("harm", ["missing", "other"])
def test_weights_that_are_not_those_measured_are_no_export(here, tmp_path, monkeypatch, harm):
    def spoil(folder, *rest):
        weights = load_file(folder / "model.safetensors")
        if harm == "missing":
            del weights["model.layers.1.mlp.up_proj.weight"]
        else:
            weights["model.layers.1.mlp.up_proj.weight"] *= 1.001
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return ""

    monkeypatch.setattr(lab.export.write, "card", lambda *_: (spoil(tmp_path / "out.tmp"), "")[1])
    said = refusal(tmp_path, turned(families.model("llama"), YARN, TARGET), YARN)
    names = "float32: missing keys: model.layers.1.mlp.up_proj.weight"
    assert (names in said) == (harm == "missing") and "logits of" in said


def test_what_is_there_is_not_written_over(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("mine")
    with pytest.raises(LabError, match="out is there already: export to another folder, or remove it first"):
        export(families.model("llama"), words(), YARN, tmp_path / "out", target=TARGET)
    assert (tmp_path / "out/mine").read_text() == "mine"


# the model card


def row(scheme: str, length: int, value: float | None, **more) -> Row:
    return Row("a", scheme, "rope", 0, "perplexity", "nats", length, value, 10, **more)


def test_the_card_says_what_was_done_and_measured(here, tmp_path):
    rows = [row("rope-yarn", 256, 2.5, low=2.4, high=2.61), row("rope", 256, 7.25), row("rope-yarn", 64, 2.0)]
    rows.append(row("learned", 256, None, note="takes at most 64 tokens"))
    card = (exported(tmp_path, measured=rows) / "README.md").read_text()
    assert "| 256 | rope-yarn | 2.5000 | 2.4000 to 2.6100 |\n" in card
    assert "| 256 | rope | 7.2500 | – |\n| 64 | rope-yarn | 2.0000 | – |" in card
    assert "| 256 | learned | – (takes at most 64 tokens) | – |" in card
    assert "| options | factor 4.0, base 10000.0 |" in card
    assert "| trained on | 64 tokens |\n| for inputs up to | 256 tokens |" in card
    assert "That of the base model" in card and "trust_remote_code" not in card


def test_the_card_claims_nothing_that_was_not_measured(here, tmp_path):
    card = (exported(tmp_path) / "README.md").read_text()
    assert "Nothing was measured of this checkpoint when it was written." in card and "nats" not in card


def test_the_card_names_the_base_and_not_where_it_lay(here, tmp_path):
    families.model("llama").save_pretrained(tmp_path / "base")
    model = turned(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), YARN, TARGET)
    card = (export(model, words(), YARN, tmp_path / "out", target=TARGET).folder / "README.md").read_text()
    assert "| base model | base |" in card and str(tmp_path) not in card and "base_model:" not in card
    model.config._name_or_path = "someone/small-llama"
    card = (export(model, words(), YARN, tmp_path / "two", target=TARGET).folder / "README.md").read_text()
    assert "base_model: someone/small-llama\n" in card


# what no configuration says

MIXED = {"kind": "rope-ntk-mixed", "factor": 4.0}


def coded(tmp_path, monkeypatch):
    """An export whose comparison is left out."""
    monkeypatch.setattr(lab.export.write, "differences", lambda *_, **__: [])
    model = turned(families.model("llama"), MIXED, TARGET)
    return export(model, words(), MIXED, tmp_path / "out", target=TARGET)


def test_what_no_configuration_says_is_code_and_says_so(tmp_path, monkeypatch):
    done = coded(tmp_path, monkeypatch)
    assert done.code and "load it with transformers with trust_remote_code=True and the lab installed" in done.message
    assert "no word for rope-ntk-mixed" in done.message
    config = json.loads((done.folder / "config.json").read_text())
    assert config["context_lab"] == {"positional": MIXED | {"base": 10000.0}, "train_length": 64}
    assert "trust_remote_code=True" in (done.folder / "README.md").read_text()
    compile((done.folder / "modeling_context_lab.py").read_text(), "modeling_context_lab.py", "exec")


def test_without_trust_it_is_refused_and_not_loaded_as_the_plain_model(tmp_path, monkeypatch):
    folder = coded(tmp_path, monkeypatch).folder
    for auto in (AutoConfig, AutoModelForCausalLM):
        with pytest.raises(ValueError, match="trust_remote_code=True"):
            auto.from_pretrained(folder, trust_remote_code=False)


def test_a_file_of_ones_own_is_no_export(tmp_path):
    own = tmp_path / "mine.py"
    own.write_text('"""Mine: as it is."""\nfrom positional.base import Scheme\n\n\nclass Mine(Scheme):\n    pass\n')
    said = refusal(tmp_path, families.model("llama"), str(own))
    assert said.startswith("mine is code of your own (mine.py), and transformers has no word for mine")


def test_an_encoding_that_learns_numbers_is_no_export(tmp_path):
    said = refusal(tmp_path, families.model("llama"), {"kind": "kerple"})
    assert said.startswith("kerple learns numbers of its own (") and "has a place for them" in said


SLOW = [MIXED, "rope-dynamic-yarn", {"kind": "self-extend", "group": 4, "window": 16}]


@pytest.mark.parametrize("spec", [["rope", "logn"], *(pytest.param(spec, marks=pytest.mark.slow) for spec in SLOW)])
def test_code_loads_as_what_was_measured(tmp_path, spec):
    """With the lab's own adopt, in a process of its own."""
    from lab.adopt import adopt

    assert export(adopt(families.model("llama"), spec), words(), spec, tmp_path / "out", target=TARGET).code
