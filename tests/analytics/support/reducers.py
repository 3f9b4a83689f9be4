"""Functions for run files that other processes can import."""

import os
import signal


def size(path):
    return path.stat().st_size


def dies_of_1(path):
    if path.name == "1.h5":
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name


def returns_what_cannot_be_sent(path):
    return lambda: path
