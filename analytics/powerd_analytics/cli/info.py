"""`joules info`: what a run file holds and how good it is, as a document and as plain lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part
from powerd_analytics.energy.reasons import sensor
from powerd_analytics.output.text import digits, seconds, with_u95
from powerd_analytics.run_tables.closing_lines import joules_text, run_totals
from powerd_analytics.run_tables.table import RunRow, line_of_run
from powerd_analytics.runs.ranks import describe_ranks, notes_of_run
from powerd_analytics.runs.run import Progress, Run, RunDevice, no_progress
from powerd_analytics.runs.settings import settings_of
from powerd_analytics.runs.signals import good_readings_of, load_together, silences_of
from powerd_client.host.hostclock import read_anchor
from powerd_client.journals.job import MAX_TEXT
from powerd_client.knobs.power_choice import POWER_CHOICE
from powerd_client.signals.signal import Signal
from powerd_core.model import QuantityConversion
from powerd_core.text import printable

Document = dict[str, Any]

_MOST_SHOWN = 60
"""Characters of a value that an event of the training said."""


def run_document(run: Run, device: str | None = None, *, progress: Progress = no_progress) -> Document:
    """Everything that `joules info` says of a run, in SI units; what is not known is None.

    Raises `AnalysisError` for an unknown device.
    """
    a, p, names = run.attributes, run.phases, [device] if device is not None else list(run.devices)
    phases: dict[str, int] = {}
    for kind, n in zip(p.classes, np.bincount(p.label, minlength=len(p.classes)).tolist(), strict=True):
        phases[kind.name] = phases.get(kind.name, 0) + n
    wholes = run_totals(run, progress=progress)
    devices, settings = [], settings_of(run)
    for i, name in enumerate(names):
        described, driver = run.device(name), settings.driver(name)
        signals = load_together(run, (*described.feeds, *run.compared(name)), _share_of(progress, i, len(names)))
        devices.append(
            {"device": described.name, "description": described.description}
            | {"driver": asdict(driver), "driver_text": driver.text()}
            | _lines(run, signals, described, [row for row in wholes if row.device == described.name])
            | {"auxiliary": [_auxiliary(run, line) for line in run.auxiliary(name)]}
            | {"totals": [_total(row) for row in wholes if row.device == described.name]}
        )
    return {
        "run": str(run.path),
        "run_id": a.get("run_id"),
        "created_utc": a.get("created_utc"),
        "time_s": (run.end_ns - run.begin_ns) * 1e-9,
        "is_complete": run.is_complete,
        "is_rebuilt": bool(a.get("rebuilt")),
        "command": list(run.command),
        "environment": dict(run.environment),
        "phases": phases,
        "phases_cut_off": int(p.cut.sum()),
        "events": dict(Counter(event.name for event in run.events)),
        "power_choice": _choice(run),
        "result": dict(run.result),
        "ranks": describe_ranks(run),
        "other_programs": list(notes_of_run(run, device)),
        "devices": devices,
        "clocks": [
            {
                "board": clock.board,
                "exchanges": len(clock.t_ns),
                "bound_median_s": _median(clock.half_width_ns) * 1e-9,
                "bound_max_s": float(clock.half_width_ns.max()) * 1e-9,
                "steps": clock.steps,
            }
            for clock in run.clocks.values()
            if len(clock.half_width_ns)
        ],
        "gaps": [
            {
                "stream": gap.stream,
                "lost_scans": gap.lost if gap.lost >= 0 else None,
                "time_s": (gap.end_ns - gap.begin_ns) * 1e-9,
                "cause": gap.cause,
            }
            for gap in run.gaps
        ],
        "wall_clock_anchors": sum(read_anchor(message) is not None for message in run.messages),
        "messages": [
            {"level": message.get("level", "info"), "text": message.get("text", "")}
            for message in run.messages
            if read_anchor(message) is None
        ],
    }


def _choice(run: Run) -> str | None:
    """What was chosen while it ran (`Meter.optimise_power`), or why nothing was."""
    ends = [e.values for e in run.events if e.name == POWER_CHOICE and "decision" in e.values]
    return printable(str(ends[-1].get("text") or ends[-1].get("why")), limit=MAX_TEXT) if ends else None


def _median(values: NDArray[np.float64]) -> float:
    """numpy's own loads masked arrays, which takes as long as reading a run's phases."""
    ordered = np.sort(values)
    return float(ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1].mean())


def _total(row: RunRow) -> Document:
    """The joules of the whole run on a device, as every table has them."""
    names = ("provenance", "time_s", "energy_j", "u95_j", "missing_s", "is_lower_bound")
    return {name: getattr(row, name) for name in names} | {"text": joules_text(row)}


def _share_of(progress: Progress, i: int, n: int) -> Progress:
    return lambda share, text: progress((i + share) / n, text)


def _lines(run: Run, signals: list[Signal], described: RunDevice, wholes: Sequence[RunRow]) -> Document:
    """The lines of a device. Joules are those over the run, of the feeds by the estimate of which the device's joules
    are the sum (``wholes``)."""
    known = {line.line: line for row in wholes for line in row.lines}
    time_s, lines = (run.end_ns - run.begin_ns) * 1e-9, []
    for s in signals:
        has_readings, is_feed = len(s) > 1, s.line.name in described.feeds
        alone = Part(described.name, s.line.provenance.value, (s,), run)
        own = known.get(s.line.name) or line_of_run(alone, s)
        lines.append(
            {
                "line": s.line.name,
                "provenance": s.line.provenance.value,
                "source": s.line.source,
                "energy_j": own.energy_j,
                "u95_j": own.u95_j,
                "is_lower_bound": own.is_lower_bound,
                "power_w": None if own.energy_j is None else own.energy_j / time_s,
                "good_readings": good_readings_of(s),
                "bad_readings": s.bad,
                "faults": {str(fault): count for fault, count in s.faults.items()},
                "silences": _silences(run, s),
                "has_readings": has_readings,
                "is_feed": is_feed,
                "sensor": sensor(s) if has_readings else "",
                "untested": s.line.detail.get("untested"),
                "calibration": s.line.detail.get("calibration", {}).get(s.line.name),
            }
        )
    fed = [line for line in lines if line["is_feed"]]
    is_known = bool(lines) and all(line["energy_j"] is not None for line in fed)
    is_one = len({line["provenance"] for line in fed}) == 1
    return {
        "lines": lines,
        "time_s": time_s,
        "lines_j": sum(line["energy_j"] for line in fed) if is_known and is_one else None,
    }


_MOST_STRETCHES = 4
"""So many stretches of a line without readings are told one by one."""


def _silences(run: Run, signal: Signal) -> Document | None:
    """When a line had no good readings, in seconds since the run's begin; None where it always had some."""
    stretches = silences_of(signal, run.begin_ns, run.end_ns)
    if not len(stretches):
        return None
    lengths_s = stretches[:, 1] - stretches[:, 0]
    # Nobody notes what each stretch is of: the only fault of a line, where that took so many readings.
    is_fault = len(signal.faults) == 1 and 2e-9 * signal.spacing_ns * signal.bad > lengths_s.sum()
    return {
        "what": str(next(iter(signal.faults))) if is_fault else "without readings",
        "count": len(stretches),
        "first_s": stretches[:_MOST_STRETCHES].tolist(),
        "longest_s": stretches[lengths_s.argmax()].tolist(),
    }


def _auxiliary(run: Run, name: str) -> Document:
    """An auxiliary channel: range and mean of its readings, or in which share of them each bit was set."""
    line = run.line(name)
    c = line.conversion
    assert isinstance(c, QuantityConversion)
    codes = run.good_readings(name, c.column).codes[c.column]
    document: Document = {
        "line": name,
        "provenance": line.provenance.value,
        "source": line.source,
        "quantity": c.quantity,
        "good_readings": len(codes),
        "bad_readings": line.count - len(codes),
    }
    if len(codes) and c.quantity.endswith("_bits"):
        bits = line.detail.get("bits", {}).get(name, {})
        unsigned = codes.astype(np.int64).view(np.uint64)
        document["bits"] = {
            n: float(np.count_nonzero(unsigned & np.uint64(int(bit))) / len(codes)) for n, bit in bits.items()
        }
    elif len(codes):
        figures = {"min": codes.min(), "max": codes.max(), "mean": codes.mean()}
        document |= {n: float(code * c.per_code) for n, code in figures.items()}
    return document


# ---- lines of text -----------------------------------------------------------------------------------------------


def describe_run(document: Document) -> Iterator[str]:
    """A document of `run_document` as lines of text."""
    d = document
    yield f"{d['run']}: run {d['run_id'] or '?'}, {d['created_utc'] or '?'}, {seconds(d['time_s'])}"
    yield f"  command: {' '.join(d['command']) or 'not recorded'}"
    if not d["is_complete"]:
        yield "  incomplete: the training process vanished or a part was cut off"
    if d["is_rebuilt"]:
        yield "  rebuilt from the journal of a recorder that died"
    yield from (f"  {key}: {value}" for key, value in d["environment"].items())
    cut = f", {d['phases_cut_off']} cut off" if d["phases_cut_off"] else ""
    yield f"  phases: {', '.join(f'{n} {name}' for name, n in d['phases'].items()) or 'none'}{cut}"
    if d["events"]:
        yield f"  events: {', '.join(f'{n} {name}' for name, n in d['events'].items())}"
    if d["power_choice"]:
        yield f"  power choice: {d['power_choice']}"
    if d["result"]:
        yield f"  result: {', '.join(f'{name} {_value(value)}' for name, value in d['result'].items())}"
    yield from (f"  {line}" for line in (*d["ranks"], *d["other_programs"]))
    for device in d["devices"]:
        yield f"device {device['device']}{': ' * bool(device['description'])}{device['description']}"
        if device["driver_text"]:
            yield f"  {device['driver_text']}"
        yield from _describe_lines(device, str(d["run"]))
        yield from map(_describe_auxiliary, device["auxiliary"])
    for clock in d["clocks"]:
        steps = f", {clock['steps']} clock steps" if clock["steps"] else ""
        yield (
            f"clock of {clock['board'] or 'the board'}: {clock['exchanges']} exchanges, guaranteed bound "
            f"± {seconds(clock['bound_median_s'])} (median), ± {seconds(clock['bound_max_s'])} (largest){steps}"
        )
    for gap in d["gaps"]:
        lost = f"{gap['lost_scans']} scans" if gap["lost_scans"] is not None else "an unknown number of scans"
        over = f" over {seconds(gap['time_s'])}" if gap["time_s"] > 0 else ""
        yield f"lost of {gap['stream']}: {lost}{over}: {gap['cause']}"
    if d["wall_clock_anchors"]:
        yield f"wall clock: {d['wall_clock_anchors']} anchors, for `joules trace`"
    yield from (f"{message['level']}: {message['text']}" for message in d["messages"])


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else printable(str(value), limit=_MOST_SHOWN)


def _describe_lines(device: Document, run: str) -> Iterator[str]:
    if not device["lines"]:
        yield "  no line feeds it"
        return
    total = device["lines_j"]
    for line in device["lines"]:
        text = f"  {line['line']} ({line['provenance']}, {line['source']}): "
        why = ", ".join(f"{fault} {n}" for fault, n in line["faults"].items())
        count = f"{line['good_readings']} good readings, {line['bad_readings']} bad{f' ({why})' if why else ''}"
        count += _describe_silences(line["silences"])
        if not line["has_readings"]:
            yield f"{text}no energy, {count}"
            continue
        known = line["energy_j"] is not None
        if known:
            text += with_u95(line["energy_j"], line["u95_j"], "J", is_lower_bound=line["is_lower_bound"])
            text += f", {digits(line['power_w'], 3)} W"
        else:
            text += "no energy"
        text += f", {count}; {line['sensor']}"
        if line["untested"]:
            text += f"; {line['untested']}"
        if calibration := line["calibration"]:
            text += f"; response {calibration.get('response')}, gain {calibration.get('gain')}"
        if not line["is_feed"] and known:
            text += (
                f"; compared, not added: {line['energy_j'] / total:.4f} of the sum of the feeds"
                if (total is not None and total > 0)
                else "; compared"
            )
        yield text
    fed = [line for line in device["lines"] if line["is_feed"]]
    by_driver = [line["is_feed"] for line in device["lines"] if ".nvml" in line["line"]]
    if by_driver and fed and not any(by_driver) and device["time_s"] >= 10:
        yield f"  the rails can tell the gain: powerd calibrate {device['device']} --reference rails --run {run}"
    unknown = [line["line"] for line in fed if not line["has_readings"]]
    if unknown:
        yield f"  sum of the feeds: not known, no readings of {', '.join(unknown)}"
    for whole in device["totals"]:
        yield f"  {whole['text']}"


def _describe_silences(silences: Document | None) -> str:
    """``; no answer 25.1 s to 28.3 s, 31.0 s to 32.2 s``: the first stretches, and the longest of more."""
    if silences is None:
        return ""
    told = [f"{begin:.1f} s to {end:.1f} s" for begin, end in (*silences["first_s"], silences["longest_s"])]
    longest, more = told.pop(), silences["count"] - len(silences["first_s"])
    return f"; {silences['what']} {', '.join(told)}" + (f" and {more} more, the longest {longest}" if more else "")


def _describe_auxiliary(line: Document) -> str:
    text = f"  {line['line']} ({line['provenance']}, {line['source']}): {line['quantity']}"
    if not line["good_readings"]:
        return f"{text}, no good reading"
    count = f"{line['good_readings']} good readings, {line['bad_readings']} bad"
    if "bits" in line:
        set_bits = ", ".join(f"{n} in {share:.1%}" for n, share in line["bits"].items() if share)
        return f"{text}: {set_bits or 'none set'}; {count}"
    return f"{text} {line['min']:.6g} to {line['max']:.6g}, mean of the readings {line['mean']:.6g}; {count}"
