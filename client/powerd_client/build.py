"""From a journal to a run file: one pass for what is small, one pass a stream for the readings.

Memory stays bounded by the number of frames (not readings). The file appears under its name only when it is whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from glob import escape
from pathlib import Path
from typing import Any

import h5py

from powerd_client.contents import Contents, read_contents
from powerd_client.datasets import write_documents
from powerd_client.frames import StreamFrames
from powerd_client.gpus import each_once
from powerd_client.phases import Phases, kind_key, pair_marks
from powerd_client.steadyfile import SteadyFile, steady_hdf5
from powerd_client.streams import Account, Part, clock_name, write_stream
from powerd_client.tables import seal, write_clock, write_devices, write_gaps, write_head, write_phases
from powerd_core.clock import ClockPiece, map_clock
from powerd_core.errors import ClockError, RunFileError
from powerd_core.model import CLOCK_NAME
from powerd_core.wire import HEADER_BYTES

Progress = Callable[[float], None]

PROCESS_KEYS = ("pid", "command", "rank", "local_rank", "world_size")
"""What the run file says of a process, beside its devices."""


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


@contextlib.contextmanager
def whole_file(out: Path, *, overwrite: bool) -> Iterator[tuple[h5py.File, SteadyFile]]:
    """An HDF5 file under another name, which becomes ``out`` when it is written and on the disk, else nothing.

    Raises `RunFileError` for a file in the way, `OSError` for what cannot be written, and what h5py raises.
    """
    partial = out.with_name(f"{out.name}.{os.getpid()}.partial")
    try:
        with steady_hdf5(partial) as made:
            yield made
        _move(partial, out, overwrite)
    finally:
        partial.unlink(missing_ok=True)


def _move(partial: Path, out: Path, overwrite: bool) -> None:
    if overwrite:
        partial.replace(out)
        return
    try:
        os.link(partial, out)  # unlike a rename, refuses to replace a file that appeared meanwhile
    except FileExistsError:
        raise RunFileError(
            f"{out} appeared while it was being recorded: move it away and run `joules info {out}`"
        ) from None
    except OSError:
        if out.exists():
            raise
        partial.replace(out)


def write_run(file: h5py.File, contents: Contents, journal_file: Path, progress: Progress) -> Account:
    """Write everything that a journal holds. What is small goes first: a file that is cut off later still has it."""
    clocks = _write_clocks(file, contents)
    groups = [[_part(contents, key, clocks) for key in keys] for keys in _streams(contents)]
    phases, kinds, processes = _phases(contents)
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
        progress(done / total)
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


def _phases(contents: Contents) -> tuple[Phases, list[dict[str, Any]], list[dict[str, Any]]]:
    phases, kinds, processes = Phases(), dict[str, tuple[int, dict[str, Any]]](), []
    for token in sorted({*contents.names, *contents.marks}):
        own: dict[int, int] = {}
        names: dict[int, str] = {}
        cuts: dict[int, int] = {}
        timings: dict[int, str] = {}
        notes: dict[tuple[int, str], str] = {}
        """By what tells them apart: the journal and the names' file may both hold one."""
        process: dict[str, Any] = {}
        devices: list[dict[str, Any]] = contents.devices.devices_of(token)
        closed = False
        for document in contents.names.get(token, []):
            if "note" in document:
                notes[document["t_ns"], document["note"]] = document["level"]
            elif "closed" in document:
                closed = True
            elif "devices" in document:
                devices += [d for d in document["devices"] if isinstance(d, dict)]
            elif "cuts" in document:
                cuts[document["kind"]] = document["cuts"]
                timings[document["kind"]] = timings.get(document["cuts"], "")
            elif "kind" in document:
                entry = {key: document[key] for key in ("name", "attributes", "timing")}
                own[document["kind"]] = kinds.setdefault(kind_key(entry), (len(kinds), entry))[0]
                names[document["kind"]], timings[document["kind"]] = entry["name"], entry["timing"]
            elif not process:
                process = {key: document[key] for key in PROCESS_KEYS if key in document}
        for (t_ns, text), level in notes.items():
            contents.note(level, text, t_ns)
        if known := each_once(devices):
            process["devices"] = known
        if "rank" in process and not closed:
            text = f"rank {process['rank']} (process {process.get('pid')}) ended without closing its Meter"
            contents.note("warning", text, contents.t_stop_ns)
        processes.append(process)
        pair_marks(
            phases,
            contents.devices.marks(token, contents.marks.get(token, {}), timings),
            process=len(processes) - 1,
            kinds=own,
            names=names,
            last_ns=contents.t_stop_ns if contents.complete else None,
            cuts=cuts,
        )
    if contents.devices.unresolved:
        text = f"{contents.devices.unresolved} edges of phases timed by a device have the host's time only"
        contents.note("warning", text)
    phases.sort()
    for t_ns, text in phases.problems:
        contents.note("warning", text, t_ns)
    return phases, [entry for _, entry in kinds.values()], processes


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


def remove_partials(out: Path) -> None:
    """Delete what a killed conversion of ``out`` left. The caller owns the journal's lock."""
    for leftover in out.parent.glob(f"{escape(out.name)}.*.partial"):
        with contextlib.suppress(OSError):
            leftover.unlink()
