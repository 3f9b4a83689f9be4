"""Which devices there are: what the sources propose, overridden and extended by the configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from powerd_core.errors import ConfigError
from powerd_core.model import Device, Stream, pci_key, uuid_key
from powerd_core.text import did_you_mean
from powerd_daemon.config import DeviceConfig, SourceConfig


def check_lines(described: Iterable[tuple[SourceConfig, Sequence[Stream]]]) -> tuple[str, ...]:
    """The names of all lines. Raises `ConfigError` when two have the same."""
    owners: dict[str, SourceConfig] = {}
    for source, streams in described:
        for name in (line.name for stream in streams for line in stream.lines):
            if name in owners:
                raise ConfigError(
                    f"{source.where}: line {name!r} is also a line of source {owners[name].name!r}: "
                    "give one of them another name in its options, or remove it"
                )
            owners[name] = source
    return tuple(owners)


def merge_devices(
    lines: Sequence[str],
    proposed: Iterable[tuple[SourceConfig, Sequence[Device]]],
    configured: Sequence[DeviceConfig],
    beside: Collection[str] = (),
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """All devices, and notes for the user on proposals that were set aside.

    Two sources that measure one device measure the same power twice: the first of them in the configuration feeds it,
    unless a ``[[device]]`` says otherwise. Raises `ConfigError` for a device fed by a line that does not exist, or by
    one of the lines ``beside``, which are no power.
    """
    devices: dict[str, Device] = {}
    feeder: dict[str, str] = {}
    notes = []
    settled = {d.name for d in configured if d.feeds is not None}
    for source, found in proposed:
        for device in found:
            _check_feeds(device.feeds, lines, beside, f"{source.where}: device {device.name!r}")
            if device.name not in devices or not devices[device.name].feeds:
                devices[device.name] = device
                feeder[device.name] = source.name
            elif device.feeds and device.name not in settled:
                notes.append(
                    f"device {device.name} is fed by the lines of source {feeder[device.name]!r}; those of "
                    f"{source.name!r} are compared with them (a [[device]] table can say otherwise)"
                )
    for config in configured:
        before = devices.get(config.name, Device(config.name, ()))
        feeds = before.feeds if config.feeds is None else config.feeds
        if not feeds:
            raise ConfigError(f"{config.where}: no source proposes this device: say which lines are its 'feeds'")
        _check_feeds(feeds, lines, beside, config.where)
        devices[config.name] = Device(
            config.name,
            feeds,
            before.description if config.description is None else config.description,
            before.uuid if config.uuid is None else config.uuid,
            before.pci if config.pci is None else config.pci,
        )
    _refuse_one_gpu_twice(configured)
    return tuple(devices.values()), tuple(notes)


def _refuse_one_gpu_twice(configured: Sequence[DeviceConfig]) -> None:
    """Two devices of the file with one GPU's name would each be given what its processes use."""
    seen: dict[tuple[str, str], DeviceConfig] = {}
    for config in configured:
        for option, key in (("uuid", uuid_key(config.uuid)), ("pci", pci_key(config.pci))):
            before = seen.setdefault((option, key), config) if key else config
            if before is not config:
                raise ConfigError(f"{config.where}: {option!r} is also that of {before.name!r}: a GPU is one device")


def _check_feeds(feeds: Sequence[str], lines: Sequence[str], beside: Collection[str], where: str) -> None:
    for line in feeds:
        if line not in lines:
            raise ConfigError(f"{where}: unknown line {line!r} in feeds{did_you_mean(line, lines)}")
        if line in beside:
            raise ConfigError(f"{where}: line {line!r} in feeds is neither power nor energy: leave it out")
