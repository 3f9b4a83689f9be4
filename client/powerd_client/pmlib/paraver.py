"""A counter's data as a trace for Paraver: ``NAME.prv`` with the records, ``NAME.pcf`` and ``NAME.row`` with labels.

Paraver holds a value from its event to the next one of the same type, and knows integers only. So each event has the
*mean* power in milliwatts up to the next event, from the exact integral: values times durations add up to the energy,
whatever the readings do in between, but for the rounding to milliwatts.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from powerd_client.pmlib.data import CounterData, CounterSet
from powerd_client.pmlib.lines import Lines
from powerd_client.pmlib.readings import Times
from powerd_core.errors import ConfigError

UNITS = {"ns": (1, "NANOSEC"), "us": (1_000, "MICROSEC"), "ms": (1_000_000, "MILLISEC")}
"""Nanoseconds of each unit of time, and its name in a ``.pcf`` file."""
SET_TYPE = 500_000_008
SUM_TYPE = 500_000_009
LINE_TYPE = 500_000_010
"""Type of line 0; the other lines follow. These are pmlib's own numbers, but for the set's."""
_IDLE, _RUNNING = 0, 1


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
    date = datetime.datetime.now().strftime("%d/%m/%Y at %H:%M")
    types = {} if data.is_aggregate else {LINE_TYPE + i: data.names[i] for i in chosen}
    records: list[str] = []
    end = 0
    for part in sets:
        moments, t = _times(part, chosen, data, step_ns, end)
        records += _records(part, chosen, data, moments, t, step_ns)
        end = int(t[-1])
    rows = "\n\n".join(f"LEVEL {level} SIZE 1\n{data.device}" for level in ("CPU", "NODE", "THREAD"))
    try:
        # One node with one CPU; one application with one task of one thread on that node.
        path.write_text(f"#Paraver ({date}):{end}_{unit}:1(1):1:1(1:1)\n{''.join(records)}")
        path.with_suffix(".pcf").write_text(_labels(types, data, sets, unit_name))
        path.with_suffix(".row").write_text(f"{rows}\n")
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename or path}: {error.strerror}") from error


def _times(part: CounterSet, chosen: Sequence[int], data: CounterData, step_ns: int, after: int) -> tuple[Times, Times]:
    """Moments of a set, and the same in units of the trace, not before ``after``.

    Moments that a coarse unit cannot tell apart become one, but the set's ends stay apart.
    """
    moments = part.moments(chosen, data.frequency)
    t = (moments - data.begin_ns + step_ns // 2) // step_ns
    t += max(0, after - int(t[0]))
    is_last_of_equals = np.append(np.diff(t) > 0, True)
    inside = is_last_of_equals & (t > t[0]) & (t < t[-1])
    kept = np.concatenate([[0], np.flatnonzero(inside), [len(t) - 1]])
    t[-1] = max(t[-1], t[0] + 1)
    return moments[kept], t[kept]


def _records(
    part: CounterSet, chosen: Sequence[int], data: CounterData, moments: Times, t: Times, step_ns: int
) -> Iterator[str]:
    joules = np.array([part.readings[i].joules(moments[:-1], moments[1:]) for i in chosen])
    # By the times that are printed: so the rounding of times costs no energy.
    milliwatts = joules / (np.diff(t) * (step_ns * 1e-9)) * 1e3
    shown = [(SUM_TYPE, milliwatts.sum(axis=0))]
    if not data.is_aggregate:
        shown += [(LINE_TYPE + i, milliwatts[k]) for k, i in enumerate(chosen)]
    integers = [(kind, np.rint(column).astype(np.int64)) for kind, column in shown]
    yield f"1:1:1:1:1:{t[0]}:{t[-1]}:{_RUNNING}\n"
    for k in range(len(t) - 1):
        events = ":".join(f"{kind}:{column[k]}" for kind, column in integers)
        begun = f"{SET_TYPE}:{part.number + 1}:" if k == 0 else ""
        yield f"2:1:1:1:1:{t[k]}:{begun}{events}\n"
    ended = ":".join(f"{kind}:0" for kind in (SET_TYPE, *(kind for kind, _ in integers)))
    yield f"2:1:1:1:1:{t[-1]}:{ended}\n"


def _labels(types: dict[int, str], data: CounterData, sets: Sequence[CounterSet], unit_name: str) -> str:
    named = {SUM_TYPE: f"{data.device}: sum of lines {Lines(data.names)}"} | types
    events = "\n".join(f"0    {kind}    {name}, power (mW)" for kind, name in named.items())
    numbers = "\n".join(f"{part.number + 1}    set {part.number}" for part in sets)
    return (
        f"DEFAULT_OPTIONS\n\nLEVEL               THREAD\nUNITS               {unit_name}\nLOOK_BACK           100\n"
        "SPEED               1\nFLAG_ICONS          ENABLED\nNUM_OF_STATE_COLORS 2\nYMAX_SCALE          37\n\n"
        "DEFAULT_SEMANTIC\n\nTHREAD_FUNC         State As Is\n\n"
        f"STATES\n{_IDLE}    not measured\n{_RUNNING}    measured\n\n"
        f"STATES_COLOR\n{_IDLE}    {{117,195,255}}\n{_RUNNING}    {{0,0,255}}\n\n"
        f"EVENT_TYPE\n{events}\n\n"
        f"EVENT_TYPE\n0    {SET_TYPE}    set of the counter\nVALUES\n0    none\n{numbers}\n"
    )
