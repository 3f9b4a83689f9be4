"""The `joules` command: its parts, and errors as one line with exit status 2."""

from __future__ import annotations

import errno
import os
import sys
from difflib import get_close_matches
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter, UnknownCommandError, UnusedCliTokensError

from powerd_analytics.cli import models, plots, published, runs, tables
from powerd_analytics.cli.shared import HelpConsole, put_out
from powerd_core.errors import PowerdError
from powerd_core.text import printable


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"joules (powerd) {version('powerd')}"
    except PackageNotFoundError:
        return "joules (powerd), not installed as a package"


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell that is to complete.")],
    /,
) -> None:
    """Print a script that lets the shell complete commands, options and their choices by the tab key.

    For example, in ~/.bashrc:

      source <(joules completion bash)
    """
    put_out(app.generate_completion(shell=shell), None, overwrite=False)


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
    tables.compare,
    runs.verify,
    runs.recover,
    runs.tidy,
    published.totals,
    models.operations,
    models.layers,
    published.pick,
    tables.uncertainty,
    plots.plot,
    plots.report,
    tables.index,
    tables.query,
    runs.info,
    runs.clock,
    runs.record,
    runs.tag,
    plots.trace,
    runs.top,
    completion,
):
    app.command(command)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: errors become one line on the error stream and exit status 2."""
    try:
        status = app(
            arguments, console=HelpConsole(), exit_on_error=False, print_error=False, result_action="return_value"
        )
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
    except (CycloptsError, PowerdError) as error:
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
