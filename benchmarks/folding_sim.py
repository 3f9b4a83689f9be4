"""Readings of powerd's own source ``sim``, in virtual time, for `bench_folding.py --sim`.

The source, its sampler, the INA driver and the conversion of codes to watts are the real ones; the chips, their errors
and the load are simulated, and the load knows its exact joules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from folding_pools import LOW, scatter

from powerd_analytics.energy.uncertainty import Estimate
from powerd_analytics.folding.folded import fold
from powerd_analytics.folding.segments import Phases
from powerd_analytics.runs.readings import Readings
from powerd_analytics.runs.run import RunLine
from powerd_analytics.signals.signal import Signal, make_signal
from powerd_core.model import Block, Stream, columns
from powerd_core.wire import decode
from powerd_daemon.outbox import Outbox
from powerd_daemon.sampling import Sampling
from powerd_daemon.sim.clock import VirtualClock
from powerd_daemon.sim.shapes import TrainingOptions
from powerd_daemon.sim.waveform import CardLoad
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.sim import SimOptions, SimSource

NAMES = ("forward", "backward", "update")
"""The phases that are marked; the wait behind them is not, as in a training."""
TRAININGS = (
    TrainingOptions(forward_ms=5.113, backward_ms=10.331, update_ms=3.157, idle_ms=1.291),
    TrainingOptions(forward_ms=12.113, backward_ms=21.331, update_ms=5.157, idle_ms=2.291),
    TrainingOptions(),
)
CARDS = ((10.0, "avg2"), (10.0, "avg128"), (50.0, "avg2"), (50.0, "avg16"), (500.0, "avg2"))
"""Scans a second, and how the chips average: conversions of 1.06, 68 and 8.5 ms."""


@dataclass(frozen=True)
class Row:
    """One kind of phase on one card: watts of its mean, and what is exact."""

    phase: str
    length_ms: float
    folded: Estimate | None
    exact_w: float
    why: str

    @property
    def is_inside(self) -> bool:
        return self.folded is not None and abs(self.folded.energy_j - self.exact_w) <= self.folded.u95_j


def record(options: SimOptions, seconds: float) -> tuple[list[Signal], CardLoad, int, int]:
    """Signals of all lines of the simulated card, its load, and from when to when it was read."""
    clock, outbox = VirtualClock(), Outbox(1 << 30)
    made: list[SimSource] = []
    streams: list[Stream] = []

    def source(start: Start) -> SimSource:
        made.append(SimSource(options, start))
        return made[-1]

    sampling = Sampling(
        source, Start("sim", 1, 0, clock), outbox, block_ns=500_000_000, on_open=lambda found, _: streams.extend(found)
    )
    sampling.open()
    begin_ns = clock.now_ns()
    end_ns = begin_ns + round(seconds * 1e9)
    while clock.now_ns() < end_ns:
        sampling.step()
    sampling.close()
    blocks: list[Block] = []

    def keep(frame: bytes) -> bool:
        event = decode(frame)
        assert isinstance(event, Block), event
        blocks.append(event)
        return True

    outbox.drain(keep)
    load = made[0].load
    assert load is not None
    return _signals(streams[0], blocks), load, begin_ns, end_ns


def _signals(stream: Stream, blocks: list[Block]) -> list[Signal]:
    types = {"t_ns": np.int64, "dt_ns": np.int32, "flags": np.uint16}
    types |= {c.name: np.dtype(c.typecode) for c in stream.columns}
    found: dict[str, list[np.ndarray]] = {name: [] for name in types}
    for block in blocks:
        for name, view in columns(block, stream).items():
            found[name].append(np.frombuffer(view, types[name]))
    whole = {name: np.concatenate(parts) for name, parts in found.items() if parts}
    n = len(stream.lines)
    signals = []
    for i, line in enumerate(stream.lines):
        codes = {c.name: whole[c.name].reshape(-1, n)[:, i] for c in stream.columns}
        t_ns = whole["t_ns"] + whole["dt_ns"].reshape(-1, n)[:, i]
        of_run = RunLine(
            line.name, line.device, "sim", "board", line.provenance, "power_w", line.description, stream.period_ns,
            line.conversion, line.accuracy, {}, "", len(t_ns),
        )  # fmt: skip
        signals.append(make_signal(of_run, Readings(t_ns, t_ns, whole["flags"].reshape(-1, n)[:, i], codes)))
    return signals


def judge(training: TrainingOptions, rate_hz: float, average: str, errors: str, seed: int, seconds: float) -> list[Row]:
    """Each kind of phase of a training on the simulated card, folded from its eight lines."""
    options = SimOptions(
        rate_hz=rate_hz, shunt_adc=average, bus_adc="10bit", errors="none" if errors == "none" else "datasheet",
        seed=seed, training=training,
    )  # fmt: skip
    signals, load, begin_ns, end_ns = record(options, seconds)
    found = [p for p in load.waveform.phases(begin_ns, end_ns) if p[0] in NAMES]  # type: ignore[attr-defined]
    begin, end = (np.array([p[i] for p in found], np.int64) for i in (1, 2))
    kind = np.array([NAMES.index(p[0]) for p in found])
    folded = fold(signals, Phases(begin, end, kind, len(NAMES)))
    rows = []
    for k, (name, f) in enumerate(zip(NAMES, folded, strict=True)):
        spans = list(zip(begin[kind == k].tolist(), end[kind == k].tolist(), strict=True))
        time_s = sum(b - a for a, b in spans) * 1e-9
        exact_w = sum(load.energy_j(a, b) for a, b in spans) / time_s
        rows.append(Row(name, 1e3 * time_s / len(spans), f.per_s, exact_w, f.why))
    return rows


def print_sim(in_parallel: Callable[..., Iterator[list[Row]]], runs: int, seed: int, seconds: float) -> bool:
    """Each card and training: folded watts, U95 and exact watts. Whether 93 % of each rate are inside, but for scatter.

    Chips with errors are drawn ``runs`` times, exact ones once.
    """
    print(f"source sim, the sum of its eight lines, {seconds:.0f} s of virtual time each; mean W of a phase")
    print(f"{'scans/s':>7s}  {'chips':18s}{'phase (ms)':16s}{'folded':>8s}{'± U95':>8s}{'exact':>9s}")
    chips = [("none", seed), *(("datasheet", seed + i) for i in range(runs))]
    asked = [(t, *card, errors, number, seconds) for card in CARDS for errors, number in chips for t in TRAININGS]
    held: dict[float, list[tuple[int, int]]] = {rate: [] for rate, _ in CARDS}
    for (_, rate, average, errors, number, _), rows in zip(asked, in_parallel(judge, asked), strict=True):
        chip = f"{average}, {'exact' if errors == 'none' else f'seed {number}'}"
        for row in rows:
            text = f"{rate:7g}  {chip:18s}{f'{row.phase} {row.length_ms:.1f}':16s}"
            if row.folded is None:
                print(f"{text}  {row.why}", flush=True)
                continue
            inside = "inside" if row.is_inside else "OUTSIDE"
            watts = f"{row.folded.energy_j:8.2f}{row.folded.u95_j:8.2f}{row.exact_w:9.2f}"
            print(f"{text}{watts}  {inside}", flush=True)
        numbers = [row for row in rows if row.folded is not None]
        if numbers:
            held[rate].append((sum(row.is_inside for row in numbers), len(numbers)))
    is_good = True
    for rate, cards in held.items():
        inside, n = (sum(x) for x in zip(*cards, strict=True)) if cards else (0, 0)
        print(f"{rate:g} scans/s: {inside} of {n} numbers hold the exact joules within U95")
        is_good &= not n or inside / n >= LOW - scatter(inside / n, len(cards))
    return is_good
