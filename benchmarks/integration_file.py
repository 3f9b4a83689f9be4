"""Run files of any length for `bench_integration.py`, written in seconds: what repeats is compressed once."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
from common import progress

PERIOD_NS = 2_000_000
CHUNK = 1 << 18

Shape = Literal["training", "layers", "gaps"]
"""How the phases lie: all within one training; the layers of one forward pass; or outermost, a gap after each."""
GAP_SHARE = 0.2
"""Of each phase's time, where there are gaps."""


def phases_of(n: int, m: int) -> np.ndarray:
    """Edges [m + 1] of m phases back to back, their durations within 10 %, over n readings."""
    rng = np.random.default_rng(1)
    lengths = 1 + 0.1 * (rng.random(m) - 0.5)
    edges = np.concatenate([[0.0], np.cumsum(lengths)])
    return (edges * ((n - 1) * PERIOD_NS / edges[-1])).astype(np.int64)


def make_file(path: Path, n: int, m: int, shape: Shape = "training") -> None:
    """A run file with a line of power, and one of a clock with a tenth of its readings. What repeats from chunk to
    chunk is compressed once."""
    import h5py

    edges = phases_of(n, m)
    with h5py.File(path, "w", libver=("v110", "v110")) as f:
        f.attrs.update(
            {
                "format": "powerd-run", "format_version": 1, "run_id": "bench", "created_utc": "", "powerd_version": "",
                "host_clock": "CLOCK_MONOTONIC_RAW", "t_start_ns": 0, "t_stop_ns": n * PERIOD_NS, "complete": 1,
                "rebuilt": 0, "command": "[]", "environment": "{}",
            }
        )  # fmt: skip
        at = np.arange(CHUNK)
        power = {"kind": "scaled", "column": "power_mw", "w_per_code": 0.01}
        codes = (15_000 + 10_000 * ((at // 37) % 2) + 100 * (at % 11)).astype(np.uint16)
        write_line(f, "gpu0.sim", n, PERIOD_NS, "power_w", power, codes)
        clock = {"kind": "quantity", "column": "mhz", "quantity": "clock_hz", "per_code": 1e6}
        write_line(f, "gpu0.sm_clock", n // 10, 10 * PERIOD_NS, "clock_hz", clock, (1400 + at % 40).astype(np.uint16))
        f.create_group("devices/gpu0").attrs.update({"feeds": np.array(["gpu0.sim"], object), "description": ""})
        write_phases(f, edges, shape)
        f.create_group("clocks")
        gaps = f.create_group("gaps")
        for name in ("begin_ns", "end_ns", "lost"):
            gaps[name] = np.zeros(0, np.int64)
        for name in ("stream", "lines", "cause"):
            gaps.create_dataset(name, (0,), h5py.string_dtype())
        f.create_dataset("processes", data=['{"pid": 1}'], dtype=h5py.string_dtype())
        f.create_dataset("messages", (0,), h5py.string_dtype())


def write_line(
    f: object, name: str, n: int, period_ns: int, quantity: str, conversion: dict[str, object], codes: np.ndarray
) -> None:
    """A line whose codes repeat from chunk to chunk; no two of its times are as far apart as the next."""
    line = f.create_group(f"lines/{name}")
    line.attrs.update(
        {
            "device": "gpu0", "source": "sim", "board": "b", "provenance": "simulated", "quantity": quantity,
            "description": "", "period_ns": period_ns, "detail": "{}", "clock": "",
            "conversion": json.dumps(conversion),
            "accuracy": json.dumps({"window_ns": 1_060_000, "centre_ns": 100_000}),
        }
    )  # fmt: skip
    repeated(line, str(conversion["column"]), n, codes)
    repeated(line, "flags", n, np.zeros(CHUNK, np.uint16))
    repeated(line, "t_board_ns", n, np.zeros(CHUNK, np.int64))
    t_ns = line.create_dataset("t_ns", (n,), np.int64, chunks=(min(CHUNK, n),))
    jitter = np.random.default_rng(0).integers(-50_000, 50_000, CHUNK)
    for i in range(0, n, CHUNK):
        k = min(CHUNK, n - i)
        t_ns[i : i + k] = np.arange(i, i + k, dtype=np.int64) * period_ns + jitter[:k]
        progress(f"writing {i / n:.0%} of {n:.0e} readings")


def repeated(group: object, name: str, n: int, chunk: np.ndarray) -> None:
    """A dataset in which the same chunk comes again and again."""
    chunk = chunk[:n]
    made = group.create_dataset(name, (n,), chunk.dtype, chunks=(len(chunk),), compression="gzip", compression_opts=1)
    packed = zlib.compress(chunk.tobytes(), 1)
    for i in range(0, n, CHUNK):
        made.id.write_direct_chunk((i,), packed)


def write_phases(f: object, edges: np.ndarray, shape: Shape) -> None:
    """Forward, backward, update in turn, or three layers; one phase around all but where there are gaps."""
    import h5py

    m = len(edges) - 1
    g = f.create_group("phases")
    gap_ns = (np.diff(edges) * GAP_SHARE).astype(np.int64) if shape == "gaps" else 0
    columns = {
        "begin_ns": np.concatenate([edges[:1], edges[:-1]]),
        "end_ns": np.concatenate([edges[-1:], edges[1:] - gap_ns]),
        "kind": np.concatenate([[0], 1 + np.arange(m) % 3]).astype(np.int32),
        "parent": np.concatenate([[-1], np.full(m, -1 if shape == "gaps" else 0, np.int64)]),
        "process": np.zeros(m + 1, np.int32),
        "cut": np.zeros(m + 1, np.uint8),
    }
    around = 1 if shape == "gaps" else 0
    for name, values in columns.items():
        kept = values[around:]
        g.create_dataset(name, data=kept, chunks=(min(CHUNK, len(kept)),), compression="gzip", compression_opts=1)
    is_layers = shape == "layers"
    outer = "forward" if is_layers else "training"
    kinds = [(outer, {}), *((("layer", {"layer": k}) if is_layers else (k, {})) for k in ("f", "b", "u"))]
    documents = [json.dumps({"name": name, "attributes": a, "timing": "host"}) for name, a in kinds]
    g.create_dataset("kinds", data=documents, dtype=h5py.string_dtype())
