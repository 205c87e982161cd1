"""Loading a model that someone else wrote: nothing is run by reading it, and nothing of it is made up."""

import json
import re
import shutil
from pathlib import Path

import pytest
import tiny_llm
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from eval import EvalError
from eval.__main__ import main
from eval.load import load

LAYER = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return tiny_llm.llama(tmp_path_factory.mktemp("models") / "whole")


@pytest.fixture
def folder(whole, tmp_path) -> Path:
    """A copy of a whole checkpoint, to be spoilt."""
    return Path(shutil.copytree(whole, tmp_path / "model"))


@pytest.fixture
def sharded(folder) -> list[Path]:
    """The shards of one that has several."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    return sorted(folder.glob("model-*.safetensors"))


def refusal(where) -> str:
    with pytest.raises(EvalError) as refused:
        load(str(where), "auto", "cpu")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def change_weights(folder: Path, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_whole_checkpoints_load(folder, sharded):
    model, _ = load(str(folder), "auto", "cpu")
    assert len(sharded) > 2 and not model.training and model.dtype == torch.float32


def test_pickled_weights_are_refused_by_name(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    load(str(folder), "auto", "cpu")  # safetensors beside it are what is read
    (folder / "model.safetensors").unlink()
    said = refusal(folder)
    assert said.startswith(f"{folder}/pytorch_model.bin is pickled, and reading a pickle runs what is in it")
    assert "write it anew with save_pretrained, which makes safetensors of it" in said
    assert "model.pt is pickled" in refusal((folder / "pytorch_model.bin").rename(folder / "model.pt"))


def test_no_pickle_is_opened(folder, tmp_path):
    """One that would leave a mark."""

    class Marks:
        def __reduce__(self):
            return Path.touch, (tmp_path / "mark",)

    (folder / "model.safetensors").unlink()
    torch.save({"weight": Marks()}, folder / "pytorch_model.bin")
    assert "is pickled" in refusal(folder) and not (tmp_path / "mark").exists()


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    assert refusal(folder) == (
        f"{folder} holds no weights: neither model.safetensors nor model.safetensors.index.json is there, download it "
        "again"
    )


def test_a_missing_shard_is_named(folder, sharded):
    sharded[1].unlink()
    assert refusal(folder).startswith(f"{sharded[1]} is missing, and model.safetensors.index.json names it: the checkp")


@pytest.mark.parametrize("size", [0, 5000, -100])
def test_a_file_that_is_cut_off_is_named(folder, size):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert refusal(folder).startswith(f"{path} is damaged or cut off ({path.stat().st_size} bytes: Error while deser")


def test_a_shard_that_is_cut_off_is_named(folder, sharded):
    sharded[2].write_bytes(sharded[2].read_bytes()[:-1])
    assert refusal(folder).startswith(f"{sharded[2]} is damaged or cut off")


def test_a_pointer_in_the_place_of_a_file(folder):
    """As a clone leaves it without git-lfs."""
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n"
    (folder / "model.safetensors").write_text(pointer)
    assert f"model.safetensors is damaged or cut off ({len(pointer)} bytes: " in refusal(folder)


@pytest.mark.parametrize("text", ['{"weight_map":', "{}", "[]", '{"weight_map": [1]}'])
def test_a_damaged_list_of_shards(folder, sharded, text):
    (folder / "model.safetensors.index.json").write_text(text)
    assert refusal(folder).endswith("model.safetensors.index.json is damaged, and names no shards: download it again")


def test_a_damaged_configuration(folder):
    (folder / "config.json").write_text('{"model_type":')
    assert refusal(folder) == (
        f"{folder}/config.json is not JSON (Expecting value: line 1 column 15 (char 14)): download it again"
    )
    (folder / "config.json").write_text("[1]")
    assert refusal(folder) == f"{folder}/config.json holds list and no dictionary of settings: download it again"


def test_a_folder_that_is_no_model_s_says_what_to_give(tmp_path):
    said = f"{tmp_path} holds no config.json: "
    assert refusal(tmp_path) == said + "give the folder of a model"
    (tmp_path / "m.gguf").write_bytes(b"")
    assert refusal(tmp_path) == said + f"give one of its .gguf files, such as {tmp_path}/m.gguf"
    (tmp_path / "adapter_config.json").write_text("{}")
    assert refusal(tmp_path) == (
        said + "it is an adapter's. Merge it into the model that it was made for, and give what comes of that"
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert refusal(tmp_path) == said + f"give {tmp_path}/model"


@pytest.mark.parametrize("name", ["/no/such/place", "./gone", "a/b/c", "gone.gguf", "gone.safetensors"])
def test_a_path_at_which_there_is_nothing_is_not_looked_for_on_the_hub(name):
    assert refusal(name) == f"no file or folder {name}, nor could it be a name on the Hugging Face hub"


def test_a_file_that_is_no_model(folder):
    assert refusal(folder / "config.json") == (
        f"{folder}/config.json is a file and no model: give the folder with config.json and weights, or a .gguf file"
    )


def test_a_name_on_the_hub_that_cannot_be_reached(monkeypatch):
    def offline(*_, **__):
        raise OSError("We couldn't connect to the hub.\nCheck your internet connection.")

    monkeypatch.setattr("eval.load.AutoTokenizer.from_pretrained", offline)
    assert refusal("owner/name") == (
        "there is no file or folder owner/name, and as a name on the Hugging Face hub it fails: We couldn't connect to "
        "the hub. Check its spelling, or download it where there is a network"
    )


def test_a_family_that_transformers_does_not_know(folder):
    config = json.loads((folder / "config.json").read_text())
    for family, hint in (("llamma", "did you mean llama?"), ("zzzzzzzz", "a newer one may")):
        (folder / "config.json").write_text(json.dumps(config | {"model_type": family}))
        assert refusal(folder) == (
            f"{folder}/config.json has the model_type {family}, which transformers {transformers.__version__} does not "
            f"know: {hint}"
        )
    del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config))
    assert refusal(folder) == (
        f"{folder}/config.json has no model_type, so that nothing knows which model it is: download it again"
    )


def test_a_tokenizer_that_is_not_there_is_told_apart_from_a_damaged_one(folder):
    (folder / "tokenizer.json").write_text("{")
    assert re.fullmatch(
        f"the tokenizer of {folder} does not load: Expecting .*: line 1 column 2 .*: download its files again",
        refusal(folder),
    )
    for path in folder.glob("tokenizer*"):
        path.unlink()
    assert refusal(folder) == (
        f"{folder} holds no tokenizer: put the one there that the model was made with, by "
        f"AutoTokenizer.from_pretrained(…).save_pretrained('{folder}')"
    )


def test_what_cannot_tell_the_next_token_is_named(tmp_path):
    sizes = {"d_model": 32, "d_ff": 32, "d_kv": 16, "num_layers": 1, "num_heads": 2}
    words = tiny_llm.tokenizer()
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=len(words), **sizes))
    assert refusal(tiny_llm.save(tmp_path / "t5", t5, words)) == (
        f"{tmp_path}/t5 is no causal language model: transformers has none for T5Config. Give a model that tells the "
        "next token"
    )


@pytest.mark.parametrize("decoder", [False, True])
def test_a_model_that_reads_both_ways_is_refused(tmp_path, decoder):
    """BERT loads as a causal language model, and is one only where its configuration says so."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    words = tiny_llm.tokenizer()
    bert = BertLMHeadModel(BertConfig(vocab_size=len(words), is_decoder=decoder, **sizes))
    path = tiny_llm.save(tmp_path / "bert", bert, words)
    if decoder:
        load(str(path), "auto", "cpu")
        return
    assert refusal(path) == (
        f"{path} is no causal language model: what it says of a token changes with the tokens after it. Give a model "
        "that reads from first to last"
    )


def test_a_device_that_is_not_there(folder):
    with pytest.raises(EvalError) as refused:
        load(str(folder), "auto", "gpu")
    assert (
        str(refused.value).startswith("device gpu is none of this machine, which has cpu") and refused.value.code == 2
    )


def test_a_list_of_what_is_missing_is_not_printed_as_well(folder, capfd):
    change_weights(folder, lambda weights: weights.pop(LAYER))
    refusal(folder)
    assert "LOAD REPORT" not in capfd.readouterr().err


def test_weights_that_are_not_there_are_named_and_not_made_up(folder):
    change_weights(folder, lambda weights: weights.pop(LAYER))
    assert refusal(folder).startswith(f"{folder} lacks {LAYER}, which would be random numbers: ")


def test_many_that_are_not_there_take_one_line(folder):
    change_weights(folder, lambda weights: [weights.pop(name) for name in [*weights] if "layers.1." in name])
    assert "model.layers.1.mlp.up_proj.weight and 5 more, which would be random numbers" in refusal(folder)


def test_a_head_that_is_not_there_is_missing_unless_it_is_tied(folder, tmp_path):
    sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    tied = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, tie_word_embeddings=True))
    tiny_llm.save(tmp_path / "tied", tied, tiny_llm.tokenizer())
    assert "lm_head.weight" not in load_file(tmp_path / "tied/model.safetensors")
    model, _ = load(str(tmp_path / "tied"), "auto", "cpu")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    change_weights(folder, lambda weights: weights.pop("lm_head.weight"))
    assert f"{folder} lacks lm_head.weight, which would be random numbers" in refusal(folder)


def test_weights_of_another_shape_are_named(folder):
    change_weights(folder, lambda weights: weights.update({LAYER: weights[LAYER][:5].clone()}))
    assert refusal(folder).endswith(f"of other shapes than its config.json says: {LAYER} (is 5×32, not 64×32)")


def test_a_type_of_rope_that_there_is_not(folder):
    """transformers raises a bare KeyError."""
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "ntk", "factor": 2.0, "rope_theta": 1e4}
    (folder / "config.json").write_text(json.dumps(config))
    assert refusal(folder).endswith("does not load as a causal language model: KeyError: 'ntk'")


def test_a_gguf_file_that_is_cut_off(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF\x03\x00")
    assert "model.gguf does not load as a causal language model: " in refusal(tmp_path / "model.gguf")


# code that comes along


@pytest.fixture
def coded(folder) -> Path:
    """A Llama under a name of its own, whose code says so."""
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "tiny-llama-of-its-own"
    config["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(
        "from pathlib import Path\nfrom transformers import LlamaConfig, LlamaForCausalLM\n\n"
        f"Path({str(folder / 'ran')!r}).touch()\n\n\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'tiny-llama-of-its-own'\n\n\n"
        "class Own(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    return folder


def test_code_that_comes_along_is_not_run_unasked(coded, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asks, where nobody may be"))
    said = refusal(coded)
    assert said.startswith(
        f"{coded} brings code of its own, which is run only where you say so: read it, then pass --tr"
    )
    assert not (coded / "ran").exists()


def test_code_that_comes_along_is_run_where_asked(coded, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    model, _ = load(str(coded), "auto", "cpu", remote_code=True)
    assert type(model).__name__ == "Own" and (coded / "ran").exists()


def test_the_command_line_says_how_to_allow_it(coded, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.txt").write_text(tiny_llm.text(60))
    words = [str(coded), "--lengths", "8,16", "--data", str(tmp_path / "a.txt"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["eval", *words])
    assert main() == 2
    assert "read it, then pass --trust-remote-code" in capsys.readouterr().err and not (coded / "ran").exists()
