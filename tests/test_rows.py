"""Rows on disk, and what is made of them: a table as text, a figure."""

import struct

from lab.figure import curve, figures
from lab.rows import Row, Rows, read, write
from lab.table import markdown


def row(scheme="rope", length=16, value: float | None = 1.0, **other) -> Row:
    fields = {"run": "r", "trained_as": scheme, "seed": 0, "probe": "perplexity", "metric": "nats", "count": 64}
    return Row(**{**fields, "scheme": scheme, "length": length, "value": value, **other})


def test_rows_are_appended_and_read_back(tmp_path):
    rows = Rows(tmp_path / "rows.jsonl")
    given = [row(), row(length=32, value=None, count=0, note="why"), row("alibi"), row(seed=1), row(probe="position")]
    for n, one in enumerate(given, 1):
        rows.put(one)
        assert read(tmp_path / "rows.jsonl") == given[:n]  # each on disk at once
    assert read(tmp_path / "none.jsonl") == []


def test_a_row_measured_anew_takes_the_place_of_the_old(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, [row(), row("alibi"), row(length=32)])
    Rows(path).put(row(value=5.0))
    assert read(path) == [row(value=5.0), row("alibi"), row(length=32)]


def test_a_row_that_is_there_already_writes_nothing(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, [row(), row("alibi")])
    before = path.stat().st_mtime_ns, path.read_bytes()
    Rows(path).put(row("alibi"))
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before


def test_rows_survive_half_a_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    write(path, [row(), row("alibi")])
    path.write_bytes(path.read_bytes()[:-30])
    rows = Rows(path)
    assert list(rows.rows.values()) == [row()]
    rows.put(row("alibi"))
    rows.put(row(value=2.0))
    assert read(path) == [row(value=2.0), row("alibi")]


def test_the_table_as_text():
    rows = [
        row("learned", 16, 2.0),
        row("learned", 32, None, count=0, note="takes at most 16 tokens"),
        row("rope", 16, 1.25),
        row("rope", 32, 3.0),
        row("rope", 8, 9.0, probe="position", count=4),  # not of this table
        row("rope-ntk", 32, 1.0625, trained_as="rope"),
    ]
    assert markdown(rows, 16) == (
        "| nats per token | 16 (1×) | 32 (2×) |\n"
        "| --- | ---: | ---: |\n"
        "| learned | 2.000 | – |\n"
        "| rope | 1.250 | 3.000 |\n"
        "| rope → rope-ntk | – | 1.062 |\n"
        "\n"
        "64 scored tokens, the same at every length; 1 seed(s).  \n"
        "– learned: takes at most 16 tokens.  \n"
    )


def test_the_table_shows_the_mean_of_seeds_where_there_is_no_row_over_all():
    rows = [row(value=value, seed=seed, low=value - 1, high=value + 1) for seed, value in enumerate([1.0, 2.0, 4.5])]
    rows += [row(length=24, value=value, seed=seed) for seed, value in enumerate([1.0, None, 2.0])]
    table = markdown(rows, 16).splitlines()
    assert table[0] == "| nats per token | 16 (1×) | 24 (1.5×) |"
    assert table[2] == "| rope | 2.500 | 1.500 |"
    assert table[4].startswith("64 scored tokens") and "3 seed(s)" in table[4]


def test_the_table_shows_the_row_over_all_seeds_and_how_far_its_interval_reaches():
    rows = [row(value=value, seed=seed) for seed, value in enumerate([1.0, 2.0])]
    rows += [row(value=1.5, seed=None, low=1.25, high=2.0, count=128)]
    table = markdown(rows, 16).splitlines()
    assert table[2] == "| rope | 1.500 ±0.500 |"
    assert table[4] == (
        "64 scored tokens, the same at every length; 2 seed(s). ± is a 95 % interval of each by itself.  "
    )


def test_every_protocol_has_a_table_and_what_it_scores_is_not_called_the_same():
    rows = [row(value=2.0), row(value=3.0, probe="hf-stride", count=99), row(length=32, probe="hf-stride", count=98)]
    rows += [row(value=9.0, probe="position"), row(value=9.0, probe="gain"), row(value=9.0, metric="bits per byte")]
    assert markdown(rows, 16) == (
        "| nats per token | 16 (1×) |\n"
        "| --- | ---: |\n"
        "| rope | 2.000 |\n"
        "\n"
        "64 scored tokens, the same at every length; 1 seed(s).  \n"
        "\n"
        "| hf-stride, nats per token | 16 (1×) | 32 (2×) |\n"
        "| --- | ---: | ---: |\n"
        "| rope | 3.000 | 1.000 |\n"
        "\n"
        "98, 99 scored tokens, not the same ones at every length; 1 seed(s).  \n"
    )
    assert markdown(rows[1:], 16).startswith("| hf-stride, nats per token |")


def test_every_probe_has_a_figure_of_its_losses(tmp_path):
    rows = [row(value=2.0), row(value=3.0, probe="hf-stride"), row(value=None, probe="suffix", note="why")]
    rows += [row(value=1.0, probe="reach", metric="L_gain")]
    paths = figures(rows, tmp_path / "new", 16)
    assert [path.name for path in paths] == ["perplexity.png", "hf-stride.png"] and all(p.exists() for p in paths)


def test_the_table_says_where_encodings_were_not_scored_on_the_same_tokens():
    """Rows of an older measurement may stand beside newer ones; nobody may then read `the same at every length`."""
    notes = markdown([row(length=16, count=64), row(length=32, count=128)], 16)
    assert "the same at every length" not in notes


def test_a_reason_stands_once_however_often_it_holds():
    rows = [row("learned", n, None, count=0, note="takes at most 16 tokens") for n in (32, 64, 128)]
    assert markdown(rows, 16).count("takes at most") == 1


def test_the_figure_is_a_png_that_shows_something(tmp_path):
    rows = [row("learned", 16, 2.0), row("learned", 32, None, count=0, note="x")]
    rows += [row("rope", n, n / 16) for n in (16, 32, 64)]
    rows += [row("rope-ntk", n, 1.0, trained_as="rope") for n in (16, 32, 64)]
    rows += [row("nope", n, None, count=0, note="x") for n in (16, 32)]  # nothing to draw, and no error
    curve(rows, tmp_path / "curve.png", 16)
    content = (tmp_path / "curve.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", content[16:24]) == (1200, 750)
    curve(rows[:1], tmp_path / "less.png", 16)
    assert 20_000 < len(content) < 300_000
    assert len(content) > (tmp_path / "less.png").stat().st_size + 5_000  # the lines and their names are in it
