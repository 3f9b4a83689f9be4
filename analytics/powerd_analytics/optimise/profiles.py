"""What an epoch takes at a batch size, by power limit, as policies remember it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from powerd_analytics.optimise.policy import EpochCost, Job


@dataclass(slots=True)
class ProfiledCap:
    """What an epoch takes under a limit."""

    power_cap_w: float
    energy_j: float
    time_s: float


@dataclass(slots=True)
class Profile:
    """All that was profiled at one batch size."""

    batch_size: int
    caps: list[ProfiledCap] = field(default_factory=list)
    """By limit, ascending."""
    asked_w: list[float] = field(default_factory=list)
    """Limits that were asked for; a device may have none of them, and give its nearest."""

    def add(self, measured: Mapping[float, EpochCost], asked_w: Sequence[float]) -> None:
        """Add limits, or measure known ones again."""
        kept = [cap for cap in self.caps if cap.power_cap_w not in measured]
        new = [ProfiledCap(cap_w, cost.energy_j, cost.time_s) for cap_w, cost in measured.items()]
        self.caps = sorted([*kept, *new], key=lambda cap: cap.power_cap_w)
        self.asked_w = sorted({*self.asked_w, *asked_w})

    def best(self, job: Job, second_w: float | None = None) -> ProfiledCap:
        """The limit of the least cost; of equal ones the greatest. ``second_w``: what a second is worth, the job's
        greatest power unless stated."""
        worth_w = job.max_power_w if second_w is None else second_w

        def cost(cap: ProfiledCap) -> tuple[float, float]:
            return job.eta * cap.energy_j + (1 - job.eta) * worth_w * cap.time_s, -cap.power_cap_w

        return min(self.caps, key=cost)


def profile_at(profiles: Sequence[Profile], batch_size: int) -> Profile | None:
    return next((profile for profile in profiles if profile.batch_size == batch_size), None)


def add_to_profile(
    profiles: list[Profile], batch_size: int, measured: Mapping[float, EpochCost], asked_w: Sequence[float]
) -> Profile:
    """Add what was measured to the profile of a batch size, which is made where there is none."""
    profile = profile_at(profiles, batch_size)
    if profile is None:
        profile = Profile(batch_size)
        profiles.append(profile)
    profile.add(measured, asked_w)
    return profile
