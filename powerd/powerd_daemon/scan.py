"""`powerd scan`: what answers at the INA family's addresses of a bus, and what it is.

Nothing is written but register pointers, and the order of reads is chosen for what else lives at 0x40 to 0x4f: first
register 0, which all types have; only where that was answered the constants at 0xfe, 0xff, 0x3e and 0x3f; then
voltages. POWER is never read (that would clear the INA219's CNVR), and an address that a kernel driver holds is left
alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from powerd_core.errors import PowerdError, SensorError
from powerd_core.text import printable
from powerd_daemon.commands import add_format_option
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.ina.bus import Read, RegisterBus, open_bus
from powerd_daemon.sources.ina.chips import CHIPS, INA219, MANUFACTURER, ChipType
from powerd_daemon.sources.sim.bus import VirtualClock
from powerd_daemon.sources.sim.source import SIMULATED_BUS, SimOptions, SimSource

FIRST, LAST = 0x40, 0x4F
SETTLE_NS = 10_000_000
"""After so long, chips that were reset have converted something."""
_ADC_CODES = {a.code for a in INA219.adc.values()} | {a.code | 4 for a in INA219.adc.values() if a.code < 4} | {0x8}


@dataclass(frozen=True, slots=True)
class FoundChannel:
    """One channel's registers, by the type's widest or reset range."""

    number: int
    shunt_v: float
    bus_v: float


@dataclass(frozen=True, slots=True)
class FoundChip:
    """What was found at one address."""

    bus: int
    address: int
    chip: str
    """The type's name; empty where it is none that powerd knows."""
    how: str
    """By what it was recognised, or why not."""
    config: int | None = None
    channels: tuple[FoundChannel, ...] = ()


def scan_bus(bus: RegisterBus, number: int, held: Iterable[tuple[int, str]] = ()) -> list[FoundChip]:
    """Everything that answers on one bus; ``held`` are addresses of kernel drivers and these drivers' names."""
    answers, owners = [], dict(held)
    for address in range(FIRST, LAST + 1):
        if address in owners:
            answers.append(FoundChip(number, address, "", f"held by the kernel's driver {owners[address]}"))
        elif (config := _read(bus, address, 0)) is not None:
            kind, how = _identify(bus, address, config)
            channels = () if kind is None else _channels(bus, kind, address)
            answers.append(FoundChip(number, address, "" if kind is None else kind.name, how, config, channels))
    return answers


def held_by_kernel(number: int, root: Path = Path("/")) -> list[tuple[int, str]]:
    """Addresses of a bus that kernel drivers are bound to."""
    drivers = sorted((root / "sys/bus/i2c/devices").glob(f"{number}-00*/driver"))
    return [(int(driver.parent.name.rpartition("-")[2], 16), driver.resolve().name) for driver in drivers]


def buses(root: Path = Path("/")) -> list[int]:
    """Numbers of this machine's /dev/i2c-*."""
    return sorted(int(p.name.removeprefix("i2c-")) for p in (root / "dev").glob("i2c-[0-9]*"))


def to_toml(answers: Iterable[FoundChip]) -> str:
    """``[[source]]`` tables, one a bus, for all chips that were recognised."""
    rows: list[str] = []
    last_bus: int | None = None
    for answer in (a for a in answers if a.chip):
        if answer.bus != last_bus:
            last_bus = answer.bus
            of_bus = ['kind = "ina"', f'name = "i2c-{last_bus}"', f"bus = {last_bus}"]
            rows += ["[[source]]", *(['kind = "sim"'] if last_bus == SIMULATED_BUS else of_bus)]
            rows += ['device = "gpu0"             # whose power these lines add up to', ""]
        for channel in answer.channels:
            # The supply voltage that a reading probably is; 12 where it is none of the usual ones.
            nominal_v = next((v for v in (3.3, 5.0, 12.0) if abs(channel.bus_v / v - 1) <= 0.12), 12.0)
            rows += [
                "[[source.sensors]]",
                f'name = "at_{answer.address:02x}_{channel.number}"            # what it measures, such as pcie_12v',
                f'chip = "{answer.chip}"',
                f"address = {answer.address:#04x}",
                f"channel = {channel.number}",
                "shunt_ohm = 0.05            # as printed on the resistor",
                f"nominal_v = {nominal_v:g}              # {channel.bus_v:.3f} V were read",
                "",
            ]
    return "\n".join(rows)


def to_table(answers: Sequence[FoundChip], buses: Sequence[int]) -> str:
    """What was found on these buses, for people."""
    rows = ["bus  address  chip     CONFIG  voltages (bus, shunt)       recognised by"] if answers else []
    for a in answers:
        volts = ", ".join(f"{c.bus_v:.3f} V {c.shunt_v * 1000:.2f} mV" for c in a.channels)
        config = "" if a.config is None else f"{a.config:#06x}"
        bus = "sim" if a.bus == SIMULATED_BUS else str(a.bus)
        rows.append(f"{bus:>3}  {a.address:#04x}     {a.chip or '?':<8} {config:<7} {volts:<27} {a.how}")
    if silent := [str(n) for n in buses if n not in {a.bus for a in answers}]:
        rows.append(f"nothing answers at 0x40 to 0x4f of i2c-{', i2c-'.join(silent)}")
    return "\n".join(rows)


def _identify(bus: RegisterBus, address: int, config: int) -> tuple[ChipType | None, str]:
    """The type of what answered at an address, and how it was recognised, or why it was not."""
    for kind in CHIPS.values():
        if kind.identity and all((_read(bus, address, r) or 0) & m == value & m for r, value, m in kind.identity):
            return kind, "identification registers"
    if _read(bus, address, 0xFE) == MANUFACTURER or _read(bus, address, 0x3E) == MANUFACTURER:
        return None, "a chip of Texas Instruments that powerd does not know"
    voltage, calibration = _read(bus, address, 2), _read(bus, address, 5)
    if voltage is not None and calibration is not None:
        if config == INA219.resets[0]:
            return INA219, "reset value of CONFIG"
        # No constant tells an INA219 that was set up; its unused bits and codes do, unless something imitates them all.
        like = not config & 0xC000 and not voltage & 4 and not calibration & 1
        if like and config & 7 and (config >> 3 & 15) in _ADC_CODES and (config >> 7 & 15) in _ADC_CODES:
            return INA219, "probably: registers fit"
    return None, "answers, but not like any chip of the INA family"


def _channels(bus: RegisterBus, kind: ChipType, address: int) -> tuple[FoundChannel, ...]:
    ranged, channels = next(iter(kind.shunt_ranges.values())), []
    for i, (shunt, voltage) in enumerate(kind.channels, 1):
        shunt_code, bus_code = (_read(bus, address, r, kind.code_bytes) for r in (shunt, voltage))
        if shunt_code is not None and bus_code is not None:
            sign = 1 << (8 * kind.code_bytes - 1)
            shunt_v = ((shunt_code ^ sign) - sign) * ranged.lsb_v
            channels.append(FoundChannel(i, shunt_v, (bus_code >> kind.bus_shift) * kind.bus_lsb_v))
    return tuple(channels)


def _read(bus: RegisterBus, address: int, register: int, size: int = 2) -> int | None:
    """A register, or None where nothing acknowledges."""
    try:
        return int.from_bytes(bytes(bus.prepare([Read(address, register, size)])()), "big")
    except OSError:
        return None


@contextmanager
def open_simulated(options: SimOptions) -> Iterator[RegisterBus]:
    """The bus of a simulated card, before powerd sets its chips up."""
    source = SimSource(options, Start("sim", 1, 0, VirtualClock()))
    bus, _ = source.connect()
    source.start.clock.sleep_until(source.start.clock.now_ns() + SETTLE_NS)
    try:
        yield bus
    finally:
        source.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `powerd scan`."""
    parser.description = (
        "Reads, and writes nothing but register pointers, at the addresses 0x40 to 0x4f. Addresses held by a kernel "
        "driver are left alone. Stop a powerd that reads this bus first: it counts on pointers staying in place."
    )
    parser.epilog = "powerd scan 2 --format toml"
    parser.add_argument("bus", nargs="*", type=int, metavar="BUS", help="number N of /dev/i2c-N (default: all)")
    parser.add_argument("--sim", action="store_true", help="the simulated card's bus, to rehearse on")
    add_format_option(parser, toml="[[source]] tables for a configuration")


def run(arguments: argparse.Namespace) -> int:
    """Print what answers. A bus that cannot be opened is told on stderr and fails the command at its end."""
    numbers = [SIMULATED_BUS] if arguments.sim else arguments.bus or buses()
    if not numbers:
        raise SensorError("there is no /dev/i2c-*: enable the bus in the boot settings and load i2c-dev (powerd check)")
    answers: list[FoundChip] = []
    read: list[int] = []
    for number in numbers:
        try:
            with open_simulated(SimOptions()) if number == SIMULATED_BUS else open_bus(number) as bus:
                answers += scan_bus(bus, number, held_by_kernel(number))
                read.append(number)
        except PowerdError as error:
            print(f"powerd: {printable(str(error), limit=3000)}", file=sys.stderr)
    if arguments.format == "json":
        print(json.dumps([asdict(answer) for answer in answers], indent=2))
    elif read:
        print(to_toml(answers) if arguments.format == "toml" else to_table(answers, read))
    return 0 if len(read) == len(numbers) else 2
