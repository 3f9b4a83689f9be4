"""Functions for run files that other processes can import."""

import os
import signal

import scipy.linalg  # noqa: F401 - the library whose threads are counted
from threadpoolctl import threadpool_info


def dies_of_1(path):
    if path.name == "1.h5":
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name, max(library["num_threads"] for library in threadpool_info())
