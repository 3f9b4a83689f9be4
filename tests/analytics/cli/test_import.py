"""`joules import`: a run file out of CSVs of another meter has the joules that stand in them."""

import csv
import io
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import isfinite

import pytest
from command import joules
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.run import read_run
from powerd_client.record.csv_import import Columns, SensorCard, import_csv
from powerd_core.errors import ConfigError
from powerd_core.model import Accuracy, Provenance

BEGIN = datetime(2026, 1, 31, 12, tzinfo=UTC)
STEP_S, PERIOD = 0.01, 100
"""A second of 100 W, a second of 150 W, and so on."""
CARD = ("--device", "gpu0", "--line", "gpu0.riser", "--provenance", "modelled", "--u-gain", "0.02")


def clock(style):
    """How a time in seconds is written."""
    return {
        "seconds": lambda t: f"{t:.3f}",
        "utc": lambda t: (BEGIN + timedelta(seconds=t)).isoformat().replace("+00:00", "Z"),
        "zone": lambda t: (BEGIN + timedelta(seconds=t)).astimezone().isoformat(),
    }[style]


def watts(i):
    return 150 if i // PERIOD % 2 else 100


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Writes the CSVs: 20 s of power or of a counter, and a phase for each second."""
    monkeypatch.chdir(tmp_path)

    def write(style, heading, separator=","):
        at, joules_so_far = clock(style), 0.0
        with open("power.csv", "w") as file:
            print("time", heading, sep=separator, file=file)
            for i in range(2000):
                value = joules_so_far / 3600 if "Wh" in heading else watts(i) * (1e3 if "mW" in heading else 1)
                print(at(i * STEP_S), "" if i == 1234 else repr(value), sep=separator, file=file)
                joules_so_far += watts(i) * STEP_S
        with open("phases.csv", "w") as file:
            print("begin,name,end,batch_size,model", file=file)
            for k in range(1, 18, 2):
                print(at(k), "iteration", at(k + 2), 32, "net", sep=",", file=file)
                print(at(k), "forward", at(k + 1), "", "", sep=",", file=file)

    return write


@pytest.mark.parametrize(
    ("style", "heading", "separator"),
    [("seconds", "power_w", ","), ("utc", "power [mW]", ";"), ("zone", "watts", ","), ("seconds", "energy (Wh)", ",")],
)
def test_the_joules_are_those_of_the_csv(tables, capsys, style, heading, separator):
    tables(style, heading, separator)
    code, out, err = joules(capsys, "import", "power.csv", "--phases", "phases.csv", "-o", "run.h5", *CARD)
    assert (code, err) == (0, "")
    assert "2000 readings, 18 phases" in out
    rows = list(csv.DictReader(io.StringIO(joules(capsys, "tables", "run.h5", "--format", "csv")[1])))
    phases = {row["phase"]: row for row in rows if row["kind"] == "phase"}
    for name, energy_j in (("iteration", 250.0), ("forward", 150.0)):
        row = phases[name]
        assert float(row["j_per_batch"]) == pytest.approx(energy_j, rel=0.01)
        assert float(row["u95_j"]) == pytest.approx(0.04 * energy_j, rel=0.3)
        assert (row["device"], row["provenance"], row["batch_size"]) == ("gpu0", "modelled", "32")
    (whole,) = (row for row in rows if row["kind"] == "run")
    assert float(whole["energy_j"]) == pytest.approx(20 * 125.0, rel=0.01)
    assert joules(capsys, "info", "--check", "run.h5")[0] == 0
    info = joules(capsys, "info", "run.h5")[1]
    assert "1999 good readings, 1 bad" in info
    assert ("2026-01-31T12:00" in info) == (style != "seconds")


@pytest.mark.parametrize(
    ("power", "phases", "text"),
    [
        ("t,w\n0,1\n1,x", None, r"power.csv, line 3: 'x' is no number"),
        ("t,w\n0,1\n\n0.5,1\n0.25,1", None, r"power.csv, line 5: its time 0.25"),
        ("t,w\n0,1\n2026-01-31T12:00:00Z,1", None, r"power.csv, line 3"),
        ("t,w\nsoon,1", None, r"power.csv, line 2: 'soon' is no time"),
        ("t,w\n0,1\n1,1e300", None, r"power.csv, line 3: 1e300 W is beyond what any meter measures"),
        ("t,joules\n0,5\n1,4", None, r"power.csv, line 3: the counter goes back"),
        ("t,w\n0,1\n1\n2,1", None, r"power.csv, line 3: 1 cells"),
        ("t,load\n0,1\n1,1", None, r"power.csv, line 1: .*--unit"),
        ("t,w,v\n0,1,1\n1,1,1", None, r"power.csv, line 1: .*--column"),
        ("t,w\n0,1\n1,", None, r"power.csv holds fewer than two readings"),
        ("t,w\n0,1\n1,1", "name,begin,end\na,0,0", r"phases.csv, line 2"),
        ("t,w\n0,1\n1,1", "name,begin,end\na,0,0.6\nb,0.5,0.8", r"phases.csv, line 3: 'b' begins inside 'a' of line 2"),
        ("t,w\n0,1\n1,1", "name,begin,end\na,2026-01-31T12:00:00Z,0.6", r"phases.csv, line 2"),
        ("t,w\n0,1\n1,1", "phase,begin,end\na,0,0.6", r"phases.csv, line 1: there is no column 'name'"),
    ],
)
def test_what_is_wrong_in_a_csv_is_named_by_its_line(tmp_path, monkeypatch, capsys, power, phases, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "power.csv").write_text(power)
    options = ()
    if phases is not None:
        (tmp_path / "phases.csv").write_text(phases)
        options = ("--phases", "phases.csv")
    before = sorted(tmp_path.iterdir())
    code, out, err = joules(capsys, "import", "power.csv", *options, "-o", "run.h5")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.search(text, err), err
    assert sorted(tmp_path.iterdir()) == before


NUMBERS = st.sampled_from(
    ["1e300", "-1e300", "1e-300", "4.6e12", "9" * 400, "1e999999", "inf", "nan"]
) | st.floats().map(repr)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(NUMBERS, min_size=2, max_size=5), st.sampled_from(["W", "kW", "J", "kWh"]))
def test_any_number_is_read_or_refused_by_its_line(tmp_path, numbers, unit):
    power, run = tmp_path / "power.csv", tmp_path / "run.h5"
    power.write_text("t,x\n" + "".join(f"{i},{number}\n" for i, number in enumerate(numbers)))
    card = SensorCard("node", "meter", Provenance.MEASURED, Accuracy(0.01), 0)
    with suppress(ConfigError):  # of one line, as above
        import_csv(power, None, run, card, Columns(unit=unit), overwrite=True)
        for row in phase_table(read_run(run)).runs:
            assert row.energy_j is None or isfinite(row.energy_j)


@pytest.mark.parametrize("text", ["1e999990", "-1e999990", "1e400000"])
@pytest.mark.parametrize("column", [0, 1])
def test_a_cell_with_a_million_digits_is_refused_and_never_written_out(tmp_path, monkeypatch, capsys, text, column):
    """To make the number would take half a minute, and to print it a page."""
    monkeypatch.chdir(tmp_path)
    row = ["1", "100"]
    row[column] = text
    (tmp_path / "power.csv").write_text(f"time,power_w\n0,100\n{','.join(row)}\n2,100\n")
    code, _, err = joules(capsys, "import", "power.csv", "-o", "run.h5", *CARD)
    assert code == 2
    assert "line 3" in err
    assert len(err) < 500
