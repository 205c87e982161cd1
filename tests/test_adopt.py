"""An encoding inside a pretrained model: transformers' own types are the oracle, for every family and both seams."""

import copy

import families
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, BloomConfig, GPT2Config, StaticCache

from lab import LabError
from lab.adopt import adopt, adopted, release
from lab.adopt.rotary import is_table
from lab.rope.config import described
from positional import SchemeError, Shape, build

L0, LENGTH = 64, 100
LISTS = {"short_factor": [1.1] * 8, "long_factor": [1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]}
TYPES = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 8.0, "original_max_position_embeddings": L0},
    "longrope": LISTS | {"factor": 8.0, "original_max_position_embeddings": L0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": L0,
    },
    "proportional": {"partial_rotary_factor": 0.5, "factor": 4.0},
}
NESTED = "gemma3", "gemma4"
WIDE = {"kind": "window", "window": 10**6}  # hides nothing, and acts on scores: the scheme moves inside attention


def tokens(rows: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, 128, (rows, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(model, ids, **more):
    return model(input_ids=ids, use_cache=False, **more).logits.float()


def with_type(family: str, kind: str):
    """The family's configuration with a type of RoPE that transformers computes itself."""
    longest = 512 if "original_max_position_embeddings" in TYPES[kind] else L0
    main = dict(TYPES[kind])
    if family == "gpt_neox":
        main |= {"partial_rotary_factor": 0.5}
    lanes = {"gpt_neox": 4, "gemma4": 16}.get(family, 8)
    if kind == "longrope":
        main |= {key: torch.linspace(1, value[-1], lanes).tolist() for key, value in LISTS.items()}
    plain = families.config(family)
    base = described(plain).rotations[described(plain).main].spec["base"]
    parameters = {"rope_type": kind, "rope_theta": base} | main
    if family in NESTED:
        parameters = {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": parameters,
        }
    more = {"original_max_position_embeddings": L0} if family == "phi3" else {}
    return families.config(family, rope_parameters=parameters, max_position_embeddings=longest, **more)


def pair(family: str, kind: str):
    """The same weights with a type of transformers', and as the lab has it: model, model to put it into, its spec."""
    config = with_type(family, kind)
    native = families.built(config)
    plain = copy.deepcopy(config)
    own = {"rope_type": "default", "rope_theta": 10000.0} | (
        {"partial_rotary_factor": 0.5} if family == "gpt_neox" else {}
    )
    plain.rope_parameters = {"sliding_attention": own, "full_attention": own} if family in NESTED else own
    other = families.built(plain)
    said = described(config)
    return native, other, said.rotations[said.main]


def has(family: str, kind: str) -> bool:
    """Whether transformers can build it; of GPT-NeoX's share of each head there is no proportional form."""
    if family == "phi3":
        return kind == "longrope"
    return (family, kind) not in (("gpt_neox", "proportional"), ("gemma4", "longrope"))


MATRIX = [(family, kind) for family in families.FAMILIES for kind in TYPES if has(family, kind)]


@pytest.mark.parametrize("family, kind", MATRIX)
def test_equal_to_transformers_own_types(family, kind):
    """Both seams, beyond the train length, in fp32."""
    native, other, said = pair(family, kind)
    ids = tokens()
    wanted = logits(native, ids)
    scale = wanted.abs().max()
    assert (logits(other, ids) - wanted).abs().max() > 1e-2 * scale  # it makes a difference
    adopt(other, said.spec, train_length=said.train_length)
    assert adopted(other).where == "rotary"
    assert (logits(other, ids) - wanted).abs().max() < 1e-4 * scale
    adopt(other, [said.spec, WIDE], train_length=said.train_length)
    assert adopted(other).where == "attention"
    assert (logits(other, ids) - wanted).abs().max() < 1e-4 * scale


@pytest.mark.parametrize("family, kind", MATRIX)
def test_equal_to_transformers_own_types_in_bf16(family, kind):
    """As far as bf16 lets two ways of computing the same agree: no farther apart than bf16 is from fp32."""
    native, other, said = pair(family, kind)
    exact, ids = logits(native, tokens()), tokens()
    native, other = (in_half(model) for model in (native, other))
    wanted = logits(native, ids)
    adopt(other, said.spec, train_length=said.train_length)
    noise = (wanted - exact).abs().mean()
    assert noise > 0 and (logits(other, ids) - wanted).abs().mean() < noise / 2
    adopt(other, [said.spec, WIDE], train_length=said.train_length)
    # Gemma 2's own attention rounds scores to bf16 before and after it caps them. The lab's does not: nearer to fp32.
    right = exact if family == "gemma2" else wanted
    assert (logits(other, ids) - right).abs().mean() < noise


def in_half(model):
    """As `from_pretrained(dtype=bfloat16)` leaves it: weights in bf16, angles in fp32."""
    half = AutoModelForCausalLM.from_config(model.config, dtype=torch.bfloat16).eval()
    half.load_state_dict(model.state_dict())
    return half


INSIDE = [
    "nope",
    ["rope", {"kind": "window", "window": 24}],
    ["rope", {"kind": "window", "window": 16, "sinks": 2}],
    {"kind": "self-extend", "group": 4, "window": 16},
    {"kind": "dual-chunk", "chunk": 24},
    {"kind": "rerope", "window": 16},
    {"kind": "lambda-mask", "window": 16, "sinks": 2},
    ["rope", "logn"],
    {"kind": "rope-yarn", "factor": 4.0},
]


@pytest.mark.parametrize("spec", INSIDE, ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "gpt_neox", "smollm3"])
def test_decoding_with_a_cache_equals_the_full_forward(family, spec):
    """Token by token from a cache of transformers, past the train length; a row with padding reads as without it."""
    model = adopt(families.FAMILIES[family](), spec, train_length=32)
    ids = tokens(2, 40)
    made = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None)
    for _ in range(6):
        ids = torch.cat([ids, logits(model, ids)[:, -1].argmax(-1)[:, None]], 1)
    assert torch.equal(made, ids)


@pytest.mark.parametrize("spec", INSIDE, ids=str)
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_padding_changes_nothing(family, spec):
    model = adopt(families.FAMILIES[family](), spec, train_length=32)
    ids = tokens(1, 40)
    padded = torch.cat([torch.zeros(1, 5, dtype=torch.int64), ids], 1)
    mask = torch.cat([torch.zeros(1, 5), torch.ones(1, 40)], 1)
    places = (mask.long().cumsum(-1) - 1).clamp(min=0)
    there = logits(model, padded, attention_mask=mask, position_ids=places)[:, 5:]
    torch.testing.assert_close(there, logits(model, ids), atol=1e-4, rtol=1e-4)
    both = model.generate(padded, attention_mask=mask, max_new_tokens=4, do_sample=False, eos_token_id=None)
    alone = model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert torch.equal(both[:, 5:], alone)


def test_a_packed_row_is_read_as_its_documents_are_alone():
    model = adopt(families.FAMILIES["llama"](), {"kind": "self-extend", "group": 4, "window": 8}, train_length=16)
    a, b = tokens(1, 30), tokens(2, 20)[1:]
    places = torch.cat([torch.arange(30), torch.arange(20)])[None]
    both = logits(model, torch.cat([a, b], 1), position_ids=places)
    torch.testing.assert_close(both[:, :30], logits(model, a), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(both[:, 30:], logits(model, b), atol=1e-4, rtol=1e-4)


def test_what_follows_the_length_is_not_cached():
    model = families.FAMILIES["llama"]()
    adopt(model, {"kind": "rope-dynamic", "factor": 2.0}, train_length=32)
    assert model.generation_config.use_cache is False
    ids = tokens(1, 40)
    made = model.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=None)
    for _ in range(4):
        ids = torch.cat([ids, logits(model, ids)[:, -1].argmax(-1)[:, None]], 1)
    assert torch.equal(made, ids)
    with pytest.raises(LabError, match="rope-dynamic encodes all tokens anew when the input grows"):
        model.generate(ids, max_new_tokens=3, use_cache=True, pad_token_id=0)
    assert release(model).generation_config.use_cache is not False


def test_nothing_remembers_a_longer_input():
    model = adopt(families.FAMILIES["llama"](), {"kind": "rope-dynamic", "factor": 4.0}, train_length=32)
    before = logits(model, tokens(1, 40))
    logits(model, tokens(1, 100))
    assert torch.equal(logits(model, tokens(1, 40)), before)


@pytest.mark.parametrize("family", families.FAMILIES)
def test_release_gives_back_the_model(family):
    model = families.FAMILIES[family]()
    before, modules, keys = logits(model, tokens()), [*model.modules()], [*model.state_dict()]
    adopt(model, "nope")
    adopt(model, {"kind": "rope-linear", "factor": 2.0})
    adopt(model, ["rope", WIDE])
    assert adopted(model) is not None and [*model.state_dict()] == keys
    release(model)
    assert adopted(model) is None and [*model.modules()] == modules
    assert torch.equal(logits(model, tokens()), before)


def test_pose_places_tokens_in_training_alone():
    """What lies across a leap is still seen: transformers would take it for the start of another document."""
    model = families.FAMILIES["llama"]()
    adopt(model, [{"kind": "rope-linear", "factor": 4.0}, {"kind": "pose", "longest": 256}], train_length=L0)
    rotary, ids = adopted(model), tokens(2, L0)
    plain = logits(model, ids)
    assert rotary.where == "rotary" and rotary.call.length == L0
    model.train()
    torch.manual_seed(0)
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    out = model(inputs_embeds=embedded, use_cache=False).logits
    leaps = rotary.call.ids.diff(dim=-1)
    assert rotary.call.length == 256 and (leaps > 1).sum() >= 1 and (rotary.call.ids[:, -1] < 256).all()
    assert not torch.allclose(out.float(), plain)
    out[:, -1].sum().backward()
    assert (embedded.grad[:, 0].abs().sum(-1) > 0).all()


def test_learned_parts_are_parameters_of_the_model():
    model = adopt(families.FAMILIES["llama"](), ["rope", "ssmax"])
    [name] = [name for name, _ in model.named_parameters() if name.endswith(".s")]
    model(input_ids=tokens(), use_cache=False).logits.sum().backward()
    assert model.get_parameter(name).grad.abs().sum() > 0
    assert name not in release(model).state_dict()


def test_base_and_layout_are_the_models_own():
    model = families.model("llama", rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    adopt(model, {"kind": "rope-resonance", "of": {"kind": "rope-yarn", "factor": 4.0}})
    assert adopted(model).scheme.of.base == 5e5
    adopt(model, {"kind": "rope", "base": 1e6})
    assert adopted(model).scheme.base == 1e6
    other = families.FAMILIES["llama"]()
    assert torch.allclose(
        logits(model, tokens()), logits(adopt(other, {"kind": "rope", "base": 1e6}), tokens()), atol=1e-5
    )


def test_an_interleaved_layout_is_found_out():
    from transformers import CohereConfig

    config = CohereConfig(**families.SIZES | {"num_key_value_heads": 2})
    model = families.built(config)
    before = logits(model, tokens())
    adopt(model, ["rope", WIDE])
    assert adopted(model).layout == "interleaved" and adopted(model).scheme.members[0].layout == "interleaved"
    assert (logits(model, tokens()) - before).abs().max() < 1e-4 * before.abs().max()
    adopt(model, "rope")
    assert (logits(model, tokens()) - before).abs().max() < 1e-4 * before.abs().max()


def test_a_layer_without_positions_stays_so_but_for_a_window():
    model = families.FAMILIES["smollm3"]()
    adopt(model, [{"kind": "rope-linear", "factor": 2.0}, {"kind": "window", "window": 8}])
    last = model.model.layers[3].self_attn.seated.scheme
    q, k = torch.randn(1, 4, 20, 16), torch.randn(1, 2, 20, 16)
    from positional import Positions

    [(turned, _, scores)] = last.parts(q, k, Positions.first(20))
    assert turned is q and scores.window == 8


@pytest.mark.parametrize(
    "spec, table",
    [
        ("rope", True),
        ("nope", True),
        ([{"kind": "rope-yarn", "factor": 2.0}, {"kind": "pose", "longest": 128}], True),
        ({"kind": "rope-dynamic", "factor": 2.0}, True),
        ("xpos", False),
        ("dual-chunk", False),
        (["rope", "logn"], False),
        ({"kind": "alternate", "schemes": ["rope", "nope"]}, False),
        ("alibi", False),
    ],
    ids=str,
)
def test_a_table_of_angles_says_all_of_some(spec, table):
    assert is_table(build(spec, Shape(64, 4, 2, 4, 64))) is table


def test_a_cap_on_scores_is_the_models_own():
    """Gemma 2's own encoding, said by the lab: with padding, from a cache, and without its cap another model."""
    model = families.FAMILIES["gemma2"]()
    ids, mask = tokens(2, 40), torch.ones(2, 40, dtype=torch.int64)
    mask[1, :7] = 0
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    wanted = logits(model, ids, attention_mask=mask, position_ids=places)
    uncapped = families.model("gemma2", attn_logit_softcapping=None)
    scale = wanted.abs().max()
    assert (logits(uncapped, ids, attention_mask=mask, position_ids=places) - wanted).abs().max() > 1e-2 * scale
    options = {"attention_mask": mask, "max_new_tokens": 30, "do_sample": False, "eos_token_id": None}
    made = model.generate(ids, **options)
    adopt(model, ["rope", WIDE])
    off = (logits(model, ids, attention_mask=mask, position_ids=places) - wanted).abs()
    assert off[0].max() < 1e-4 * scale and off[1, 7:].max() < 1e-4 * scale
    assert torch.equal(model.generate(ids, **options), made)


def test_a_window_on_capped_scores_is_transformers_own():
    """All of its layers see 24 tokens: as the model's code does it, and put into one whose layers saw everything."""
    layers = {"num_hidden_layers": 4, "sliding_window": 24}
    native = families.model("gemma2", layer_types=["sliding_attention"] * 4, **layers)
    model = families.model("gemma2", layer_types=["full_attention"] * 4, **layers)
    wanted = logits(native, tokens())
    assert (logits(model, tokens()) - wanted).abs().max() > 1e-2 * wanted.abs().max()
    adopt(model, ["rope", {"kind": "window", "window": 24}])
    assert (logits(model, tokens()) - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_what_flows_back_through_capped_scores_is_transformers_own():
    model = families.FAMILIES["gemma2"]()

    def gradients():
        loss = model(input_ids=tokens(), labels=tokens(), use_cache=False).loss
        return torch.autograd.grad(loss, [layer.self_attn.q_proj.weight for layer in model.model.layers])

    wanted = gradients()
    adopt(model, ["rope", WIDE])
    for mine, exact in zip(gradients(), wanted, strict=True):
        assert (mine - exact).abs().max() < 1e-4 * exact.abs().max()


def test_a_second_cap_is_refused(tmp_path):
    (tmp_path / "capping.py").write_text(
        '"""Capping: a cap on scores (nobody 2026, Unpublished)."""\n\nfrom positional import Scheme, Scores\n\n\n'
        "class Capping(Scheme):\n    def scores(self, q, k, pos):\n        return Scores(cap=30.0)\n"
    )
    spec = ["rope", str(tmp_path / "capping.py")]
    adopt(families.FAMILIES["llama"](), spec)(input_ids=tokens())
    model = adopt(families.FAMILIES["gemma2"](), spec)
    with pytest.raises(LabError) as caught:
        model(input_ids=tokens())
    said = "Gemma2Attention caps its scores at 5: an encoding that says `cap` itself cannot be put there"
    assert str(caught.value) == said


def test_sinks_in_the_softmax_are_refused_and_angles_are_not():
    pytest.importorskip("transformers.models.flint", reason="this transformers has no Flint")
    sizes = families.SIZES | families.SHARED_KEYS | {"head_dim": 16, "sliding_window": 16}
    model = families.built(AutoConfig.for_model("flint", **sizes))
    before = logits(model, tokens())
    assert adopted(adopt(model, {"kind": "rope-linear", "factor": 2.0})).where == "rotary"
    with pytest.raises(LabError) as caught:
        adopt(model, ["rope", WIDE])
    said = "FlintAttention has sinks of its own in its softmax, which the lab's attention does not"
    assert str(caught.value) == said and torch.equal(logits(model, tokens()), before)


def test_what_attention_cannot_do_is_refused():
    model = adopt(families.FAMILIES["llama"](), ["rope", WIDE])
    with pytest.raises(LabError, match="LlamaAttention has sinks of its own in its softmax, which the lab's attention"):
        model(input_ids=tokens(), s_aux=torch.zeros(4))
    with pytest.raises(LabError, match="a mask of pairs of tokens was passed"):
        model(input_ids=tokens(), attention_mask=torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool))
    with pytest.raises(LabError, match="a cache hands out room that no token fills yet"):
        model(input_ids=tokens(), past_key_values=StaticCache(config=model.config, max_cache_len=200))
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    with pytest.raises(LabError, match="LlamaAttention drops 0.5 of its weights: set config.attention_dropout to 0"):
        model.train()(input_ids=tokens())


@pytest.mark.parametrize(
    "config, said",
    [
        (GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=128), "gpt2 has no rope_parameters: it does not turn"),
        (BloomConfig(hidden_size=32, n_layer=1, n_head=2, vocab_size=128), "bloom has no rope_parameters"),
    ],
)
def test_models_without_a_rotary_module_are_refused(config, said):
    with pytest.raises(LabError, match=said):
        adopt(AutoModelForCausalLM.from_config(config), "nope")


@pytest.mark.parametrize("spec, said", [("sinusoidal", "acts on embeddings"), ("fox", "reads the hidden states")])
def test_encodings_that_no_seam_reaches_are_refused(spec, said):
    with pytest.raises(LabError, match=f"{spec} {said}.*LlamaForCausalLM gives no way into"):
        adopt(families.FAMILIES["llama"](), spec)


def test_a_mistake_leaves_the_model_as_it_was():
    model = families.FAMILIES["llama"]()
    with pytest.raises(SchemeError, match="did you mean rope-yarn"):
        adopt(model, "rope-yarm")
    assert adopted(model) is None


def test_a_model_that_is_not_as_its_configuration_says_is_refused():
    model = families.FAMILIES["llama"]()
    model.config.rope_parameters["rope_theta"] = 123.0  # after it was built, which changes nothing in it
    with pytest.raises(LabError, match="LlamaForCausalLM turns by other angles than its configuration says"):
        adopt(model, "nope")
