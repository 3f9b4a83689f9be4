"""The `joules` command: its parts, options as earlier releases spelled them, errors as one line with exit status 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import count
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError

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
    """Print a script with which the tab key completes commands.

    Options and their choices are completed too.

    For example, in ~/.bashrc:

      source <(joules completion bash)
    """
    put_out(app.generate_completion(shell=shell), None, overwrite=False)


app = App(
    name="joules",
    help="Joules for every phase of deep-learning training.\n\n"
    "For example:\n\n"
    "  joules record -o run.h5 -- python train.py\n\n"
    "  joules tables run.h5\n\n"
    "  joules plot run.h5 -o power.png",
    version=_version,
    help_format="plaintext",
    help_on_error=False,
    default_parameter=Parameter(show_default=lambda value: None if value is False or value == () else value),
)

COMMANDS = {
    "Record": ("runs:record", "runs:top", "runs:import_"),
    "Look": ("tables:tables", "plots:plot", "plots:report", "runs:info", "plots:trace"),
    "Compare": ("tables:compare", "tables:index", "tables:query", "tables:totals", "tables:pick"),
    "Models": ("tables:layers", "tables:operations"),
    "Trust": ("tables:uncertainty", "runs:clock", "runs:verify"),
    "Keep": ("runs:tag", "runs:recover", "runs:tidy"),
    "Other": ("app:completion",),
}
"""Module and function, by group in the order of `--help`; a module is loaded when one of its commands is asked for."""
_PLACES = count()
for group in (Group(name, sort_key=place) for place, name in enumerate(COMMANDS)):
    for command in COMMANDS[group.name]:
        name = command.partition(":")[2].removesuffix("_")
        app.command(f"{__package__}.{command}", name=name, group=group, sort_key=next(_PLACES))
for flag in ("--help", "--version"):
    app[flag].group, app[flag].sort_key = group, next(_PLACES)

EARLIER = {
    ("record", "--out"): ("--output",),
    ("index", "--out"): ("--output",),
    ("clock", "--out"): ("--plot",),
    ("clock", "-o"): ("--plot",),
    **{(command, "--json"): ("--format", "json") for command in ("clock", "top", "verify")},
}
"""Options as releases up to 0.1 spelled them, which still work and stand in no help."""


def modern(arguments: Sequence[str]) -> list[str]:
    """The command line in today's words, up to the command that `joules record` is
    given behind ``--``."""
    arguments = list(arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    words: list[str] = []
    for word in arguments[:end]:
        name, equals, value = word.partition("=")
        words += EARLIER.get((arguments[0], name), (name,))
        if equals:
            words[-1] += equals + value
        if words[-2:] == ["--format", "table"] or words[-1] == "--format=table":
            words[-1] = words[-1].removesuffix("table") + "text"
    return words + arguments[end:]


def main(arguments: list[str] | None = None) -> None:
    """Entry point: errors become one line on the error stream and exit status 2."""
    arguments = modern(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments[:1] in ([], ["--help"], ["-h"]):
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
