"""The command line of `powerd`: what there is to say, and one clear line for what is not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from powerd_daemon.endpoints import DEFAULT_LISTEN
from powerd_daemon.release import release
from powerd_daemon.suggest import did_you_mean

COMMANDS = ("run", "sources", "describe", "stats", "config-check")


class Parser(argparse.ArgumentParser):
    """Says what is wrong in the first line, then how it is used; exit status 2."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}", file=sys.stderr)
        self.print_usage(sys.stderr)
        sys.exit(2)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command and its options. Raises SystemExit: 0 after --help or --version, 2 for anything it does not know."""
    parser = _parser()
    command = next((a for a in argv if not a.startswith("-")), None)
    if command is not None and command not in COMMANDS and argv[0] == command:
        parser.error(f"unknown command {command!r}{did_you_mean(command, COMMANDS)}")
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.error(f"which command? (there are: {', '.join(COMMANDS)})")
    if arguments.command == "run":
        _check_run(parser, arguments)
    return arguments


def _parser() -> Parser:
    parser = Parser(
        prog="powerd",
        description="Reads power sensors and serves their readings to powerd's clients.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"powerd {release()}")
    commands: Any = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    run = commands.add_parser("run", help="measure and serve until Ctrl-C", allow_abbrev=False)
    run.add_argument("--config", type=Path, metavar="FILE", help="what to measure (see docs/configuration.md)")
    run.add_argument("--sim", action="store_true", help="measure the simulated graphics card")
    run.add_argument("--listen", metavar="URL", help=f"tcp://HOST:PORT or ipc:///PATH (default {DEFAULT_LISTEN})")
    run.add_argument("--ring-mib", type=float, metavar="N", help="memory for each stream's latest readings")
    run.add_argument("--parent-pid", type=int, metavar="PID", help="end when this process is gone")
    run.add_argument("--rate-hz", type=float, metavar="HZ", help="with --sim: scans a second")
    run.add_argument("--waveform", metavar="NAME", help="with --sim: the load's waveform")
    run.add_argument("--seed", type=int, metavar="N", help="with --sim: seed of the load")
    run.add_argument("--quiet", action="store_true", help="say nothing but what goes wrong")

    commands.add_parser("sources", help="list the kinds of source and their options", allow_abbrev=False)
    for name, what in (("describe", "what a running powerd measures"), ("stats", "how a running powerd is doing")):
        asking = commands.add_parser(name, help=what, allow_abbrev=False)
        asking.add_argument("url", nargs="?", default=DEFAULT_LISTEN, metavar="URL", help=f"default {DEFAULT_LISTEN}")
        asking.add_argument("--json", action="store_true", help="as JSON, for programs")
    check = commands.add_parser("config-check", help="check a configuration file", allow_abbrev=False)
    check.add_argument("file", type=Path, metavar="FILE")
    return parser


def _check_run(parser: Parser, arguments: argparse.Namespace) -> None:
    if arguments.sim == (arguments.config is not None):
        parser.error("run: give either --config FILE or --sim")
    for name in ("rate_hz", "waveform", "seed"):
        if arguments.config is not None and getattr(arguments, name) is not None:
            option = "--" + name.replace("_", "-")
            parser.error(f"run: {option} goes with --sim; with --config it belongs into the file")
