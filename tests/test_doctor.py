"""`lab doctor`: what it finds in configurations good and bad, the numbers it gives, how it reads, prints and exits."""

import json
import math
import sys
from pathlib import Path

import pytest
from doctor_configs import BAD, GEMMA3, GOOD, LLAMA, LLAMA3, LONG64, LONGROPE, PHI3, YARN, llama, without
from matplotlib.image import imread

from lab import LabError, cli
from lab.doctor import Report, examine
from lab.doctor.as_json import as_json
from lab.doctor.engines import VERSIONS
from lab.doctor.entries import entries
from lab.doctor.figure import draw
from lab.doctor.lanes import Lanes
from lab.doctor.report import fields, numbers

TABLE = GOOD | BAD


@pytest.fixture
def written(tmp_path):
    """A configuration as a file, examined."""

    def written(config: dict) -> Report:
        (tmp_path / "config.json").write_text(json.dumps(config))
        return examine(str(tmp_path))

    return written


@pytest.fixture
def call(monkeypatch, capsys):
    """`lab doctor …` in this process: (exit code, stdout, stderr)."""

    def call(*words) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lab", "doctor", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "160")
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        return code, *capsys.readouterr()

    return call


def found(report: Report) -> str:
    return ", ".join(dict.fromkeys(f"{one.level} {one.code}" for one in report.findings))


def message(report: Report, code: str) -> str:
    one = next(one for one in report.findings if one.code == code)
    return f"{one.field} {one.problem}" + (f" → {one.instead}" if one.instead else "")


def lanes(report: Report, number: int = 0) -> Lanes:
    assert isinstance(report.lanes[number], Lanes), report.lanes[number]
    return report.lanes[number]


# What is found


def test_the_table_is_long():
    assert len(GOOD) >= 30 and len(BAD) >= 60


@pytest.mark.parametrize("name", TABLE)
def test_it_finds_this_and_nothing_else(written, name):
    config, wanted = TABLE[name]
    report = written(config)
    assert found(report) == wanted
    assert report.failed == ("error" in wanted)
    for one in report.findings:
        assert one.field and one.problem and "None" not in one.problem + one.instead


@pytest.mark.parametrize("name", GOOD)
def test_no_published_configuration_is_an_error(written, name):
    assert not written(GOOD[name][0]).failed


@pytest.mark.parametrize(
    ("config", "code", "said"),
    [
        (
            llama({"rope_type": "liner", "factor": 4.0}),
            "unknown-type",
            "rope_scaling.rope_type 'liner' is no type that transformers knows: the configuration loads, and "
            "building the model ends in KeyError: 'liner' → did you mean linear?",
        ),
        (
            llama(YARN | {"rope_type": "YARN"}),
            "unknown-type",
            "rope_scaling.rope_type 'YARN' is no type that transformers knows: the configuration loads, and "
            "building the model ends in KeyError: 'YARN' → did you mean yarn?",
        ),
        (
            llama({"type": "ntk", "factor": 8.0}, rope_theta=1e4, head_dim=64),
            "unknown-type",
            "rope_scaling.type 'ntk' is no type that transformers knows: the configuration loads, and building "
            "the model ends in KeyError: 'ntk' → transformers has no static NTK: write "
            '"rope_theta": 85550.4, and no dictionary',
        ),
        (
            llama(YARN | {"beta_fst": 16}),
            "typo",
            "rope_scaling.beta_fst is read by nothing: transformers logs it and goes on with the default → did "
            "you mean beta_fast?",
        ),
        (
            without(LLAMA, "rope_theta") | {"rope_thetha": 5e5},
            "typo",
            "rope_thetha is read by nothing → did you mean rope_theta?",
        ),
        (
            llama({"factor": 4.0}),
            "missing-type",
            "rope_scaling.rope_type is missing: transformers takes the whole dictionary for plain RoPE, and "
            'only logs the keys it does not use (factor) → "rope_type": "linear"',
        ),
        (
            llama(without(LLAMA3, "rope_type")),
            "missing-type",
            "rope_scaling.rope_type is missing: transformers takes the whole dictionary for plain RoPE, and "
            "only logs the keys it does not use (factor, high_freq_factor, low_freq_factor, "
            'original_max_position_embeddings) → "rope_type": "llama3"',
        ),
        (
            llama(without(YARN, "original_max_position_embeddings")),
            "missing-original",
            "rope_scaling.original_max_position_embeddings is missing: L0 is silently taken to be "
            "max_position_embeddings (32768), right only if that was never raised → "
            '"original_max_position_embeddings": 8192, the length of training before the extension',
        ),
        (
            llama({"rope_type": "linear", "factor": 0.25}),
            "factor-below-1",
            "rope_scaling.factor is 0.25: lanes would turn faster than in training, and transformers only logs "
            "it → how many times longer than in training inputs are to be; did you mean its inverse, 4?",
        ),
        (
            llama({"rope_type": "linear", "factor": "4.0"}),
            "not-a-number",
            "rope_scaling.factor must be a number, and is '4.0' → 4",
        ),
        (
            llama({"rope_type": "linear", "factor": True}),
            "not-a-number",
            "rope_scaling.factor must be a number, and is true → a number",
        ),
        (
            llama(YARN | {"factor": 8.0}),
            "factor-mismatch",
            "rope_scaling.factor is 8, and max_position_embeddings ÷ original_max_position_embeddings is 32768 "
            "÷ 8192 = 4: transformers takes 8, for inputs up to 65536 → 4, or max_position_embeddings 65536",
        ),
        (
            PHI3 | {"rope_scaling": LONGROPE | {"long_factor": [1.0] * 47}},
            "list-length",
            "rope_scaling.long_factor has 47 numbers for 48 lanes: transformers logs it, and fails when the "
            "list is used → 48 numbers",
        ),
        (
            llama(YARN | {"rope_type": "dynamic"}),
            "dynamic-raised",
            "max_position_embeddings is 32768, and dynamic takes it for the length of training, whatever "
            "original_max_position_embeddings (8192) says: up to 32768 tokens nothing is scaled at all → 8192; "
            "and leave original_max_position_embeddings out",
        ),
        (
            GEMMA3 | {"rope_parameters": {"full_atention": {"rope_type": "default"}}},
            "unknown-layers",
            "rope_parameters.full_atention is the type of no layer, and is ignored → did you mean full_attention?",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_a_finding_says_where_what_and_what_instead(written, config, code, said):
    assert message(written(config), code) == said


@pytest.mark.parametrize("name", ["yarn", "Phi-3-mini-128k", "Gemma-3-4b, v5", "Pythia-160m"])
def test_no_value_of_any_field_breaks_the_doctor(written, name):
    """Each field in turn as what it must not be."""
    config = GOOD[name][0] if name in GOOD else llama(YARN | {"mscale": 1.0, "truncate": True, "beta_fast": 32})
    for path in paths(config):
        for value in (None, True, -1, 0, 1e300, 2.5, "x", [], {}, [{}], {"rope_type": []}):
            broken = json.loads(json.dumps(config))
            within = broken
            for key in path[:-1]:
                within = within[key]
            within[path[-1]] = value
            as_json(written(broken))


def paths(config: dict, above: tuple = ()):
    for key, value in config.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


def test_errors_come_first(written):
    levels = [one.level for one in written(llama(YARN | {"factor": "8", "warmth": 1, "beta_slow": 0})).findings]
    assert levels == sorted(levels, key=["error", "warning", "note"].index) and len(set(levels)) == 3


def test_growths_of_both_versions_are_told_where_they_differ(written):
    """8 × by the lengths, 4 by the factor: 1.15470 and 1.22474 of 512 tokens."""
    config = PHI3 | {"max_position_embeddings": 4096, "original_max_position_embeddings": 512}
    said = message(written(config | {"rope_scaling": LONGROPE | {"factor": 4.0}}), "factor-mismatch")
    assert f"growth {math.sqrt(1 + math.log(4) / math.log(512)):.4f}" in said
    assert f"the latter ({2 / math.sqrt(3):.4f})" in said


def test_a_key_that_stands_twice_is_told(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA)[:-1] + ', "rope_theta": 10000.0}')
    report = examine(str(tmp_path / "config.json"))
    assert found(report) == "warning twice" and report.entries[0].base == 10000.0


# The numbers


@pytest.mark.parametrize(
    ("head", "base", "length", "critical"), [(64, 1e4, 512, 32), (128, 1e4, 4096, 92), (128, 5e5, 8192, 70)]
)
def test_the_critical_dimension_is_the_published_one(written, head, base, length, critical):
    config = LLAMA | {"head_dim": head, "rope_theta": base, "max_position_embeddings": length}
    made = lanes(written(config))
    assert made.critical == critical and made.unturned == (head - critical) // 2


@pytest.mark.parametrize(
    ("head", "base", "length", "ramp"),
    [
        (32, 1e4, 512, (1, 8)),
        (64, 1e4, 128, (0, 11)),
        (64, 1e4, 512, (3, 16)),
        (64, 1e4, 4096, (10, 23)),
        (128, 1e4, 512, (6, 31)),
        (128, 1e4, 2048, (16, 41)),
        (64, 5e5, 2048, (5, 15)),
    ],
)
def test_yarn_s_ramp_is_the_published_one(written, head, base, length, ramp):
    scaling = YARN | {"factor": 8.0, "original_max_position_embeddings": length}
    fields = {"head_dim": head, "rope_theta": base, "max_position_embeddings": 8 * length}
    made = lanes(written(llama(scaling, **fields)))
    assert made.ramp == ramp and (made.trained, made.target) == (length, 8 * length)
    assert made.gain == pytest.approx(1.2079441541679836, rel=1e-12)


def test_gpt_oss_has_a_ramp_between_lanes(written):
    made = lanes(written(GOOD["gpt-oss-20b"][0]))
    assert made.ramp == pytest.approx((8.092779115512402, 17.39802450158856), rel=1e-12)
    assert made.gain == pytest.approx(1.3465735902799727, rel=1e-12)


def test_deepseek_s_mscales_cancel_and_its_softmax_is_told(written):
    report = written(GOOD["DeepSeek-V3"][0])
    assert lanes(report).gain == 1.0 and lanes(report).channels == 64
    assert "(× 1.8739); transformers' deepseek_v3 does" in message(report, "mscale-cancels")


def test_llama3_keeps_blends_and_slows_as_many_lanes_as_published(written):
    """21 / 10 / 33 of 128 channels trained on 512 tokens with a base of 10000."""
    scaling = LLAMA3 | {"original_max_position_embeddings": 512}
    made = lanes(written(llama(scaling, max_position_embeddings=4096, rope_theta=1e4)))
    assert list(made.kinds.values()) == [21, 10, 33] and made.gain == 1.0 and made.ramp is None


def test_phi3_grows_by_the_published_root(written):
    assert lanes(written(GOOD["Phi-3-mini-128k"][0])).gain == pytest.approx(1.1902380714238083, rel=1e-12)


def test_each_type_of_layer_has_its_own_lanes(written):
    report = written(GOOD["Gemma-3-4b"][0])
    assert [one.layers for one in report.entries] == ["full_attention", "sliding_attention"]
    assert [lanes(report, n).base for n in (0, 1)] == [1e6, 1e4]
    assert lanes(report).kinds == {"stretched 8 ×": 128} and lanes(report, 1).kinds == {"kept": 128}


def test_the_form_makes_no_difference_to_the_lanes(written):
    old, new = (lanes(written(GOOD[name][0])) for name in ("Llama-3.1-8B", "Llama-3.1-8B, v5"))
    assert old.long == new.long and old.plain == new.plain
    old, new = (written(GOOD[name][0]) for name in ("Gemma-3-4b", "Gemma-3-4b, v5"))
    assert all(lanes(old, n).long == lanes(new, n).long for n in (0, 1))


@pytest.mark.parametrize(
    ("name", "channels", "head"), [("Pythia-160m", 16, 64), ("GPT-J-6B", 64, 256), ("Gemma-2-9b", 256, 256)]
)
def test_channels_that_turn_are_counted(written, name, channels, head):
    made = lanes(written(GOOD[name][0]))
    assert (made.channels, made.head, len(made.plain)) == (channels, head, channels // 2)


def test_lanes_that_stand_still_have_no_wavelength(written):
    parameters = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    made = lanes(written(without(LLAMA, "rope_theta") | {"rope_parameters": parameters}))
    assert made.kinds == {"kept": 16, "stand still": 48} and made.long[16:] == [math.inf] * 48


def test_what_cannot_be_computed_says_why(written):
    report = written(llama({"rope_type": "linear", "factor": "4.0"}))
    assert report.lanes == ["its type, base or factor is not known"]
    assert written({"model_type": "llama", "head_dim": 64, "max_position_embeddings": 0}).lanes == [
        "the channels that turn, or the length of training, are not known"
    ]


# Who reads it otherwise


def points(report: Report) -> set[str]:
    return {one.point for one in report.differences}


def test_readers_are_compared_where_they_differ_alone(written):
    assert points(written(LLAMA)) == set()
    assert points(written(LLAMA | {"torch_dtype": "bfloat16"})) == {"cosines and sines"}
    assert points(written(GOOD["Llama-3.1-8B, v5"][0])) == set()
    assert points(written(GOOD["gpt-oss-20b"][0])) == {"truncate: false"}
    assert points(written(GOOD["DeepSeek-V3"][0])) == {"mscale and mscale_all_dim"}
    assert points(written(llama({"type": "ntk", "factor": 4.0}))) == {"static NTK"}
    assert points(written(llama(YARN | {"mscale": 0.7}))) == {"one mscale alone"}
    assert points(written(GOOD["GPT-2"][0])) == set()


def test_readers_of_longrope_differ_in_switch_and_growth(written):
    config = PHI3 | {"rope_scaling": LONGROPE | {"factor": 16.0}}
    switch, growth = written(config).differences
    assert switch.vllm == "for all inputs if max_model_len > 4096; its default is 4096"
    assert growth.transformers.startswith("1.1547, ") and growth.vllm.startswith("1.1902, ")


def test_a_dynamic_base_is_nothing_in_vllm(written):
    (one,) = written(llama({"type": "dynamic", "factor": 4.0})).differences
    assert "without max_trained_positions nothing is scaled" in one.vllm and one.llama_cpp.startswith("no dynamic NTK")


# How it is read


def test_a_folder_a_file_and_a_run_are_read(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA))
    for name in (tmp_path, tmp_path / "model", tmp_path / "model" / "config.json"):
        assert examine(str(name)).config.family == "llama"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": 1,}', "is not JSON: line 1, column 9: "),
        (b"", "is not JSON: line 1, column 1: "),
        (b"[1]", "holds list and no dictionary of settings"),
        (b"\xff\xfe\x00\xd8", "is no text, so no configuration"),
    ],
)
def test_a_file_that_is_no_configuration_is_said_to_be_none(tmp_path, content, said):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(LabError) as caught:
        examine(str(tmp_path / "config.json"))
    assert str(caught.value).startswith(f"{tmp_path}/config.json {said}")


def test_a_folder_without_one_says_what_to_give(tmp_path):
    with pytest.raises(LabError, match="holds no config.json: give the folder or file that does"):
        examine(str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"")
    with pytest.raises(LabError, match="give one of its .gguf files, such as .*m.gguf"):
        examine(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(LabError, match="holds an adapter: give the model it was made for"):
        examine(str(tmp_path))


@pytest.mark.parametrize("name", ["gone/config.json", "a/b/c", "./gone", "weights.safetensors"])
def test_a_path_that_is_not_there_is_not_looked_for_on_the_hub(monkeypatch, name):
    monkeypatch.setattr("transformers.utils.hub.cached_file", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(LabError) as caught:
        examine(name)
    assert str(caught.value) == f"no file {name}, nor could it be a name on the Hugging Face hub"


def test_weights_are_no_configuration(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"0")
    with pytest.raises(LabError, match="is no configuration: give a config.json"):
        examine(str(tmp_path / "model.safetensors"))


def test_a_name_on_the_hub_is_asked_for_its_configuration_alone(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    asked = []
    monkeypatch.setattr(
        "transformers.utils.hub.cached_file", lambda *words: asked.append(words) or str(tmp_path / "config.json")
    )
    assert examine("owner/name").config.family == "llama" and asked == [("owner/name", "config.json")]


def test_without_a_network_a_name_on_the_hub_is_one_line(monkeypatch, call):
    def offline(*_):
        raise OSError("We couldn't connect to the hub.\nCheck your internet connection.")

    monkeypatch.setattr("transformers.utils.hub.cached_file", offline)
    assert call("owner/name") == (
        1,
        "",
        "lab: there is no file or folder owner/name, and as a name on the Hugging Face hub it gives no config.json: "
        "We couldn't connect to the hub.\n",
    )


# GGUF


@pytest.fixture
def gguf_file(tmp_path):
    """A file with metadata, one tensor that must not matter, and what `fill` adds."""
    gguf = pytest.importorskip("gguf")
    import numpy as np

    def made(fill, tensors: dict | None = None) -> str:
        writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
        writer.add_context_length(32768)
        writer.add_embedding_length(4096)
        writer.add_head_count(32)
        writer.add_rope_dimension_count(128)
        writer.add_rope_freq_base(500000.0)
        fill(writer)
        for name, values in ({"token_embd.weight": [0.0] * 32} | (tensors or {})).items():
            writer.add_tensor(name, np.array(values, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return str(tmp_path / "m.gguf")

    return made


def yarn_of(writer) -> None:
    writer.add_rope_scaling_type(sys.modules["gguf"].RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)


def test_metadata_of_a_gguf_file_is_read_as_a_config_json(gguf_file, written):
    def fill(writer):
        yarn_of(writer)
        writer.add_rope_scaling_orig_ctx_len(8192)

    report = examine(gguf_file(fill))
    assert found(report) == "" and report.differences == []
    assert lanes(report).long == lanes(written(llama(YARN))).long
    assert lanes(report).gain == lanes(written(llama(YARN))).gain
    assert ("llama.rope.scaling.factor", "4.0") in [row[:2] for row in fields(report)]


def test_a_gguf_file_is_told_of_in_its_own_words(gguf_file):
    report = examine(gguf_file(yarn_of))
    assert message(report, "missing-original").startswith(
        "llama.rope.scaling.original_context_length is missing: L0 is silently taken to be llama.context_length (32768)"
    )
    plain = examine(gguf_file(lambda writer: None))
    assert (
        found(plain) == "" and lanes(plain).base == 500000.0 and plain.entries[0].base_field == "llama.rope.freq_base"
    )


def test_lane_factors_of_a_gguf_file_count(gguf_file):
    """Llama 3.1's are worked out when the file is made, and stand in a tensor."""
    factors = [1.0] * 32 + [8.0] * 32
    made = lanes(examine(gguf_file(lambda writer: None, {"rope_freqs.weight": factors})))
    assert made.kinds == {"kept": 32, "stretched 8 ×": 32} and made.gain == 1.0


def test_growth_in_a_gguf_file_multiplies(gguf_file):
    def fill(writer):
        yarn_of(writer)
        writer.add_rope_scaling_orig_ctx_len(8192)
        writer.add_rope_scaling_attn_factors(0.5)

    report = examine(gguf_file(fill))
    assert lanes(report).gain == pytest.approx(0.5 * (0.1 * math.log(4) + 1), rel=1e-6)


def test_a_gguf_file_needs_its_package_and_says_so(gguf_file, monkeypatch):
    path = gguf_file(lambda writer: None)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(LabError) as caught:
        examine(path)
    assert str(caught.value) == f"{path} needs the package gguf to be read: pip install gguf"


def test_what_is_no_gguf_file_is_said_to_be_none(tmp_path):
    pytest.importorskip("gguf")
    (tmp_path / "m.gguf").write_bytes(b"nothing of the kind, at any length")
    with pytest.raises(LabError, match="m.gguf is no GGUF file that can be read: "):
        examine(str(tmp_path / "m.gguf"))


# What is printed


def file_of(tmp_path: Path, config: dict) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path / "config.json"


def test_it_exits_with_1_where_there_is_an_error_alone(call, tmp_path):
    assert call(file_of(tmp_path, LLAMA))[0] == 0
    assert call(file_of(tmp_path, llama(YARN | {"factor": 8.0})))[0] == 0  # a warning
    assert call(file_of(tmp_path, llama({"factor": 4.0})))[0] == 1
    assert call(file_of(tmp_path, llama({"factor": 4.0})), "--json")[0] == 1


def test_it_prints_errors_first_then_fields_lanes_and_readers(call, tmp_path):
    code, said, err = call(file_of(tmp_path, llama(YARN | {"beta_fst": 16, "mscale": 0.7}, torch_dtype="bfloat16")))
    assert (code, err) == (1, "")
    parts = [
        "llama, RoPE yarn: 1 error, 1 warning, 2 notes",
        "did you mean beta_fast?",
        "does nothing without mscale_all_dim",
        "What it says",
        "rope_scaling.factor",
        "how many times longer than in training inputs are to be",
        "Lanes",
        "critical dimension  70 of 128 channels: 29 lanes never turn once within L0",
        "ramp                from lane 18 (kept) to lane 35 (slowed by 4)",
        "queries and keys × 1.13863, so scores × 1.2965, short inputs too",
        "Where readers differ",
        f"vllm {VERSIONS['vllm']}",
        "one mscale alone",
    ]
    places = [said.find(part) for part in parts]
    assert places == sorted(places) and places[0] > 0, dict(zip(parts, places, strict=True))


@pytest.mark.parametrize("name", TABLE)
def test_every_report_can_be_printed_and_is_json(call, tmp_path, name):
    path = file_of(tmp_path, TABLE[name][0])
    assert call(path)[2] == ""
    _, said, err = call(path, "--json")
    made = json.loads(said, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert err == "" and said.count("\n") == 1
    assert [one["code"] for one in made["findings"]] == [one.code for one in examine(str(path)).findings]
    assert len(made["ropes"]) == len(examine(str(path)).entries)


def test_json_has_every_lane(call, tmp_path):
    made = json.loads(call(file_of(tmp_path, llama(YARN)), "--json")[1])
    (rope,) = made["ropes"]
    plain, long = rope["lanes"]["plain"], rope["lanes"]["at_target"]
    assert len(plain) == len(long) == 64 and plain[0] == pytest.approx(2 * math.pi)
    assert long[-1] == pytest.approx(4 * plain[-1]) and rope["ramp"] == [18, 35]
    assert rope["scores_times"] == pytest.approx((0.1 * math.log(4) + 1) ** 2)
    assert made["counts"] == {"error": 0, "warning": 0, "note": 1}


def test_a_long_list_is_shown_in_brief(written):
    rows = {name: value for name, value, _ in fields(written(GOOD["Phi-3-mini-128k"][0]))}
    assert rows["rope_scaling.long_factor"] == "48 × 1 … 24.5"
    assert rows["original_max_position_embeddings"] == "4096"
    rows = {name: value for name, value, _ in fields(written(GOOD["Gemma-3-4b, of several parts"][0]))}
    assert rows["text_config.rope_scaling.factor"] == "8.0" and rows["torch_dtype"] == '"bfloat16"'


def test_every_field_that_is_shown_is_explained(written):
    for name, (config, _) in GOOD.items():
        assert all("nothing that is known" not in meaning for _, _, meaning in fields(written(config))), name


def test_lanes_of_longrope_are_told_as_a_span_for_each_list(written):
    report = written(GOOD["Phi-3-mini-128k"][0])
    rows = dict(numbers(report.entries[0], report.lanes[0]))
    assert rows["at 131072 tokens"] == "slowed by 1 … 24.5"
    assert "up to 4096" not in rows  # where nothing is slowed
    scaling = LONGROPE | {"short_factor": [1.5] * 48}
    report = written(PHI3 | {"rope_scaling": scaling})
    assert dict(numbers(report.entries[0], report.lanes[0]))["up to 4096"] == "slowed by 1.5 … 1.5"


def test_layers_without_rope_are_said_to_have_none(written):
    report = written(BAD["no RoPE in one type of layer"][0])
    assert numbers(report.entries[0], report.lanes[0]) == [("none", "these layers have no RoPE")]


# The figure


def test_the_figure_has_a_panel_for_each_rope(written, tmp_path, call):
    one = draw(written(LLAMA), tmp_path / "one.png")
    two = draw(written(GOOD["Gemma-3-4b"][0]), tmp_path / "two.png")
    wide = [imread(path).shape[1] for path in (one, two)]
    assert wide[1] > 1.7 * wide[0] and imread(two)[..., :3].std() > 0.05
    code, said, _ = call(file_of(tmp_path, LLAMA), "--figure", tmp_path / "three.png")
    assert code == 0 and said.rstrip().endswith("three.png") and (tmp_path / "three.png").is_file()


def test_what_has_no_lanes_has_no_figure(written, tmp_path):
    assert draw(written(GOOD["GPT-2"][0]), tmp_path / "none.png") is None
    assert not (tmp_path / "none.png").exists()


def test_entries_of_a_broken_file_are_still_entries(written):
    report = written({"rope_parameters": {"a": {}, "b": None}, "rope_scaling": 5, "head_dim": "x"})
    assert [one.off for one in entries(report.config)] == [False] or report.failed


def test_lists_of_another_head_are_fine_in_longrope(written):
    config = llama(LONG64 | {"rope_type": "longrope", "original_max_position_embeddings": 8192})
    assert len(lanes(written(config)).long) == 64
