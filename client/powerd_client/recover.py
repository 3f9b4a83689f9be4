"""`joules recover`: a run file out of what is left of a journal or a damaged file. The original is never touched."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import h5py
import numpy as np

from powerd_client import journal as journals
from powerd_client.build import write_run
from powerd_client.contents import Contents, read_contents
from powerd_client.fileshape import read_objects
from powerd_client.frames import StreamFrames
from powerd_client.recover_file import FileRecovery
from powerd_client.replaceable import check_replaceable
from powerd_client.runfile import open_run, reading
from powerd_client.wholefile import whole_file
from powerd_core.errors import RunFileError
from powerd_core.model import BAD, Description, Stream
from powerd_core.wire import HEADER_BYTES

Progress = Callable[[float, str], None]
_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Report:
    """What was made of what: plain lines of text for people."""

    source: Path
    out: Path
    recovered: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def recover(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    progress: Progress = lambda share, text: None,
) -> Report:
    """Save what can be read of a run into a new file (``RUN.recovered.h5`` without ``out``).

    ``path`` is a damaged run file, a journal directory, or the name of a run of which only the journal is there.
    Raises `RunFileError` when there is nothing to recover, or the new file cannot be written.
    """
    source, run = _source(Path(path))
    target = Path(out) if out is not None else run.with_name(f"{run.stem}.recovered{run.suffix or '.h5'}")
    if target.absolute() == run.absolute() or (target.exists() and target.samefile(source)):
        raise RunFileError(f"{target} is the run that is to be recovered: write to another file with -o")
    check_replaceable(target)
    if target.exists() and not overwrite:
        raise RunFileError(f"{target} exists: choose another name with -o, or replace it with --overwrite")
    lost: list[str] = []
    try:
        with whole_file(target, overwrite=overwrite) as (file, _):
            if source.is_dir():
                lost = _from_journal(source, file, progress)
            else:
                recovery = FileRecovery(source, file, progress)
                with reading(source):
                    recovery.run()
                lost = recovery.lost
    except (OSError, RuntimeError) as error:
        if isinstance(error, RunFileError):
            raise
        raise RunFileError(f"{target} could not be written ({getattr(error, 'strerror', None) or error})") from error
    with open_run(target) as file, reading(target):
        return Report(source, target, _recovered(file), lost)


def _source(path: Path) -> tuple[Path, Path]:
    """What is recovered, and the run file that it is or was to be."""
    if path.is_dir():
        if not (path / "journal.bin").exists():
            raise RunFileError(f"{path} is a directory, but no journal: it holds no journal.bin")
        run = journals.run_of(path)
        journal = path
    else:
        run, journal = path, journals.journal_path(path)
    if path.is_file():
        return path, path
    if not journal.is_dir():
        raise RunFileError(f"there is no run file {run}, and no journal {journal.name} beside it")
    if journals.is_locked(journal):
        raise RunFileError(f"{run} is still being recorded: recover it when its run has ended")
    return journal, run


def _from_journal(journal: Path, file: h5py.File, progress: Progress) -> list[str]:
    reading_it = "reading the journal"
    contents = read_contents(journal, needs_run=False, progress=lambda share: progress(0.4 * share, reading_it))
    _borrow_descriptions(contents)
    write_run(file, contents, journal / "journal.bin", lambda share: progress(0.4 + 0.6 * share, "writing the run"))
    lost = [m["text"] for m in contents.messages if m["level"] in ("warning", "error")]
    if contents.damaged:
        share = contents.damaged / max(contents.size, 1)
        lost.append(f"{contents.damaged} of {contents.size} bytes of the journal ({share:.2%}) could not be read")
    return lost


def _borrow_descriptions(contents: Contents) -> None:
    """Where an epoch's own description is lost, another one of a stream with the same number and layout may serve."""
    known = dict(contents.descriptions)
    undescribed: dict[int, dict[int, StreamFrames]] = {}
    for (epoch, number), frames in contents.streams.items():
        if epoch not in known and frames.places:
            undescribed.setdefault(epoch, {})[number] = frames
    for epoch, streams in undescribed.items():
        for description in known.values():
            if all(_fits(description, number, frames) for number, frames in streams.items()):
                contents.descriptions[epoch] = replace(description, epoch=epoch)
                contents.note(
                    "warning",
                    f"the description of epoch {epoch:016x} is lost: that of epoch {description.epoch:016x} stands for "
                    f"it, whose blocks look the same",
                )
                break


def _fits(description: Description, number: int, frames: StreamFrames) -> bool:
    stream: Stream | None = next((s for s in description.streams if s.number == number), None)
    return stream is not None and all(
        p.layout == stream.layout and p.size == HEADER_BYTES + p.scans * stream.scan_bytes
        for p in frames.places.values()
    )


def _recovered(file: h5py.File) -> list[str]:
    """What is in the new file, in figures."""
    readings = good = 0
    first, last = [], []
    for line in file["lines"].values():
        flags, t_ns = line["flags"], line["t_ns"]
        readings += len(flags)
        for begin in range(0, len(flags), _ROWS):
            good += int(np.count_nonzero((flags[begin : begin + _ROWS] & int(BAD)) == 0))
        if len(t_ns):
            first.append(int(t_ns[0]))
            last.append(int(t_ns[-1]))
    seconds = (max(last) - min(first)) * 1e-9 if first else 0.0
    gaps = file["gaps"]
    missing = int((gaps["end_ns"][:] - gaps["begin_ns"][:]).sum()) * 1e-9
    lost = gaps["lost"][:]
    return [
        f"{readings} readings ({readings - good} of them no values) of {len(file['lines'])} lines over {seconds:.3f} s",
        f"{len(file['phases/begin_ns'])} phases of {len(file['phases/kinds'])} kinds",
        f"{len(file['clocks'])} clocks, {len(file['devices'])} devices, {len(read_objects(file['messages']))} messages",
        f"{len(lost)} gaps of {missing:.3f} s together, {int(lost[lost > 0].sum())} scans known to be lost in them",
    ]
