"""A fake disk for processes that have this directory on their path: a file says how its writes go at present.

``$FAULTS_DISK`` names that file; it holds a word and a directory. Writes to files below the directory are slow
(``slow SECONDS``), fail with EIO (``broken``), find no space (``full``) or wait (``hang``) until it says otherwise.
What came of them is written down in ``$FAULTS_SEEN``, as is what each child that these processes waited for died of.
"""

import errno
import os
import signal
import time

_WORD, _SEEN = os.environ.get("FAULTS_DISK", ""), os.environ.get("FAULTS_SEEN", "")
_LOOK_S = 0.02


def _write_down(what, amount=1):
    with open(_SEEN, "ab", buffering=0) as file:
        file.write(f"{what} {amount}\n".encode())


def _state(descriptor):
    """What the file says about writes to a descriptor: a word and what goes with it, or nothing."""
    try:
        with open(_WORD, encoding="utf-8") as file:
            word, place, *more = file.read().split()
        return [word, *more] if os.readlink(f"/proc/self/fd/{descriptor}").startswith(place) else [""]
    except (OSError, ValueError):
        return [""]


def _guard(real):
    def call(descriptor, *rest):
        state, began_s = _state(descriptor), time.monotonic()
        if state[0] == "slow":
            time.sleep(float(state[1]))
            _write_down("delayed")
        elif state[0] == "broken":
            _write_down("refused")
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        elif state[0] == "full":
            _write_down("refused")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        elif state[0] == "hang":
            while _state(descriptor)[0] == "hang":
                time.sleep(_LOOK_S)
            _write_down("hung", time.monotonic() - began_s)
        try:
            return real(descriptor, *rest)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                _write_down("refused")
            raise

    return call


def _told(real):
    def call(pid, options):
        found, status = real(pid, options)
        if found and os.WIFSIGNALED(status):
            _write_down(f"died-of-{signal.Signals(os.WTERMSIG(status)).name}")
        if found and status:
            _write_down("failed")
        return found, status

    return call


if _WORD:
    for name in ("write", "writev", "pwrite", "fsync", "fdatasync", "posix_fallocate"):
        setattr(os, name, _guard(getattr(os, name)))
    os.waitpid = _told(os.waitpid)
