"""Where `joules` begins and ends: errors as one line with exit status 2, also of what is not installed.

The library that reads the command line, and what a command needs, are loaded when a command is asked for.
"""

from __future__ import annotations

import io
import os
import sys

from powerd_analytics.cli.all_commands import OLD_NAMES, replace_old_names

TYPE_CHECKING = False  # what type checkers take for true; typing itself takes long to import
if TYPE_CHECKING:
    from typing import NoReturn

_PART_OF = dict.fromkeys(("cyclopts", "h5py", "numpy", "pynvml", "rich"), "client")
_PART_OF |= dict.fromkeys(("jinja2", "matplotlib", "pandas", "pyarrow", "scipy", "threadpoolctl"), "analytics")
_PART_OF |= dict.fromkeys(("dask", "distributed", "duckdb"), "query") | {"torch": "torch"}
"""What a package is installed with. The command comes with every part of powerd; what it needs does not."""
_OF_CLIENT = ("record", "import", "journal", "top", "completion")
"""Commands for which the client's part is enough."""
_OF_QUERIES = ("jobs", "query")
"""Commands that need DuckDB, with which the analytics come."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point of `joules`: `arguments` are the command line's without them. Errors are one line.

    Raises `SystemExit`: 0, 1 where a check found something, 2 for what cannot be done, 130 after Ctrl-C, 141 where
    nobody reads the output any more; `joules record` gives its command's.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    command = next(iter(arguments), "")
    if command in OLD_NAMES:
        arguments, said = replace_old_names(arguments)
        sys.stderr.write(f"joules: {said}\n")
        command = arguments[0]
    try:
        from powerd_core.errors import PowerdError
        from powerd_core.text import LEGIBLE, register_legible

        if isinstance(sys.stdout, io.TextIOWrapper):
            register_legible()
            sys.stdout.reconfigure(errors=LEGIBLE)
        try:
            status = _run(command, arguments)
            if sys.stdout is not None:  # nobody has closed it
                sys.stdout.flush()
        except PowerdError as error:
            _fail(str(error))
    except KeyboardInterrupt:
        sys.stderr.write("\njoules: interrupted\n")
        raise SystemExit(130) from None
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PART_OF:
            raise
        from powerd_client.host.log import install_hint

        part = _PART_OF[package]
        part = "analytics" if part == "client" and command not in _OF_CLIENT else part
        part = "query" if part == "analytics" and command in _OF_QUERIES else part
        _fail(f"{package} is not installed here: {install_hint(part)}")
    except BrokenPipeError:
        # The reader of our output (`head`) has gone: not an error, but nothing more may be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except MemoryError as error:
        _fail(f"there is not enough memory: {str(error) or 'take fewer or shorter runs'}")
    except OSError as error:
        if error.filename is not None:
            _fail(f"{error.filename} cannot be used: {error.strerror}")
        # Files are written by those who know their names: this is the output, on a disk that is full.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"the output cannot be written: {error.strerror or error}")
    raise SystemExit(status)


def _run(command: str, arguments: list[str]) -> int:
    """The exit status. Raises what the commands do."""
    from powerd_analytics.cli.all_commands import overview, version, whole_overview

    if arguments in ([], ["--help"], ["-h"]):
        print(overview())
        return 0
    if arguments == ["--help-all"]:
        print(whole_overview())
        return 0
    if arguments == ["--version"]:
        print(version())
        return 0
    if command != "record":  # whose command is the user's, and has the user's threads
        from powerd_client.journals.journal import ONE_THREAD

        os.environ.update({name: os.environ.get(name, one) for name, one in ONE_THREAD.items()})
    from powerd_analytics.cli.app import run

    return run(arguments)


def _fail(message: str) -> NoReturn:
    from powerd_core.text import printable

    sys.stderr.write(f"joules: {printable(' '.join(message.split()), limit=3000)}\n")
    raise SystemExit(2)
