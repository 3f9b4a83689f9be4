"""Joules of phases from the simulated sensor board against the exact joules of its load, at 500 scans a second, in real
time.

powerd, sampler, INA219 driver, stream, clock mapping, marks, recorder, run file and analytics are the real ones; only
the chips and their load are simulated, so the truth is known. Two kinds of phases: *aligned*, which begin and end where
the load steps, as a training's do, and *free*, which know nothing of the load. Chips have errors drawn within the data
sheet's limits, or none.

The aligned phases are those of a training whose power steps when a phase begins, so a mark that this script makes late
because the machine held it up has no counterpart in a training: phases with a mark more than 100 us late are left out
and counted.

Targets: for phases of 20 ms and longer the mean over 200 phases of a kind within 0.5 %, and each single phase inside
its stated 95 % uncertainty in at least 93 % of cases. They are asked of every row:
exact chips, chips with errors within the data sheet's limits, and the same calibrated as `powerd calibrate` does.
Uncalibrated limits (1 % each for current, voltage and shunt) leave a card of eight lines uncertain by 0.76 % (k = 2),
so that some draws of errors miss 0.5 %, and are reported as missing it. Beside each mean stands its stated U95, and at
the end what the draws of errors alone make of a steady power: what no analysis of uncalibrated readings can undo.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
from common import connected, powerd, progress
from trainings.case import Case

from powerd_analytics import phase_energies, read_run
from powerd_analytics.energy.uncertainty import MEAN_COLUMNS, average_of
from powerd_client import Meter
from powerd_client.host.hostclock import now_ns
from powerd_daemon.calibrate import calibrate_lines
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.sim.bus import VirtualClock
from powerd_daemon.sources.sim.source import SimOptions, SimSource
from powerd_daemon.sources.sim.waveforms import NOMINAL_V, SHARES, CardLoad, waveform_from_detail

LENGTHS_MS = (20.0, 50.0)
LATE_NS = 100_000
TARGET, INSIDE = 0.005, 0.93
DRAWS, STEADY_W = 1000, 150.0
SOURCE = """[[source]]
kind = "sim"
name = "rails"
rate_hz = 500.0
waveform = "{waveform}"
errors = "{errors}"
calibration = "{calibration}"
seed = {seed}
dwell_ms = 40.0
[source.training]
forward_ms = {length}
backward_ms = {length}
update_ms = {length}
idle_ms = 7.3
"""


def load_of(url: str) -> CardLoad:
    """The load as powerd describes it."""
    with connected(url) as link:
        return waveform_from_detail(link.description.streams[0].detail)


def calibrate(seed: int, directory: Path) -> str:
    """Calibrate the chips of a seed as `powerd calibrate` does, at zero and at a reference known to 0.1 %.

    Returns the calibration file. The simulated board is read in virtual time.
    """
    out, clock = directory / "calibration.toml", VirtualClock()
    given = {"reference_u": 0.001, "temperature_c": 23.0, "seconds": 1.0, "out": out, "url": None}
    with redirect_stdout(StringIO()):
        for watts, lines in ((0.0, [""]), (250.0, list(SHARES))):
            config = directory / "constant.toml"
            config.write_text(
                f'[[source]]\nkind = "sim"\nwaveform = "constant"\nidle_w = 0\npeak_w = {watts}\nseed = {seed}\n'
            )
            for line in lines:
                reference = f"{watts * SHARES[line]}W" if line else "0"
                chosen = [f"gpu0.{line}"] if line else []
                calibrate_lines(argparse.Namespace(file=config, reference=reference, line=chosen, **given), clock)
    return str(out)


def wait_for(t_ns: int) -> None:
    """Sleep, then spin, so that a mark is made within microseconds of its moment."""
    while (rest_ns := t_ns - now_ns()) > 0:
        if rest_ns > 3_000_000:
            time.sleep((rest_ns - 2_500_000) * 1e-9)


def aligned(load: CardLoad, phases: int) -> Iterator[tuple[str, int, int]]:
    """Phases as the load has them, from half a second from now."""
    waveform = load.waveform
    start = now_ns() + 500_000_000
    counts: dict[str, int] = {}
    for name, begin, end in waveform.phases(start, start + 3600 * 10**9):  # type: ignore[attr-defined]
        if name == "idle":
            continue
        counts[name] = counts.get(name, 0) + 1
        if counts[name] > phases:
            return
        yield name, begin, end


def free(length_ms: float, phases: int) -> Iterator[tuple[str, int, int]]:
    """Phases of one length with random pauses."""
    rng = random.Random(1)
    t = now_ns() + 500_000_000
    for _ in range(phases):
        end = t + round(length_ms * 1e6)
        yield "free", t, end
        t = end + round(rng.uniform(1, 15) * 1e6)


def of_draw(seed: int) -> float:
    """Relative error that the chips' drawn gains and zeros make of the card's joules at a steady power."""
    options = SimOptions(seed=seed)
    source = SimSource(options, Start("sim", 1, 0, VirtualClock()))
    _, detail = source.connect()
    source.close()
    error = 0.0
    for name, e in detail["drawn"].items():  # type: ignore[attr-defined]
        gain = (1 + e["current_gain"]) * (1 + e["bus_gain"]) * (1 + e["shunt_gain"]) - 1
        error += SHARES[name] * gain + e["offset_v"] / options.shunt_ohm * NOMINAL_V[name] / STEADY_W
    return error


def measure(
    folder: Path, kind: str, length_ms: float, chips: str, seed: int, phases: int
) -> list[tuple[str, float, float, float]]:
    """Name, relative error of the mean, its U95, and share of phases inside theirs, for each kind of phase."""
    source = SOURCE.format(
        waveform="training" if kind == "aligned" else "telegraph",
        errors="none" if chips == "exact" else "datasheet",
        calibration=calibrate(seed, folder) if chips == "calibrated" else "",
        seed=seed,
        length=length_ms,
    )
    out = folder / "run.h5"
    with powerd(source) as (url, _):
        load = load_of(url)
        with Meter(url, out, quiet=True, overwrite=True) as meter:
            plan = list(aligned(load, phases) if kind == "aligned" else free(length_ms, phases))
            for name, begin, end in plan:
                progress(f"{kind}, {length_ms:g} ms")
                wait_for(begin)
                meter.begin(name)
                wait_for(end)
                meter.end(name)
    run = read_run(out)
    columns = phase_energies(run, "gpu0")
    begins, ends = run.phases.begin_ns, run.phases.end_ns
    # powerd runs on this machine, so its clock is the host's and the load can be asked in host time.
    exact = np.array([load.energy_j(int(b), int(e)) for b, e in zip(begins, ends, strict=True)])
    names = np.array([run.phases.classes[i].name for i in run.phases.label], dtype=object)
    wanted = np.array([(begin, end) for _, begin, end in plan])
    marked = np.isin(names, [name for name, _, _ in plan])  # iterations around them were marked by nobody
    late = np.zeros(len(names), bool)
    late[marked] = np.max([begins[marked] - wanted[:, 0], ends[marked] - wanted[:, 1]], axis=0) > LATE_NS
    rows = []
    for name in dict.fromkeys(names[marked].tolist()):
        which = (names == name) & columns.resolvable & (~late if kind == "aligned" else True)
        left_out = int((names == name).sum() - which.sum())
        if not which.any():
            rows.append((f"{name}: none left", np.nan, np.nan, np.nan))
            continue
        inside = np.abs(columns.energy_j - exact)[which] <= columns.u95_j[which]
        mean = average_of(*(getattr(columns, column)[which] for column in MEAN_COLUMNS))
        error, u95 = mean.energy_j / exact[which].mean() - 1, mean.u95_j / mean.energy_j
        rows.append((f"{name} less {left_out}" if left_out else name, float(error), u95, float(inside.mean())))
    return rows


def judge(args: argparse.Namespace, folder: Path) -> bool:
    """Both kinds of phases at both lengths with all chips; whether every row is within both targets."""
    print(f"  {args.phases} phases of a kind, 500 scans/s")
    print(f"  {'load and phases':17} {'chips':12} seed  {'phase':16} error of the mean    U95  inside 95 % uncertainty")
    is_met = True
    rows = [
        (kind, length_ms, chips, seed)
        for kind in ("aligned", "free")
        for length_ms in LENGTHS_MS
        for chips in ("exact", "calibrated", "uncalibrated")
        for seed in args.seeds[: 1 if chips == "exact" else None]
    ]
    for kind, length_ms, chips, seed in rows:
        for name, mean, u95, inside in measure(folder, kind, length_ms, chips, seed, args.phases):
            # A kind of which no phase was marked in time (NaN) meets no target either.
            is_in_target = abs(mean) <= TARGET and inside >= INSIDE
            is_met &= is_in_target
            note = "" if is_in_target else "   <-- misses the target"
            where = f"{kind}, {length_ms:g} ms"
            print(f"  {where:17} {chips:12} {seed:4}  {name:16} {mean:+17.3%} {u95:6.2%}  {inside:6.1%}{note}")
    own = ", ".join(f"seed {seed} {of_draw(seed):+.2%}" for seed in args.seeds)
    drawn = np.abs([of_draw(seed) for seed in range(1, DRAWS + 1)])
    beyond, widest = np.mean(drawn > TARGET), np.quantile(drawn, 0.95)
    print(f"Drawn gains and zeros of uncalibrated chips alone, {STEADY_W:g} W steady: {own};")
    print(f"of {DRAWS} draws {beyond:.0%} are off by more than {TARGET:.1%}, 95 % by up to {widest:.2%}")
    return is_met


CASES = {"board": Case("phases on the simulated board", judge, {"phases": 200, "seeds": [1, 2]})}
