"""Lines that are neither power nor energy, read a piece at a time."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isclose
from pathlib import Path

import h5py
import numpy as np
import pytest
from make_run import MS, LineSpec, PhaseSpec, S, constant, make_run
from simulated_node import SimulatedNode

from powerd_analytics import cli, phase_table
from powerd_analytics.cli import main
from powerd_analytics.cli.info import describe_run, run_document
from powerd_analytics.energy.idle import IdleRow
from powerd_analytics.frame.figures import frame_of, rows_of
from powerd_analytics.output.export import to_markdown
from powerd_analytics.run_tables.closing_lines import totals
from powerd_analytics.run_tables.table import PhaseTable
from powerd_analytics.run_tables.uncertainty_table import budget_rows
from powerd_analytics.run_tables.verification import verify_sums
from powerd_analytics.runs.clock_report import _edges, other_clocks
from powerd_analytics.runs.run import read_run, recalibrate
from powerd_analytics.runs.settings import settings_of
from powerd_analytics.views.layouts import run_tables
from powerd_core.calibration import CalibrationFile, Point, SensorCalibration
from powerd_core.errors import AnalysisError
from powerd_core.model import Flag, Stream
from powerd_core.serde import to_document
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.ina.sensor_accuracy import save_calibration
from powerd_daemon.sources.node.source import NodeOptions, NodeSensor, NodeSource
from powerd_daemon.sources.sim.bus import VirtualClock
from powerd_daemon.sources.sim.source import SimOptions, SimSource

N = 500
T = np.arange(N, dtype=np.int64) * 2 * MS


def line(name, quantity, codes, per_code=1.0, **more):
    conversion = {"kind": "quantity", "column": "code", "quantity": quantity, "per_code": per_code}
    return LineSpec(name, t_ns=T, codes={"code": np.asarray(codes)} | more, conversion=conversion, flags=FLAGS)


RNG = np.random.default_rng(4)
FLAGS = (RNG.random(N) < 0.05).astype(np.uint16) * 8
STEP = np.where(np.arange(N) > 300, 5_000_000, 0)
LEVEL = (np.arange(N) // 7) % 2
LINES = [
    LineSpec("gpu0.a", lambda t: np.full(len(t), 100.0)),
    line("gpu0.sm_clock", "clock_hz", RNG.integers(1200, 1400, N), 1e6),
    line("gpu0.limit", "power_limit_w", 230_000 + RNG.integers(-200, 200, N), 1e-3),
    line("gpu0.bound", "clock_bound_s", RNG.integers(100, 900, N), 1e-9),
    line("gpu0.wall", "clock_offset_s", 10**15 + STEP + RNG.integers(0, 500, N), 1e-9),
    line("gpu0.pin", "pin_bits", LEVEL, edge=np.cumsum(np.diff(LEVEL, prepend=0) != 0).astype(np.uint16)),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return read_run(make_run(tmp_path_factory.mktemp("q") / "r.h5", LINES, devices={"gpu0": ["gpu0.a"]}))


def test_the_whole_line_says_what_its_good_readings_are(run):
    good = FLAGS == 0
    t, clock, limit, bound = (x[good] for x in (T, *(s.codes["code"] for s in LINES[1:4])))
    seen, (other,) = settings_of(run).of("gpu0", 100 * MS, 700 * MS, {}), other_clocks(run)
    here = (t >= 100 * MS) & (t <= 700 * MS)
    assert seen.power_cap_w.value == pytest.approx(np.median(limit) * 1e-3)
    assert seen.clock_hz.observed == pytest.approx(np.mean(clock[here]) * 1e6)
    assert settings_of(run).of("gpu0", 5000 * MS, 6000 * MS, {}).clock_hz.observed is None
    assert (other.bound_median_s, other.bound_max_s) == pytest.approx((np.median(bound) * 1e-9, bound.max() * 1e-9))
    rising, falling = _edges(run, "gpu0.pin", "code")
    assert set(rising.tolist()) <= set(t[1:][np.diff(LEVEL[good]) > 0].tolist())
    assert len(rising) > 25 < len(falling)


# Lines that are neither power nor energy: shown by `joules info`, in no sum and no comparison.


T_AUXILIARY = np.arange(0, S + 1, 100 * MS, dtype=np.int64)


def auxiliary(name: str, quantity: str, codes: list[int], per_code: float = 1.0, flags: list[int] | None = None):
    conversion = {"kind": "quantity", "column": "code", "quantity": quantity, "per_code": per_code}
    return LineSpec(
        name,
        t_ns=T_AUXILIARY,
        codes={"code": np.array(codes, np.uint64)},
        conversion=conversion,
        flags=None if flags is None else np.array(flags, np.uint16),
    )


@pytest.fixture
def path(tmp_path):
    lines = [
        LineSpec("gpu0.a", lambda t: np.full(len(t), 100.0)),
        auxiliary("gpu0.temperature", "temperature_c", [0, *range(41, 51)], flags=[8] + [0] * 10),
        auxiliary("gpu0.sm_clock", "clock_hz", [1980] * 11, 1e6),
        auxiliary("gpu0.clock_events", "clock_events_bits", [1] * 5 + [4] * 5 + [5]),
    ]
    made = make_run(tmp_path / "run.h5", lines, devices={"gpu0": ["gpu0.a"]})
    with h5py.File(made, "r+") as file:
        bits = {"gpu0.clock_events": {"gpu_idle": 1, "sw_power_cap": 4, "sync_boost": 16}}
        file["lines/gpu0.clock_events"].attrs["detail"] = json.dumps({"bits": bits})
    return made


def test_auxiliary_channels_are_shown_and_compared_with_nothing(path):
    run = read_run(path)
    assert run.compared("gpu0") == ()
    assert set(run.auxiliary("gpu0")) == {"gpu0.temperature", "gpu0.sm_clock", "gpu0.clock_events"}
    text = "\n".join(describe_run(run_document(run)))
    assert "gpu0.temperature (simulated, sim): temperature_c 41 to 50, mean of the readings 45.5" in text
    assert "10 good readings, 1 bad" in text
    assert "clock_hz 1.98e+09 to 1.98e+09" in text
    assert "clock_events_bits: gpu_idle in 54.5%, sw_power_cap in 54.5%; 11" in text


def when_silent(tmp_path, flags, t_ns=None):
    """What `joules info` says of a line of 20 s at 10 Hz, whose readings have these flags."""
    t_ns = np.arange(0, 20 * S, 100 * MS) if t_ns is None else t_ns
    spec = LineSpec("gpu0.a", lambda t: np.full(len(t), 100.0), t_ns=t_ns, flags=flags)
    (text,) = [x for x in describe_run(run_document(read_run(make_run(tmp_path / "r.h5", [spec], end_ns=20 * S))))
               if x.startswith("  gpu0.a")]  # fmt: skip
    return text


def test_info_says_when_a_line_had_no_readings(tmp_path):
    flags = np.zeros(200, np.uint16)
    assert "s to" not in when_silent(tmp_path, flags)
    flags[51:82] = int(Flag.IO_ERROR)
    assert "31 bad (no answer 31); no answer 5.0 s to 8.2 s; " in when_silent(tmp_path, flags)
    flags[101:160] = int(Flag.IO_ERROR)
    assert "; no answer 5.0 s to 8.2 s, 10.0 s to 16.0 s; " in when_silent(tmp_path, flags)
    for begin in (10, 30, 90):
        flags[begin + 1 : begin + 6] = int(Flag.IO_ERROR)
    told = (
        "; no answer 1.0 s to 1.6 s, 3.0 s to 3.6 s, 5.0 s to 8.2 s, 9.0 s to 9.6 s and 1 more, the longest 10.0 s to"
    )
    assert told in when_silent(tmp_path, flags)
    flags[51:82] = int(Flag.STALE)
    assert "; without readings 1.0 s to 1.6 s, " in when_silent(tmp_path, flags)


def test_info_says_when_readings_end_before_the_run(tmp_path):
    t_ns = np.arange(0, 12 * S + 1, 100 * MS)
    assert "; without readings 12.0 s to 20.0 s; " in when_silent(tmp_path, np.zeros(121, np.uint16), t_ns)


@pytest.mark.parametrize("end_ns", [0, 80 * MS])
def test_scans_that_were_lost_at_a_moment_have_no_length(tmp_path, end_ns):
    path = make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", lambda t: np.full(len(t), 100.0))])
    gap = {"begin_ns": 0, "end_ns": end_ns, "lost": 3, "stream": "s", "lines": '["gpu0.a"]', "cause": "the bus"}
    with h5py.File(path, "r+") as file:
        for name, value in gap.items():
            del file["gaps"][name]
            file["gaps"].create_dataset(name, data=[value])
    run = read_run(path)
    (row,) = phase_table(run).runs
    assert ("scans lost once: the bus" in row.note) == (not end_ns)
    assert ("lost of s: 3 scans: the bus" in list(describe_run(run_document(run)))) == (not end_ns)


# A device without readings has no energy: nothing that reads a run makes 0 J of it.


NONE = np.zeros(0, np.int64)


def dead(name: str = "gpu1.a", device: str = "gpu1") -> LineSpec:
    return LineSpec(name, device=device, t_ns=NONE, codes={"power_mw": NONE}, flags=np.zeros(0, np.uint16))


def spoilt() -> LineSpec:
    t = np.arange(0, S, 2 * MS)
    flags = np.full(len(t), int(Flag.MISSING), np.uint16)
    return LineSpec("gpu1.a", device="gpu1", t_ns=t, codes={"power_mw": np.zeros(len(t), np.int64)}, flags=flags)


def single() -> LineSpec:
    return LineSpec("gpu1.a", device="gpu1", t_ns=np.array([5 * MS]), codes={"power_mw": np.array([100_000])},
                    flags=np.zeros(1, np.uint16))  # fmt: skip


@pytest.fixture(params=[dead, spoilt, single])
def run_path(request, tmp_path: Path) -> Path:
    phases = [PhaseSpec("forward", 100 * MS, 900 * MS, {"batch_size": 8})]
    return make_run(tmp_path / "run.h5", [LineSpec("gpu0.a", constant), request.param()], phases)


def test_no_output_holds_a_zero_for_it(run_path: Path) -> None:
    run = read_run(run_path)
    table = phase_table(run)
    idle = (IdleRow("gpu1", "simulated", 5.0, 0.1, 5.0, 5.0, 1.0, ""),)
    both = PhaseTable(table.phases, table.totals, table.runs, idle)
    rows = [row for row in rows_of(frame_of(run, both)) if row["device"] == "gpu1"]
    assert {row["kind"] for row in rows} == {"phase", "total", "run"}
    known = ("energy_j", "j_per_batch", "power_w", "u95_j", "u_systematic_j", "edp_js", "idle_j", "above_idle_j",
             "rest_j")  # fmt: skip
    for row in rows:
        assert [row[name] for name in known] == [None] * len(known)
    (shown,) = [x for x in to_markdown(run_tables(frame_of(run, table))).splitlines() if x.startswith("| gpu1")]
    assert shown.split(" | ")[1:3] == ["1.000", "n.r."]
    values = totals(run_path)
    assert [name for name in values if "gpu1" in name and not name.endswith(("/time_s", "/s_per_batch"))] == []
    for budget in budget_rows(run, "gpu1"):
        assert (budget.energy_j, budget.u95_j, budget.parts) == (None, None, ())
    assert [f for f in verify_sums(run_path) if f.state == "wrong"] == []


# Runs that no figure can be made of, given to the commands that take one run: one line, status 2, nothing written.


PHASES = [
    PhaseSpec("training", 100 * MS, 900 * MS, {"model": "m", "batch_size": 8}),
    *(PhaseSpec("forward", at * MS, (at + 40) * MS, {}, 0) for at in range(100, 900, 100)),
]


def unusable(path: Path, what: str) -> Path:
    still = [PhaseSpec(p.name, p.begin_ns, p.end_ns if p.parent < 0 else p.begin_ns, {}, p.parent) for p in PHASES]
    late = [PhaseSpec(p.name, p.begin_ns + 10 * S, p.end_ns + 10 * S, p.attributes, p.parent) for p in PHASES]
    lines = {
        "empty": [],
        "no readings": [LineSpec("gpu0.a", t_ns=NONE, codes={"power_mw": NONE})],
        "one reading": [LineSpec("gpu0.a", constant, t_ns=np.array([500 * MS]))],
        "other clock": [LineSpec("gpu0.a", constant, t_ns=np.arange(100 * S, 101 * S, 2 * MS))],
    }.get(what, [LineSpec("gpu0.a", constant)])
    return make_run(path, lines, {"no phases": [], "outside": late, "no time": still}.get(what, PHASES))


@pytest.mark.parametrize(
    ("what", "command"),
    [
        *((what, "tables") for what in ("empty", "no phases", "no readings", "one reading", "other clock", "no time")),
        ("outside", "tables --table uncertainty"),
        ("empty", "report"),
    ],
)
def test_one_line_and_nothing_written(tmp_path, capsys, what, command):
    path = unusable(tmp_path / "run.h5", what)
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), str(path), "-o", str(tmp_path / ("out.html" if command == "report" else "out.txt"))])
    out, err = capsys.readouterr()
    assert stopped.value.code == 2
    assert out == ""
    assert err.startswith(f"joules: {path}: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [path]


# A run computed again with a later calibration means what a run recorded with it would have meant.


ZERO = Point("2025-03-14T09:26:53Z", 23.0, 0.0, "A", 0.0, 1000, -0.002, 0.0001, 3.3)
LOAD = Point("2025-03-14T10:00:00Z", 24.5, 1.5, "A", 0.001, 1000, 1.49, 0.0002, 3.3)
RECORD = SensorCalibration("gpu0.pcie_3v3", "INA219", 0.05, 0.0002, 0.0058, 0.0004, bus=-1, address=0x41, zero=ZERO,
                           load=LOAD)  # fmt: skip


def stream_of(calibration: Path | str = "", bus_every: int = 1) -> Stream:
    options = SimOptions(calibration=str(calibration), bus_every=bus_every)
    source = SimSource(options, Start("sim", 1, 0, VirtualClock()))
    try:
        return source.open()[0][0]
    finally:
        source.close()


def stream_of_node(calibration: Path | str = "") -> Stream:
    """Two sensors at one address, one on each controller of a node."""
    clock = VirtualClock()
    sensors = (NodeSensor("a", 0x40), NodeSensor("b", 0x40, controller=1))
    options = NodeOptions("/dev/fake", sensors, calibration=str(calibration))
    node = SimulatedNode(clock, sensors=2)
    source = NodeSource(options, Start("node", 1, 0, clock), lambda _path, _baud: node)
    try:
        return source.open()[0][0]
    finally:
        source.close()


def run_of(path: Path, stream: Stream) -> Path:
    """A run file of this stream's lines, each standing at 1000 codes of current."""
    specs = [
        LineSpec(
            line.name,
            conversion=to_document(line.conversion),
            accuracy=to_document(line.accuracy),
            codes={"shunt": [1000] * 501, "bus": [(825 << 3)] * 501},
            detail=to_document(stream.detail),
        )
        for line in stream.lines
    ]
    return make_run(path, specs, [PhaseSpec("forward", 100_000_000, 900_000_000)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_calibration(tmp_path / "c.toml", CalibrationFile((RECORD,)))
    return tmp_path / "c.toml"


@pytest.mark.parametrize("bus_every", [1, 4])
@pytest.mark.parametrize("zero_only", [False, True])
def test_it_says_what_a_source_with_that_calibration_says(tmp_path: Path, bus_every: int, zero_only: bool) -> None:
    record = replace(RECORD, load=None) if zero_only else RECORD
    save_calibration(tmp_path / "c.toml", CalibrationFile((record,)))
    run = read_run(run_of(tmp_path / "run.h5", stream_of(bus_every=bus_every)))
    again, found = recalibrate(run, tmp_path / "c.toml")
    assert found == ("gpu0.pcie_3v3",)
    for live in stream_of(tmp_path / "c.toml", bus_every).lines:
        line = again.lines[live.name]
        assert line.conversion == live.conversion
        assert isclose(line.accuracy.u_gain, live.accuracy.u_gain, rel_tol=1e-12)
        assert isclose(line.accuracy.u_offset_w, live.accuracy.u_offset_w, rel_tol=1e-12)
        assert line.accuracy.origin == live.accuracy.origin.replace("; gain and", "; recomputed with gain and").replace(
            "; zero", "; recomputed with zero"
        )


def test_a_run_recorded_with_an_older_calibration_takes_the_newer(tmp_path: Path, file: Path) -> None:
    older = replace(RECORD, load=replace(LOAD, mean_a=1.51), zero=replace(ZERO, mean_a=0.003))
    save_calibration(tmp_path / "old.toml", CalibrationFile((older,)))
    run = read_run(run_of(tmp_path / "run.h5", stream_of(tmp_path / "old.toml")))
    again, _ = recalibrate(run, file)
    live = next(line for line in stream_of(file).lines if line.name == RECORD.line)
    assert again.lines[RECORD.line].conversion == live.conversion
    assert again.lines[RECORD.line].accuracy.u_gain == pytest.approx(live.accuracy.u_gain)
    save_calibration(file, CalibrationFile((replace(RECORD, zero=None),)))
    with pytest.raises(AnalysisError):
        recalibrate(run, file)


def test_a_node_is_known_by_its_serial_number(tmp_path: Path) -> None:
    node = {"board": "", "serial": "e660010203040506", "bus": 1, "address": 0x40}
    record = replace(RECORD, line="gpu0.b", **node)
    save_calibration(tmp_path / "c.toml", CalibrationFile((record,)))
    live = stream_of_node(tmp_path / "c.toml").lines
    run = read_run(run_of(tmp_path / "run.h5", stream_of_node()))
    again, found = recalibrate(run, tmp_path / "c.toml")
    assert found == ("gpu0.b",)
    assert again.lines["gpu0.a"] == run.lines["gpu0.a"]
    b = again.lines["gpu0.b"]
    assert b.conversion == live[1].conversion
    assert isclose(b.accuracy.u_gain, live[1].accuracy.u_gain, rel_tol=1e-12)
    assert isclose(b.accuracy.u_offset_w, live[1].accuracy.u_offset_w, rel_tol=1e-12)
    for change in ({"serial": "e660ffffffffffff"}, {"serial": ""}, {"bus": 2}):
        save_calibration(tmp_path / "other.toml", CalibrationFile((replace(record, **change),)))
        with pytest.raises(AnalysisError):
            recalibrate(run, tmp_path / "other.toml")


@pytest.mark.parametrize(
    "change", [{"shunt_ohm": 0.01}, {"chip": "INA226"}, {"address": 0x4F}, {"board": "another", "line": "gpu0.other"}]
)
def test_a_record_that_does_not_fit_is_refused(tmp_path: Path, file: Path, change: dict[str, object]) -> None:
    run = read_run(run_of(tmp_path / "run.h5", stream_of()))
    save_calibration(file, CalibrationFile((replace(RECORD, **change),)))
    with pytest.raises(AnalysisError):
        recalibrate(run, file)


def test_the_tables_are_computed_with_it(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_of(tmp_path / "run.h5", stream_of())
    before = path.read_bytes()
    joules = []
    for more in ([], ["--calibration", str(file)]):
        with pytest.raises(SystemExit) as ended:
            cli.main(["tables", str(path), "--format", "csv", *more])
        assert not ended.value.code
        out, err = capsys.readouterr()
        lines = out.splitlines()
        head, row = lines[0].split(","), lines[-1].split(",")
        joules.append(float(dict(zip(head, row, strict=False))["energy_j"]))
    assert "computed again with" in err
    assert "gpu0.pcie_3v3" in err
    # 1000 codes are 0.2 A: the zero adds 2 mA, the gain a part in a hundred and fifty, at 3.3 V for one second.
    assert joules[1] - joules[0] == pytest.approx(3.3 * (0.202 * RECORD.gain - 0.2), rel=1e-3)
    assert path.read_bytes() == before
