"""The commands that the client adds to `powerd`; `powerd_daemon.commands` says what a command brings.

They load nothing before they run: `powerd --help` needs no numpy, and neither does a shell that completes options.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from powerd_core.errors import ConfigError
from powerd_core.keys import PORT, control_url


class Pmlib:
    """`powerd pmlib`."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.description = (
            "Listens where programs that were compiled against pmlib's C library look for its server. Each of their "
            "counters leaves a run file, pmlib.h5, pmlib-2.h5 and so on. Needs powerd[client]."
        )
        parser.epilog = "powerd pmlib tcp://board:7360"
        here = f"tcp://127.0.0.1:{PORT}"
        parser.add_argument("url", nargs="?", default=here, metavar="URL", help=f"default {here}")
        listen = "where to listen for them (default 127.0.0.1:6526); the protocol has no keys"
        parser.add_argument("--listen", default="127.0.0.1:6526", metavar="HOST:PORT", help=listen)
        parser.add_argument("--directory", type=Path, default=Path(), metavar="DIR", help="where the run files go")

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        try:
            from powerd_client.pmlib.service import serve
        except ImportError as error:
            from powerd_client.host.log import install_hint

            raise ConfigError(f"powerd pmlib is a part of the client: {install_hint('client')}") from error
        return serve(arguments.url, arguments.listen, arguments.directory)


class Export:
    """`powerd export`."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.description = (
            "Serves joules, seconds without readings, faults, phases and leases as OpenMetrics, for Prometheus. An "
            "ordinary reader: it disturbs no powerd. Needs powerd[export]."
        )
        parser.epilog = "powerd export tcp://127.0.0.1:7360 --listen 0.0.0.0:9402"
        here = f"tcp://127.0.0.1:{PORT}"
        parser.add_argument("urls", nargs="*", default=[here], metavar="URL", help=f"powerds (default {here})")
        listen = "where it is scraped (default 127.0.0.1:9402: by this machine alone)"
        parser.add_argument("--listen", default="127.0.0.1:9402", metavar="HOST:PORT", help=listen)
        parser.add_argument("--keys", type=Path, metavar="DIR", help="directory of keys, for a powerd that wants them")
        parser.add_argument("--certfile", metavar="FILE", help="serve by TLS, with this certificate")
        parser.add_argument("--keyfile", metavar="FILE", help="and this key")

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        try:
            from powerd_client.accounting.exporter import serve
        except ImportError as error:
            from powerd_client.host.log import install_hint

            raise ConfigError(f"powerd export needs another package: {install_hint('export')}") from error
        tls = {name: value for name in ("certfile", "keyfile") if (value := getattr(arguments, name))}
        if len(tls) == 1:
            raise ConfigError("--certfile and --keyfile go together")
        return serve([control_url(url) for url in arguments.urls], arguments.listen, arguments.keys, tls)


class Control:
    """`powerd control`."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.description = (
            "Power caps and clocks are set by the helper powerd-control, for as long as somebody holds them; then what "
            "was found stands again. Needs powerd[client]."
        )
        parser.epilog = "powerd control set gpu0 power_cap_w=200"
        parser.add_argument(
            "--socket", metavar="WHERE", help="the helper's socket, or a powerd's address (default $POWERD_CONTROL)"
        )
        verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
        examples = {
            "status": "powerd control status",
            "history": "powerd control history /var/lib/powerd/accounting --since 2026-11-01",
            "set": "powerd control set gpu0 power_cap_w=200",
            "release": "powerd control release 9a478d28ae887dfa",
            "check": "powerd control check",
            "policy": "powerd control policy",
        }

        def verb(name: str, text: str) -> argparse.ArgumentParser:
            return verbs.add_parser(name, help=text, description=text, epilog=examples[name])

        status = verb("status", "what can be set, what it is set to, and who holds it")
        status.add_argument("--format", choices=("text", "json"), default="text", help="json for programs")
        history = verb("history", "who held what, when, and what it drew, as powerd-accounting has kept it")
        history.add_argument("folder", type=Path, metavar="DIR", help="the folder of powerd-accounting")
        history.add_argument("--since", default="1970-01-01", metavar="DAY", help="as 2026-11-01, UTC (default: all)")
        history.add_argument("--format", choices=("text", "json"), default="text", help="json for programs")
        held = verb("set", "hold a setting until Ctrl-C")
        held.add_argument("device", help="gpu0, several as gpu0,gpu1, or all")
        held.add_argument("levels", nargs="+", metavar="KNOB=LEVEL", help="power_cap_w=200, sm_clock_mhz=60%%, ...=min")
        held.add_argument("--for", dest="for_s", type="number", metavar="S", help="seconds, instead of until Ctrl-C")
        held.add_argument(
            "--wait", type="number", default=0.0, metavar="S", help="ask again for so long where somebody holds it now"
        )
        release = verb("release", "end a lease of yours, or as an administrator one of others")
        release.add_argument("lease", help="its number, as in `powerd control status`")
        verb("check", "what the policy allows you, and what is missing")
        verb("policy", "print a policy for this machine's devices, to be edited")

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        if arguments.verb == "history":
            from powerd_client.accounting import history

            return history.run(arguments)
        from powerd_client.knobs import control_command

        return control_command.run(arguments)
