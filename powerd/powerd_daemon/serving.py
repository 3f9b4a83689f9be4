"""One powerd after the other: as long as clients with the role control give it something new to start with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from powerd_core.errors import PowerdError
from powerd_daemon.clock import Clock
from powerd_daemon.config import Config, ServerConfig
from powerd_daemon.control import Control
from powerd_daemon.daemon import Daemon
from powerd_daemon.log import Log
from powerd_daemon.sdnotify import Notifier


def serve_until(
    is_over: Callable[[], bool],
    config: Config,
    control: Control | None,
    clock: Clock,
    log: Log,
    manager: Notifier,
) -> None:
    """Raises `PowerdError` when powerd cannot start, unless that was a change from afar, which is taken back."""
    served: ServerConfig | None = None

    def is_ending() -> bool:
        return is_over() or (control is not None and control.is_restarting)

    try:
        while True:
            daemon: Daemon | None = None
            try:
                daemon = Daemon(config, log, clock, control)
                served = replace(config.server, listen=daemon.listen, data=daemon.data, clock=daemon.clock)
                if not daemon.start(is_over):
                    return
                if control is not None:
                    control.has_started()
                manager.ready(f"serving on {daemon.listen}")
                daemon.serve(is_ending)
            except (PowerdError, OSError) as error:
                if control is None or not control.take_back(error):
                    raise
            finally:
                if daemon is not None:
                    daemon.close()
            if control is None or is_over():
                return
            config = control.config(served)
    finally:
        manager.stopping()
