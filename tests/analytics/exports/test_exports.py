"""Tables written for people and programs say the same, whatever stands in them."""

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import h5py
import numpy as np
import pandas
import pyarrow.parquet as pq
import pytest
import xarray
from command import joules
from hypothesis import given, settings
from hypothesis import strategies as st
from make_campaign import one_run
from rich.console import Console

from powerd_analytics.exports import (
    print_sheets,
    read_table,
    to_csv,
    to_html,
    to_json,
    to_latex,
    to_markdown,
    write_parquet,
    write_tables,
)
from powerd_analytics.exports.latex import escaped
from powerd_analytics.exports.sheet import Sheet, SheetColumn, sheet_column
from powerd_client.recover import recover
from powerd_client.verify import verify_file
from powerd_core.errors import AnalysisError, RunFileError
from support.small_run import make_run_file

HOSTILE = '</td><script>alert(1)</script>&|_$%\\{}#^~"[x]*`\x1b[31m\n'


def sheet(model="AlexNét", name="energy"):
    columns = [sheet_column(n) for n in ("model", "batch_size", "iterations", "j_per_batch", "u95_j_per_batch")]
    rows = (
        (model, 64, 10, 12.3456789, 0.123, False, ""),
        (model, 128, 10, None, None, False, "not resolvable: too short"),
        (None, 256, 10, 20.0, None, True, "a line stood at full scale; too short"),
    )
    columns += [sheet_column("is_lower_bound"), sheet_column("note")]
    return Sheet(name, "Energy by phase", tuple(columns), rows, ("mean of 3 runs",), frozenset({(2, 3)}))


def test_csv_has_full_precision_and_json_the_units():
    rows = list(csv.DictReader(io.StringIO(to_csv(sheet()))))
    assert [r["j_per_batch"] for r in rows] == ["12.3456789", "", "20.0"]
    made = json.loads(to_json([sheet()]))["energy"]
    assert made["units"]["j_per_batch"] == "J"
    assert made["rows"][1]["j_per_batch"] is None
    assert made["notes"] == ["mean of 3 runs"]


def test_for_people_numbers_are_rounded_and_notes_numbered():
    text = to_markdown([sheet()])
    assert "| AlexNét | 64 | 10 | 12.35 | 0.12 |  |" in text
    assert "| AlexNét | 128 | 10 | – | – | 1 |" in text
    assert "|  | 256 | 10 | ≥ 20.00 | – | 2 3 |" in text
    assert "1. not resolvable: too short" in text
    assert "*mean of 3 runs*" in text
    assert "lower" not in text


class Cells(HTMLParser):
    """Texts of the cells, and every tag and attribute that there is."""

    def __init__(self):
        super().__init__()
        self.tags, self.cells, self.values = set(), [], []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.values += [float(v) for n, v in attrs if n == "data-value"]
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data


def test_html_is_one_page_of_tables_whatever_names_say():
    page = to_html([sheet(HOSTILE)])
    found = Cells()
    found.feed(page)
    assert "script" not in found.tags
    assert "http" not in page
    assert "\x1b" not in page
    assert found.cells[0].startswith("</td><script>alert(1)")
    assert 12.3456789 in found.values


@settings(max_examples=80, deadline=None)
@given(st.text(min_size=1, max_size=30))
def test_latex_keeps_its_braces_and_cells_whatever_names_say(model):
    text = to_latex([sheet(model)])
    body = text.split("\\midrule\n")[1].split("\n\\bottomrule")[0].split("\n")
    assert len(body) == 3
    for line in body:
        assert line.isascii()
        assert line.endswith(r" \\")
        plain = re.sub(r"\\[A-Za-z]+|\\[`'^\"~=.,{}$&#%_]|\$\^(\d|\\circ)\$", "", line)
        assert plain.count("&") == 5
        assert plain.count("{") == plain.count("}")
        assert not set(plain.replace("~", "")) & set("#%^_")


def test_latex_has_rules_of_booktabs_and_escapes():
    text = to_latex([sheet("a_b & 50% #1 {x} ~^\\")])
    for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lrrrrl}", r"\label{tab:energy}"):
        assert rule in text
    assert r"a\_b \& 50\% \#1 \{x\} \textasciitilde{}\textasciicircum{}\textbackslash{}" in text
    assert escaped("≥ 5 ± 1") == r"$\ge$ 5 $\pm$ 1"


def test_parquet_has_types_and_units(tmp_path):
    write_parquet(sheet(), tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    assert table.schema.field("j_per_batch").metadata == {b"units": b"J"}
    assert table.to_pydict()["j_per_batch"] == [12.3456789, None, 20.0]
    assert [str(t) for t in table.schema.types] == ["string", "double", "int64", "double", "double", "bool", "string"]


def test_xarray_and_pandas_read_a_table_with_one_call_each(tmp_path):
    path = tmp_path / "campaign.h5"
    write_tables(path, [sheet()])
    data = xarray.open_dataset(path, group="tables/energy", engine="h5netcdf", phony_dims="access")
    assert list(data["model"].values) == ["AlexNét", "AlexNét", ""]
    assert data["j_per_batch"].attrs["units"] == "J"
    assert np.isnan(data["j_per_batch"].values[1])
    assert list(data) == [c.name for c in sheet().columns]
    data.close()
    with h5py.File(path) as file:
        frame = pandas.DataFrame(dict(file["tables/energy"]))
    assert list(frame["iterations"]) == [10, 10, 10]
    assert frame["iterations"].dtype == np.int64
    assert list(frame["is_lower_bound"]) == [0, 0, 1]
    ours = read_table(path, "energy")
    assert list(ours["model"]) == ["AlexNét", "AlexNét", ""]
    assert ours.attrs["units"]["u95_j_per_batch"] == "J"


def wrong(path):
    return [f"{f.check}: {f.text}" for f in verify_file(path) if f.state != "ok"]


def test_a_run_file_with_tables_is_still_what_it_says(tmp_path, capsys):
    path = make_run_file(tmp_path / "run.h5")
    with h5py.File(path) as file:
        before = {n: file["lines"][n]["t_ns"][:] for n in file["lines"]}
    code, out, _ = joules(capsys, "tables", path, "--into", path)
    assert (code, out) == (0, f"{path}: /tables/{{time,energy,totals,records}}\n")
    assert wrong(path) == []
    assert joules(capsys, "verify", path)[0] == 0
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]
    with h5py.File(path) as file:
        assert all(np.array_equal(file["lines"][n]["t_ns"][:], t) for n, t in before.items())
    table = read_table(path, "energy")
    assert table["j_per_batch"].notna().any()
    # The run can be read, and recovered, as before.
    assert joules(capsys, "tables", path)[0] == 0
    (lost,) = recover(path, tmp_path / "saved.h5").lost
    assert "/tables" in lost  # and nothing else


def test_a_table_that_changed_behind_our_back_is_found(tmp_path):
    path = make_run_file(tmp_path / "run.h5")
    write_tables(path, [sheet()])
    with h5py.File(path, "r+") as file:
        file["tables/energy/j_per_batch"].attrs["units"] = "kJ"
    assert [text.split(":")[0] for text in wrong(path)] == ["metadata"]
    before = path.read_bytes()
    with pytest.raises(RunFileError, match="is damaged"):
        write_tables(path, [sheet(name="more")])  # a new digest would hide it
    assert path.read_bytes() == before


def test_tables_are_replaced_only_when_asked(tmp_path):
    path = tmp_path / "c.h5"
    write_tables(path, [sheet(), sheet(name="other")])
    before = path.read_bytes()
    with pytest.raises(RunFileError, match="has a table 'energy' already: give --overwrite"):
        write_tables(path, [sheet("B")])
    assert path.read_bytes() == before
    write_tables(path, [sheet("B")], overwrite=True)
    assert list(read_table(path, "energy")["model"]) == ["B", "B", ""]
    assert list(read_table(path, "other")["model"]) == ["AlexNét", "AlexNét", ""]
    assert [p.name for p in tmp_path.iterdir()] == ["c.h5"]


def test_what_is_no_file_of_ours_is_left_alone(tmp_path):
    text, other = tmp_path / "a.h5", tmp_path / "b.h5"
    text.write_text("hello")
    with h5py.File(other, "w") as file:
        file["x"] = 1
    for path, said in ((text, "no HDF5 file"), (other, "no powerd run")):
        before = path.read_bytes()
        with pytest.raises(RunFileError, match=said):
            write_tables(path, [sheet()])
        assert path.read_bytes() == before
    with pytest.raises(RunFileError, match="there is no file"):
        read_table(tmp_path / "absent.h5", "energy")
    write_tables(tmp_path / "c.h5", [sheet()])
    with pytest.raises(AnalysisError, match="has no table 'engery': it has energy"):
        read_table(tmp_path / "c.h5", "engery")


def test_a_table_of_a_stranger_reads_no_other_file(tmp_path):
    path = tmp_path / "c.h5"
    write_tables(path, [sheet()])
    with h5py.File(path, "r+") as file:
        del file["tables/energy/model"]
        file["tables/energy/model"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "x")
    with pytest.raises(RunFileError, match="model of /tables/energy is no column"):
        read_table(path, "energy")


def test_names_with_slashes_and_zeros_make_one_column_each(tmp_path):
    columns = (SheetColumn("j[a/b\0c]", "x", "number", "J"), SheetColumn("j[a]", "y", "number", "J"))
    write_tables(tmp_path / "c.h5", [Sheet("pivot/x", "t\0", columns, ((1.0, 2.0),))])
    with h5py.File(tmp_path / "c.h5") as file:
        assert [len(file["tables/pivot_x"][n]) for n in file["tables/pivot_x"]] == [1, 1]


@pytest.mark.parametrize("form", ["table", "csv", "json", "markdown", "latex", "html", "parquet"])
def test_every_format_is_written_by_the_command(tmp_path, capsys, form):
    path = one_run(tmp_path / "run.h5", iterations=4)
    out = tmp_path / f"out.{form}"
    code, said, err = joules(capsys, "tables", path, "--iterations", 10, "--format", form, "-o", out)
    assert (code, said, err.strip()) == (0, "", "")
    assert out.stat().st_size > 200
    assert joules(capsys, "tables", path, "--iterations", 10, "--format", form, "-o", out)[0] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["run.h5", out.name])


def test_docs_name_the_calls_that_are_tested():
    text = (Path(__file__).parents[3] / "docs" / "tables.md").read_text()
    assert 'engine="h5netcdf", phony_dims="access")' in text
    assert 'pandas.DataFrame(dict(h5py.File("campaign.h5")["tables/energy"]))' in text


@pytest.mark.parametrize(
    ("text", "made"),
    [("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"), ("@SUM(A1)", "'@SUM(A1)"), ("+1+2", "'+1+2"), ("-x", "'-x"),
     ("\t=1", "'\t=1"), ("-1.5", "-1.5"), ("+2e3", "+2e3"), ("a=b", "a=b")],
)  # fmt: skip
def test_a_text_that_a_spreadsheet_would_calculate_stays_a_text(tmp_path, capsys, text, made):
    rows = list(csv.DictReader(io.StringIO(to_csv(sheet(text)))))
    assert rows[0]["model"] == made
    if text == "=cmd|' /C calc'!A0":
        path = one_run(tmp_path / "r.h5", iterations=4, model=text, own=text)
        _, out, _ = joules(capsys, "tables", path, "--format", "csv")
        row = next(csv.DictReader(io.StringIO(out)))
        assert (row["model"], row["attribute_own"]) == (made, made)
        _, out, _ = joules(capsys, "uncertainty", path, "--format", "csv")
        assert not any(cell.startswith(("=", "@")) for line in csv.reader(io.StringIO(out)) for cell in line)


@pytest.mark.parametrize(
    ("text", "made"),
    [("a|b", "a\\|b"), ("_x_", "\\_x\\_"), ("batch_size", "batch_size"), ("<b>", "&lt;b>"), ("&lt;", "&amp;lt;"),
     ("R&D", "R&D"), ("$x$", "\\$x\\$"), ("~~no~~", "\\~\\~no\\~\\~"), ("\\", "\\\\")],
)  # fmt: skip
def test_markdown_takes_nothing_in_a_name_for_its_own(tmp_path, capsys, text, made):
    assert f"| {made} |" in to_markdown([sheet(text)])
    if text == "a|b":
        path = one_run(tmp_path / "r.h5", iterations=4, model=text)
        for command in ("tables", "uncertainty"):
            _, out, _ = joules(capsys, command, path, "--format", "markdown")
            assert made in out


def test_what_is_no_terminal_has_no_edge():
    columns = tuple(SheetColumn(f"c{i}", f"column {i}", "number") for i in range(60))
    text = io.StringIO()
    print_sheets([Sheet("wide", "wide", columns, ((1.5,) * 60,))], Console(file=text, width=80))
    head = next(line for line in text.getvalue().splitlines() if "column" in line)
    assert all(column.heading in head for column in columns)


def test_tables_go_into_the_file_that_a_link_leads_to(tmp_path):
    (tmp_path / "far").mkdir()
    file, link = tmp_path / "far" / "tables.h5", tmp_path / "link.h5"
    link.symlink_to(file)
    sheet = Sheet("energy", "", (SheetColumn("a", "a", "number", "J"),), ((1.0,),))
    for overwrite in (False, True):
        write_tables(link, [sheet], overwrite=overwrite)
        assert link.is_symlink()
        assert list(read_table(file, "energy")["a"]) == [1.0]
    assert sorted(tmp_path.rglob("*.h5")) == [file, link]
