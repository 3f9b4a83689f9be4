"""What a powerd measures, as pmlib's devices with numbered lines."""

from __future__ import annotations

from dataclasses import dataclass

from powerd_client.pmlib.lines import MAX_LINES
from powerd_core.model import Description, Line, QuantityConversion


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Something that can be measured. Its lines are numbered from 0, in this order; their sum is its power."""

    name: str
    max_frequency: float
    """Readings per second of its fastest line."""
    lines: tuple[Line, ...]
    description: str = ""

    @property
    def n_lines(self) -> int:
        return len(self.lines)


def devices_of(description: Description) -> list[DeviceInfo]:
    """The devices, each with the lines that feed it; then every other line that measures power or energy, alone."""
    lines = {line.name: (line, stream.period_ns) for stream in description.streams for line in stream.lines}
    fed: set[str] = set()
    found: list[DeviceInfo] = []
    for device in description.devices:
        feeds = device.feeds[:MAX_LINES]
        fed |= set(feeds)
        if feeds:
            rate_hz = 1e9 / max(min(lines[name][1] for name in feeds), 1)
            found.append(DeviceInfo(device.name, rate_hz, tuple(lines[n][0] for n in feeds), device.description))
    for name, (line, period_ns) in lines.items():
        if name not in fed and not isinstance(line.conversion, QuantityConversion):
            found.append(DeviceInfo(name, 1e9 / max(period_ns, 1), (line,), line.description))
    return found
