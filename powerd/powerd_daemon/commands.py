"""The commands of `powerd`: which there are, what each brings, and the parser that they share.

A command is a module or an object with two functions:

    add_arguments(parser)   its options; ``parser.description`` says more than the line in `powerd --help`, and
                            ``parser.epilog`` is an example of its use
    run(arguments)          does it; returns the exit status, or None for 0. Raises `PowerdError` for bad input

Those of other packages are found by the entry-point group ``powerd.commands``, and have their line for `powerd --help`
in ``HELP``. An entry point that is called as a command of ours adds to that: `powerd calibrate gpu0`.

Only the options of the command that is named are made, so that one that serves loads no other. The lines of
`powerd --help` stand here, so that it loads none at all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from math import isfinite, nan
from typing import Any, NoReturn

from powerd_core.errors import ConfigError
from powerd_core.text import did_you_mean
from powerd_daemon.config import release

ENTRY_POINTS = "powerd.commands"

_GROUPS = {
    "measure": {
        "run": "measure and serve until Ctrl-C",
        "describe": "what a running powerd measures",
        "stats": "how a running powerd is doing",
        "sim-gpu": "simulate GPUs that obey caps and clocks",
        "control": "hold power caps and clocks, and see who holds them",
        "export": "serve joules as OpenMetrics, for Prometheus",
        "pmlib": "let programs of pmlib's C library measure with a powerd",
    },
    "set up": {
        "scan": "what answers on the I2C buses, and what it is",
        "plan": "what the buses of a configuration can do, and how exactly",
        "calibrate": "zero and gain of sensors or of a GPU's driver against a reference",
        "identify": "how a GPU's driver sees its power, from random loads",
        "check": "what is wrong with a configuration or this machine, and what to do",
        "deploy": "write unit, users, rules and configuration of a service",
        "sources": "list the kinds of source and their options",
    },
    "other": {
        "keys": "make, list, allow and revoke keys",
        "completion": "print a script that lets a shell complete commands and options",
    },
}
"""The commands as `powerd --help` lists them."""
_OURS = {
    "run": "cli:RUN",
    "sources": "cli:SOURCES",
    "describe": "cli:DESCRIBE",
    "stats": "cli:STATS",
    "completion": "cli:COMPLETION",
    "plan": "plan",
    "scan": "scan",
    "check": "diagnostics",
    "calibrate": "calibrate",
    "keys": "keygen",
    "sim-gpu": "sim_gpu",
    "deploy": "deploy",
}
"""Where in this package a command is; the others are entry points."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command that is no module of its own."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]


def load(name: str) -> Any:
    """The command of that name: a module or an object. Raises `ConfigError` for one that cannot be loaded here."""
    if name not in _OURS:
        return entry_point(name)
    module, _, attribute = _OURS[name].partition(":")
    command = import_module(f"powerd_daemon.{module}")
    return getattr(command, attribute) if attribute else command


def entry_point(name: str) -> Any:
    """What another package brings under that name. Raises `ConfigError`."""
    try:
        (point,) = entry_points(group=ENTRY_POINTS, name=name)
        return point.load()
    except ValueError:
        raise ConfigError(f"powerd {name} is not installed here, or twice: install powerd anew") from None
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"powerd {name} cannot be loaded: {error}") from error


def _of_others() -> dict[str, str]:
    """The commands that only other packages know, each with its line."""
    known = {name for commands in _GROUPS.values() for name in commands}
    lines = {}
    for name in sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - known):
        try:
            lines[name] = str(getattr(entry_point(name), "HELP", ""))
        except ConfigError as error:
            lines[name] = str(error)
    return lines


class Parser(argparse.ArgumentParser):
    """Says what is wrong in the first line, then how it is used; exit status 2. Its help ends with an example."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)
        self.register("type", "number", finite)

    def format_help(self) -> str:
        # Not as argparse does, which folds it: an example is there to be copied.
        example, self.epilog = self.epilog, None
        text = super().format_help()
        self.epilog = example
        return f"{text}\nFor example: {example}\n" if example else text

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}\n{' '.join(self.format_usage().split())}", file=sys.stderr)
        sys.exit(2)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses what it does not know. argparse parses a command's options by this method of the command's parser,
        so the refusal names the command."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [o for o in self._option_string_actions if o.startswith("--")]
            kind = "option" if unknown[0].startswith("-") else "argument"
            self.error(f"unknown {kind} {unknown[0]}{did_you_mean(unknown[0], options)}")
        return known, unknown


def make_parser(named: Collection[str] | None = None) -> Parser:
    """All commands of `powerd`, with the options of those that are named, or of all that can be loaded here.

    Raises `ConfigError` where one that is named cannot be loaded.
    """
    parser = Parser(
        prog="powerd",
        description="Reads power sensors and serves their readings to powerd's clients.",
        epilog="powerd run --sim",
        usage="powerd COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"powerd {release()}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, prog="powerd", help=argparse.SUPPRESS
    )
    groups = dict(_GROUPS)
    if named is None or not set(named) <= _OURS.keys():
        groups["of other packages"] = _of_others()
    for title, lines in groups.items():
        if lines:
            listed = "\n".join(f"  {name:<12}{line}" for name, line in lines.items())
            parser.description = f"{parser.description}\n\n{title}:\n{listed}"
        for name, line in lines.items():
            own = commands.add_parser(name, help=line.replace("%", "%%"), description=line)
            if named is None:
                with suppress(ConfigError):
                    load(name).add_arguments(own)
            elif name in named:
                load(name).add_arguments(own)
    return parser


# Options that several commands have.


def add_format_option(parser: argparse.ArgumentParser, **more: str) -> None:
    """``--format``, for the words in ``more`` too."""
    formats = {"text": "for people", "json": "for programs", **more}
    says = ", ".join(f"{name} ({what})" for name, what in formats.items())
    parser.add_argument("--format", choices=tuple(formats), default="text", help=f"{says}; default text")
    for name in list(formats)[1:]:  # what it was called before
        parser.add_argument(f"--{name}", dest="format", action="store_const", const=name, help=argparse.SUPPRESS)


def add_keys_option(parser: argparse.ArgumentParser) -> None:
    """``--keys``."""
    parser.add_argument("--keys", metavar="DIR", help="directory of keys (default $POWERD_KEYS, else ~/.config/powerd)")


def finite(text: str) -> float:
    """What ``type="number"`` of an option reads. Raises `argparse.ArgumentTypeError`."""
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return number
