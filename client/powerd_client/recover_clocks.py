"""Clocks of a damaged run file: their exchanges, and mappings that are whole or made anew."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import h5py

from powerd_client import recover_rows
from powerd_client.recover_lines import Clocks
from powerd_client.recover_rows import BROKEN, members
from powerd_client.tables import read_pieces, write_clock
from powerd_core.clock import ClockPiece, map_clock
from powerd_core.errors import PowerdError
from powerd_core.model import ClockExchange

_MAP = ("map", "map_t_board_ns", "map_piece")
_PIECES = ("piece_rates", "piece_limits_ns")


def recover_clocks(group: h5py.Group | None, file: h5py.File, copied: recover_rows.Copies, lost: list[str]) -> Clocks:
    """Write what is left of the clocks into ``file``; the mappings, and which of them were made anew, by name."""
    out, found = file.create_group("clocks"), Clocks()
    for name, clock in members(group, lost).items():
        try:
            found[name] = _recover_clock(out, name, clock, copied, lost)
        except (*BROKEN, PowerdError) as error:
            lost.append(f"clock {name!r}: its readings cannot be given times anew ({error})")
    return found


def _recover_clock(
    out: h5py.Group, name: str, clock: h5py.Group, copied: recover_rows.Copies, lost: list[str]
) -> tuple[Any, bool]:
    head: dict[str, Any] = {"board": "", "epoch": "0", "drift_ppm": 100.0} | recover_rows.attributes(
        clock, ("board", "epoch", "drift_ppm"), copied
    )
    inside = members(clock, lost)
    rows, good, claimed = recover_rows.table(inside, ("exchanges",))
    kept = rows["exchanges"][good].tolist() if rows else []
    exchanges = [ClockExchange(int(str(head["epoch"])), *row) for row in kept]
    if len(exchanges) < claimed:
        lost.append(f"{claimed - len(exchanges)} of {claimed} exchanges with clock {name!r}")
    pieces: tuple[ClockPiece, ...] = ()
    if all(_is_whole(inside, names) for names in (_MAP, _PIECES)):
        with suppress(*BROKEN):
            pieces = read_pieces(clock, float(head["drift_ppm"]))
    is_new = not pieces
    if is_new:
        lost.append(f"the mapping of clock {name!r}, which was made anew from {len(exchanges)} exchanges")
        pieces = map_clock(exchanges)
    write_clock(out, name, str(head["board"]), int(str(head["epoch"])), exchanges, pieces)
    return pieces, is_new


def _is_whole(group: dict[str, Any], names: tuple[str, ...]) -> bool:
    _, good, claimed = recover_rows.table(group, names)
    return claimed > 0 and int(good.sum()) == claimed
