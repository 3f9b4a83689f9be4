"""What a policy is, what an environment is, and what passes between them.

A job recurs: the same model is trained to the same target again and again. For every recurrence a *policy* says with
which settings to train, hears of the training what it costs while it goes on, and learns from how it ended. An
*environment* carries trainings out: on a trace, on a simulated GPU, or on a real one. A policy cannot see which.

The batch size is chosen before a training begins, the power limit with the job and the batch size at hand: a trial may
ask that several limits be profiled first, and `Change` sets one of them for the rest.

A policy does no input or output and reads no clock. Everything that it draws comes from its seed, and all that it knows
is in `Policy.state`, which JSON can hold. Policies are found by name, in the table `POLICIES`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar, cast

from powerd_core.errors import ConfigError
from powerd_core.serde import from_document, to_document
from powerd_core.text import did_you_mean

POLICIES = {
    "ours": "powerd_analytics.optimise.lognormal:LognormalPolicy",
    "zeus": "powerd_analytics.optimise.zeus:ZeusPolicy",
}
"""Module and class of each policy: ours, and Zeus' as the reference."""
VERSION = 1
"""Of the document that `Policy.state` gives."""


# ---- what is trained ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """With what to train; None leaves a knob of the device as it is."""

    batch_size: int
    power_cap_w: float | None = None
    sm_clock_mhz: float | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """The validation metric at which a training has done its work."""

    metric: float
    is_lower_better: bool = False

    def is_met(self, metric: float) -> bool:
        return metric <= self.metric if self.is_lower_better else metric >= self.metric


@dataclass(frozen=True, slots=True)
class Job:
    """A training that recurs, and what may be chosen of it. ``default`` is what its owner would take."""

    name: str
    batch_sizes: tuple[int, ...]
    """Ascending."""
    power_caps_w: tuple[float, ...]
    """Ascending; empty where no limit can be set."""
    default: TrainingSettings
    target: Target
    max_epochs: int
    max_power_w: float
    """The device's greatest power limit: what a second is worth in joules when time alone counts."""
    eta: float = 0.5
    """1 counts energy alone, 0 time alone."""

    def __post_init__(self) -> None:
        if self.default.batch_size not in self.batch_sizes:
            raise ConfigError(
                f"{self.name}: default batch size {self.default.batch_size} is not among {self.batch_sizes}"
            )
        if not 0 <= self.eta <= 1:
            raise ConfigError(f"{self.name}: eta is {self.eta:g}: it must lie between 0 and 1")

    def cost_j(self, energy_j: float, time_s: float) -> float:
        """Cost in joules (You, Chung and Chowdhury, "Zeus", NSDI'23, equation 2)."""
        return self.eta * energy_j + (1 - self.eta) * self.max_power_w * time_s


@dataclass(frozen=True, slots=True)
class EpochCost:
    """What one epoch takes at one batch size under one power limit."""

    energy_j: float
    time_s: float


# ---- what passes between policy and environment --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trial:
    """One training that a policy asks for. A recurrence has several where the first does not reach the target."""

    number: int
    """Counts the trials of a policy, from 0."""
    recurrence: int
    settings: TrainingSettings
    profile_caps_w: tuple[float, ...] = ()
    """Limits to be measured first: a trace divides the first epoch evenly among them, a real training takes whole
    epochs for each, in this order."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of a training after ``epoch`` whole epochs. The first one of a training has epoch 0."""

    epoch: int
    energy_j: float | None
    """Since the training began, as is ``time_s``. None where it is not known yet: the joules of a real training are
    worked out when it has ended."""
    time_s: float
    settings: TrainingSettings
    """In force, whatever was asked."""
    metric: float | None = None
    """The best so far; None where nothing is known yet."""
    profile: Mapping[float, EpochCost] = field(default_factory=dict)
    """By limit in W: what was profiled, from the moment on at which it is known."""
    asked_w: tuple[float, ...] = ()
    """The limits that were asked for in it: a device may have none of them, and give its nearest."""


Ending = Literal["reached", "stopped", "failed", "lost"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a training ended: it ``reached`` its target; the policy ``stopped`` it; it ``failed`` to reach the target in
    all its epochs, or broke; the device was ``lost``, so that nothing can be learnt of it."""

    ending: Ending
    epochs: int
    energy_j: float
    time_s: float
    settings: TrainingSettings
    """In force at the end."""

    @property
    def is_reached(self) -> bool:
        return self.ending == "reached"


@dataclass(frozen=True, slots=True)
class Go:
    """Go on, and ask again after ``until`` epochs, counted from the begin; None: after the next one."""

    until: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Go on with another power limit."""

    settings: TrainingSettings


@dataclass(frozen=True, slots=True)
class Stop:
    """End this training: it is not worth its cost."""


Decision = Go | Change | Stop


class Training(Protocol):
    """A training that goes on. After `begin`, every decision is answered by the next observation or by the end."""

    def begin(self) -> Observation: ...

    def obey(self, decision: Decision) -> Observation | Outcome: ...


class Environment(Protocol):
    """Where trainings are carried out."""

    def start(self, trial: Trial) -> Training: ...


class Policy(Protocol):
    """Chooses for one job. `policy` makes one, `restore` makes it again from its state."""

    job: Job

    def __init__(self, job: Job, seed: int = 0) -> None: ...

    def begin(self, recurrence: int, pending: Sequence[Trial] = ()) -> Trial:
        """The next training of a recurrence, while those in ``pending`` still go on."""
        ...

    def observe(self, trial: Trial, observation: Observation) -> Decision:
        """What is to be done with a training that goes on."""
        ...

    def end(self, trial: Trial, outcome: Outcome) -> None:
        """Learn from a training that ended."""
        ...

    def state(self) -> dict[str, Any]:
        """All that the policy knows, for JSON."""
        ...

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """The policy that gave the state. Raises `ConfigError` for what is none of its own."""
        ...


def carry_out(policy: Policy, environment: Environment, trial: Trial) -> Outcome:
    """One training from its begin to its end. The policy does not hear of the end yet: others may end before."""
    training = environment.start(trial)
    event: Observation | Outcome = training.begin()
    while isinstance(event, Observation):
        event = training.obey(policy.observe(trial, event))
    return event


# ---- the state of a policy -----------------------------------------------------------------------------------------

M = TypeVar("M")


class RememberingPolicy(Generic[M]):
    """A policy all of whose knowledge is one dataclass, its memory, besides job and seed."""

    name: ClassVar[str]
    memory_type: ClassVar[type[Any]]

    def __init__(self, job: Job, seed: int = 0) -> None:
        self.job, self.seed = job, seed
        self.memory: M = self.memory_type()

    def state(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "policy": self.name,
            "seed": self.seed,
            "job": to_document(self.job),
            "memory": to_document(self.memory),
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        if (state.get("policy"), state.get("version")) != (cls.name, VERSION):
            found = f"{state.get('policy')!r}, version {state.get('version')!r}"
            raise ConfigError(f"this state is of policy {found}: {cls.name!r}, version {VERSION}, cannot go on with it")
        try:
            policy = cls(from_document(Job, state["job"], "job"), int(state["seed"]))
            policy.memory = from_document(cls.memory_type, state["memory"], "memory")
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the state of policy {cls.name!r} is damaged: {error}") from error
        return policy

    def next_trial(self, recurrence: int, settings: TrainingSettings, profile_caps_w: Sequence[float] = ()) -> Trial:
        number: int = self.memory.trials  # type: ignore[attr-defined]
        self.memory.trials += 1  # type: ignore[attr-defined]
        return Trial(number, recurrence, settings, tuple(profile_caps_w))


# ---- policies by name ----------------------------------------------------------------------------------------------


def find_policy(name: str) -> type[Policy]:
    """The class behind a name. Raises `ConfigError` when it is unknown."""
    if name not in POLICIES:
        raise ConfigError(f"unknown policy {name!r}{did_you_mean(name, POLICIES)}")
    module, _, cls = POLICIES[name].partition(":")
    return cast("type[Policy]", getattr(import_module(module), cls))
