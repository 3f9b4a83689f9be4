"""`joules import`: each log that has a name is known by its heading, and gives the joules that stand in it."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import joules

from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.run import read_run
from powerd_client.record.log_formats import FORMATS

LOGS = Path(__file__).parents[2] / "data" / "logs"


@dataclass(frozen=True)
class Example:
    energies: dict[str, float]
    """By device, worked out by hand: watts times seconds."""
    damage: str
    """What is said of the damaged one."""
    options: tuple[str, ...] = ()
    bad: int = 0
    """Readings that failed."""


EXAMPLES = {
    "nvidia-smi": Example({"gpu0": 250 * 10, "gpu1": 80 * 10}, "line 8: '25?.00 W' is no number of W", bad=1),
    "nvidia-smi-dmon": Example({"gpu0": 300 * 10, "gpu1": 60 * 10}, "line 11: 3 cells below 8 headings"),
    "dcgm": Example({"gpu0": 150 * 10, "gpu1": 75 * 10}, "line 11: 2 cells below 3", ("--interval-s", "1")),
    "turbostat": Example({"cpu0": 65 * 10}, "line 15: '65.0O' is no number of W"),
    "perf": Example({"cpu0": 40 * 10}, "line 12: '' is no energy of an interval"),
    "power-gadget": Example({"cpu0": 18 * 10}, "line 7: 6 cells below 12 headings"),
    "powerstat": Example({"node": 14.5 * 100}, "line 11: '14,50' is no number of W"),
    "ipmitool": Example({"node": 220 * 50}, "'11/28/2026 07:11:48 AM EDT' is no time", bad=1),
    "tegrastats": Example({"node": 9 * 10}, "line 6: '11-28-2026 07:11:28 RAM"),
    "rocm-smi": Example({"gpu0": 210 * 10, "gpu1": 45 * 10}, "line 10: '2l0.0' is no number", ("--interval-s", "1")),
    "amd-smi": Example({"gpu0": 500 * 10, "gpu1": 140 * 10}, "line 13: 4 cells below 5 headings"),
    "ptdaemon": Example({"node": 350 * 10}, "line 5: 'Time,11-28-2026 07:11:27.061,Watts,3' has no reading"),
    "joulescope": Example({"node": 1.9 * 5}, "line 6: the counter goes back to 0"),
    "ppk2": Example({"node": 0.002 * 3.3 * 0.1}, "line 6: '2000.0.' is no number of uW", ("--volts", "3.3")),
    "monsoon": Example({"node": 2.0 * 1.0}, "line 5: 3 cells below 4 headings"),
    "supercloud": Example({"gpu0": 120.5, "gpu1": 30.25}, "line 8: '120.5.1' is no number of W"),
    "codecarbon": Example({"node": 240 * 150}, "2 different run_id: import the rows of one alone"),
    "home-assistant": Example(
        {"node0": 10 * 200 + 100 * 100}, "line 4: 'on' is no number of W", ("--unit", "W"), bad=10
    ),
    "tasmota": Example({"node": 95 * 100}, "line 6: 'tele/plug/SENSOR"),
    "shelly": Example({"node": 42.5 * 20}, "has no reading where shelly has one", ("--interval-s", "2")),
    "grafana": Example({"node1": 950 * 150, "node2": 1020 * 150}, "line 7: '1.02 kV' is no number"),
}


def example_of(name, folder=LOGS):
    (path,) = folder.glob(f"{name}.*")
    return path


def imported(capsys, tmp_path, path, *options):
    """Joules by device, and what was printed."""
    code, out, err = joules(capsys, "import", str(path), "-o", str(tmp_path / "r.h5"), *options)
    assert (code, err) == (0, "")
    return {row.device: row.energy_j for row in phase_table(read_run(tmp_path / "r.h5")).runs}, out


@pytest.mark.parametrize("log_format", FORMATS, ids=lambda of: of.name)
def test_every_format_gives_the_joules_of_its_example(tmp_path, capsys, log_format):
    example, name = EXAMPLES[log_format.name], log_format.name
    energies, out = imported(capsys, tmp_path, example_of(name), *example.options)
    assert energies == {device: pytest.approx(energy_j, rel=5e-3) for device, energy_j in example.energies.items()}
    assert f"read as {name}: " in out
    run = read_run(tmp_path / "r.h5")
    assert {line.provenance for line in run.lines.values()} == {log_format.provenance}
    info = joules(capsys, "info", str(tmp_path / "r.h5"))[1]
    assert sum(map(int, re.findall(r"(\d+) bad", info))) == example.bad


@pytest.mark.parametrize("log_format", FORMATS, ids=lambda of: of.name)
def test_every_damaged_log_ends_in_one_line(tmp_path, capsys, log_format):
    example, path = EXAMPLES[log_format.name], example_of(log_format.name, LOGS / "damaged")
    code, out, err = joules(capsys, "import", str(path), "-o", str(tmp_path / "r.h5"), *example.options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert example.damage in err
    assert not list(tmp_path.iterdir())


def test_the_list_names_every_format_and_each_has_an_example(capsys):
    code, out, _ = joules(capsys, "import", "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [of.name for of in FORMATS] == list(EXAMPLES)


@pytest.mark.parametrize(
    ("name", "options", "energies"),
    [
        ("power-gadget", ("--column", "IA Power_0(Watt)"), {"node": 120}),
        ("turbostat", ("--columns", "PkgWatt,RAMWatt"), {"pkgwatt": 650, "ramwatt": 40}),
        ("turbostat", ("--interval-s", "2"), {"cpu0": 1300}),
        ("perf", ("--column", "power/energy-ram/", "--device", "ram0"), {"ram0": 50}),
        ("tegrastats", ("--columns", "VDD_CPU_GPU_CV,VDD_SOC"), {"vdd_cpu_gpu_cv": 40, "vdd_soc": 20}),
        ("dcgm", ("--column", "POWER", "--interval-s", "1"), {"gpu0": 1501.25, "gpu1": 755}),
        ("codecarbon", ("--column", "gpu_energy", "--device", "gpu0"), {"gpu0": 160 * 150}),
        ("supercloud", ("--format", "csv", "--column", "power_draw_W"), {"gpu0": 120.5, "gpu1": 30.25}),
        ("amd-smi", ("--format", "amd-smi", "--device", "card"), {"card0": 5000, "card1": 1400}),
    ],
)
def test_what_is_asked_for_wins(tmp_path, capsys, name, options, energies):
    found, out = imported(capsys, tmp_path, example_of(name), *options)
    assert found == {device: pytest.approx(energy_j, rel=5e-3) for device, energy_j in energies.items()}
    assert ("read as" in out) == ("csv" not in options)


def test_provenance_that_is_asked_for_wins(tmp_path, capsys):
    imported(capsys, tmp_path, example_of("codecarbon"), "--provenance", "simulated")
    assert [line.provenance.value for line in read_run(tmp_path / "r.h5").lines.values()] == ["simulated"]


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("dcgm", (), "this log of dcgm has no times (time): give --interval-s"),
        ("home-assistant", (), "give --unit W"),
        ("ppk2", (), "'Current(uA)' is of amperes, which is no power or energy: give --volts"),
        ("ppk2", ("--volts", "0"), "--volts must be above 0"),
        ("nvidia-smi", ("--volts", "12"), "--volts is for amperes"),
        ("grafana", ("--format", "turbostat"), "nothing in it looks like turbostat"),
        ("grafana", ("--format", "excel"), "--format excel: it must be csv, or one of those"),
        ("dcgm", ("--interval-s", "0"), "--interval-s is above 0"),
        ("tegrastats", ("--day-first",), "is no time"),
    ],
)
def test_what_no_heading_says_is_asked_for(tmp_path, capsys, name, options, why):
    code, out, err = joules(capsys, "import", str(example_of(name)), "-o", str(tmp_path / "r.h5"), *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert why in err


@pytest.mark.parametrize(("zone", "hour"), [((), "07"), (("--time-zone", "Europe/Madrid"), "06")])
def test_times_without_a_zone_are_told(tmp_path, capsys, zone, hour):
    _, out = imported(capsys, tmp_path, example_of("nvidia-smi"), *zone)
    assert read_run(tmp_path / "r.h5").attributes["created_utc"].startswith(f"2026-11-28T{hour}:11:23")
    assert ("taken as UTC" in out) == (not zone)


def test_each_socket_of_perf_is_a_device(tmp_path, capsys):
    log = tmp_path / "perf.csv"
    rows = [f"{t}.0,S{s},1,{40 + 10 * s}.0,Joules,power/energy-pkg/,100,100.00,," for t in range(1, 12) for s in (0, 1)]
    log.write_text("\n".join([*rows[:4], "epoch 1: loss 0.5", *rows[4:]]) + "\n")
    energies, out = imported(capsys, tmp_path, log)
    assert energies == {"cpu0": pytest.approx(400), "cpu1": pytest.approx(500)}
    assert "skipped lines of something else (line 5)" in out


def test_a_line_with_two_channels_of_one_name_is_refused(tmp_path, capsys):
    log = tmp_path / "shelly.txt"
    log.write_text('{"switch:0":{"apower":1.0},"switch:1":{"apower":2.0}}\n' * 3)
    code, _, err = joules(capsys, "import", str(log), "-o", str(tmp_path / "r.h5"), "--interval-s", "1")
    assert (code, "line 1: " in err, "several readings of one name" in err) == (2, True, True)


def test_a_jetson_without_dates_and_a_cut_last_line(tmp_path, capsys):
    log = tmp_path / "tegrastats.txt"
    row = (
        "RAM 1900/3964MB (lfb 2x1MB) CPU [9%@102,off] GPU@30C POM_5V_IN 5000/4900 POM_5V_GPU 400/390 POM_5V_CPU 700/690"
    )
    log.write_text(f"{row}\n" * 11 + row[:40])
    energies, out = imported(capsys, tmp_path, log, "--interval-s", "0.5")
    assert energies == {"node": pytest.approx(5 * 5)}
    assert "cut off (from line 12, 'RAM 1900" in out


def test_any_csv_may_have_its_times_in_two_columns_or_without_a_day(tmp_path, capsys):
    log = tmp_path / "log.csv"
    log.write_text("Date,Time,P [W]\n" + "".join(f"2026/11/28,12:00:{t:02},100\n" for t in range(11)))
    energies, _ = imported(capsys, tmp_path, log, "--time-column", "Date,Time", "--column", "P [W]")
    assert energies == {"node": pytest.approx(1000)}
    log.write_text("time,P [W]\n" + "".join(f"23:59:{t:02},100\n" for t in range(49, 60)))
    assert imported(capsys, tmp_path, log, "--overwrite")[0] == {"node": pytest.approx(1000)}
    log.write_text("time,P [W]\n23:59:58,100\n23:59:59,100\n00:00:00,100\n")
    code, _, err = joules(capsys, "import", str(log), "-o", str(tmp_path / "r.h5"), "--overwrite")
    assert (code, "line 4: its time 00:00:00 is not behind" in err) == (2, True)
