"""`joules import`: units, times and devices of other people's logs are as their headings say, or refused."""

import csv
import io
import re
from datetime import datetime, timedelta

import pytest
from command import joules
from hypothesis import given
from hypothesis import strategies as st

from powerd_analytics.frame.figures import concat_frames, rows_of, run_frame
from powerd_analytics.frame.repeats import average_repeats
from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.run import read_run
from powerd_client.record.csv_import import (
    READING_UNITS,
    SCALES,
    TIME_UNITS,
    TIMES_NS,
    Columns,
    SensorCard,
    import_csv,
    named_unit,
)
from powerd_core.errors import ConfigError
from powerd_core.model import Accuracy, Provenance

START = datetime(2026, 11, 28, 7, 11, 23)
ROWS = 101
"""Ten seconds at 100 W: a thousand joules."""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(heading, row, name="power.csv"):
        (tmp_path / name).write_text("\n".join([heading, *map(row, range(ROWS))]) + "\n", encoding="utf-8")

    return write


def imported(capsys, *options):
    """Joules by device, of a file that is imported without a word on the error stream."""
    code, out, err = joules(capsys, "import", "power.csv", "-o", "run.h5", *options)
    assert (code, err) == (0, "")
    return {row.device: row.energy_j for row in phase_table(read_run("run.h5")).runs}, out


def refused(capsys, *options):
    """The one line that says why not."""
    code, out, err = joules(capsys, "import", "power.csv", "-o", "run.h5", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    return err


THOUSAND_J = {"node": pytest.approx(1000, rel=1e-3)}


@pytest.mark.parametrize(
    ("heading", "row", "options"),
    [
        ("time_ms,power_w", lambda i: f"{i * 100},100", ()),
        ("Timestamp(ms),power_w", lambda i: f"{i * 100},100", ()),
        ("elapsed_us,power_w", lambda i: f"{i * 100_000},100", ()),
        ("t [µs],power_w", lambda i: f"{i * 100_000},100", ()),
        ("t [μs],power_w", lambda i: f"{i * 100_000},100", ()),  # the Greek letter
        ("timestamp_ns,power_w", lambda i: f"{1764313883 * 10**9 + i * 10**8},100", ()),
        ("timestamp_ms,power_w", lambda i: f"{1764313883_000 + i * 100},100", ()),
        ("timestamp,power_w", lambda i: f"{1764313883 + i / 10:.1f},100", ()),
        ("timestamp,power_w", lambda i: f"{1764313883_000 + i * 100},100", ("--time-unit", "ms")),
        ("time [min],power_w", lambda i: f"{i / 600:.9f},100", ()),
        ("elapsed seconds,power_w", lambda i: f"{i / 10},100", ()),
        ("milliseconds,power_w", lambda i: f"{i * 100},100", ()),
        ("Time/s,P/W", lambda i: f"{i / 10},100", ()),
        ("x,power_w", lambda i: f"{i * 100},100", ("--time-column", "x", "--time-unit", "ms")),
        (",datetime,power_w", lambda i: f"{i},2025-07-27 02:01:{i / 10:06.3f},100", ("--column", "power_w")),
        ("sample,time_s,power_w", lambda i: f"{i},{i / 10},100", ("--column", "power_w")),
        ("index,time_s,power_w", lambda i: f"{i},{i / 10},100", ()),  # numbers the rows, and no devices
        ("Zeit;P [W]", lambda i: f"{i / 10:.1f};100,0".replace(".", ","),
         ("--time-column", "Zeit", "--time-unit", "s", "--decimal-comma")),
        ("time_s\tpower [kW]", lambda i: f"{i / 10}\t0,1".replace(".", ","), ("--decimal-comma",)),
        ("time_s,energy [MJ]", lambda i: f"{i / 10},{i * 1e-5:.6f}", ()),
        ("time_s,E (mJ)", lambda i: f"{i / 10},{i * 10_000}", ()),
        ("time_s,energy_uj", lambda i: f"{i / 10},{i * 10**7}", ()),
        ("time_s,power [MW]", lambda i: f"{i / 10},0.0001", ()),
        ("time_s,power_mw", lambda i: f"{i / 10},100000", ()),
        ("time_s,energy [W·h]", lambda i: f"{i / 10},{i / 360:.6f}", ()),
        ("time_s,energy W-h", lambda i: f"{i / 10},{i / 360:.6f}", ()),
        ("time_s,energy (watt hours)", lambda i: f"{i / 10},{i / 360:.6f}", ()),
        ("time_s,ENERGY_KWH", lambda i: f"{i / 10},{i / 360_000:.9f}", ()),
        ("time_s,energy [W*s]", lambda i: f"{i / 10},{i * 10}", ()),
        ("time_s,power", lambda i: f"{i / 10},100.0 W", ()),
        ("time_s,power [W]", lambda i: f"{i / 10},100.0W", ()),
    ],
)  # fmt: skip
def test_the_unit_in_the_heading_is_the_unit(write, capsys, heading, row, options):
    write(heading, row)
    assert imported(capsys, *options)[0] == THOUSAND_J


@pytest.mark.parametrize(
    ("heading", "row", "options", "why"),
    [
        (",power_w", lambda i: f"{i},100", (), "--time-column"),
        ("sample,power_w", lambda i: f"{i},100", (), "--time-column"),
        ("step,time_a_s,time_b_s,power_w", lambda i: f"{i},{i},{i + 1},100", ("--column", "power_w"), "time_a_s"),
        ("time,power_w", lambda i: f"{i * 100},100", (), "--time-unit"),  # milliseconds, not said
        ("timestamp,power_w", lambda i: f"{1764313883_000 + i * 100},100", (), "--time-unit"),
        ("Timestamp,power_w", lambda i: f"{i * 10**8},100", (), "give --time-unit"),  # nanoseconds
        ("time_ticks,power_w", lambda i: f"{i},100", (), "--time-unit"),
        ("time [h:mm],power_w", lambda i: f"{i},100", (), "--time-unit"),
        ("date,power_w", lambda i: f"{46000 + i / 864000},100", (), "--time-unit"),  # a spreadsheet's days
        ("time_ms,power_w", lambda i: f"{i * 100},100", ("--time-unit", "s"), "says ms"),
        ("time_s,power_w", lambda i: "nan,100", (), "'nan' is no time"),
        ("time_s,power_w", lambda i: "1e999999,100", (), "1e999999"),
        ("time_s;power_w", lambda i: f"{i / 10};0,5", (), "--decimal-comma"),
        ("time_s;power_w", lambda i: f"{i / 10};0,5", ("--decimal-comma",), "no time"),  # a point beside the comma
        ("time_s,POWER_MW", lambda i: f"{i / 10},100", (), "--unit"),  # capitals alone: milli or mega
        ("time_s,power [W/s]", lambda i: f"{i / 10},100", (), "--unit"),
        ("time_s,energy J/sample", lambda i: f"{i / 10},100", (), "--unit"),
        ("time_s,power_mW", lambda i: f"{i / 10},100", ("--unit", "W"), "says mW, --unit says W"),
        ("time_s,POWER_MW", lambda i: f"{i / 10},100", ("--unit", "W"), "says MW or mW, --unit says W"),
        ("time_s,energy_kWh", lambda i: f"{i / 10},{i}", ("--unit", "W"), "says kWh, --unit says W"),
        ("time_s,current_a", lambda i: f"{i / 10},100", ("--unit", "W"), "is of amperes, which is no power"),
        ("time_s,12v [V]", lambda i: f"{i / 10},100", (), "is of volts, which is no power"),
        ("time_s,gpu_temp_°C", lambda i: f"{i / 10},100", ("--unit", "W"), "is of temperature, which is no power"),
        ("time_s,gpu util %", lambda i: f"{i / 10},100", (), "is of per cent, which is no power"),
        ("time_s,x", lambda i: f"{i / 10},100 A", (), "'A' in the cells below 'x' is no unit"),
        ("time_s,joules_per_batch", lambda i: f"{i / 10},100", (), "--unit"),
        ("time_s,power_w [dBm]", lambda i: f"{i / 10},100", (), "decibels"),
        ("time_s,load [%]", lambda i: f"{i / 10},100", (), "per cent"),
        ("time_s,power [W]", lambda i: f"{i / 10},100 mW", (), "'100 mW' is no number of W"),
        ("time_s,power_w,power_w", lambda i: f"{i / 10},100,50", ("--column", "power_w"), "2 columns"),
        ("time_s,power_w", lambda i: f"{i / 10},100", ("--unit", "MWH"), "case counts"),
        ("time,power_w", lambda i: f"28/11/2026 07:11:{i / 2:04.1f},100", (), "is no time"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(write, capsys, heading, row, options, why):
    write(heading, row)
    assert re.search(re.escape(why), refused(capsys, *options))


@given(st.sampled_from(sorted(SCALES)), st.sampled_from(["power [{}]", "x ({})", "E/{}", "quantity_{}", "{}"]))
def test_every_unit_is_read_as_it_is_written(unit, heading):
    assert named_unit(heading.format(unit), READING_UNITS) == unit


@given(st.sampled_from(sorted(TIMES_NS)), st.sampled_from(["t [{}]", "Time ({})", "t/{}", "elapsed_{}", "{}"]))
def test_every_unit_of_time_is_read_as_it_is_written(unit, heading):
    assert named_unit(heading.format(unit), TIME_UNITS) == unit


class TestPhases:
    def phases(self, tmp_path, text):
        (tmp_path / "phases.csv").write_text(text)
        return "--phases", "phases.csv"

    @pytest.mark.parametrize(
        "text",
        [
            "name,begin,end\nforward,2,4",
            "name,begin_ms,end_ms\nforward,2000,4000",
            "name,begin [µs],end [s]\nforward,2000000,4",
        ],
    )
    @pytest.mark.parametrize(("heading", "scale"), [("time_s", 0.1), ("time_ms", 100)])
    def test_have_units_of_their_own(self, write, capsys, tmp_path, heading, scale, text):
        write(f"{heading},power_w", lambda i: f"{i * scale:g},{200 if 20 <= i < 40 else 100}")
        imported(capsys, *self.phases(tmp_path, text))
        rows = csv.DictReader(io.StringIO(joules(capsys, "tables", "run.h5", "--format", "csv")[1]))
        (forward,) = (row for row in rows if row["phase"] == "forward")
        assert float(forward["s_per_batch"]) == pytest.approx(2)
        assert float(forward["j_per_batch"]) == pytest.approx(400, rel=0.05)

    def test_in_another_unit_than_they_seem_are_refused(self, write, capsys, tmp_path):
        write("time_s,power_w", lambda i: f"{i / 10},100")
        options = self.phases(tmp_path, "name,begin,end\na,0,2000\nb,2000,4000\nc,4000,6000")
        assert "phases.csv, line 3: 2 of 3 phases" in refused(capsys, *options)


def smi_rows(apart_ms=1, columns=("0", "1"), failed=()):
    """Rows of two GPUs at 200 W and 20 W, as nvidia-smi writes them; ``failed`` are the cells of some, in order."""
    words = list(failed)
    for i in range(ROWS):
        for gpu, watts in ((0, 200), (1, 20)):
            t = START + timedelta(milliseconds=100 * i + apart_ms * gpu)
            cell = words.pop() if words and i % 10 == 5 else f"{watts}.00 W"
            about = [c for c in (columns[gpu],) if c]
            yield ", ".join([t.strftime("%Y/%m/%d %H:%M:%S.%f")[:-3], *about, cell])


BOTH = {"gpu0": pytest.approx(2000, rel=6e-3), "gpu1": pytest.approx(200, rel=6e-3)}


class TestSeveralDevices:
    def log(self, heading, rows):
        with open("power.csv", "w", encoding="utf-8") as file:
            print(heading, *rows, sep="\n", file=file)

    @pytest.mark.parametrize(
        ("heading", "columns", "apart_ms"),
        [
            ("index", ("0", "1"), 0),
            ("index", ("0", "1"), 1),
            ("index", ("0", "1"), 40),
            ("uuid", ("GPU-5f4d", "GPU-11aa"), 0),
            ("gpu", ("0", "1"), 1),
            ("device", ("cuda:0", "cuda:1"), 40),
            ("name", ("NVIDIA H100", "NVIDIA L4"), 0),
            ("pci.bus_id", ("00000000:07:00.0", "00000000:0F:00.0"), 1),
        ],
    )
    def test_are_told_apart_by_their_column(self, write, capsys, apart_ms, heading, columns):
        self.log(f"timestamp, {heading}, power.draw [W]", smi_rows(apart_ms, columns))
        energies, out = imported(capsys, "--device", "gpu0")
        assert energies == BOTH
        assert f"2 devices by the column '{heading}': gpu0 ({columns[0]}), gpu1 ({columns[1]})" in out
        assert set(read_run("run.h5").lines) == {"gpu0.meter", "gpu1.meter"}
        assert joules(capsys, "info", "--check", "run.h5")[0] == 0

    def test_one_behind_the_other_in_the_file_are_told_apart(self, write, capsys):
        rows = [*smi_rows()]
        self.log("timestamp, index, power.draw [W]", [*rows[::2], *rows[1::2]])
        assert imported(capsys)[0] == BOTH

    def test_of_a_column_that_no_list_knows_are_told_apart_where_it_is_asked_for(self, write, capsys):
        self.log("timestamp, slot, power.draw [W]", smi_rows(columns=("a", "b")))
        energies, _ = imported(capsys, "--column", "power.draw [W]", "--device-column", "slot")
        assert energies == BOTH

    @pytest.mark.parametrize(
        ("heading", "columns", "apart_ms", "why"),
        [
            ("", ("", ""), 0, "a column has to say which device"),
            ("", ("", ""), 1, "rows come in bursts"),
            ("name", ("NVIDIA H100", "NVIDIA H100"), 1, "rows come in bursts"),
            ("name", ("NVIDIA H100", "NVIDIA H100"), 0, "a column has to say which device"),
        ],
    )
    def test_are_refused_where_nothing_tells_them_apart(self, write, capsys, heading, columns, apart_ms, why):
        self.log(", ".join(filter(None, ["timestamp", heading, "power.draw [W]"])), smi_rows(apart_ms, columns))
        assert why in refused(capsys)

    def test_phases_that_a_column_names_are_no_devices(self, write, capsys):
        write("time_s,name,power_w", lambda i: f"{i / 10},{'forward' if i // 10 % 2 else 'backward'},100")
        assert imported(capsys)[0] == THOUSAND_J

    def test_bursts_of_one_device_are_one_device(self, write, capsys):
        write("time_s,index,power_w", lambda i: f"{i // 2 * 0.2 + i % 2 * 0.01:.2f},0,100")
        assert imported(capsys)[0] == {"node": pytest.approx(1000, rel=0.02)}

    def test_failed_readings_are_missing_and_no_zeros(self, write, capsys):
        words = ["[N/A]", "[Unknown Error]", "[Not Supported]", "ERR!", "N/A", "[GPU requires reset]"]
        self.log("timestamp, index, power.draw [W]", smi_rows(failed=words))
        assert imported(capsys)[0] == BOTH
        info = joules(capsys, "info", "run.h5")[1]
        assert info.count("98 good readings, 3 bad") == 2


@given(st.sampled_from(sorted(SCALES)), st.sampled_from(sorted(SCALES)), st.sampled_from(["x [{}]", "E/{}", "q_{}"]))
def test_a_unit_that_is_asked_for_is_that_of_the_heading_or_refused(tmp_path_factory, heading, asked, form):
    path = tmp_path_factory.getbasetemp() / "unit.csv"
    path.write_text(f"t,{form.format(heading)}\n0,0\n1,1\n")
    card = SensorCard("node", "meter", Provenance.MEASURED, Accuracy(0.01))
    why = "there is no" if heading == asked else f"says {heading}, --unit says {asked}"
    with pytest.raises(ConfigError, match=why):  # a file of phases that has no name
        import_csv(path, path, path.with_suffix(".h5"), card, Columns(unit=asked))


def clock_rows(period_s, rows=ROWS, cell="100"):
    """A loop's rows with whole seconds."""
    return [f"{START + timedelta(seconds=int(i * period_s + 1e-9))},{cell}" for i in range(rows)]


STEADY = [f"{i / 10},100" for i in range(ROWS)]
FORMS = {
    "a loop of nearly a second": (["time,power_w", *clock_rows(0.98, 51)], (), {"node": 4900}, "spread evenly"),
    "a quick loop of whole seconds": (["time,power_w", *clock_rows(0.0873, 116)], (), {"node": 1000}, "spread evenly"),
    "ten rows a second, said": (["time,power_w", *clock_rows(0.1)], ("--spread",), {"node": 1000}, "spread evenly"),
    "headings again": (["t_s,w", *STEADY[:50], "t_s,w", *STEADY[50:]], (), {"node": 1000}, "again (line 52)"),
    "cut, and headings again": (["t,w", *STEADY[:50], "5.0", "t,w", *STEADY[50:]], (), {"node": 1000}, "off (line 52)"),
    "a footer": (["t,w", *STEADY, "", "Total Time (s) = 10.0", "Mean = 100"], (), {"node": 1000}, "from line 104"),
    "a cut last line": (["t,w", *STEADY, "10."], (), {"node": 1000}, "from line 103, '10.'"),
    "an empty cell behind each row": (["t,w", *(f"{row}," for row in STEADY)], (), {"node": 1000}, ""),
    "Excel's separator": (["sep=;", "t;w", *(row.replace(",", ";") for row in STEADY)], (), {"node": 1000}, ""),
    "watts and kilowatts": (["t,power", "0,1000 W", "1,1.00 kW", "2,1e6 mW"], (), {"node": 2000}, ""),
    "unavailable": (["t,w", *STEADY[:50], "5.0,unavailable", "5.05,unknown", *STEADY[51:]], (), {"node": 1000}, ""),
    "days first": (["time,w", *(f"1.3.2026 9:00:{i:02},100" for i in range(11))], ("--day-first",), {"node": 1000}, ""),
    "days first, with strokes": (
        ["time,w", *(f"13/01/2026 12:00:{i:02},100" for i in range(11))], ("--day-first",), {"node": 1000}, ""),
    "a counter that goes round": (
        ["t,energy_J", *(f"{i / 10},{(9 + 10 * i) % 256}" for i in range(ROWS))], ("--bits", "8"), {"node": 1000}, ""),
    "energies of intervals": (
        ["t,energy_J", *(f"{i / 10},10" for i in range(ROWS))], ("--per-interval",), {"node": 1000}, ""),
    "a column each": (
        ["t,GPU0,GPU1", *(f"{i / 10},200,20" for i in range(ROWS))], ("--unit", "W"), {"gpu0": 2000, "gpu1": 200},
        "2 devices by their columns"),
    "several columns": (
        ["t,n1_watts,n2_mW,total_watts", *(f"{i / 10},200,20000,220" for i in range(ROWS))],
        ("--columns", "n1_watts,n2_mW"), {"n1": 2000, "n2": 200}, "n1 (n1_watts), n2 (n2_mW)"),
    "epochs": (["t,index,w", *(f"{i / 10},{i // 25},100" for i in range(100))], (), {"node": 990}, ""),
}  # fmt: skip


class TestLogsOfOthers:
    @pytest.mark.parametrize("form", FORMS)
    def test_give_the_joules_that_they_tell_and_say_what_was_skipped(self, write, capsys, form):
        rows, options, energies, text = FORMS[form]
        with open("power.csv", "w", encoding="utf-8") as file:
            print(*rows, sep="\n", file=file)
        found, out = imported(capsys, *options)
        assert found == {device: pytest.approx(energy_j, rel=0.02) for device, energy_j in energies.items()}
        assert text in out
        assert out.count("\n") == 1 + bool(text)

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1", "utf-8-sig"])
    def test_are_read_in_the_letters_of_windows(self, write, capsys, encoding):
        with open("power.csv", "w", encoding=encoding) as file:
            print("t,Leistung [W],°C", *(f"{row},7" for row in STEADY), sep="\n", file=file)
        found, out = imported(capsys, "--column", "Leistung [W]")
        assert found == THOUSAND_J
        assert ("Latin-1" in out) == (encoding == "latin-1")

    @pytest.mark.parametrize("zone", ["Europe/Madrid", "+01:00"])
    def test_have_the_time_zone_that_is_named(self, write, capsys, zone):
        write("time,w", lambda i: f"2026-03-01 12:00:{i / 10:06.3f},100")
        imported(capsys, "--time-zone", zone)
        assert read_run("run.h5").attributes["created_utc"].startswith("2026-03-01T11:00:00")

    @pytest.mark.parametrize(
        ("rows", "options", "why"),
        [
            (["time,power_w", *clock_rows(0.5)], (), "2 rows share each second: a column has to say"),
            (["time,w", "1.3.2026 9:00:00,1", "1.3.2026 9:00:01,1"], (), "--day-first"),
            (["t,w", "0,1", "1,1"], ("--bits", "32"), "is a power: --per-interval, --bits and --step-j"),
            (["t,energy_J", "0,300", "1,10"], ("--bits", "8"), "300 is more than --bits 8 can hold"),
            (["t,energy_J", "0,3", "1,", "2,3"], ("--per-interval",), "is no energy of an interval"),
            (["t,energy_J", "0,3", "1,3", "2,3"], (), "the counter never moves"),
            (["t,a_W,b_J", "0,3,1", "1,3,2", "2,3,4"], ("--columns", "a_W,b_J"), "some columns are powers"),
            (["t,w", "0,1", "1,1"], ("--time-zone", "Mars/Base"), "--time-zone Mars/Base"),
            (["t,w", "0,1", "1,1"], ("--column", "w", "--columns", "w"), "give one of them"),
            (["t,x", "0,950 W", "1,1.02"], (), "'1.02' is no number with its unit"),
            (["t,x", "0,950 W", "1,3 J"], (), "is of another kind"),
            (["t,w", "0,1", *["x"] * 31], (), "1 cells below 2 headings"),
        ],
    )
    def test_are_refused_where_they_may_mean_two_things(self, write, capsys, rows, options, why):
        with open("power.csv", "w", encoding="utf-8") as file:
            print(*rows, sep="\n", file=file)
        assert why in refused(capsys, *options)


def counter_of(watts, step_j, every_s=1, seconds=1200):
    """Rows of a counter that shows whole steps: its heading and joules."""
    joules_so_far = [0.37 * step_j]
    for i in range(10 * seconds):
        joules_so_far.append(joules_so_far[-1] + watts(i / 10) / 10)
    return [
        "time_s,energy_J",
        *(f"{t},{joules_so_far[10 * t] // step_j * step_j!r}" for t in range(0, seconds + 1, every_s)),
    ]


@pytest.mark.slow
def test_imports_of_equal_logs_under_other_names_are_repeats(tmp_path, monkeypatch):
    """Of 60 cells of three such imports with 2 % between repeats, 57 intervals hold the truth."""
    card, frames = SensorCard("gpu0", "gpu0.meter", Provenance.MEASURED, Accuracy()), []
    for k, watts in enumerate((98, 100, 102)):
        power, phases, out = tmp_path / f"log_{k}.csv", tmp_path / f"phases_{k}.csv", tmp_path / f"r{k}.h5"
        power.write_text("time_s,power_w\n" + "".join(f"{t / 10},{watts}\n" for t in range(101)))
        phases.write_text("name,begin,end\n" + "".join(f"iteration,{t},{t + 1}\n" for t in range(1, 9)))
        monkeypatch.setattr("sys.argv", ["joules", "import", str(power), "--phases", str(phases), "-o", str(out)])
        import_csv(power, phases, out, card)
        frames.append(run_frame(out))
    (mean,) = (row for row in rows_of(average_repeats(concat_frames(frames))) if row["kind"] == "phase")
    assert mean["runs"] == 3
    assert mean["j_per_batch"] == pytest.approx(100)
    assert mean["u95_j"] == pytest.approx(4.303 * 2 / 3**0.5, rel=0.01)  # Student's t of two degrees of freedom


class TestCountersInSteps:
    def imported(self, tmp_path, rows, step_j=None, length=20):
        (tmp_path / "p.csv").write_text("\n".join(rows) + "\n")
        begins = range(100, 1060, 2 * length)
        phases = [f"train,{t + 0.5},{t + 0.5 + length},1" for t in begins]
        (tmp_path / "ph.csv").write_text("\n".join(["name,begin,end,batch_size", *phases]) + "\n")
        card = SensorCard("node", "meter", Provenance.MEASURED, Accuracy(0.005))
        import_csv(tmp_path / "p.csv", tmp_path / "ph.csv", tmp_path / "r.h5", card, Columns(step_j=step_j))
        return read_run(tmp_path / "r.h5")

    @pytest.mark.parametrize(
        ("step_j", "every_s", "asked", "told_j", "moves_s"),
        [
            (360, 1, None, 120, 4),  # at 100 W a step is 3 or 4 s
            (3600, 1, None, 100, 36),  # whole watt-hours: a reading that marks one is a second late at most
            (3600, 60, None, 3600, 0),  # it moves in each
            (3600, 60, 36_000, 36_000, 0),
            (1e-6, 1, None, 100, 0),  # never rests: the step is nothing that a meter of watt-hours has
        ],
    )
    def test_are_found_and_dated_by_the_readings_that_mark_a_step(
        self, tmp_path, step_j, every_s, asked, told_j, moves_s
    ):
        run = self.imported(tmp_path, counter_of(lambda t: 100, step_j, every_s), asked)
        accuracy = run.lines["meter"].accuracy
        assert accuracy.step_j == pytest.approx(told_j)
        assert accuracy.update_ns == moves_s * 10**9

    def test_seconds_without_a_step_are_no_seconds_without_readings(self, tmp_path):
        run = self.imported(tmp_path, counter_of(lambda t: 100, 3600))
        (whole,) = phase_table(run).runs
        assert 0 < whole.missing_s < 72
        assert whole.missing_word == "before the first or behind the last step of its counter"

    def test_steps_that_a_file_rounds_are_found(self, tmp_path):
        """3200 steps a kWh, four decimals: 0.0003, 0.0006, 0.0009, 0.0013."""
        steps = [int(100 * t / 1125) / 3200 for t in range(1201)]
        rows = ["time_s,energy_kWh", *(f"{t},{kwh:.4f}" for t, kwh in enumerate(steps))]
        accuracy = self.imported(tmp_path, rows).lines["meter"].accuracy
        assert accuracy.step_j * accuracy.update_ns == pytest.approx(1080e9, rel=0.1)  # times a second, as it is dated

    @pytest.mark.slow
    @pytest.mark.parametrize("rest_w", [300, 60])
    @pytest.mark.parametrize(("step_j", "every_s"), [(36, 1), (360, 1), (360, 10), (3600, 1), (3600, 10), (36_000, 1)])
    @pytest.mark.parametrize("length", [4, 20])
    def test_leave_the_truth_inside_every_interval(self, tmp_path, rest_w, step_j, every_s, length):
        def watts(t):
            return 300 if t >= 100.5 and (t - 100.5) % (2 * length) < length else rest_w

        rows = counter_of(watts, step_j, every_s)
        table = phase_table(self.imported(tmp_path, rows, length=length))
        n, run_j = len(range(100, 1060, 2 * length)), sum(watts(i / 10) / 10 for i in range(12_000))
        truths = [(table.phases[0].j_per_batch, table.phases[0].u95_j, 300 * length)]
        truths += [(table.totals[0].energy_j, table.totals[0].u95_j, 300 * length * n)]
        truths += [(table.runs[0].energy_j, table.runs[0].u95_j, run_j)]
        for energy_j, u95_j, truth_j in truths:
            assert energy_j is None or u95_j is None or abs(energy_j - truth_j) <= 1.2 * u95_j  # 95 of 100
