"""`powerd check`: who may open the sensors' devices, and how fast the I2C buses are."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from powerd_daemon.calibration import bus_number
from powerd_daemon.config import Config
from powerd_daemon.doctor import Finding, Machine, Verdict, kinds_in
from powerd_daemon.meter.link import is_usbtmc

RULES = "powerd/deploy/60-powerd.rules"
FAST_HZ = 400_000


def check_i2c(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """/dev/i2c-*: there, and open to this user."""
    buses, wanted = machine.paths("dev/i2c-[0-9]*"), "ina" in kinds_in(config)
    if not buses:
        if machine.paths("sys/bus/i2c/devices/i2c-[0-9]*"):
            remedy = (
                "load the module, now and at every boot: modprobe i2c-dev; echo i2c-dev > /etc/modules-load.d/i2c.conf"
            )
            yield Finding("i2c", Verdict.FAIL if wanted else Verdict.WARN, "there are buses, but no /dev/i2c-*", remedy)
        elif wanted:
            yield Finding(
                "i2c", Verdict.FAIL, "there is no I2C bus here", f"switch it on at boot: {_boot_remedy(machine)}"
            )
        else:
            yield Finding("i2c", Verdict.OK, "there is no I2C bus here, and none is asked for")
    yield from _permissions(machine, "i2c", buses, "i2c", must=wanted)


def check_bus_speed(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """The clock of each bus as the device tree sets it, against what the configuration counts on."""
    asked = dict(_asked_scl_hz(config))
    for path in machine.paths("dev/i2c-[0-9]*"):
        number = int(path.name.removeprefix("i2c-"))
        speed_hz = bus_speed_hz(machine, number)
        if speed_hz is None:
            if number in asked:
                counts_on = f"the configuration counts on {asked[number] / 1000:g} kHz"
                what = f"{path.name}: its clock cannot be read here; {counts_on}"
                yield Finding(
                    "bus speed", Verdict.WARN, what, "compare with the rate that `powerd stats` shows after a minute"
                )
            continue
        what = f"{path.name}: {speed_hz / 1000:g} kHz"
        if number in asked and abs(speed_hz / asked[number] - 1) > 0.01:
            slow = speed_hz < asked[number]
            remedy = f"set scl_hz = {speed_hz} in its [[source]]" + (f", or {_boot_remedy(machine)}" if slow else "")
            what += f", but the configuration counts on {asked[number] / 1000:g} kHz"
            yield Finding("bus speed", Verdict.FAIL if slow else Verdict.WARN, what, remedy)
        elif speed_hz < FAST_HZ:
            yield Finding("bus speed", Verdict.WARN, f"{what}: the INA family takes 400 kHz", _boot_remedy(machine))
        else:
            yield Finding("bus speed", Verdict.OK, what)


def bus_speed_hz(machine: Machine, number: int) -> int | None:
    """``clock-frequency`` of the adapter's node in the device tree (4 bytes, most significant first), or None."""
    for base in ("sys/class/i2c-adapter", "sys/bus/i2c/devices", "sys/class/i2c-dev"):
        for node in ("of_node", "device/of_node"):
            try:
                found = (machine.root / base / f"i2c-{number}" / node / "clock-frequency").read_bytes()
            except OSError:
                continue
            if len(found) == 4:
                return int.from_bytes(found, "big")
    return None


def check_serial(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """/dev/ttyACM* and ttyUSB*: nodes and meters."""
    ports = machine.paths("dev/ttyACM[0-9]*") + machine.paths("dev/ttyUSB[0-9]*")
    must = bool(kinds_in(config) & {"node", "serial-line"}) or _asks_for_meter(config, on_usb=False)
    if not ports:
        yield Finding(
            "serial",
            Verdict.WARN if must else Verdict.OK,
            "no ttyACM or ttyUSB here",
            *(["plug the node in and look at: dmesg | tail"] if must else []),
        )
    yield from _permissions(machine, "serial", ports, "dialout", must=must)


def check_usbtmc(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """/dev/usbtmc*: wall meters on USB."""
    meters = machine.paths("dev/usbtmc[0-9]*")
    must = _asks_for_meter(config, on_usb=True)
    if not meters:
        yield Finding(
            "usbtmc",
            Verdict.FAIL if must else Verdict.OK,
            "no USBTMC meter here",
            *(["switch the meter on, plug it in and look at: dmesg | tail"] if must else []),
        )
    yield from _permissions(machine, "usbtmc", meters, "powerd", must=must)


def check_powercap(machine: Machine, config: Config | None) -> Iterator[Finding]:
    """RAPL's energy counters, readable by root alone unless a rule says otherwise."""
    counters, must = machine.paths("sys/class/powercap/intel-rapl:*/energy_uj"), "rapl" in kinds_in(config)
    if not counters:
        verdict = Verdict.FAIL if must else Verdict.OK
        yield Finding(
            "powercap",
            verdict,
            "no RAPL counters here",
            "modprobe intel_rapl_msr, or leave the source 'rapl' out" if must else "",
        )
        return
    closed = [p for p in counters if not machine.may(p, os.R_OK)]
    if closed:
        what = f"{len(closed)} of {len(counters)} RAPL counters cannot be read by this user"
        remedy = f"install {RULES} (group powerd may read them), and: sudo usermod -aG powerd {_user()}"
        yield Finding("powercap", Verdict.FAIL if must else Verdict.WARN, what, remedy)
    else:
        yield Finding("powercap", Verdict.OK, f"{len(counters)} RAPL counters can be read")


def _asks_for_meter(config: Config | None, *, on_usb: bool) -> bool:
    """Whether the configuration has a WT310E on USBTMC, or one on a serial port."""
    ports = [str(s.options.get("port")) for s in config.sources if s.kind == "wt310e"] if config else []
    return any(is_usbtmc(port) == on_usb for port in ports)


def _permissions(machine: Machine, area: str, paths: list[Path], group: str, *, must: bool) -> Iterator[Finding]:
    open_ones = [p for p in paths if machine.may(p, os.R_OK | os.W_OK)]
    if open_ones:
        yield Finding(area, Verdict.OK, f"{', '.join(p.name for p in open_ones)}: may be opened")
    for path in (p for p in paths if p not in open_ones):
        what = f"/dev/{path.name}: this user may not open it"
        yield Finding(area, Verdict.FAIL if must else Verdict.WARN, what, _permission_remedy(path, group))


def _permission_remedy(path: Path, group: str) -> str:
    info = path.stat()
    try:
        owner = grp.getgrgid(info.st_gid).gr_name
    except KeyError:
        owner = str(info.st_gid)
    both = stat.S_IRGRP | stat.S_IWGRP
    if owner == group and info.st_mode & both == both:
        return f"join its group and log in again: sudo usermod -aG {group} {_user()}"
    return f"install {RULES} in /etc/udev/rules.d (group {group} may open it), and: sudo usermod -aG {group} {_user()}"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _boot_remedy(machine: Machine) -> str:
    model = machine.model()
    if "BeagleBone" in model:
        return "add to /boot/uEnv.txt and boot: uboot_overlay_addr7=/lib/firmware/BB-I2C2-FAST-00A0.dtbo"
    if "Raspberry Pi" in model:
        return "add to /boot/firmware/config.txt and boot: dtparam=i2c_arm=on,i2c_arm_baudrate=400000"
    return "set clock-frequency = <400000> of the adapter in the device tree"


def _asked_scl_hz(config: Config | None) -> Iterator[tuple[int, float]]:
    for source in config.sources if config else ():
        bus, scl_hz = source.options.get("bus"), source.options.get("scl_hz", FAST_HZ)
        if source.kind == "ina" and isinstance(bus, int | str) and isinstance(scl_hz, int | float):
            number = bus_number(bus)
            if number is not None:
                yield number, float(scl_hz)
