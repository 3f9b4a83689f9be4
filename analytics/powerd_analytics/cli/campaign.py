"""`joules campaign`: many runs by one file, their order, their journal and their tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from powerd_analytics.cli import shared
from powerd_analytics.output.terminal import LateProgress
from powerd_core.errors import ConfigError, RunFileError
from powerd_core.text import printable

if TYPE_CHECKING:
    from powerd_analytics.campaign_views.campaign_figures import Campaign
    from powerd_analytics.campaigns.design import Design
    from powerd_analytics.campaigns.executors import Executor
    from powerd_analytics.campaigns.journal import History, Journal
    from powerd_analytics.campaigns.runner import Left, Plan, Step
    from powerd_analytics.frame.figures import Frame

File = Annotated[Path, Parameter(help="The campaign's TOML file.")]
Into = Annotated[Path | None, Parameter(help="Its folder; without it the file's name without .toml.")]
Changed = Annotated[
    bool, Parameter(negative="", help="Go on though a file that the command names has changed; the tables say so.")
]
Retry = Annotated[bool, Parameter(negative="", help="Make the runs and cells again that were given up.")]
On = Annotated[str, Parameter(help="Compute the runs of a simulated card instead, as sim:rtx6000 or sim:CARD.toml.")]
Url = Annotated[list[str] | None, Parameter(negative="", help="A running powerd; a local one without it.")]

campaign = App(
    name="campaign",
    help="""Measure many settings by one file, whatever drifts meanwhile.

For example:

  joules campaign run caps.toml

  joules campaign caps --adaptive -- python train.py""",
    help_format="plaintext",
    help_on_error=False,
    default_parameter=Parameter(show_default=lambda value: None if value is False or value == () else value),
)


def read_design(file: Path) -> Design:
    """The file of its simulated card is beside it. Raises `RunFileError` for a file that cannot be read, `ConfigError`
    for one that is wrong; both name it."""
    from powerd_analytics.campaigns.campaign_file import design_of
    from powerd_core.serde import parse_toml

    try:
        design = design_of(parse_toml(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise RunFileError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is no text: give the campaign's TOML file") from error
    except ValueError as error:  # a `ConfigError` among them
        grammar = "" if isinstance(error, ConfigError) else "not valid TOML: "
        raise ConfigError(f"{file}: {grammar}{printable(str(error), limit=500)}") from error
    card = design.simulation.card
    if not card.endswith(".toml"):
        return design
    return replace(design, simulation=replace(design.simulation, card=str(file.parent / card)))


def folder_of(file: Path, into: Path | None) -> Path:
    """Where a campaign lies. Raises `ConfigError`."""
    if into is None and not file.suffix:
        raise ConfigError(f"{file} has no ending: name the campaign's folder with --into")
    return into or file.with_suffix("")


@dataclass(frozen=True, slots=True)
class Opened:
    """A campaign that was begun, to be looked at."""

    campaign: Campaign
    folder: Path

    @property
    def design(self) -> Design:
        return self.campaign.design

    @property
    def history(self) -> History:
        return self.campaign.history


def open_campaign(file: Path, into: Path | None) -> Opened:
    """Raises `RunFileError` where it has not begun."""
    from powerd_analytics.campaign_views.campaign_figures import Campaign
    from powerd_analytics.campaigns.journal import read_history
    from powerd_analytics.campaigns.results import with_rows

    design, folder = read_design(file), folder_of(file, into)
    history = read_history(folder)
    if not history.fingerprint:
        raise RunFileError(f"{folder} holds no campaign yet: `joules campaign run {file}` begins one")
    design = design.with_levels(history.levels).with_pilot(history.pilot)
    return Opened(Campaign(design, with_rows(history, design, folder)), folder)


def _executor(design: Design, on: str, url: Sequence[str] | None, keys: Path | None, lock: int = -1) -> Executor:
    from powerd_analytics.campaigns.executors import Local
    from powerd_analytics.campaigns.simulated import Simulated

    return Simulated.named(design, on) if on else Local(design, tuple(url or ()), keys, lock)


@campaign.command
def plan(file: File, *, into: Into = None, on: On = "") -> None:
    """Say what a campaign will do: cells, runs, time, and what is missing for it.

    For example: joules campaign plan caps.toml
    """
    from powerd_analytics.campaigns.journal import read_history
    from powerd_analytics.campaigns.runner import Blocks, changed_files, estimate_left
    from powerd_analytics.output.terminal import print_lines
    from powerd_core.errors import PowerdError

    design, folder = read_design(file), folder_of(file, into)
    problem = ""
    try:
        design = design.resolved(_executor(design, on, None, None).ranges())
    except PowerdError as error:
        problem = " ".join(str(error).split())
    history, cells = read_history(folder), design.cells()
    order = design.order.replace("-", " ")
    lines = [f"{design.name}: {len(cells)} cells, {_repeats_text(design)}, {order}, into {folder}/"]
    lines += [f"  {name}: {_levels_text(levels)}" for name, levels in design.factors.items()]
    lines += [f"  work of a run: {design.samples:g} samples"] if design.samples else []
    lines += [f"  first a pilot, for {design.pilot.sets}"] if design.pilot and history.pilot is None else []
    to_do = estimate_left(Blocks(design).planned(history) - history.done, history)
    item = design.block(0, cells)[0]
    lines += [f"  to do: {to_do.runs} runs{_cost_text(design, to_do)}", f"  for example: {' '.join(design.argv(item))}"]
    if design.knobs(item):
        lines.append(f"  held meanwhile: {', '.join(f'{n}={v}' for n, v in design.knobs(item).items())}")
    if not on and (names := changed_files(design, history)):
        lines.append(f"  changed since the runs that it has: {names}; to go on takes --changed-script")
    print_lines(lines)
    if problem:
        raise ConfigError(f"it cannot run as it is: {problem}")


def _repeats_text(design: Design) -> str:
    of = design.repeats
    if of.until is None:
        return f"{of.max} repeats"
    return f"{of.min} to {of.max} repeats, until {of.until.metric} ± {100 * of.until.half_width:g} %"


def _levels_text(levels: Sequence[object]) -> str:
    texts = list(map(str, levels))
    shown = texts if len(texts) <= 12 else [*texts[:5], "...", *texts[-2:]]
    return printable(f"{', '.join(shown)}{f'  ({len(texts)})' if len(texts) > 12 else ''}")


def _cost_text(design: Design, to_do: Left) -> str:
    from powerd_analytics.energy.metrics import money
    from powerd_analytics.output.text import digits
    from powerd_analytics.output.text import seconds as seconds_text

    if not to_do.runs or to_do.seconds is None or to_do.energy_j is None:
        return ""
    time = f"about {seconds_text(to_do.seconds)}" if to_do.seconds else "no time, as it is computed"
    text = f", {time}, {digits(to_do.energy_j / 3.6e3, 3)} Wh"
    if design.analysis.price_per_kwh is not None:
        text += f", {money(to_do.energy_j, design.analysis.price_per_kwh):.2f} {design.analysis.currency}"
    return text


@campaign.command
def run(
    file: File,
    *,
    into: Into = None,
    on: On = "",
    url: Url = None,
    keys: shared.Keys = None,
    block: Annotated[int | None, Parameter(help="Only the runs of this block, as a job of Slurm does.")] = None,
    here: Annotated[bool, Parameter(negative="", help="On this machine, whatever the file's executor is.")] = False,
    changed_script: Changed = False,
    retry: Retry = False,
) -> int:
    """Make the runs of a campaign; one that was begun goes on.

    Its folder has the journal (campaign.jsonl), runs/ and discarded/. Ctrl-C
    ends the run that is going on; the campaign can go on later. Exits with 1
    when a run was given up, or a cell has no result.

    For example:

      joules campaign run caps.toml

      joules campaign run examples/studies/krzywaniak.toml --on sim:rtx6000
    """
    from powerd_analytics.campaigns.executors import submit_blocks
    from powerd_analytics.campaigns.journal import Journal
    from powerd_analytics.campaigns.runner import Blocks, begin, run_pilot

    design, folder = read_design(file), folder_of(file, into)
    if design.executor.kind == "submitit" and block is None and not (here or on):
        with Journal(folder) as journal:
            executor = _executor(design, on, url, keys)
            run_pilot(begin(design, executor, journal, changed_script=changed_script), executor, journal)
            if retry:
                journal.write("retried")
        options = [word for address in url or () for word in ("--url", address)]
        jobs = submit_blocks(design, file.absolute(), folder, [*options, "--into", str(folder.absolute())])
        print(f"{len(jobs)} jobs, one a block: {jobs[0]} to {jobs[-1]}; `joules campaign status {file}` looks at them")
        return 0
    with Journal(folder, part=block, is_synced=not on) as journal:
        executor = _executor(design, on, url, keys, journal.lock)
        resolved = run_pilot(begin(design, executor, journal, changed_script=changed_script), executor, journal)
        if retry:
            journal.write("retried")
        executor = _executor(resolved, on, url, keys, journal.lock)
        return _carry_out(resolved, Blocks(resolved, block), executor, journal, file)


@campaign.command
def resume(
    file: File,
    *,
    into: Into = None,
    on: On = "",
    url: Url = None,
    keys: shared.Keys = None,
    changed_script: Changed = False,
    retry: Retry = False,
) -> int:
    """Go on with a campaign that was begun.

    For example: joules campaign resume caps.toml
    """
    open_campaign(file, into)
    return run(file, into=into, on=on, url=url, keys=keys, changed_script=changed_script, retry=retry)


def _carry_out(design: Design, plan: Plan, executor: Executor, journal: Journal, file: Path | None) -> int:
    from powerd_analytics.campaigns.executors import OUT_OF_MEMORY
    from powerd_analytics.campaigns.runner import Blocks, Runner

    with Shown(design) as shown:
        runner = Runner(design, plan, executor, journal, shown)
        try:
            runner.run()
        except KeyboardInterrupt:
            shown.close()
            again = f"`joules campaign resume {file}`" if file else "the same command"
            sys.stderr.write(f"joules campaign: stopped; {again} goes on\n")
            return 130
    history = journal.history
    if isinstance(plan, Blocks) and plan.only is not None:
        return 0
    too_large = {id for id, why in history.left.items() if why.reason == OUT_OF_MEMORY}
    lost = [key for key in history.given_up() if (item := design.item_of(key)) is None or item.cell.id not in too_large]
    if given_up := len(lost):
        again = f"joules campaign resume {file} --retry" if file else "the same command with --retry"
        runs = f"{given_up} run{'s were' if given_up > 1 else ' was'} given up"
        sys.stderr.write(f"joules campaign: {runs}; {again} makes {'them' if given_up > 1 else 'it'} again\n")
    if file is None:
        return int(given_up > 0)
    repeats = history.repeats()
    for cell in design.cells():
        if cell.id in too_large:
            sys.stderr.write(
                f"joules campaign: {printable(str(cell))} does not fit into the memory: that is its result\n"
            )
    missing = [str(cell) for cell in design.cells() if cell.id not in repeats and cell.id not in too_large]
    for text in missing[:10]:
        sys.stderr.write(f"joules campaign: no result of {printable(text)}\n")
    if max(repeats.values(), default=0) == 1:
        sys.stderr.write("joules campaign: one repeat of each cell tells nothing of chance: say min = 3 in [repeats]\n")
    print(f"{_state_text(design, history)}: see it with joules campaign table {file}")
    return int(bool(missing or given_up))


def _state_text(design: Design, history: History) -> str:
    repeats, given_up = history.repeats(), len(history.given_up())
    discarded = sum(len(record.discards) for record in history.records.values())
    cells = sum(cell.id in repeats for cell in design.cells())
    aside = f", {discarded} discarded" * (discarded > 0) + f", {given_up} given up" * (given_up > 0)
    return f"{sum(repeats.values())} runs, {cells} of {len(design.cells())} cells{aside}"


class Shown:
    """What a running campaign shows: a bar on a terminal, a line a run elsewhere."""

    def __init__(self, design: Design) -> None:
        from rich.console import Console

        self._design = design
        self._console = Console(stderr=True)
        self._bar: object = None

    def __enter__(self) -> Shown:
        if self._console.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._bar.add_task("", total=None)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        from rich.progress import Progress

        if isinstance(self._bar, Progress):
            self._bar.stop()
        self._bar = None

    def __call__(self, step: Step) -> None:
        from rich.markup import escape
        from rich.progress import Progress

        line = printable(f"block {step.item.block + 1}  {step.item.cell}: {step.text}")
        if not isinstance(self._bar, Progress):
            if step.is_end:
                self._console.print(
                    f"[{step.done}/{step.done + step.left.runs}] {line}", markup=False, highlight=False, soft_wrap=True
                )
            return
        cost = _cost_text(self._design, step.left)
        if step.is_end:
            self._bar.console.print(line, markup=False, highlight=False)
        self._bar.update(
            self._bar.task_ids[0], completed=step.done, total=step.done + step.left.runs,
            description=escape(f"to go{cost}  {step.item.cell}" if cost else str(step.item.cell)),
        )  # fmt: skip


@campaign.command
def status(file: File, *, into: Into = None, format: shared.TextOrJson = "text") -> None:
    """Say how far a campaign is: runs, discards and why, what is left to do.

    For example: joules campaign status caps.toml
    """
    from collections import Counter
    from json import dumps

    from powerd_analytics.campaign_views.campaign_figures import run_notes
    from powerd_analytics.campaigns.runner import Blocks, estimate_left

    c = open_campaign(file, into)
    to_do = estimate_left(Blocks(c.design).planned(c.history) - c.history.done, c.history)
    reasons = Counter(d.reason for record in c.history.records.values() for d in record.discards)
    if format == "json":
        results = len(c.history.results())
        document = {"campaign": c.design.name, "folder": str(c.folder), "results": results, "to_do": to_do.runs}
        document |= {"seconds_to_go": to_do.seconds, "joules_to_go": to_do.energy_j, "discards": dict(reasons)}
        document |= {"given_up": sorted(c.history.given_up())}
        print(dumps(document | {"left": {cell: why.reason for cell, why in c.history.left.items()}}, indent=1))
        return
    print(f"{c.design.name}: {_state_text(c.design, c.history)}")
    print(f"  to do: {to_do.runs} runs{_cost_text(c.design, to_do)}")
    for reason, count in reasons.most_common():
        print(f"  discarded, {reason}: {count}")
    for note in run_notes(c.design, c.history):
        print(f"  {note}")
    by_id = {cell.id: str(cell) for cell in c.design.cells()}
    for cell, why in c.history.left.items():
        print(printable(f"  left out, {by_id.get(cell, cell)}: {why.reason}{f' ({why.text})' if why.text else ''}"))


@campaign.command
def table(
    file: File,
    *,
    into: Into = None,
    which: Annotated[
        list[
            Literal[
                "cells",
                "phases",
                "accuracy",
                "minima",
                "ranges",
                "savings",
                "scaling",
                "floor",
                "machines",
                "marginals",
                "optimum",
                "slowdown",
                "efficiency",
                "averages",
                "gain",
                "kernels",
                "testbed",
                "merits",
                "spread",
                "trainings",
            ]
        ]
        | None,
        Parameter(name="--table", negative="", help="Only these."),
    ] = None,
    format: shared.Format = None,
    paper: Annotated[
        bool, Parameter(negative="", help="LaTeX for a paper: common levels in the caption, figures beside their U95.")
    ] = False,
    output: shared.Output = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Print the cells of a campaign, and the best of them with those as good.

    For example:

      joules campaign table caps.toml

      joules campaign table caps.toml --table minima -o minima.tex
    """
    from powerd_analytics.campaign_views.all_tables import campaign_tables

    c = open_campaign(file, into)
    form = "paper" if paper else shared.form_of(format, output)
    shared.check_output(output, form, overwrite, [file])
    # Where a format holds one table, and none is named, it is the cells.
    names = which or (["cells"] if form in ("csv", "json", "parquet") else [])
    tables = campaign_tables(c.campaign, tuple(names))
    shared.put_tables(tables, form, output, overwrite)


@campaign.command
def report(
    file: File,
    *,
    into: Into = None,
    output: Annotated[Path | None, Parameter(alias="-o", help="The page; FOLDER/report.html without it.")] = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Write one page about a campaign: its tables, its plots, what comes out of it.

    For example: joules campaign report caps.toml
    """
    from powerd_analytics.campaign_views.campaign_page import write_report

    c = open_campaign(file, into)
    out = output or c.folder / "report.html"
    if output is None:
        shared.refuse_by_hand(out, overwrite)
    shared.refuse_existing(out, overwrite or output is None, [file])
    shared.write(out, lambda partial: write_report(c.campaign, partial), overwrite=True)
    print(out)


@campaign.command
def plot(
    file: File,
    *,
    into: Into = None,
    kind: Annotated[
        list[str] | None, Parameter(negative="", help="Only these pictures, as sweep or normalised.")
    ] = None,
    beside: Annotated[
        list[str] | None,
        Parameter(negative="", help="Another campaign, as FILE or FILE:FOLDER, whose panel stands beside its own."),
    ] = None,
    output: Annotated[
        Path | None,
        Parameter(alias="-o", help="Folder for the pictures (its own without it), or the file of a single one."),
    ] = None,
    ending: Annotated[Literal["png", "pdf", "svg"], Parameter(help="Of the pictures in a folder.")] = "png",
    width: shared.Width = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Draw a campaign: every picture that it has, a file each.

    For example:

      joules campaign plot caps.toml

      joules campaign plot caps.toml --kind sweep -o sweep.pdf

      joules campaign plot rtx.toml --kind normalised --beside v100.toml
    """
    from powerd_analytics.campaign_views.campaign_page import pictures
    from powerd_analytics.plots import printed_at, save

    c = open_campaign(file, into)
    others = []
    for text in beside or ():
        name, _, own = text.partition(":")
        others.append(open_campaign(Path(name), Path(own) if own else None).campaign)
    drawn = {picture.name: picture for picture in pictures(c.campaign, others)}
    if unknown := [name for name in kind or () if name not in drawn]:
        raise ConfigError(f"--kind {unknown[0]}: this campaign has {', '.join(drawn) or 'no picture'}")
    chosen, folder = kind or list(drawn), output or c.folder
    is_file = folder.suffix.lower() in (".png", ".pdf", ".svg")
    if is_file and len(chosen) != 1:
        raise ConfigError(f"{folder} is one file, and there are {len(chosen)} pictures: choose one with --kind")
    if not is_file:
        folder.mkdir(parents=True, exist_ok=True)
    for name in chosen:
        path = folder if is_file else folder / f"{name}.{ending}"
        if output is None:
            shared.refuse_by_hand(path, overwrite)
        shared.refuse_picture(path, overwrite or output is None)
        with printed_at(width):
            shared.write(path, partial(save, drawn[name].draw()), overwrite=True)
        print(path)


@campaign.command
def fit(
    runs: Annotated[
        Path, Parameter(help="A campaign's folder, run files, an index, or a table (CSV or Parquet) with caps.")
    ],
    /,
    *,
    like: Annotated[
        str,
        Parameter(help="The card, or CARD.toml, that has what a sweep does not tell: clocks, memory, idle power."),
    ] = "rtx6000",
    where: Annotated[
        list[str] | None, Parameter(negative="", help="COLUMN=VALUE: only runs that have it. May be repeated.")
    ] = None,
    output: Annotated[Path | None, Parameter(alias="-o", help="File of the card to write, CARD.toml.")] = None,
    plot: Annotated[Path | None, Parameter(help="Draw points and fit as well (.png, .pdf, .svg).")] = None,
    overwrite: shared.Overwrite = False,
) -> None:
    """Fit a simulated card to a measured sweep of power caps.

    Prints the card's constants and those of each training with U95, what the sweep
    does not tell, and how far the card is off its points. The file is taken by
    --on sim:CARD.toml, powerd sim-gpu --card CARD.toml, and campaign caps --like.

    For example:

      joules campaign fit caps/ -o card.toml --plot card.png
    """
    from powerd_analytics.campaigns.card_fit import fit_card, fit_notes, sweep_of
    from powerd_analytics.frame.figures import rows_where
    from powerd_analytics.output.export import Column, make_table, with_provenance
    from powerd_core.card_file import KnownCard, card_named, card_text

    shared.refuse_existing(output, overwrite, [runs])
    if plot is not None:
        shared.refuse_picture(plot, overwrite)
    base = card_named(like, shared.read_text)
    sweep = sweep_of(rows_where(_sweep_frame(runs), where or []), str(runs))
    name = (sweep.product or base.card.name).removesuffix(_FITTED) + _FITTED
    found = fit_card(sweep.points, replace(base.card, name=name, limits_w=sweep.limits_w), scatter=sweep.scatter)
    columns = [
        Column("training"), Column("constant"), Column("value", "number", "1"),
        Column("u95", "number", "1", heading="± U95", missing="not told", is_uncertainty=True),
    ]  # fmt: skip
    rows = [[c.training or "the card", c.name, c.value, c.u95 if c.is_told else None] for c in found.constants]
    count = len(sweep.points)
    title = f"{name}: {sum(map(len, sweep.points.values()))} points of {count} training{'s' * (count > 1)}"
    table = make_table("card", title, columns, rows, [*fit_notes(found), *sweep.left_out])
    shared.put_out(shared.tables_text([with_provenance(table, sweep.provenances)], "text", None), None, overwrite=False)
    if output is not None:
        about = f"fitted to {' and '.join(sweep.provenances) or 'published'} power: {runs}"
        shared.put_out(card_text(KnownCard(found.card, base.like, found.networks), about), output, overwrite)
    if plot is not None:
        from powerd_analytics.campaign_views.pictures import draw_card
        from powerd_analytics.plots import save

        figure = draw_card(found, sweep.provenances)
        shared.write(plot, partial(save, figure), overwrite)


_FITTED = " (fitted)"
"""Behind the name of a card."""


def _sweep_frame(runs: Path) -> Frame:
    """The frame of what a card is fitted to."""
    from powerd_analytics.campaigns.results import frame_of_results
    from powerd_analytics.frame.index import is_index
    from powerd_analytics.frame.published import published_frame, read_table
    from powerd_analytics.frame.trainings import read_runs

    if (campaign := shared.campaign_of(runs)) is not None:
        return frame_of_results(*campaign)
    if runs.is_dir() or is_index(runs) or runs.suffix == ".h5":
        with LateProgress() as progress:
            return read_runs([runs], progress=progress)
    return published_frame(read_table(runs))


@campaign.command
def caps(
    *command: Annotated[str, Parameter(help="The training, after --.", allow_leading_hyphen=True)],
    gpu: Annotated[str, Parameter(help="Whose cap: 0, several as 0,1; those that may be used without it.")] = "",
    step: Annotated[float, Parameter(help="Watts between two caps.")] = 5.0,
    from_: Annotated[float | None, Parameter(name="--from", help="Least cap in W; the GPU's without it.")] = None,
    to: Annotated[float | None, Parameter(help="Greatest cap in W; the GPU's without it.")] = None,
    repeats: Annotated[int, Parameter(help="Runs at each cap of the grid.")] = 5,
    adaptive: Annotated[
        bool,
        Parameter(negative="", help="Five caps twice, then where a run tells most; the grid if that is not enough."),
    ] = False,
    like: Annotated[
        str,
        Parameter(help="With --adaptive: a card like this one, as CARD.toml of campaign fit."),
    ] = "",
    metric: Annotated[str, Parameter(help="What is to be least: e, edp, ed2p, eds:2, eds:1.5.")] = "edp",
    into: Annotated[Path, Parameter(help="Its folder; one that was begun goes on.")] = Path("caps"),
    seed: Annotated[int, Parameter(help="Of the orders of the blocks.")] = 1,
    on: On = "",
    network: Annotated[str, Parameter(help="With --on: what is trained, as vgg19.")] = "resnet50",
    url: Url = None,
    keys: shared.Keys = None,
    changed_script: Changed = False,
    retry: Retry = False,
) -> int:
    """Find the best power cap for a training.

    Prints the table of the caps, the best ones with those as good, and the command
    to train with.

    For example:

      joules campaign caps --gpu 0 --step 5 -- python train.py --epochs 1

      joules campaign caps --adaptive --metric edp -- python train.py --epochs 1
    """
    from powerd_analytics.campaign_views.all_tables import campaign_tables
    from powerd_analytics.campaign_views.campaign_figures import Campaign, is_single
    from powerd_analytics.campaigns.caps import Rounds, caps_design, levels_of, promise_text, train_command
    from powerd_analytics.campaigns.design import Simulation
    from powerd_analytics.campaigns.executors import knob_ranges
    from powerd_analytics.campaigns.journal import Journal
    from powerd_analytics.campaigns.runner import Blocks, begin
    from powerd_analytics.campaigns.simulated import Simulated
    from powerd_analytics.frame.merits import OF_A_SWEEP, merit_of
    from powerd_core.card_file import card_named
    from powerd_core.gpu_physics import CARDS

    if not command and not on:
        raise ConfigError("nothing to train: give the command after --: `joules campaign caps -- python train.py`")
    if like and not adaptive:
        raise ConfigError("--like goes with --adaptive: the whole grid needs no card to begin with")
    card = card_named(like, shared.read_text).card if like else None
    words = list(command) or ["python", "train.py"]
    merit = merit_of(metric)
    if not merit.is_relative:
        raise ConfigError(f"--metric {metric}: caps are compared by {', '.join(OF_A_SWEEP)} or sml")
    devices = ",".join(name if name.startswith("gpu") else f"gpu{name}" for name in gpu.split(",") if name)
    simulation = Simulation(network=network, iterations=250)
    draft = caps_design(words, [1], 1, max(repeats, 1), devices, seed, simulation)
    ranges = Simulated.named(draft, on).ranges() if on else knob_ranges(devices)
    if "power_cap_w" not in ranges:
        raise ConfigError(
            f"no GPU here has a power cap that can be set; {', '.join(f'--on sim:{c}' for c in CARDS)} try it"
        )
    range_of = ranges["power_cap_w"]
    levels = levels_of(range_of, step, from_, to)
    default_w = range_of.default if isinstance(range_of.default, float) else range_of.greatest
    design = caps_design(words, levels, default_w, max(repeats, 1), devices, seed, simulation)
    with Journal(into) as journal:
        executor = _executor(design, on, url, keys, journal.lock)
        design = begin(design, executor, journal, changed_script=changed_script)
        if retry:
            journal.write("retried")
        rounds = Rounds(design, merit.name, card) if adaptive else None
        status = _carry_out(design, rounds or Blocks(design), executor, journal, None)
        if status > 1:
            return status
        history = journal.history
    names = ("cells",) if is_single(history) else ("cells", "minima")
    verdict = rounds.verdict(history) if rounds is not None else None
    promised = {merit.name: verdict.cap_w} if verdict is not None and verdict.is_promised else {}
    made = Campaign(design, history, promised)
    for text in shared.tables_text(campaign_tables(made, names), "text", None), "\n":
        shared.put_out(text, None, overwrite=False)
    if verdict is not None:
        print(promise_text(verdict, merit.name))
    for group in made.groups if not is_single(history) else ():
        best = made.best(group, merit.name).cell.levels["power_cap_w"]
        print(f"to train with the least {merit.name}: {train_command(float(best), devices, words)}")
    return status
