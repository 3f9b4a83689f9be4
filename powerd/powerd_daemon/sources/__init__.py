"""Drivers that produce readings; see `powerd_daemon.sources.base`."""
