"""powerd, its accounting and a recording, each a process: the seconds are the run file's joules, over a kill -9 too."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from powerd_analytics.energy.devices import load_parts
from powerd_analytics.frame.job_totals import JobRequest, job_files, job_totals
from powerd_analytics.runs.run import read_run
from powerd_analytics.runs.wall_clock import needed_wall_clock
from powerd_client import Meter
from powerd_client.accounting.store import NAME
from support.steady import wait_for

pytest.importorskip("duckdb")
ACCOUNTING = [sys.executable, "-P", "-m", "powerd_client.accounting.service"]
EXAMPLE = Path(__file__).parents[2] / "examples/cluster.sh"
SIM = '[server]\nlisten = "{url}"\nboard = "node"\n[[source]]\nname = "rails"\nkind = "sim"\n'


def asked(folder, sql, *values):
    with closing(sqlite3.connect(f"file:{folder / NAME}?mode=ro", uri=True)) as rows:
        return rows.execute(sql, values).fetchall()


def seconds_of(folder):
    """Seconds whose rows wait, or are those of devices already."""
    with suppress(sqlite3.OperationalError):  # it has only just begun
        return asked(folder, "SELECT count(DISTINCT second) FROM parts")[0][0]
    return 0


def free_port():
    """One whose successor is free as well."""
    while True:
        with socket.socket() as first, socket.socket() as second, suppress(OSError):
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            second.bind(("127.0.0.1", port + 1))
            return port


def say(spool, what, **environment):
    part = spool / "part"
    part.write_bytes(b"".join(f"{name}={value}\0".encode() for name, value in environment.items()))
    part.rename(spool / f"{time.time_ns()}.7.{what}")


def test_a_kill_in_the_middle_counts_nothing_twice_and_loses_nothing(tmp_path):
    url, folder, spool = f"ipc://{tmp_path}/powerd", tmp_path / "accounting", tmp_path / "spool"
    spool.mkdir()
    config = tmp_path / "powerd.toml"
    config.write_text(SIM.format(url=url))
    command = [*ACCOUNTING, url, "--folder", str(folder), "--spool", str(spool), "--node", "n1"]
    started = []

    def start(*words):
        with (tmp_path / "log").open("ab") as log:
            started.append(subprocess.Popen(words, stderr=log, start_new_session=True))
        return started[-1]

    try:
        start(sys.executable, "-P", "-m", "powerd_daemon", "run", "--config", str(config))
        wait_for((tmp_path / "powerd").exists)
        accounting = start(*command)
        wait_for(lambda: seconds_of(folder) > 3)
        say(spool, "begin", SLURM_JOB_ID=7, SLURM_JOB_USER="ana", SLURM_JOB_GPUS=0)
        with Meter(url, tmp_path / "run.h5", quiet=True):
            time.sleep(2.5)
            accounting.kill()
            assert accounting.wait() == -signal.SIGKILL
            before = seconds_of(folder)
            time.sleep(2.5)
            accounting = start(*command)
            wait_for(lambda: seconds_of(folder) > before + 6)  # of the seconds in which nobody counted, too
        say(spool, "end", SLURM_JOB_ID=7, SLURM_JOB_EXIT_CODE=0)
        accounting.send_signal(signal.SIGTERM)
        assert accounting.wait(60) == 0
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(60)
    (covered_s, missing_s, first, last, count) = asked(
        folder,
        "SELECT sum(time_s), sum(missing_s), min(second), max(second), count(DISTINCT second) FROM seconds",
    )[0]
    assert (missing_s, count) == (pytest.approx(0, abs=0.05), last - first + 1)
    assert last - first - 1 < covered_s < last - first + 1  # no second twice, none left out
    run = read_run(tmp_path / "run.h5")
    wall = needed_wall_clock(run)
    begin, end = (int(wall.unix_ns(np.array([t]))[0]) for t in (run.begin_ns, run.end_ns))
    whole = range(begin // 10**9 + 1, end // 10**9)
    edges = wall.host_ns(whole[0] * 10**9), wall.host_ns((whole[-1] + 1) * 10**9)
    (part,) = load_parts(run, "gpu0")
    recorded_j = sum(float(signal.integral().between(*edges)) for signal in part.signals)
    own = "SELECT sum(energy_j) FROM seconds WHERE job = 'slurm 7' AND second BETWEEN ? AND ?"
    assert len(whole) >= 5
    assert asked(folder, own, whole[0], whole[-1])[0][0] == pytest.approx(recorded_j, rel=1e-4)
    rows = {row["job"]: row for row in job_totals(job_files([str(tmp_path)]), JobRequest()).records()}
    assert (rows["slurm 7"]["user"], rows["slurm 7"]["exit"], rows["slurm 7"]["provenance"]) == (
        "ana",
        "0",
        "simulated",
    )
    assert rows["slurm 7"]["energy_j"] > recorded_j
    assert rows["no job"]["energy_j"] > 0


def test_the_example_of_a_cluster_counts_each_jobs_joules(tmp_path):
    """Those of its run file, and a little before and after: a job holds its GPU from prolog to epilog."""
    done = subprocess.run(
        [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--", "sh", str(EXAMPLE), str(tmp_path), "6"],
        capture_output=True, text=True, check=False,
        env=os.environ | {"PORT": str(free_port()), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    table = job_totals(job_files([str(tmp_path / "nodes")]), JobRequest(("account",)))
    energy_j = {row["account"]: row["energy_j"] for row in table.records()}
    for account, run in (("vision", "run.h5"), ("speech", "run-2.h5")):
        read = read_run(tmp_path / run)
        (part,) = load_parts(read, "gpu0")
        recorded_j = sum(float(signal.integral().between(read.begin_ns, read.end_ns)) for signal in part.signals)
        assert energy_j[account] > 0.98 * recorded_j > 100
