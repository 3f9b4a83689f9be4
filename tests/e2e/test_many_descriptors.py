"""A training that holds more descriptors than `select` can name records as any other."""

import resource
import subprocess
import sys

import pytest

from powerd_client import open_run

TRAINING = """
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
assert max(kept) > 1024
from powerd_client import Meter
with Meter(out=sys.argv[1], overwrite=True) as meter:
    for _ in range(5):
        with meter.phase("step"):
            pass
assert os.open("/dev/null", os.O_RDONLY) > 1024, "they were held all the time"
"""


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2048, reason="no more than these may be opened")
def test_a_meter_above_1024_descriptors(tmp_path):
    out = tmp_path / "run.h5"
    done = subprocess.run([sys.executable, "-c", TRAINING, str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with open_run(out) as run:
        assert len(run["phases/begin_ns"]) == 5
        assert run.attrs["complete"]
