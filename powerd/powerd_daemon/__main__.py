"""Where `powerd` (and ``python -m powerd_daemon``) begins and ends: Ctrl-C is quiet while it loads and leaves."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading

TYPE_CHECKING = False  # what type checkers take for true
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `powerd`: the status of `powerd_daemon.cli.main`, and 130 after Ctrl-C at any other moment."""
    before: Any = None
    ours = False
    try:
        before = signal.getsignal(signal.SIGINT)
        # Whoever ignores the signal (nohup) or has a plan of their own for it keeps that.
        ours = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
        if ours:
            # A KeyboardInterrupt in the middle of an import is a traceback, or is swallowed by what is imported.
            signal.signal(signal.SIGINT, _leave)
        from powerd_core.text import LEGIBLE, register_legible
        from powerd_daemon.cli import main as command

        if isinstance(sys.stdout, io.TextIOWrapper):
            register_legible()
            sys.stdout.reconfigure(errors=LEGIBLE)
        if ours:
            signal.signal(signal.SIGINT, before)
        return command(argv)
    except KeyboardInterrupt:  # between two lines of this function
        return 130
    finally:
        if ours:
            # With the command line's arguments it is the process that ends here; else it is its caller's.
            signal.signal(signal.SIGINT, _leave if argv is None else before)


def _leave(*_: object) -> None:
    """Nothing has begun, or all is over: nothing is to be put in order, and nothing in between may be asked."""
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
