"""Files that HDF5 writes where there is no room: an error that says so, and a process that goes on."""

import errno
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_client.runs.runfile import steady_hdf5

READINGS = np.arange(200_000) * 7919 % 4096

ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
from powerd_client.runs.runfile import steady_hdf5
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    with steady_hdf5(Path(sys.argv[1])) as (file, _):
        for i in range(20):
            group = file.create_group(f"g{i}")
            group["x"] = np.random.default_rng(i).integers(0, 1 << 30, 5_000)
            group.attrs["text"] = "x" * 1000
except OSError as error:
    print(error.strerror)
"""


def fill(file):
    for i in range(4):
        group = file.create_group(f"g{i}")
        data = group.create_dataset("x", READINGS.shape, "i8", chunks=(20_000,), compression="gzip", fletcher32=True)
        data[:100_000], data[100_000:] = READINGS[:100_000], READINGS[100_000:]
        group.attrs.update({f"a{k}": "text" * 50 for k in range(20)})


def failure_of(path):
    try:
        with steady_hdf5(path) as (file, _):
            fill(file)
    except OSError as error:
        return error
    return None


@settings(max_examples=12)
@given(st.integers(0, 500_000))
def test_whatever_there_is_room_for_the_first_failure_is_told_and_nothing_else(tmp_path_factory, room):
    path = tmp_path_factory.mktemp("h") / "run.h5"
    real = os.pwrite

    def pwrite(fd, data, offset):
        if offset + len(data) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        failure = failure_of(path)
    if failure is not None:
        assert failure.errno == errno.ENOSPC
        return
    with h5py.File(path) as file:
        assert all(np.array_equal(file[f"g{i}/x"][:], READINGS) for i in range(4))


@pytest.mark.parametrize("room", [500, 50_000])
def test_the_process_outlives_a_disk_that_is_full(tmp_path, room):
    done = subprocess.run(
        [sys.executable, "-c", ON_A_FULL_DISK, str(tmp_path / "run.h5"), str(room)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, os.strerror(errno.EFBIG) + "\n", "")


def test_an_existing_file_is_changed(tmp_path):
    path = tmp_path / "run.h5"
    with steady_hdf5(path) as (file, _):
        fill(file)
    with steady_hdf5(path, "r+") as (file, _):
        del file["g1"]
        file["more"] = READINGS
    with h5py.File(path) as file:
        assert sorted(file) == ["g0", "g2", "g3", "more"]
        assert np.array_equal(file["more"][:], READINGS)
        assert np.array_equal(file["g2/x"][:], READINGS)
