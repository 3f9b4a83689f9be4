"""`powerd deploy`: write the files of a service onto this machine, or into a folder that a package is made of.

What is there stays: a file with another content is an operator's, is named, and is not written over. Nothing is
started: the last lines say how.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from powerd_core.errors import ConfigError
from powerd_daemon import ownership

_UNITS, _PACKAGED_UNITS = Path("etc/systemd/system"), Path("usr/lib/systemd/system")
"""Where an administrator's units are, and where those of packages."""
_PROGRAMS = "/opt/powerd/bin"
"""What the units call the folder of our programs."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file of a service: its name in `powerd/deploy`, and its place below the root; a unit's is `place_of`'s."""

    name: str
    place: str = ""
    mode: int = 0o644


SERVICES: dict[str, tuple[Part, ...]] = {
    "powerd": (
        Part("powerd.service"), Part("powerd.sysusers", "usr/lib/sysusers.d/powerd.conf"),
        Part("60-powerd.rules", "etc/udev/rules.d/60-powerd.rules"), Part("powerd.toml", "etc/powerd/powerd.toml"),
    ),
    "powerd-control": (
        Part("powerd-control.service"), Part("powerd-control.sysusers", "usr/lib/sysusers.d/powerd-control.conf"),
        Part("control.toml", "etc/powerd/control.toml"),
    ),
    "powerd-accounting": (
        Part("powerd-accounting.service"),
        Part("powerd-accounting.tmpfiles", "usr/lib/tmpfiles.d/powerd-accounting.conf"),
        Part("slurm/prolog.sh", "usr/lib/powerd/slurm/prolog.sh", 0o755),
        Part("slurm/epilog.sh", "usr/lib/powerd/slurm/epilog.sh", 0o755),
    ),
    "powerd-export": (
        Part("powerd-export.service"), Part("prometheus/rules.yml", "usr/share/powerd/prometheus/rules.yml"),
        Part("prometheus/dashboard.json", "usr/share/powerd/prometheus/dashboard.json"),
    ),
}  # fmt: skip
"""By the name of the unit."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes unit, users, rules and configuration of a service. Files that are there with another content stay, and "
        "are named: status 1. A sensor board is set up by powerd/deploy/install-board.sh instead."
    )
    parser.epilog = "powerd deploy powerd-control"
    parser.add_argument("service", choices=tuple(SERVICES), metavar="SERVICE", help=", ".join(SERVICES))
    parser.add_argument(
        "--root", type=Path, default=Path("/"), metavar="DIR", help="write below this folder, as a package needs it"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")


def run(arguments: argparse.Namespace) -> int:
    root, is_written, kept = arguments.root, False, False
    for part in SERVICES[arguments.service]:
        place, text = place_of(part, root), text_of(part)
        before = _content(place)
        if before is None:
            is_written = True
            if not arguments.dry_run:
                _write(place, text, part.mode)
            print(f"{'would write' if arguments.dry_run else 'written'}: {place}")
        elif before == text:
            print(f"is there: {place}")
        else:
            kept = True
            print(f"left as it is, and differs from ours: {place}")
    if is_written and not arguments.dry_run and root == Path("/"):
        print("\n".join(["now, as root:", *_next(arguments.service)]))
    return 1 if kept else 0


def place_of(part: Part, root: Path) -> Path:
    """Where a file goes: a unit below `/` to the administrator's, in a package to those of packages."""
    units = _UNITS if root == Path("/") else _PACKAGED_UNITS
    return root / (part.place or units / part.name)


def text_of(part: Part) -> str:
    """A file of ours, with the folder of the programs of this installation. Raises `ConfigError` where it is not
    installed."""
    packaged = files("powerd_daemon") / "deploy_files" / part.name
    checkout = Path(__file__).parents[1] / "deploy" / part.name
    source = packaged if packaged.is_file() else checkout
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{part.name} is not in this installation: install powerd anew") from error
    return text.replace(_PROGRAMS, str(Path(sys.prefix) / "bin")) if part.name.endswith(".service") else text


def _content(place: Path) -> str | None:
    """Of what is there; None where nothing is. A link, and what cannot be read, is somebody's, and no text of ours."""
    try:
        return "" if place.is_symlink() else place.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError):
        return ""


def _write(place: Path, text: str, mode: int) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        ownership.replace(place, text, mode)
    except OSError as error:
        who = "; run it as root, or give --root" if isinstance(error, PermissionError) else ""
        raise ConfigError(f"{place} cannot be written: {error.strerror}{who}") from error


def _next(service: str) -> Iterable[str]:
    yield "    systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload"
    if service == "powerd":
        yield "    udevadm control --reload && udevadm trigger"
        yield "    write sources into /etc/powerd/powerd.toml: powerd scan --format toml prints them"
    if service == "powerd-accounting":
        yield "    slurm.conf, if there is one: Prolog=/usr/lib/powerd/slurm/prolog.sh, Epilog=.../epilog.sh"
    yield f"    systemctl enable --now {service}"
