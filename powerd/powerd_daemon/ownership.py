"""Whose a file is: the rule for every path that powerd makes, writes over or deletes.

A name that powerd uses may be taken: by a link, which leads to files of the user who runs powerd, or by something of
another user's. powerd makes new files, and replaces or deletes only what is no link and belongs to its user.
`powerd_client.ownership` is the same for the client, which a board does not have.
"""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from pathlib import Path


def own_uids(folder: Path) -> set[int]:
    """The user ids that files of this process have in a folder: its own, and the one that the file system gives there,
    as NFS with ``all_squash`` gives all files one owner."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:  # without a name
            return {os.geteuid(), os.fstat(file.fileno()).st_uid}
    except OSError:
        return {os.geteuid()}


def foreign(path: Path) -> str | None:
    """Why what has this name is not powerd's to touch, in words; None where it is, or where nothing is there. Raises
    `OSError` where that cannot be seen."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        return "it is a link, and powerd follows none"
    if status.st_uid == os.geteuid() or status.st_uid in own_uids(path.parent):
        return None
    try:
        name = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        name = str(status.st_uid)
    return f"it belongs to another user: run this as {name}"


def led_to(path: Path) -> Path:
    """What is written where a user names a file: the name itself, or what a link of the user's own leads to."""
    if path.is_symlink() and path.lstat().st_uid in own_uids(path.parent):
        return path.parent / path.readlink()
    return path
