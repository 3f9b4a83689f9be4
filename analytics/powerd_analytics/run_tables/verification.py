"""Whether a run file is what it says it is, its energies too: its lines, its phases and any pieces it is cut into give
the same joules."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from math import isclose
from pathlib import Path

import numpy as np

from powerd_analytics.energy.devices import Part, line_energies, load_parts
from powerd_analytics.run_tables.closing_lines import joules_text
from powerd_analytics.run_tables.table import PhaseRow, PhaseTable, Row, RunRow, kept_table, known_table
from powerd_analytics.runs.phases import as_range, merge_intervals
from powerd_analytics.runs.run import Progress, Run, no_progress, read_run
from powerd_analytics.runs.signals import plain_j
from powerd_client.runs.runfile import is_out_of_memory
from powerd_client.runs.verify import Finding, finding_of, verify_file
from powerd_core.errors import PowerdError

ROUNDING = 1e-9
"""Relative to the joules that were added without regard to their sign, and in joules where there are none."""
_PIECES = 1000


def verify_run(path: Path, progress: Progress = no_progress) -> Iterator[Finding]:
    """Findings on everything that must hold. Raises `RunFileError` only where there is no file."""
    is_readable = True
    for finding in verify_file(path, lambda share, text: progress(0.6 * share, text)):
        is_readable = is_readable and (finding.check, finding.state) != ("structure", "wrong")
        yield finding
    if is_readable:
        yield from verify_sums(path, lambda share, text: progress(0.6 + 0.4 * share, text))


def verify_sums(path: str | Path, progress: Progress = no_progress) -> Iterator[Finding]:
    """Findings on the energies of a run file that could be opened; raises nothing of its own."""
    try:
        run = read_run(path)
        parts = load_parts(run, progress=lambda share, text: progress(0.4 * share, text))
        known = known_table(run)
        table = kept_table(run, None, parts, is_anew=True, progress=lambda s, text: progress(0.4 + 0.5 * s, text))
        yield from _kept(known, table) if known is not None else ()
        for part in parts:
            whole = next(r for r in table.runs if (r.device, r.provenance) == (part.device, part.provenance))
            yield _sums(run, part, whole)
    except PowerdError as error:
        if is_out_of_memory(error.__cause__):
            raise
        yield Finding("energy", "wrong", str(error))


def _kept(known: PhaseTable, table: PhaseTable) -> Iterator[Finding]:
    """What was kept of the run and is not what comes out now; nothing where all is alike."""
    kept: list[Row] = [*known.phases, *known.totals, *known.runs]
    now: list[Row] = [*table.phases, *table.totals, *table.runs]
    wrong = [
        f"{before} J was kept, {after} J comes out and is kept instead"
        for a, b in zip_longest(kept, now)
        for before, after in zip(_figures(a), _figures(b), strict=True)
        if before != after and not isclose(before, after, rel_tol=ROUNDING)
    ]
    if wrong:
        yield finding_of("kept figures", wrong, "")


def _figures(row: Row | None) -> tuple[float, float]:
    """Joules and U95 of a row; -1 for what is not known."""
    if row is None:
        return -1.0, -1.0
    joules = row.j_per_batch if isinstance(row, PhaseRow) else row.energy_j
    return -1.0 if joules is None else joules, -1.0 if row.u95_j is None else row.u95_j


def _sums(run: Run, part: Part, whole: RunRow) -> Finding:
    """Whether lines, phases and rest, and pieces have the joules of the run. Of millions of intervals only the sum is
    kept, and readings are gone through once. These are plain integrals; the joules that are told are the table's."""
    begin, end, p = run.begin_ns, run.end_ns, run.phases
    top = as_range(p.parent < 0)
    begins, ends = merge_intervals(np.clip(p.begin_ns[top], begin, end), np.clip(p.end_ns[top], begin, end))
    rest = np.concatenate([[begin], ends]), np.concatenate([begins, [end]])
    # Times since 1970 are too long for a float.
    cuts = begin + np.linspace(0, end - begin, _PIECES + 1).astype(np.int64)
    sums, sizes = np.zeros(4), np.zeros(4)
    for signal in part.signals:
        of_line = plain_j(signal, (np.array([begin]), np.array([end])), (begins, ends), rest, (cuts[:-1], cuts[1:]))
        sums += [joules.sum() for joules in of_line]
        sizes += [np.abs(joules).sum() for joules in of_line]
    total, phases, outside, split = map(float, sums)
    lines = float(line_energies(part.signals, begin, end).sum())
    allowed_j = ROUNDING * max(sizes[0], sizes[1] + sizes[2], sizes[3], 1.0)
    same = {"lines together": lines, "phases and rest": phases + outside, f"{_PIECES} pieces": split}
    wrong = [
        f"{what} give {joules:.12g} J, the plain integral of the run {total:.12g} J"
        for what, joules in same.items()
        if not abs(joules - total) <= allowed_j
    ]
    text = f"{joules_text(whole)}; {len(part.signals)} lines, phases + rest and {_PIECES} pieces agree"
    return finding_of(f"energy of {part.device} ({part.provenance})", wrong, text)
