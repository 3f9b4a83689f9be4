"""I2C of this machine."""

from powerd_daemon.i2c.linux import LinuxBus

__all__ = ["LinuxBus"]
