"""The `joules` command: its parts, and errors as one line with exit status 2."""

from __future__ import annotations

import errno
import os
import sys
from difflib import get_close_matches

from cyclopts import App, CycloptsError, UnknownCommandError, UnusedCliTokensError

from powerd_analytics.cli import (
    compare,
    completion,
    files,
    index,
    operations,
    pick,
    plot,
    record,
    report,
    runs,
    tables,
    totals,
    uncertainty,
)
from powerd_analytics.cli.common import stdout
from powerd_core.errors import PowerdError
from powerd_core.text import printable


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"joules (powerd) {version('powerd')}"
    except PackageNotFoundError:
        return "joules (powerd), not installed as a package"


app = App(
    name="joules",
    help="Joules for every phase of deep-learning training.\n\n"
    "For example:\n\n"
    "  joules record --out run.h5 -- python train.py\n\n"
    "  joules tables run.h5\n\n"
    "  joules plot run.h5 -o power.png",
    version=_version,
    help_format="plaintext",
    help_on_error=False,
)

for command in (
    tables.tables,
    compare.compare,
    files.verify,
    files.recover,
    totals.totals,
    operations.operations,
    operations.layers,
    pick.pick,
    uncertainty.uncertainty,
    plot.plot,
    report.report,
    index.index,
    index.query,
    runs.info,
    runs.clock,
    record.record,
    record.tag,
    runs.trace,
    runs.top,
    completion.completion,
):
    app.command(command)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: errors become one line on the error stream and exit status 2."""
    try:
        status = app(arguments, console=stdout(), exit_on_error=False, print_error=False, result_action="return_value")
        if sys.stdout is not None:  # nobody has closed it
            sys.stdout.flush()
    except UnusedCliTokensError as error:
        _fail(f"too many arguments: {' '.join(error.unused_tokens or ())}")
    except UnknownCommandError as error:
        token, _, _ = (error.unused_tokens or [""])[0].partition("=")
        near = get_close_matches(token, ("--help", "--version"), 1)
        _fail(
            f"Unknown option: {token}.{f' Did you mean {near[0]}?' if near else ''}" if token[:1] == "-" else str(error)
        )
    except CycloptsError as error:
        _fail(str(error))
    except PowerdError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        sys.stderr.write("\njoules: interrupted\n")
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The reader of our output (`head`) has gone: not an error, but nothing more may be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except MemoryError as error:
        _fail(f"there is not enough memory: {str(error) or 'take fewer or shorter runs'}")
    except OSError as error:
        if error.filename is not None:
            is_unreadable = isinstance(error, PermissionError) or error.errno == errno.ENAMETOOLONG
            _fail(f"{error.filename} cannot be {'read' if is_unreadable else 'used'}: {error.strerror}")
        # Files are written by those who know their names: this is the output, on a disk that is full.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"the output cannot be written: {error.strerror or error}")
    raise SystemExit(status if isinstance(status, int) else 0)


def _fail(message: str) -> None:
    sys.stderr.write(f"joules: {printable(' '.join(message.split()))}\n")
    raise SystemExit(2)
