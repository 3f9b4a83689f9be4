"""The `powerd` command: its parser, the commands that only ask or print, and `powerd run`.

What a command needs beyond that is imported when it runs: the process that serves loads no other command.
"""

from __future__ import annotations

import argparse
import errno
import inspect
import io
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points
from math import isfinite, nan
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn

from powerd_core.errors import ConfigError, PowerdError
from powerd_core.keys import ROLES
from powerd_core.model import Description
from powerd_core.serde import describe_options, read_description
from powerd_core.text import LEGIBLE, did_you_mean, printable, register_legible
from powerd_daemon.config import DEFAULT_LISTEN, NOTHING, Config, ServerConfig, load_config, release, source_config
from powerd_daemon.sources.base import find_source, kinds

WIDTH = 100
_COMMANDS = {
    "run": "cli:_run",
    "sources": "cli:_sources",
    "describe": "cli:_describe",
    "stats": "cli:_stats",
    "completion": "cli:_completion",
    "plan": "plan:plan",
    "scan": "scan:scan",
    "check": "diagnostics:check",
    "calibrate": "calibrate:calibrate_lines",
    "identify": "calibrate:identify",
    "keys": "keygen:keys",
    "pmlib": "cli:_pmlib",
}
"""The function of each command, which is given its arguments, and the module that is imported for it."""
_GROUPS = {
    "measure": ("run", "describe", "stats", "pmlib"),
    "set up": ("scan", "plan", "calibrate", "identify", "check", "sources"),
    "other": ("keys", "completion"),
}
"""The commands as `powerd --help` lists them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the status as in docs/reference/commands.md: with 1 for a fault that `check` found."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        register_legible()
        sys.stdout.reconfigure(errors=LEGIBLE)
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["config-check"]:  # what it was called before
        words = ["check", "--file-only", *words[1:]]
    try:
        arguments = make_parser().parse_args(words)
        module, _, function = _COMMANDS[arguments.command].partition(":")
        command = getattr(import_module(f"powerd_daemon.{module}"), function)
        status: int = command(arguments) or 0
        if sys.stdout is not None:  # nobody has closed it
            sys.stdout.flush()
    except PowerdError as error:
        print(f"powerd: {printable(str(error), limit=2000)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # Python flushes stdout once more at exit: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # whoever read the list has seen enough
            return 141
        print(f"powerd: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    return status


class Parser(argparse.ArgumentParser):
    """Says what is wrong in the first line, then how it is used; exit status 2. Its help ends with an example."""

    def __init__(self, *, example: str = "", **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)
        self.example = example

    def format_help(self) -> str:
        # Not as the epilog, which is folded: an example is there to be copied.
        return f"{super().format_help()}\nFor example: {self.example}\n"

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


def make_parser() -> Parser:
    """All commands and options of `powerd`."""
    parser = Parser(
        prog="powerd",
        description="Reads power sensors and serves their readings to powerd's clients.",
        example="powerd run --sim",
        usage="powerd COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"powerd {release()}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=Parser, prog="powerd", help=argparse.SUPPRESS
    )
    purposes: dict[str, str] = {}

    def add(name: str, what: str, example: str, description: str = "") -> Parser:
        purposes[name] = what
        return commands.add_parser(name, help=what, description=description or what, example=f"powerd {name}{example}")

    run = add("run", "measure and serve until Ctrl-C", " --config powerd.toml --spool /var/lib/powerd/spool")
    what = run.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", type=Path, metavar="FILE", help="what to measure (docs/reference/configuration.md)")
    what.add_argument("--sim", action="store_true", help="measure the simulated graphics card")
    run.add_argument("--listen", metavar="URL", help=f"tcp://HOST:PORT or ipc:///PATH (default {DEFAULT_LISTEN})")
    run.add_argument("--ring-mib", type=_finite, metavar="N", help="memory for each stream's latest readings, in MiB")
    run.add_argument("--spool", type=Path, metavar="DIR", help="keep readings on disk, so that they outlive powerd")
    _add_keys_option(run)
    run.add_argument("--insecure", action="store_true", help="let anyone who reaches the addresses read, without keys")
    run.add_argument("--parent-pid", type=int, metavar="PID", help="end when this process is gone")
    run.add_argument("--rate-hz", type=_finite, metavar="HZ", help="with --sim: scans a second")
    run.add_argument("--waveform", metavar="NAME", help="with --sim: the load's waveform")
    run.add_argument("--seed", type=int, metavar="N", help="with --sim: seed of the load")
    run.add_argument("--quiet", action="store_true", help="say nothing but what goes wrong")

    add("sources", "list the kinds of source and their options", "")
    for name, says, example in (
        ("describe", "what a running powerd measures", " tcp://board:7360"),
        ("stats", "how a running powerd is doing", " tcp://board:7360 --format json"),
    ):
        ask = add(name, says, example)
        ask.add_argument("url", nargs="?", default=DEFAULT_LISTEN, metavar="URL", help=f"default {DEFAULT_LISTEN}")
        _add_format_option(ask)
        _add_keys_option(ask)

    plan = add("plan", "what the buses of a configuration can do, and how exactly", " powerd.toml --load gpu0=250")
    plan.add_argument("file", type=Path, metavar="FILE", help="a configuration")
    loads = "expected power of a line or a device, in watts"
    plan.add_argument("--load", type=_load, action="append", default=[], metavar="NAME=W", help=loads)
    adapters = "how I2C adapters read: combined, as a BeagleBone's, or single, as a Raspberry Pi's (default)"
    plan.add_argument("--adapter", choices=("combined", "single"), help=adapters)
    scan = add(
        "scan",
        "what answers on the I2C buses, and what it is",
        " 2 --format toml",
        "Reads, and writes nothing but register pointers, at the addresses 0x40 to 0x4f. Addresses held by a kernel "
        "driver are left alone. Stop a powerd that reads this bus first: it counts on pointers staying in place.",
    )
    scan.add_argument("bus", nargs="*", type=int, metavar="BUS", help="number N of /dev/i2c-N (default: all)")
    scan.add_argument("--sim", action="store_true", help="the simulated card's bus, to rehearse on")
    _add_format_option(scan, toml="[[source]] tables for a configuration")
    check = add(
        "check",
        "what is wrong with a configuration or this machine, and what to do",
        " powerd.toml",
        "Looks at the configuration, devices, buses, sensors, RAPL, GPUs, scheduler and disk. Status 1 when something "
        "fails. Probes sensors as `powerd scan` does, unless the configuration's powerd is running.",
    )
    check.add_argument("file", type=Path, nargs="?", metavar="FILE", help="a configuration to check against")
    check.add_argument("--file-only", action="store_true", help="look at the file alone: it is for another machine")
    check.add_argument("--directory", type=Path, default=Path(), metavar="DIR", help="where runs go (default: here)")
    _add_format_option(check)

    calibrate = add(
        "calibrate",
        "zero and gain of sensors or of a GPU's driver against a reference",
        " gpu0 --reference rails --run run.h5",
        "Reads the lines of a configuration at a known load and stores what follows in a calibration file. Of a GPU, "
        "holds what its driver says against the card's rails, a wall meter or a stated power.",
    )
    target = "the configuration that names the lines, or a GPU such as gpu0"
    calibrate.add_argument("file", type=Path, metavar="FILE|GPU", help=target)
    load = calibrate.add_mutually_exclusive_group(required=True)
    load.add_argument("--zero", action="store_true", help="no load: nothing flows through the shunts")
    reference = "of a GPU: rails, wall, or watts; of a line: 0, or as in 5.0021A, 250W"
    load.add_argument("--reference", metavar="WHAT", help=reference)
    load.add_argument("--reference-a", type=_finite, metavar="A", help="the true current of one line, in amperes")
    load.add_argument("--reference-w", type=_finite, metavar="W", help="the true power of one line, in watts")
    relative = "relative standard uncertainty of the reference (0.001 is 0.1 %%)"
    calibrate.add_argument("--reference-u", type=_finite, metavar="U", help=relative)
    at_shunts = "temperature at the shunts, in degrees Celsius (not of a GPU)"
    calibrate.add_argument("--temperature-c", type=_finite, metavar="C", help=at_shunts)
    supply = "with a wall meter: efficiency of the power supply at this load, such as 0.93"
    calibrate.add_argument("--efficiency", type=_finite, metavar="E", help=supply)
    relative = "its relative standard uncertainty"
    calibrate.add_argument("--efficiency-u", type=_finite, metavar="U", help=relative)
    calibrate.add_argument("--run", type=Path, metavar="FILE", help="of a GPU: a run with both, in place of recording")
    both = "of a GPU: the powerd that reads both it and the reference; several where they are apart"
    calibrate.add_argument("--url", action="append", metavar="URL", help=both)
    lines = "a line (default with --zero: all)"
    calibrate.add_argument("--line", action="append", default=[], metavar="NAME", help=lines)
    duration = "how many seconds to read (default 10)"
    calibrate.add_argument("--seconds", type=_finite, default=10.0, metavar="S", help=duration)
    written = "the calibration file to write (of a GPU by default gpus.toml beside the keys)"
    calibrate.add_argument("--out", type=Path, metavar="FILE", help=written)
    identify = add(
        "identify",
        "how a GPU's driver sees its power, from random loads",
        " gpu0",
        "Runs random loads on an idle GPU (matrix products, copies, waits of 2.5 to 90 ms), fits how the driver's "
        "readings follow them, and stores the delay and the time constant for every later run. It sets nothing on the "
        "GPU. Needs powerd[analytics,torch].",
    )
    identify.add_argument("gpu", nargs="?", default="gpu0", metavar="GPU", help="gpu0, gpu1, ... (default gpu0)")
    identify.add_argument("--seconds", type=_finite, default=90.0, metavar="S", help="of loads (default 90)")
    identify.add_argument(
        "--run", type=Path, metavar="FILE", help="fit a run file of such loads instead of running them"
    )
    gpu_file = "file to write (default: gpus.toml beside the keys, where every later run finds it)"
    identify.add_argument("--out", type=Path, metavar="FILE", help=gpu_file)
    _add_keys(add)
    pmlib = add(
        "pmlib",
        "let programs of pmlib's C library measure with a powerd",
        " tcp://board:7360",
        "Listens where programs that were compiled against pmlib's C library look for its server. Each of their "
        "counters leaves a run file, pmlib.h5, pmlib-2.h5 and so on. Needs powerd[client].",
    )
    pmlib.add_argument("url", nargs="?", default=DEFAULT_LISTEN, metavar="URL", help=f"default {DEFAULT_LISTEN}")
    listen = "where to listen for them (default 127.0.0.1:6526); the protocol has no keys"
    pmlib.add_argument("--listen", default="127.0.0.1:6526", metavar="HOST:PORT", help=listen)
    pmlib.add_argument("--directory", type=Path, default=Path(), metavar="DIR", help="where the run files go")

    completion = add(
        "completion",
        "print a script that lets a shell complete commands and options",
        " bash",
        "Prints a script that lets the shell complete commands, options and their choices by the tab key; "
        "in ~/.bashrc: source <(powerd completion bash)",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh, fish")
    for title, names in _GROUPS.items():
        assert parser.description is not None
        parser.description += f"\n\n{title}:\n" + "\n".join(f"  {name:<12}{purposes[name]}" for name in names)
    return parser


def _add_format_option(parser: argparse.ArgumentParser, **more: str) -> None:
    formats = {"text": "for people", "json": "for programs", **more}
    says = ", ".join(f"{name} ({what})" for name, what in formats.items())
    parser.add_argument("--format", choices=tuple(formats), default="text", help=f"{says}; default text")
    for name in list(formats)[1:]:  # what it was called before
        parser.add_argument(f"--{name}", dest="format", action="store_const", const=name, help=argparse.SUPPRESS)


def _add_keys_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keys", metavar="DIR", help="directory of keys (default $POWERD_KEYS, else ~/.config/powerd)")


def _add_keys(add_command: Any) -> None:
    keys = add_command(
        "keys",
        "make, list, allow and revoke keys",
        " list",
        "Whoever reads a board from another machine needs keys: the board its own, each client its own, "
        "the client's public key allowed on the board and the board's trusted on the client: docs/howto/security.md.",
    )
    actions = keys.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)

    def add(name: str, what: str, example: str, /, **arguments: str) -> Any:
        action = actions.add_parser(name, help=what, description=what, example=f"powerd keys {name}{example}")
        _add_keys_option(action)
        for argument, help_text in arguments.items():
            action.add_argument(argument, metavar=argument.upper(), help=help_text)
        return action

    server = add("server", "on a board: make its keys once, and say what clients have to run", " --address board:7360")
    under = "under which clients reach this board (default this host's name, 7360)"
    server.add_argument("--address", metavar="HOST:PORT", help=under)
    client = add("client", "on a client: make its keys once, and say what the board has to run", " --name lab")
    client.add_argument("--name", metavar="NAME", help="how boards shall call this client (default this host's name)")
    key = "its public key, in single quotes"
    allow = add("allow", "on a board: let a client in", " lab 'CLIENT_KEY'", name="of the client, for lists", key=key)
    allow.add_argument("--role", choices=ROLES, help="read (default): readings; control: nothing more today")
    add("revoke", "on a board: shut a client out, at once", " lab", name="of the client")
    say, address = "on a client: say which key a board has", "HOST:PORT as in tcp://HOST:PORT"
    trust = add("trust", say, " board:7360 'BOARD_KEY'", address=address, key=key)
    trust.add_argument("--replace", action="store_true", help="also where another key is trusted")
    add("list", "list all public keys of the directory, and what each may do", " --keys /var/lib/powerd/keys")


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return number


def _load(text: str) -> tuple[str, float]:
    name, _, watts = text.rpartition("=")
    power_w = _finite(watts)
    if not name or power_w < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=WATTS, such as gpu0=250")
    return name, power_w


def _run(arguments: argparse.Namespace) -> None:
    from powerd_daemon.clock import SystemClock
    from powerd_daemon.daemon import Daemon, Notifier, ParentWatchdog
    from powerd_daemon.log import Console

    is_stopping = False

    def stop(*_: object) -> None:
        nonlocal is_stopping
        is_stopping = True

    parent = None if arguments.parent_pid is None else ParentWatchdog(arguments.parent_pid)
    clock, service_manager = SystemClock(), Notifier()
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}

    def is_over() -> bool:
        # The loops that start and serve ask this in every turn, so a loop that hangs sends no ping.
        service_manager.alive(clock.now_ns())
        return is_stopping or (parent is not None and parent.is_gone())

    try:
        with Console(sys.stderr, clock, quiet=arguments.quiet):
            config = run_config(arguments)
            daemon = Daemon(config, clock)
            try:
                if daemon.start(is_over):
                    service_manager.ready(f"serving on {daemon.listen}" if config.sources else NOTHING)
                    daemon.serve(is_over)
            finally:
                daemon.close()
                service_manager.stopping()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_config(arguments: argparse.Namespace) -> Config:
    """The configuration that the options of `powerd run` amount to. Raises `ConfigError`."""
    given = {name: getattr(arguments, name) for name in ("rate_hz", "waveform", "seed")}
    options = {name: value for name, value in given.items() if value is not None}
    if arguments.config is None:
        server = ServerConfig().listening_on(DEFAULT_LISTEN, "--listen")
        config = Config(server, (source_config({"kind": "sim", **options}, "--sim"),))
    elif options:
        raise ConfigError(f"powerd run: {', '.join(options)} goes with --sim; with --config it belongs into the file")
    else:
        config = load_config(arguments.config)
        # Where no driver of a sensor bus was loaded, there is no bus.
        if "powerd_daemon.sources.ina.source" in sys.modules:
            from powerd_daemon.plan import refuse

            refuse(arguments.config)
    server = config.server
    if arguments.listen is not None:
        server = server.listening_on(arguments.listen, "--listen")
    try:
        server = replace(
            server,
            ring_mib=server.ring_mib if arguments.ring_mib is None else arguments.ring_mib,
            spool=arguments.spool or server.spool,
            keys=arguments.keys or server.keys,
            insecure=arguments.insecure or server.insecure,
        )
    except ValueError as error:
        raise ConfigError(f"powerd run: {error}") from error
    return replace(config, server=server)


def _sources(_: argparse.Namespace) -> None:
    for kind in kinds():
        try:
            cls = find_source(kind)
        except ConfigError as error:
            print(f"{kind}\n    not usable here: {error}\n")
            continue
        summary = (inspect.getdoc(cls) or inspect.getdoc(inspect.getmodule(cls)) or "").split("\n\n")[0]
        print(kind, _indented(summary, "    "), sep="\n")
        for option in describe_options(cls.Options):
            default = f"default {option.default}" if option.default else "required"
            print(f"    {option.name} = {option.type} ({default})")
            if option.help:
                print(_indented(option.help, "        "))
        print()


def _indented(text: str, indent: str) -> str:
    return fill(" ".join(text.split()), WIDTH, initial_indent=indent, subsequent_indent=indent)


def _pmlib(arguments: argparse.Namespace) -> int:
    """The server is a part of the client, which this package does not import: it is found as an entry point."""
    try:
        (point,) = entry_points(group="powerd.commands", name="pmlib")
        serve = point.load()
    except (ValueError, ImportError) as error:
        raise ConfigError("powerd pmlib is a part of the client: pip install 'powerd[client]'") from error
    status: int = serve(arguments.url, arguments.listen, arguments.directory)
    return status


def _describe(arguments: argparse.Namespace) -> None:
    from powerd_daemon.peer import ask

    body = ask(arguments.url, "describe", keys=arguments.keys).body
    as_json = arguments.format == "json"
    print(*[json.dumps(body, indent=2)] if as_json else description_rows(read_description(body)), sep="\n")


def description_rows(description: Description) -> Iterator[str]:
    """What a powerd measures, for people."""
    # The host of a tcp address is left to whoever asks: it is the one that was asked.
    data = description.data_endpoint.replace("tcp://*:", "port ")
    yield f"{description.board}: powerd {description.version}, data on {data}"
    if description.access:
        yield f"who may read: {description.access} (docs/howto/security.md)"
    for stream in description.streams:
        yield f"stream {stream.number} {stream.source}, {1e9 / stream.period_ns:.6g} Hz"
        for line in stream.lines:
            quantity = {"power_w": "power", "energy_j": "energy counter"}.get(line.quantity, line.quantity)
            note = f": {line.description}" if line.description else ""
            yield f"    {line.name}  ({line.provenance.value} {quantity} of {line.device}){note}"
    for device in description.devices:
        yield f"device {device.name} = {' + '.join(device.feeds) or 'nothing'}"
    if not description.streams:
        yield NOTHING


def _stats(arguments: argparse.Namespace) -> None:
    from powerd_daemon.peer import ask

    body = ask(arguments.url, "stats", keys=arguments.keys).body
    text = [*_tree(body), *([] if body.get("streams") else [NOTHING])]
    print(*[json.dumps(body, indent=2)] if arguments.format == "json" else text, sep="\n")


def _tree(value: object, indent: str = "") -> Iterator[str]:
    """A JSON value as indented lines, for people."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        if isinstance(inner, dict | list):
            yield f"{indent}{printable(str(name))}:" + ("" if inner else " none")
            yield from _tree(inner, indent + "    ")
        else:
            shown = f"{inner:.6g}" if isinstance(inner, float) else "-" if inner in (None, "") else str(inner)
            yield printable(f"{indent}{name}: {shown}")


def _completion(arguments: argparse.Namespace) -> None:
    try:
        import shtab
    except ImportError:
        raise ConfigError("the completion of shells is made by shtab: pip install 'shtab>=1.13'") from None

    def mark_files(parser: argparse.ArgumentParser) -> None:
        for action in parser._actions:
            if action.metavar in ("FILE", "DIR"):
                action.complete = shtab.FILE if action.metavar == "FILE" else shtab.DIRECTORY  # type: ignore[attr-defined]
            if isinstance(action, argparse._SubParsersAction):
                action.help = None  # what no help shows is not completed
                for inner in action.choices.values():
                    mark_files(inner)

    parser = make_parser()
    mark_files(parser)
    print(shtab.complete(parser, arguments.shell))
