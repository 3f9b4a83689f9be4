"""Programs beside the training that the driver listed on a device: their joules are among its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from powerd_analytics.runs.run import Run
from powerd_analytics.text import seconds
from powerd_client.gpu_processes import OTHERS


def other_programs(run: Run, device: str, begin_ns: int, end_ns: int) -> str:
    """Who was on a device between two host times, and for how long: ``7.1 s: pid 4242, alice``; empty for nobody, and
    where no driver was asked. The driver was asked once a second."""
    own = {process.get("pid") for process in run.processes}
    taken_s: dict[str, float] = {}
    for first_ns, last_ns, others in _stretches(run, device):
        overlap_s = (min(last_ns, end_ns) - max(first_ns, begin_ns)) * 1e-9
        for pid, user in others if overlap_s > 0 else ():
            if pid not in own:
                who = f"pid {pid}, {user}" if user else f"pid {pid}"
                taken_s[who] = taken_s.get(who, 0.0) + overlap_s
    return "; ".join(f"{seconds(time_s)}: {who}" for who, time_s in taken_s.items())


def note_of(device: str, others: str) -> str:
    """The sentence on what `other_programs` says; empty for nothing."""
    return f"another program was on {device} for {others}: its joules are in these" if others else ""


def _stretches(run: Run, device: str) -> Iterator[tuple[int, int, list[tuple[int, str]]]]:
    """Beginning, end and the processes of each stretch in which the driver listed the same."""
    events = [(e.t_ns, e.values) for e in run.events if e.name == OTHERS and e.values.get("device") == device]
    for (begin_ns, values), (end_ns, _) in pairwise([*events, (run.end_ns, {})]):
        yield begin_ns, end_ns, list(_processes(values))


def _processes(values: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    others = values.get("others")
    for process in others if isinstance(others, list) else ():
        if isinstance(process, dict) and isinstance(process.get("pid"), int):
            yield process["pid"], str(process.get("user") or "")
