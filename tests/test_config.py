"""Settings: what a YAML file becomes, and every mistake in one message. The messages are tested as text."""

import typing
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel
from tiny_runs import ROOT

import lab.settings
from eval.protocols import PROTOCOLS
from lab import LabError
from lab.config import dump, of_run, read, tree
from lab.extend.settings import Extending, asked
from lab.settings import (
    Asked,
    Compare,
    Data,
    Eval,
    Mixed,
    Model,
    Protocol,
    Run,
    Settings,
    Train,
    Trained,
    Training,
    tokens,
)
from positional.build import kinds, name_of

CONFIGS = sorted({*(ROOT / "configs").rglob("*.yaml")} - {ROOT / "configs/finetune.yaml"})  # tested where it is read


def write(folder: Path, text: str, name: str = "my.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def mistakes(path: Path, overrides: list[str] = ()) -> list[str]:
    """The lines of the one message, without their indent."""
    with pytest.raises(LabError) as caught:
        read(path, overrides)
    assert caught.value.code == 2
    return [line.strip() for line in str(caught.value).splitlines()]


def mistake(path: Path, overrides: list[str] = ()) -> str:
    """The one mistake that is there, under the line that counts it."""
    head, *lines = mistakes(path, overrides)
    assert head.endswith(": 1 to mend") and len(lines) == 1, [head, *lines]
    return lines[0]


# base.yaml and the files beside it


def keys_of_model(model: type[BaseModel], above: str = "") -> list[str]:
    """Every key that a settings class and the classes inside it have, dotted."""
    found = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        section = isinstance(inner, type) and issubclass(inner, BaseModel)
        found += keys_of_model(inner, f"{above}{name}.") if section else [above + name]
    return found


def keys_of_yaml(node: yaml.MappingNode, above: str = "") -> list[str]:
    """The keys as written: a dict would hide one that is written twice."""
    found = []
    for key, value in node.value:
        section = isinstance(value, yaml.MappingNode)
        found += keys_of_yaml(value, f"{above}{key.value}.") if section else [above + key.value]
    return found


def test_base_yaml_holds_the_defaults():
    assert read(ROOT / "configs/base.yaml") == Run()


def test_base_yaml_lists_every_setting_once_in_the_order_of_the_classes():
    written = keys_of_yaml(yaml.compose((ROOT / "configs/base.yaml").read_text()))
    assert written == keys_of_model(Run)


def test_base_yaml_says_what_each_setting_means():
    lines = (ROOT / "configs/base.yaml").read_text().splitlines()
    bare = {line.partition(":")[0].strip() for line in lines if ":" in line and "#" not in line}
    sections = {name for name, field in Run.model_fields.items() if field.annotation in Settings.__subclasses__()}
    # Names that say it all; `folder` is told beside `name`.
    assert bare - sections <= {"folder", "layers", "steps", "seeds"}


def test_every_settings_class_is_reached_from_run():
    reached, waiting = set(), [Run]
    while waiting:
        model = waiting.pop()
        reached.add(model)
        for field in model.model_fields.values():
            inner = [field.annotation, *typing.get_args(field.annotation)]
            waiting += [one for one in inner if isinstance(one, type) and issubclass(one, Settings)]
    assert reached == {Run, Data, Mixed, Model, Train, Eval, Asked, Compare, Trained}
    there = {one for one in vars(lab.settings).values() if isinstance(one, type) and issubclass(one, Settings)}
    assert reached == there - {Settings, Training}  # which others are made of


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT / "configs")))
def test_every_file_in_configs_reads(path):
    if "methods" in tree(path):  # of `lab extend`
        assert asked(str(path), ["to=2x", "model=there"]).name == path.stem
        return
    run = read(path)
    assert path.parent.name != "schemes" or run.name == path.stem


def test_extend_yaml_holds_the_defaults_of_every_setting_of_lab_extend():
    written = tree(ROOT / "configs/extend.yaml")
    assert asked(str(ROOT / "configs/extend.yaml"), ["to=2x", "model=there"]) == Extending(model="there", to="2x")
    assert {*written} == {*Extending.model_fields} - {"model", "to", "train_length"}  # which has no value to write


def test_the_scheme_files_train_what_they_are_named_after():
    for path in (ROOT / "configs/schemes").glob("*.yaml"):
        assert path.stem in name_of(read(path).model.positional).split("+")


def test_the_quickstart_compares_six_encodings_and_two_extensions():
    runs = read(ROOT / "configs/quickstart.yaml").compare.runs
    assert [line.train for line in runs] == ["nope", "sinusoidal", "learned", "relative", "alibi", "rope"]
    assert [spec["kind"] for spec in runs[-1].swap] == ["rope-linear", "rope-ntk"]


# base:


def test_a_chain_of_bases_is_laid_in_order_and_seen_from_each_file(tmp_path):
    write(tmp_path, "train: {steps: 1, lr: 0.5, clip: 2.0}\nname: lowest", "low/lowest.yaml")
    write(tmp_path, "base: low/lowest.yaml\ntrain: {steps: 2, lr: 0.25}", "middle.yaml")
    run = read(write(tmp_path, "base: ../middle.yaml\ntrain: {steps: 3}", "top/top.yaml"))
    assert (run.train.steps, run.train.lr, run.train.clip, run.name) == (3, 0.25, 2.0, "lowest")


def test_an_encoding_above_replaces_the_one_below_with_its_options(tmp_path):
    write(tmp_path, "model: {width: 64, positional: {kind: rope-ntk, factor: 2}}", "low.yaml")
    run = read(write(tmp_path, "base: low.yaml\nmodel: {positional: {kind: alibi}}"))
    assert (run.model.positional, run.model.width) == ({"kind": "alibi"}, 64)


def test_a_list_above_replaces_the_list_below(tmp_path):
    write(tmp_path, "eval: {lengths: [1x, 2x, 4x]}", "low.yaml")
    assert read(write(tmp_path, "base: low.yaml\neval: {lengths: [8x]}")).eval.lengths == ["8x"]


def test_a_loop_of_bases_is_named(tmp_path):
    write(tmp_path, "base: b.yaml", "a.yaml")
    write(tmp_path, "base: a.yaml", "b.yaml")
    with pytest.raises(LabError, match=r"a\.yaml: `base:` leads back to itself"):
        read(tmp_path / "a.yaml")


def test_a_file_that_is_its_own_base_is_named(tmp_path):
    with pytest.raises(LabError, match=r"my\.yaml: `base:` leads back to itself"):
        read(write(tmp_path, "base: ./my.yaml"))


def test_two_files_may_share_a_base(tmp_path):
    write(tmp_path, "seed: 5", "low.yaml")
    paths = [write(tmp_path, f"base: low.yaml\nname: {name}", f"{name}.yaml") for name in "ab"]
    assert [read(path).seed for path in paths] == [5, 5]


def test_a_missing_base_is_named_with_the_file_that_asks_for_it(tmp_path):
    with pytest.raises(LabError, match=r"no file .*gone\.yaml \(the base of .*my\.yaml\)"):
        read(write(tmp_path, "base: gone.yaml"))


@pytest.mark.parametrize("base", ["5", "[a.yaml, b.yaml]", "{a: b}"])
def test_a_base_that_is_no_path_is_an_error_of_the_file(tmp_path, base):
    with pytest.raises(LabError, match=r"my\.yaml.*base"):
        read(write(tmp_path, f"base: {base}"))


# Overrides


def over(tmp_path, *overrides: str, text: str = "{}") -> Run:
    return read(write(tmp_path, text), list(overrides))


@pytest.mark.parametrize("written", ["1e-3", "0.001", "1E-3", "1.0e-3", ".1e-2"])
def test_a_number_may_be_written_with_an_exponent(tmp_path, written):
    assert over(tmp_path, f"train.lr={written}").train.lr == 0.001


def test_an_exponent_in_the_file_is_a_number_too(tmp_path):
    assert read(write(tmp_path, "train: {lr: 3e-4, weight_decay: 1e0}")).train.lr == 3e-4


def test_lists_and_null_are_overrides(tmp_path):
    run = over(tmp_path, "eval.lengths=[1x, 64]", "train.betas=[0.8, 0.9]", "compare.seeds=[1,2]", "model.hidden=null")
    assert (run.eval.lengths, run.train.betas) == (["1x", 64], (0.8, 0.9))
    assert (run.compare.seeds, run.model.hidden) == ([1, 2], None)


def test_the_last_override_of_a_key_counts(tmp_path):
    assert over(tmp_path, "seed=1", "seed=2").seed == 2


def test_an_override_leaves_the_rest_of_its_section(tmp_path):
    run = over(tmp_path, "train.steps=7", text="train: {steps: 5, batch: 8}")
    assert (run.train.steps, run.train.batch) == (7, 8)


def test_an_equals_sign_may_stand_in_the_value(tmp_path):
    assert over(tmp_path, "data.name=a=b").data.name == "a=b"


def test_a_kind_replaces_an_encoding_that_has_options(tmp_path):
    text = "model: {positional: {kind: rope-ntk, factor: 2}}"
    assert over(tmp_path, "model.positional.kind=alibi", text=text).model.positional == {"kind": "alibi"}


def test_a_kind_replaces_an_encoding_that_is_a_name(tmp_path):
    text = "model: {positional: rope}"
    assert over(tmp_path, "model.positional.kind=alibi", text=text).model.positional == {"kind": "alibi"}


def test_a_kind_replaces_a_list_of_encodings(tmp_path):
    text = "model: {positional: [rope, alibi]}"
    assert over(tmp_path, "model.positional.kind=nope", text=text).model.positional == {"kind": "nope"}


@pytest.mark.parametrize(
    "text", ["{}", "model: {positional: rope}", "model: {positional: {kind: rope-linear, factor: 3}}"]
)
def test_a_kind_and_its_option_may_be_two_overrides_in_any_order(tmp_path, text):
    wanted = {"kind": "rope-ntk", "factor": 8}
    overrides = ["model.positional.kind=rope-ntk", "model.positional.factor=8"]
    for order in (overrides, overrides[::-1]):
        assert over(tmp_path, *order, text=text).model.positional == wanted


def test_an_option_alone_changes_that_option(tmp_path):
    text = "model: {positional: {kind: rope-ntk, factor: 2}}"
    run = over(tmp_path, "model.positional.factor=8", text=text)
    assert run.model.positional == {"kind": "rope-ntk", "factor": 8}


@pytest.mark.parametrize("text", ["train.lr", "=3", "train.=3", ".lr=3", "train..lr=3"])
def test_what_is_no_override_is_told_how_one_looks(tmp_path, text):
    with pytest.raises(LabError, match="is no override: write section.key=value, for example train.lr=0.001") as caught:
        over(tmp_path, text)
    assert caught.value.code == 2


def test_an_override_that_is_not_yaml_is_quoted(tmp_path):
    with pytest.raises(LabError, match=r"eval\.lengths=\[1x"):
        over(tmp_path, "eval.lengths=[1x")


@pytest.mark.parametrize(
    "overrides", [["model.positional=alibi", "model.positional.factor=2"], ["train=3", "train.lr=1.0"]]
)
def test_an_option_of_what_another_override_made_a_plain_value_is_an_error_of_the_user(tmp_path, overrides):
    with pytest.raises(LabError):
        over(tmp_path, *overrides)


def test_the_message_says_which_overrides_were_in_force(tmp_path):
    head, line = mistakes(write(tmp_path, "{}"), ["train.steps=0", "seed=1"])
    assert head == f"{tmp_path / 'my.yaml'} with train.steps=0 seed=1: 1 to mend"
    assert line.startswith("train.steps: ") and line.endswith("got 0")


# Mistakes


def test_a_protocol_that_cannot_score_these_lengths_is_told_before_training(tmp_path):
    """After it, hours may have gone by."""
    text = (
        "train: {length: 32}\neval: {lengths: [2, 4x, 1x], protocols: [equal, hf-stride, llama.cpp-half], stride: 48}"
    )
    _, *lines = mistakes(write(tmp_path, text))
    assert lines == [
        "eval.protocols: hf-stride: windows of 2 tokens, 48 apart, leave tokens out: take at most 2",
        "eval.protocols: llama.cpp-half scores no token of a window of 2: take longer lengths",
    ]
    assert over(tmp_path, "eval.protocols=[hf-stride, suffix, longlora-all]", "eval.stride=128")  # of 1x: 128


def test_an_unknown_protocol_is_told_with_those_that_there_are(tmp_path):
    _, line = mistakes(write(tmp_path, "eval: {protocols: [equal, mine]}"))
    assert line.startswith("eval.protocols.1: must be 'equal', 'position', 'suffix', 'yarn-prefix'")
    assert line.endswith("got 'mine'")


def test_the_protocols_of_the_settings_are_those_of_eval():
    assert typing.get_args(Protocol) == tuple(PROTOCOLS)


def test_all_mistakes_come_in_one_message(tmp_path):
    path = write(
        tmp_path,
        """
        trian: {steps: 5}
        seed: "0"
        data: {source: text, held_out: 2}
        model: {widht: 64, layers: 2.5, attention: fastest, positional: ropee}
        train: {steps: -1, precision: fp16, betas: [0.9], lr: fast}
        eval:
          lengths: [1x, 3, 4y]
          swap: [rope-ntk, {kind: rope-linear, factr: 2}, {kind: rope-ntk, factor: four}]
          documets: 4
        compare:
          runs: [{train: alibbi}, {train: rope, swap: [no-such-kind]}]
        """,
    )
    head, *lines = mistakes(path)
    assert head == f"{path}: {len(lines)} to mend"
    # pydantic's own order is not ours to promise, so each is looked for alone; none may be missing and none be extra.
    wanted = {
        "trian: unknown key, did you mean train?",
        "seed: must be a whole number, got '0'",
        "data: source text needs `path`: a file, a folder, a glob, or a list of these",
        "data.held_out: must be less than 1, got 2",
        "model.widht: unknown key, did you mean width?",
        "model.layers: must be a whole number, got 2.5",
        "model.attention: must be 'auto', 'flash3', 'flash4', 'flash2', 'sdpa', 'varlen', 'flex' or 'eager', "
        "got 'fastest'",
        "model.positional: unknown encoding `ropee`: did you mean rope?",
        "train.steps: must be greater than 0, got -1",
        "train.precision: must be 'auto', 'fp32' or 'bf16', got 'fp16'",
        "train.betas.1: Field required, got [0.9]",
        "train.lr: must be a number, got 'fast'",
        "eval.lengths[1]: 3 is odd (3): half of each window is context, half is scored",
        "eval.lengths[2]: '4y' is no length: write tokens (4096), thousands (4k) or train lengths (8x)",
        "eval.swap[0]: rope-ntk needs `factor` (a number or auto): write {kind: rope-ntk, factor: …}",
        "eval.swap[1]: rope-linear has no option `factr`: did you mean factor?",
        "eval.swap[2]: rope-ntk: `factor` must be a number or auto, got 'four'",
        "eval.documets: unknown key, did you mean documents?",
        "compare.runs[0].train: unknown encoding `alibbi`: did you mean alibi?",
        "compare.runs[1].swap[0]: unknown encoding `no-such-kind`; built in: ",
    }
    cut = {next((want for want in wanted if line.startswith(want)), line) for line in lines}
    assert cut == wanted


def test_a_line_of_a_comparison_without_train_hides_no_other_mistake(tmp_path):
    _, *lines = mistakes(write(tmp_path, "compare: {runs: [{train: alibbi}, {swap: [rope]}]}"))
    assert len(lines) == 2 and any("alibbi" in line for line in lines)


def test_one_mistake_is_told_once(tmp_path):
    assert mistake(write(tmp_path, "train: {step: 5}")) == "train.step: unknown key, did you mean steps?"


def test_a_key_like_no_other_is_told_what_there_is(tmp_path):
    line = mistake(write(tmp_path, "compare: {xyz: 1}"))
    assert line == "compare.xyz: unknown key; known here: seeds, runs"


def test_a_key_in_a_line_of_a_comparison_is_told_what_there_is_there(tmp_path):
    line = mistake(write(tmp_path, "compare: {runs: [{train: rope, swaps: [nope]}]}"))
    assert line == "compare.runs.0.swaps: unknown key, did you mean swap?"


def test_heads_that_do_not_divide_the_width_are_told_both_numbers(tmp_path):
    line = mistake(write(tmp_path, "model: {width: 100, heads: 3}"))
    assert line == "model: width 100 is not a multiple of heads 3: each head takes width / heads channels"


def test_key_heads_that_do_not_divide_the_heads_are_told_both_numbers(tmp_path):
    line = mistake(write(tmp_path, "model: {heads: 4, kv_heads: 3}"))
    assert line.startswith("model: heads 4 is not a multiple of kv_heads 3")


def test_sizes_and_lengths_that_do_not_fit_come_together(tmp_path):
    _, *lines = mistakes(write(tmp_path, "model: {width: 100, heads: 3}\neval: {lengths: [1x, 4y]}"))
    assert [line.partition(":")[0] for line in lines] == ["model", "eval.lengths[1]"]


def test_a_wrong_width_is_not_held_against_the_heads(tmp_path):
    # 128, the width that would stand there, is not a multiple of 6; the user never wrote 128.
    line = mistake(write(tmp_path, 'model: {width: "96", heads: 6}'))
    assert line == "model.width: must be a whole number, got '96'"


def test_an_odd_head_size_is_refused_under_rope_and_taken_without_it(tmp_path):
    text = "model: {width: 36, heads: 4, positional: %s}"
    line = mistake(write(tmp_path, text % "rope"))
    assert line.startswith("model.positional: rope") and "9" in line
    assert read(write(tmp_path, text % "alibi")).model.width == 36


def test_a_swap_that_does_not_fit_the_heads_is_refused_before_training(tmp_path):
    text = "model: {width: 36, heads: 4, positional: alibi}\neval: {swap: [rope]}"
    assert mistake(write(tmp_path, text)).startswith("eval.swap[0]: rope")


@pytest.mark.parametrize(
    "spec, said", [("5", "an encoding is a name"), ("{factor: 2}", "an encoding is a name"), ("[]", "empty list")]
)
def test_what_is_no_encoding_is_told_how_one_looks(tmp_path, spec, said):
    line = mistake(write(tmp_path, f"model: {{positional: {spec}}}"))
    assert line.startswith("model.positional: ") and said in line


def test_true_is_no_number(tmp_path):
    assert mistake(write(tmp_path, "train: {batch: true}")).startswith("train.batch: must be a whole number")


def test_a_name_must_be_good_for_a_folder(tmp_path):
    for name in ("../up", "a b", "", ".hidden", "a/b"):
        assert mistake(write(tmp_path, f'name: "{name}"')).startswith("name: ")


@pytest.mark.parametrize("seeds", ["[-1]", "[0, -3]"])
def test_seeds_of_a_comparison_are_checked_like_the_seed(tmp_path, seeds):
    assert mistake(write(tmp_path, "seed: -1")).startswith("seed: ")
    assert mistake(write(tmp_path, f"compare: {{seeds: {seeds}}}")).startswith("compare.seeds")


def test_an_empty_section_means_its_defaults(tmp_path):
    """All keys of a section commented out: what everyone does while trying things."""
    assert read(write(tmp_path, "train:\n  # steps: 5\nseed: 1")) == Run(seed=1)


# Files that are not what they should be


def test_yaml_that_does_not_parse_is_told_where(tmp_path):
    with pytest.raises(LabError, match=r"my\.yaml is not readable as YAML: [\s\S]*line 2"):
        read(write(tmp_path, "train: {steps: 5\nseed: ]"))


def test_a_missing_file_a_folder_and_a_binary_file_are_named(tmp_path):
    with pytest.raises(LabError, match=r"^no file .*gone\.yaml$"):
        read(tmp_path / "gone.yaml")
    with pytest.raises(LabError, match="is not readable as YAML"):
        read(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(bytes(range(128, 256)))
    with pytest.raises(LabError, match=r"model\.safetensors is not readable as YAML"):
        read(tmp_path / "model.safetensors")


def test_yaml_that_holds_no_keys_is_told_what_it_holds(tmp_path):
    with pytest.raises(LabError, match=r"my\.yaml must hold `key: value` lines, found list"):
        read(write(tmp_path, "- rope\n- alibi"))


def test_a_key_that_is_no_word_is_an_unknown_key(tmp_path):
    """YAML reads `on:` as true and `1:` as a number."""
    for key in ("on", "1"):
        with pytest.raises(LabError, match="unknown key"):
            read(write(tmp_path, f"{key}: 2"))


def test_an_empty_file_is_a_run_of_defaults(tmp_path):
    assert read(write(tmp_path, "")) == Run()


# Written down and read back


RICH = """
name: my-run_2.0
seed: 3
data: {source: text, path: a.txt, held_out: 0.25}
model: {positional: [{kind: rope-ntk, factor: 8}, alibi], kv_heads: 2}
train: {lr: 1e-3, betas: [0.8, 0.99], schedule: stable}
eval: {lengths: [1x, 64, 4k], swap: [{kind: rope-linear, factor: auto}]}
compare: {seeds: [1, 2], runs: [{train: nope}, {train: rope, swap: [alibi]}]}
"""


def test_what_is_dumped_reads_back_equal(tmp_path):
    run = read(write(tmp_path, RICH))
    assert (run.data.path, run.train.betas) == (["a.txt"], (0.8, 0.99))
    assert read(write(tmp_path, dump(run), "again.yaml")) == run


def test_settings_cannot_be_changed_after_reading():
    with pytest.raises(ValueError, match="frozen"):
        Run().train.lr = 1.0


def run_folder(tmp_path) -> Path:
    run = read(write(tmp_path, RICH))
    write(tmp_path, dump(run), "elsewhere/moved/config.yaml")
    return tmp_path / "elsewhere/moved"


def test_a_run_is_read_from_where_it_lies_now(tmp_path):
    run = of_run(run_folder(tmp_path))
    assert (run.path, run.seed) == (tmp_path / "elsewhere/moved", 3)


def test_a_run_is_read_from_inside_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(run_folder(tmp_path))
    run = of_run(Path("."))
    assert run.path.resolve() == tmp_path / "elsewhere/moved" and run.name == "moved"


def test_how_a_run_is_measured_may_change(tmp_path):
    folder = run_folder(tmp_path)
    more = write(tmp_path, "eval: {lengths: [2x], swap: [nope]}", "more.yaml")
    run = of_run(folder, [str(more), "eval.documents=5"])
    assert (run.eval.lengths, run.eval.swap, run.eval.documents) == (["2x"], ["nope"], 5)


@pytest.mark.parametrize("change", ["model.width=64", "train.length=64", "model.positional=alibi", "train.steps=5"])
def test_what_a_run_has_behind_it_cannot_change(tmp_path, change):
    folder = run_folder(tmp_path)
    with pytest.raises(LabError, match=f"{change} changes `model` or `train`, which .*moved has behind it") as caught:
        of_run(folder, [change])
    assert caught.value.code == 2


def test_a_file_may_repeat_what_a_run_is(tmp_path):
    assert of_run(run_folder(tmp_path), ["train.lr=0.001", "seed=3"]).train.lr == 0.001


def test_a_folder_that_is_no_run_is_told_what_makes_one(tmp_path):
    with pytest.raises(LabError, match=r"is no run: it has no config.yaml. `lab train` makes one"):
        of_run(tmp_path)


# Lengths


@pytest.mark.parametrize(
    "written, meant",
    [("4k", 4096), ("4K", 4096), ("8x", 1024), ("8X", 1024), (96, 96), ("96", 96), ("1x", 128), (2, 2)],
)
def test_a_length_is_tokens_thousands_or_training_lengths(written, meant):
    assert tokens(written, 128) == meant


@pytest.mark.parametrize("written", ["", "x", "k", "long", "-4", "0", 0, -8, "4.5x", 4.0, "1e3", None, True, [], "2xx"])
def test_nonsense_is_no_length(written):
    with pytest.raises(ValueError, match=r"is no length: write tokens \(4096\), thousands \(4k\) or train lengths"):
        tokens(written, 128)


@pytest.mark.parametrize("written, count", [(7, 7), ("33", 33), ("3x", 45)])
def test_an_odd_length_is_told_why_not(written, count):
    with pytest.raises(ValueError, match=rf"is odd \({count}\): half of each window is context, half is scored"):
        tokens(written, 15)


def test_the_tree_of_a_file_says_what_was_written_and_no_more(tmp_path):
    write(tmp_path, "seed: 5", "low.yaml")
    assert tree(write(tmp_path, "base: low.yaml\nname: a")) == {"seed": 5, "name": "a"}


def test_the_catalogue_has_every_kind():
    run, said = read(ROOT / "configs/catalogue.yaml"), []

    def note(spec) -> None:
        if isinstance(spec, list):
            [note(one) for one in spec]
        elif isinstance(spec, dict):
            said.append(spec["kind"])
            [note(value) for value in spec.values() if isinstance(value, list | dict)]
        elif isinstance(spec, str):
            said.append(spec)

    for line in run.compare.runs:
        note(line.train), note(line.swap)
    assert set(kinds()) <= set(said)
