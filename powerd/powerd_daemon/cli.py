"""The `powerd` command: `powerd run`, and the commands that only ask or print (`powerd_daemon.commands` has all).

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill

from powerd_core.errors import ConfigError, PowerdError
from powerd_core.model import Description
from powerd_core.serde import describe_options, read_description
from powerd_core.text import LEGIBLE, printable, register_legible
from powerd_daemon.commands import Command, add_format_option, add_keys_option, load, make_parser
from powerd_daemon.config import DEFAULT_LISTEN, NOTHING, Config, ServerConfig, load_config, source_config
from powerd_daemon.sources.base import UNTESTED, find_source, kinds

WIDTH = 80


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the status as in docs/reference/commands.md: with 1 for a fault that `check` found."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        register_legible()
        sys.stdout.reconfigure(errors=LEGIBLE)
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["config-check"]:  # what it was called before
        words = ["check", "--file-only", *words[1:]]
    try:
        arguments = make_parser(words[:1]).parse_args(words)
        status = load(arguments.command).run(arguments) or 0
        if sys.stdout is not None:  # nobody has closed it
            sys.stdout.flush()
    except PowerdError as error:
        print(f"powerd: {printable(str(error), limit=3000)}", file=sys.stderr)
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


def _run_options(run: argparse.ArgumentParser) -> None:
    run.epilog = "powerd run --config powerd.toml --spool /var/lib/powerd/spool"
    what = run.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", type=Path, metavar="FILE", help="what to measure (docs/reference/configuration.md)")
    what.add_argument("--sim", action="store_true", help="measure the simulated graphics card")
    run.add_argument("--listen", metavar="URL", help=f"tcp://HOST:PORT or ipc:///PATH (default {DEFAULT_LISTEN})")
    run.add_argument("--ring-mib", type="number", metavar="N", help="memory for each stream's latest readings, in MiB")
    run.add_argument("--spool", type=Path, metavar="DIR", help="keep readings on disk, so that they outlive powerd")
    add_keys_option(run)
    run.add_argument("--insecure", action="store_true", help="let anyone who reaches the addresses read, without keys")
    run.add_argument("--parent-pid", type=int, metavar="PID", help="end when this process is gone")
    run.add_argument("--rate-hz", type="number", metavar="HZ", help="with --sim: scans a second")
    run.add_argument("--waveform", metavar="NAME", help="with --sim: the load's waveform")
    run.add_argument("--seed", type=int, metavar="N", help="with --sim: seed of the load")
    run.add_argument("--quiet", action="store_true", help="say nothing but what goes wrong")


def _run(arguments: argparse.Namespace) -> None:
    from powerd_daemon.clock import SystemClock
    from powerd_daemon.daemon import Daemon, Notifier, ParentWatchdog, allow_files
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
            allow_files(config)
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


def _sources_options(sources: argparse.ArgumentParser) -> None:
    sources.epilog = "powerd sources hwmon"
    sources.add_argument("kind", nargs="?", metavar="KIND", help="one kind alone; default: all of them")


def _sources(arguments: argparse.Namespace) -> None:
    if arguments.kind:
        find_source(arguments.kind)  # or an error that says which there are
    for kind in (arguments.kind,) if arguments.kind else kinds():
        try:
            cls = find_source(kind)
        except ConfigError as error:
            print(f"{kind}\n    not usable here: {error}\n")
            continue
        summary = (inspect.getdoc(cls) or inspect.getdoc(inspect.getmodule(cls)) or "").split("\n\n")[0]
        print(f"{kind} ({UNTESTED})" if cls.is_untested else kind, _indented(summary, "    "), sep="\n")
        for option in describe_options(cls.Options):
            default = f"default {option.default}" if option.default else "required"
            print(_indented(f"{option.name} = {option.type} ({default})", "    "))
            if option.help:
                print(_indented(option.help, "        "))
        print()


def _indented(text: str, indent: str) -> str:
    return fill(" ".join(text.split()), WIDTH, initial_indent=indent, subsequent_indent=indent)


def _ask_options(example: str) -> Callable[[argparse.ArgumentParser], None]:
    def add(ask: argparse.ArgumentParser) -> None:
        ask.epilog = example
        ask.add_argument("url", nargs="?", default=DEFAULT_LISTEN, metavar="URL", help=f"default {DEFAULT_LISTEN}")
        add_format_option(ask)
        add_keys_option(ask)

    return add


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
        untested = f", {UNTESTED}" if stream.detail.get("untested") else ""
        yield f"stream {stream.number} {stream.source}, {1e9 / stream.period_ns:.6g} Hz{untested}"
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


def _completion_options(completion: argparse.ArgumentParser) -> None:
    completion.description = (
        "Prints a script that lets the shell complete commands, options and their choices by the tab key; "
        "once: powerd completion bash > ~/.local/share/bash-completion/completions/powerd"
    )
    completion.epilog = "powerd completion bash"
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh, fish")


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


RUN = Command(_run_options, _run)
SOURCES = Command(_sources_options, _sources)
DESCRIBE = Command(_ask_options("powerd describe tcp://board:7360"), _describe)
STATS = Command(_ask_options("powerd stats tcp://board:7360 --format json"), _stats)
COMPLETION = Command(_completion_options, _completion)
