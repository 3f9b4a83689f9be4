"""The `powerd` command."""

from __future__ import annotations

import argparse
import errno
import inspect
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace

from powerd_core.errors import ConfigError, PowerdError, WireError
from powerd_core.model import Description
from powerd_core.serde import describe_options, read_description
from powerd_core.text import printable
from powerd_daemon import printing
from powerd_daemon.arguments import parse
from powerd_daemon.asking import ask
from powerd_daemon.calibration_command import calibrate_lines
from powerd_daemon.clock import SystemClock
from powerd_daemon.completion_command import completion
from powerd_daemon.config import Config, ServerConfig, load_config, source_config
from powerd_daemon.configure_command import configure
from powerd_daemon.control import Control
from powerd_daemon.doctor_command import check
from powerd_daemon.keys_command import keys
from powerd_daemon.log import Log
from powerd_daemon.plan_command import plan
from powerd_daemon.plan_config import refuse
from powerd_daemon.registry import find_source, kinds
from powerd_daemon.scan_command import scan
from powerd_daemon.sdnotify import Notifier
from powerd_daemon.serving import serve_until
from powerd_daemon.watch import ProcessWatch


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the status as in docs/commands.md: with 1 for a fault that `check` found."""
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        status = _COMMANDS[arguments.command](arguments)
        if sys.stdout is not None:  # nobody has closed it
            sys.stdout.flush()
    except PowerdError as error:
        print(f"powerd: {printable(str(error), limit=2000)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read the list has seen enough. Python flushes stdout once more at exit: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.filename is not None or error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"powerd: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    return status


def _run(arguments: argparse.Namespace) -> int:
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    watch = None if arguments.parent_pid is None else ProcessWatch(arguments.parent_pid)
    clock, manager = SystemClock(), Notifier()
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}

    def is_over() -> bool:
        # The loops that start and serve ask this in every turn, so a loop that hangs sends no ping.
        manager.alive(clock.now_ns())
        return stopping or (watch is not None and watch.is_gone())

    try:
        log = Log(sys.stderr, clock, quiet=arguments.quiet)
        config, control = run_config(arguments), None
        if arguments.config is not None:
            control = Control(arguments.config, lambda made: with_options(made, arguments), clock, log)
        serve_until(is_over, config, control, clock, log, manager)
    finally:
        if watch is not None:
            watch.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0


def run_config(arguments: argparse.Namespace) -> Config:
    """The configuration that the options of `powerd run` amount to. Raises `ConfigError`."""
    if arguments.config is not None:
        refuse(arguments.config)
        config = load_config(arguments.config)
    else:
        given = {name: getattr(arguments, name) for name in ("rate_hz", "waveform", "seed")}
        options = {name: value for name, value in given.items() if value is not None}
        server = ServerConfig()
        server = server.listening_on(server.listen, "--listen")
        config = Config(server, (source_config("sim", "sim", options, "--sim"),))
    return with_options(config, arguments)


def with_options(config: Config, arguments: argparse.Namespace) -> Config:
    """A configuration with what the options of `powerd run` say instead. Raises `ConfigError`."""
    server = config.server
    if arguments.listen is not None:
        server = server.listening_on(arguments.listen, "--listen")
    if arguments.ring_mib is not None:
        try:
            server = replace(server, ring_mib=arguments.ring_mib)
        except ValueError as error:
            raise ConfigError(f"--ring-mib: {error}") from error
    if arguments.spool is not None:
        server = replace(server, spool=arguments.spool)
    try:
        server = replace(server, keys=arguments.keys or server.keys, insecure=arguments.insecure or server.insecure)
    except ValueError as error:
        raise ConfigError(f"--keys and --insecure: {error}") from error
    return replace(config, server=server)


def _sources(_: argparse.Namespace) -> int:
    for kind in kinds():
        try:
            cls = find_source(kind)
        except ConfigError as error:
            print(f"{kind}\n    not usable here: {error}\n")
            continue
        summary = (inspect.getdoc(cls) or inspect.getdoc(inspect.getmodule(cls)) or "").split("\n\n")[0]
        print(printing.source(kind, " ".join(summary.split()), describe_options(cls.Options)))
    return 0


def _describe(arguments: argparse.Namespace) -> int:
    answer = ask(arguments.url, "describe", keys=arguments.keys)
    try:
        description: Description = read_description(answer.body)
    except WireError as error:
        raise WireError(
            f"what the powerd at {arguments.url} says of itself cannot be read ({error}): use the same release there "
            "and here"
        ) from error
    print(json.dumps(answer.body, indent=2) if arguments.json else printing.description(description))
    return 0


def _stats(arguments: argparse.Namespace) -> int:
    answer = ask(arguments.url, "stats", keys=arguments.keys)
    print(json.dumps(answer.body, indent=2) if arguments.json else printing.tree(answer.body))
    return 0


def _config_check(arguments: argparse.Namespace) -> int:
    refuse(arguments.file)
    config = load_config(arguments.file)
    print(printing.config(str(arguments.file), config))
    return 0


_COMMANDS = {
    "run": _run,
    "sources": _sources,
    "describe": _describe,
    "stats": _stats,
    "config-check": _config_check,
    "plan": plan,
    "scan": scan,
    "check": check,
    "calibrate": calibrate_lines,
    "keys": keys,
    "configure": configure,
    "completion": completion,
}

if __name__ == "__main__":
    sys.exit(main())
