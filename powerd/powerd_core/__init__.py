"""Data model, wire codec, clock maths and errors shared by powerd's daemon, client and analytics.

Names of the model and the wire are loaded when somebody asks for them: what runs as root never does.
"""

from importlib import import_module
from typing import Any

from powerd_core.errors import (
    AnalysisError,
    ClockError,
    ConfigError,
    PeerError,
    PeerTimeout,
    PowerdError,
    RunFileError,
    SensorError,
    VersionError,
    WireError,
)

_MODEL = "Accuracy Block ClockExchange Column CounterConversion Description Device Flag Gap Line Provenance "
_MODEL += "QuantityConversion ScaledConversion ShuntConversion Stream"
_WIRE = "FrameReader Message Want decode encode"
_HOME = dict.fromkeys(_MODEL.split(), "powerd_core.model") | dict.fromkeys(_WIRE.split(), "powerd_core.wire")

__all__ = [  # noqa: PLE0604
    "AnalysisError",
    "ClockError",
    "ConfigError",
    "PeerError",
    "PeerTimeout",
    "PowerdError",
    "RunFileError",
    "SensorError",
    "VersionError",
    "WireError",
    *_HOME,
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(name)
    return getattr(import_module(_HOME[name]), name)
