"""Tables written for people and programs say the same, whatever stands in them."""

import csv
import io
import json
import re

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

from powerd_analytics.frame.figures import column
from powerd_analytics.output.export import (
    make_table,
    read_table,
    to_csv,
    to_json,
    to_latex,
    to_markdown,
    write_parquet,
    write_tables,
)
from powerd_client.runs.verify import verify_file
from powerd_core.errors import RunFileError
from support.small_run import make_run_file


def sheet(model="AlexNét", name="energy"):
    columns = [column(n) for n in ("model", "batch_size", "iterations", "j_per_batch", "u95_j_per_batch")]
    rows = (
        (model, 64, 10, 12.3456789, 0.123, False, ""),
        (model, 128, 10, None, None, False, "not resolvable: too short"),
        (None, 256, 10, 20.0, None, True, "a line stood at full scale; too short"),
    )
    columns += [column("is_lower_bound"), column("note")]
    return make_table(name, "Energy by phase", columns, rows, ("mean of 3 runs",))


def test_programs_have_full_precision_and_people_rounded_figures_and_footnotes():
    text = to_markdown([sheet()])
    for line in (
        "| AlexNét | 64 | 10 | 12.35 | 0.12 |  |",
        "| AlexNét | 128 | 10 | – | – | 1 |",
        "|  | 256 | 10 | ≥ 20.00 | – | 2 3 |",
        "1. not resolvable: too short",
        "*mean of 3 runs*",
    ):
        assert line in text.splitlines()
    rows = list(csv.DictReader(io.StringIO(to_csv(sheet()))))
    assert [r["j_per_batch"] for r in rows] == ["12.3456789", "", "20.0"]
    made = json.loads(to_json(sheet()))
    assert [row["j_per_batch"] for row in made] == [12.3456789, None, 20.0]


@settings(max_examples=25, deadline=None)
@given(st.text(min_size=1, max_size=30))
def test_latex_keeps_its_braces_and_cells_whatever_names_say(model):
    text = to_latex([sheet(model)])
    body = text.split("\\midrule\n")[1].split("\n\\bottomrule")[0].split("\n")
    assert len(body) == 3
    for line in body:
        assert line.endswith(r" \\")
        plain = re.sub(r"\\[A-Za-z]+|\\[`'^\"~=.,{}$&#%_]|\$\^(\d|\\circ)\$", "", line)
        assert plain.count("&") == 5
        assert plain.count("{") == plain.count("}")
        assert not set(plain.replace("~", "")) & set("#%^_")


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
    assert list(data) == sheet().names
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
    assert (code, out) == (0, f"{path}: /tables/{{time,energy,totals,records,accuracy}}\n")
    assert wrong(path) == []
    assert joules(capsys, "info", "--check", path)[0] == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.h5", "run.h5.journal.gz"]
    with h5py.File(path) as file:
        assert all(np.array_equal(file["lines"][n]["t_ns"][:], t) for n, t in before.items())
    table = read_table(path, "energy")
    assert table["j_per_batch"].notna().any()
    assert joules(capsys, "tables", path)[0] == 0


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


@pytest.mark.parametrize("form", ["text", "json", "latex", "parquet"])
def test_every_format_is_written_by_the_command(tmp_path, capsys, form):
    path = one_run(tmp_path / "run.h5", iterations=4)
    out = tmp_path / f"out.{form}"
    code, said, err = joules(capsys, "tables", path, "--iterations", 10, "--format", form, "-o", out)
    assert (code, said, err.strip()) == (0, "", "")
    assert out.stat().st_size > 200
    assert joules(capsys, "tables", path, "--iterations", 10, "--format", form, "-o", out)[0] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["run.h5", out.name])


@pytest.mark.parametrize(
    ("text", "made"),
    [("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"), ("@SUM(A1)", "'@SUM(A1)"), ("-x", "'-x"), ("-1.5", "-1.5"),
     (" =1+1", "' =1+1"), ("a\x1b]0;b\x07", "a\\x1b]0;b\\x07"), ("\x9b2J", "\\x9b2J"), ("two\nlines", "two\nlines")],
)  # fmt: skip
def test_a_text_that_a_spreadsheet_would_calculate_stays_a_text(tmp_path, capsys, text, made):
    rows = list(csv.DictReader(io.StringIO(to_csv(sheet(text)))))
    assert rows[0]["model"] == made
    if text == "=cmd|' /C calc'!A0":
        path = one_run(tmp_path / "r.h5", iterations=4, model=text, own=text)
        _, out, _ = joules(capsys, "tables", path, "--format", "csv")
        row = next(csv.DictReader(io.StringIO(out)))
        assert (row["model"], row["attribute_own"]) == (made, made)
        _, out, _ = joules(capsys, "tables", "--table", "uncertainty", path, "--format", "csv")
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
