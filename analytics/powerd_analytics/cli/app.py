"""The commands of `joules` and how their options are read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter, UnusedCliTokensError

from powerd_analytics.cli.all_commands import ABOUT, COMMANDS, version
from powerd_analytics.cli.shared import HelpConsole, put_out
from powerd_core.errors import ConfigError


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
    help=ABOUT,
    version=version,
    help_format="plaintext",
    help_on_error=False,
    default_parameter=Parameter(show_default=lambda value: None if value is False or value == () else value),
)

_PLACES = count()
for group in (Group(name, sort_key=place) for place, name in enumerate(COMMANDS)):
    for name, (place_of, _) in COMMANDS[group.name].items():
        app.command(f"{__package__}.{place_of}", name=name, group=group, sort_key=next(_PLACES))
for flag in ("--help", "--version"):
    app[flag].group, app[flag].sort_key = group, next(_PLACES)


def _missing(error: MissingArgumentError) -> str:
    """What was not given: a parameter by position is no option, though it has a name like one."""
    argument = error.argument
    if argument is None or error.tokens_so_far or error.keyword:
        return str(error).rstrip(".")
    is_by_position = argument.index is not None
    return f"{argument.name.removeprefix('--').upper() if is_by_position else argument.name} is missing"


def run(arguments: Sequence[str]) -> int:
    """Run a command; its exit status. Raises `ConfigError` for a command line that says nothing, and what commands do.

    A command's module is loaded when it is asked for.
    """
    try:
        status = app(
            list(arguments), console=HelpConsole(), exit_on_error=False, print_error=False,
            result_action="return_value",
        )  # fmt: skip
    except UnusedCliTokensError as error:
        again = "; an option with several values is given again for each" * any(a.startswith("--") for a in arguments)
        raise ConfigError(f"too many arguments: {' '.join(error.unused_tokens or ())}{again}") from error
    except MissingArgumentError as error:
        command = " ".join((app.name[0], *(error.command_chain or ())))
        raise ConfigError(f"{_missing(error)}: {command} --help says how") from error
    except CycloptsError as error:
        raise ConfigError(str(error)) from error
    return status if isinstance(status, int) else 0
