"""Zeus' names for scripts written for it: ``from powerd_client.compat.zeus import ZeusMonitor``.

Each window is a phase of a recording, and its joules have a U95. Names, arguments and files follow Zeus 0.16;
docs/howto/from-others.md says what differs. Nothing of Zeus is needed.
"""

from typing import TYPE_CHECKING, Any

from powerd_client.compat.zeus.monitor import Measurement, ZeusMonitor
from powerd_client.compat.zeus.power_limit import (
    Callback,
    CallbackSet,
    Energy,
    GlobalPowerLimitOptimizer,
    MaxSlowdownConstraint,
    OptimumSelector,
    PowerLimitMeasurement,
    Time,
    ZeusCost,
    get_env,
)

if TYPE_CHECKING:
    from powerd_client.compat.zeus.trainer import HFGlobalPowerLimitOptimizer

__all__ = [
    "Callback",
    "CallbackSet",
    "Energy",
    "GlobalPowerLimitOptimizer",
    "HFGlobalPowerLimitOptimizer",
    "MaxSlowdownConstraint",
    "Measurement",
    "OptimumSelector",
    "PowerLimitMeasurement",
    "Time",
    "ZeusCost",
    "ZeusMonitor",
    "get_env",
]


def __getattr__(name: str) -> Any:
    """The callback of Hugging Face's Trainer, at its first use: it imports transformers."""
    if name != "HFGlobalPowerLimitOptimizer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from powerd_client.compat.zeus.trainer import HFGlobalPowerLimitOptimizer

    return HFGlobalPowerLimitOptimizer
