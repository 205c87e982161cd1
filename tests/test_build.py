"""A description -> a scheme: every way to write one, a user's own code, and each mistake's message as text."""

import re
import sys
from pathlib import Path

import pytest
import torch

from positional import SchemeError, Scores, build, kinds
from positional.build import find, moved, name_of, names_of, sources
from positional.nope import NoPE
from positional.options import options_of
from positional.rope import Rope
from positional.rope_ntk import RopeNTK
from positional.stack import Stack

KERPLE = '''"""Kerple (log): a learned logarithmic penalty on distance (Chi et al. 2022, arXiv:2205.09921)."""

import torch
from torch import nn

from positional import Scheme, Scores


class Kerple(Scheme):
    def __init__(self, shape, *, start: float = 1.0):
        super().__init__(shape)
        self.a, self.b = (nn.Parameter(torch.full((shape.heads,), start)) for _ in range(2))

    def scores(self, q, k, pos):
        return Scores.of_distance(lambda d, h: -self.a[h] * torch.log1p(self.b[h] * d.clamp(min=0)), pos)
'''

OPTIONS = """
from typing import Literal

from positional import Scheme


class Picky(Scheme):
    def __init__(
        self, shape, *, size: int, mode: Literal["a", "b"] = "a", sizes: list[int] = [], on: bool = False,
        label: str | None = None,
    ):
        super().__init__(shape)
        self.given = size, mode, sizes, on, label
"""

SEVERAL = """
from positional import Scheme
from positional.rope import Rope  # imported, so not one of this file's own


class One(Scheme):
    pass


class Two(Rope):
    pass
"""


@pytest.fixture
def write(tmp_path):
    """Write a file and tell its path, as a user would write it."""

    def written(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return written


@pytest.fixture
def refusal(shape):
    """The message with which a description is refused."""

    def message(spec, **how) -> str:
        with pytest.raises(SchemeError) as caught:
            build(spec, shape, **how)
        return str(caught.value)

    return message


# descriptions


def test_a_name_and_a_mapping_build_a_kind(shape):
    assert type(build("rope", shape)) is Rope and build("rope", shape).base == 10000
    assert build({"kind": "rope", "base": 500}, shape).base == 500
    ntk = build({"kind": "rope-ntk", "factor": "auto"}, shape)
    assert type(ntk) is RopeNTK and ntk.factor == "auto"


def test_a_list_of_one_is_that_one_and_of_several_a_stack(shape):
    assert type(build(["rope"], shape)) is Rope
    stack = build(["rope", {"kind": "relative", "buckets": 16}], shape)
    assert type(stack) is Stack and stack.members[1].buckets == 16


def test_every_file_of_the_package_that_is_no_machinery_is_a_kind():
    assert {"nope", "sinusoidal", "learned", "relative", "alibi", "rope", "rope-linear", "rope-ntk"} <= set(kinds())
    assert not {"base", "build", "stack", "extension"} & set(kinds())


def test_a_kind_is_told_the_shape_and_builds_with_its_defaults(any_spec, shape):
    scheme = build(any_spec, shape)
    assert scheme.shape == shape and type(scheme) is find(any_spec["kind"])
    assert set(any_spec) - {"kind"} <= set(options_of(type(scheme)))


@pytest.mark.parametrize("spec", [None, 3, {}, {"kind": 3}, {"base": 10}])
def test_what_is_no_description_is_refused(refusal, spec):
    assert refusal(spec) == f"an encoding is a name, {{kind: name, option: value}} or a list of these, got {spec!r}"


def test_an_empty_list_is_refused(refusal):
    assert refusal([]) == "an empty list of encodings; write nope for none"


# names


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("rope", "rope"),
        ({"kind": "rope-ntk", "factor": 8}, "rope-ntk"),
        (["rope", {"kind": "alibi"}], "rope+alibi"),
        ("~/ideas/kerple.py", "kerple"),
        ("ideas.py:Two", "Two"),
        ("my_package.kerple", "my_package.kerple"),
    ],
)
def test_a_name_is_the_kind_or_the_stem_of_a_file(spec, name):
    assert name_of(spec) == name


def test_options_are_part_of_a_name_only_where_the_kind_alone_names_two():
    ntk = [{"kind": "rope-ntk", "factor": factor} for factor in (2, "auto")]
    assert names_of(["rope", *ntk]) == ["rope", "rope-ntk factor=2", "rope-ntk factor=auto"]
    assert names_of(["rope", ntk[0]]) == ["rope", "rope-ntk"]
    stacks = [[spec, "alibi"] for spec in ntk]
    assert names_of(stacks) == ["rope-ntk factor=2+alibi", "rope-ntk factor=auto+alibi"]


# It was not always so: the docstring promises names that are all different, and rows are told apart by them.
@pytest.mark.parametrize("specs", [["a/kerple.py", "b/kerple.py"], ["a.py:Mine", "b.py:Mine"], ["rope", "rope"]])
def test_names_are_all_different(specs):
    assert len(set(names_of(specs))) == len(specs)


# mistakes


@pytest.mark.parametrize(("typo", "meant"), [("rop", "rope"), ("rope_ntk", "rope-ntk"), ("alibbi", "alibi")])
def test_a_near_miss_is_told_what_it_may_have_meant(refusal, typo, meant):
    assert refusal(typo) == f"unknown encoding `{typo}`: did you mean {meant}?"


def test_an_unknown_kind_is_told_what_there_is(refusal):
    assert refusal("xyzzy") == f"unknown encoding `xyzzy`; built in: {', '.join(kinds())}"


def test_an_unknown_option_is_told_the_nearest_or_all(refusal):
    assert refusal({"kind": "rope", "bases": 1}) == "rope has no option `bases`: did you mean base?"
    assert refusal({"kind": "relative", "x": 1}) == "relative has no option `x`: it has buckets, farthest"
    assert refusal({"kind": "alibi", "x": 1}) == "alibi has no option `x`: it has no options"


# It was not always so: YAML keys need not be text, and difflib raises a TypeError on those that are not.
def test_an_option_that_is_no_text_is_unknown_too(refusal):
    assert refusal({"kind": "rope", 3: 1}).startswith("rope has no option `3`")


@pytest.mark.parametrize("kind", ["rope-linear", "rope-ntk"])
def test_a_missing_option_is_told_how_to_write_it(refusal, kind):
    said = "how many times longer the input is than in training; auto: length being run ÷ train length, at least 1"
    wanted = f"{kind} needs `factor` (a number or auto): write {{kind: {kind}, factor: …}}; factor: {said}"
    assert refusal(kind) == wanted


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "rope", "base": "10000"}, "rope: `base` must be a number, got '10000'"),
        ({"kind": "rope", "base": True}, "rope: `base` must be a number, got True"),
        ({"kind": "rope", "base": None}, "rope: `base` must be a number, got None"),
        ({"kind": "rope-ntk", "factor": "atuo"}, "rope-ntk: `factor` must be a number or auto, got 'atuo'"),
        ({"kind": "rope-ntk", "factor": [8]}, "rope-ntk: `factor` must be a number or auto, got [8]"),
        ({"kind": "relative", "buckets": 32.0}, "relative: `buckets` must be a whole number, got 32.0"),
        ({"kind": "relative", "buckets": True}, "relative: `buckets` must be a whole number, got True"),
    ],
)
def test_a_value_of_the_wrong_type_is_told_the_right_one(refusal, spec, message):
    # Then what the option is, in the words of its class.
    assert re.fullmatch(re.escape(message) + r"; (\w+): .+", refusal(spec))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, " needs `size` (a whole number): write {kind: KIND, size: …}"),
        ({"size": 1, "mode": "c"}, ": `mode` must be a or b, got 'c'"),
        ({"size": 1, "mode": True}, ": `mode` must be a or b, got True"),
        ({"size": 1, "sizes": [1, "2"]}, ": `sizes` must be a list of whole numbers, got [1, '2']"),
        ({"size": 1, "on": 1}, ": `on` must be true or false, got 1"),
        ({"size": 1, "label": 3}, ": `label` must be text or null, got 3"),
    ],
)
def test_the_annotations_of_a_users_options_are_checked(refusal, write, options, message):
    path = write("picky.py", OPTIONS)
    assert refusal({"kind": path, **options}) == path + message.replace("KIND", path)


def test_options_of_every_type_arrive_as_written(shape, write):
    options = {"size": 3, "mode": "b", "sizes": [1, 2], "on": True, "label": None}
    scheme = build({"kind": write("picky.py", OPTIONS), **options}, shape)
    assert scheme.given == tuple(options.values())


# It was not always so: `checked` looks the annotation up to show it, and there is none: KeyError.
def test_a_missing_option_without_annotation_is_named_too(refusal, write):
    path = write("bare.py", OPTIONS.replace("size: int", "size"))
    assert refusal(path).startswith(f"{path} needs `size`")


# options handed on


HANDED_ON = """
from typing import Any, Literal

from positional.rope import Rope


class Middle(Rope):
    def __init__(self, shape, *, slow: float, base: int = 500, **rope: Any):
        super().__init__(shape, base=base, **rope)
        self.slow = slow


class Lowest(Middle):
    def __init__(self, shape, *, start: Literal["a", "b"] = "a", **rest: Any):
        super().__init__(shape, **rest)
        self.start = start


class Closed(Rope):
    def __init__(self, shape, *, slow: float = 1.0):
        super().__init__(shape)
"""


@pytest.fixture
def handed_on(write) -> str:
    return write("handed_on.py", HANDED_ON)


def test_options_are_handed_on_to_the_classes_above(shape, handed_on):
    spec = {"kind": f"{handed_on}:Lowest", "slow": 2.0, "base": 7, "layout": "interleaved", "start": "b"}
    scheme = build(spec, shape)
    assert (scheme.slow, scheme.base, scheme.layout, scheme.start) == (2.0, 7, "interleaved", "b")
    assert list(options_of(type(scheme))) == ["start", "slow", "base", "layout"]
    assert build({"kind": "rope-ntk", "factor": 2, "base": 7, "layout": "interleaved"}, shape).base == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, " needs `slow` (a number): write {kind: KIND, slow: …}"),
        ({"slow": "2"}, ": `slow` must be a number, got '2'"),
        ({"slow": 2, "base": 1.5}, ": `base` must be a whole number, got 1.5"),  # as its own class says, not Rope
        ({"slow": 2, "layout": "neox"}, ": `layout` must be half or interleaved, got 'neox'"),
        ({"slow": 2, "start": "c"}, ": `start` must be a or b, got 'c'"),
        ({"slow": 2, "layouts": "half"}, " has no option `layouts`: did you mean layout?"),
        ({"slow": 2, "zzz": 1}, " has no option `zzz`: it has start, slow, base, layout"),
    ],
)
def test_options_that_are_handed_on_are_checked_as_ones_own(refusal, handed_on, options, message):
    kind = f"{handed_on}:Lowest"
    assert refusal({"kind": kind, **options}).startswith(kind + message.replace("KIND", kind))


def test_a_constructor_that_hands_nothing_on_has_its_own_options_alone(refusal, handed_on):
    kind = f"{handed_on}:Closed"
    assert refusal({"kind": kind, "base": 7}) == f"{kind} has no option `base`: it has slow"


# encodings within encodings


WRAP = """
from positional import Scheme


class Wrap(Scheme):
    def __init__(self, shape, *, of: Scheme, others: list[Scheme] = [], note: str = ""):
        super().__init__(shape)
        self.of, self.others = of, others
"""


@pytest.fixture
def wrap(write) -> str:
    return write("wrap.py", WRAP)


def test_an_option_may_be_an_encoding_or_a_list_of_them(shape, wrap):
    scheme = build({"kind": wrap, "of": ["rope", "alibi"], "others": ["nope", {"kind": "rope", "base": 7}]}, shape)
    assert [type(one).__name__ for one in scheme.of.members] == ["Rope", "ALiBi"]
    assert type(scheme.others[0]) is NoPE and scheme.others[1].base == 7
    assert build({"kind": wrap, "of": "rope"}, shape).others == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, " needs `of` (an encoding): write {kind: KIND, of: …}"),
        ({"of": 5}, ": an encoding is a name, {kind: name, option: value} or a list of these, got 5"),
        ({"of": "rop"}, ": unknown encoding `rop`: did you mean rope?"),
        ({"of": "nope", "others": "rope"}, ": `others` must be a list of encodings, got 'rope'"),
        (
            {"of": "nope", "others": ["rope", {"kind": "rope", "bas": 7}]},
            ": rope has no option `bas`: did you mean base?",
        ),
        (
            {"of": {"kind": "window", "window": 0}},
            ": window must be at least 1 and sinks not negative, got window 0 and sinks 0; 512 and 4 are usual",
        ),
        (
            {"of": {"kind": "window", "window": 4, "sinks": -1}},
            ": window must be at least 1 and sinks not negative, got window 4 and sinks -1; 512 and 4 are usual",
        ),
    ],
)
def test_an_encoding_within_is_refused_as_one_alone_and_its_holder_named(refusal, wrap, options, message):
    assert refusal({"kind": wrap, **options}) == wrap + message.replace("KIND", wrap)


def test_code_of_ones_own_within_what_is_built_in_is_not_run_without_trust(refusal, write, tmp_path):
    path = write("nosy.py", KERPLE + f"open({str(tmp_path / 'was_run')!r}, 'w')\n")
    for inner in (path, ["rope", path], {"kind": "alternate", "schemes": ["rope", [path]]}):
        message = refusal({"kind": "alternate", "schemes": ["rope", inner]}, trust=False)
        assert message.endswith(
            f"this model's encoding `{path}` is code outside the lab; read it, then pass trust_remote_code=True"
        )
    assert not (tmp_path / "was_run").exists()


def test_files_within_are_found_and_looked_for_in_a_folder(write, wrap, tmp_path):
    mine, folder = write("kerple.py", KERPLE), tmp_path / "run"
    spec = [
        "rope",
        {"kind": wrap, "of": [mine, "nope"], "others": [{"kind": f"{mine}:Kerple", "start": 2.0}], "note": mine},
    ]
    assert sources(spec) == [Path(wrap), Path(mine), Path(mine)]
    assert moved(spec, folder) == spec
    folder.mkdir()
    (folder / "kerple.py").write_text(KERPLE)
    there = str(folder / "kerple.py")
    assert moved(spec, folder) == [
        "rope",
        {"kind": wrap, "of": [there, "nope"], "others": [{"kind": f"{there}:Kerple", "start": 2.0}], "note": mine},
    ]
    alternate = {"kind": "alternate", "schemes": ["rope", mine], "pattern": [0, 1]}
    assert sources(alternate) == [Path(mine)]
    assert moved(alternate, folder) == {"kind": "alternate", "schemes": ["rope", there], "pattern": [0, 1]}


def test_encodings_that_hold_others_have_names_that_differ():
    one, other = ({"kind": "alternate", "schemes": ["rope", inner]} for inner in ("nope", "alibi"))
    assert names_of([one, "rope"]) == ["alternate", "rope"]
    names = names_of([one, other])
    assert len(set(names)) == 2 and all(name.startswith("alternate schemes=") for name in names)


# a user's own code


def test_a_file_of_ones_own_is_a_kind(shape, write):
    """A learned penalty as a user would write it, in a Scheme of twelve lines, is what attention then applies."""
    from lab.attention import eager
    from positional import Positions

    scheme, pos, q = (
        build({"kind": write("kerple.py", KERPLE), "start": 2.0}, shape),
        Positions.first(5),
        torch.zeros(1),
    )
    said = scheme.scores(q, q, pos)
    assert said.needs == {"bias"} and [p.shape for p in scheme.parameters()] == [(4,), (4,)]
    bias = said.bias(*eager.grid(1, 4, 5, 5, "cpu"))
    wanted = -2 * torch.log1p(2 * torch.tensor([4.0, 3, 2, 1, 0]))
    torch.testing.assert_close(bias[0, :, 4], wanted.expand(4, -1))


def test_a_path_may_begin_with_the_home_folder_or_here(shape, write, tmp_path, monkeypatch):
    write("kerple.py", KERPLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    made = {
        type(build(path, shape)) for path in ("~/kerple.py", "./kerple.py", "kerple.py", str(tmp_path / "kerple.py"))
    }
    assert [cls.__name__ for cls in made] == ["Kerple"]  # the same file, the same class


def test_a_file_may_hold_several_and_the_name_chooses(shape, write, refusal):
    path = write("ideas.py", SEVERAL)
    assert type(build(f"{path}:Two", shape)).__name__ == "Two"
    assert refusal(path) == f"`{path}` must define one Scheme, found One, Two: write {path}:NAME to choose one"
    assert refusal(f"{path}:Three") == f"no Scheme `Three` in {path}; it defines One, Two"
    assert refusal(f"{path}:Rope") == f"no Scheme `Rope` in {path}; it defines One, Two"


def test_a_module_on_the_path_is_a_kind(shape, tmp_path, monkeypatch, refusal):
    (tmp_path / "my_schemes").mkdir()
    (tmp_path / "my_schemes" / "kerple.py").write_text(KERPLE)
    (tmp_path / "my_schemes" / "several.py").write_text(SEVERAL)
    monkeypatch.syspath_prepend(tmp_path)
    assert type(build("my_schemes.kerple", shape)).__name__ == "Kerple"
    assert type(build("my_schemes.several:One", shape)).__name__ == "One"
    assert refusal("my_schemes.none") == (
        "no module `my_schemes.none` (No module named 'my_schemes.none'): "
        "a kind is built in, a path to a .py file, or a module"
    )


def test_a_file_that_is_not_there_is_named(refusal, tmp_path):
    assert refusal(f"{tmp_path}/none.py") == f"no file {tmp_path}/none.py: the encoding's kind names it"


# It was not always so: a path without its .py that begins with a dot is taken for a relative import: TypeError.
@pytest.mark.parametrize("kind", ["./kerple", "../kerple", "."])
def test_a_path_without_its_suffix_is_refused_with_a_message(refusal, kind):
    assert "a path to a .py file" in refusal(kind)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("1 / 0", "ZeroDivisionError: "),
    ],
)
def test_a_file_that_does_not_run_says_why_and_is_run_again_when_asked_again(refusal, write, text, why):
    path = write("broken.py", text)
    assert refusal(path).startswith(f"{path} does not run: {why}")
    assert refusal(path).startswith(f"{path} does not run: {why}")  # a half-made module must not have stayed
    assert not [name for name in sys.modules if name.startswith("positional_user_broken")]


def test_a_file_that_is_not_python_says_so(refusal, write):
    path = write("broken.py", "class Half(")
    assert re.match(re.escape(f"{path} does not run: SyntaxError: "), refusal(path))


def test_a_file_without_a_scheme_says_so(refusal, write):
    path = write("empty.py", "from positional.rope import Rope\n")
    assert refusal(path) == f"`{path}` must define one Scheme, found none: write {path}:NAME to choose one"


def test_the_same_file_gives_the_same_class_and_an_edited_one_a_new_class(write):
    first = find(write("kerple.py", KERPLE))
    assert find(write("kerple.py", KERPLE)) is first
    edited = find(write("kerple.py", KERPLE.replace("-self.a", "-2 * self.a")))
    assert edited is not first and edited.__name__ == "Kerple"
    assert find(write("kerple.py", KERPLE)) is first
    assert find(write("copy.py", KERPLE)) is not first


def test_a_users_module_can_be_found_by_name_while_it_lives(write):
    cls = find(write("kerple.py", KERPLE))
    assert sys.modules[cls.__module__].Kerple is cls  # pickle and torch.compile look it up there


@pytest.mark.parametrize("wrap", [lambda kind: kind, lambda kind: {"kind": kind}, lambda kind: ["rope", kind]])
def test_code_of_ones_own_is_not_run_without_trust(refusal, write, tmp_path, wrap):
    path = write("nosy.py", KERPLE + f"open({str(tmp_path / 'was_run')!r}, 'w')\n")
    for kind in (path, f"{path}:Kerple", "nosy_package.nosy"):
        assert refusal(wrap(kind), trust=False) == (
            f"this model's encoding `{kind}` is code outside the lab; read it, then pass trust_remote_code=True"
        )
    assert not (tmp_path / "was_run").exists()


def test_what_is_built_in_needs_no_trust(any_spec, shape):
    assert build(any_spec, shape, trust=False).shape == shape
    assert build(["nope", "rope"], shape, trust=False).members[1].shape == shape


# several in turn


MARKS = """
from positional import Scheme, Scores


class Mark(Scheme):
    prefix_consistent = {consistent}
    limit = {limit}

    def embed(self, x, pos):
        return {number} * x + {number}

    def rotate(self, q, k, pos):
        return {number} * q + {number}, {number} * k - {number}

    def scores(self, q, k, pos):
        return Scores(**{scores})

    def at(self, layer):
        return self if layer else Plain(self.shape)


class Plain(Scheme):
    pass
"""


@pytest.fixture
def mark(write):
    """A scheme that leaves its number wherever it acts."""

    def kind(number: int, *, consistent: bool = True, limit: int | None = None, scores: dict | None = None) -> str:
        values = {"number": number, "consistent": consistent, "limit": limit, "scores": scores or {}}
        return write(f"mark{number}.py", MARKS.format(**values)) + ":Mark"

    return kind


def test_a_stack_runs_each_hook_in_turn(shape, mark):
    stack, one = build([mark(2), mark(3)], shape), torch.ones(1)
    assert stack.embed(one, None).item() == 3 * (2 * 1 + 2) + 3
    q, k = stack.rotate(one, one, None)
    assert (q.item(), k.item()) == (3 * (2 * 1 + 2) + 3, 3 * (2 * 1 - 2) - 3)


def test_a_stack_takes_the_shortest_limit_and_is_consistent_if_all_are(shape, mark):
    assert build([mark(2), mark(3)], shape).limit is None
    assert build([mark(2, limit=9), mark(3), mark(4, limit=7)], shape).limit == 7
    assert build([mark(2), mark(3)], shape).prefix_consistent
    assert not build([mark(2), mark(3, consistent=False)], shape).prefix_consistent


def test_a_stack_says_all_that_its_members_say_of_the_scores(shape, mark):
    stack = build([mark(2, scores={"window": 5}), "nope", "alibi", "relative"], shape)
    said = stack.scores(torch.zeros(1), torch.zeros(1), None)
    assert said.needs == {"window", "slopes", "bias"} and said.window == 5
    assert torch.equal(said.slopes, build("alibi", shape).scores(torch.zeros(1), None, None).slopes)


def test_a_stack_of_one_scheme_twice_over_the_same_word_is_refused_by_name(refusal, mark):
    clash = mark(2, scores={"window": 5}), mark(3, scores={"window": 6})
    assert refusal(["alibi", "alibi"]) == "ALiBi and ALiBi both set `slopes`: stack only one of them"
    assert refusal(["rope", *clash]) == "Mark and Mark both set `window`: stack only one of them"


def test_a_stacks_layer_is_made_of_its_members_layers(shape, mark):
    stack = build([mark(2), "rope"], shape)
    assert stack.at(1) is stack
    assert [type(member).__name__ for member in stack.at(0).members] == ["Plain", "Rope"]


def test_a_stack_counts_its_members_parameters(shape):
    assert sum(p.numel() for p in build(["learned", "relative"], shape).parameters()) == 64 * 64 + 32 * 4


def test_scores_name_the_words_they_use():
    said = Scores(window=3, keep=lambda *_: None)
    assert said.needs == {"window", "keep"} and not Scores().needs


def test_a_base_scheme_is_nope(shape):
    assert not set(vars(NoPE)) & {"embed", "rotate", "scores", "at", "__init__"}
