"""Sensors that die, stick or clip: what the flags of their readings say, line by line, while powerd runs."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from powerd_core.model import FAULT_FLAGS, FAULT_REMEDIES, Block, Fault, QuantityConversion, Stream, columns

SILENT_NS = 1_000_000_000
"""A line without a good reading for so long (and two periods) has the fault of its latest readings."""
CLIPPING_NS = 60_000_000_000
"""A line is called saturated for so long after a saturated reading: a training clips in its peaks alone."""
GOOD = "good"
KEYS = {fault: str(fault).replace(" ", "_") for fault in Fault}
"""How counts are called in *stats*."""


@dataclass(slots=True)
class _Line:
    counts: Counter[Fault] = field(default_factory=Counter)
    latest: Fault | None = None
    good_ns: int = 0
    """Time of the latest good reading; before there was one, when the watch began."""
    saturated_ns: int | None = None
    is_broken: bool = False
    """Whether there was a fault since the latest good reading."""
    silences: int = 0
    """How often it was silent and came back."""
    silence_ns: int = 0
    """How long the latest of these was."""

    def come_back(self, t_ns: int, silent_ns: int) -> None:
        """A good reading behind a fault; it was silent where there was none for longer than ``silent_ns``."""
        if t_ns - self.good_ns > silent_ns:
            self.silences, self.silence_ns = self.silences + 1, t_ns - self.good_ns
        self.is_broken = False


class SensorWatch:
    """Counts the flagged readings of a source's lines, and says which sensors have a fault now."""

    def __init__(self, now_ns: int) -> None:
        self._begin_ns = now_ns
        self._streams: dict[int, Stream] = {}
        self._lines: dict[str, _Line] = {}
        self._beside: set[str] = set()
        """Neither power nor energy: a driver may have no answer to them for good."""

    def add(self, streams: Iterable[Stream]) -> None:
        """The source describes these streams, once more where it was lost."""
        for stream in streams:
            self._streams[stream.number] = stream
            for line in stream.lines:
                self._lines.setdefault(line.name, _Line(good_ns=self._begin_ns))
                if isinstance(line.conversion, QuantityConversion):
                    self._beside.add(line.name)

    def see(self, block: Block) -> None:
        """Take in the flags of a block; where all are good that is quick."""
        stream = self._streams[block.stream]
        view = bytes(columns(block, stream)["flags"])
        lines = [self._lines[line.name] for line in stream.lines]
        if not any(view):
            for line in lines:
                if line.is_broken:
                    line.come_back(block.t_first_ns, SILENT_NS + 2 * stream.period_ns)
                line.good_ns = block.t_last_ns
            return
        flags = array("H", view)
        for at, line in enumerate(lines):
            self._take(line, flags[at :: len(lines)], block, SILENT_NS + 2 * stream.period_ns)

    @staticmethod
    def _take(line: _Line, flags: array[int], block: Block, silent_ns: int) -> None:
        for flag in flags:
            fault = next((fault for fault, own in FAULT_FLAGS.items() if flag & own), None)
            if fault is None:
                if line.is_broken:
                    line.come_back(block.t_first_ns, silent_ns)
                line.good_ns = block.t_last_ns
                continue
            line.latest, line.is_broken = fault, True
            line.counts[fault] += 1
            if fault is Fault.SATURATED:
                line.saturated_ns = block.t_last_ns

    def states(self, now_ns: int) -> dict[str, dict[str, object]]:
        """Of each line that has lost readings: its ``state``, and how many readings each fault took."""
        period_ns = {line.name: stream.period_ns for stream in self._streams.values() for line in stream.lines}
        return {
            name: {"state": self._state(line, now_ns, period_ns[name])}
            | {KEYS[fault]: line.counts[fault] for fault in Fault}
            | ({"silences": line.silences, "silence_s": line.silence_ns * 1e-9} if line.silences else {})
            for name, line in self._lines.items()
            if line.counts and name not in self._beside
        }

    @staticmethod
    def _state(line: _Line, now_ns: int, period_ns: int) -> str:
        if line.saturated_ns is not None and now_ns - line.saturated_ns < CLIPPING_NS:
            return str(Fault.SATURATED)
        is_silent = now_ns - line.good_ns > SILENT_NS + 2 * period_ns
        return str(line.latest) if is_silent and line.latest is not None else GOOD


def changes(before: object, now: object) -> list[tuple[bool, str]]:
    """What is to be logged of two answers of `SensorWatch.states`: whether it is a fault, and the words. What a sensor
    has between the two is not in their states: that it was silent and came back."""
    told = []
    for name, row in _rows(now).items():
        state, earlier = _state_of(row), _rows(before).get(name, {})
        if state != _state_of(earlier):
            told.append((False, f"{name}: good readings again") if state == GOOD else (True, fault_line(name, state)))
        elif state == GOOD and row.get("silences", 0) != earlier.get("silences", 0):
            told.append((True, f"{name}: no good readings for {row.get('silence_s', 0.0):.1f} s"))
    return told


def _rows(lines: object) -> dict[str, dict[str, Any]]:
    """The ``lines`` of a sampler's statistics; what is none of them is left out."""
    rows = lines.items() if isinstance(lines, dict) else ()
    return {str(name): row for name, row in rows if isinstance(row, dict)}


def _state_of(row: dict[str, Any]) -> str:
    return str(row.get("state", GOOD))


def states_of(lines: object) -> dict[str, str]:
    """The state of each line in the ``lines`` of a sampler's statistics."""
    return {name: _state_of(row) for name, row in _rows(lines).items()}


def fault_line(name: str, state: str) -> str:
    """``gpu0.pcie_12v: saturated: use a smaller shunt``."""
    remedy = next((text for fault, text in FAULT_REMEDIES.items() if str(fault) == state), "")
    return f"{name}: {state}" + (f": {remedy}" if remedy else "")
