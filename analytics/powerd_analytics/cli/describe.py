"""`joules info`: what a run file holds and how good it is, as plain lines of text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from powerd_analytics.energy.reasons import sensor
from powerd_analytics.runs.ranks import describe_ranks
from powerd_analytics.runs.run import Progress, Run, describe_auxiliary, no_progress
from powerd_analytics.signals.signal import Signal, load_together
from powerd_analytics.signals.streams import good_readings_of, plain_j
from powerd_analytics.text import seconds
from powerd_client.hostclock import read_anchor


def describe_run(run: Run, device: str | None = None, *, progress: Progress = no_progress) -> Iterator[str]:
    """Lines of text: the run, its devices and lines with their energies and quality, clocks, gaps and messages."""
    a, names = run.attributes, [device] if device is not None else list(run.devices)
    length = seconds((run.end_ns - run.begin_ns) * 1e-9)
    yield f"{run.path}: run {a.get('run_id', '?')}, {a.get('created_utc', '?')}, {length}"
    yield f"  command: {' '.join(run.command) or 'not recorded'}"
    if not run.is_complete:
        yield "  incomplete: the training process vanished or a part was cut off"
    if a.get("rebuilt"):
        yield "  rebuilt from the journal of a recorder that died"
    for key, value in run.environment.items():
        yield f"  {key}: {value}"
    yield f"  phases: {_phases(run)}"
    yield from (f"  {line}" for line in describe_ranks(run))
    for i, name in enumerate(names):
        described = run.device(name)
        yield f"device {described.name}{': ' + described.description if described.description else ''}"
        signals = load_together(run, (*described.feeds, *run.compared(name)), _share_of(progress, i, len(names)))
        yield from _device(run, signals, set(described.feeds))
        for line in run.auxiliary(name):
            yield describe_auxiliary(run, line)
    for clock in run.clocks.values():
        if len(clock.half_width_ns):
            steps = f", {clock.steps} clock steps" if clock.steps else ""
            worst, usual = float(clock.half_width_ns.max()), float(np.median(clock.half_width_ns))
            yield (
                f"clock of {clock.board or 'the board'}: {len(clock.t_ns)} exchanges, guaranteed bound "
                f"± {seconds(usual * 1e-9)} (median), ± {seconds(worst * 1e-9)} (largest){steps}"
            )
    for gap in run.gaps:
        lost = f"{gap.lost} scans" if gap.lost >= 0 else "an unknown number of scans"
        yield f"gap in {gap.stream}: {lost} in {seconds((gap.end_ns - gap.begin_ns) * 1e-9)}: {gap.cause}"
    anchors = [anchor for message in run.messages if (anchor := read_anchor(message)) is not None]
    if anchors:
        yield f"wall clock: {len(anchors)} anchors, for `joules trace`"
    for message in run.messages:
        if read_anchor(message) is not None:
            continue
        yield f"{message.get('level', 'info')}: {message.get('text', '')}"


def _share_of(progress: Progress, i: int, n: int) -> Progress:
    return lambda share, text: progress((i + share) / n, text)


def _device(run: Run, signals: list[Signal], feeds: set[str]) -> Iterator[str]:
    if not signals:
        yield "  no line feeds it"
        return
    silent = [s.line.name for s in signals if len(s) < 2]
    # Lines are compared over the time that all of them cover.
    begin = max((int(s.t_ns[0]) for s in signals if len(s) > 1), default=run.begin_ns)
    end = min((int(s.t_ns[-1]) for s in signals if len(s) > 1), default=run.end_ns)
    over = np.array([begin]), np.array([max(begin, end)])
    joules = [float(plain_j(s, over)[0][0]) for s in signals]
    total = float(sum(j for s, j in zip(signals, joules, strict=True) if s.line.name in feeds))
    for s, j in zip(signals, joules, strict=True):
        text = f"  {s.line.name} ({s.line.provenance.value}, {s.line.source}): "
        if s.line.name in silent:
            yield text + f"no energy, {good_readings_of(s)} good readings, {s.bad} bad"
            continue
        text += f"{j:.6g} J, {j / ((end - begin) * 1e-9):.4g} W" if end > begin else "no time that all lines cover"
        text += f", {good_readings_of(s)} good readings, {s.bad} bad; {sensor(s)}"
        if known := s.line.detail.get("calibration", {}).get(s.line.name):
            text += f"; response {known.get('response')}, gain {known.get('gain')}"
        if s.line.name not in feeds and end > begin:
            text += f"; compared, not added: {j / total:.4f} of the sum of the feeds" if total > 0 else "; compared"
        yield text
    by_driver = {s.line.name for s in signals if ".nvml" in s.line.name}
    if by_driver and feeds and not feeds & by_driver and end - begin >= 10_000_000_000:
        device = signals[0].line.device
        yield f"  the rails can tell the gain: powerd calibrate {device} --reference rails --run {run.path}"
    provenances = {s.line.provenance.value for s in signals if s.line.name in feeds}
    unknown = [name for name in silent if name in feeds]
    if unknown or end <= begin:
        why = f"no readings of {', '.join(unknown)}" if unknown else "no time that all lines cover"
        yield f"  sum of the feeds: not known, {why}"
    elif len(provenances) == 1:
        yield f"  sum of the feeds: {total:.6g} J over {seconds(max(0, end - begin) * 1e-9)} ({provenances.pop()})"


def _phases(run: Run) -> str:
    p = run.phases
    if not len(p):
        return "none"
    count = np.bincount(p.label, minlength=len(p.classes))
    names: dict[str, int] = {}
    for c, n in zip(p.classes, count, strict=True):
        names[c.name] = names.get(c.name, 0) + int(n)
    cut = f", {int(p.cut.sum())} cut off" if p.cut.any() else ""
    return ", ".join(f"{n} {name}" for name, n in names.items()) + cut
