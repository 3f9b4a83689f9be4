"""A fake disk for processes that have this directory on their path: a file says how its writes go at present.

``$FAULTS_DISK`` names that file; it holds a word and a directory. Writes to files below the directory are slow
(``slow SECONDS``), fail with EIO (``broken``), find no space (``full``) or wait (``hang``) until it says otherwise.
"""

import errno
import os
import time

_WORD = os.environ.get("FAULTS_DISK", "")
_LOOK_S = 0.02


def _guard(real):
    def call(descriptor, *rest):
        try:
            with open(_WORD, encoding="utf-8") as file:
                word, place, *more = file.read().split()
        except (OSError, ValueError):
            return real(descriptor, *rest)
        try:
            below = os.readlink(f"/proc/self/fd/{descriptor}").startswith(place)
        except OSError:
            below = False
        if not below:
            return real(descriptor, *rest)
        if word == "slow":
            time.sleep(float(more[0]))
        elif word == "broken":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        elif word == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        elif word == "hang":
            time.sleep(_LOOK_S)
            return call(descriptor, *rest)
        return real(descriptor, *rest)

    return call


if _WORD:
    for name in ("write", "writev", "pwrite", "fsync", "fdatasync"):
        setattr(os, name, _guard(getattr(os, name)))
