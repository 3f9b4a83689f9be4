"""Who runs the runs of a campaign: this machine, Slurm by submitit, or a card that is computed instead of run."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from powerd_analytics.campaigns.design import GPUS, KNOBS, Design, Item
from powerd_analytics.campaigns.journal import Discard, Result
from powerd_analytics.campaigns.results import result_of, spoiled
from powerd_client.log import install_hint
from powerd_client.recording import CAMPAIGN_ENVIRONMENT
from powerd_core.errors import ConfigError, ControlError, PowerdError
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
from powerd_core.lease import KNOB_OF_OPTION, Range, Request

FAILED, OUT_OF_MEMORY, UNMEASURED = "failed", "out-of-memory", "unmeasured"
"""Why a run has no result: its command failed; it needs more memory than there is; nothing could be recorded."""
_OUT_OF_MEMORY = ("out of memory", "outofmemory", "cannot allocate memory", "std::bad_alloc")
_KILLED = 137
_OPTIONS = {"power_cap_w": "--power-cap", "sm_clock_mhz": "--sm-clock", "mem_clock_mhz": "--mem-clock"}
_TAIL = 8192
TRAININGS: Mapping[str, Network] = {**NETWORKS, "xception": XCEPTION}
"""What a simulated card can train, by name."""


class Executor(Protocol):
    """Runs one item and says what it took, or why that does not count."""

    def ranges(self) -> Mapping[str, Range]:
        """What the knobs take that can be turned, by option. Raises `PowerdError` where none can be."""

    def run(self, item: Item, attempt: int, file: Path) -> Result | Discard:
        """``file`` is where its run file goes. Raises `PowerdError` for what ends the campaign."""


@dataclass(frozen=True, slots=True)
class Local:
    """This machine: each run is a `joules record` of its own."""

    design: Design
    url: tuple[str, ...] = ()
    keys: Path | None = None
    lock: int = -1
    """A descriptor that the run inherits: while it lives, though its runner was killed, no other runner begins."""

    def ranges(self) -> Mapping[str, Range]:
        if not any(name in KNOBS for name in self.design.factors):
            return {}
        return knob_ranges(self.design.control.devices)

    def run(self, item: Item, attempt: int, file: Path) -> Result | Discard:
        log = file.with_suffix(".log")
        status = _wait(self._start(item, file, log))
        if status < 0:
            status = 128 - status
        text = last_words(log)
        if not file.is_file():
            return Discard(UNMEASURED, text)
        if status:
            return failure(status, log)
        try:
            result = result_of(file, self.design)
        except PowerdError as error:
            return Discard(UNMEASURED, " ".join(str(error).split()))
        return spoiled(result, file, self.design.guard.discard) or result

    def warm_up(self, item: Item, seconds: float, file: Path) -> None:
        """Run the command for so long; what is recorded of it counts for nothing."""
        process = self._start(item, file, file.with_suffix(".log"))
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            _end(process)

    def _environment(self, item: Item) -> dict[str, str]:
        environment = os.environ | self.design.environment_of(item)
        count = item.cell.levels.get(GPUS)
        if isinstance(count, int):
            visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join((visible or [str(i) for i in range(count)])[:count])
        return environment

    def _start(self, item: Item, file: Path, log: Path) -> subprocess.Popen[bytes]:
        record = [sys.executable, "-P", "-m", "powerd_analytics", "record", "--output", str(file)]
        for address in self.url:
            record += ["--url", address]
        record += ["--keys", str(self.keys)] if self.keys else []
        knobs = self.design.knobs(item)
        for name, level in knobs.items():
            record += [_OPTIONS[name], str(level)]
        record += ["--devices", self.design.control.devices] if knobs and self.design.control.devices else []
        environment = self._environment(item) | {CAMPAIGN_ENVIRONMENT: json.dumps(self.design.about(item))}
        with log.open("wb") as out:
            return subprocess.Popen(
                [*record, "--", *self.design.argv(item)], env=environment, stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
                pass_fds=(self.lock,) if self.lock >= 0 else (),
            )  # fmt: skip


def _wait(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait()
    except BaseException:
        _end(process)
        raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """By SIGTERM, and by SIGKILL after ten seconds."""
    process.terminate()
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_words(log: Path) -> str:
    """The last line of a log that says something."""
    lines = [line.strip() for line in tail(log).splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def tail(log: Path) -> str:
    """The end of a log; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def failure(status: int, log: Path) -> Discard:
    """Why a command ended with a status that is not 0."""
    text = tail(log).lower()
    if status == _KILLED or any(words in text for words in _OUT_OF_MEMORY):
        return Discard(OUT_OF_MEMORY, last_words(log))
    return Discard(FAILED, f"status {status}: {last_words(log)}")


def knob_ranges(devices: str = "") -> dict[str, Range]:
    """What the control helper says of the knobs, by option. Raises `ControlError` where there is no helper."""
    from powerd_client.control import connect

    wanted = devices.split(",") if devices else None
    peer = connect()
    try:
        knobs = peer.ask(Request("describe")).knobs
    finally:
        peer.close()
    ranges: dict[str, Range] = {}
    for option in KNOBS:
        mine = [k for k in knobs if k.knob == KNOB_OF_OPTION[option] and (wanted is None or k.device in wanted)]
        usable = [k for k in mine if not k.problem]
        if mine and not usable:
            raise ControlError(f"{option} cannot be set: {mine[0].problem}")
        if usable:
            ranges[option] = usable[0].range
    return ranges


# -- a card that is computed -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Simulated:
    """A card of `powerd_core.gpu_physics` in no time: seconds and joules are computed, with the noise of runs, and a
    planted drift or heat where the design asks for them. Nothing is recorded, and results say that they are simulated.
    """

    design: Design
    card: Card

    @classmethod
    def named(cls, design: Design, name: str) -> Simulated:
        """Of ``sim:CARD``. Raises `ConfigError`."""
        kind, _, card = name.partition(":")
        if kind != "sim" or card not in CARDS:
            known = ", ".join(f"sim:{known}" for known in CARDS)
            raise ConfigError(f"--on {name}: there is {known}")
        return cls(design, CARDS[card])

    def ranges(self) -> Mapping[str, Range]:
        least, default, greatest = self.card.limits_w
        core, memory = self.card.core_mhz, self.card.memory_mhz
        return {
            "power_cap_w": Range(least, greatest, default),
            "sm_clock_mhz": Range(core[0], core[-1], core[-1], tuple(map(float, core))),
            "mem_clock_mhz": Range(memory[0], memory[-1], memory[-1], tuple(map(float, memory))),
        }

    def run(self, item: Item, attempt: int, file: Path) -> Result | Discard:
        how, levels = self.design.simulation, item.cell.levels
        draw = random.Random(f"{self.design.seed} {item.key} {attempt}")
        network = self._network(levels)
        cap_w = float(levels.get("power_cap_w", self.card.limits_w[1]))
        f_most = float(levels.get("sm_clock_mhz", self.card.core_mhz[-1])) / self.card.core_mhz[-1]
        g = float(levels.get("mem_clock_mhz", self.card.memory_mhz[-1])) / self.card.memory_mhz[-1]
        cards = int(levels.get(GPUS, 1))
        if how.machine:
            if cards > EIGHT_CARDS.slots:
                raise ConfigError(f"gpus: {cards} are more than the {EIGHT_CARDS.slots} cards of the simulated machine")
            at = operate_machine(EIGHT_CARDS, self.card, network, cap_w, f_most=f_most, g=g, cards=cards)
            power_w = at.power_w
        else:
            at = operate(self.card, network, cap_w, f_most=f_most, g=g, cards=cards)
            power_w = at.power_w * cards
        iterations = self._iterations(levels)
        is_hot = draw.random() < how.throttled
        time_s = iterations * at.time_s * (1 + how.noise * draw.gauss()) * (1.1 if is_hot else 1.0)
        energy_j = iterations * at.time_s * power_w * (1 + how.noise * draw.gauss())
        if how.drift:  # to know when takes the order of the whole block
            energy_j *= 1 + how.drift * self._when(item)
        if is_hot and "thermal" in self.design.guard.discard:
            return Discard("thermal", "slowed down by heat")
        verdict = "honoured, binding" if at.at_cap > 0.05 else "honoured, slack"
        device = "node" if how.machine else "gpu0" if cards == 1 else f"{cards} GPUs"
        samples = self.design.samples or (self._batch(levels) or 0.0) * iterations or None
        return Result(
            energy_j, time_s, None, None, samples, verdict if set(levels) & set(KNOBS) else "",
            provenance="simulated", device=device,
        )  # fmt: skip

    def _network(self, levels: Mapping[str, Any]) -> Network:
        """What is trained, with iterations as long as the design says. With another batch size the kernels take longer
        in proportion, and the gaps between them stay."""
        how = self.design.simulation
        name = how.network.format_map({**levels})
        own = how.stand_in.get(name, name)
        if own not in TRAININGS:
            raise ConfigError(f"simulation.network: there is no {own!r}: {', '.join(TRAININGS)}")
        time_s = how.iteration_s.get(name) if isinstance(how.iteration_s, Mapping) else how.iteration_s
        if time_s is None:
            raise ConfigError(f"simulation.iteration_s: say that of {name}")
        network, batch = timed(TRAININGS[own], time_s), self._batch(levels)
        if how.batch_size is None or batch is None:
            return network
        waiting_s = network.waiting * time_s
        longer_s = waiting_s + (time_s - waiting_s) * batch / how.batch_size
        return replace(network, time_s=longer_s, waiting=waiting_s / longer_s)

    def _batch(self, levels: Mapping[str, Any]) -> float | None:
        batch = levels.get("batch_size", levels.get("batch"))
        return float(batch) if isinstance(batch, int | float) else None

    def _iterations(self, levels: Mapping[str, Any]) -> float:
        if self.design.simulation.iterations is not None:
            return self.design.simulation.iterations
        batch = self._batch(levels)
        if self.design.samples is None or batch is None:
            raise ConfigError("simulation.iterations: say how many, or give work.images and a factor batch_size")
        return float(math.ceil(self.design.samples / batch))

    def _when(self, item: Item) -> float:
        """Where in the planned campaign the item stands, 0 to 1."""
        order = [other.cell.id for other in self.design.block(item.block, self.design.cells())]
        return (item.block + order.index(item.cell.id) / len(order)) / self.design.repeats.max


# -- Slurm -------------------------------------------------------------------------------------------------------------


def submit_blocks(design: Design, file: Path, folder: Path, options: Sequence[str]) -> list[str]:
    """Hand each block that is to do to Slurm as a job, which runs ``joules campaign run FILE --block N`` on its node.
    The jobs' numbers. Raises `ConfigError` where submitit is not installed."""
    try:
        import submitit
    except ImportError as error:
        raise ConfigError(f"the executor submitit is not installed: {install_hint('slurm')}") from error
    of = design.executor
    executor = submitit.AutoExecutor(folder=str(folder / "slurm"))
    more = {"slurm_partition": of.partition} if of.partition else {}
    executor.update_parameters(
        name=design.name, timeout_min=of.time_min, gpus_per_node=of.gpus, slurm_exclusive=True,
        slurm_array_parallelism=of.array_parallelism, **more,
    )  # fmt: skip
    commands = [
        [sys.executable, "-P", "-m", "powerd_analytics", "campaign", "run", str(file), "--block", str(block), *options]
        for block in range(design.repeats.max)
    ]
    jobs = executor.map_array(subprocess.check_call, commands)
    return [str(job.job_id) for job in jobs]
