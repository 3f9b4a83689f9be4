"""A run file out of a journal: when a run is opened (`open_run`), by `joules journal recover`, and when a journal is no
longer needed, by `joules journal tidy`.

A journal is what a recorder left, in its directory, or packed beside its run file. To recover only reads it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path

import h5py

from powerd_client.host.log import tell
from powerd_client.host.ownership import PARTIAL, check_own, delete, foreign, is_left_partial, partial_folder
from powerd_client.journals import journal as journals
from powerd_client.runs.build import build_run, left_out, read_contents, write_file
from powerd_client.runs.runfile import open_file, reading
from powerd_core.errors import RunFileError
from powerd_core.keys import control_url
from powerd_core.text import lost_text

Progress = Callable[[float, str], None]
_MOST_TOLD = 3
"""What a run file lacks is told this often, and then counted."""


def open_run(path: str | os.PathLike[str], *, progress: Callable[[float], None] = lambda share: None) -> h5py.File:
    """The run file at ``path``, open for reading.

    A run whose recorder died is built from its journal first, also where it was to overwrite ``path``. A journal of
    another user's is left alone, which a line on the error stream says. Raises `RunFileError` for a file that is
    missing, is no run, is cut off or damaged, is of another version, or is still being recorded.
    """
    run = Path(path)
    with reading(run):
        is_there = run.exists()
        if (reason := journals.left_alone(run)) is not None:
            _leave_alone(run, reason)
        elif journals.is_to_replace(run) if is_there else journals.journal_path(run).is_dir():
            rebuild(run, overwrite=is_there, progress=progress)
    return open_file(run)


def _leave_alone(run: Path, reason: str) -> None:
    """Go on without the journal beside a run. Raises `RunFileError` where there is nothing else."""
    if run.exists():
        _tell_once(f"{run} is read as it is, and the journal beside it is left alone: {reason}")
        return
    state = "is being recorded" if journals.is_locked(journals.journal_path(run)) else "is not finished"
    raise RunFileError(
        f"there is no {run}: its recording {state}, and {reason}; `joules journal recover {run}` makes a file of "
        "what you may read of it"
    )


@functools.cache
def _tell_once(text: str) -> None:
    tell(text)


def rebuild(run: Path, *, overwrite: bool = False, progress: Callable[[float], None] = lambda share: None) -> None:
    """Build a run file from the journal of a recorder that is gone.

    Raises `RunFileError` while it is still being recorded, and where something of the journal is not in the run file,
    which then stands all the same.
    """
    journal = journals.journal_path(run)
    try:
        held = journals.lock(journal)
    except RunFileError as error:
        raise RunFileError(f"{run} is still being recorded: open it when its run has ended") from error
    except OSError as error:
        raise RunFileError(f"{run} has to be built from {journal}: {error.strerror}") from error
    try:
        journals.remove_partials(run)
        missing = build_run(journal, run, overwrite=overwrite, progress=progress)
    finally:
        os.close(held)
    if missing:
        raise RunFileError(incomplete(run, missing))


def incomplete(run: Path, missing: Sequence[str]) -> str:
    """What the user is told of a run file that was built of a journal of which something was left out."""
    more = f"; and {len(missing) - _MOST_TOLD} more" if len(missing) > _MOST_TOLD else ""
    return (
        f"{run} is built, but not all of its journal is in it ({'; '.join(missing[:_MOST_TOLD])}{more}): "
        f"the journal stays in {journals.journal_path(run)}. Open {run.name} again to read what there is"
    )


@dataclass(frozen=True, slots=True)
class Report:
    """What was made of what: plain lines of text for people."""

    source: Path
    out: Path
    readings: int
    recovered: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def recover(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    overwrite: bool = False,
    url: str | None = None,
    keys: str | os.PathLike[str] | None = None,
    progress: Progress = lambda share, text: None,
) -> Report:
    """Save what a journal holds into a new file (``RUN.recovered.h5`` without ``out``).

    ``path`` is a journal, or the name of a run beside which one is. What it misses and the powerd at ``url`` still
    holds is fetched into it first, into an unpacked copy of a packed one. Raises `RunFileError` when there is none, or
    nothing in it, or when the new file cannot be written.
    """
    journal = _journal_of(Path(path))
    run = journals.run_of(journal)
    if journal.is_dir() and journals.is_locked(journal):
        raise RunFileError(f"{run} is still being recorded: recover it when its run has ended")
    target = Path(out) if out is not None else run.with_name(f"{run.stem}.recovered{run.suffix or '.h5'}")
    if target.absolute() == run.absolute():
        raise RunFileError(f"{target} is the run that is to be recovered: write to another file with -o")
    journals.check_replaceable(target)
    check_own(target)
    if target.exists() and not overwrite:
        raise RunFileError(f"{target} exists: choose another name with -o, or replace it with --overwrite")

    def save(directory: Path) -> Report:
        if url is not None:
            from powerd_client.runs.backfill import backfill  # zmq, which nobody else here needs

            progress(0.0, "fetching")
            backfill(directory, control_url(url), keys)
        return _recover(directory, journal, target, overwrite, progress)

    if journal.is_dir():
        return save(journal)
    try:
        # Readings are written stream after stream, so the journal is read again and again from any place.
        with partial_folder(target) as folder:
            progress(0.0, "unpacking")
            journals.unpack(journal, folder)
            return save(folder)
    except OSError as error:
        if isinstance(error, RunFileError):
            raise
        raise RunFileError(f"{journal} cannot be unpacked beside {target}: {error.strerror or error}") from error


def _journal_of(path: Path) -> Path:
    """The journal that a user means: it, or that of a run. Raises `RunFileError` where there is none."""
    if path.is_dir() or path.name.endswith(".journal.gz"):
        return path
    for journal in (journals.journal_path(path), journals.packed_path(path)):
        if journal.exists():
            return journal
    there = f"neither {journals.journal_path(path).name} nor {journals.packed_path(path).name} is beside it"
    if not path.exists():
        raise RunFileError(f"there is no run file {path}, and {there}: nothing can be recovered")
    with open_run(path) as file, reading(path):
        kept = ", ".join(_figures(file))
    raise RunFileError(
        f"{path} can be opened ({kept}), and {there}, from which alone runs are recovered: "
        f"`joules info --check {path}` says what is damaged"
    )


def _recover(journal: Path, source: Path, target: Path, overwrite: bool, progress: Progress) -> Report:
    contents = read_contents(journal, needs_run=False)

    def writing(share: float) -> None:
        progress(share, "writing")

    write_file(target, contents, journal, overwrite=overwrite, progress=writing, kept=source)
    lost = [m["text"] for m in contents.messages if m["level"] in ("warning", "error")]
    if contents.damaged:
        lost.append(f"{contents.damaged} of {contents.size} bytes of the journal could not be read")
    with open_run(target) as file, reading(target):
        readings = sum(len(line["t_ns"]) for line in file["lines"].values())
        return Report(source, target, readings, _figures(file), lost)


def _figures(file: h5py.File) -> list[str]:
    """What is in a file, in figures."""
    lines, gaps, lost = file["lines"], file["gaps"], file["gaps/lost"][:]
    known, unknown = int(lost[lost > 0].sum()), int((lost < 0).sum())
    lasted_s = int((gaps["end_ns"][:] - gaps["begin_ns"][:]).sum()) * 1e-9
    return [
        f"{sum(len(line['t_ns']) for line in lines.values())} readings of {len(lines)} lines",
        f"{len(file['phases/begin_ns'])} phases of {len(file['phases/kinds'])} kinds",
        lost_text(len(lost), known, unknown) + (f"; over {lasted_s:.3f} s together" if len(lost) else ""),
    ]


def kept_journals(paths: Sequence[Path]) -> Iterator[Path]:
    """The journals of runs, and of all runs in and below directories. Raises `RunFileError` for what is not there."""
    for path in paths:
        if path.is_dir() and not path.name.endswith(".journal"):
            for folder, folders, names in os.walk(path):
                found = [n for n in folders if n.endswith(".journal")] + [n for n in names if n.endswith(".journal.gz")]
                yield from (Path(folder, name) for name in sorted(found))
                folders[:] = sorted(n for n in folders if not n.endswith(".journal"))
        elif path.name.endswith((".journal", ".journal.gz")):
            yield path
        else:
            both = (journals.journal_path(path), journals.packed_path(path))
            there = [journal for journal in both if journal.exists()]
            if not there and not path.exists():
                raise RunFileError(f"there is no {path}")
            yield from there


def left_partials(paths: Sequence[Path]) -> Iterator[Path]:
    """The folders, beside runs and in and below directories, in which a program that was killed was making an output
    (`ownership.whole_output`)."""
    for path in paths:
        if path.is_dir() and not path.name.endswith(".journal"):
            for folder, folders, _ in os.walk(path):
                yield from (Path(folder, name) for name in sorted(folders) if is_left_partial(Path(folder, name)))
                folders[:] = sorted(n for n in folders if not n.endswith((".journal", PARTIAL)))
        else:
            stem = journals.run_of(path).stem if path.name.endswith((".journal", ".journal.gz")) else path.stem
            beside = path.parent.glob(f".{escape(stem)}.*{PARTIAL}")
            yield from (folder for folder in sorted(beside) if is_left_partial(folder))


def size_of(journal: Path) -> int:
    """Bytes. Raises `OSError`."""
    files = journal.iterdir() if journal.is_dir() else [journal]
    return sum(file.lstat().st_size for file in files)


def needed_for(journal: Path) -> list[str]:
    """Why a journal has to stay, as far as its frames tell, in words; nothing where its run file holds all of them.

    Whether that run file is good is for `verify_file` to tell. Raises `RunFileError`.
    """
    run = journals.run_of(journal)
    if (reason := foreign(journal)) is not None:
        return [reason]
    if journal.is_dir() and journals.is_locked(journal):
        return ["it is being recorded"]
    if journals.is_to_replace(run):
        return [f"`joules info {run}` has yet to make {run.name} of it"]
    if not run.is_file():
        return [f"there is no {run.name}"]
    return left_out(read_contents(journal), run)


def discard(journal: Path) -> None:
    """Delete a journal of which `needed_for` says nothing. Raises `RunFileError` or `OSError`."""
    check_own(journal, "it stays")
    if not journal.is_dir():
        delete(journal)
        return
    held = journals.lock(journal)
    try:
        journals.remove(journal)
    finally:
        os.close(held)
