"""The sensor node behind a serial line: protocol, clock, readings, source. See docs/node-protocol.md."""
