"""The sensor node behind a serial line: protocol, clock, readings, source. See docs/reference/node-protocol.md."""
