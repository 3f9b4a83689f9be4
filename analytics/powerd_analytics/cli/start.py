"""Where `joules` begins and ends: Ctrl-C is quiet while it loads and leaves, what is not installed is one line."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from typing import Any

_PART_OF = dict.fromkeys(("cyclopts", "h5py", "numpy", "pynvml", "rich"), "client")
_PART_OF |= dict.fromkeys(("jinja2", "matplotlib", "pandas", "pyarrow", "scipy", "threadpoolctl"), "analytics")
_PART_OF |= dict.fromkeys(("dask", "distributed", "duckdb"), "campaign") | {"torch": "torch"}
"""What a package is installed with. The command comes with every part of powerd; what it needs does not."""
_OF_CLIENT = ("record", "import", "recover", "top", "completion")
"""Commands for which the client's part is enough."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point of `joules`: `arguments` are the command line's without them.

    Raises `SystemExit`: 0, 1 where a check found something, 2 for what cannot be done, 130 after Ctrl-C, 141 where
    nobody reads the output any more; `joules record` gives its command's.
    """
    before: Any = None
    ours = False
    try:
        before = signal.getsignal(signal.SIGINT)
        # Whoever ignores the signal (nohup) or has a plan of their own for it keeps that.
        ours = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
        if ours:
            # A KeyboardInterrupt in the middle of an import is a traceback, or is swallowed by what is imported.
            signal.signal(signal.SIGINT, _leave)
        from powerd_analytics.cli import app
        from powerd_core.text import LEGIBLE, register_legible

        if isinstance(sys.stdout, io.TextIOWrapper):
            register_legible()
            sys.stdout.reconfigure(errors=LEGIBLE)
        if ours:
            signal.signal(signal.SIGINT, before)
        app.main(arguments)
    except KeyboardInterrupt:  # between two lines of this function
        raise SystemExit(130) from None
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PART_OF:
            raise
        from powerd_client.log import install_hint

        command = next(iter(sys.argv[1:] if arguments is None else arguments), "")
        part = _PART_OF[package]
        part = "analytics" if part == "client" and command not in _OF_CLIENT else part
        sys.stderr.write(f"joules: {package} is not installed here: {install_hint(part)}\n")
        raise SystemExit(2) from None
    finally:
        if ours:
            # With the command line's arguments it is the process that ends here; else it is its caller's.
            signal.signal(signal.SIGINT, _leave if arguments is None else before)


def _leave(*_: object) -> None:
    """Nothing has begun, or all is written: nothing is to be put in order, and nothing in between may be asked."""
    try:
        os.write(2, b"\njoules: interrupted\n")
    finally:
        os._exit(130)
