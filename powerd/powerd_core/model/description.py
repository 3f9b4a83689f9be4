"""What one powerd measures: streams of lines, and the devices that these feed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from zlib import crc32

from powerd_core.model.line import Line
from powerd_core.model.readings import CODE_BYTES, Column


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
