"""`joules optimise`: what batch size and power limit cost a training that recurs, and how policies choose them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from powerd_analytics.cli import shared
from powerd_analytics.terminal import LateProgress
from powerd_core.errors import AnalysisError, ConfigError

if TYPE_CHECKING:
    from powerd_analytics.optimise.policy import Ending, Job, Observation, Outcome, Trial
    from powerd_analytics.optimise.recurrences import Recurrences
    from powerd_analytics.optimise.simulate import History
    from powerd_analytics.optimise.traces import JobTrace

Traces = Annotated[
    Path,
    Parameter(
        help="Directory of Zeus' traces (summary_train.csv, summary_power_GPU.csv), or a table with a row a run."
    ),
]
Gpu = Annotated[str | None, Parameter(help="Whose traces, such as v100; of several in the directory.")]
Eta = Annotated[float, Parameter(help="Of the cost: 1 counts energy alone, 0 time alone.")]
Jobs = Annotated[list[str] | None, Parameter(negative="", help="Only this job. May be repeated.")]
WIDTH = 80


app = App(
    name="optimise",
    help="""Choose batch size and power limit of a training that recurs.

Policies are tried on traces; what could be saved is said by knob.

For example:

  joules optimise suggest --traces zeus/ --gpu v100

  joules optimise simulate --traces zeus/ --gpu v100 --policy ours

  joules optimise run --batch-sizes 32,64,128 --target 0.9 -- python train.py --batch {batch_size}""",
    help_format="plaintext",
)


@app.command
def simulate(
    *,
    traces: Traces,
    gpu: Gpu = None,
    policy: Annotated[
        str, Parameter(help="ours, tilt, zeus, zeus-window, mended-zeus, fixed, grid, or one of another package.")
    ] = "ours",
    eta: Eta = 0.5,
    seed: Annotated[list[int] | None, Parameter(negative="", help="Of everything drawn. May be repeated.")] = None,
    job: Jobs = None,
    recurrences: Annotated[
        int | None, Parameter(help="How often each job recurs; without it twice its batch sizes times its limits.")
    ] = None,
    drift: Annotated[
        Literal["none", "jump", "tilt", "season"],
        Parameter(help="How the epochs that a batch size needs change meanwhile."),
    ] = "none",
    concurrency: Annotated[int, Parameter(help="Recurrences that go on at any time.")] = 1,
    format: shared.TextOrJson = "text",
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Let a policy choose for every recurrence of the traced jobs.

    The table compares its cost with that of the default settings and of an oracle that
    always takes the settings of the least expected cost. JSON has a row for each job
    and seed.

    For example:

      joules optimise simulate --traces zeus/ --gpu v100 --policy zeus --seed 1 --format json

      joules optimise simulate --traces zeus/ --gpu v100 --policy tilt --drift jump --seed 1 --seed 2
    """
    from powerd_analytics.export import to_json_text
    from powerd_analytics.optimise import advice
    from powerd_analytics.optimise.policy import find_policy
    from powerd_analytics.optimise.simulate import simulate as simulated

    find_policy(policy)
    if concurrency < 1 or (recurrences is not None and recurrences < 1):
        raise ConfigError("--concurrency and --recurrences: must be 1 or more")
    shared.refuse_existing(output, overwrite)
    known = _read(traces, gpu, eta, job)
    seeds = seed or [1]
    histories: list[History] = []
    with LateProgress() as progress:
        for trace in known:
            for one in seeds:
                progress(len(histories) / (len(known) * len(seeds)), f"{trace.job.name}, seed {one}")
                options = {"seed": one, "recurrences": recurrences, "drift": drift, "concurrency": concurrency}
                histories.append(simulated(trace, policy, **options))  # type: ignore[arg-type]
    if format == "json":
        text = to_json_text([advice.history_row(history) for history in histories]) + "\n"
    else:
        of_jobs = [list(group) for _, group in groupby(histories, key=lambda history: history.trace.job.name)]
        text = shared.tables_text([advice.history_table(of_jobs, policy)], format, output, WIDTH)
    shared.put_out(text, output, overwrite)


@app.command
def suggest(
    *,
    traces: Traces,
    gpu: Gpu = None,
    eta: Eta = 0.5,
    job: Jobs = None,
    plot: Annotated[Path | None, Parameter(help="Picture of the savings by knob to write (.png, .pdf, .svg).")] = None,
    format: shared.TextOrJson = "text",
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Say which settings are best, and what each knob could save.

    For every job: the savings of energy by choosing the limit alone, the batch size
    alone or both; the settings of the least cost; those that no others beat in energy
    and in time; and what could be saved by whoever may be a few per cent slower.

    For example:

      joules optimise suggest --traces zeus/ --gpu v100

      joules optimise suggest --traces zeus/ --gpu v100 --job squad --plot savings.png
    """
    from powerd_analytics.export import to_json_text
    from powerd_analytics.optimise import advice

    shared.refuse_existing(output, overwrite)
    if plot is not None:
        shared.refuse_picture(plot, overwrite)
    known = _read(traces, gpu, eta, job)
    if format == "json":
        text = to_json_text([advice.suggestion_row(trace) for trace in known]) + "\n"
    else:
        text = shared.tables_text(advice.suggestion_tables(known), format, output, WIDTH)
    if plot is not None:
        from powerd_analytics import plots

        figure = plots.draw_savings(known, f"{traces.name} {gpu or ''}".strip())
        shared.write(plot, lambda path: plots.save(figure, path), overwrite)
    shared.put_out(text, output, overwrite)


@app.command
def run(
    *command: Annotated[
        str, Parameter(help="The training, after --; {batch_size} in it is replaced.", allow_leading_hyphen=True)
    ],
    batch_sizes: Annotated[str, Parameter(help="That may be chosen: 16,32,64. The first is the default one.")],
    target: Annotated[float, Parameter(help="The metric at which a training has done its work.")],
    metric: Annotated[str, Parameter(help="Its name, as the training gives it to meter.result.")] = "metric",
    lower_is_better: Annotated[bool, Parameter(negative="", help="Of the metric, such as a loss.")] = False,
    max_epochs: Annotated[int, Parameter(help="After which a training gives up.")] = 100,
    max_power: Annotated[
        float | None, Parameter(help="Of the device in W: what a second is worth, with --eta.")
    ] = None,
    eta: Annotated[float, Parameter(help="Of the cost: 1 counts energy alone, 0 time alone.")] = 1.0,
    policy: Annotated[str, Parameter(help="ours, tilt, mended-zeus, or one of another package.")] = "ours",
    job: Annotated[str, Parameter(help="Name of what recurs.")] = "job",
    state: Annotated[Path, Parameter(help="SQLite file of what is known; made where it is not there.")] = Path(
        "optimise.sqlite"
    ),
    tries: Annotated[int, Parameter(help="Trainings of this recurrence until one reaches the target.")] = 3,
    device: Annotated[str | None, Parameter(help="Whose joules count; the GPUs, else all devices, without it.")] = None,
    url: Annotated[
        list[str] | None,
        Parameter(negative="", help="A running powerd, as in tcp://board:7360; a local one without it."),
    ] = None,
    runs: Annotated[
        Path | None, Parameter(help="Directory of the run files JOB-1.h5, JOB-2.h5, ...; that of the state without it.")
    ] = None,
) -> int:
    """Carry out one recurrence of a training, with the batch size that a policy chooses.

    The training is recorded. It says after every epoch how good it is,
    meter.result(epoch=3, top1=0.71), and ends when it has reached its target. The
    policy learns from its joules, its seconds and its epochs. Recurrences may overlap.
    It does not stop a training, and it sets no power limit. Exits with 1 where the
    target was not reached.

    For example:

      joules optimise run --batch-sizes 64,32,128 --target 0.9 --metric top1 -- python train.py --batch {batch_size}
    """
    from powerd_analytics.optimise.policy import Job, Settings, Target
    from powerd_analytics.optimise.recurrences import Recurrences

    if not any("{batch_size}" in word for word in command):
        raise ConfigError("the training needs {batch_size} where its batch size stands, as in: --batch {batch_size}")
    try:
        sizes = [int(text) for text in batch_sizes.split(",")]
    except ValueError:
        raise ConfigError(f"--batch-sizes {batch_sizes}: whole numbers with commas between them") from None
    if min(sizes) < 1 or len(set(sizes)) < len(sizes):
        raise ConfigError(f"--batch-sizes {batch_sizes}: each once, and above 0")
    if eta < 1 and max_power is None:
        raise ConfigError(f"--eta {eta:g}: a second has to be worth something, say --max-power WATTS")
    if max_epochs < 1 or tries < 1:
        raise ConfigError("--max-epochs and --tries: must be 1 or more")
    folder = state.parent if runs is None else runs
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no directory: make it first")
    recurring = Job(
        job, tuple(sorted(sizes)), (), Settings(sizes[0]), Target(target, lower_is_better), max_epochs,
        1.0 if max_power is None else max_power, eta,
    )  # fmt: skip
    known = Recurrences(state, recurring, policy)
    recurrence = known.new_recurrence()
    for _ in range(tries):
        if _carry_out(known, known.begin(recurrence), command, metric, device, url, folder):
            return 0
    return 1


def _carry_out(
    known: Recurrences, trial: Trial, command: Sequence[str], metric: str, device: str | None,
    url: Sequence[str] | None, folder: Path,
) -> bool:  # fmt: skip
    """Record one training and learn from it, whatever becomes of it; whether it reached the target."""
    from powerd_analytics.optimise.policy import Outcome
    from powerd_client.recording import record_command

    batch_size, out = trial.settings.batch_size, folder / f"{known.job.name}-{trial.number + 1}.h5"
    words = [word.replace("{batch_size}", str(batch_size)) for word in command]
    outcome, observations = Outcome("lost", 0, 0.0, 0.0, trial.settings), []
    shared.warn([f"recurrence {trial.recurrence + 1} of {known.job.name}: batch size {batch_size}"])
    try:
        status = record_command(words, url=list(url or ()) or None, out=out, overwrite=False, quiet=True)
        observations = _observations(out, trial, metric, device)
        outcome = _outcome(observations, known.job, broke=status != 0)
    finally:
        known.end(trial, outcome, observations, out)
    if outcome.ending == "lost":
        raise ConfigError(f"{out}: this training taught nothing: it exited with {status}, in {outcome.epochs} epochs")
    cost_j = known.job.cost_j(outcome.energy_j, outcome.time_s)
    what = "target reached" if outcome.is_reached else "target not reached"
    spent = f"{outcome.energy_j:.4g} J, {outcome.time_s:.4g} s, cost {cost_j:.4g} J"
    shared.warn([f"{what} in {outcome.epochs} epochs: {spent} ({out})"])
    return outcome.is_reached


def _observations(out: Path, trial: Trial, metric: str, device: str | None) -> list[Observation]:
    """What a run says after each of its epochs. Its joules and seconds until there are those of the whole run, by its
    share of the time. Raises `AnalysisError` where no joules are known."""
    from powerd_analytics.optimise.policy import Observation
    from powerd_analytics.results import run_totals
    from powerd_analytics.runs.run import read_run
    from powerd_client.phase import RESULT

    run = read_run(out)
    rows = [row for row in run_totals(run) if device is None or row.device == device]
    counted = [row for row in rows if row.device.startswith("gpu")] or rows
    joules = [row.energy_j for row in counted if row.energy_j is not None]
    if not joules or len(joules) < len(counted):
        raise AnalysisError(f"{out}: no joules are known of {device or 'its devices'}: nothing was learnt from it")
    said = [e for e in run.events if e.name == RESULT and not e.rank and "epoch" in e.values and metric in e.values]
    energy_j, time_s = sum(joules), counted[0].time_s
    observations = []
    for event in said:
        share = (event.t_ns - run.begin_ns) / (run.end_ns - run.begin_ns) if event is not said[-1] else 1.0
        epoch, value = int(event.values["epoch"]), float(event.values[metric])
        observations.append(Observation(epoch, share * energy_j, share * time_s, trial.settings, value))
    return observations


def _outcome(observations: Sequence[Observation], job: Job, *, broke: bool) -> Outcome:
    """How a training ended, by what was seen of it."""
    from powerd_analytics.optimise.policy import Outcome, Settings

    if not observations or observations[-1].epoch < 1:
        return Outcome("lost", 0, 0.0, 0.0, Settings(job.default.batch_size))
    last = observations[-1]
    is_met = any(o.metric is not None and job.target.is_met(o.metric) for o in observations)
    ending: Ending = "reached" if is_met else "lost" if broke else "failed"
    return Outcome(ending, last.epoch, last.energy_j, last.time_s, last.settings)


def _read(traces: Path, gpu: str | None, eta: float, jobs: Sequence[str] | None) -> list[JobTrace]:
    """The traced jobs that are asked for. Raises `ConfigError` and `AnalysisError`."""
    from powerd_analytics.optimise.traces import read_runs, read_zeus, zeus_gpus
    from powerd_core.text import did_you_mean

    if not 0 <= eta <= 1:
        raise ConfigError(f"--eta {eta:g}: must lie between 0 and 1")
    if traces.is_dir():
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
