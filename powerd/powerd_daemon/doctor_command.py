"""`powerd check` on this machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from powerd_core.errors import PowerdError
from powerd_daemon import printing
from powerd_daemon.asking import ask
from powerd_daemon.config import Config, load_config
from powerd_daemon.doctor import (
    Check,
    Finding,
    Machine,
    Verdict,
    check_clock,
    check_nvml,
    check_scheduler,
    examine,
    probe_disk,
)
from powerd_daemon.doctor_devices import check_bus_speed, check_i2c, check_powercap, check_serial, check_usbtmc
from powerd_daemon.doctor_sensors import sensor_checks
from powerd_daemon.plan_config import plan_file
from powerd_daemon.scan_command import open_bus

ASK_MS = 500


def check(arguments: argparse.Namespace) -> int:
    """Status 0, or 1 when something fails."""
    config = None if arguments.file is None else load_config(arguments.file)
    checks: list[Check] = [
        check_i2c,
        check_bus_speed,
        sensor_checks(open_bus, is_served),
        check_serial,
        check_usbtmc,
        check_powercap,
        check_nvml,
        check_clock,
        check_scheduler,
        probe_disk(arguments.directory),
    ]
    if arguments.file is not None:
        checks.insert(0, plan_check(arguments.file))
    found = examine(Machine(), config, checks)
    print(json.dumps([asdict(f) for f in found], indent=2) if arguments.json else printing.findings(found))
    return int(any(f.verdict is Verdict.FAIL for f in found))


def plan_check(path: Path) -> Check:
    """Whether every bus and its chips can do what the file asks of them: `powerd run` refuses what they cannot."""

    def check_plan(_machine: Machine, _config: Config | None) -> Iterator[Finding]:
        for plan in plan_file(path):
            name = plan.bus.source
            if plan.problems:
                yield Finding(
                    "plan", Verdict.FAIL, f"{name}: {plan.problems[0]}", f"the arithmetic: powerd plan {path}"
                )
            else:
                what = f"{name}: {plan.bus.rate_hz:g} Hz asked, {plan.achievable_hz:.0f} Hz achievable"
                yield Finding("plan", Verdict.OK, what)

    return check_plan


def is_served(endpoint: str) -> bool:
    """Whether a powerd answers there."""
    try:
        ask(endpoint, "describe", ASK_MS)
    except PowerdError:
        return False
    return True
