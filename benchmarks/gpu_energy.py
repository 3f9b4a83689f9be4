"""What a run of powerd says of a training: which phases have joules, how long they took, and its sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gpu_training import PHASES
from gpu_zeus import Reading

from powerd_analytics import read_run
from powerd_analytics.energy.devices import Part, PhaseColumns, interval_energies, load_parts, part_phase_energies
from powerd_analytics.energy.rest import rest_energy_j
from powerd_analytics.runs.phases import Phases
from powerd_analytics.tables.table import RESOLVABLE_SHARE
from powerd_analytics.tables.totals import select


def account(path: Path, first: Reading | None, last: Reading | None) -> dict[str, Any]:
    """Figures of one training's run file: its phases by name, and phases + rest between two readings of the counter.

    Iterations are those of the mode ``energy``, which lie between the readings; durations are of the mode ``phases``.
    """
    run = read_run(path)
    parts = load_parts(run)
    part = next((p for p in parts if p.device.startswith("gpu")), parts[0])
    columns = part_phase_energies(run, part)
    p = run.phases
    modes = np.array([p.classes[label].attributes.get("mode", "") for label in p.label])
    names = np.array([p.classes[label].name for label in p.label])
    marked = (modes == "phases") & ~p.cut
    stretch = (modes == "energy") & ~p.cut
    found: dict[str, Any] = {
        "device": part.device,
        "provenance": part.provenance,
        "timing": sorted({c.timing for c in p.classes}),
        "phases": {
            name: _phase(columns, stretch & (names == name), marked & (names == name))
            for name in ("iteration", *PHASES)
        },
        "layer_phases": int(((modes == "layers") & (names != "training")).sum()),
        "host_only": [m["text"] for m in run.messages if "host's time only" in str(m.get("text", ""))],
        "warnings": [m["text"] for m in run.messages if m.get("level") in ("warning", "error")],
        "clocks": _clocks(run.clocks),
    }
    if first is not None and last is not None:
        found |= _sums(part, columns, p, stretch & (names == "iteration"), first, last)
    return found


def _phase(columns: PhaseColumns, of_energy: np.ndarray, of_time: np.ndarray) -> dict[str, Any]:
    """Phases of one name: how many have joules, and their mean duration."""
    count, resolved = int(of_energy.sum()), int((of_energy & columns.resolvable).sum())
    has_mean = bool(count) and resolved >= RESOLVABLE_SHARE * count
    used = of_energy & columns.resolvable
    return {
        "count": count,
        "resolvable": resolved,
        "j": float(columns.energy_j[used].mean()) if has_mean else None,
        "ms": float(np.median(columns.duration_s[of_time]) * 1e3) if of_time.any() else None,
    }


def _sums(
    part: Part, columns: PhaseColumns, p: Phases, chosen: np.ndarray, first: Reading, last: Reading
) -> dict[str, Any]:
    """Phases + rest between two moments at which the counter was renewed, against what it counted between them."""
    begin, end = np.array([first.t_host_ns]), np.array([last.t_host_ns])
    none = np.zeros(1, np.int64)
    whole = interval_energies(part, begin, end, none, none)
    chosen = chosen & columns.resolvable & (p.begin_ns >= begin[0]) & (p.end_ns <= end[0])
    counted_j = last.energy_j - first.energy_j
    found = {
        "stretch_s": float(end[0] - begin[0]) * 1e-9,
        "counter_j": counted_j,
        "counter_edges_ms": (first.half_ns + last.half_ns) * 1e-6,
        "integral_j": float(whole.linear_j[0]),
        "u95_j": float(2 * np.hypot(whole.u_random_j[0], whole.u_systematic_j[0])),
        "missing_s": float(whole.missing_s[0]),
        "phases_j": None,
        "rest_j": None,
        "sum_per_counter": None,
    }
    if chosen.any():
        cover = p.begin_ns[chosen], p.end_ns[chosen]
        phases_j = float(columns.energy_j[chosen].sum())
        rest_j = rest_energy_j(part, (begin, end), cover, select(columns, chosen))
        found |= {"phases_j": phases_j, "rest_j": rest_j, "sum_per_counter": (phases_j + rest_j) / counted_j}
    return found


def _clocks(clocks: Any) -> dict[str, Any]:
    """Bounds of each clock at its exchanges, in microseconds."""
    return {
        name: {"median_us": float(np.median(c.half_width_ns)) / 1e3, "largest_us": float(c.half_width_ns.max()) / 1e3}
        for name, c in clocks.items()
        if len(c.half_width_ns)
    }
