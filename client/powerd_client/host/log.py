"""What the client tells its user: the logger ``powerd``, by default lines on the error stream of the training process;
and what to install for a part of powerd that is not there.

Whatever stands in for that stream (none, a closed one, a pipe that nobody reads, a notebook's own), nothing here
raises: it is no reason to stop a training.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from powerd_core.text import LEGIBLE, needs_extra, printable, register_legible

register_legible()


class _ErrorStream(logging.Handler):
    """``powerd: TEXT`` on whatever ``sys.stderr`` is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # as said above
            sys.stderr.write(f"powerd: {printable(self.format(record))}\n")
            sys.stderr.flush()


log = logging.getLogger("powerd")
log.addHandler(_ErrorStream())
log.propagate = False


def tell(text: str) -> None:
    """One warning."""
    log.warning("%s", text)


def show(text: str) -> None:
    """Lines that are no warning: a result, or what is being done."""
    with contextlib.suppress(Exception):  # as said above
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        sys.stderr.write(text.encode(encoding, LEGIBLE).decode(encoding) + "\n")
        sys.stderr.flush()


def is_terminal() -> bool:
    """Whether the error stream is a terminal or a notebook, and no log."""
    try:
        return bool(sys.stderr.isatty())
    except Exception:  # noqa: BLE001  (as said above)
        return False


def shown_path(path: Path) -> str:
    """A path for a line of text: from where the user stands, unless that is longer."""
    with contextlib.suppress(OSError, ValueError):
        return printable(min(str(path), os.path.relpath(path), key=len))
    return printable(str(path))


def last_line(path: Path) -> str:
    """What a process that ended said last in its log."""
    with contextlib.suppress(OSError):
        if lines := path.read_text(errors="replace").strip().splitlines():
            return lines[-1]
    return "it said nothing"


def install_hint(part: str) -> str:
    """How to add a part of powerd (an extra, such as ``analytics``): the command where this powerd was installed from a
    checkout (PEP 610, direct_url.json)."""
    from importlib.metadata import PackageNotFoundError, distribution

    pip = "pip"
    if (found := shutil.which("pip")) is None or Path(found).parent != Path(sys.executable).parent:
        pip = f"{shlex.quote(sys.executable)} -m pip"  # no environment is active: pip would install into another one
    origin = {}
    with contextlib.suppress(PackageNotFoundError, ValueError):
        origin = json.loads(distribution("powerd").read_text("direct_url.json") or "{}")
    checkout = Path(unquote(urlsplit(str(origin.get("url"))).path))
    if "dir_info" not in origin or not (checkout / "pyproject.toml").is_file():
        return needs_extra(part)
    place = "." if checkout == Path.cwd() else checkout
    is_editable = bool(origin["dir_info"].get("editable"))
    return f"{pip} install {'-e ' * is_editable}{shlex.quote(f'{place}[{part}]')}"
