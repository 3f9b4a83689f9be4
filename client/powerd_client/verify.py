"""Whether a run file is what it says it is: every invariant of docs/run-file.md that needs no energies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py

from powerd_client import verify_phases, verify_readings, verify_tables
from powerd_client.datasets import DIGEST, digest
from powerd_client.filetables import problems
from powerd_client.findings import Check, Finding, NotStored, found
from powerd_client.runfile import open_run, reading
from powerd_core.errors import RunFileError

Progress = Callable[[float, str], None]

_ROWS = 1 << 20


def verify_file(path: str | os.PathLike[str], progress: Progress = lambda share, text: None) -> Iterator[Finding]:
    """Look at everything in a run file, one finding a check. Raises `RunFileError` only where there is no file."""
    run = Path(path)
    try:
        file = open_run(run)
    except RunFileError as error:
        if isinstance(error.__cause__, PermissionError) or not os.path.isfile(run):
            raise
        yield Finding("structure", "wrong", _structure(run) or str(error))
        return
    with file:
        yield Finding("structure", "ok", f"{len(file['lines'])} lines, {len(file['clocks'])} clocks, nothing foreign")
        checks: list[tuple[str, Callable[[], Check]]] = [
            ("checksums", lambda: _checksums(file, lambda share, text: progress(0.5 * share, text))),
            ("metadata", lambda: _metadata(file)),
            ("attributes", lambda: verify_tables.attributes(file)),
            ("run", lambda: verify_tables.run(file)),
            ("phases", lambda: verify_phases.phases(file)),
            ("devices", lambda: verify_tables.devices(file)),
            ("clocks", lambda: verify_tables.clocks(file)),
            ("gaps", lambda: verify_tables.gaps(file)),
            ("counts", lambda: verify_tables.counts(file)),
        ]
        for name, check in checks:
            yield _judge(run, name, check)
        yield from _readings(run, file, lambda share, text: progress(0.5 + 0.5 * share, text))


def _judge(run: Path, name: str, check: Callable[[], Check]) -> Finding:
    wrong: list[str] = []
    text = ""
    try:
        with reading(run):
            steps = check()
            while True:
                try:
                    wrong.append(next(steps))
                except StopIteration as end:
                    text = end.value
                    break
    except NotStored as missing:
        return Finding(name, "unknown", str(missing))
    except RunFileError as error:
        wrong.append(f"cannot be read: {error.__cause__ or error}")
    return found(name, wrong, text)


def _structure(run: Path) -> str:
    """Everything that is wrong with the inside of a file that opens as HDF5, else nothing."""
    wrong = []
    try:
        with reading(run), h5py.File(run, "r") as file:
            wrong = list(problems(file))
    except RunFileError:
        return ""
    return found("", wrong, "").text


def datasets(group: h5py.Group) -> Iterator[h5py.Dataset]:
    """Every dataset of a file whose structure is known to be good."""
    for item in group.values():
        if isinstance(item, h5py.Dataset):
            yield item
        else:
            yield from datasets(item)


def _checksums(file: h5py.File, progress: Progress) -> Check:
    """Read every chunk; HDF5 compares its checksum."""
    every = list(datasets(file))
    total, done, chunks, bare = sum(d.nbytes for d in every) or 1, 0, 0, 0
    for dataset in every:
        progress(done / total, f"reading {dataset.name}")
        bare += not dataset.fletcher32
        for begin, end in stretches(dataset):
            chunks += 1
            try:
                dataset[begin:end]
            except (OSError, RuntimeError) as error:
                yield f"{dataset.name}, rows {begin} to {end - 1}: {error}"
        done += dataset.nbytes
    if bare:
        raise NotStored(f"{bare} of {len(every)} datasets carry no checksums; all of them could be read")
    return f"{chunks} chunks of {len(every)} datasets"


def stretches(dataset: h5py.Dataset) -> Iterator[tuple[int, int]]:
    """First row and row behind the last of each chunk."""
    step = dataset.chunks[0] if dataset.chunks else _ROWS
    for begin in range(0, len(dataset), step):
        yield begin, min(begin + step, len(dataset))


def _metadata(file: h5py.File) -> Check:
    if DIGEST not in file.attrs:
        raise NotStored("the release that wrote this file stored no digest of its attributes")
    if file.attrs[DIGEST] != digest(file):
        yield "attributes, names or shapes are not those with which the file was written"
    return "attributes, names and shapes are as they were written"


def _readings(run: Path, file: h5py.File, progress: Progress) -> Iterator[Finding]:
    sums: verify_readings.Sums = {}
    try:
        with reading(run):
            sums = verify_readings.look(file, progress)
    except RunFileError as error:
        yield Finding("readings", "wrong", f"cannot be read: {error.__cause__ or error}")
        return
    for name, (wrong, text) in sums.items():
        yield found(name, wrong, text) if text or wrong else Finding(name, "unknown", "this file stores no mapping")
