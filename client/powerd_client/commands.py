"""The commands that the client adds to `powerd`; `powerd_daemon.commands` says what a command brings.

They load nothing before they run: `powerd --help` needs no numpy, and neither does a shell that completes options.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from powerd_core.errors import ConfigError
from powerd_core.keys import PORT


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
            from powerd_client.log import install_hint

            raise ConfigError(f"powerd pmlib is a part of the client: {install_hint('client')}") from error
        return serve(arguments.url, arguments.listen, arguments.directory)
