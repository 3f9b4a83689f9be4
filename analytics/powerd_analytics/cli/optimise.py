"""`joules optimise`: what batch size and power limit cost a training that recurs, and how policies choose them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from cyclopts import App, Parameter

from powerd_analytics.cli import shared
from powerd_analytics.output.terminal import LateProgress
from powerd_core.errors import ConfigError
from powerd_core.text import printable

if TYPE_CHECKING:
    from powerd_analytics.optimise.policy import Trial
    from powerd_analytics.optimise.recurrences import Recurrences
    from powerd_analytics.optimise.simulate import SimulatedHistory
    from powerd_analytics.optimise.traces import JobTrace
    from powerd_analytics.optimise.watched_training import Command

Traces = Annotated[
    Path,
    Parameter(help="A campaign's folder, an index, Zeus' traces (a directory), or a table with a row a training."),
]
Gpu = Annotated[str | None, Parameter(help="Whose traces, such as v100; of several in the directory.")]
Eta = Annotated[float, Parameter(help="Of the cost: 1 counts energy alone, 0 time alone.")]
Jobs = Annotated[list[str] | None, Parameter(negative="", help="Only this job. May be repeated.")]
State = Annotated[Path, Parameter(help="SQLite file of what is known; made where it is not there.")]
JobName = Annotated[str, Parameter(help="Name of what recurs.")]
_JOB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@ -]{0,99}", re.ASCII)
"""Its run files are called so."""
N = TypeVar("N", int, float)


app = App(
    name="optimise",
    help="""Choose batch size and power limit of a training that recurs.

Policies are tried on traces; what could be saved is said by knob.

For example:

  joules optimise suggest --traces zeus/ --gpu v100

  joules optimise simulate --traces zeus/ --gpu v100 --policy ours

  joules optimise run --batch-sizes 32,64 --target 0.9 -- ./train {batch_size}""",
    help_format="plaintext",
)


@app.command
def simulate(
    *,
    traces: Traces,
    gpu: Gpu = None,
    policy: Annotated[str, Parameter(help="ours, or zeus for reference.")] = "ours",
    eta: Eta = 0.5,
    seed: Annotated[list[int] | None, Parameter(negative="", help="Of everything drawn. May be repeated.")] = None,
    job: Jobs = None,
    recurrences: Annotated[
        int | None, Parameter(help="How often each job recurs; without it twice its batch sizes times its limits.")
    ] = None,
    format: shared.Format = None,
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Let a policy choose for every recurrence of the traced jobs.

    The table compares its cost with that of the default settings and of an oracle
    that always takes the settings of the least expected cost. JSON has a row for
    each job and seed.

    For example:

      joules optimise simulate --traces zeus/ --gpu v100 --policy zeus --format json

      joules optimise simulate --traces runs.csv --seed 1 --seed 2
    """
    from powerd_analytics.optimise import advice
    from powerd_analytics.optimise.policy import find_policy
    from powerd_analytics.optimise.simulate import simulate as simulated
    from powerd_analytics.output.export import to_json_text

    find_policy(policy)
    if recurrences is not None and recurrences < 1:
        raise ConfigError("--recurrences: must be 1 or more")
    form = shared.form_of(format, output)
    shared.check_output(output, form, overwrite)
    known = _read(traces, gpu, eta, job)
    seeds = seed or [1]
    histories: list[SimulatedHistory] = []
    with LateProgress() as progress:
        for trace in known:
            for one in seeds:
                progress(len(histories) / (len(known) * len(seeds)), f"{trace.job.name}, seed {one}")
                histories.append(simulated(trace, policy, seed=one, recurrences=recurrences))
    if form == "json":
        text = to_json_text([advice.history_row(history) for history in histories]) + "\n"
        shared.put_out(text, output, overwrite)
    else:
        of_jobs = [list(group) for _, group in groupby(histories, key=lambda history: history.trace.job.name)]
        shared.put_tables([advice.history_table(of_jobs, policy)], form, output, overwrite)


@app.command
def suggest(
    *,
    traces: Traces,
    gpu: Gpu = None,
    eta: Eta = 0.5,
    job: Jobs = None,
    plot: Annotated[Path | None, Parameter(help="Picture to write (.png, .pdf, .svg).")] = None,
    kind: Annotated[
        Literal["savings", "front"],
        Parameter(
            help="Of the picture. savings: a bar for each knob; front: energy over time of all settings, and the same "
            "near those that no others beat."
        ),
    ] = "savings",
    format: shared.Format = None,
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Say which settings are best, and what each knob could save.

    For every job: the savings of energy by choosing the limit alone, the batch
    size alone or both; the settings of the least cost; those that no others beat
    in energy and in time; and what could be saved by whoever may be a few per cent
    slower.

    For example:

      joules optimise suggest --traces zeus/ --gpu v100

      joules optimise suggest --traces zeus/ --gpu v100 --plot savings.png

      joules optimise suggest --traces runs.csv --plot front.png --kind front
    """
    from powerd_analytics.optimise import advice
    from powerd_analytics.output.export import to_json_text

    form = shared.form_of(format, output)
    shared.check_output(output, form, overwrite)
    if plot is not None:
        shared.refuse_picture(plot, overwrite)
    elif kind != "savings":
        raise ConfigError(f"--kind {kind} needs a picture to write, as in --plot {kind}.png")
    known = _read(traces, gpu, eta, job)
    if plot is not None:
        from powerd_analytics import plots

        draw = {"savings": plots.draw_savings, "front": plots.draw_front}[kind]
        figure = draw(known, f"{traces.name} {gpu or ''}".strip(), "measured" if traces.is_dir() else "")
        shared.write(plot, lambda path: plots.save(figure, path), overwrite)
    if form == "json":
        text = to_json_text([advice.suggestion_row(trace) for trace in known]) + "\n"
        shared.put_out(text, output, overwrite)
    else:
        shared.put_tables(advice.suggestion_tables(known), form, output, overwrite)


@app.command
def run(
    *command: Annotated[
        str, Parameter(help="The training, after --; {batch_size} in it is replaced.", allow_leading_hyphen=True)
    ],
    batch_sizes: Annotated[str, Parameter(help="That may be chosen: 16,32,64. The first is the default one.")],
    target: Annotated[float, Parameter(help="The metric at which a training has done its work.")],
    metric: Annotated[str, Parameter(help="Its name, as the training gives it to meter.result.")] = "metric",
    lower_is_better: Annotated[bool, Parameter(negative="", help="Of the metric, such as a loss.")] = False,
    max_epochs: Annotated[int, Parameter(help="After which a training is given up, and ended.")] = 100,
    power_caps: Annotated[
        str, Parameter(help="Power limits in W that may be chosen: 120,160,200. None is set without it.")
    ] = "",
    max_power: Annotated[
        float | None, Parameter(help="Of the device in W: what a second is worth, with --eta; else the greatest limit.")
    ] = None,
    eta: Annotated[float, Parameter(help="Of the cost: 1 counts energy alone, 0 time alone.")] = 1.0,
    policy: Annotated[str, Parameter(help="ours, or zeus for reference.")] = "ours",
    job: JobName = "job",
    state: State = Path("optimise.sqlite"),
    tries: Annotated[int, Parameter(help="Trainings of this recurrence until one reaches the target.")] = 3,
    window: Annotated[float, Parameter(help="Seconds for which each limit is profiled at least.")] = 2.0,
    settle: Annotated[float, Parameter(help="Seconds that the device takes to follow a limit.")] = 1.0,
    device: Annotated[str | None, Parameter(help="Whose joules count; the GPUs, else all devices, without it.")] = None,
    url: Annotated[
        list[str] | None,
        Parameter(negative="", help="A running powerd, as in tcp://board:7360; a local one without it."),
    ] = None,
    runs: Annotated[
        Path | None, Parameter(help="Directory of the run files JOB-1.h5, JOB-2.h5, ...; that of the state without it.")
    ] = None,
) -> int:
    """Carry out one recurrence of a training, as a policy chooses.

    The training is recorded. It says after every epoch how good it is,
    meter.result(epoch=3, top1=0.71), and ends when it has reached its target. The
    policy chooses its batch size, ends it by SIGTERM where it is not worth its
    cost, and learns from its joules, its seconds and its epochs. With --power-caps
    it chooses the power limit too, which is held under lease by powerd-control;
    without that helper the batch size alone is chosen. Recurrences may overlap.
    Exits with 1 where the target was not reached.

    For example:

      joules optimise run --batch-sizes 64,32 --target 0.9 -- ./train {batch_size}

      joules optimise run --batch-sizes 64,32 --power-caps 150,200 --target 0.9 \\
        --metric top1 -- python train.py --batch {batch_size}
    """
    from powerd_analytics.optimise import watched_training as live
    from powerd_analytics.optimise.policy import Job, Target, TrainingSettings
    from powerd_analytics.optimise.recurrences import Recurrences

    if not any("{batch_size}" in word for word in command):
        raise ConfigError("the training needs {batch_size} where its batch size stands, as in: --batch {batch_size}")
    if _JOB_NAME.fullmatch(job) is None:
        raise ConfigError(f"--job {printable(job)}: letters, digits and _ . + = @ - , as its run files are called so")
    sizes, caps_w = _numbers("--batch-sizes", batch_sizes, int), _numbers("--power-caps", power_caps, float)
    if eta < 1 and max_power is None and not caps_w:
        raise ConfigError(f"--eta {eta:g}: a second has to be worth something, say --max-power WATTS")
    if max_epochs < 1 or tries < 1:
        raise ConfigError("--max-epochs and --tries: must be 1 or more")
    if not (window > 0 and settle >= 0):
        raise ConfigError("--window and --settle: must be seconds above 0")
    folder = state.parent if runs is None else runs
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no directory: make it first")
    if caps_w and (why := live.why_no_limits(caps_w)):
        # What is learnt without limits is another thing: an epoch costs something else.
        shared.warn([f"the batch size alone is chosen, as {job}-unlimited: no power limit can be set: {why}"])
        caps_w, job = [], f"{job}-unlimited"
    recurring = Job(
        job, tuple(sorted(sizes)), tuple(sorted(caps_w)), TrainingSettings(sizes[0], max(caps_w, default=None)),
        Target(target, lower_is_better), max_epochs, max_power or max(caps_w, default=1.0), eta,
    )  # fmt: skip
    training = live.Command(command, metric, device, tuple(url or ()), window, settle)
    known = Recurrences(state, recurring, policy)
    recurrence = known.new_recurrence()
    for _ in range(tries):
        if _carry_out(known, known.begin(recurrence), training, folder):
            return 0
    return 1


def _numbers(option: str, text: str, kind: type[N]) -> list[N]:
    """Raises `ConfigError`."""
    try:
        numbers = [kind(part) for part in text.split(",") if text]
    except ValueError:
        raise ConfigError(f"{option} {text}: {'whole ' if kind is int else ''}numbers with commas between") from None
    if any(not number > 0 for number in numbers) or len(set(numbers)) < len(numbers):
        raise ConfigError(f"{option} {text}: each once, and above 0")
    return numbers


def _carry_out(known: Recurrences, trial: Trial, command: Command, folder: Path) -> bool:
    """Record one training and learn from it, whatever becomes of it; whether it reached the target."""
    from powerd_analytics.optimise import watched_training as live
    from powerd_analytics.optimise.policy import Observation, Outcome
    from powerd_client.journals.journal import free_name

    batch_size, out = trial.settings.batch_size, free_name(folder / f"{known.job.name}-{trial.number + 1}.h5")
    outcome, rest = Outcome("lost", 0, 0.0, 0.0, trial.settings), list[Observation]()
    shared.warn([f"recurrence {trial.recurrence + 1} of {known.job.name}: {_said(trial)}"])
    try:
        status, outcome, rest = live.train(trial, known.job, command, known.observe, out)
    finally:
        known.end(trial, outcome, rest, out)
    if outcome.ending == "lost":
        raise ConfigError(f"{out}: this training taught nothing: it exited with {status}, in {outcome.epochs} epochs")
    cost_j = known.job.cost_j(outcome.energy_j, outcome.time_s)
    what = {"reached": "target reached", "stopped": "stopped, as it is not worth its cost,"}
    cap_w = outcome.settings.power_cap_w
    at = f"batch size {batch_size}" + ("" if cap_w is None else f" and {cap_w:g} W")
    spent = f"{outcome.energy_j:.4g} J, {outcome.time_s:.4g} s, cost {cost_j:.4g} J"
    text = what.get(outcome.ending, "target not reached")
    shared.warn([f"{text} in {outcome.epochs} epochs at {at}: {spent} ({out})"])
    return outcome.is_reached


def _said(trial: Trial) -> str:
    text = f"batch size {trial.settings.batch_size}"
    if trial.profile_caps_w:
        return f"{text}, profiling {', '.join(f'{cap:g}' for cap in trial.profile_caps_w)} W"
    return text if trial.settings.power_cap_w is None else f"{text}, {trial.settings.power_cap_w:g} W"


def _read(traces: Path, gpu: str | None, eta: float, jobs: Sequence[str] | None) -> list[JobTrace]:
    """The traced jobs that are asked for. Raises `ConfigError` and `AnalysisError`."""
    from powerd_analytics.optimise.traces import read_runs, read_zeus, traces_of_runs, zeus_gpus
    from powerd_core.text import did_you_mean

    if not 0 <= eta <= 1:
        raise ConfigError(f"--eta {eta:g}: must lie between 0 and 1")
    if (rows := shared.runs_of(traces)) is not None:
        known = traces_of_runs(rows, str(traces), eta)
    elif traces.is_dir():
        there = zeus_gpus(traces)
        if gpu is None and len(there) != 1:
            raise ConfigError(f"{traces} has traces of {', '.join(there) or 'no GPU'}: name one with --gpu")
        known = read_zeus(traces, gpu or there[0], eta)
    else:
        known = read_runs(traces, eta)
    names = [trace.job.name for trace in known]
    unknown = next((job for job in jobs or () if job not in names), None)
    if unknown is not None:
        raise ConfigError(f"--job {unknown}: not in these traces{did_you_mean(unknown, names)}")
    return [trace for trace in known if not jobs or trace.job.name in jobs]
