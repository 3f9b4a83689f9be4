"""Tables as people read them on a terminal of 80 columns, and in a paper."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from powerd_analytics.output.export import Column, make_table, merged_notes, print_tables, to_paper

COLUMNS = (
    Column("model", is_setting=True),
    Column("device", is_setting=True),
    Column("gpus", "integer", "1", is_setting=True),
    Column("phase"),
    Column("j_per_batch", "number", "J", heading="J/batch"),
    Column("u95_j", "number", "J", heading="± U95 J", is_uncertainty=True),
    *(Column(f"figure_{k}", "number", heading=f"figure {k}") for k in range(9)),
    Column("note"),
)


def row(phase, joules=17.34, u95=0.14, device="gpu0", note="", model="small-cnn"):
    return (model, device, 1, phase, joules, u95, *(1.2345678 * 10**k for k in range(-3, 6)), note)


def shown(*tables, width=80):
    out = io.StringIO()
    print_tables(tables, Console(file=out, width=width, force_terminal=True, color_system=None))
    return out.getvalue()


def table_of(*rows, notes=("± U95: half",)):
    return make_table("energy", "Energy by phase", COLUMNS, rows, notes)


def test_what_all_rows_have_in_common_is_said_once_and_figures_have_their_uncertainty():
    text = shown(table_of(row("forward"), row("backward", 9.5, None)))
    assert text.splitlines()[1].strip() == "small-cnn, gpu0, 1 GPU"
    assert text.count("small-cnn") == 1
    assert "17.34 ± 0.14" in text
    assert "9.500 ±" not in text


def test_a_wide_table_is_cut_into_pieces_that_name_their_rows():
    text = shown(table_of(row("forward"), row("backward")))
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("forward") > 1
    assert all(f"{k}" in text for k in range(9))


def test_devices_are_apart_where_a_table_is_too_wide():
    text = shown(table_of(row("forward"), row("forward", device="cpu0")))
    headings = [line.strip() for line in text.splitlines() if line.startswith("small-cnn")]
    assert headings == ["small-cnn, gpu0, 1 GPU", "small-cnn, cpu0"]  # a processor is no GPU


def test_notes_of_several_tables_stand_once_with_the_reach_of_their_figures():
    notes = (
        "14.2 ms without readings: no bound",
        "2.34 s without readings: no bound",
        "167 ms without readings: no bound",
    )
    tables = [table_of(*(row(f"p{k}", note=note) for k, note in enumerate(notes))) for _ in range(2)]
    text = shown(*tables)
    assert text.count("without readings") == 1
    assert "1  14.2 ms to 2.34 s without readings: no bound" in text
    assert text.count("± U95: half") == 1


def test_notes_of_other_causes_are_kept_apart():
    same, other = "folded over 12 phases", "1 left out"
    assert merged_notes([same, "folded over 30 phases", other]) == {
        same: "folded over 12 to 30 phases", "folded over 30 phases": "folded over 12 to 30 phases", other: other,
    }  # fmt: skip


@given(st.lists(st.text("ab 0123456789.#%", max_size=12), max_size=6))
def test_merging_loses_no_note(texts):
    merged = merged_notes(texts)
    assert set(merged) == set(texts)


@given(
    st.lists(
        st.tuples(
            st.text("abc _./", min_size=1, max_size=60), st.floats(1e-9, 1e12), st.sampled_from(["gpu0", "cpu0"])
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_line_is_wider_than_the_terminal(rows):
    text = shown(table_of(*(row(name, joules, joules / 99, device) for name, joules, device in rows)))
    assert max(map(len, text.splitlines())) <= 80


def test_a_paper_has_the_common_settings_in_the_caption_and_notes_once():
    text = to_paper([table_of(row("forward", note="folded over 3 phases")), table_of(row("backward"))])
    assert r"\caption{Energy by phase: small-cnn, gpu0, 1 GPU}" in text
    assert r"forward & 17.34 $\pm$ 0.14 &" in text
    assert text.count("half") == 1
    assert text.count(r"\begin{tabular}") == 2
    assert r"$^{1}$ \\" in text


def test_a_table_of_settings_alone_keeps_its_columns():
    text = shown(make_table("t", "", COLUMNS[:2], [("a", "gpu0")]))
    assert "model" in text
    assert "gpu0" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_large_figures_share_their_power_of_ten(width):
    assert "(2.327 ± 0.010)e+10" in shown(table_of(row("all", 2.327e10, 1e8)), width=width)
    assert "(1.1 ± 1.5)e+10" in shown(table_of(row("all", 1.13e10, 1.5e10)), width=width)
