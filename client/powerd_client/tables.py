"""The small tables of a run file: clocks, devices, phases, gaps, and what its attributes say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np

from powerd_client.datasets import (
    DIGEST,
    clean,
    copy_attributes,
    digest,
    own_name,
    write_documents,
    write_numbers,
    write_strings,
)
from powerd_client.fileshape import check_times
from powerd_client.phases import Phases
from powerd_core.clock import ClockPiece
from powerd_core.model import ClockExchange, Description

FORMAT = "powerd-run"
FORMAT_VERSION = 1

MOST_DRIFT_PPM = 1e6
"""A clock that runs away faster is none."""
PHASE_COLUMNS = (
    ("begin_ns", np.int64, "ns"),
    ("end_ns", np.int64, "ns"),
    ("kind", np.int32, "1"),
    ("parent", np.int64, "1"),
    ("process", np.int32, "1"),
    ("cut", np.uint8, "1"),
)
BOUND_COLUMNS = ("begin_bound_ns", "end_bound_ns")
"""How far the edges of phases can be from their times; files of earlier releases lack them."""
GAP_NUMBERS = (("begin_ns", "ns"), ("end_ns", "ns"), ("lost", "1"), ("numbers", "1"))
GAP_TEXTS = ("stream", "cause", "clock")
_NO_LIMIT = np.iinfo(np.int64)


def write_clock(
    group: h5py.Group,
    name: str,
    board: str,
    epoch: int,
    exchanges: Sequence[ClockExchange],
    pieces: Sequence[ClockPiece],
) -> None:
    """One board's clock in one epoch: its exchanges, and the mapping that was made of them."""
    clock = group.create_group(name)
    clock.attrs.update({"board": clean(board), "epoch": str(epoch), "drift_ppm": pieces[0].drift_ppm})
    rows = [[e.t1_host_ns, e.t2_board_ns, e.t3_board_ns, e.t4_host_ns] for e in exchanges]
    write_numbers(clock, "exchanges", np.array(rows, np.int64).reshape(-1, 4), "ns")
    bounds = [np.column_stack([p.offset_ns, p.low_ns, p.high_ns]) for p in pieces]
    write_numbers(clock, "map", np.concatenate(bounds), "ns")
    write_numbers(clock, "map_t_board_ns", np.concatenate([np.array(p.t_board_ns, np.int64) for p in pieces]), "ns")
    numbers = np.repeat(np.arange(len(pieces), dtype=np.int32), [len(p.t_board_ns) for p in pieces])
    write_numbers(clock, "map_piece", numbers, "1")
    write_numbers(clock, "piece_rates", np.array([p.rates for p in pieces], np.float64), "1")
    limits = [
        (_NO_LIMIT.min if p.begin_ns is None else p.begin_ns, _NO_LIMIT.max if p.end_ns is None else p.end_ns)
        for p in pieces
    ]
    write_numbers(clock, "piece_limits_ns", np.array(limits, np.int64), "ns")


def read_pieces(clock: h5py.Group, drift_ppm: float | None = None) -> tuple[ClockPiece, ...]:
    """The mapping as `write_clock` was given it. Raises KeyError or ValueError for what is no mapping."""
    t, bounds, which = clock["map_t_board_ns"][:], clock["map"][:], clock["map_piece"][:]
    rates, limits = clock["piece_rates"][:], clock["piece_limits_ns"][:]
    drift, found = float(clock.attrs["drift_ppm"]) if drift_ppm is None else drift_ppm, []
    check_times(t, "a clock exchange")
    if not (0 <= drift < MOST_DRIFT_PPM and np.isfinite(bounds).all() and np.isfinite(rates).all()):
        raise ValueError("the mapping holds numbers that are none")
    if np.any(np.diff(which) < 0) or set(np.unique(which).tolist()) != set(range(len(rates))):
        raise ValueError("the pieces of the mapping are not in order")
    for number, ((before, after), (begin, end)) in enumerate(zip(rates.tolist(), limits.tolist(), strict=True)):
        inside = which == number
        offset, low, high = (tuple(column.tolist()) for column in bounds[inside].T)
        found.append(
            ClockPiece(
                tuple(t[inside].tolist()),
                offset,
                low,
                high,
                drift,
                (before, after),
                None if begin == _NO_LIMIT.min else begin,
                None if end == _NO_LIMIT.max else end,
            )
        )
    return tuple(found)


def write_phases(file: h5py.File, phases: Phases, kinds: Sequence[dict[str, Any]]) -> None:
    """The phases and their kinds."""
    group = file.create_group("phases")
    for name, dtype, units in PHASE_COLUMNS:
        write_numbers(group, name, np.array(getattr(phases, name), dtype), units)
    for name in BOUND_COLUMNS:
        write_numbers(group, name, np.array(getattr(phases, name), np.int64), "ns")
    write_documents(group, "kinds", kinds)


def write_devices(file: h5py.File, descriptions: Sequence[Description]) -> None:
    """Every device once, as the board that named it first describes it."""
    group = file.create_group("devices")
    for description in descriptions:
        for device in description.devices:
            if own_name(device.name) not in group:
                feeds = [own_name(name) for name in device.feeds]
                write_device(group, device.name, feeds, device.description, device.uuid, device.pci)


def write_device(
    group: h5py.Group, name: str, feeds: Sequence[str], description: str, uuid: str = "", pci: str = ""
) -> None:
    """One device, the lines that feed it, and which GPU it is where that is known."""
    entry = group.create_group(own_name(name))
    # Said in full: of an empty list nothing would tell that its elements are texts.
    entry.attrs["feeds"] = np.array(feeds, h5py.string_dtype())
    entry.attrs["description"] = clean(description)
    for key, value in (("uuid", uuid), ("pci", pci)):
        if value:
            entry.attrs[key] = clean(value)


def write_gaps(file: h5py.File, gaps: Sequence[dict[str, Any]]) -> None:
    """What is missing, in the order of its beginnings."""
    group = file.create_group("gaps")
    ordered = sorted(gaps, key=lambda g: (g["begin_ns"], g["end_ns"]))
    for name, units in GAP_NUMBERS:
        write_numbers(group, name, np.array([g[name] for g in ordered], np.int64), units)
    for name in GAP_TEXTS:
        write_strings(group, name, [g[name] for g in ordered])
    write_documents(group, "lines", [g["lines"] for g in ordered])


def write_head(file: h5py.File, attributes: dict[str, Any]) -> None:
    """The attributes of the run; lists and objects as JSON."""
    made = {
        name: json.dumps(value) if isinstance(value, list | dict) else clean(value) if isinstance(value, str) else value
        for name, value in attributes.items()
    }
    file.attrs.update({"format": FORMAT, "format_version": FORMAT_VERSION, **made})


def seal(file: h5py.File) -> None:
    """The last thing that is written: a copy of the attributes, and the digest of what no chunk's checksum covers."""
    copy_attributes(file)
    file.attrs[DIGEST] = digest(file)
