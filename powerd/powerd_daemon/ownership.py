"""Whose a file is: the rule for every path that powerd makes, writes over or deletes.

A name that powerd uses may be taken: by a link, which leads to files of the user who runs powerd, or by something of
another user's. powerd makes new files, and replaces or deletes only what is no link and belongs to its user.
`powerd_client.host.ownership` is the same for the client, which a board does not have.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
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


def replace(place: Path, text: str, mode: int) -> None:
    """A new file under a name, as a whole and on the disk, or none. What is there has to be powerd's. Raises
    `OSError`."""
    new = place.with_name(f"{place.name}.{secrets.token_hex(4)}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        new.replace(place)
    except BaseException:
        new.unlink()
        raise


def delete_socket(path: Path, bound: os.stat_result | None = None) -> None:
    """Delete a socket of powerd's user, that one alone which was ``bound``; nothing where something else has its name.
    Raises `OSError`."""
    with contextlib.suppress(FileNotFoundError):
        status = path.lstat()
        # A file that was deleted leaves its number to the next one.
        is_it = bound is None or (os.path.samestat(status, bound) and status.st_ctime_ns == bound.st_ctime_ns)
        if is_it and stat.S_ISSOCK(status.st_mode) and foreign(path) is None:
            path.unlink()
