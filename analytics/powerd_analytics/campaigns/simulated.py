"""A card that is computed instead of run: the executor of ``--on sim:CARD``.

Seconds and joules follow from `powerd_core.gpu_physics`, with the noise of runs, and a planted drift or heat where the
design asks for them. Where rows of the simulation give an iteration's seconds and joules (`design.SimulatedRow`), these
are replayed with the same noise: of a card that nobody has fitted, a published table is all that is known.
Nothing is recorded, and results say that they are simulated.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from powerd_analytics.campaigns.design import GPUS, KNOBS, Design, Item, agrees
from powerd_analytics.campaigns.executors import OUT_OF_MEMORY
from powerd_analytics.campaigns.journal import Discard, Result, phase_row, total_row
from powerd_analytics.frame.figures import RESULT
from powerd_core.card_file import card_named
from powerd_core.errors import ConfigError
from powerd_core.gpu_physics import (
    CARDS,
    EIGHT_CARDS,
    NETWORKS,
    XCEPTION,
    Card,
    Network,
    operate,
    operate_machine,
    timed,
)
from powerd_core.lease import Range

TRAININGS: Mapping[str, Network] = {**NETWORKS, "xception": XCEPTION}
"""What a simulated card can train, by name."""
_PACKAGE_W = 30.0, 400.0, 200.0
"""Least, greatest and default limit of a simulated processor."""
BINDS_FROM = 0.05
"""A cap that holds the clock back for a smaller share of the time does not bind."""
HEAT = 1.1
"""What a run that heat slows down takes longer."""


@dataclass(frozen=True, slots=True)
class _Iteration:
    """An iteration as it is at a cell."""

    time_s: float
    energy_j: float
    """Of what counts: a card, all cards, or the machine at the wall."""
    at_cap: float = 0.0
    phases: Mapping[str, tuple[float, float]] | None = None
    """Joules and seconds of each."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """A card of `powerd_core.gpu_physics` in no time."""

    design: Design
    card: Card
    trainings: Mapping[str, Network] = field(default_factory=lambda: TRAININGS)

    @classmethod
    def named(cls, design: Design, name: str) -> Simulated:
        """Of ``sim:CARD``, a card by its name or file, or of ``sim``, the card of the design. Raises `ConfigError`."""
        kind, _, card = name.partition(":")
        card = card or design.simulation.card
        if kind != "sim" or not (card in CARDS or card.endswith(".toml")):
            known = ", ".join(f"sim:{known}" for known in CARDS)
            raise ConfigError(
                f"--on {name}: there is {known}, sim:FILE.toml of a card that was fitted, and sim where a campaign's "
                "file names a card"
            )
        known_card = card_named(card, lambda name: Path(name).read_text(encoding="utf-8"))
        return cls(design, known_card.card, {**TRAININGS, **known_card.networks})

    def ranges(self) -> Mapping[str, Range]:
        least, default, greatest = self.card.limits_w
        core, memory = self.card.core_mhz, self.card.memory_mhz
        return {
            "power_cap_w": Range(least, greatest, default),
            "sm_clock_mhz": Range(core[0], core[-1], core[-1], tuple(map(float, core))),
            "mem_clock_mhz": Range(memory[0], memory[-1], memory[-1], tuple(map(float, memory))),
            "package_power_w": Range(*_PACKAGE_W),  # what it does to a training, rows of the simulation say
        }

    def pilot(self, number: int, file: Path) -> float:
        return self.design.simulation.pilot

    def run(self, item: Item, attempt: int, file: Path) -> Result | Discard:
        how, levels = self.design.simulation, item.cell.levels
        row = self._row(levels)
        if row.get("is_out_of_memory"):
            return Discard(OUT_OF_MEMORY, "the simulation says that it does not fit")
        draw = random.Random(f"{self.design.seed} {item.key} {attempt}")
        one = self._iteration(levels, row)
        samples, iterations, results = self._work(item, row)
        is_hot = draw.random() < how.throttled
        slower = (1 + how.noise * draw.gauss()) * (HEAT if is_hot else 1.0)
        dearer = 1 + how.noise * draw.gauss()
        if how.drift:  # to know when takes the order of the whole block
            dearer *= 1 + how.drift * self._when(item)
        if is_hot and "thermal" in self.design.guard.discard:
            return Discard("thermal", "slowed down by heat")
        verdict = "honoured, binding" if one.at_cap > BINDS_FROM else "honoured, slack"
        common = {**self._testbed(), "device": self._device(levels), "provenance": "simulated"}
        whole = total_row(iterations * one.energy_j * dearer, iterations * one.time_s * slower)
        if samples:
            whole |= {"iterations": max(1, round(iterations)), "samples_per_batch": samples / max(1, round(iterations))}
        names = ("operations_per_sample", "operations_executed_per_sample")
        said = {name: row[name] for name in names if row.get(name)} | {f"{RESULT}{n}": v for n, v in results.items()}
        of_phases = [
            phase_row(n, iterations * j * dearer, iterations * s * slower) for n, (j, s) in (one.phases or {}).items()
        ]
        return Result(
            tuple(common | of for of in [whole | said, *of_phases]),
            verdict if set(levels) & set(KNOBS) else "",
            kernels=_kernels(row.get("kernels", ())),
        )

    def _testbed(self) -> dict[str, Any]:
        least, default, greatest = self.card.limits_w
        limits = {"least_power_limit_w": least, "default_power_limit_w": default, "greatest_power_limit_w": greatest}
        return {"device_name": f"{self.card.name} (simulated)", **limits}

    def _row(self, levels: Mapping[str, Any]) -> dict[str, Any]:
        """What the rows of the simulation say of a cell, later rows over earlier ones."""
        found: dict[str, Any] = {}
        for row in self.design.simulation.rows:
            if agrees(levels, {name: row[name] for name in row if name in self.design.factors}):
                found |= {name: value for name, value in row.items() if name not in self.design.factors}
        return found

    def _iteration(self, levels: Mapping[str, Any], row: Mapping[str, Any]) -> _Iteration:
        """Of the cards that count."""
        if phases := row.get("phases"):
            pairs = {name: (float(j), float(s)) for name, (j, s) in phases.items()}
            return _Iteration(sum(s for _, s in pairs.values()), sum(j for j, _ in pairs.values()), 0.0, pairs)
        if "power_w" in row:
            time_s = row.get("iteration_s", self.design.simulation.iteration_s)
            if not isinstance(time_s, int | float):
                raise ConfigError("simulation.rows: power_w: say iteration_s too")
            return _Iteration(float(time_s), float(time_s) * float(row["power_w"]))
        how, cards = self.design.simulation, int(levels.get(GPUS, 1))
        cap_w = float(levels.get("power_cap_w", self.card.limits_w[1]))
        f_most = float(levels.get("sm_clock_mhz", self.card.core_mhz[-1])) / self.card.core_mhz[-1]
        g = float(levels.get("mem_clock_mhz", self.card.memory_mhz[-1])) / self.card.memory_mhz[-1]
        network = self._network(levels, row)
        if how.machine:
            if cards > EIGHT_CARDS.slots:
                raise ConfigError(f"gpus: {cards} are more than the {EIGHT_CARDS.slots} cards of the simulated machine")
            at = operate_machine(EIGHT_CARDS, self.card, network, cap_w, f_most=f_most, g=g, cards=cards)
            return _Iteration(at.time_s, at.energy_j, at.at_cap)
        at = operate(self.card, network, cap_w, f_most=f_most, g=g, cards=cards)
        return _Iteration(at.time_s, at.energy_j * cards, at.at_cap)

    def _device(self, levels: Mapping[str, Any]) -> str:
        if self.design.simulation.machine:
            return "node"
        cards = levels.get(GPUS, 1)
        return "gpu0" if cards == 1 or self.design.analysis.instrument.moved_over else f"{cards} GPUs"

    def _network(self, levels: Mapping[str, Any], row: Mapping[str, Any]) -> Network:
        """What is trained, with iterations as long as the design says. With another batch size the kernels take longer
        in proportion, and the gaps between them stay."""
        how = self.design.simulation
        try:
            name = how.network.format_map({**levels})
        except (LookupError, ValueError, AttributeError, TypeError):
            known = ", ".join(self.trainings)
            raise ConfigError(f"simulation.network: {how.network!r} names no factor that is there; {known}") from None
        own = how.stand_in.get(name, name)
        if own not in self.trainings:
            raise ConfigError(f"simulation.network: there is no {own!r}: {', '.join(self.trainings)}")
        given = how.iteration_s.get(name) if isinstance(how.iteration_s, Mapping) else how.iteration_s
        time_s = row.get("iteration_s", given)
        if time_s is None:
            raise ConfigError(f"simulation.iteration_s: say that of {name}")
        network, batch = timed(self.trainings[own], float(time_s)), self._batch(levels)
        network = replace(
            network,
            busy_w=float(row.get("busy_w", network.busy_w)),
            waiting=float(row.get("waiting", network.waiting)),
            memory=float(row.get("memory", network.memory)),
        )
        if how.batch_size is None or batch is None:
            return network
        waiting_s = network.waiting * network.time_s
        longer_s = waiting_s + (network.time_s - waiting_s) * batch / how.batch_size
        return replace(network, time_s=longer_s, waiting=waiting_s / longer_s)

    def _batch(self, levels: Mapping[str, Any]) -> float | None:
        batch = levels.get("batch_size", levels.get("batch"))
        if not isinstance(batch, int | float):
            return None
        if not batch > 0:
            raise ConfigError(f"factors.batch_size: {batch} cannot be trained with")
        return float(batch)

    def _work(self, item: Item, row: Mapping[str, Any]) -> tuple[float | None, float, dict[str, float]]:
        """Samples, iterations and results of a run. Trainings to a target take another number of epochs with each seed,
        and the same at every setting of the knobs: these do not change what is computed."""
        levels = item.cell.levels
        results = {name: float(value) for name, value in row.get("results", {}).items()}
        images, batch, epochs = self.design.samples, self._batch(levels), 1.0
        if "epochs" in row:
            spread = float(row.get("epochs_spread", 0.0))
            draw = random.Random(f"{item.seed} {[(n, v) for n, v in levels.items() if n not in KNOBS]}")
            epochs = max(1.0, float(round(float(row["epochs"]) * math.exp(draw.gauss(-(spread**2) / 2, spread)))))
            results["epoch"] = epochs
        samples = row.get("samples", images and images * epochs)
        if self.design.simulation.iterations is not None:
            iterations = epochs * self.design.simulation.iterations
            return samples or (batch or 0.0) * iterations or None, iterations, results
        if samples is None or batch is None:
            raise ConfigError("simulation.iterations: say how many, or give work.images and a factor batch_size")
        return samples, float(math.ceil(samples / batch)), results

    def _when(self, item: Item) -> float:
        """Where in the planned campaign the item stands, 0 to 1."""
        order = [other.cell.id for other in self.design.block(item.block, self.design.cells())]
        return (item.block + order.index(item.cell.id) / len(order)) / self.design.repeats.max


def _kernels(names: Sequence[str]) -> dict[str, Any]:
    return {"digest": ", ".join(sorted(names)), "distinct": len(names), "first": names[0]} if names else {}
