"""Sensors of the INA family on any register bus: chip tables, sensors, scans, recovery, and the source."""
