"""Where `joules` begins: Ctrl-C while it loads is quiet, and what is not installed is one line."""

from __future__ import annotations

import io
import sys

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
    try:
        from powerd_analytics.cli import app
        from powerd_core.text import LEGIBLE, register_legible

        if isinstance(sys.stdout, io.TextIOWrapper):
            register_legible()
            sys.stdout.reconfigure(errors=LEGIBLE)
        app.main(arguments)
    except KeyboardInterrupt:  # while it loads
        sys.stderr.write("\njoules: interrupted\n")
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
