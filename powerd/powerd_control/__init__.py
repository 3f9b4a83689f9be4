"""The helper that sets power caps and clocks under lease. Nobody imports this package: it is spoken to by message."""
