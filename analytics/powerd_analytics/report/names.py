"""What a page calls the run files, so that no two have one name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from powerd_analytics.records.columns import Record

Names = Mapping[Path, str]


def run_names(paths: Sequence[Path]) -> dict[Path, str]:
    """Names of files; where two have one (``old/0.h5``, ``new/0.h5``), paths below the directory that holds them all,
    from which the page's commands can then be typed."""
    if len({p.name for p in paths}) == len(set(paths)):
        return {p: p.name for p in paths}
    above = os.path.commonpath([p.absolute().parent for p in paths])
    return {p: p.absolute().relative_to(above).as_posix() for p in paths}


def named(records: Sequence[Record], names: Names) -> list[Record]:
    """The records with their run's name as the page has it, without the suffix."""
    known = {str(path): name.removesuffix(path.suffix) for path, name in names.items()}
    return [{**r, "run": known.get(str(r["path"]), r["run"])} for r in records]
