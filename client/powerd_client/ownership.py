"""Whose a file is: the rule for every path that powerd makes, writes over, renames, empties or deletes.

A name that powerd uses may be taken. In a folder that several users share anybody may have put a link there, which
leads to files of the user who runs powerd, or something of their own. So powerd makes new files, and goes on only with
what is its own: no link, and of the user whose process this is. It empties a folder through its descriptor, and deletes
in it plain files under the names that it gives them itself. All else stays as it is, and one line says so.

Folders on the way to a name may be links, as `~/data` to another disk is. A name that the user gave for an output may
be a link of the user's own, which stays and whose file is written (`led_to`); a run file's may not.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import pwd
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from powerd_core.errors import RunFileError


def own_uids(folder: Path) -> set[int]:
    """The user ids that files of this process have in a folder: its own, and the one that the file system gives there,
    as NFS with ``all_squash``, CIFS and sshfs give all files one owner."""
    return {os.geteuid(), _given_uid(folder, os.geteuid())}


@functools.cache
def _given_uid(folder: Path, uid: int) -> int:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:  # without a name
            return os.fstat(file.fileno()).st_uid
    except OSError:
        return uid


def foreign(path: Path) -> str | None:
    """Why what has this name is not powerd's to touch, in words; None where it is, or where nothing is there."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _foreign(path, status)


def _foreign(path: Path, status: os.stat_result) -> str | None:
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a link, and powerd follows none"
    if status.st_uid == os.geteuid() or status.st_uid in own_uids(path.parent):
        return None
    try:
        name = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        name = str(status.st_uid)
    return f"{path} belongs to another user ({name})"


def check_own(path: Path, remedy: str = "choose another name") -> None:
    """Raises `RunFileError` for a link, and for what belongs to another user."""
    if (reason := foreign(path)) is not None:
        raise RunFileError(f"{reason}: {remedy}")


def led_to(path: Path) -> Path:
    """What an output is written to: the name itself, or what a link of the user's own leads to. Raises `RunFileError`
    where the link, or what is there, belongs to somebody else, or where it leads to another link."""
    if not path.is_symlink():
        check_own(path)
        return path
    if path.lstat().st_uid not in own_uids(path.parent):
        check_own(path)
    target = path.parent / path.readlink()
    check_own(target)
    return target


def open_own(path: Path, flags: int, mode: int = 0o600) -> int:
    """The descriptor of a plain file, made where there is none (with ``O_EXCL``: where there is one, `OSError`).
    Raises `OSError` for a link too."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no file")
    return descriptor


MOST_BYTES = 4 << 20
"""No configuration, calibration or key is longer."""


def read_small(path: Path) -> bytes:
    """What a file holds. Raises `OSError`, also for a device or a pipe (which may never end, or never begin), and for
    more than `MOST_BYTES`."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no file, but a directory, device or pipe: copy the text into a file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is longer than {MOST_BYTES >> 20} MiB: is it the right file?")
    return data


def write_new(path: Path, text: str) -> None:
    """A file that was not there. Raises `OSError`."""
    with os.fdopen(open_own(path, os.O_WRONLY | os.O_EXCL), "w", encoding="utf-8") as file:
        file.write(text)


@contextlib.contextmanager
def own_folder(path: Path) -> Iterator[int]:
    """The descriptor of a folder: what is done through it is done there, whatever becomes of its name. Raises
    `RunFileError` for a link and for another user's, `OSError` where there is none."""
    check_own(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if (reason := _foreign(path, os.fstat(descriptor))) is not None:
            raise RunFileError(reason)
        yield descriptor
    finally:
        os.close(descriptor)


def empty(folder: int, names: re.Pattern[str]) -> None:
    """Delete the files (and sockets) in a folder that have such names. Raises `OSError`."""
    for name in os.listdir(folder):
        if names.fullmatch(name) and _is_plain(os.stat(name, dir_fd=folder, follow_symlinks=False)):
            os.unlink(name, dir_fd=folder)


def delete_folder(path: Path, names: re.Pattern[str]) -> None:
    """Delete a folder with the files of these names in it; it stays when there is anything else. Raises `OSError`."""
    with own_folder(path) as folder:
        empty(folder, names)
    path.rmdir()


def delete(path: Path) -> None:
    """Delete a file of one's own; nothing where the name is free, a link or somebody else's. Raises `OSError`."""
    with contextlib.suppress(FileNotFoundError):
        if _is_plain(path.lstat()) and foreign(path) is None:
            path.unlink()


def _is_plain(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) or stat.S_ISSOCK(status.st_mode)


def move(new: Path, place: Path, *, overwrite: bool) -> None:
    """Give a file that is whole its name. Raises `FileExistsError` for what is there already, with ``overwrite``
    `RunFileError` where that is a link or somebody else's."""
    if overwrite:
        check_own(place)
        new.replace(place)
        return
    try:
        os.link(new, place)  # unlike a rename, refuses to replace a file that appeared meanwhile
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(place):
            raise
        new.replace(place)
    else:
        new.unlink()


@contextlib.contextmanager
def whole_output(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Another name to write an output of the user's under, in a folder that nobody else may enter. It is moved into its
    place when it is whole. Raises `OSError`."""
    place = led_to(path)
    with tempfile.TemporaryDirectory(
        prefix=f".{place.stem}.", suffix=".partial", dir=place.parent, ignore_cleanup_errors=True
    ) as folder:
        partial = Path(folder, place.name)
        yield partial
        move(partial, place, overwrite=overwrite)
