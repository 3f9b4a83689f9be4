"""Running figures of one powerd's lines, from blocks as they arrive: joules so far, watts now, readings, losses.

Joules are the integral between readings, on the board's clock, since this began to listen. A stretch in which readings
were lost is left out and counted as missing, except for lines that count energy themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.runs.readings import Readings
from powerd_analytics.runs.run import RunLine
from powerd_analytics.signals.signal import make_signal
from powerd_core.model import Block, Description, Gap, Line, QuantityConversion, Stream, columns

WINDOW_NS = 1_000_000_000
"""Watts and rates are means over the last second, or the last reading's interval where that is longer."""

Columns = Mapping[str, NDArray[Any]]


@dataclass(slots=True)
class LiveLine:
    """One line since it was first heard."""

    line: Line
    period_ns: int
    info: RunLine
    feeds: bool
    """Whether the sum of its device holds it."""
    energy_j: float = 0.0
    covered_s: float = 0.0
    readings: int = 0
    bad: int = 0
    value: float | None = None
    """Of a line that is neither power nor energy: its latest value."""
    last: Columns | None = None
    """The latest reading, with which the next one makes an interval."""
    recent: deque[tuple[int, float, float, int]] = field(default_factory=deque)
    """Of the last second: end (board time), joules, seconds, readings."""

    def take(self, found: Columns) -> None:
        """Readings as they came, times increasing."""
        self.readings += len(found["t_ns"])
        if isinstance(self.line.conversion, QuantityConversion):
            conversion = self.line.conversion
            self.value = float(found[conversion.column][-1]) * conversion.per_code
            self._remember(int(found["t_ns"][-1]), 0.0, 0.0, len(found["t_ns"]))
            return
        joined = found if self.last is None else {k: np.concatenate([self.last[k], v]) for k, v in found.items()}
        codes = {k: v for k, v in joined.items() if k not in ("t_ns", "flags")}
        signal = make_signal(self.info, Readings(joined["t_ns"], joined["t_ns"], joined["flags"], codes))
        self.bad += signal.bad
        if len(signal) > 1:
            known = ~signal.broken if signal.is_counter else np.ones(len(signal) - 1, bool)
            dt = np.diff(signal.t_ns) * 1e-9
            steps = np.diff(signal.value) if signal.is_counter else (signal.value[1:] + signal.value[:-1]) / 2 * dt
            joules, seconds = float(steps[known].sum()), float(dt[known].sum())
            self.energy_j += joules
            self.covered_s += seconds
            self._remember(int(signal.t_ns[-1]), joules, seconds, len(found["t_ns"]))
        if len(signal):
            at = int(np.flatnonzero(joined["t_ns"] == signal.t_ns[-1])[-1])
            self.last = {k: v[at : at + 1] for k, v in joined.items()}

    def lose(self) -> None:
        """Readings were lost behind the latest one. A counter has counted on meanwhile."""
        if self.line.quantity != "energy_j":
            self.last = None

    def _remember(self, t_ns: int, joules: float, seconds: float, readings: int) -> None:
        self.recent.append((t_ns, joules, seconds, readings))
        while len(self.recent) > 1 and self.recent[0][0] < t_ns - WINDOW_NS:
            self.recent.popleft()

    @property
    def known_j(self) -> float | None:
        """``energy_j``, None as long as no two readings have told anything."""
        return self.energy_j if self.covered_s > 0 else None

    @property
    def power_w(self) -> float | None:
        """Mean of the last second."""
        seconds = sum(s for _, _, s, _ in self.recent)
        return sum(j for _, j, _, _ in self.recent) / seconds if seconds > 0 else None

    @property
    def rate_hz(self) -> float | None:
        """Readings a second, good and bad."""
        if len(self.recent) < 2:
            return None
        span = (self.recent[-1][0] - self.recent[0][0]) * 1e-9
        return sum(n for _, _, _, n in list(self.recent)[1:]) / span if span > 0 else None


class LiveBoard:
    """All lines of one powerd, and what was lost on the way."""

    def __init__(self, description: Description) -> None:
        self.description = description
        feeds = {name for device in description.devices for name in device.feeds}
        self.lines: dict[str, LiveLine] = {}
        self._streams = {stream.number: stream for stream in description.streams}
        for stream in description.streams:
            for line in stream.lines:
                info = _line_info(line, stream, description)
                self.lines[line.name] = LiveLine(line, stream.period_ns, info, line.name in feeds)
        self.lost_scans = 0
        self.gaps = 0
        self.unknown_gaps = 0
        """Gaps of which nobody knows how many scans they are; among ``gaps``."""
        self.last_cause = ""

    def take(self, event: Block | Gap) -> None:
        """A frame of the data socket, in turn. Frames of another life of the powerd are left alone."""
        stream = self._streams.get(event.stream)
        if stream is None or event.epoch != self.description.epoch:
            return
        if isinstance(event, Gap):
            self.gaps += 1
            self.unknown_gaps += event.lost < 0
            self.lost_scans += max(event.lost, 0)
            self.last_cause = event.cause
            for line in stream.lines:
                self.lines[line.name].lose()
            return
        types = {"t_ns": "<i8", "dt_ns": "<i4", "flags": "<u2"}
        types |= {c.name: np.dtype(c.typecode).newbyteorder("<").str for c in stream.columns}
        arrays = {name: np.frombuffer(view, types[name]) for name, view in columns(event, stream).items()}
        t_ns = arrays.pop("t_ns")
        tables = {name: values.reshape(event.count, -1) for name, values in arrays.items()}
        for i, line in enumerate(stream.lines):
            own = {name: table[:, i] for name, table in tables.items() if name != "dt_ns"}
            self.lines[line.name].take({"t_ns": t_ns + tables["dt_ns"][:, i], **own})


def _line_info(line: Line, stream: Stream, description: Description) -> RunLine:
    return RunLine(
        name=line.name,
        device=line.device,
        source=stream.source,
        board=description.board,
        provenance=line.provenance,
        quantity=line.quantity,
        description=line.description,
        period_ns=stream.period_ns,
        conversion=line.conversion,
        accuracy=line.accuracy,
        detail=stream.detail,
        clock="",
        count=0,
    )
