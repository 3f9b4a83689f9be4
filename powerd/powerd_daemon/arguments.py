"""The command line of `powerd`: what there is to say, and one clear line for what is not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from powerd_core.text import did_you_mean
from powerd_daemon.arguments_bench import add_bench, check_calibrate, finite
from powerd_daemon.arguments_remote import add_configure, add_directory, add_keys
from powerd_daemon.completion_command import add_completion
from powerd_daemon.endpoints import DEFAULT_LISTEN
from powerd_daemon.examples import example_of
from powerd_daemon.release import release

COMMANDS = (
    "run",
    "sources",
    "describe",
    "stats",
    "config-check",
    "plan",
    "scan",
    "check",
    "calibrate",
    "keys",
    "configure",
    "completion",
)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in the first line, then how it is used; exit status 2. Its help ends with an example."""

    def format_help(self) -> str:
        # Not as the epilog, which is folded: an example is there to be copied.
        example = example_of(self.prog)
        return super().format_help() + (f"\n{example}\n" if example else "")

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}", file=sys.stderr)
        self.print_usage(sys.stderr)
        sys.exit(2)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command and its options. Raises SystemExit: 0 after --help or --version, 2 for anything it does not know."""
    parser = make_parser()
    command = next((a for a in argv if not a.startswith("-")), None)
    if command is not None and command not in COMMANDS and argv[0] == command:
        parser.error(f"unknown command {command!r}{did_you_mean(command, COMMANDS)}")
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        _refuse_unknown(parser, argv, unknown)
    if arguments.command is None:
        parser.error(f"which command? (there are: {', '.join(COMMANDS)})")
    if arguments.command == "run":
        _check_run(parser, arguments)
    if arguments.command == "calibrate":
        check_calibrate(parser, arguments)
    return arguments


def _refuse_unknown(parser: Parser, argv: Sequence[str], unknown: Sequence[str]) -> NoReturn:
    """Names the command that it was said to, and the option of that command that comes nearest."""
    command, words = parser, iter(argv)
    while choices := next((a.choices for a in command._actions if isinstance(a, argparse._SubParsersAction)), None):
        word = next((w for w in words if w in choices), None)
        if word is None:
            break
        command = choices[word]
    option = next((u.partition("=")[0] for u in unknown if u.startswith("-")), None)
    if option is None:
        print(f"{command.prog}: too many arguments: {' '.join(unknown)}", file=sys.stderr)
    else:
        known = [o for o in command._option_string_actions if o.startswith("--")]
        print(f"{command.prog}: unknown option {option}{did_you_mean(option, known)}", file=sys.stderr)
    parser.print_usage(sys.stderr)
    sys.exit(2)


def make_parser() -> Parser:
    """All commands and options of `powerd`."""
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
    run.add_argument("--ring-mib", type=float, metavar="N", help="memory for each stream's latest readings, in MiB")
    run.add_argument(
        "--spool", type=_directory, metavar="DIR", help="keep readings on disk too, so that they outlive powerd"
    )
    add_directory(run)
    run.add_argument("--insecure", action="store_true", help="let anyone who reaches the addresses read, without keys")
    run.add_argument("--parent-pid", type=int, metavar="PID", help="end when this process is gone")
    run.add_argument("--rate-hz", type=finite, metavar="HZ", help="with --sim: scans a second")
    run.add_argument("--waveform", metavar="NAME", help="with --sim: the load's waveform")
    run.add_argument("--seed", type=int, metavar="N", help="with --sim: seed of the load")
    run.add_argument("--quiet", action="store_true", help="say nothing but what goes wrong")

    commands.add_parser("sources", help="list the kinds of source and their options", allow_abbrev=False)
    for name, what in (("describe", "what a running powerd measures"), ("stats", "how a running powerd is doing")):
        asking = commands.add_parser(name, help=what, allow_abbrev=False)
        asking.add_argument("url", nargs="?", default=DEFAULT_LISTEN, metavar="URL", help=f"default {DEFAULT_LISTEN}")
        asking.add_argument("--json", action="store_true", help="as JSON, for programs")
        add_directory(asking)
    check = commands.add_parser("config-check", help="check a configuration file", allow_abbrev=False)
    check.add_argument("file", type=Path, metavar="FILE", help="a configuration")
    add_bench(commands)
    add_keys(commands)
    add_configure(commands)
    add_completion(commands)
    return parser


def _directory(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("an empty name is no directory")
    return Path(text)


def _check_run(parser: Parser, arguments: argparse.Namespace) -> None:
    if arguments.sim == (arguments.config is not None):
        parser.error("run: give either --config FILE or --sim")
    for name in ("rate_hz", "waveform", "seed"):
        if arguments.config is not None and getattr(arguments, name) is not None:
            option = "--" + name.replace("_", "-")
            parser.error(f"run: {option} goes with --sim; with --config it belongs into the file")
