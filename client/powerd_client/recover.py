"""`joules recover`: a run file out of what is left of a journal, and of what a powerd still holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import h5py

from powerd_client import journal as journals
from powerd_client.build import read_contents, write_file
from powerd_client.runfile import open_run, reading
from powerd_core.errors import RunFileError

Progress = Callable[[float, str], None]


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
    url: str | None = None,
    keys: str | os.PathLike[str] | None = None,
    progress: Progress = lambda share, text: None,
) -> Report:
    """Save what a journal holds into a new file (``RUN.recovered.h5`` without ``out``).

    What it misses and the powerd at ``url`` still holds is fetched into it first.

    ``path`` is a journal directory, or the name of a run of which only the journal is there. Raises `RunFileError` when
    there is nothing to recover, for a run file, or when the new file cannot be written.
    """
    path = Path(path)
    journal, run = (path, journals.run_of(path)) if path.is_dir() else (journals.journal_path(path), path)
    if not journal.is_dir():
        raise RunFileError(
            f"there is no journal {journal}, from which alone runs are recovered: of a damaged run file "
            "`joules verify` says what is damaged, and h5py still reads the datasets that are whole"
        )
    if journals.is_locked(journal):
        raise RunFileError(f"{run} is still being recorded: recover it when its run has ended")
    target = Path(out) if out is not None else run.with_name(f"{run.stem}.recovered{run.suffix or '.h5'}")
    if target.absolute() == run.absolute():
        raise RunFileError(f"{target} is the run that is to be recovered: write to another file with -o")
    journals.check_replaceable(target)
    if target.exists() and not overwrite:
        raise RunFileError(f"{target} exists: choose another name with -o, or replace it with --overwrite")
    if url is not None:
        from powerd_client.backfill import backfill  # zmq, which nobody else here needs

        progress(0.0, "fetching")
        backfill(journal, url, keys)
    contents = read_contents(journal, needs_run=False)
    write_file(target, contents, journal, overwrite=overwrite, progress=lambda share: progress(share, "writing"))
    lost = [m["text"] for m in contents.messages if m["level"] in ("warning", "error")]
    if contents.damaged:
        lost.append(f"{contents.damaged} of {contents.size} bytes of the journal could not be read")
    with open_run(target) as file, reading(target):
        return Report(journal, target, _figures(file), lost)


def _figures(file: h5py.File) -> list[str]:
    """What is in the new file, in figures."""
    lines, gaps, lost = file["lines"], file["gaps"], file["gaps/lost"][:]
    missing_s = int((gaps["end_ns"][:] - gaps["begin_ns"][:]).sum()) * 1e-9
    return [
        f"{sum(len(line['t_ns']) for line in lines.values())} readings of {len(lines)} lines",
        f"{len(file['phases/begin_ns'])} phases of {len(file['phases/kinds'])} kinds",
        f"{len(lost)} gaps of {missing_s:.3f} s together, {int(lost[lost > 0].sum())} scans known to be lost in them",
    ]
