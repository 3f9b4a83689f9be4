"""The command line of `powerd`: what there is to say, and one clear line for what is not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from math import isfinite, nan
from pathlib import Path
from typing import Any, NoReturn

from powerd_daemon.arguments_remote import add_configure, add_directory, add_keys
from powerd_daemon.endpoints import DEFAULT_LISTEN
from powerd_daemon.release import release
from powerd_daemon.scan import WHAT_IS_READ
from powerd_daemon.suggest import did_you_mean

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
)


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
    if arguments.command == "calibrate":
        _check_calibrate(parser, arguments)
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
    run.add_argument(
        "--spool", type=_directory, metavar="DIR", help="keep readings on disk too, so that they outlive powerd"
    )
    add_directory(run)
    run.add_argument("--insecure", action="store_true", help="let anyone who reaches the addresses read, without keys")
    run.add_argument("--parent-pid", type=int, metavar="PID", help="end when this process is gone")
    run.add_argument("--rate-hz", type=_finite, metavar="HZ", help="with --sim: scans a second")
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
    check.add_argument("file", type=Path, metavar="FILE")
    _add_bench(commands)
    add_keys(commands)
    add_configure(commands)
    return parser


def _add_bench(commands: Any) -> None:
    """The commands that bring a board into service."""
    plan = commands.add_parser(
        "plan", help="what the buses of a configuration can do, and how exactly", allow_abbrev=False
    )
    plan.add_argument("file", type=Path, metavar="FILE")
    plan.add_argument(
        "--load", type=_load, action="append", default=[], metavar="NAME=W", help="expected power of a line or a device"
    )
    scan = commands.add_parser(
        "scan", help="what answers on the I2C buses, and what it is", description=WHAT_IS_READ, allow_abbrev=False
    )
    scan.add_argument("bus", nargs="*", type=int, metavar="BUS", help="number N of /dev/i2c-N (default: all)")
    scan.add_argument("--toml", action="store_true", help="as [[source]] tables for a configuration")
    doctor = commands.add_parser(
        "check",
        help="look at this machine, say what is wrong and what to do",
        description="Looks at devices, buses, sensors, clock, scheduler and disk. Status 1 when something fails. "
        "Probes sensors as `powerd scan` does, unless the configuration's powerd is running.",
        allow_abbrev=False,
    )
    doctor.add_argument("file", type=Path, nargs="?", metavar="FILE", help="a configuration to check against")
    doctor.add_argument("--directory", type=Path, default=Path(), metavar="DIR", help="where runs go (default: here)")
    doctor.add_argument("--json", action="store_true", help="as JSON, for programs")

    calibrate = commands.add_parser(
        "calibrate",
        help="zero and gain of sensors against a reference",
        description="Reads the lines of a configuration at a known load and stores what follows in a calibration file.",
        allow_abbrev=False,
    )
    calibrate.add_argument("file", type=Path, nargs="?", metavar="FILE", help="the configuration that names the lines")
    calibrate.add_argument(
        "--url", metavar="URL", help="instead: lines of the powerd that runs there, from the readings that it sends"
    )
    add_directory(calibrate)
    load = calibrate.add_mutually_exclusive_group(required=True)
    load.add_argument("--zero", action="store_true", help="no load: nothing flows through the shunts")
    load.add_argument("--reference-a", type=float, metavar="A", help="the true current of one line")
    load.add_argument("--reference-w", type=float, metavar="W", help="the true power of one line")
    calibrate.add_argument(
        "--reference-u",
        type=float,
        metavar="U",
        help="relative standard uncertainty of the reference (0.001 is 0.1 %%)",
    )
    calibrate.add_argument(
        "--line", action="append", default=[], metavar="NAME", help="a line (default with --zero: all)"
    )
    calibrate.add_argument(
        "--temperature-c", type=_finite, required=True, metavar="C", help="temperature at the shunts"
    )
    calibrate.add_argument("--seconds", type=_seconds, default=10.0, metavar="S", help="how long to read (default 10)")
    calibrate.add_argument(
        "--out", type=Path, metavar="FILE", help="the calibration file, made or extended; with --url the board's own"
    )


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return number


def _seconds(text: str) -> float:
    seconds = _finite(text)
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} s is not between 0 and 3600")
    return seconds


def _directory(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("an empty name is no directory")
    return Path(text)


def _load(text: str) -> tuple[str, float]:
    name, _, watts = text.rpartition("=")
    try:
        power_w = float(watts)
    except ValueError:
        power_w = -1.0
    if not name or not 0 <= power_w < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=WATTS, such as gpu0=250")
    return name, power_w


def _check_run(parser: Parser, arguments: argparse.Namespace) -> None:
    if arguments.sim == (arguments.config is not None):
        parser.error("run: give either --config FILE or --sim")
    for name in ("rate_hz", "waveform", "seed"):
        if arguments.config is not None and getattr(arguments, name) is not None:
            option = "--" + name.replace("_", "-")
            parser.error(f"run: {option} goes with --sim; with --config it belongs into the file")


def _check_calibrate(parser: Parser, arguments: argparse.Namespace) -> None:
    if (arguments.file is None) == (arguments.url is None):
        parser.error("calibrate: give either the configuration's FILE or --url URL")
    if (arguments.out is None) == (arguments.url is None):
        parser.error(
            "calibrate: give --out FILE"
            if arguments.out is None
            else "calibrate: --out goes with FILE; with --url the board's configuration names the calibration file"
        )
    if arguments.zero:
        if arguments.reference_u is not None:
            parser.error("calibrate: --reference-u goes with --reference-a or --reference-w")
        return
    if len(arguments.line) != 1:
        parser.error("calibrate: a reference is of one line: give one --line NAME")
    if arguments.reference_u is None or not 0 <= arguments.reference_u < 1:
        parser.error("calibrate: give --reference-u, the reference's relative standard uncertainty (0.001 is 0.1 %)")
    value = arguments.reference_w if arguments.reference_a is None else arguments.reference_a
    if not 0 < value < float("inf"):
        parser.error("calibrate: a reference is above 0; for no load give --zero")
