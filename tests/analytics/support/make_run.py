"""Run files for tests, written straight from docs/reference/run-file.md, without the client or a daemon."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

MS = 1_000_000
S = 1_000_000_000

Power = Callable[[np.ndarray], np.ndarray]


def constant(t: np.ndarray) -> np.ndarray:
    """100 W at all times."""
    return np.full(len(t), 100.0)


@dataclass
class LineSpec:
    """A line with its codes; ``power`` gives watts at host times, and is stored as milliwatts."""

    name: str
    power: Power | None = None
    device: str = "gpu0"
    provenance: str = "simulated"
    period_ns: int = 2 * MS
    offset_ns: int = 0
    conversion: Mapping[str, Any] = field(
        default_factory=lambda: {"kind": "scaled", "column": "power_mw", "w_per_code": 0.001}
    )
    accuracy: Mapping[str, Any] = field(default_factory=dict)
    t_ns: np.ndarray | None = None
    codes: Mapping[str, np.ndarray] | None = None
    flags: np.ndarray | None = None
    description: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


def auxiliary(
    name: str, quantity: str, power: Power, per_code: float = 1e-3, period_ns: int = S, **more: Any
) -> LineSpec:
    """An auxiliary channel: ``power`` gives its values at host times, stored as codes of ``per_code``."""
    conversion = {"kind": "quantity", "column": "code", "quantity": quantity, "per_code": per_code}
    return LineSpec(name, power, period_ns=period_ns, conversion=conversion, **more)


@dataclass
class PhaseSpec:
    name: str
    begin_ns: int
    end_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    parent: int = -1
    cut: bool = False
    timing: str = "host"
    process: int = 0
    tokens: int = 0


def make_run(
    path: Path,
    lines: Sequence[LineSpec],
    phases: Sequence[PhaseSpec] = (),
    devices: Mapping[str, Sequence[str]] | None = None,
    begin_ns: int = 0,
    end_ns: int = S,
    bound_ns: float = 0.0,
    events: Sequence[tuple[int, str, Mapping[str, Any], int]] = (),
    processes: Sequence[Mapping[str, Any]] = ({"pid": 1},),
    **attributes: Any,
) -> Path:
    """Write a run file; ``devices`` maps names to feeds (all lines of power of a device without it). ``events`` are
    time, name, values and number of the process."""
    if devices is None:
        devices = {d: [] for d in dict.fromkeys(s.device for s in lines)}
        for s in lines:
            devices[s.device] += [s.name] if s.conversion["kind"] != "quantity" else []
    with h5py.File(path, "w") as f:
        f.attrs.update(
            {
                "format": "powerd-run",
                "format_version": 1,
                "run_id": "test",
                "created_utc": "2026-01-01T12:00:00Z",
                "powerd_version": "0.1.0",
                "host_clock": "CLOCK_MONOTONIC_RAW",
                "t_start_ns": begin_ns,
                "t_stop_ns": end_ns,
                "complete": 1,
                "rebuilt": 0,
                "command": json.dumps(["python", "train.py"]),
                "environment": json.dumps({"host": "box"}),
                **attributes,
            }
        )
        f.create_group("lines")
        for s in lines:
            _write_line(f, s, begin_ns, end_ns)
        f.create_group("devices")
        for name, feeds in devices.items():
            f.create_group(f"devices/{name}").attrs.update(
                {"feeds": np.array(list(feeds), dtype=h5py.string_dtype()), "description": ""}
            )
        _write_phases(f, phases)
        clock = f.create_group("clocks/board")
        clock.attrs.update({"board": "board", "epoch": 1, "drift_ppm": 0.0})
        clock["exchanges"] = np.zeros((2, 4), np.int64)
        clock["map"] = np.tile([0.0, -bound_ns, bound_ns], (2, 1))
        clock["map_t_board_ns"] = np.array([begin_ns, end_ns])
        clock["map_piece"] = np.zeros(2, np.int32)
        gaps = f.create_group("gaps")
        for name in ("begin_ns", "end_ns", "lost"):
            gaps[name] = np.zeros(0, np.int64)
        for name in ("stream", "lines", "cause"):
            gaps.create_dataset(name, (0,), h5py.string_dtype())
        f.create_dataset("processes", data=[json.dumps(p) for p in processes], dtype=h5py.string_dtype())
        if events:
            _write_events(f, events)
        f.create_dataset("messages", (0,), h5py.string_dtype())
    return path


def _write_events(f: h5py.File, events: Sequence[tuple[int, str, Mapping[str, Any], int]]) -> None:
    t_ns, names, values, processes = zip(*events, strict=True)
    g = f.create_group("events")
    g["t_ns"], g["process"] = np.array(t_ns, np.int64), np.array(processes, np.int32)
    g.create_dataset("name", data=list(names), dtype=h5py.string_dtype())
    g.create_dataset("values", data=[json.dumps(v) for v in values], dtype=h5py.string_dtype())


def _write_line(f: h5py.File, s: LineSpec, begin_ns: int, end_ns: int) -> None:
    t = s.t_ns if s.t_ns is not None else np.arange(begin_ns + s.offset_ns, end_ns + 1, s.period_ns, dtype=np.int64)
    codes = s.codes
    if codes is None:
        assert s.power is not None
        column, per_code = s.conversion["column"], s.conversion.get("per_code", 1e-3)
        codes = {column: np.round(s.power(t) / per_code).astype(np.int64)}
    g = f.create_group(f"lines/{s.name}")
    g.attrs.update(
        {
            "device": s.device,
            "source": "sim",
            "board": "board",
            "provenance": s.provenance,
            "quantity": "energy_j" if s.conversion["kind"] == "counter" else "power_w",
            "description": s.description,
            "period_ns": s.period_ns,
            "conversion": json.dumps(dict(s.conversion)),
            "accuracy": json.dumps(dict(s.accuracy)),
            "detail": json.dumps(dict(s.detail)),
            "clock": "board",
        }
    )
    g["t_board_ns"], g["t_ns"] = t, t
    g["flags"] = s.flags if s.flags is not None else np.zeros(len(t), np.uint16)
    for name, values in codes.items():
        g[name] = values


def _write_phases(f: h5py.File, phases: Sequence[PhaseSpec]) -> None:
    kinds: dict[str, int] = {}
    kind = [
        kinds.setdefault(json.dumps({"name": p.name, "attributes": dict(p.attributes), "timing": p.timing}), len(kinds))
        for p in phases
    ]
    g = f.create_group("phases")
    g["begin_ns"] = np.array([p.begin_ns for p in phases], np.int64)
    g["end_ns"] = np.array([p.end_ns for p in phases], np.int64)
    g["kind"] = np.array(kind, np.int32)
    g["parent"] = np.array([p.parent for p in phases], np.int64)
    g["process"] = np.array([p.process for p in phases], np.int32)
    g["cut"] = np.array([p.cut for p in phases], np.uint8)
    if any(p.tokens for p in phases):
        g["tokens"] = np.array([p.tokens for p in phases], np.int32)
    g.create_dataset("kinds", data=list(kinds), shape=(len(kinds),), dtype=h5py.string_dtype())


@dataclass
class Training:
    """Phases of trainings at several batch sizes, and the exact power of each moment."""

    phases: list[PhaseSpec]
    edges_ns: np.ndarray
    watts: np.ndarray
    """Power from each edge to the next."""
    end_ns: int

    def power(self, scale: float = 1.0) -> Power:
        def at(t: np.ndarray) -> np.ndarray:
            return scale * self.watts[np.searchsorted(self.edges_ns, t, "right") - 1]

        return at

    def joules(self, begin_ns: int, end_ns: int) -> float:
        """Exact energy of the stepwise power."""
        inner = self.edges_ns[(self.edges_ns > begin_ns) & (self.edges_ns < end_ns)]
        at = np.concatenate([[begin_ns], inner, [end_ns]])
        return float(np.sum(np.diff(at) * 1e-9 * self.power()(at[:-1])))


def training(
    batches: Sequence[int] = (64, 128, 256),
    iterations: int = 40,
    forward_ms: float = 21.3,
    backward_ms: float = 43.7,
    update_ms: float = 2.9,
    model: str = "AlexNet",
    watts: tuple[float, float, float, float] = (60.0, 180.0, 260.0, 110.0),
) -> Training:
    """Trainings one after the other, longer for larger batches; power steps at every edge (idle, f, b, u)."""
    phases: list[PhaseSpec] = []
    edges, power, t = [0], [watts[0]], 200 * MS
    for n, batch in enumerate(batches):
        grow = 1.0 + 0.8 * n
        outer = len(phases)
        attributes = {"model": model, "batch_size": batch, "operations_per_sample": 726.4e6}
        phases.append(PhaseSpec("training", t, t, attributes))
        for _ in range(iterations):
            it = len(phases)
            phases.append(PhaseSpec("iteration", t, t, {}, outer))
            for name, ms, level in zip(
                ("forward", "backward", "update"), (forward_ms, backward_ms, update_ms), watts[1:], strict=True
            ):
                length = int(ms * MS * (grow if name != "update" else 1))
                phases.append(PhaseSpec(name, t, t + length, {}, it))
                edges.append(t)
                power.append(level)
                t += length
            phases[it].end_ns = t
        phases[outer].end_ns = t
        edges.append(t)
        power.append(watts[0])
        t += 150 * MS
    return Training(phases, np.array(edges, np.int64), np.array(power), t)
