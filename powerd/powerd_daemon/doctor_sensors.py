"""`powerd check`: the chips of the INA family that a configuration names, or all that answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

from powerd_core.errors import PowerdError
from powerd_daemon.config import Config
from powerd_daemon.doctor import Check, Finding, Machine, Verdict
from powerd_daemon.ina.bus import RegisterBus
from powerd_daemon.ina.sensor import Sensor
from powerd_daemon.ina.settings import Settings
from powerd_daemon.plan_config import read_bus
from powerd_daemon.scan import Answer, buses, held_by_kernel, scan_bus

OpenBus = Callable[[int], AbstractContextManager[RegisterBus]]
"""The bus behind /dev/i2c-N, closed behind the ``with``. Raises `SensorError`."""
LOW_SHARE = 0.5
"""A supply below half of its nominal voltage is off, or its sensor's bus pin is not connected."""


def sensor_checks(open_bus: OpenBus, is_served: Callable[[str], bool]) -> Check:
    """A check of the sensors. ``is_served`` says whether a powerd answers at an endpoint: it is not disturbed."""

    def check_sensors(machine: Machine, config: Config | None) -> Iterator[Finding]:
        if config is not None and is_served(config.server.listen):
            yield Finding(
                "sensors",
                Verdict.OK,
                f"a powerd is measuring at {config.server.listen}: its sensors are left alone",
                "to have them looked at, stop it first; else see: powerd stats",
            )
            return
        wanted = list(_wanted(config))
        numbers = sorted({n for n, _, _ in wanted}) if config else buses(machine.root)
        for number in numbers:
            try:
                with open_bus(number) as bus:
                    answers = scan_bus(bus, number, held_by_kernel(number, machine.root))
            except (PowerdError, OSError) as error:
                yield Finding("sensors", Verdict.FAIL if config else Verdict.WARN, f"i2c-{number}: {error}")
                continue
            mine = [(sensor, settings) for n, sensor, settings in wanted if n == number]
            yield from _compare(number, mine, answers)

    return check_sensors


def _wanted(config: Config | None) -> Iterator[tuple[int, Sensor, Settings]]:
    for source in config.sources if config else ():
        bus = read_bus({"kind": source.kind, "name": source.name, **source.options}, source.where)
        if bus is not None and bus.number is not None:
            for sensor, settings in zip(bus.bank.sensors, bus.bank.settings, strict=True):
                yield bus.number, sensor, settings


def _compare(number: int, wanted: list[tuple[Sensor, Settings]], answers: Iterable[Answer]) -> Iterator[Finding]:
    at = {answer.address: answer for answer in answers}
    for sensor, settings in wanted:
        where = f"i2c-{number} {sensor.address:#04x} ({sensor.name})"
        answer = at.get(sensor.address)
        if answer is None:
            remedy = "check its supply, SDA and SCL, and its address pins; `powerd scan` shows what answers"
            yield Finding("sensors", Verdict.FAIL, f"{where}: nothing answers", remedy)
        elif answer.chip != settings.chip:
            remedy = f'set chip = "{answer.chip}"' if answer.chip else "free the address for the sensor"
            yield Finding("sensors", Verdict.FAIL, f"{where}: is no {settings.chip}: {_said(answer)}", remedy)
        else:
            yield _known(where, sensor, settings, answer)
    named = {sensor.address for sensor, _ in wanted}
    for answer in at.values():
        if answer.address not in named and answer.chip:
            what = f"i2c-{number} {answer.address:#04x}: {_said(answer)}"
            yield Finding("sensors", Verdict.OK, what + (", not in the configuration" if wanted else ""))


def _known(where: str, sensor: Sensor, settings: Settings, answer: Answer) -> Finding:
    config = answer.config or 0
    if config == dict(settings.words)[settings.type.config]:
        state = f"CONFIG {config:#06x}, as configured"
    elif config == settings.type.resets[settings.type.config]:
        state = f"CONFIG {config:#06x}, the reset value: powerd has not set it up yet"
    else:
        state = f"CONFIG {config:#06x}, set up by something else: powerd will set it up anew"
    volts = next((c.bus_v for c in answer.channels if c.number == sensor.channel), None)
    what = f"{where}: {settings.chip}, {state}"
    if volts is None:
        return Finding(
            "sensors", Verdict.WARN, f"{what}, but its voltage could not be read", "check the wiring of the bus"
        )
    what += f", {volts:.2f} V"
    if volts < LOW_SHARE * sensor.nominal_v:
        remedy = "switch the supply on, or connect the sensor's bus pin (IN-) to the load's side of the shunt"
        return Finding("sensors", Verdict.WARN, f"{what} instead of {sensor.nominal_v:g} V", remedy)
    return Finding("sensors", Verdict.OK, what)


def _said(answer: Answer) -> str:
    return f"{answer.chip} by its {answer.how}" if answer.chip else answer.how
