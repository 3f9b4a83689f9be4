"""`powerd check` on this machine."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from powerd_core.errors import PowerdError
from powerd_daemon import printing
from powerd_daemon.asking import ask
from powerd_daemon.config import load_config
from powerd_daemon.doctor import (
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
from powerd_daemon.scan_command import open_bus

ASK_MS = 500


def check(arguments: argparse.Namespace) -> int:
    """Status 0, or 1 when something fails."""
    config = None if arguments.file is None else load_config(arguments.file)
    checks = [
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
    found = examine(Machine(), config, checks)
    print(json.dumps([asdict(f) for f in found], indent=2) if arguments.json else printing.findings(found))
    return int(any(f.verdict is Verdict.FAIL for f in found))


def is_served(endpoint: str) -> bool:
    """Whether a powerd answers there."""
    try:
        ask(endpoint, "describe", ASK_MS)
    except PowerdError:
        return False
    return True
