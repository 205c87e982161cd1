"""`lab check`: an encoding that is broken in one way fails where it is broken, and is told so; a sound one passes."""

import sys
import textwrap

import pytest

from lab import check, cli
from lab.check import SHAPE, run

HEAD = '''"""Mine: an encoding of this test, which is broken in one way or in none (Nobody 2026, arXiv:2601.00001)."""

import torch

from positional import Scheme, SchemeError, Scores
from positional.rope import Rope


'''


@pytest.fixture
def write(tmp_path):
    """A file of one's own, below a head that a scheme needs; its path."""

    def write(body: str, head: str = HEAD, name: str = "mine.py") -> str:
        (tmp_path / name).write_text(head + textwrap.dedent(body))
        return str(tmp_path / name)

    return write


@pytest.fixture
def failing(write):
    """What fails of a scheme with this body, and where."""

    def failing(body: str, **options) -> dict[str, str]:
        spec = {"kind": write(body), **options}
        return {result.name: result.where for result in run(spec) if result.outcome == "fails"}

    return failing


SOUND = """
class Mine(Scheme):
    def __init__(self, shape, *, start: float = 1.0):
        super().__init__(shape)
        if start <= 0:
            raise SchemeError(f"start must be above 0, got {start}")
        self.steep = torch.nn.Parameter(torch.full((shape.layers, shape.heads), start))

    def scores(self, q, k, pos):
        steep = self.steep[pos.layer].float()
        return Scores.of_distance(lambda d, h: -steep[h] * torch.log1p(d.abs()), pos)
"""


def test_a_sound_encoding_fails_nothing(failing):
    assert failing(SOUND) == {}


def test_a_buffer_that_a_cast_rounds_fails_twice(failing):
    """For being there, and for what the cast makes of it."""
    found = failing("""
        class Mine(Scheme):
            def __init__(self, shape):
                super().__init__(shape)
                self.register_buffer("steep", torch.linspace(0.1, 0.7, shape.heads), persistent=False)

            def scores(self, q, k, pos):
                return Scores(slopes=self.steep)
    """)
    assert found == {
        "buffers": "buffer steep: compute it from Python numbers where it is needed",
        "bf16": "layer 0, slopes are 0.1001 and without the cast 0.1",
    }


def test_angles_in_the_dtype_of_the_inputs_fail_far_out(failing):
    found = failing("""
        class Mine(Scheme):
            def rotate(self, q, k, pos):
                angle = pos.ids.to(q.dtype)[:, None, :, None] * 0.3
                first = pos.tokens - pos.queries
                return self.turn(q, angle[..., first:, :]), self.turn(k, angle)

            def turn(self, x, angle):
                a, b = x.chunk(2, -1)
                return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)
    """)
    assert found.keys() == {"bf16"}
    assert found["bf16"].startswith("layer 0, queries at position 63 are ")


def test_looking_at_the_next_token_fails_as_that_and_not_as_what_follows_from_it(failing):
    found = failing("""
        class Mine(Scheme):
            def rotate(self, q, k, pos):
                ahead = torch.zeros_like(k)
                ahead[:, :, :-1] = 0.5 * k[:, :, 1:]
                if pos.segments is not None:
                    same = pos.segments[:, 1:] == pos.segments[:, :-1]
                    ahead[:, :, :-1] *= same[:, None, :, None]
                return q, k + ahead
    """)
    assert found.keys() == {"future"}
    # The last token that is the same in both sees the first that is not.
    assert found["future"].startswith("layer 0, with other tokens from 12 on of 24: token 11, head ")


def test_a_longer_input_that_is_remembered_fails_after_it(failing):
    found = failing("""
        class Mine(Rope):
            prefix_consistent = False
            longest = 64

            def rotate(self, q, k, pos):
                self.longest = max(self.longest, pos.length)
                return super().rotate(q, k, pos)

            def frequencies(self, length):
                return super().frequencies(length) * 64 / self.longest
    """)
    assert found.keys() == {"trace"}
    assert found["trace"].startswith("layer 0, 20 tokens after an input of 500: token 1, head ")


def test_indices_in_place_of_positions_fail_behind_padding_and_in_a_pack(failing):
    found = failing("""
        class Mine(Scheme):
            def embed(self, x, pos):
                place = torch.arange(pos.tokens, device=x.device)[-x.shape[1]:]
                return x + torch.sin(place / 7.0)[:, None].to(x.dtype)
    """)
    assert found.keys() == {"padding", "packing"}
    assert found["padding"].startswith("layer 0, 17 tokens behind 7 places of padding: token 0, head ")
    assert found["packing"].startswith("layer 0, document 1 of [10, 23, 1, 14] tokens: token 0, head ")


def test_a_parameter_that_is_never_read_fails_by_name(failing):
    found = failing("""
        class Mine(Rope):
            def __init__(self, shape):
                super().__init__(shape)
                self.spare = torch.nn.Parameter(torch.zeros(3))
    """)
    assert found == {"gradient": "parameter spare: no gradient reaches it"}


def test_a_parameter_that_is_read_for_one_layer_alone_fails_for_the_other(failing):
    found = failing(SOUND.replace("self.steep[pos.layer]", "self.steep[0]"))
    assert found == {"gradient": "parameter steep: no gradient reaches its part for layer 1; is it [pos.layer]?"}


def test_a_false_claim_of_prefix_consistency_fails_with_the_length(failing):
    found = failing("""
        class Mine(Rope):
            def frequencies(self, length):
                return super().frequencies(length) * min(1.0, self.shape.train_length / length)
    """)
    assert found.keys() == {"prefix"}
    assert found["prefix"].startswith(
        "prefix_consistent is true, but layer 0, alone, or as the first 17 of 96 (trained on 64): token "
    )


def test_scores_that_are_no_numbers_fail_though_attention_makes_zeros_of_them(failing):
    found = failing("""
        class Mine(Scheme):
            def scores(self, q, k, pos):
                return Scores.of_distance(lambda d, h: (90.0 - d).clamp(max=1).sqrt() + 0 * h, pos)
    """)
    assert found["finite"] == "layer 0, of 96 tokens, token 91, head 0: not a finite number"


def test_a_false_reach_fails(failing):
    found = failing("""
        class Mine(Rope):
            reach = 9
    """)
    assert found.keys() == {"reach", "cache"}
    assert found["reach"].startswith("layer 0, other tokens more than its reach of 9 back: token 17, head ")


def test_a_weight_that_is_not_saved_fails(failing):
    found = failing("""
        class Mine(Scheme):
            def __init__(self, shape):
                super().__init__(shape)
                self.steep = torch.rand(shape.heads).tolist()

            def scores(self, q, k, pos):
                return Scores(slopes=torch.tensor(self.steep, device=q.device))
    """)
    assert found.keys() == {"saved"} and found["saved"].startswith("layer 0, loaded into another: token 1, head ")


def test_an_option_whose_wrong_value_is_not_refused_fails(failing):
    found = failing("""
        class Mine(Scheme):
            def __init__(self, shape, *, buckets: int = 4):
                super().__init__(shape)
                self.step = 64 // buckets
    """)
    assert found.keys() == {"options"}
    assert found["options"].startswith("buckets=0 is not refused, and ends in ZeroDivisionError: ")
    assert "(mine.py, line 13: self.step = 64 // buckets)" in found["options"]


def test_an_option_whose_wrong_value_makes_no_numbers_fails(failing):
    found = failing("""
        class Mine(Scheme):
            def __init__(self, shape, *, scale: float = 1.0):
                super().__init__(shape)
                self.scale = scale

            def scores(self, q, k, pos):
                return Scores.of_distance(lambda d, h: -(d / self.scale) + 0 * h, pos)
    """)
    assert found == {"options": "scale=0.0 is taken, and gives token 0, head 0: not a finite number: raise SchemeError"}


def test_a_refusal_that_does_not_name_its_option_fails(failing):
    found = failing(SOUND.replace('f"start must be above 0, got {start}"', '"no"'))
    assert found == {"options": "start=-1.0 is refused with `no`, which does not name start"}


def test_an_error_is_told_by_its_line_in_the_users_file(failing):
    found = failing("""
        class Mine(Scheme):
            def scores(self, q, k, pos):
                return Scores(slopes=self.steep)
    """)
    assert "AttributeError: 'Mine' object has no attribute 'steep' (mine.py, line 12: " in found["finite"]
    assert found["finite"].endswith("return Scores(slopes=self.steep))")


def test_a_file_without_a_first_line_is_told_what_to_write(write):
    where = {
        r.name: r for r in run(write(SOUND, head="import torch\nfrom positional import Scheme, SchemeError, Scores\n"))
    }
    assert where["paper"].outcome == "fails"
    assert where["paper"].where == (
        'there is no line 1: write """Name: what it does in one clause (Authors year, arXiv:…)."""'
    )


def test_an_idea_that_has_no_paper_yet_is_told_and_does_not_fail(write):
    head = HEAD.replace(" (Nobody 2026, arXiv:2601.00001)", "")
    result = next(r for r in run(write(SOUND, head=head)) if r.name == "paper")
    assert result.outcome == "ok" and result.where.startswith("names no paper")


def test_depending_on_absolute_position_is_told_and_does_not_fail():
    found = {result.name: result for result in run("sinusoidal")}
    assert found["shift"].outcome == "ok"
    assert found["shift"].where.startswith("depends on absolute position: shifted by 1, token 0, head ")


def test_what_does_not_apply_says_why():
    found = {r.name: r.where for r in run({"kind": "rope-ntk", "factor": "auto"}) if r.outcome == "skipped"}
    assert found == {
        "cache": "no cache is exact for it: it is not prefix-consistent",
        "reach": "it claims no reach: a token may see all before it",
        "training": "it places no tokens",
        "gradient": "it has no parameters",
    }


def test_a_stack_is_checked_whole():
    assert not [r for r in run(["rope", {"kind": "window", "window": 9}]) if r.outcome == "fails"]


def test_compiling_is_checked_where_it_is_asked_for(write):
    names = [result.name for result in run("nope", SHAPE)]
    assert names == list(check.PROPERTIES) and "compile" not in names
    body = """
        class Mine(Scheme):
            def embed(self, x, pos):
                return x * 2 if x.sum() > 0 else x
    """
    *_, result = run(write(body), compile=True)
    assert (result.name, result.outcome) == ("compile", "fails")
    assert result.where.startswith("torch makes no single graph of it: ")


# The command


@pytest.fixture
def call(monkeypatch, capsys):
    """`lab check …` in this process: (exit code, stdout, stderr)."""

    def call(*words) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lab", "check", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "200")
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        return code, *capsys.readouterr()

    return call


def test_a_sound_encoding_exits_with_0_and_a_line_for_each_property(call, write):
    code, said, _ = call(write(SOUND), "start=0.5")
    assert code == 0
    assert all(f" {name} " in said for name in check.PROPERTIES)


def test_a_broken_one_exits_with_1_and_says_where(call, write):
    code, said, _ = call(write("class Mine(Rope):\n    reach = 9\n"))
    assert code == 1
    assert "other tokens more than its reach of 9" in said and "fails" in said


def test_tokens_that_training_places_outside_the_length_fail(failing):
    found = failing("""
        from dataclasses import replace


        class Mine(Rope):
            def place(self, pos, rows):
                return replace(pos, ids=pos.ids * 2, contiguous=False, memo={})
    """)
    assert found == {"training": "length is 24, and positions go from 0 to 46"}


def test_a_kind_that_is_built_in_takes_its_options(call):
    assert call("rope-ntk", "factor=8", "base=500000", "--heads", 2)[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gone.py"], "gone.py: the encoding's kind names it"),
        (["two.py"], "`two.py` must define one Scheme, found One, Two: write two.py:NAME to choose one"),
        (["two.py:Three"], "no Scheme `Three` in "),
        (["ropee"], "unknown encoding `ropee`: did you mean rope?"),
        (["rope-ntk"], "rope-ntk needs `factor` (a number or auto): write {kind: rope-ntk, factor: …}"),
        (["rope", "bse=3"], "rope has no option `bse`: did you mean base?"),
        (["rope", "--width", 63], "width 63 is not a multiple of heads 4"),
        (["[rope, window", "window=3"], "check: `[rope, window` is not readable as YAML"),
        (["[rope, nope]", "base=3"], "check: base=3 stands beside a list: write options inside it"),
        (["rope", "base"], "`base` is no override"),
    ],
)
def test_a_call_that_cannot_be_carried_out_exits_with_2(call, write, monkeypatch, tmp_path, words, said):
    write("class One(Scheme):\n    pass\n\n\nclass Two(Scheme):\n    pass\n", name="two.py")
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*words)
    assert (code, out) == (2, "") and said in err and "Traceback" not in err
