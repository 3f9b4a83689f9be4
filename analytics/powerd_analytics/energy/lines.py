"""Joules of one line between any moments: the model's power and the interpolated residual of the readings, integrated.

Both are functions of time that grow from the beginning of the run; an interval has the difference between its ends. So
intervals side by side add up by construction, whatever they are. A signal is walked through once, slice by slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.model import COMES_S, LineModel, Residual, most_lag_ns
from powerd_analytics.energy.states import StateCells, States
from powerd_analytics.runs.signals import cores_of
from powerd_client.signals.integral import energy_upto_j
from powerd_client.signals.signal import Signal

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Numbers = NDArray[np.signedinteger[Any]]
_T = TypeVar("_T")

USUAL = 1.2
"""Distances of two readings up to this many usual ones count as usual."""
WORKERS = 2
"""Slices that are worked on at once: numpy lets other threads run, and each slice takes memory."""
CELLS = 1 << 18
"""Cells, each a bin of a state, of what is worked on at once: each takes about 100 bytes, of two slices at once."""
JUMP = 6
"""Of (difference of two readings) x (their distance), the line between them takes one part in so many from one side of
a step that lies anywhere between them to the other, on average: the mean of difference x^2 / (2 distance)."""
FEW_EDGES = 6
"""Readings for each edge of a state from which on the plain integral is taken between edges."""


@dataclass(frozen=True, slots=True)
class Upto:
    """What a line has from the first of some moments up to each of them [m]."""

    energy_j: NDArray[np.longdouble]
    variance_j2: Values
    """Of the residual between readings."""
    missing_j2: Values
    """The part of it where readings are missing."""
    lost_s: Values
    """Without readings, between readings."""
    outside_s: Values
    """Before the first reading, behind the last, and where a counter was set back."""
    jump_j: Values
    """What the line between two residuals puts before a moment at which they jump, on average. It is no sum: a moment
    takes from one side what it gives the other."""

    @classmethod
    def zeros(cls, m: int) -> Upto:
        return cls(np.zeros(m, np.longdouble), *(np.zeros(m) for _ in range(5)))

    def between(self, begin: Numbers, end: Numbers) -> Upto:
        """The differences for pairs of moments, by their numbers."""
        columns = {name: getattr(self, name) for name in Upto.__dataclass_fields__}
        return Upto(**{name: column[end] - column[begin] for name, column in columns.items()})


def upto(model: LineModel, moments_ns: Ints) -> Upto:
    """For moments [m] in order, of a signal with two good readings or more."""
    result = Upto.zeros(len(moments_ns))
    if not len(moments_ns):
        return result
    base: dict[str, Any] = dict.fromkeys(Upto.__dataclass_fields__, 0.0) | {"energy_j": np.longdouble(0)}
    done = 0
    with ThreadPoolExecutor(WORKERS) as pool:
        for own, work in _delayed(_slices(model, moments_ns, pool), WORKERS):
            for name, values in work.result().items():
                if base[name] or values.any():
                    getattr(result, name)[own] = base[name] + values[1:-1]
                    if name != "jump_j":  # which is no sum
                        base[name] = base[name] + values[-1]
            done = own.stop
    for name, whole in base.items():
        if whole:
            getattr(result, name)[done:] = whole
    return result


def _slices(
    model: LineModel, moments_ns: Ints, pool: ThreadPoolExecutor
) -> Iterator[tuple[slice, Future[dict[str, Values]]]]:
    """Which moments each slice of the signal has, and its columns, which are worked out meanwhile."""
    signal, done = model.signal, 0
    start, stop = int(moments_ns[0]), int(moments_ns[-1])
    first, last = np.searchsorted(signal.cuts_ns, [start, stop], "left")
    numbers = range(int(first), int(last) + 1)
    for number, (piece, core_begin, core_end) in zip(numbers, cores_of(signal, numbers), strict=True):
        low, high = max(core_begin, start), min(core_end, stop)
        upper = len(moments_ns) if number == last else int(np.searchsorted(moments_ns, high, "right"))
        if len(piece) < 2:
            continue
        ends = [low, *_cuts_ns(model.states, piece.t_ns, low, high), high]
        for begin, end in pairwise(ends):
            behind = upper if end == high else int(np.searchsorted(moments_ns, end, "right"))
            own = np.concatenate([[begin], moments_ns[done:behind], [end]]).astype(np.int64)
            yield slice(done, behind), pool.submit(_of_piece, model, piece, begin, end, own)
            done = behind


def _cuts_ns(states: States, t_ns: Ints, low: int, high: int) -> list[int]:
    """Times of readings that cut what lies between two moments so that no part has many more than `CELLS` cells."""
    first, last = np.searchsorted(states.edge_ns, [max(low, t_ns[0]), min(high, t_ns[-1])])
    cells = np.cumsum(np.diff(states.first_column)[states.state[first:last]])
    if not len(cells) or cells[-1] <= CELLS:
        return []
    edge_ns = states.edge_ns[first + np.searchsorted(cells, np.arange(CELLS, cells[-1], CELLS))]
    cuts_ns = np.unique(t_ns[np.searchsorted(t_ns, edge_ns[edge_ns < t_ns[-1]])])
    return [int(t) for t in cuts_ns if low < t < high]


def _between(signal: Signal, low: int, high: int) -> Signal:
    """The readings of a signal in memory from the last one up to ``low`` to the first one from ``high`` on."""
    a = max(int(np.searchsorted(signal.t_ns, low, "right")) - 1, 0)
    b = min(int(np.searchsorted(signal.t_ns, high, "left")) + 1, len(signal))
    a = min(a, len(signal) - 2)
    b = max(b, a + 2)
    readings, intervals = slice(a, b), slice(a, b - 1)
    return replace(
        signal,
        t_ns=signal.t_ns[readings],
        value=signal.value[readings],
        broken=signal.broken[intervals],
        flagged=signal.flagged[intervals],
    )


def _delayed(items: Iterable[_T], count: int) -> Iterator[_T]:
    """Items in their order, each when ``count`` later ones are there."""
    waiting: deque[_T] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > count:
            yield waiting.popleft()
    yield from waiting


def _of_piece(model: LineModel, piece: Signal, low: int, high: int, at_ns: Ints) -> dict[str, Values]:
    """All columns of `Upto` from ``low`` on, at moments between ``low`` and ``high``; both are readings of the piece,
    or ends beyond which nobody asks."""
    response, residual = model.response, model.residual
    before, behind = (int(x * 1e9) + 5_000_000 for x in response.margin_s)
    shift = abs(int(response.shift_s * 1e9)) + abs(int(model.lag_s * 1e9))
    piece = _between(piece, low, high)
    t_ns, value = piece.t_ns, piece.value
    begin, end = min(low, int(t_ns[0])) - before - shift, max(high, int(t_ns[-1])) + behind + shift
    cells = model.states.cells(begin, end)
    missing_ns, is_broken = piece.missing_ns(), piece.broken
    if not piece.is_counter and not missing_ns.any() and (near := _near_edges(model, t_ns)) is not None:
        return _dense(model, cells, t_ns, value, near, at_ns)
    t, at = cells.since(t_ns), cells.since(at_ns)
    dt = np.diff(t)
    seen = model.seen(cells, t)
    if piece.is_counter:
        left = np.diff(value) - seen * dt
        level = None
        variance = np.zeros(len(dt))
        steps = np.where(is_broken, 0.0, left)
        if is_broken.any():
            variance = np.where(is_broken, residual.bridged(dt)[1], variance)
        gap = missing_ns > 0
    else:
        level = value - seen
        gap, weight, variance = missing_ns > 0, dt, np.zeros(len(dt))
        if residual.slow2 > 0 or gap.any():
            # Most readings are as far apart as usual.
            usual = residual.bridged(np.array([residual.spacing_s - response.seen_s]))
            damped, variance = (np.full(len(dt), float(x[0])) for x in usual)
            late = np.flatnonzero(dt > USUAL * residual.spacing_s)
            damped[late], variance[late] = residual.bridged(dt[late] - response.seen_s)
            weight = dt * damped
        steps = level[1:] + level[:-1]
        steps *= weight
        steps *= 0.5
        if gap.any():
            # What is white is worth nothing in a hole.
            variance = variance + np.where(gap, residual.white2 * missing_ns * 1e-9 * residual.spacing_s, 0.0)
        # Where a state ends as the readings see it, and beside, for the lag is known no better than that.
        own = np.diff(np.searchsorted(model.states.edge_ns - round(response.shift_s * 1e9), t_ns)) > 0
        is_edge = own.copy()
        is_edge[1:] |= own[:-1]
        is_edge[:-1] |= own[1:]
        variance = variance + np.where(is_edge, _jump2(level, dt, residual.white2), 0.0)
    i = np.clip(np.searchsorted(t, at, "right") - 1, 0, len(t) - 2)
    into = np.clip((at - t[i]) / dt[i], 0, 1)

    def straight(per_interval: Values) -> Values:
        prefix = np.concatenate([[0.0], np.cumsum(per_interval)])
        return np.asarray(prefix[i] + per_interval[i] * into)

    jump_j = np.zeros(len(at))
    if level is None:
        energy = straight(steps)
    else:
        # The readings see a moment a little later or earlier.
        k = np.clip(np.searchsorted(t, at - response.shift_s, "right") - 1, 0, len(t) - 2)
        jump_j = np.where(gap, 0.0, np.diff(level) * dt / JUMP)[k]
        prefix = np.concatenate([[0.0], np.cumsum(steps)])
        energy = prefix[i] + (level[i] + (level[i + 1] - level[i]) * into / 2) * into * weight[i]
    energy += model.upto(cells, at)
    columns = {
        "energy_j": energy,
        "variance_j2": straight(variance) if variance.any() else np.zeros(len(at)),
        "missing_j2": straight(np.where(gap, variance, 0.0)) if gap.any() else np.zeros(len(at)),
        "lost_s": straight(np.where(is_broken, 0.0, missing_ns) * 1e-9) if gap.any() else np.zeros(len(at)),
        "outside_s": straight(np.where(is_broken, missing_ns, 0.0) * 1e-9) if is_broken.any() else np.zeros(len(at)),
        "jump_j": jump_j,
    }
    ends = (steps[0] / dt[0], steps[-1] / dt[-1]) if level is None else (level[0], level[-1])
    return _with_outside(residual, columns, at, (t[0], t[-1]), ends)


def _with_outside(
    residual: Residual, columns: dict[str, Values], at: Values, t_s: tuple[float, float], left: tuple[float, float]
) -> dict[str, Values]:
    """Columns [m] since the first moment, with what the residuals ``left`` of the first and the last reading, at
    ``t_s``, tell of moments beyond them."""
    for time, sign, rest in ((np.maximum(t_s[0] - at, 0), -1.0, left[0]), (np.maximum(at - t_s[1], 0), 1.0, left[1])):
        if time.any():
            counts_s, spread = residual.beyond(time)
            spread = spread + residual.white2 * time * np.minimum(time, residual.spacing_s)
            columns["energy_j"] = columns["energy_j"] + sign * rest * counts_s
            for name, values in (("variance_j2", spread), ("missing_j2", spread), ("outside_s", time)):
                columns[name] = columns[name] + sign * values
    return {name: values - values[0] for name, values in columns.items()}


def _near_edges(model: LineModel, t_ns: Ints) -> NDArray[np.intp] | None:
    """Numbers of the intervals between readings [n] that an edge of a state moves, where these are few: else None.

    Far from all edges the model is as straight as the readings, and the integral is the plain one."""
    reach = int(1e9 * (model.response.window_s / 2 + abs(model.response.shift_s) + abs(model.lag_s)))
    # Power follows its marks late, and comes to what it is in a state little by little.
    behind = reach + round(most_lag_ns() + COMES_S * 1e9)
    edge_ns = model.states.edge_ns
    if model.response.tau_s or FEW_EDGES * np.ptp(np.searchsorted(edge_ns, t_ns[[0, -1]])) > len(t_ns):
        return None
    edge_ns = edge_ns[slice(*np.searchsorted(edge_ns, [t_ns[0] - behind, t_ns[-1] + reach]))]
    first, last = np.searchsorted(t_ns, edge_ns - reach) - 1, np.searchsorted(t_ns, edge_ns + behind, "right")
    begun = np.bincount(np.maximum(first, 0), minlength=len(t_ns)) - np.bincount(last, minlength=len(t_ns) + 1)[:-1]
    is_near = np.cumsum(begun)[:-1] > 0
    return np.flatnonzero(is_near)


def _jump2(left: Values, dt: Values, white2: float) -> Values:
    """[n - 1] variance (J^2) of the integral of residuals [n] that may jump anywhere between two readings, by more than
    what is white (W^2) makes them differ.

    The line between them is off by (jump x)^2 / 4 on one side, x seconds from the reading there; on average 1/20.
    """
    return np.asarray(np.maximum(np.diff(left) ** 2 - 2 * white2, 0.0) * dt**2 / 10)


def _dense(
    model: LineModel, cells: StateCells, t_ns: Ints, value: Values, near: NDArray[np.intp], at_ns: Ints
) -> dict[str, Values]:
    """The same where readings are dense and none is missing: the plain integral, and at edges what the model knows
    better than a straight line."""
    is_wanted = np.zeros(len(t_ns), bool)
    is_wanted[[0, -1]] = is_wanted[near] = is_wanted[near + 1] = True
    wanted = np.flatnonzero(is_wanted)
    t, at = cells.since(t_ns[wanted]), cells.since(at_ns)
    place = np.searchsorted(wanted, near)
    seen = model.seen(cells, t)
    joules, joules_at = np.split(model.upto(cells, np.append(t, at)), [len(t)])
    jump2 = np.append(0.0, np.cumsum(_jump2(value[wanted] - seen, np.diff(t), model.residual.white2)[place]))
    dt = np.diff(t)[place]
    more = joules[place + 1] - joules[place] - (seen[place + 1] + seen[place]) / 2 * dt
    upto = np.concatenate([[0.0], np.cumsum(more)])
    i = np.clip(np.searchsorted(t_ns, at_ns, "right") - 1, 0, len(t_ns) - 2)
    number = np.searchsorted(near, i)
    within = np.clip(at, t[0], t[-1])
    energy = energy_upto_j(t_ns, value, at_ns).astype(np.float64) + upto[number]
    joules_within = np.where(at < t[0], joules[0], np.where(at > t[-1], joules[-1], joules_at))
    energy += joules_at - joules_within
    own = np.flatnonzero(np.append(near, -1)[number] == i)
    k, into = place[number[own]], within[own] - cells.since(t_ns[i[own]])
    slope = (seen[k + 1] - seen[k]) / dt[number[own]]
    energy[own] += joules_within[own] - joules[k] - (seen[k] + slope * into / 2) * into
    spacing_s = model.residual.spacing_s
    variance = float(model.residual.bridged(np.array([spacing_s - model.response.seen_s]))[1][0])
    variance_j2, zeros = variance / spacing_s * within + jump2[number], np.zeros(len(at))
    variance_j2[own] += (jump2[number[own] + 1] - jump2[number[own]]) * into / dt[number[own]]
    jump_j = np.zeros(len(at_ns))
    jump_j[own] = (np.diff(value[wanted] - seen) * np.diff(t) / JUMP)[place[number[own]]]
    columns = {"energy_j": energy, "variance_j2": variance_j2, "jump_j": jump_j}
    columns |= dict.fromkeys(("missing_j2", "lost_s", "outside_s"), zeros)
    left = (float(value[0] - seen[0]), float(value[-1] - seen[-1]))
    return _with_outside(model.residual, columns, at, (float(t[0]), float(t[-1])), left)
