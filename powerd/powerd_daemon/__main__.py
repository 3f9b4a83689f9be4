"""Where `powerd` (and ``python -m powerd_daemon``) begins and ends: Ctrl-C is quiet while it loads and leaves."""

from __future__ import annotations

import io
import os
import signal
import sys

TYPE_CHECKING = False  # what type checkers take for true
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `powerd`: the status of `powerd_daemon.cli.main`, and 130 after Ctrl-C at any other moment."""
    # Whoever ignores the signal (nohup) keeps that. A KeyboardInterrupt in the middle of an import is a traceback.
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if is_ours:
            signal.signal(signal.SIGINT, _leave)
        from powerd_core.text import LEGIBLE, register_legible
        from powerd_daemon.cli import main as command

        if isinstance(sys.stdout, io.TextIOWrapper):
            register_legible()
            sys.stdout.reconfigure(errors=LEGIBLE)
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return command(argv)
    except KeyboardInterrupt:  # between two lines of this function
        return 130
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, _leave)


def _leave(*_: object) -> None:
    """Nothing has begun, or all is over: nothing is to be put in order, and nothing in between may be asked."""
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
