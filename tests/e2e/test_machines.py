"""A training over two machines, with what torchrun puts into the environment: two recorders, two files, one job."""

import os
import subprocess
import sys

import pytest

from powerd_analytics.frame.figures import of_kind, rows_of
from powerd_analytics.frame.trainings import read_runs
from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.run import read_run

# Without torch: its import takes each rank longer than all the rest.
RANK = """
import os, time
from pathlib import Path
from powerd_client import Meter
with Meter(out="run.h5") as meter, meter.phase("training", batch_size=16):
    Path("met" + os.environ["RANK"]).touch()
    while len(list(Path().glob("met*"))) < 4:  # as init_process_group does
        time.sleep(0.01)
    for _ in range(4):
        with meter.phase("iteration"):
            time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    path = tmp_path_factory.mktemp("machines")
    (path / "train.py").write_text(RANK)
    unset = ("POWERD_RUN", "POWERD_JOB", "TORCHELASTIC_ERROR_FILE")
    environment = {k: v for k, v in os.environ.items() if k not in unset and not k.startswith("SLURM_")}
    environment |= {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    environment |= {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-P", "train.py"], cwd=path, stderr=subprocess.PIPE,
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "GROUP_RANK": str(rank // 2)},
        )
        for rank in range(4)
    ]  # fmt: skip
    said = "".join(rank.communicate(timeout=110)[1].decode() for rank in ranks)
    # On a busy machine one waits for the other's recording long enough to say so.
    assert [line for line in said.splitlines() if "waits for local rank 0" not in line] == []
    assert [rank.returncode for rank in ranks] == [0] * 4
    return [path / "run.h5", path / "run.node1.h5"]


def test_the_files_say_of_which_job_they_are(files):
    runs = [read_run(p) for p in files]
    assert [sorted(p["rank"] for p in r.processes) for r in runs] == [[0, 1], [2, 3]]
    for run in runs:
        assert run.environment["job"] == "torchrun none at 10.0.0.1:29500"
        assert run.environment["machines"] == "2"


def test_the_job_is_the_sum_of_both_files_devices(files):
    frame = read_runs(files)
    devices = [row for p in files for row in phase_table(read_run(p)).runs]
    assert len(devices) == 2
    totals = [row.energy_j for p in files for row in phase_table(read_run(p)).totals]
    (total,) = rows_of(of_kind(frame, "total"))
    assert total["energy_j"] == pytest.approx(sum(totals), rel=1e-9)
    assert (total["ranks"], total["machines"], total["job_machines"]) == (4, 2, 2)
    assert of_kind(frame, "run")["energy_j"].tolist() == pytest.approx([row.energy_j for row in devices], rel=1e-9)
    assert sorted(set(of_kind(frame, "rank")["rank"])) == [0, 1, 2, 3]
    assert "machines have the same host name" in total["note"]  # which is true of this test
