"""Headings and remarks of a page in words."""

from __future__ import annotations

from collections.abc import Sequence

from powerd_analytics.report.names import Names
from powerd_analytics.runs.run import Run
from powerd_core.text import printable


def quality_notes(runs: Sequence[Run], names: Names) -> list[str]:
    notes = [f"{printable(names[r.path])} is incomplete: the training process vanished or a part was cut off."
             for r in runs if not r.is_complete]  # fmt: skip
    notes += [f"{printable(names[r.path])} was rebuilt from the journal of a recorder that died."
              for r in runs if r.attributes.get("rebuilt")]  # fmt: skip
    if not any(r.gaps for r in runs):
        notes.append(
            "No gap was recorded: nothing was lost between the boards and the run files. What the table of lines calls "
            "bad or missing was not read, or read badly, where the sensors are."
        )
    return notes


def traces_note(runs: int, most: int) -> str:
    left = runs - min(runs, most)
    return f"Traces of the first {most} runs; {left} more have none here (joules plot draws them)." if left else ""


def table_note(kinds: Sequence[str]) -> str:
    other = [k for k in kinds if k != "measured"]
    return f"Power here is {' and '.join(kinds)}: {' and '.join(other)} joules are no measurement." if other else ""


def title(runs: Sequence[Run]) -> str:
    return f"Energy of {runs[0].path.name}" if len(runs) == 1 else f"Energy of {len(runs)} runs"


def subtitle(runs: Sequence[Run]) -> str:
    days = sorted(str(r.attributes.get("created_utc", ""))[:19].replace("T", " ") for r in runs)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    hosts = sorted({str(r.environment.get("host", "")) for r in runs} - {""})
    return f"Recorded {when} UTC" + (f" on {', '.join(hosts[:4])}." if hosts else ".")
