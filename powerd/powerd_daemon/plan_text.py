"""The plan of a bus as text, for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import hypot

from powerd_core.text import printable
from powerd_daemon.plan import COVERAGE_FACTOR, IOCTL_NS, Budget, BusPlan, Mode


def plan_text(plan: BusPlan, loads_w: Mapping[str, float]) -> str:
    """The arithmetic of one bus. ``loads_w`` gives a line's or a device's expected power."""
    bus = plan.bus
    where = "simulated bus" if bus.number is None else f"/dev/i2c-{bus.number}"
    loads = line_loads_w(plan.budgets, loads_w or bus.loads_w)
    said = [f"{bus.source}: {where} at {bus.scl_hz / 1000:g} kHz, {len(plan.budgets)} lines, {bus.rate_hz:g} Hz asked"]
    said += [
        "",
        "  on the wire      SCL periods/scan  transactions  wire limit  with read-backs  "
        f"with {IOCTL_NS // 1000} us a transaction",
    ]
    said += [_mode(mode, chosen=bus.combined) for mode in plan.modes]
    said.append(f"  configurations are read back with {bus.check_periods:.0f} of {bus.scl_hz:.0f} SCL periods a second")
    if bus.bus_every > 1:
        said.append(
            f"  bus voltages are read in every {bus.bus_every}th scan; the others read shunts behind kept pointers"
        )
    said += ["", "  conversions             shunt us  bus us  averages  cycle us (at most)  codes/s  current covered"]
    said += _conversions(plan.budgets)
    verdict = "enough" if plan.achievable_hz >= bus.rate_hz else "too slow"
    said += ["", f"  achievable {plan.achievable_hz:.0f} Hz, asked {bus.rate_hz:g} Hz: {verdict}", ""]
    said.append("  limits                  I gain  V gain  shunt   zero mA   step mA  clips at A       W  shunt W")
    said += [_limits(b) for b in plan.budgets]
    k = COVERAGE_FACTOR
    said += [
        "",
        f"  uncertainty of one reading (u standard, U = {k} u)      at load W  u W     U W     U %"
        "    at full W  u W     U W     U %",
    ]
    said += [_uncertainty(b, loads[b.line]) for b in plan.budgets]
    said += _devices(plan.budgets, loads)
    said += [f"  note: {note}" for note in plan.notes]
    said += [f"  refused: {problem}" for problem in plan.problems]
    return "\n".join(map(printable, said)) + "\n"


def line_loads_w(budgets: Iterable[Budget], loads_w: Mapping[str, float]) -> dict[str, float]:
    """The expected power of each line: as given, or its part of what is given for its device, or half of full load.

    Parts are in proportion to what the lines can carry.
    """
    found: dict[str, float] = {}
    budgets = list(budgets)
    for b in budgets:
        if b.line in loads_w:
            found[b.line] = loads_w[b.line]
        elif b.device in loads_w:
            others = [o for o in budgets if o.device == b.device and o.line not in loads_w]
            rest_w = loads_w[b.device] - sum(
                loads_w[o.line] for o in budgets if o.device == b.device and o.line in loads_w
            )
            found[b.line] = rest_w * b.clip_w / sum(o.clip_w for o in others)
        else:
            found[b.line] = b.clip_w / 2
    return found


def _mode(mode: Mode, *, chosen: bool | None) -> str:
    name = "combined" if mode.combined else "single reads"
    note = "  <- this adapter" if chosen is mode.combined else ""
    return (
        f"  {name:<16} {mode.periods:16.1f}  {mode.transactions:12.1f}  {mode.limit_hz:7.1f} Hz  "
        f"{mode.checked_hz:11.1f} Hz  {mode.practical_hz:7.1f} Hz{note}"
    )


def _conversions(budgets: Iterable[Budget]) -> list[str]:
    """One row for all lines that convert alike."""
    rows: dict[tuple[object, ...], list[str]] = {}
    for b in budgets:
        s = b.settings
        key = (s.chip, s.shunt_adc_ns, s.bus_adc_ns, s.averages, s.cycle_ns, s.longest_cycle_ns, s.coverage)
        rows.setdefault(key, []).append(b.line)
    said = []
    for (chip, shunt_ns, bus_ns, averages, cycle_ns, longest_ns, coverage), lines in rows.items():
        name = f"{len(lines)} x {chip}" if len(lines) > 1 else f"{lines[0]} ({chip})"
        said.append(
            f"  {name:<22} {_us(shunt_ns):>9} {_us(bus_ns):>7} {averages:>9}  {_us(cycle_ns):>8} ({_us(longest_ns)})"
            f"  {1e9 / float(str(longest_ns)):7.0f}  {float(str(coverage)):.1%}"
        )
    return said


def _us(ns: object) -> str:
    return f"{int(str(ns)) / 1000:.0f}"


def _limits(b: Budget) -> str:
    return (
        f"  {b.line:<22} {b.current_gain:6.2%}  {b.bus_gain:6.2%}  {b.shunt:5.2%}  {b.offset_a * 1000:8.3f}  "
        f"{b.step_a * 1000:8.4f}  {b.clip_a:10.3f}  {b.clip_w:6.1f}  {b.shunt_w:7.2f}"
    )


def _uncertainty(b: Budget, load_w: float) -> str:
    said = f"  {b.line:<54}"
    for width, power_w in ((9, load_w), (11, b.clip_w)):
        u_w = b.u_w(power_w)
        share = f"{COVERAGE_FACTOR * u_w / power_w:7.2%}" if power_w > 0 else "      -"
        said += f"  {power_w:{width}.1f}  {u_w:6.3f}  {COVERAGE_FACTOR * u_w:6.3f} {share}"
    return said


def _devices(budgets: tuple[Budget, ...], loads: Mapping[str, float]) -> list[str]:
    """Each device's sum: the errors of different chips and shunts are independent."""
    said = []
    for device in dict.fromkeys(b.device for b in budgets):
        mine = [b for b in budgets if b.device == device]
        if len(mine) == 1:
            continue
        total = f"  {f'{device}, sum of {len(mine)} lines':<54}"
        for width, powers_w in ((9, [loads[b.line] for b in mine]), (11, [b.clip_w for b in mine])):
            power_w, u_w = sum(powers_w), hypot(*(b.u_w(p) for b, p in zip(mine, powers_w, strict=True)))
            share = f"{COVERAGE_FACTOR * u_w / power_w:7.2%}" if power_w > 0 else "      -"
            total += f"  {power_w:{width}.1f}  {u_w:6.3f}  {COVERAGE_FACTOR * u_w:6.3f} {share}"
        said.append(total)
    return said
