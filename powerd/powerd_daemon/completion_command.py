"""`powerd completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import argparse
from typing import Any

from powerd_daemon.completion import SHELLS
from powerd_daemon.completion_words import commands_of


def add_completion(commands: Any) -> None:
    """`powerd completion`."""
    made = commands.add_parser(
        "completion",
        help="print a script that lets a shell complete commands and options",
        description="Prints a script that lets the shell complete commands, options and their choices by the tab key; "
        "in ~/.bashrc: source <(powerd completion bash)",
        allow_abbrev=False,
    )
    made.add_argument("shell", choices=tuple(SHELLS), metavar="SHELL", help=", ".join(SHELLS))


def completion(arguments: argparse.Namespace) -> int:
    """Print the script."""
    from powerd_daemon.arguments import make_parser

    print(SHELLS[arguments.shell](list(commands_of(make_parser()))), end="")
    return 0
