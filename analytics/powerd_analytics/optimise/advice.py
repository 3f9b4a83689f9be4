"""What people read of histories and of traces: rows for programs, tables of 80 columns.

The uncertainty of an energy or a time in a trace is that of the mean number of epochs (Student's t over the traced
trainings of a batch size): what an epoch takes hardly varies beside it. TrainingSettings of one batch size share it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from powerd_analytics.energy.metrics import pareto_front
from powerd_analytics.frame.best import best_of_means
from powerd_analytics.frame.figure import Figure
from powerd_analytics.optimise.policy import TrainingSettings
from powerd_analytics.optimise.simulate import LAST, SimulatedHistory, oracle, potential_savings
from powerd_analytics.optimise.traces import NEVER, JobTrace
from powerd_analytics.output.export import Column, Table, make_table
from powerd_analytics.output.text import Cell, digits, first_of

SLOWER_PCT = (0, 5, 10, 20)
"""Of the time with the default settings, what one may be slower."""


# ---- histories -----------------------------------------------------------------------------------------------------


def history_row(history: SimulatedHistory) -> dict[str, Cell]:
    """One history, for programs."""
    job, last = history.trace.job, history.runs[-LAST:]
    settings = history.last_settings
    return {
        "job": job.name,
        "policy": history.policy,
        "seed": history.seed,
        "eta": job.eta,
        "recurrences": history.recurrences,
        "runs": len(history.runs),
        "failures": history.failures,
        "energy_j": history.energy_j,
        "time_s": history.time_s,
        "last5_energy_j": fmean(run.energy_j for run in last),
        "last5_time_s": fmean(run.time_s for run in last),
        "last5_batch_size": settings.batch_size,
        "last5_power_cap_w": settings.power_cap_w,
        "cost_j": math.fsum(history.costs_j()),
        "default_cost_j": math.fsum(history.default_j),
        "oracle_cost_j": math.fsum(history.oracle_j),
        "regret": history.regret(),
        "regret_first20": history.regret(20),
    }


def history_table(histories: Sequence[Sequence[SimulatedHistory]], policy: str) -> Table:
    """Histories by job and seed, for people; of several seeds the means, and of the settings the most frequent."""
    columns = (
        Column("job"),
        Column("runs", "integer", "1"),
        Column("failures", "integer", "1", heading="failed"),
        Column("energy_j", "number", "J", heading="MJ", per=1e6),
        Column("time_s", "number", "s", heading="h", per=3600.0),
        Column("against_default_pct", "text", "%", heading="default"),
        Column("against_oracle_pct", "text", "%", heading="oracle"),
        Column("regret", "text", "1"),
        Column("last", heading="last"),
    )
    rows: list[list[Cell]] = []
    for seeds in histories:
        costs = [math.fsum(h.costs_j()) for h in seeds]
        default = fmean(c / math.fsum(h.default_j) for c, h in zip(costs, seeds, strict=True))
        best = fmean(c / math.fsum(h.oracle_j) for c, h in zip(costs, seeds, strict=True))
        settings = [h.last_settings for h in seeds]
        rows.append(
            [
                seeds[0].trace.job.name,
                round(fmean(len(h.runs) for h in seeds)),
                sum(h.failures for h in seeds) or None,
                fmean(h.energy_j for h in seeds),
                fmean(h.time_s for h in seeds),
                _percent(default - 1),
                _percent(best - 1),
                digits(fmean(h.regret() for h in seeds), 3),
                _shown(max(settings, key=settings.count)).removesuffix(" W"),
            ]
        )
    first = histories[0]
    seeds_text = f"{len(first)} seeds" if len(first) > 1 else f"seed {first[0].seed}"
    title = f"policy {policy}, eta {first[0].trace.job.eta:g}, {seeds_text}"
    notes = [
        "default, oracle: cost against the default settings, and against the best ones",
        "taken every time; regret: cost beyond the oracle's, in its recurrences; last:",
        "batch size and limit in W of the last runs.",
    ]
    return make_table("histories", title, columns, rows, notes)


# ---- trainings that were carried out -------------------------------------------------------------------------------


# ---- traces --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alternative:
    """Settings, what reaching the target takes with them, and the half-widths of its 95 % intervals."""

    settings: TrainingSettings
    energy_j: float
    time_s: float
    u95_share: float | None
    """Of energy and time alike; None where it is not known, from a single training."""

    def document(self) -> dict[str, Cell]:
        u = self.u95_share
        return {
            "batch_size": self.settings.batch_size,
            "power_cap_w": self.settings.power_cap_w,
            "energy_j": self.energy_j,
            "u95_energy_j": None if u is None else u * self.energy_j,
            "time_s": self.time_s,
            "u95_time_s": None if u is None else u * self.time_s,
        }


def alternatives(trace: JobTrace) -> list[Alternative]:
    """All traced settings with which the target is reached."""
    return [
        Alternative(settings, expected.energy_j, expected.time_s, _u95_share(trace, settings))
        for settings in trace.settings
        if (expected := trace.expected(settings)).time_s < NEVER
    ]


def _u95_share(trace: JobTrace, settings: TrainingSettings) -> float | None:
    """Of the mean energy of runs that are alike, or of the mean number of epochs, relative.

    Epochs are whole, and all may be equal by chance: the next training differs by one with a probability of 1 / (n + 2)
    at least (Laplace's rule of succession).
    """
    if trace.u95_shares is not None:
        return trace.u95_shares.get(settings)
    epochs = [min(curve.epochs, trace.job.max_epochs) for curve in trace.curves[settings.batch_size]]
    n = len(epochs)
    if n < 2:
        return None
    spread = max(stdev(epochs), math.sqrt(n + 1) / (n + 2))
    mean = Figure(fmean(epochs), spread / math.sqrt(n), degrees_of_freedom=n - 1.0)
    return None if mean.u95 is None else mean.u95 / mean.value


def front(trace: JobTrace) -> list[Alternative]:
    """The settings that no others beat in energy and in time, fastest first."""
    known = alternatives(trace)
    places = pareto_front([a.time_s for a in known], [a.energy_j for a in known])
    return [known[place] for place in places]


def as_good(trace: JobTrace) -> list[TrainingSettings]:
    """The settings of the least cost, and those that cannot be told from them by the traced trainings."""
    best = oracle(trace)
    # One batch size has the same epochs under every limit.
    are_alike = trace.u95_shares is not None
    others = [s for s in trace.settings if s != best and (are_alike or s.batch_size != best.batch_size)]
    costs_j = {settings: trace.expected_cost_j(settings) for settings in [best, *others]}
    u95_j = {s: u95 * cost for s, cost in costs_j.items() if (u95 := _u95_share(trace, s)) is not None}
    known = [settings for settings, cost in costs_j.items() if settings in u95_j and cost != NEVER]
    if best not in known:
        return [best]
    found = best_of_means([costs_j[settings] for settings in known], [u95_j[settings] for settings in known])
    return [known[row] for row in found.as_good]


def slower(trace: JobTrace) -> dict[int, Alternative]:
    """By the per cent of the default settings' time that one may be slower, what takes the least energy."""
    limit_s = trace.expected(trace.job.default).time_s
    found = {}
    for pct in SLOWER_PCT:
        quick = [a for a in alternatives(trace) if a.time_s <= limit_s * (1 + pct / 100) * (1 + 1e-12)]
        found[pct] = min(quick, key=lambda a: a.energy_j)
    return found


def suggestion_row(trace: JobTrace) -> dict[str, Any]:
    """All that is suggested for a job, for programs."""
    job, savings = trace.job, potential_savings(trace)
    before = trace.expected(job.default)
    best = next(a for a in alternatives(trace) if a.settings == oracle(trace))
    return {
        "job": job.name,
        "eta": job.eta,
        "default": {
            "batch_size": job.default.batch_size, "power_cap_w": job.default.power_cap_w,
            "energy_j": before.energy_j, "time_s": before.time_s,
        },
        "savings_pct": {
            "power_cap": savings.power_cap_pct, "batch_size": savings.batch_size_pct, "both": savings.both_pct,
        },
        "best": best.document(),
        "as_good": [{"batch_size": s.batch_size, "power_cap_w": s.power_cap_w} for s in as_good(trace)],
        "pareto": [a.document() for a in front(trace)],
        "slower": [{"slower_pct": pct, **a.document()} for pct, a in slower(trace).items()],
    }  # fmt: skip


def suggestion_tables(traces: Sequence[JobTrace]) -> list[Table]:
    """The same, for people."""
    return [_slower_table(traces), _best_table(traces), _savings_table(traces), _front_table(traces)]


def _change(trace: JobTrace, of: TrainingSettings, name: str) -> dict[str, Cell]:
    """Energy of settings off the default's in per cent, with U95. One batch size takes the same epochs under all
    limits, so that only what is alike but for noise has any there."""
    default = trace.job.default
    ratio = trace.expected(of).energy_j / trace.expected(default).energy_j
    is_exact = of == default or (trace.u95_shares is None and of.batch_size == default.batch_size)
    shares = [_u95_share(trace, settings) for settings in (of, default)]
    u95 = 0.0 if is_exact else None if None in shares else ratio * math.hypot(*(s for s in shares if s is not None))
    return {name: 100 * (ratio - 1), f"u95_{name}": None if u95 is None else 100 * u95}


def _pct(name: str, heading: str) -> tuple[Column, Column]:
    """Columns of `_change`."""
    u95 = Column(f"u95_{name}", "number", "%", heading="± U95", missing="", is_uncertainty=True)
    return Column(name, "number", "%", heading=f"{heading} %"), u95


def _joules(traces: Sequence[JobTrace], name: str) -> Column:
    is_large = max(trace.expected(trace.job.default).energy_j for trace in traces) >= 1e6
    per, heading = (1e6, "MJ") if is_large else (1e3, "kJ")
    is_u95 = name.startswith("u95_")
    return Column(name, "number", "J", heading="± U95" if is_u95 else heading, per=per, is_uncertainty=is_u95)


def _seconds(traces: Sequence[JobTrace], name: str) -> Column:
    is_long = max(trace.expected(trace.job.default).time_s for trace in traces) >= 3600
    is_u95 = name.startswith("u95_")
    per, heading = (3600.0, "h") if is_long else (1.0, "s")
    return Column(name, "number", "s", heading="± U95" if is_u95 else heading, per=per, is_uncertainty=is_u95)


def _savings_table(traces: Sequence[JobTrace]) -> Table:
    columns = [
        Column("job"), Column("default"), _joules(traces, "energy_j"),
        *(Column(f"{name}_pct", "number", "%", heading=f"{heading} %")
          for name, heading in (("power_cap", "limit"), ("batch", "batch"), ("both", "both"))),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for trace in traces:
        savings, default = potential_savings(trace), trace.job.default
        shares = [0.0 - savings.power_cap_pct, 0.0 - savings.batch_size_pct, 0.0 - savings.both_pct]
        rows.append([trace.job.name, _shown(default), trace.expected(default).energy_j, *shares])
    return make_table("savings", "Energy that each knob could save", columns, rows)


def _best_table(traces: Sequence[JobTrace]) -> Table:
    columns = [
        Column("job"), Column("best"), *_pct("energy_pct", "energy"),
        Column("time_pct", "number", "%", heading="time %"), Column("equals", heading="as good"),
    ]  # fmt: skip
    rows: list[dict[str, Cell]] = []
    for trace in traces:
        best, default = trace.expected(oracle(trace)), trace.expected(trace.job.default)
        alike = as_good(trace)[1:]
        texts = [str(s.batch_size) if trace.u95_shares is None else _shown(s) for s in alike]
        row: dict[str, Cell] = {"job": trace.job.name, "best": _shown(oracle(trace))}
        row |= _change(trace, oracle(trace), "energy_pct")
        row |= {"time_pct": 100 * (best.time_s / default.time_s - 1)}
        rows.append(row | {"equals": first_of(list(dict.fromkeys(texts)), ", ", 3)})
    return make_table("best", f"Best settings, eta {traces[0].job.eta:g}, against the default", columns, rows)


def _slower_table(traces: Sequence[JobTrace]) -> Table:
    columns = [
        Column("job"), *(column for pct in SLOWER_PCT[1:] for column in _pct(f"slower_{pct}_pct", f"{pct}")),
        Column("settings", heading=f"at {SLOWER_PCT[1]} %"),
    ]  # fmt: skip
    rows: list[dict[str, Cell]] = []
    for trace in traces:
        found, row = slower(trace), dict[str, Cell](job=trace.job.name)
        for pct, alternative in found.items():
            row |= _change(trace, alternative.settings, f"slower_{pct}_pct")
        rows.append(row | {"settings": _shown(found[SLOWER_PCT[1]].settings)})
    notes = ["energy off the default settings', for whoever may be so many per cent slower"]
    return make_table("slower", "What is saved by those who may be slower", columns, rows, notes)


def _front_table(traces: Sequence[JobTrace]) -> Table:
    columns = [
        Column("job"), Column("batch_size", "integer", "1", heading="batch"),
        Column("power_cap_w", "number", "W", heading="limit W"),
        _joules(traces, "energy_j"), _joules(traces, "u95_energy_j"), _seconds(traces, "time_s"),
        _seconds(traces, "u95_time_s"),
    ]  # fmt: skip
    rows = [{"job": trace.job.name, **alternative.document()} for trace in traces for alternative in front(trace)]
    return make_table("pareto", "Settings that no others beat in energy and in time", columns, rows)


def _shown(settings: TrainingSettings) -> str:
    """Batch size and limit; where a training has no batch size, its limit."""
    cap = "" if settings.power_cap_w is None else f"{settings.power_cap_w:g} W"
    return f"{settings.batch_size if settings.batch_size > 1 else ''} {cap}".strip()


def _percent(share: float) -> str:
    text = f"{100 * share:+.1f}"
    return f"{text if float(text) else '0.0'} %"
