"""INA219 power monitors on any register bus: register table, data-sheet accuracy, combined scans."""

from powerd_daemon.ina.bus import ReadWords, RegisterBus
from powerd_daemon.ina.ina219 import Settings, accuracy, conversion
from powerd_daemon.ina.scanner import Chip, Scanner

__all__ = ["Chip", "ReadWords", "RegisterBus", "Scanner", "Settings", "accuracy", "conversion"]
