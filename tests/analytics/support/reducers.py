"""Functions for run files that other processes can import."""

import os
import signal


def dies_of_1(path):
    if path.name == "1.h5":
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name
