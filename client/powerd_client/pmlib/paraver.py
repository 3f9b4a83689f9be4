"""A counter's data as a trace for Paraver: ``NAME.prv`` with the records, ``NAME.pcf`` and ``NAME.row`` with labels.

Paraver holds a value from its event to the next one of the same type, and knows integers only. So each event has the
*mean* power in milliwatts up to the next event, from the exact integral: values times durations add up to the energy,
whatever the readings do in between, but for the rounding to milliwatts.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from powerd_client.pmlib.data import CounterData, Lines
from powerd_client.pmlib.readings import Times, Values
from powerd_core.errors import ConfigError

UNITS = {"ns": (1, "NANOSEC"), "us": (1_000, "MICROSEC"), "ms": (1_000_000, "MILLISEC")}
"""Nanoseconds of each unit of time, and its name in a ``.pcf`` file."""
SET_TYPE = 500_000_008
SUM_TYPE = 500_000_009
LINE_TYPE = 500_000_010
"""Type of line 0; the other lines follow. These are pmlib's own numbers, but for the set's."""

_LABELS = """\
DEFAULT_OPTIONS

LEVEL               THREAD
UNITS               {unit}
LOOK_BACK           100
SPEED               1
FLAG_ICONS          ENABLED
NUM_OF_STATE_COLORS 2
YMAX_SCALE          37

DEFAULT_SEMANTIC

THREAD_FUNC         State As Is

STATES
0    not measured
1    measured

STATES_COLOR
0    {{117,195,255}}
1    {{0,0,255}}

EVENT_TYPE
{events}

EVENT_TYPE
0    {set_type}    set of the counter
VALUES
0    none
{sets}
"""


def write_paraver(path: Path, data: CounterData, lines: Lines | None, set_number: int, unit: str = "ns") -> None:
    """Write the three files. Times count from the beginning of the counter's first set.

    Raises `ConfigError` for an unknown unit, a name that does not end in ``.prv``, and files that cannot be written.
    """
    if unit not in UNITS:
        raise ConfigError(f"unit {unit!r}: Paraver knows {', '.join(UNITS)}")
    if path.suffix != ".prv":
        raise ConfigError(f"{path}: the name of a Paraver trace ends in .prv")
    chosen, sets = data.lines(lines), data.chosen(set_number)
    step_ns, unit_name = UNITS[unit]
    names = {SUM_TYPE: f"{data.device}: sum of lines {Lines(data.names)}"}
    names |= {} if data.is_aggregate else {LINE_TYPE + i: data.names[i] for i in chosen}
    records: list[str] = []
    end = 0
    for part in sets:
        moments, t = _times(part.moments(chosen, data.frequency), data.begin_ns, step_ns, end)
        joules = np.array([part.readings[i].joules(moments[:-1], moments[1:]) for i in chosen])
        # By the times that are printed: so the rounding of times costs no energy.
        milliwatts = joules / (np.diff(t) * (step_ns * 1e-9)) * 1e3
        shown = np.vstack([milliwatts.sum(axis=0), milliwatts])[: len(names)]
        records += _records(part.number + 1, t, dict(zip(names, shown, strict=True)))
        end = int(t[-1])
    date = datetime.datetime.now().strftime("%d/%m/%Y at %H:%M")
    events = "\n".join(f"0    {kind}    {name}, power (mW)" for kind, name in names.items())
    numbers = "\n".join(f"{part.number + 1}    set {part.number}" for part in sets)
    levels = "\n\n".join(f"LEVEL {level} SIZE 1\n{data.device}" for level in ("CPU", "NODE", "THREAD"))
    try:
        # One node with one CPU; one application with one task of one thread on that node.
        path.write_text(f"#Paraver ({date}):{end}_{unit}:1(1):1:1(1:1)\n{''.join(records)}")
        path.with_suffix(".pcf").write_text(
            _LABELS.format(unit=unit_name, events=events, set_type=SET_TYPE, sets=numbers)
        )
        path.with_suffix(".row").write_text(f"{levels}\n")
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename or path}: {error.strerror}") from error


def _times(moments: Times, origin_ns: int, step_ns: int, after: int) -> tuple[Times, Times]:
    """Moments of a set, and the same in units of the trace, not before ``after``.

    Moments that a coarse unit cannot tell apart become one, but the set's ends stay apart.
    """
    t = (moments - origin_ns + step_ns // 2) // step_ns
    t += max(0, after - int(t[0]))
    is_last_of_equals = np.append(np.diff(t) > 0, True)
    inside = is_last_of_equals & (t > t[0]) & (t < t[-1])
    kept = np.concatenate([[0], np.flatnonzero(inside), [len(t) - 1]])
    t[-1] = max(t[-1], t[0] + 1)
    return moments[kept], t[kept]


def _records(number: int, t: Times, milliwatts: dict[int, Values]) -> Iterator[str]:
    """The state and the events of a set: power by type, until the next time."""
    yield f"1:1:1:1:1:{t[0]}:{t[-1]}:1\n"
    last = len(t) - 1
    for k, time in enumerate(t):
        values = {SET_TYPE: number if k < last else 0} if k in (0, last) else {}
        values |= {kind: round(column[k]) if k < last else 0 for kind, column in milliwatts.items()}
        yield f"2:1:1:1:1:{time}:{':'.join(f'{kind}:{value}' for kind, value in values.items())}\n"
