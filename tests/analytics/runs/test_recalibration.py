"""A run computed again with a later calibration means what a run recorded with it would have meant."""

from __future__ import annotations

from dataclasses import replace
from math import isclose
from pathlib import Path

import pytest
from make_run import LineSpec, PhaseSpec, make_run
from simulated_node import SimulatedNode

from powerd_analytics import cli
from powerd_analytics.runs.recalibration import read_calibration, recalibrate
from powerd_analytics.runs.run import read_run
from powerd_core.calibration import CalibrationFile, Point, SensorCalibration
from powerd_core.errors import AnalysisError, ConfigError
from powerd_core.model import Stream
from powerd_core.serde import to_document
from powerd_daemon.calibration_file import save_calibration
from powerd_daemon.sim.clock import VirtualClock
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.node import NodeSource
from powerd_daemon.sources.node_options import NodeOptions, NodeSensor
from powerd_daemon.sources.sim import SimOptions, SimSource

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
    with pytest.raises(AnalysisError, match="recorded with a calibrated zero, which the file lacks"):
        recalibrate(run, file)


def test_a_node_is_known_by_its_serial_number(tmp_path: Path) -> None:
    node = {"board": "", "serial": "e660010203040506", "bus": 1, "address": 0x40}
    record = replace(RECORD, line="gpu0.b", **node)
    save_calibration(tmp_path / "c.toml", CalibrationFile((record,)))
    older = replace(record, zero=replace(ZERO, mean_a=0.003))
    save_calibration(tmp_path / "old.toml", CalibrationFile((older,)))
    live = stream_of_node(tmp_path / "c.toml").lines
    for recorded in (stream_of_node(), stream_of_node(tmp_path / "old.toml")):
        run = read_run(run_of(tmp_path / "run.h5", recorded))
        again, found = recalibrate(run, tmp_path / "c.toml")
        assert found == ("gpu0.b",)
        assert again.lines["gpu0.a"] == run.lines["gpu0.a"]
        b = again.lines["gpu0.b"]
        assert b.conversion == live[1].conversion
        assert isclose(b.accuracy.u_gain, live[1].accuracy.u_gain, rel_tol=1e-12)
        assert isclose(b.accuracy.u_offset_w, live[1].accuracy.u_offset_w, rel_tol=1e-12)
        assert b.accuracy.origin == live[1].accuracy.origin.replace("; gain and", "; recomputed with gain and")
    for change in ({"serial": "e660ffffffffffff"}, {"serial": ""}, {"bus": 2}):
        save_calibration(tmp_path / "other.toml", CalibrationFile((replace(record, **change),)))
        with pytest.raises(AnalysisError, match="no sensor of .* is calibrated there"):
            recalibrate(run, tmp_path / "other.toml")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shunt_ohm": 0.01}, "taken with shunt_ohm = 0.01, the run with 0.05"),
        ({"chip": "INA226"}, "taken with an INA226, not INA219"),
        ({"address": 0x4F}, "no sensor of .* is calibrated there"),
        ({"board": "another", "line": "gpu0.other"}, "no sensor of .* is calibrated there"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(
    tmp_path: Path, file: Path, change: dict[str, object], said: str
) -> None:
    run = read_run(run_of(tmp_path / "run.h5", stream_of()))
    save_calibration(file, CalibrationFile((replace(RECORD, **change),)))
    with pytest.raises(AnalysisError, match=said):
        recalibrate(run, file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sensor = 3", "expected a list"),
        ("[[sensor]]\nline = 4", r"sensor\[0\].line: expected str"),
        ("[[sensor]", "no calibration file"),
        ("[[sensors]]", "unknown key 'sensors'"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_calibration(tmp_path / "c.toml")


def test_a_reference_that_is_neither_current_nor_power_is_refused(file: Path) -> None:
    file.write_text(file.read_text().replace('quantity = "A"', 'quantity = "V"'))
    with pytest.raises(ConfigError, match="quantity: expected 'A' or 'W', found 'V'"):
        read_calibration(file)


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
