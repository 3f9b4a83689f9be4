"""The datasets of a stream's lines in a run file: made, and readings appended to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_client.account import Note, Part
from powerd_client.datasets import clean, make_dataset, own_name
from powerd_client.fileshape import FARTHEST_NS
from powerd_client.hosttime import have_host_time, pieces_of, to_host_ns
from powerd_core.clock import ClockPiece
from powerd_core.model import Flag, Stream
from powerd_core.serde import to_document

Int64 = NDArray[np.int64]


def open_lines(lines: h5py.Group, part: Part, note: Note, *, apart: bool) -> list[h5py.Group]:
    """The groups of a part's lines, made where they are not there yet. ``apart``: its readings lie in the time of those
    that are there, and come beside them.
    """
    return [_group(lines, part, index, note, apart=apart) for index in range(len(part.stream.lines))]


def _group(lines: h5py.Group, part: Part, index: int, note: Note, *, apart: bool) -> h5py.Group:
    description, stream, line = part.description, part.stream, part.stream.lines[index]
    conversion = json.dumps(to_document(line.conversion))
    name = own_name(line.name)
    if name in lines and (apart or lines[name].attrs["conversion"] != conversion):
        why = "is there twice at a time" if apart else "came back with other settings"
        name = f"{name}@{description.epoch:016x}"
        note("warning", f"{line.name} {why}: readings of {description.board} are in {name}", 0)
    if name not in lines:
        group = lines.create_group(name)
        group.attrs.update(
            {
                "device": own_name(line.device),
                "source": clean(stream.source),
                "board": clean(description.board),
                "provenance": line.provenance.value,
                "quantity": clean(line.quantity),
                "description": clean(line.description),
                "period_ns": stream.period_ns,
                "conversion": conversion,
                "accuracy": json.dumps(to_document(line.accuracy)),
                "detail": json.dumps(to_document(stream.detail)),
                "clock": part.clock,
            }
        )
        for column, dtype, units in (
            ("t_board_ns", "i8", "ns"),
            ("t_ns", "i8", "ns"),
            ("flags", "u2", "bits"),
            *((c.name, c.typecode, "raw code") for c in stream.columns),
        ):
            make_dataset(group, column, dtype, units)
    else:
        group = lines[name]
    clocks, first = list(group.attrs.get("clocks", [])), list(group.attrs.get("clock_first", []))
    group.attrs["clocks"] = [*clocks, part.clock]
    group.attrs["clock_first"] = [*first, group["t_ns"].shape[0]]
    return group


def append_readings(
    groups: Sequence[h5py.Group], stream: Stream, arrays: dict[str, NDArray[Any]], pieces: Sequence[ClockPiece]
) -> Int64:
    """Append readings to the lines' datasets. Returns how many scans have no known time, by the piece before them."""
    t_board = arrays["t_ns"][:, np.newaxis] + arrays["dt_ns"]
    # A block's header may be right and a time in it no time at all.
    sound = (t_board >= -FARTHEST_NS) & (t_board <= FARTHEST_NS)
    t_board = np.clip(t_board, -FARTHEST_NS, FARTHEST_NS)
    known = sound & have_host_time(t_board.ravel(), pieces).reshape(t_board.shape)
    t_host = np.clip(to_host_ns(t_board.ravel(), pieces), -FARTHEST_NS, FARTHEST_NS).reshape(t_board.shape)
    # The codes stay; a reading at no known time is a value for nobody.
    flags = np.where(known, arrays["flags"], arrays["flags"] | np.uint16(Flag.MISSING))
    table = {"t_board_ns": t_board, "t_ns": t_host, "flags": flags}
    table |= {c.name: arrays[c.name] for c in stream.columns}
    for index, group in enumerate(groups):
        for name, column in table.items():
            dataset = group[name]
            start = dataset.shape[0]
            dataset.resize((start + len(column),))
            dataset[start:] = column[:, index]
    return np.bincount(pieces_of(arrays["t_ns"][~known.all(axis=1)], pieces), minlength=len(pieces))
