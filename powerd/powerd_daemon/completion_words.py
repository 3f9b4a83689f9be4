"""What can be said at each place of a command line, out of its parser: for shells that complete it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

_FILES = frozenset(("FILE", "DIR"))
"""Metavars of what is a file or a directory."""


@dataclass(frozen=True, slots=True)
class Word:
    """An option or the name of a command, with its help in one line."""

    text: str
    help: str
    takes_value: bool = False
    choices: tuple[str, ...] = ()
    """The values that it takes, where they are known."""
    is_file: bool = False
    """Whether its value is the name of a file."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command: ``path`` is its name behind those that it belongs to, as in ``powerd keys list``."""

    path: tuple[str, ...]
    options: tuple[Word, ...]
    commands: tuple[Word, ...]
    takes_file: bool
    """Whether some word of it that is no option names a file."""
    choices: tuple[str, ...]
    """What such a word may be, where that is known."""

    @property
    def name(self) -> str:
        return " ".join(self.path)


def commands_of(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Command]:
    """The command of a parser and all below it, in the order of its help."""
    path = path or (parser.prog,)
    options: list[Word] = []
    commands: list[Word] = []
    below: list[tuple[str, argparse.ArgumentParser]] = []
    places: list[argparse.Action] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands += (Word(choice.dest, _line(choice.help)) for choice in action._choices_actions)
            below += action.choices.items()
        elif action.option_strings:
            value = {
                "takes_value": action.nargs != 0,
                "choices": tuple(map(str, action.choices or ())),
                "is_file": action.metavar in _FILES,
            }
            options += (Word(text, _line(action.help), **value) for text in action.option_strings)  # type: ignore[arg-type]
        else:
            places.append(action)
    choices = tuple(str(choice) for action in places for choice in action.choices or ())
    yield Command(path, tuple(options), tuple(commands), any(a.metavar in _FILES for a in places), choices)
    for name, inner in below:
        yield from commands_of(inner, (*path, name))


def _line(text: str | None) -> str:
    """A help without argparse's own signs: it is shown as it is."""
    return " ".join((text or "").replace("%%", "%").split())
