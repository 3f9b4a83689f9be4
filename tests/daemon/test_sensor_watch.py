"""Sensors that die, stick or clip: what flags say of a line, what is logged, and how `powerd check URL` judges it."""

from __future__ import annotations

from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from daemon_harness import running

from powerd_core.model import (
    Accuracy,
    Block,
    Column,
    Description,
    Flag,
    Line,
    Provenance,
    QuantityConversion,
    ScaledConversion,
    Stream,
)
from powerd_core.serde import to_document
from powerd_daemon import diagnostics
from powerd_daemon.cli import main
from powerd_daemon.config import parse_config
from powerd_daemon.diagnostics import FAIL, OK, WARN, check_running, judge_stats
from powerd_daemon.sensor_watch import SensorWatch, changes
from support.steady import wait_for

SECOND, PERIOD_NS = 1_000_000_000, 100_000_000
GOOD, CLIPS, STANDS, DEAD = 0, Flag.SATURATED, Flag.STALE, Flag.IO_ERROR


def line(name: str) -> Line:
    conversion = QuantityConversion("w", "temperature_c") if name == "temperature" else ScaledConversion("w", 1.0)
    return Line(name, "gpu0", conversion, Provenance.SIMULATED, Accuracy())


STREAM = Stream(0, "bus", (Column("w", "H"),), tuple(map(line, ("a", "b", "temperature"))), PERIOD_NS)


class Watched:
    """A watch that is shown a second of readings at a time, of the three lines each."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.watch = SensorWatch(0)
        self.watch.add([STREAM])

    def second(self, *flags: int) -> dict[str, Any]:
        n, flags = 10, (*flags, Flag.MISSING)
        t = array("q", range(self.now_ns, self.now_ns + SECOND, PERIOD_NS))
        rows = (t, array("i", [0] * 3 * n), array("H", [int(f) for f in flags] * n), array("H", [1] * 3 * n))
        payload = b"".join(row.tobytes() for row in rows)
        self.watch.see(Block(0, 1, 0, t[0], t[-1], n, STREAM.layout, payload))
        self.now_ns += SECOND
        return self.watch.states(self.now_ns)


@pytest.mark.parametrize(("flag", "state"), [(DEAD, "no answer"), (Flag.RESET, "no answer"), (STANDS, "stood still")])
def test_a_line_without_a_good_reading_for_a_second_has_a_fault(flag: int, state: str) -> None:
    watched = Watched()
    assert watched.second(GOOD, GOOD) == {}
    watched.second(GOOD, flag)
    assert watched.second(GOOD, flag)["b"] == {
        "state": state, "saturated": 0, "stood_still": 10 * 2 * (state == "stood still"),
        "no_answer": 10 * 2 * (state == "no answer"),
    }  # fmt: skip
    assert watched.second(GOOD, GOOD)["b"]["state"] == "good"


def test_one_that_clips_in_its_peaks_alone_is_saturated_for_a_minute() -> None:
    watched = Watched()
    watched.second(GOOD, CLIPS)
    for _ in range(58):
        assert watched.second(GOOD, GOOD)["b"]["state"] == "saturated"
    for _ in range(3):
        states = watched.second(GOOD, GOOD)
    assert (states["b"]["state"], states["b"]["saturated"]) == ("good", 10)


def test_a_temperature_that_no_driver_tells_is_no_fault() -> None:
    watched = Watched()
    for _ in range(5):
        assert watched.second(GOOD, GOOD) == {}


def test_what_is_logged_is_what_has_changed() -> None:
    watched = Watched()
    before, told = {}, []
    for flag in (GOOD, DEAD, DEAD, DEAD, GOOD, GOOD, CLIPS, CLIPS):
        now = watched.second(GOOD, flag)
        told += changes(before, now)
        before = now
    assert told == [
        (True, "b: no answer"),
        (False, "b: good readings again"),
        (True, "b: saturated: use a smaller shunt"),
    ]


def test_a_silence_between_two_looks_is_logged_with_its_length() -> None:
    watched, looked = Watched(), []
    for second, flag in enumerate((GOOD, DEAD, DEAD, GOOD, GOOD, DEAD, GOOD)):
        states = watched.second(GOOD, flag)
        looked += [states] if second in (0, 3, 6) else []
    assert changes(looked[0], looked[1]) == [(True, "b: no good readings for 2.1 s")]
    assert (
        changes(looked[1], looked[2]) == []
    )  # it was silent for 1.1 s, which is no longer than a second and two periods


def stats(lines: object = None, error: str = "", **more: object) -> dict[str, Any]:
    return {"streams": [{"source": "bus", "sampler": {"error": error, "failure": "", "lines": lines}, **more}]}


@pytest.mark.parametrize(
    ("body", "verdicts"),
    [
        (stats({}), [OK]),
        (stats({"a": {"state": "good", "no_answer": 3}}), [OK]),
        (stats({"a": {"state": "no answer"}}), [FAIL]),
        (stats({"a": {"state": "saturated"}, "b": {"state": "stood still"}}), [FAIL, WARN]),
        (stats({}, error="the meter is gone"), [FAIL]),
        (stats({}, calibration={"a": {"zero_drifted": True, "zero_moved_a": 0.002}}), [OK, WARN]),
        (stats(), [OK]),  # of an older powerd
    ],
)
def test_a_running_powerd_is_judged_by_its_feeding_lines(body: dict[str, Any], verdicts: list[str]) -> None:
    assert [f.verdict for f in judge_stats(body, {"a"})] == verdicts


def test_wiring_is_looked_at_where_there_is_some() -> None:
    body = stats({"a": {"state": "no answer"}})
    remedies = [f.remedy for on_i2c in ({"bus"}, set()) for f in judge_stats(body, {"a"}, on_i2c)]
    assert ["powerd scan" in remedy for remedy in remedies] == [True, False]


def test_streams_of_one_source_tell_their_fault_once(monkeypatch: pytest.MonkeyPatch) -> None:
    body = stats({"a": {"state": "no answer"}})
    body["streams"] *= 2
    answers = {"describe": to_document(Description("b", "0", 1, "c", "tcp://*:1", (), (), "tcp://*:2")), "stats": body}
    monkeypatch.setattr(diagnostics, "ask", lambda _url, what, **_: SimpleNamespace(body=answers[what]))
    (finding,) = check_running("tcp://b:7360")
    assert finding.what == "a: no answer"


CARD = """[server]
listen = "ipc://{folder}/s"
[[source]]
kind = "sim"
name = "card"
waveform = "constant"
rate_hz = 100
peak_w = {peak_w}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("peak_w", "status"), [(100, 0), (900, 1)])
def test_a_powerd_says_so_in_its_log_and_to_cron(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], peak_w: int, status: int
) -> None:
    """900 W are more than the shunts of the card carry."""
    with running(parse_config(CARD.format(folder=tmp_path, peak_w=peak_w), "f")) as powerd, powerd.control() as control:
        control.stats_when(
            lambda s: s["streams"][0]["scans"] > 10 and s["streams"][0]["sampler"].get("lines") is not None
        )
        if status:
            wait_for(lambda: "gpu0.ext_12v_1: saturated: use a smaller shunt" in powerd.said.getvalue())
        assert main(["check", powerd.daemon.listen]) == status
        out = capsys.readouterr().out
        assert ("gpu0.ext_12v_1: saturated" in out) == bool(status)
        assert ("all lines are read well" in out) == (not status)
    assert ("saturated" in powerd.said.getvalue()) == bool(status)
