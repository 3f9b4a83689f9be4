"""Serial lines: a port over pyserial, and the protocol of our sensor node. See docs/node-protocol.md."""

from powerd_daemon.serial.port import Port, SerialPort

__all__ = ["Port", "SerialPort"]
