"""From a journal to a run file: one pass for what is small, one pass a stream for the readings.

Memory stays bounded by the number of frames (not readings).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import h5py

from powerd_client.account import Account, Part, clock_name
from powerd_client.contents import Contents, read_contents
from powerd_client.datasets import write_documents
from powerd_client.frames import StreamFrames
from powerd_client.processes import phases_of
from powerd_client.streams import write_stream
from powerd_client.tables import seal, write_clock, write_devices, write_gaps, write_head, write_phases
from powerd_client.wholefile import whole_file
from powerd_core.clock import ClockPiece, map_clock
from powerd_core.errors import ClockError, RunFileError
from powerd_core.model import CLOCK_NAME
from powerd_core.wire import HEADER_BYTES

Progress = Callable[[float], None]

_PHASES = 0.3
"""Of the time that writing takes, so much is for phases; in truth it depends on how many there are."""


def build_run(journal: Path, out: Path, *, overwrite: bool = False, progress: Progress = lambda share: None) -> None:
    """Turn a journal directory into the run file ``out`` and remove it.

    The caller owns the journal's lock. Raises `RunFileError` (disk full, file in the way, damaged journal) with the
    journal left as it was.
    """
    contents = read_contents(journal, progress=lambda share: progress(0.3 * share))
    try:
        with whole_file(out, overwrite=overwrite) as (file, raw):

            def written(share: float) -> None:
                raw.check()
                progress(0.3 + 0.7 * share)

            write_run(file, contents, journal / "journal.bin", written)
    except (OSError, RuntimeError) as error:
        if isinstance(error, RunFileError):
            raise
        raise RunFileError(
            f"{out} could not be written ({_reason(error)}): nothing is lost, "
            f"`joules info {out}` tries again from {journal}"
        ) from error
    shutil.rmtree(journal, ignore_errors=True)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def write_run(file: h5py.File, contents: Contents, journal_file: Path, progress: Progress) -> Account:
    """Write everything that a journal holds. What is small goes first: a file that is cut off later still has it."""
    clocks = _write_clocks(file, contents)
    groups = [[_part(contents, key, clocks) for key in keys] for keys in _streams(contents)]
    phases, kinds, processes = phases_of(contents, lambda share: progress(_PHASES * share))
    reached = [part.reach_ns for parts in groups for part in parts]
    last_ns = max([0, *(reach[1] for reach in reached if reach), *phases.end_ns])
    start_ns = contents.t_start_ns or min([last_ns, *phases.begin_ns])
    stop_ns = contents.t_stop_ns or max(last_ns, start_ns)
    if not contents.stopped:
        contents.note("warning", "the recorder ended before the run did: this file was built from its journal", last_ns)
    write_head(
        file,
        {
            **contents.run,
            "host_clock": CLOCK_NAME,
            "t_start_ns": start_ns,
            "t_stop_ns": stop_ns,
            "complete": int(contents.complete),
            "rebuilt": int(not contents.stopped),
            "reception": contents.reception,
        },
    )
    write_devices(file, list(contents.descriptions.values()))
    write_phases(file, phases, kinds)
    write_documents(file, "processes", processes)
    file.flush()
    account = Account(contents.note, start_ns, stop_ns)
    if not contents.stopped:
        account.ends = "the recorder ended before the run did"
    total, done = sum(f.size for f in contents.streams.values()) or 1, 0
    lines = file.create_group("lines")
    for parts in groups:
        write_stream(lines, parts, journal_file, account)
        done += sum(part.frames.size for part in parts)
        progress(_PHASES + (1 - _PHASES) * done / total)
    _note_undescribed(contents)
    write_gaps(file, account.gaps)
    write_documents(file, "parts", account.parts)
    write_documents(file, "messages", sorted(contents.messages, key=lambda m: m["t_ns"]))
    seal(file)
    return account


def _streams(contents: Contents) -> list[list[tuple[int, int]]]:
    """Which streams of which epochs are one: those of a source that have lines in common, each epoch at most once."""
    found: list[tuple[str, set[str], list[tuple[int, int]]]] = []
    for epoch, description in contents.descriptions.items():
        for stream in description.streams:
            names = {line.name for line in stream.lines}
            for source, known, keys in found:
                if source == stream.source and known & names and epoch not in {e for e, _ in keys}:
                    known.update(names)
                    keys.append((epoch, stream.number))
                    break
            else:
                found.append((stream.source, names, [(epoch, stream.number)]))
    return [keys for _, _, keys in found]


def _part(contents: Contents, key: tuple[int, int], clocks: dict[int, tuple[ClockPiece, ...]]) -> Part:
    epoch, number = key
    description = contents.descriptions[epoch]
    stream = next(s for s in description.streams if s.number == number)
    frames = contents.streams.get(key, StreamFrames())
    frames.keep_fitting(stream, HEADER_BYTES)
    return Part(description, stream, frames, clocks.get(epoch, ()))


def _write_clocks(file: h5py.File, contents: Contents) -> dict[int, tuple[ClockPiece, ...]]:
    group, found = file.create_group("clocks"), {}
    for epoch, description in contents.descriptions.items():
        exchanges = sorted(contents.exchanges.get(epoch, []), key=lambda e: e.t1_host_ns)
        try:
            pieces = found[epoch] = map_clock(exchanges)
        except ClockError as error:
            contents.note("error", f"readings of {description.board!r} have no place in time: {error}")
            continue
        for before in pieces[:-1]:
            t_ns = before.t_board_ns[-1] + round(before.offset_ns[-1])
            contents.note("warning", f"the clock of {description.board!r} stepped against the host's", t_ns)
        write_clock(group, clock_name(description), description.board, epoch, exchanges, pieces)
    contents.devices.map_all(contents.exchanges)
    for epoch, pieces in contents.devices.pieces.items():
        device = contents.devices.clocks[epoch]
        name = f"{device['name']} {device['index']}".replace("/", "_")
        write_clock(group, f"{name}-{epoch:016x}", name, epoch, contents.exchanges[epoch], pieces)
    return found


def _note_undescribed(contents: Contents) -> None:
    """Readings of epochs and streams that no description in the journal speaks of."""
    known = {(epoch, s.number) for epoch, d in contents.descriptions.items() for s in d.streams}
    for (epoch, number), frames in contents.streams.items():
        if (epoch, number) not in known and frames.places:
            scans = sum(place.scans for place in frames.places.values())
            text = (
                f"{len(frames.places)} blocks ({scans} scans) of stream {number} in epoch {epoch:016x} are left out: "
            )
            contents.note("error", text + "their description is lost")
