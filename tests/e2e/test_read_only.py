"""A file system that turns read-only in the middle of a recording, as ext4 does at an error of its disk.

A mount cannot be made read-only while files on it are open for writing; a file system that finds an error can. So this
is a real ext4 in a file, told by sysfs that it has met an error (``errors=remount-ro``).
"""

import os
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
from common import powerd

from powerd_client.runs.recover import recover
from powerd_client.runs.verify import verify_file

SOURCE = '[[source]]\nkind = "sim"\nname = "rails"\nrate_hz = 250.0\n'
TRAINER = """
import os, sys, time
from pathlib import Path
from powerd_client import Meter
meter = Meter(sys.argv[1], sys.argv[2])
with meter.phase("training"):
    for step in range(530):  # marks for several pages of memory, most of them behind the error
        with meter.phase("forward"):
            time.sleep(0.02 if step < 30 else 0.001)
        if step == 29:
            time.sleep(0.3)
            os.sync()
            Path(sys.argv[3]).write_text("1")
meter.close()
print("trained")
"""


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


@pytest.fixture
def disk(tmp_path: Path):
    """A small ext4 and the file that tells it of an error."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(48 << 20)
    for command in (("mkfs.ext4", "-q", "-F", image), ("mount", "-o", "loop,errors=remount-ro", image, place)):
        try:
            made = run(*command)
        except FileNotFoundError:
            pytest.skip(f"{command[0]} is not installed here")
        if made.returncode:
            pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        device = Path(run("findmnt", "-n", "-o", "SOURCE", place).stdout.strip()).name
        error = Path("/sys/fs/ext4", device, "trigger_fs_error")
        if not error.exists():
            pytest.skip("this kernel's ext4 cannot be told of an error")
        yield place, error
    finally:
        run("umount", "-l", place)


def test_the_training_goes_on_it_is_told_once_and_what_was_recorded_is_intact(disk, tmp_path: Path) -> None:
    place, error = disk
    out = place / "run.h5"
    with powerd(SOURCE) as (url, _):
        done = subprocess.run(
            [sys.executable, "-c", TRAINER, url, str(out), str(error)],
            capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "trained\n")
    with pytest.raises(OSError, match="Read-only file system"):
        (place / "more").touch()
    told = done.stderr.splitlines()
    assert len(told) == 2, told
    cause = "the journal cannot be written (Read-only file system): readings wait in memory and in powerd"
    assert told[0] == f"powerd: {cause}"
    assert "the end of the run could not be written into" in told[1]
    assert told[1].endswith(f"see to the disk, then: joules journal recover {out}")
    report = recover(out, tmp_path / "saved.h5")
    assert [f for f in verify_file(report.out) if f.state == "wrong"] == []
    with h5py.File(report.out) as file:
        kinds = file["phases/kinds"].asstr()[:]
        names = [kinds[k] for k in file["phases/kind"][:]]
        assert sum('"forward"' in name for name in names) >= 30
        line = next(iter(file["lines"].values()))
        assert len(line["t_ns"]) > 100
        assert not file["gaps/lost"][:-1].any()
