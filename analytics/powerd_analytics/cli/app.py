"""The `joules` command: its parts, and errors as one line with exit status 2."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from powerd_analytics.cli.shared import HelpConsole, put_out
from powerd_core.errors import PowerdError
from powerd_core.text import printable


def _version() -> str:
    from importlib.metadata import version

    return f"joules (powerd) {version('powerd')}"


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

COMMANDS = (
    "tables:tables", "tables:compare", "runs:verify", "runs:recover", "runs:tidy", "published:totals",
    "models:operations", "models:layers", "published:pick", "tables:uncertainty", "plots:plot", "plots:report",
    "tables:index", "tables:query", "runs:info", "runs:clock", "runs:record", "runs:tag", "plots:trace", "runs:top",
    "app:completion",
)  # fmt: skip
"""Module and function, in the order of `--help`; a module is loaded when one of its commands is asked for."""
for command in COMMANDS:
    app.command(f"{__package__}.{command}", name=command.partition(":")[2])


def main(arguments: list[str] | None = None) -> None:
    """Entry point: errors become one line on the error stream and exit status 2."""
    try:
        if (sys.argv[1:] if arguments is None else arguments)[:1] in ([], ["--help"], ["-h"]):
            for name in [*app]:
                app[name]  # loads it, for its line of help
        status = app(
            arguments, console=HelpConsole(), exit_on_error=False, print_error=False, result_action="return_value"
        )
        if sys.stdout is not None:  # nobody has closed it
            sys.stdout.flush()
    except UnusedCliTokensError as error:
        _fail(f"too many arguments: {' '.join(error.unused_tokens or ())}")
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
            _fail(f"{error.filename} cannot be used: {error.strerror}")
        # Files are written by those who know their names: this is the output, on a disk that is full.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"the output cannot be written: {error.strerror or error}")
    raise SystemExit(status if isinstance(status, int) else 0)


def _fail(message: str) -> None:
    sys.stderr.write(f"joules: {printable(' '.join(message.split()))}\n")
    raise SystemExit(2)
