"""Whose a file is: the rule for every path that powerd makes, writes over, renames, empties or deletes.

A name that powerd uses may be taken. In a folder that several users share anybody may have put a link there, which
leads to files of the user who runs powerd, or something of their own. So powerd makes new files, and goes on only with
what is its own: no link, and of the user whose process this is. It empties a folder through its descriptor, and deletes
in it plain files under the names that it gives them itself. All else stays as it is, and one line says so.

All that a program of the client or of the analytics creates, cuts, moves, replaces or deletes goes through here
(`tests/e2e/test_opener.py` looks for what does not), and nothing is moved over something else unless the user asked.

Folders on the way to a name may be links, as `~/data` to another disk is. A name that the user gave for an output may
be a link of the user's own, which stays and whose file is written (`led_to`); a run file's may not.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import pwd
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

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
    """The descriptor of a plain file of the user's own, made where there is none (with ``O_EXCL``: where there is one,
    `OSError`). It is emptied (``O_TRUNC``) when it is known to be that. Raises `OSError`, and `RunFileError` for a link
    and for what belongs to another user."""
    wanted = (flags & ~os.O_TRUNC) | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    if flags & os.O_EXCL == 0:
        check_own(path)
    descriptor = os.open(path, wanted, mode)
    try:
        _check_file(path, os.fstat(descriptor))
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no file", str(path))
    if (reason := _foreign(path, status)) is not None:
        raise RunFileError(reason)


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


def read_own(path: Path) -> bytes:
    """What a file of the user's own holds that nobody else can have written: neither it nor its folder belongs to
    others, or may be written by them. Raises `OSError`, as `read_small`, and `RunFileError`."""
    for one in (path.parent, path):
        status = one.lstat()
        if (reason := _foreign(one, status)) is not None:
            raise RunFileError(reason)
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise RunFileError(f"{one} may be written by other users")
    return read_small(path)


def write_new(path: Path, text: str, mode: int = 0o600) -> None:
    """A file that was not there. Raises `OSError`."""
    with os.fdopen(open_own(path, os.O_WRONLY | os.O_EXCL, mode), "w", encoding="utf-8") as file:
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


def make_folder(path: Path) -> None:
    """A folder of the user's own, with those on the way to it, or the one that is there. Raises `RunFileError`, also
    for a link and for another user's."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with own_folder(path):
            pass
    except OSError as error:
        if isinstance(error, RunFileError):
            raise
        raise RunFileError(f"{path} cannot be made: {error.strerror}") from error


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


def set_aside(path: Path, place: Path) -> None:
    """Move a file or folder of the user's own to a free name in a folder of theirs, which is made; nothing where there
    is none. Raises `RunFileError` for what is not the user's, and `OSError`, also where the name is taken."""
    if not os.path.lexists(path):
        return
    for one in (path.parent, path):
        check_own(one, "move it away")
    make_folder(place.parent)
    if path.is_dir():
        place.mkdir()  # a folder takes the place of an empty one, and this one is ours
        path.rename(place)
    else:
        move(path, place, overwrite=False)


Identity = tuple[int, int, int, int]


class Changed(RunFileError):
    """Another process has replaced or changed a file since it was read."""


def identity(path: Path) -> Identity | None:
    """Which file has a name, and since when it is as it is; None where there is none. Raises `OSError`."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


PARTIAL = ".partial"
"""Behind the name of a folder in which an output is being written."""


@contextlib.contextmanager
def whole_output(
    path: Path, *, overwrite: bool = True, made_of: Identity | Literal["any"] | None = "any"
) -> Iterator[Path]:
    """Another name to write an output of the user's under, in a folder that nobody else may enter. It is moved into its
    place when it is whole. With ``made_of`` it takes the place of that file alone (`identity`; of none, None), else it
    raises `Changed`. Raises `OSError`."""
    place = led_to(path)
    with partial_folder(place.with_name(path.name)) as folder:
        partial = Path(folder, path.name)  # whose ending says what it is to be
        yield partial
        if made_of == "any":
            move(partial, place, overwrite=overwrite)
            return
        with _alone(place.parent):
            if identity(place) != made_of:
                raise Changed(f"{path} was changed by another program meanwhile: try again")
            try:
                move(partial, place, overwrite=made_of is not None)
            except FileExistsError as error:
                raise Changed(f"{path} was made by another program meanwhile: try again") from error


@contextlib.contextmanager
def partial_folder(place: Path) -> Iterator[Path]:
    """A folder beside an output, for this user alone, in which it is made. It goes with its contents; one whose process
    was killed is found by `left_partials`."""
    with tempfile.TemporaryDirectory(
        prefix=f".{place.stem}.", suffix=PARTIAL, dir=place.absolute().parent, ignore_cleanup_errors=True
    ) as name:
        held = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield Path(name)
        finally:
            os.close(held)


_PARTIAL_NAME = re.compile(rf"\.(.*)\.[a-z0-9_]{{8}}{re.escape(PARTIAL)}", re.DOTALL)


def is_left_partial(folder: Path) -> bool:
    """Whether that is a `partial_folder` whose process was killed: a folder of the user's own that nobody holds."""
    if _PARTIAL_NAME.fullmatch(folder.name) is None or not folder.is_dir() or foreign(folder) is not None:
        return False
    try:
        with own_folder(folder) as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def delete_partial(folder: Path) -> None:
    """Delete what `is_left_partial` names, with the files in it that an output is made of. Raises `OSError`."""
    name = _PARTIAL_NAME.fullmatch(folder.name)
    assert name is not None
    for inner in filter(is_left_partial, list(folder.iterdir())):  # of an output that was made in two steps
        delete_partial(inner)
    delete_folder(folder, re.compile(rf"{re.escape(name[1])}(\..*)?|journal\.bin", re.DOTALL))


_WAIT_S = 5.0


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Of several programs that replace a file in a folder one at a time, for as long as a rename takes. Where a folder
    cannot be locked, or a stranger holds it, they go on all the same."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until_s = time.monotonic() + _WAIT_S
        while time.monotonic() < until_s:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
            else:
                break
        yield
    finally:
        os.close(descriptor)


def whole_text(path: Path, text: str, mode: int | None = None) -> None:
    """Write a text as `whole_output` does, on the disk when this returns where it gets a ``mode`` of its own. Raises
    `OSError`."""
    with whole_output(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(text)
        if mode is not None:
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
