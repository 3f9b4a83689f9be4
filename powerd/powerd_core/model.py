"""What is measured and what is sent of it: lines and their conversions, streams, devices, blocks of readings, gaps.

Raw codes travel and are stored as the sensor gave them; a conversion says what they mean and is never applied to them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag, StrEnum
from zlib import crc32

from powerd_core.errors import WireError


@dataclass(frozen=True, slots=True)
class ShuntConversion:
    """Power from a shunt and a bus voltage code (INA219 family).

    bus_v = (bus >> bus_shift) * bus_lsb_v;  current_a = (shunt * shunt_lsb_v / shunt_ohm + offset_a) * gain.
    """

    shunt_ohm: float
    shunt_lsb_v: float
    bus_lsb_v: float
    bus_shift: int = 0
    offset_a: float = 0.0
    gain: float = 1.0
    shunt: str = "shunt"
    bus: str = "bus"


@dataclass(frozen=True, slots=True)
class ScaledConversion:
    """Power as a code times a constant: power_w = codes[column] * w_per_code."""

    column: str
    w_per_code: float


@dataclass(frozen=True, slots=True)
class CounterConversion:
    """Energy from a cumulative counter of ``bits`` bits that wraps around.

    energy_j(t) = (codes[column] - first) * j_per_code + background_w * (t - t_first).
    """

    column: str
    j_per_code: float
    background_w: float = 0.0
    bits: int = 64


@dataclass(frozen=True, slots=True)
class QuantityConversion:
    """Something that is neither power nor energy, such as a temperature: value = codes[column] * per_code.

    ``quantity`` names what it is and its unit, such as ``temperature_c``. Where it ends in ``_bits`` each bit of the
    code is a yes or no of its own, named in the stream's ``detail["bits"][line]`` (an object of bit values by name).
    Such a line is shown beside powers and never feeds a device.
    """

    column: str
    quantity: str
    per_code: float = 1.0


Conversion = ShuntConversion | ScaledConversion | CounterConversion | QuantityConversion


def quantity_of(conversion: Conversion) -> str:
    """What a conversion gives, and its unit: ``power_w``, ``energy_j`` or a name such as ``temperature_c``."""
    if isinstance(conversion, QuantityConversion):
        return conversion.quantity
    return "energy_j" if isinstance(conversion, CounterConversion) else "power_w"


# One measured conductor or counter: what its codes mean, where they come from, and how wrong they may be.


class Provenance(StrEnum):
    """How a line's joules come about. Every table and plot says which."""

    MEASURED = "measured"
    MODELLED = "modelled"
    SIMULATED = "simulated"


LATER = {"later": True}
"""Marks a field that was added later: it is written only where it is not its default, so that who does not know it
reads everything else, and refuses what he would get wrong."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What is known of a line's errors, as standard uncertainties (GUM: half-width / sqrt(3) for limits).

    A reading with timestamp ``t`` is the mean over a window ``window_ns`` wide, behind which there may be a low-pass of
    first order with the time constant ``filter_ns``: of what lies ``a`` before the newest, exp(-a / filter_ns) is left.
    The centre of that weight is within ``t ± centre_ns``. ``update_ns`` is the distance at which new values appear when
    that is longer than the distance of the readings.
    """

    u_gain: float = 0.0
    """Relative standard uncertainty of the power's gain, shared by all readings of the line."""
    u_offset_w: float = 0.0
    """Standard uncertainty of the power's zero in watts, shared by all readings of the line."""
    step_w: float = 0.0
    """Quantisation step in watts at the line's nominal voltage."""
    window_ns: int = 0
    centre_ns: int = 0
    update_ns: int = 0
    origin: str = ""
    """Where these figures come from: a data sheet's section, a calibration, a measurement."""
    filter_ns: int = field(default=0, metadata=LATER)
    u_filter: float = field(default=0.0, metadata=LATER)
    """Relative standard uncertainty of ``filter_ns``; 0 where nobody has found it for this very sensor."""
    shared_centre_ns: int = field(default=0, metadata=LATER)
    """The part of ``centre_ns`` that a slow adapter adds: all readings may be off by it together, to the same side."""
    step_j: float = field(default=0.0, metadata=LATER)
    """Of a counter that moves in steps coarser than its code: by less than this a reading that counts is too low. Where
    it is read more often than it moves, that is what came since the reading before."""

    @property
    def reach_ns(self) -> int:
        """Width around a timestamp that holds nearly all of a reading's weight: 95 % of what a low-pass adds."""
        return self.window_ns + 4 * self.filter_ns


@dataclass(frozen=True, slots=True)
class Line:
    """One measured conductor or counter, such as ``gpu0.pcie_12v``."""

    name: str
    device: str
    conversion: Conversion
    provenance: Provenance
    accuracy: Accuracy = Accuracy()
    description: str = ""

    @property
    def quantity(self) -> str:
        """``energy_j`` for a counter, ``power_w``, or the name of what is neither."""
        return quantity_of(self.conversion)


# Readings: their flags, the columns they come in, blocks of them, and gaps where there are none.
#
# The blocks of a stream with ``L`` lines hold, for ``n`` scans, these little-endian arrays one after the other:
#
#     t_ns   int64 [n]      board clock, start of the scan
#     dt_ns  int32 [n, L]   each line's own time, relative to its scan
#     flags  uint16[n, L]   `Flag` bits of each reading
#     …      one array [n, L] for each column of raw codes that the stream declares


CODE_BYTES = {"b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "Q": 8}
"""Bytes of each type code that a column may have (as in `struct` and `array`, little-endian)."""


class Flag(IntFlag):
    """What is wrong with one reading. A reading with any bit of `BAD` is never used as a value."""

    STALE = 1
    """The conversion behind it is not newer than that of the reading before."""
    SATURATED = 2
    """The converter stood at full scale: the true value is at least this one."""
    OVERFLOW = 4
    """The chip's own power or current register overflowed; shunt and bus codes are still good."""
    IO_ERROR = 8
    """The transfer failed. The codes are meaningless."""
    RESET = 16
    """The chip had lost its configuration."""
    MISSING = 32
    """The source gave no value at this moment."""


BAD = Flag.STALE | Flag.SATURATED | Flag.IO_ERROR | Flag.RESET | Flag.MISSING


class Fault(StrEnum):
    """What is wrong with a sensor whose readings are flagged, in the words of every place where people look."""

    SATURATED = "saturated"
    STOOD_STILL = "stood still"
    NO_ANSWER = "no answer"


FAULT_FLAGS = {
    Fault.SATURATED: Flag.SATURATED,
    Fault.STOOD_STILL: Flag.STALE,
    Fault.NO_ANSWER: Flag.IO_ERROR | Flag.RESET | Flag.MISSING,
}
"""The flags of each fault; of a reading with several flags the first fault counts."""
NAMED_SHARE = 0.01
"""A line is named when so many of its readings have a fault: some are lost everywhere. Any that is saturated counts."""
FAULT_REMEDIES = {Fault.SATURATED: "use a smaller shunt"}


def faults_text(faults: Mapping[str, Mapping[Fault, float]]) -> str:
    """``saturated: gpu0.pcie_12v (use a smaller shunt); no answer: gpu0.ext_12v_5``, of the shares of
    readings [0, 1] that each line has lost by each fault; empty where no line is to be named."""
    texts = []
    for fault in Fault:
        least = 0.0 if fault is Fault.SATURATED else NAMED_SHARE
        names = [name for name, shares in faults.items() if shares.get(fault, 0.0) > least]
        shown = ", ".join(names[:_NAMED]) + f" and {len(names) - _NAMED} more" * (len(names) > _NAMED)
        remedy = f" ({FAULT_REMEDIES[fault]})" if fault in FAULT_REMEDIES else ""
        texts += [f"{fault}: {shown}{remedy}"] if names else []
    return "; ".join(texts)


_NAMED = 3


@dataclass(frozen=True, slots=True)
class Column:
    """One array of raw codes in a stream: a name and a type code of `CODE_BYTES`."""

    name: str
    typecode: str


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive scans of one stream. ``payload`` holds the arrays that are listed above `CODE_BYTES`."""

    stream: int
    epoch: int
    sequence: int
    t_first_ns: int
    t_last_ns: int
    """Board times of the first and the last reading in it."""
    count: int
    """Number of scans."""
    layout: int
    payload: bytes

    @property
    def following(self) -> int:
        """The stream's next sequence number after it."""
        return self.sequence + 1


UNKNOWN_TIME_NS = -(2**63)
"""A gap's ``t_first_ns`` when it begins at whatever reading was last seen."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Readings that are missing, and why. Takes ``span`` sequence numbers of its stream."""

    stream: int
    epoch: int
    sequence: int
    t_first_ns: int
    t_last_ns: int
    span: int
    lost: int
    """How many scans are missing; -1 when nobody knows."""
    cause: str

    @property
    def following(self) -> int:
        """The stream's next sequence number after it."""
        return self.sequence + self.span


# What one powerd measures: streams of lines, and the devices that these feed.


@dataclass(frozen=True, slots=True)
class Device:
    """Something whose energy is asked for. Its power is the sum of the lines that feed it, each once.

    Lines of the device that are not in ``feeds`` measure the same power by other means; they are
    compared with the sum, never added to it.
    """

    name: str
    feeds: tuple[str, ...]
    description: str = ""
    uuid: str = ""
    pci: str = ""
    """Which GPU it is, by its UUID or PCI address, where a source or the configuration says so: processes are mapped to
    devices by them. Older releases do not say."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A group of lines that one source scans together; ``number`` is unique within one powerd."""

    number: int
    source: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    period_ns: int
    """Nominal distance of two readings of one line."""
    detail: Mapping[str, object] = field(default_factory=dict)
    """Whatever else the source wants to be kept with the readings (settings, seeds, serial numbers)."""

    @property
    def layout(self) -> int:
        """16-bit check of the columns and the number of lines; every block of the stream carries it."""
        text = ",".join(f"{c.name}:{c.typecode}" for c in self.columns) + f"*{len(self.lines)}"
        return crc32(text.encode()) & 0xFFFF

    @property
    def scan_bytes(self) -> int:
        """Bytes of one scan in a block's payload."""
        return 8 + len(self.lines) * (6 + sum(CODE_BYTES[c.typecode] for c in self.columns))


@dataclass(frozen=True, slots=True)
class Description:
    """What one powerd measures: its answer to *describe*, and the key to all its blocks."""

    board: str
    version: str
    epoch: int
    """Drawn at random when a powerd starts: numbers and clock readings of two epochs never mix."""
    clock: str
    data_endpoint: str
    """Where the stream socket listens; host ``*`` stands for the address that was asked."""
    streams: tuple[Stream, ...]
    devices: tuple[Device, ...]
    clock_endpoint: str = ""
    """Where clocks are compared; host as above. Journals of older releases do not say."""
    access: str = ""
    """Who may read: ``keys``, ``anyone``, ``this-machine`` or ``socket-file``. Older releases do not say."""


# The clock of every timestamp, and one comparison of two of them.


CLOCK_NAME = "CLOCK_MONOTONIC_RAW"
"""The clock of every timestamp on every machine. Time daemons slew CLOCK_MONOTONIC by up to 500 ppm,
which would break the guaranteed bound of a clock mapping; they leave this one alone."""


@dataclass(frozen=True, slots=True)
class ClockExchange:
    """Four timestamps: client sends (t1), board receives (t2) and replies (t3), client receives (t4).

    t1 and t4 are read on the host's clock, t2 and t3 on the board's, all in nanoseconds.
    """

    epoch: int
    t1_host_ns: int
    t2_board_ns: int = 0
    t3_board_ns: int = 0
    t4_host_ns: int = 0

    @property
    def offset_ns(self) -> float:
        """Best single estimate of host clock minus board clock."""
        return (self.t1_host_ns - self.t2_board_ns + self.t4_host_ns - self.t3_board_ns) / 2

    @property
    def delay_ns(self) -> int:
        """Time on the wire, both ways. The true offset lies in ``offset_ns ± delay_ns / 2``."""
        return (self.t4_host_ns - self.t1_host_ns) - (self.t3_board_ns - self.t2_board_ns)

    @property
    def t_board_ns(self) -> int:
        """The board's time at the middle of the exchange."""
        return (self.t2_board_ns + self.t3_board_ns) // 2


# Who a device is: its UUID or its PCI address, spelled one way whoever tells it.
#
# The NVIDIA driver writes ``GPU-…`` before a UUID and eight digits of PCI domain, PyTorch writes neither, people copy
# one or the other. Two spellings are one device when their keys are equal.


_UUID = re.compile(r"(?:gpu-)?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})", re.ASCII)
_MIG = re.compile(r"(mig-[0-9a-f-]{36})", re.ASCII)
_MIG_PARENT = re.compile(r"^mig-(gpu-[0-9a-f-]{36})/\d+/\d+$", re.ASCII)
_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", re.ASCII)


def uuid_key(text: object) -> str:
    """A GPU's UUID in lower case without ``GPU-``; empty for what is none.

    A MIG device is told apart from its GPU: ``mig-…``, but for the older ``MIG-GPU-…/gi/ci``, which names its GPU.
    """
    lower = _MIG_PARENT.sub(r"\1", str(text or "").strip().lower())
    uuid = _MIG.fullmatch(lower) or _UUID.fullmatch(lower)
    return uuid[1] if uuid else ""


def pci_key(text: object) -> str:
    """A PCI address as ``dddd:bb:dd.f``, its domain 0 and its function 0 where they are not given; empty for what is
    none."""
    match = _PCI.fullmatch(str(text or "").strip().lower())
    if not match:
        return ""
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}" if device < 32 else ""


# Blocks from scans and back: the payload's arrays, without a copy where none is needed.


BASE_COLUMNS = (("t_ns", "q"), ("dt_ns", "i"), ("flags", "H"))
"""The arrays that every block has in front of its columns of codes. ``t_ns`` has one value a scan."""


class BlockBuilder:
    """Collects the scans of one stream until `take` makes them a block.

    ``columns`` holds one growing array for each column of codes, to which a source may also append itself; each must
    then have grown by one value a line for each scan. Numbers that are given out are consecutive.
    """

    def __init__(self, stream: Stream, epoch: int, first_sequence: int = 0) -> None:
        self.stream = stream
        self.epoch = epoch
        self.sequence = first_sequence
        self._layout = stream.layout
        self._clear()

    def _clear(self) -> None:
        self.t_ns: array[int] = array("q")
        self.dt_ns: array[int] = array("i")
        self.flags: array[int] = array("H")
        self.columns: list[array[int]] = [array(c.typecode) for c in self.stream.columns]

    def __len__(self) -> int:
        return len(self.t_ns)

    def append(self, t_ns: int, dt_ns: Sequence[int], flags: Sequence[int], codes: Sequence[Sequence[int]]) -> None:
        """Add one scan: ``dt_ns`` and ``flags`` have one value a line, ``codes`` one such row a column."""
        self.t_ns.append(t_ns)
        self.dt_ns.extend(dt_ns)
        self.flags.extend(flags)
        for column, row in zip(self.columns, codes, strict=True):
            column.extend(row)

    def take(self) -> Block | None:
        """The scans since the last call as a block, or None when there were none."""
        count, lines = len(self.t_ns), len(self.stream.lines)
        if not count:
            return None
        t_first = self.t_ns[0] + min(self.dt_ns[:lines])
        t_last = self.t_ns[-1] + max(self.dt_ns[-lines:])
        payload = b"".join(a.tobytes() for a in (self.t_ns, self.dt_ns, self.flags, *self.columns))
        if len(payload) != count * self.stream.scan_bytes:
            raise ValueError(f"stream {self.stream.source}: columns and scans differ in length")
        block = Block(self.stream.number, self.epoch, self.sequence, t_first, t_last, count, self._layout, payload)
        self.sequence += 1
        self._clear()
        return block


def columns(block: Block, stream: Stream) -> dict[str, memoryview]:
    """The block's arrays by name, as little-endian byte views: ``t_ns``, ``dt_ns``, ``flags`` and the codes.

    ``t_ns`` has shape [n], the others [n, L] in row-major order. Raises `WireError` when the block does not fit
    the stream.
    """
    return {name: views[0] for name, views in columns_of_all((block,), stream).items()}


def columns_of_all(blocks: Sequence[Block], stream: Stream) -> dict[str, list[memoryview]]:
    """The same of many blocks, a list of views for each name."""
    layout, scan_bytes, lines = stream.layout, stream.scan_bytes, len(stream.lines)
    named = (*BASE_COLUMNS, *((c.name, c.typecode) for c in stream.columns))
    sizes = [(name, CODE_BYTES[typecode] * (1 if name == "t_ns" else lines)) for name, typecode in named]
    arrays: dict[str, list[memoryview]] = {name: [] for name, _ in sizes}
    for block in blocks:
        if block.layout != layout:
            raise WireError(f"a block of layout {block.layout:#06x} in stream {stream.source!r} of {layout:#06x}")
        if len(block.payload) != block.count * scan_bytes:
            raise WireError(
                f"a block of {block.count} scans with {len(block.payload)} bytes in stream {stream.source!r}"
            )
        view, at = memoryview(block.payload), 0
        for name, size in sizes:
            end = at + block.count * size
            arrays[name].append(view[at:end])
            at = end
    return arrays
