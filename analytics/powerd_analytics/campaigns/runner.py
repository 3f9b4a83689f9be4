"""The engine of a campaign: takes block after block, lets each run be made, verifies it, and writes the journal.

What a block is and which cells go on is data (`Blocks`, or the rounds of an adaptive sweep); who makes a run is an
executor. A runner that was killed at any moment goes on where it was: the journal is all that it knows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Protocol

from powerd_analytics.campaigns import stopping
from powerd_analytics.campaigns.design import KNOBS, Cell, Design, Item
from powerd_analytics.campaigns.executors import FAILED, NO_WORK, OUT_OF_MEMORY, UNMEASURED, Executor, Local
from powerd_analytics.campaigns.guard import Clock, NvmlThermometer, RealClock, Thermometer, Wait
from powerd_analytics.campaigns.journal import Discard, History, Journal, Result
from powerd_analytics.frame.merits import merit_of
from powerd_client.host.ownership import make_folder, set_aside
from powerd_core.errors import ConfigError, ControlError, RunFileError
from powerd_core.text import printable

_LARGEST_SCRIPT = 1 << 20
RUNS, ASIDE = "runs", "discarded"
_MOST_GIVEN_UP = 2
"""So many runs whose command failed every time, before the first result, end the campaign: the command is wrong."""
_FIRST_RUNS = 3
"""A cell whose first runs were all given up, so many, is not tried any more."""


class Plan(Protocol):
    """Which runs come next."""

    def next_block(self, history: History) -> list[Item]:
        """Those of the block that is to do, without the ones that are done; none at the end."""

    def planned(self, history: History) -> int:
        """How many runs the campaign will have, as far as is known."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of all cells, and, from the least number of repeats on, of those whose interval is not narrow yet."""

    design: Design
    only: int | None = None
    """This block alone."""

    def next_block(self, history: History) -> list[Item]:
        for number in range(self.design.repeats.max) if self.only is None else [self.only]:
            items = self.design.block(number, self.cells(number, history))
            todo = [i for i in items if not history.record(i).is_done and i.cell.id not in history.left]
            if todo:
                return todo
        return []

    def cells(self, number: int, history: History) -> list[Cell]:
        """The cells of a block. Those that others are compared with are in it as long as one of these is."""
        repeats, every = self.design.repeats, self.design.cells()
        if number < repeats.min:
            return list(every)
        if repeats.until is None:
            return list(every) if number < repeats.max else []
        wide = [cell for cell in every if cell.id not in history.left and not self._is_done(cell, number, history)]
        references = {r.id for cell in wide if (r := self.design.reference_of(cell)) is not None}
        needed = references | {cell.id for cell in wide}
        return [cell for cell in every if cell.id in needed]

    def _is_done(self, cell: Cell, number: int, history: History) -> bool:
        until = self.design.repeats.until
        assert until is not None
        records = [history.records.get(Item(cell, block, 0).key) for block in range(number)]
        results = [r.result for r in records if r is not None and r.result is not None]
        rule = stopping.StoppingRule(until.half_width, self.design.repeats.min, self.design.repeats.max)
        merit = merit_of(until.metric)
        return bool(results) and rule.is_done([merit.ratio(result.energy_j, result.time_s) for result in results])

    def planned(self, history: History) -> int:
        todo, repeats = 0, self.design.repeats
        for number in range(repeats.max) if self.only is None else [self.only]:
            if todo and number >= repeats.min and repeats.until is not None:
                break  # which cells it has depends on what those before it give
            items = self.design.block(number, self.cells(number, history))
            todo += sum(not history.record(i).is_done and i.cell.id not in history.left for i in items)
        return history.done + todo


@dataclass(frozen=True, slots=True)
class Left:
    """What is still to go, by what runs took so far; None where nothing is known yet."""

    runs: int
    seconds: float | None
    energy_j: float | None


def estimate_left(runs: int, history: History) -> Left:
    """What so many runs will take."""
    n = history.verified
    return Left(runs, runs * history.took_s / n, runs * history.took_j / n) if n else Left(runs, None, None)


@dataclass(frozen=True, slots=True)
class Step:
    """What the runner tells of its work."""

    item: Item
    text: str
    done: int
    left: Left
    is_end: bool = False
    """Of a run: false while it goes on."""


Tell = Callable[[Step], None]


@dataclass(slots=True)
class Runner:
    """Makes the runs of a plan. Raises, and leaves everything so that it can go on: `RunFileError` for a disk that is
    full, `PeerError` or `ControlError` where nothing can be recorded or set, `ConfigError` for a command that fails
    every time; KeyboardInterrupt ends the run that is going on."""

    design: Design
    plan: Plan
    executor: Executor
    journal: Journal
    tell: Tell = lambda step: None
    clock: Clock = field(default_factory=RealClock)
    thermometer: Thermometer = field(default_factory=NvmlThermometer)
    _planned: int = 0

    def run(self) -> None:
        self._put_aside()
        is_first = True
        self._planned = self.plan.planned(self.journal.history)
        while block := self.plan.next_block(self.journal.history):
            if is_first and self.design.guard.warm_up_s and isinstance(self.executor, Local):
                self._say(block[0], f"warming up for {self.design.guard.warm_up_s:g} s")
                self._warm_up(block[0], self.executor)
            is_first = False
            self._planned = self.plan.planned(self.journal.history)
            self._note_temperature()
            for item in block:
                self._make(item)

    def _warm_up(self, item: Item, executor: Local) -> None:
        file = self.journal.folder / RUNS / "warm-up.h5"
        make_folder(file.parent)
        _set_run_aside(self.journal.folder, file)
        executor.warm_up(item, self.design.guard.warm_up_s, file)
        _set_run_aside(self.journal.folder, file)

    def _note_temperature(self) -> None:
        guard, history = self.design.guard, self.journal.history
        if guard.start_within_c is not None and history.start_c is None:
            now_c = self.thermometer.read_c()
            if now_c is not None:
                self.journal.write("temperature", start_c=now_c)

    def _put_aside(self) -> None:
        """Files of runs of whose end nothing was heard are no results; they are kept beside these."""
        for name in self.journal.unfinished:
            _set_run_aside(self.journal.folder, self.journal.folder / name)
        for key, record in list(self.journal.history.records.items()):
            result = record.result
            if result is not None and result.file and not _is_there(self.journal.folder / result.file, result):
                self.journal.write("forgotten", item=key, file=result.file)

    def _make(self, item: Item) -> None:
        history, guard = self.journal.history, self.design.guard
        while not (record := history.record(item)).is_done and item.cell.id not in history.left:
            if record.failures and self._leaves(item, record.discards[-1]):  # a runner was killed before it said so
                return
            attempt = record.attempts + 1
            name = f"{RUNS}/{item.key}-{attempt}.h5"
            note = Wait(guard, self.thermometer, self.clock).until_ready(
                history.start_c, lambda text: self._say(item, text)
            )
            self._say(item, "running")
            make_folder(self.journal.folder / RUNS)
            _set_run_aside(self.journal.folder, self.journal.folder / name)  # whoever has put it there
            self.journal.write("started", item=item.key, cell=item.cell.id, attempt=attempt, file=name)
            begin_s = self.clock.now_s()
            # Of what a killed runner has begun the executor hears nothing: its run is the first one again.
            outcome = self.executor.run(item, len(record.discards) + 1, self.journal.folder / name)
            if isinstance(outcome, Result) and self._did_nothing(outcome):
                outcome = Discard(NO_WORK, "it had no iteration, and others had: did it find a finished checkpoint?")
            if isinstance(outcome, Result):
                self._verified(item, name, outcome, note, self.clock.now_s() - begin_s)
            else:
                self._discarded(item, name, outcome)

    def _did_nothing(self, result: Result) -> bool:
        return result.iterations == 0 and any(other.iterations for other in self.journal.history.results().values())

    def _verified(self, item: Item, name: str, result: Result, note: str, took_s: float) -> None:
        file = self.journal.folder / name
        result = replace(
            result,
            note="; ".join(text for text in (result.note, note) if text),
            file=name if file.exists() else "",
            file_bytes=file.stat().st_size if file.exists() else 0,
        )
        self.journal.write(
            "verified", item=item.key, cell=item.cell.id, levels=dict(item.cell.levels), block=item.block, file=name,
            took_s=round(took_s, 3), result=result,
        )  # fmt: skip
        verdict = f", {result.verdict}" if result.verdict else ""
        self._say(item, f"{result.energy_j:.4g} J, {result.time_s:.4g} s{verdict}", is_end=True)

    def _discarded(self, item: Item, name: str, why: Discard) -> None:
        history = self.journal.history
        _set_run_aside(self.journal.folder, self.journal.folder / name)
        self.journal.write("discarded", item=item.key, reason=why.reason, text=why.text, file=name)
        self._say(item, f"does not count: {why.reason}{f': {printable(why.text)}' if why.text else ''}", is_end=True)
        if not self._leaves(item, why) or why.reason not in (FAILED, UNMEASURED):
            return
        failed = [r for r in history.given_up().values() if r.discards[-1].reason in (FAILED, UNMEASURED)]
        if len(failed) >= _MOST_GIVEN_UP and not history.results():
            attempts = sum(len(record.discards) for record in failed)
            told = f"{attempts} attempts at {len(failed)} runs failed"
            raise ConfigError(f"{told}, and none went well: {printable(why.text)}")

    def _leaves(self, item: Item, why: Discard) -> bool:
        """Give up the run that was made often enough, and leave out the cell that has no memory, or none of whose first
        runs went well; whether it was one of these."""
        history = self.journal.history
        of_cell = history.of_cell(item.cell.id)
        has_none = not any(record.result for record in of_cell)
        is_last = history.record(item).failures > self.design.guard.retries
        if is_last:
            self.journal.write("given-up", item=item.key)
        is_left = why.reason == OUT_OF_MEMORY and has_none
        if is_left or (has_none and is_last and sum(record.is_given_up for record in of_cell) >= _FIRST_RUNS):
            self.journal.write("left", cell=item.cell.id, reason=why.reason, text=why.text)
        return is_last or is_left

    def _say(self, item: Item, text: str, *, is_end: bool = False) -> None:
        history = self.journal.history
        self.tell(Step(item, text, history.done, estimate_left(self._planned - history.done, history), is_end))


def _set_run_aside(folder: Path, file: Path) -> None:
    """Move a run that does not count, its journal and its log to those that do not, under a name that is free:
    KEY-1.h5, KEY-1-2.h5, ... Raises `RunFileError`."""
    names = (file.with_stem(file.stem if n == 1 else f"{file.stem}-{n}").name for n in count(1))
    free = next(n for n in names if not any(map(os.path.lexists, _of_run(folder / ASIDE / n))))
    for path, place in zip(_of_run(file), _of_run(folder / ASIDE / free), strict=True):
        try:
            set_aside(path, place)
        except OSError as error:
            if isinstance(error, RunFileError):
                raise
            raise RunFileError(f"{path} cannot be moved to {place}: {error.strerror}") from error


def _of_run(file: Path) -> tuple[Path, Path, Path]:
    """A run file, its journal, and the log of its command."""
    return file, file.with_name(f"{file.name}.journal"), file.with_suffix(".log")


def _is_there(file: Path, result: Result) -> bool:
    """Whether a run file is as it was when it was verified."""
    try:
        return os.stat(file).st_size == result.file_bytes
    except OSError:
        return False


def run_pilot(design: Design, executor: Executor, journal: Journal) -> Design:
    """The design with what its pilot finds, which runs where it has not yet. Raises `ConfigError` where it fails."""
    if design.pilot is not None and journal.history.pilot is None:
        make_folder(journal.folder / RUNS)
        files = [journal.folder / RUNS / f"pilot-{number}.h5" for number in range(design.pilot.runs)]
        for file in files:
            _set_run_aside(journal.folder, file)
        journal.write("pilot", value=max(executor.pilot(number, file) for number, file in enumerate(files)))
    return design.with_pilot(journal.history.pilot)


def named_files(design: Design) -> dict[str, str]:
    """Digests of the files that the command names, such as the training's script; of each level's where a level is in
    a name. What is larger than a script is data, or the interpreter."""
    names: set[str] = set()
    for cell in design.cells():
        item = Item(cell, 0, design.seed_in(0))
        names.update(design.argv(item))
    names.update(design.pilot.command if design.pilot is not None else ())
    found: dict[str, str] = {}
    for name in sorted(names):
        with suppress(OSError, ValueError):  # a word that is no path
            if (path := Path(name)).is_file() and path.stat().st_size <= _LARGEST_SCRIPT:
                found[name] = sha256(path.read_bytes()).hexdigest()[:16]
    return found


def changed_files(design: Design, history: History) -> str:
    """Which of the files that the command names are not as they were for the last run; empty for none."""
    now, before = named_files(design), history.files
    return ", ".join(sorted(n for n in {*now, *before} if now.get(n) != before.get(n))) if before is not None else ""


def begin(design: Design, executor: Executor, journal: Journal, *, changed_script: bool = False) -> Design:
    """The design as it is run: levels of knobs as numbers, by what the knobs take. A campaign that was begun keeps the
    ones of its beginning.

    Raises `ConfigError` where the design is another one than the folder was begun with, where a file that the command
    names has changed unless with ``changed_script``, or a level cannot be set, and `ControlError` where knobs are to be
    turned and nobody can.
    """
    needed = {name for name in KNOBS if name in design.factors}
    files = named_files(design) if isinstance(executor, Local) else {}
    ranges = executor.ranges() if needed else {}
    if missing := needed - set(ranges):
        raise ControlError(f"nobody here can set {', '.join(sorted(missing))}: see docs/howto/control.md")
    resolved = design.resolved(ranges)
    if not journal.history.fingerprint:
        what = {"name": resolved.name, "levels": resolved.levels, "files": files}
        journal.write("begun", fingerprint=resolved.fingerprint, **what)
    elif journal.history.fingerprint != resolved.fingerprint:
        raise ConfigError(
            f"{journal.folder} holds another design: the command, the factors, the work or the seed have changed since "
            "it was begun; give --into another folder"
        )
    elif isinstance(executor, Local) and (names := changed_files(resolved, journal.history)):
        runs = journal.history.verified
        if not changed_script:
            raise ConfigError(
                f"changed since the campaign's {runs} runs: {names}; put it back, give --into another folder, or go on "
                "with --changed-script"
            )
        journal.write("changed", files=files, text=f"changed after {runs} runs: {names}")
    return resolved
