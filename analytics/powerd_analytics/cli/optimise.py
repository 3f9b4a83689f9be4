"""`joules optimise`: what batch size and power limit cost a training that recurs, and how policies choose them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from powerd_analytics.cli import shared
from powerd_analytics.terminal import LateProgress
from powerd_core.errors import ConfigError

if TYPE_CHECKING:
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

  joules optimise simulate --traces zeus/ --gpu v100 --policy ours""",
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
