"""That joules are simulated is said in every export: all tables, all formats, all pictures and pages."""

import csv
import io
import json
import typing

import h5py
import pyarrow.parquet as pq
import pytest
from make_campaign import one_run, simulated_campaign
from make_run import MS, LineSpec, make_run, training

from powerd_analytics.campaign_views import all_tables as campaign
from powerd_analytics.campaign_views.campaign_figures import Campaign
from powerd_analytics.campaign_views.campaign_page import pictures, write_report
from powerd_analytics.cli import campaign as campaign_command
from powerd_analytics.cli import shared
from powerd_analytics.cli import tables as tables_command
from powerd_analytics.frame.figures import frame_of
from powerd_analytics.output.export import Column, make_table, with_provenance, write_parquet, write_tables
from powerd_analytics.run_tables.iterations import COLUMNS as OF_ITERATIONS
from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.run import read_run
from powerd_analytics.views.layouts import TableChoice, chosen_tables, run_tables
from powerd_core.errors import AnalysisError

TEXTS = ("text", "csv", "json", "markdown", "latex", "paper")


def choices(annotation):
    """The words of a `Literal`, wherever it stands in an annotation."""
    if typing.get_origin(annotation) is typing.Literal:
        return set(typing.get_args(annotation))
    return set().union(*map(choices, typing.get_args(annotation)))


def annotations(command):
    return typing.get_type_hints(command, {**vars(campaign_command), **vars(tables_command)}, include_extras=True)


JOULES = ("j_per_batch", "energy_j", "above_idle_j", "rest_j")


def check_figures(table, of_parquet):
    """What is not resolvable is nowhere a number, and says why; what is one has its ± in every format."""
    uncertainties = [column.name for column in table.columns if column.is_uncertainty]
    from_csv = list(csv.DictReader(io.StringIO(shared.tables_text([table], "csv", None))))
    from_json = json.loads(shared.tables_text([table], "json", None)) if len(table) else []
    names = [column.name for column in table.columns]
    for name in {*JOULES} & {*names}:
        unknown = [row[name] is None for row in table.records()]
        assert [row[name] in (None, "") for row in from_csv] == unknown
        assert [row[name] is None for row in from_json] == unknown
        assert [row[name] is None for row in of_parquet] == unknown
    of_rows = {"j_per_batch", "energy_j"} & {*names}
    told = [row for row in of_parquet if of_rows and all(row[name] is None for name in of_rows)]
    if told and "note" in names:
        assert all(row["note"] for row in told), table.name
        for form in ("text", "markdown", "latex"):
            text = shared.tables_text([table], form, None)
            assert "not resolvable" in " ".join(text.split()), (table.name, form)
    for name in uncertainties:
        assert [row[name] is None for row in of_parquet] == [row[name] is None for row in table.records()]
    if uncertainties and any(row[u] is not None for row in table.records() for u in uncertainties):
        for form in ("text", "markdown", "latex"):
            text = shared.tables_text([table], form, None)
            assert "±" in text or r"\pm" in text, (table.name, form)


def check_said(table, folder):
    for form in TEXTS:
        text = shared.tables_text([table], form, None)
        if form in ("csv", "json") and not len(table):  # no row, no joule
            continue
        assert "simulated" in text, (table.name, form)
        if form == "csv":
            every = list(csv.DictReader(io.StringIO(text)))
            assert all("simulated" in " ".join(map(str, row.values())) for row in every), table.name
    parquet = folder / f"{table.name}.parquet"
    write_parquet(table, parquet)
    written = pq.read_table(parquet)
    assert "simulated" in str(written.schema.metadata) or all("simulated" in str(row) for row in written.to_pylist())
    check_figures(table, written.to_pylist())
    out = folder / f"{table.name}.h5"
    write_tables(out, [table], overwrite=True)
    with h5py.File(out) as file:
        assert "simulated" in file[f"tables/{table.name}"].attrs["notes"] or any(
            b"simulated" in data[:].tobytes() for data in file[f"tables/{table.name}"].values()
        )


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    return simulated_campaign(tmp_path_factory.mktemp("c"))


@pytest.mark.slow  # the first to import what all commands do
def test_the_names_that_the_command_takes_are_those_that_there_are():
    assert choices(annotations(campaign_command.table)["which"]) == set(campaign._MAKERS)
    formats = choices(annotations(campaign_command.table)["format"]) | choices(
        annotations(tables_command.Printing)["format"]
    )
    assert formats - {"hdf5", "parquet"} == set(TEXTS) - {"paper"}  # which write what HDF5 has


@pytest.mark.parametrize("name", campaign._MAKERS)
def test_every_table_of_a_campaign_says_simulated_in_every_format(simulated, tmp_path, name):
    (table,) = campaign.campaign_tables(Campaign(*simulated), (name,))
    check_said(table, tmp_path)


def test_most_tables_of_the_campaign_have_rows(simulated):
    filled = {table.name for table in campaign.campaign_tables(Campaign(*simulated)) if len(table)}
    assert {"cells", "phases", "accuracy", "minima", "savings", "efficiency", "kernels", "testbed"} <= filled


@pytest.mark.slow
def test_pictures_and_page_of_a_campaign_say_simulated(simulated, tmp_path):
    drawn = list(pictures(Campaign(*simulated)))
    assert drawn
    for picture in drawn:
        assert "simulated" in picture.draw()._supxlabel.get_text(), picture.name
    write_report(Campaign(*simulated), tmp_path / "page.html")
    assert "simulated power" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made = [
        one_run(folder / f"{card}.h5", batches=(64, 128), iterations=3, device_name=card)
        for card in ("pascal", "maxwell")
    ]
    import pandas as pd

    frames = [frame_of(run, phase_table(run)) for run in map(read_run, made)]
    return frames[0], pd.concat(frames, ignore_index=True)


@pytest.mark.slow
def test_every_table_of_runs_says_simulated_in_every_format(runs, tmp_path):
    one, several = runs
    wide = run_tables(one)
    for table in wide:
        check_said(table, tmp_path)
    made = set()
    for name in choices(tables_command.Which) - {"iterations"}:
        try:
            (table,) = chosen_tables(several, TableChoice(names=(name,), gain=("maxwell", "pascal")))
        except AnalysisError as error:
            assert f"no table '{name}'" in str(error)  # noqa: PT017
            continue
        made.add(name)
        check_said(table, tmp_path)
    assert {"time", "energy", "totals", "efficiency", "gain", "records"} <= made
    assert "provenance" in {column.name for column in OF_ITERATIONS}


@pytest.mark.slow
def test_what_is_not_resolvable_is_told_in_every_table_and_format(tmp_path):
    plan = training((64,), 40)
    line = LineSpec("gpu0.nvml", plan.power(), period_ns=200 * MS)
    frame = frame_of(
        run := read_run(make_run(tmp_path / "r.h5", [line], plan.phases, end_ns=plan.end_ns)), phase_table(run)
    )
    tables = [*run_tables(frame), *chosen_tables(frame, TableChoice(names=("energy", "records")))]
    assert any(row.get("j_per_batch", 1) is None for table in tables for row in table.records())
    for table in tables:
        check_said(table, tmp_path)


def test_a_table_that_sees_no_provenance_gets_it_and_one_that_shows_it_keeps_it():
    bare = make_table("t", "T", [Column("energy_j", "number", "J")], [[1.0]])
    assert with_provenance(bare, {"measured"}).notes == ()
    assert with_provenance(bare, {"measured"}).records() == [{"energy_j": 1.0, "provenance": "measured"}]
    both = with_provenance(bare, {"measured", "modelled"})
    assert both.notes == ("joules are measured and modelled",)
    shown = make_table("t", "T", [Column("energy_j", "number", "J"), Column("provenance")], [[1.0, "simulated"]])
    assert with_provenance(shown, {"simulated"}) == shown
