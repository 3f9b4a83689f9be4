"""What a reading is and where it comes from: the frozen data that crosses every module.

A *stream* is a group of lines that one source scans together. Codes stay raw all the way into the run file; a line's
conversion and accuracy say what they mean.
"""

from powerd_core.model.conversion import (
    Conversion,
    CounterConversion,
    QuantityConversion,
    ScaledConversion,
    ShuntConversion,
    quantity_of,
)
from powerd_core.model.description import Description, Device, Stream
from powerd_core.model.exchange import CLOCK_NAME, ClockExchange
from powerd_core.model.line import LATER, Accuracy, Line, Provenance
from powerd_core.model.readings import BAD, CODE_BYTES, UNKNOWN_TIME_NS, Block, Column, Flag, Gap

__all__ = [
    "BAD",
    "CLOCK_NAME",
    "CODE_BYTES",
    "LATER",
    "UNKNOWN_TIME_NS",
    "Accuracy",
    "Block",
    "ClockExchange",
    "Column",
    "Conversion",
    "CounterConversion",
    "Description",
    "Device",
    "Flag",
    "Gap",
    "Line",
    "Provenance",
    "QuantityConversion",
    "ScaledConversion",
    "ShuntConversion",
    "Stream",
    "quantity_of",
]
