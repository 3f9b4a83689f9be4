"""The row of a run as a whole: its joules, those of its phases and of the rest, and what is to be known of them."""

from __future__ import annotations

import numpy as np

from powerd_analytics.energy.devices import Part, PhaseColumns, interval_energies, line_energies
from powerd_analytics.energy.negligible import known
from powerd_analytics.energy.reasons import clipped, digits, seconds, without_readings
from powerd_analytics.energy.rest import merged, rest_energy_j
from powerd_analytics.energy.whole import whole_of
from powerd_analytics.runs.phases import as_range
from powerd_analytics.runs.run import Run
from powerd_analytics.signals.slices import load_bounded
from powerd_analytics.tables.rows import RunRow

UNSURE = "too few readings to tell how sure that is"


def run_row(run: Run, part: Part, columns: PhaseColumns, *, is_unused: bool = False) -> RunRow:
    """The whole run on the device of a part; ``columns`` are the energies of its phases."""
    begin, end = np.array([run.begin_ns]), np.array([run.end_ns])
    none = np.zeros(1, np.int64)
    whole = interval_energies(part, begin, end, none, none)
    power_w, silent = _mean_w(run, part)
    # The sum without a line that has no readings is not the device's energy, nor is 0 J that of a device without any.
    energy = float(whole.linear_j[0]) if not silent else None
    p = run.phases
    top = (p.parent < 0) & columns.resolvable
    together = as_range(top)
    first, last = merged(p.begin_ns[together], p.end_ns[together])
    phases_j = rest_j = residual = None
    notes = []
    if top.any():
        cover = whole_of(part, first, last, is_given=True)
        if cover.is_resolvable and energy is not None:
            phases_j = cover.energy.energy_j
            rest_j = rest_energy_j(part, (begin, end), (first, last), cover.given)
            residual = energy - phases_j - rest_j
    missing, clip, u95 = float(whole.missing_s[0]), clipped(part, begin, end), float(whole.u95_j[0])
    is_lower_bound = clip.is_lower_bound and energy is not None
    if energy is None:
        notes.append(f"not resolvable: no readings of {', '.join(silent)}")
    elif missing > 1e-3 * float(whole.duration_s[0]):
        notes.append(without_readings(missing, float(np.nan_to_num(whole.off_by_j[0])), clip))
    if energy is not None and not clip and np.isnan(u95):
        notes.append(UNSURE)
    notes += ["used by no rank"] if is_unused else []
    notes += _causes(run, part)
    if not run.is_complete:
        notes.append("incomplete: the training process vanished or a part was cut off")
    notes += [note for note in (clip.note(has_number=energy is not None), *_counted(run, part)) if note]
    return RunRow(
        device=part.device,
        provenance=part.provenance,
        time_s=float(whole.duration_s[0]),
        energy_j=energy,
        u95_j=None if clip or energy is None or np.isnan(u95) else known(u95, energy),
        power_w=power_w,
        phases_j=phases_j,
        rest_j=rest_j,
        residual_j=residual,
        missing_s=missing,
        is_lower_bound=is_lower_bound,
        note="; ".join(notes),
    )


def _causes(run: Run, part: Part) -> list[str]:
    """Why readings of a part are missing: one text for each cause, with how often and for how long."""
    names = {s.line.name for s in part.signals}
    found: dict[str, list[float]] = {}
    for gap in run.gaps:
        if names.intersection(gap.lines):
            found.setdefault(gap.cause, []).append((gap.end_ns - gap.begin_ns) * 1e-9)
    return [f"missing {seconds(sum(s))} in {len(s)} gaps: {cause}" for cause, s in found.items()]


def _mean_w(run: Run, part: Part) -> tuple[float | None, list[str]]:
    """Mean power over what each line's integral covers: from its first reading to its last, holes bridged. None where
    it covers nothing of the run for lines, whose names follow."""
    total_w, silent = 0.0, []
    for signal in part.signals:
        covered_ns = 0
        if len(signal) > 1:
            begin_ns, end_ns = max(run.begin_ns, int(signal.t_ns[0])), min(run.end_ns, int(signal.t_ns[-1]))
            # What a counter counted in an interval in which it began anew is not in its integral.
            covered_ns = end_ns - begin_ns - signal.set_back_ns()
        if covered_ns > 0:
            total_w += float(line_energies((signal,), begin_ns, end_ns)[0]) / (covered_ns * 1e-9)
        else:
            silent.append(signal.line.name)
    return (None if silent else total_w), silent


def _counted(run: Run, part: Part) -> list[str]:
    """What sensors of the device counted themselves over the run, as a wall meter's integration: they miss nothing
    between readings, so for the whole run theirs is the better figure."""
    notes = []
    for name in run.compared(part.device):
        line = run.lines[name]
        if line.quantity != "energy_j" or line.provenance.value != part.provenance:
            continue
        counter = Part(part.device, part.provenance, (load_bounded(run, name),))
        none = np.zeros(1, np.int64)
        whole = interval_energies(counter, np.array([run.begin_ns]), np.array([run.end_ns]), none, none)
        missing = float(whole.missing_s[0])
        if not missing <= 0.5 * float(whole.duration_s[0]):
            notes.append(f"{name} counted for less than half of the run")
            continue
        u95 = float(whole.u95_j[0])
        sure = f", {UNSURE}" if np.isnan(u95) else f" ± {digits(u95, 2)}"
        short = f", {seconds(missing)} not counted" if missing > 1e-3 * float(whole.duration_s[0]) else ""
        notes.append(f"{name} itself counted {digits(float(whole.linear_j[0]))} J{sure}{short}")
    return notes
