"""Where a report comes from: files with their checksums, the commands that make it again, and how to cite it."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from powerd_analytics.campaigns.factors import Factors
from powerd_analytics.campaigns.trainings import Length
from powerd_analytics.energy.devices import Progress, no_progress
from powerd_analytics.exports.sheet import Sheet
from powerd_analytics.records.columns import Cell
from powerd_analytics.report.names import Names
from powerd_analytics.report.sheets import number_column, plain_sheet, text_column
from powerd_analytics.runs.run import Run
from powerd_core.errors import RunFileError

_BLOCK = 1 << 22
NO_LENGTH, NO_FACTORS = Length(), Factors()


def sha256(path: Path, progress: Progress = no_progress) -> str:
    """Of the file's bytes, in hexadecimal. Raises `RunFileError`."""
    digest, size = hashlib.sha256(), max(path.stat().st_size, 1)
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                progress(file.tell() / size, f"checksum of {path.name}")
    except OSError as error:
        raise RunFileError(f"{path} cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def version_text() -> str:
    """The version of the package, or that it is not installed as one."""
    try:
        return f"powerd {version('powerd')}"
    except PackageNotFoundError:
        return "powerd, not installed as a package"


def files_sheet(runs: Sequence[Run], checksums: Sequence[str], names: Names) -> Sheet:
    """A row for each run file: id, when, with which version, checksum."""
    columns = [
        text_column("file"), text_column("run id"), text_column("recorded (UTC)"), number_column("s", "s"),
        text_column("recorded with"), text_column("complete"), text_column("SHA-256"),
    ]  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (
            names[run.path], str(run.attributes.get("run_id", "")), str(run.attributes.get("created_utc", "")),
            (run.end_ns - run.begin_ns) * 1e-9, f"powerd {run.attributes.get('powerd_version', '?')}",
            "yes" if run.is_complete else "no: the training process vanished or a part was cut off", checksum,
        )
        for run, checksum in zip(runs, checksums, strict=True)
    ]  # fmt: skip
    return plain_sheet("files", "Run files", columns, rows)


def commands(
    runs: Sequence[Run],
    names: Names,
    device: str | None,
    calibration: Path | None,
    length: Length = NO_LENGTH,
    factors: Factors = NO_FACTORS,
) -> list[str]:
    """What a reader types to get the same."""
    files = " ".join(shlex.quote(names[run.path]) for run in runs[:20]) + (" ..." if len(runs) > 20 else "")
    options = f" --device {shlex.quote(device)}" if device else ""
    options += f" --calibration {shlex.quote(calibration.name)}" if calibration else ""
    of_training = {"iterations": length.iterations, "epochs": length.epochs, "dataset-size": length.dataset_size}
    options += "".join(f" --{name} {value:.15g}" for name, value in of_training.items() if value is not None)
    of_factors = ((f.name.replace("_", "-"), getattr(factors, f.name)) for f in fields(factors))
    options += "".join(
        f" --{name} {value if isinstance(value, str) else f'{value:.15g}'}"
        for name, value in of_factors if value is not None
    )  # fmt: skip
    return [
        f"sha256sum {files}",
        f"joules verify {files}",
        f"joules tables {files}{options} --format csv -o tables.csv",
        f"joules report {files}{options} -o report.html",
    ]


def citation(runs: Sequence[Run]) -> str:
    """One sentence for a paper."""
    kinds = sorted({line.provenance.value for run in runs for line in run.lines.values()})
    days = sorted({str(run.attributes.get("created_utc", ""))[:10] for run in runs} - {""})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else "an unknown day"
    many = f"{len(runs)} runs" if len(runs) > 1 else f"run {runs[0].attributes.get('run_id', '?')}"
    return (
        f"Cite as: energies ({' and '.join(kinds)} power) of {many}, recorded on {when} and evaluated with "
        f"{version_text()}; run files with the SHA-256 checksums below."
    )
