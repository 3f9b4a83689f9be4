"""`joules record`: run any command and record it; a script in it that makes a `Meter` adds its phases."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from powerd_client.baseline import check_seconds, mark_baseline
from powerd_client.hostclock import now_ns
from powerd_client.journal import RUN_ENVIRONMENT
from powerd_client.recording import Recording
from powerd_client.telling import tell
from powerd_core.errors import ConfigError


def record_command(
    command: Sequence[str],
    *,
    url: str | None,
    out: Path,
    overwrite: bool,
    quiet: bool,
    keys: Path | None = None,
    baseline_s: float | None = None,
) -> int:
    """Run ``command`` under a recording and return its exit status (128 + n for signal n, as a shell does).

    Ctrl-C goes to the command, and SIGTERM and SIGHUP are handed on to it; the recording ends when it ends. With
    ``baseline_s`` idle power is measured before and after it; Ctrl-C before the command ends everything and leaves no
    run, after it only the measurement. Raises `ConfigError` for a command that cannot be started, and what `Recording`
    raises.
    """
    if baseline_s is not None:
        check_seconds(baseline_s)
    recording = Recording(out, [url] if url else [], overwrite=overwrite, command=list(command), keys=keys)
    environment = {**os.environ, RUN_ENVIRONMENT: str(recording.journal)}
    try:
        _wait(recording, baseline_s)
    except KeyboardInterrupt:
        recording.abandon()
        raise
    # A handler, unlike SIG_IGN, is not inherited by the command.
    previous = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with _handing_on() as processes:
            process = subprocess.Popen(command, env=environment)
            processes.append(process)
            status = process.wait()
    except OSError as error:
        recording.abandon()
        raise ConfigError(f"cannot run {command[0]!r}: {error.strerror}") from error
    finally:
        signal.signal(signal.SIGINT, previous)
    with contextlib.suppress(KeyboardInterrupt):
        _wait(recording, baseline_s)
    recording.finish(now_ns())
    if not quiet:
        tell(f"{out} is recorded; see it with: joules tables {shlex.quote(str(out))}")
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _handing_on() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Hand on to the process in the list what a batch system ends jobs with. One that comes before the process is
    there ends this one, as ever."""
    processes: list[subprocess.Popen[bytes]] = []
    previous = {}

    def hand_on(number: int, _frame: object) -> None:
        if not processes:
            raise SystemExit(128 + number)
        processes[0].send_signal(number)

    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) not in {signal.SIG_IGN, None}:  # SIG_IGN: under nohup
                previous[number] = signal.signal(number, hand_on)
        yield processes
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait(recording: Recording, baseline_s: float | None) -> None:
    """Measure idle power. A recording whose journal takes no marks goes on without."""
    if baseline_s is None:
        return
    try:
        mark_baseline(recording.journal, baseline_s)
    except OSError as error:
        tell(f"no baseline was measured: {error.strerror}")
