"""The quick exploration of power caps: the whole grid, or rounds that go where a run tells most.

`joules campaign caps` makes of a plain command a campaign with one factor, the cap. An adaptive one begins with five
caps twice (`adaptive`); where it cannot promise a best cap, it measures the best one's neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

from powerd_analytics.campaigns.adaptive import PROMISE, Adaptive, Verdict
from powerd_analytics.campaigns.design import Cell, Control, Design, Guard, Item, Repeats, Simulation
from powerd_analytics.campaigns.journal import History, Result
from powerd_core import verdict as settings
from powerd_core.errors import ConfigError
from powerd_core.gpu_physics import Card
from powerd_core.lease import Range

FACTOR = "power_cap_w"
_MOST_TWICE = 1000
"""Blocks from this number on hold what a round has a second time, and so on."""


def levels_of(caps: Range, step_w: float, from_w: float | None, to_w: float | None) -> list[int | float]:
    """The levels of the grid in watts: from the greatest down by the step, and the default. Raises `ConfigError`."""
    least, greatest = from_w or caps.least, to_w or caps.greatest
    if step_w <= 0 or not caps.least <= least < greatest <= caps.greatest:
        raise ConfigError(
            f"caps from {least:g} to {greatest:g} W by {step_w:g} W: they can be set from {caps.least:g} to "
            f"{caps.greatest:g} W, by a step above 0"
        )
    count = int((greatest - least) / step_w + 1e-9)
    levels = {round(greatest - i * step_w, 3) for i in range(count + 1)}
    levels |= {float(caps.default)} if isinstance(caps.default, float) else {greatest}
    return [int(level) if float(level).is_integer() else level for level in sorted(levels)]


def caps_design(
    command: Sequence[str], levels: Sequence[int | float], default_w: float, repeats: int, devices: str, seed: int,
    simulation: Simulation,
) -> Design:  # fmt: skip
    """The campaign of a command over caps."""
    escaped = tuple(word.replace("{", "{{").replace("}", "}}") for word in command)
    default = int(default_w) if float(default_w).is_integer() else default_w
    return Design(
        name="caps",
        command=escaped,
        factors={FACTOR: tuple(levels)},
        reference={FACTOR: default},
        seed=seed,
        repeats=Repeats(repeats, repeats),
        guard=Guard(),
        control=Control(devices),
        simulation=simulation,
    )


class Rounds:
    """The plan of an adaptive sweep: what the journal holds decides what comes next, so a killed one goes on."""

    def __init__(self, design: Design, metric: str, like: Card | None = None) -> None:
        default = next(cell for cell in map(design.reference_of, design.cells()) if cell is not None).levels[FACTOR]
        self.design = design
        self._cells = {float(cell.levels[FACTOR]): cell for cell in design.cells()}
        self._adaptive = Adaptive(sorted(self._cells), float(default), metric, design.seed, like=like)
        self._round = 0

    def next_block(self, history: History) -> list[Item]:
        verdict = self.verdict(history)
        if verdict is not None:
            return [] if verdict.is_promised else self._of_neighbours(verdict, history)
        items = self._of_round()
        if given_up := [item for item in items if history.record(item).is_given_up]:
            raise ConfigError(f"no run at {given_up[0].cell} counts: the rounds cannot go on without it")
        todo = [item for item in items if not history.record(item).is_done]
        # The run at the least cap comes alone: it may say that no cap binds.
        is_first = self._round == 0 and len(todo) == len(items)
        return [item for item in todo if float(item.cell.levels[FACTOR]) == min(self._cells)] if is_first else todo

    def planned(self, history: History) -> int:
        """Of this round; the rest depends on what it gives."""
        return history.done + len(self.next_block(history))

    def verdict(self, history: History) -> Verdict | None:
        """How the rounds ended, after all that the journal holds of them; None while they go on."""
        while items := self._of_round():
            results = [history.record(item).result for item in items]
            if self._round == 0 and self._is_flat(items, results):
                self._adaptive.end_flat()
                break
            for item, result in zip(items, results, strict=True) if all(results) else ():
                assert result is not None
                self._adaptive.observe(float(item.cell.levels[FACTOR]), result.energy_j, result.time_s)
            if not all(results):
                return None
            self._round += 1
        return self._adaptive.verdict

    def _is_flat(self, items: Sequence[Item], results: Sequence[Result | None]) -> bool:
        """Whether the run at the least cap was never held back by it, as the driver has counted."""
        least = min(self._cells)
        return any(
            result is not None and result.verdict == settings.Verdict.SLACK
            for item, result in zip(items, results, strict=True)
            if float(item.cell.levels[FACTOR]) == least
        )

    def _of_round(self) -> list[Item]:
        caps = self._adaptive.next_round() or []
        return self._items(self._round, [self._cells[cap] for cap in caps])

    def _items(self, number: int, cells: Sequence[Cell]) -> list[Item]:
        """The runs of a round; what it has twice is in another block the second time."""
        items: list[Item] = []
        for cell in cells:
            twice = sum(other.cell == cell for other in items)
            block = number + _MOST_TWICE * twice
            items.append(Item(cell, block, self.design.seed + block))
        return items

    def _of_neighbours(self, verdict: Verdict, history: History) -> list[Item]:
        """The next block of the best cap, those beside it and the reference: each that has too few runs yet, once."""
        missing = dict(verdict.remaining)
        for block in range(_MOST_TWICE // 2, _MOST_TWICE // 2 + self.design.repeats.max):
            at = block - _MOST_TWICE // 2
            cells = [cell for cell in self.design.cells() if missing.get(float(cell.levels[FACTOR]), 0) > at]
            items = self.design.block(block, cells)
            todo = [item for item in items if not history.record(item).is_done and item.cell.id not in history.left]
            if todo:
                return todo
        return []


def promise_text(verdict: Verdict, metric: str) -> str:
    """What the rounds can promise, as a sentence."""
    if verdict.is_flat:
        return (
            "the least cap never held the GPU back, as its driver has counted: no cap matters, and the default is as "
            "good as any"
        )
    if verdict.is_promised:
        return (
            f"after {verdict.runs} runs: at {verdict.cap_w:g} W the {metric} is within {_by(verdict.excess)} of the "
            "least that any cap has (95 %), by the curve through all of them"
        )
    return (
        f"after {verdict.runs} runs no cap can be promised to be within {100 * PROMISE:g} % of the least {metric} (so "
        f"far {verdict.cap_w:g} W, within {_by(verdict.excess)}): it and those beside it were measured more"
    )


def _by(excess: float) -> str:
    """A share in per cent; below a tenth, the curve's form decides and no run."""
    return f"{100 * excess:.2g} %" if excess >= 1e-3 else "0.1 %"


def train_command(cap_w: float, devices: str, command: Sequence[str]) -> str:
    """What to type to train at a cap."""
    from shlex import join

    of = f" --devices {devices}" if devices else ""
    return f"joules record --power-cap {cap_w:g}{of} -- {join(command)}"
