"""`powerd control history`: who held which device at which cap, when, and what it drew meanwhile, from the folder of
`powerd-accounting`."""

from __future__ import annotations

import argparse
import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from powerd_client.accounting.store import NAME
from powerd_core.errors import ConfigError
from powerd_core.text import printable

_COLUMNS = ("second", "device", "provenance", "lease", "cap_w", "energy_j", "time_s")
_GAP_S = 60
"""Seconds without a row that part two holdings; a powerd that was started anew parts none."""


@dataclass(frozen=True, slots=True)
class Held:
    """A stretch in which one holder held a device at one cap."""

    device: str
    holder: str
    cap_w: float | None
    """That the driver enforced; None where nobody tells."""
    begin_s: int
    """UTC since 1970."""
    end_s: int
    energy_j: float
    provenance: str


def history(folder: Path, since_s: int) -> list[Held]:
    """What was held from a second of UTC on, by device and time. Raises `ConfigError` for a folder that is none."""
    if not (folder / NAME).exists():
        raise ConfigError(f"{folder} has no {NAME}: it is no folder of powerd-accounting")
    rows = sorted([*_of_days(folder, since_s), *_of_today(folder, since_s)], key=lambda row: (row[1], row[2], row[0]))
    return list(_stretches(rows))


def _of_days(folder: Path, since_s: int) -> Iterator[tuple[Any, ...]]:
    """Of days that are over, from their Parquet files."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    first = datetime.fromtimestamp(since_s, UTC).date().isoformat()
    for file in sorted((folder / "seconds").glob("*.parquet")):
        if file.name[: len(first)] >= first:
            table = pq.read_table(file, columns=list(_COLUMNS), filters=pc.field("lease").is_valid())
            yield from zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True)


def _of_today(folder: Path, since_s: int) -> Iterator[tuple[Any, ...]]:
    """Of days whose rows are still in the database, which is only read."""
    try:
        rows = sqlite3.connect(f"{(folder / NAME).absolute().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error as error:
        raise ConfigError(f"{folder / NAME} cannot be read: {error}") from error
    try:
        query = f"SELECT {', '.join(_COLUMNS)} FROM seconds WHERE lease IS NOT NULL AND second >= ?"
        yield from rows.execute(query, (since_s,))
    except sqlite3.Error as error:
        raise ConfigError(f"{folder / NAME} cannot be read: {error}") from error
    finally:
        rows.close()


def _stretches(rows: Iterable[tuple[Any, ...]]) -> Iterator[Held]:
    held: Held | None = None
    for second, device, provenance, holder, cap_w, energy_j, _ in rows:
        key = (device, provenance, holder, cap_w)
        if held is not None and key == _key(held) and second - held.end_s <= _GAP_S:
            held = replace(held, end_s=second + 1, energy_j=held.energy_j + energy_j)
            continue
        if held is not None:
            yield held
        held = Held(device, holder, cap_w, second, second + 1, energy_j, provenance)
    if held is not None:
        yield held


def _key(held: Held) -> tuple[str, str, str, float | None]:
    return held.device, held.provenance, held.holder, held.cap_w


def run(arguments: argparse.Namespace) -> int:
    """Print it; status 0 also where nobody held anything."""
    try:
        since = datetime.fromisoformat(arguments.since).replace(tzinfo=UTC)
    except ValueError as error:
        raise ConfigError(f"--since {arguments.since}: write a day, as in 2026-11-01") from error
    every = history(arguments.folder, int(since.timestamp()))
    if arguments.format == "json":
        print(json.dumps([asdict(held) for held in every], indent=2))
        return 0
    if not every:
        print("nobody held anything")
    for held in every:
        cap = "no cap is told" if held.cap_w is None else f"{held.cap_w:g} W"
        begin, end = (datetime.fromtimestamp(s, UTC).strftime("%Y-%m-%d %H:%M:%S") for s in (held.begin_s, held.end_s))
        joules = f"{held.energy_j:.6g} J {held.provenance}"
        print(f"{held.device:<8}{begin} to {end[11:]}  {cap:<8}{joules:<26}{printable(held.holder)}")
    return 0
