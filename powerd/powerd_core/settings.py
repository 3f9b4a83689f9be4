"""The event that states what a knob of a device is set to: asked, requested, enforced.

No driver tells a clock that was locked, so what is in force is known by events in time. Whoever sets a knob, or puts it
back, states it when the driver's answer is there: ``meter.event(SETTING, **KnobSetting(...).values())``. The setting
holds from that moment until the next event of the same device and knob. Before the first one nobody knows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from powerd_core.hold import UNITS, option_of

__all__ = ["KNOB_AS_OPTION", "KNOB_OF_NAME", "SETTING", "UNITS", "Knob", "KnobSetting", "setting_in", "unit_of"]

SETTING = "setting"
"""The name of these events. One of that name with other values is somebody else's, and states nothing."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A knob, and how people call it."""

    name: str
    words: str
    """In a sentence."""
    heading: str
    """Where there is less room."""
    is_of_gpu: bool = True

    @property
    def option(self) -> str:
        """How programs call it, with its unit: an option of `Meter.hold`, a factor of a campaign."""
        return option_of(self.name)

    @property
    def unit(self) -> str:
        return UNITS[self.name]


KNOB_OF_NAME = {
    knob.name: knob
    for knob in (
        Knob("power_cap", "power cap", "cap"),
        Knob("sm_clock", "SM clock", "SM clock"),
        Knob("mem_clock", "memory clock", "memory clock"),
        Knob("package_power", "package limit", "package", is_of_gpu=False),
    )
}
KNOB_AS_OPTION = {knob.option: knob for knob in KNOB_OF_NAME.values()}
"""By `Knob.option`."""


def unit_of(option: str) -> str:
    """Of a knob; empty for what is none."""
    return KNOB_AS_OPTION[option].unit if option in KNOB_AS_OPTION else ""


@dataclass(frozen=True, slots=True)
class KnobSetting:
    """What a knob is set to. A value is None where there is none: a clock that is no longer locked enforces nothing."""

    device: str
    knob: str
    unit: str
    asked: float | None = None
    """By whoever holds the knob."""
    requested: float | None = None
    """Of the driver."""
    enforced: float | None = None
    """By the driver, as it was read back."""
    state: str = ""
    """Of a lease: what became of it (`powerd_core.hold.State`)."""
    why: str = ""
    """In a few words."""
    settle_s: float = 0.0
    """How long the device may take to follow."""

    def values(self) -> dict[str, Any]:
        """The event's values."""
        return asdict(self)


def setting_in(values: Mapping[str, Any]) -> KnobSetting | None:
    """What the values of an event state; None where they are no setting, or in another unit than the knob has."""
    names = [values.get(name) for name in ("device", "knob", "unit")]
    numbers = [values.get(name) for name in ("asked", "requested", "enforced")]
    if not all(isinstance(name, str) and name for name in names) or "enforced" not in values:
        return None
    if not all(x is None or _is_amount(x) for x in numbers):
        return None
    device, knob, unit = map(str, names)
    if UNITS.get(knob, unit) != unit:
        return None
    state, why, settle_s = values.get("state", ""), values.get("why", ""), values.get("settle_s", 0.0)
    asked, requested, enforced = (None if x is None else float(x) for x in numbers)
    return KnobSetting(
        device,
        knob,
        unit,
        asked,
        requested,
        enforced,
        state=state if isinstance(state, str) else "",
        why=why if isinstance(why, str) else "",
        settle_s=float(settle_s) if _is_amount(settle_s) else 0.0,
    )


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0
