"""Starting a sampler process, and the private place where its socket is."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from powerd_core.errors import PeerError
from powerd_core.serde import to_document
from powerd_daemon.endpoints import IPC_PATH_BYTES
from powerd_daemon.sampler import Spec


def spawn(spec: Spec) -> subprocess.Popen[bytes]:
    """A sampler process that has been told what to do."""
    # Its own process group: Ctrl-C in the terminal reaches powerd alone, which then ends its samplers in order.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "powerd_daemon.sampler"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        process_group=0,
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(json.dumps(to_document(spec)).encode())
    return process


def private_directory() -> Path:
    """A directory that only this user can enter, with a path short enough for sockets."""
    try:
        directory = Path(tempfile.mkdtemp(prefix="powerd-"))
        if len(str(directory).encode()) + len("/255.1234567") > IPC_PATH_BYTES:
            directory.rmdir()
            directory = Path(tempfile.mkdtemp(prefix="powerd-", dir="/tmp"))
    except OSError as error:
        raise PeerError(f"no place for the samplers' sockets: {error}: set TMPDIR to a short path") from error
    return directory
