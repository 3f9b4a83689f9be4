"""Power monitors of the INA family on any register bus: tables, settings, sensors and combined scans."""

from powerd_core.calibration import Calibration
from powerd_daemon.ina.bus import Read, ReadWords, RegisterBus, scan_periods
from powerd_daemon.ina.chips import CHIPS, ChipType, chip_type
from powerd_daemon.ina.scanner import Scanner
from powerd_daemon.ina.sensor import Bank, Sensor, accuracy, conversion, line, make_bank
from powerd_daemon.ina.settings import Settings

__all__ = [
    "CHIPS",
    "Bank",
    "Calibration",
    "ChipType",
    "Read",
    "ReadWords",
    "RegisterBus",
    "Scanner",
    "Sensor",
    "Settings",
    "accuracy",
    "chip_type",
    "conversion",
    "line",
    "make_bank",
    "scan_periods",
]
