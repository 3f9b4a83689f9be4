"""What release 0.1.0 left behind still opens: the journal of a run whose recorder was killed, and a powerd's spool.

Run files of it are held by test_truth.py. Both were kept of one run in which `kill -9` ended recorder and training, and
then powerd (tests/data/README.md).
"""

import subprocess
import sys
import tarfile
from pathlib import Path

import h5py
import pytest

from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.run import read_run
from support.steady import wait_for

KEPT = Path(__file__).parents[1] / "data/release-0.1.0/kept.tar.gz"
SCANS, LINES = 423, 8


@pytest.fixture
def kept(tmp_path):
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def readings(path):
    with h5py.File(path) as file:
        return sum(len(line["t_ns"]) for line in file["lines"].values())


def test_a_journal_becomes_a_run_file(kept):
    run = read_run(kept / "lost.h5")
    assert run.attributes["powerd_version"] == "0.1.0"
    (device,) = {row.device for row in phase_table(run).phases}
    assert device == "gpu0"
    by_name = {row.phase: row for row in phase_table(run).phases}
    assert by_name["forward"].n == 8
    assert by_name["forward"].j_per_batch == pytest.approx(19.6, abs=by_name["forward"].u95_j)
    assert readings(kept / "lost.h5") == SCANS * LINES


def recover(kept, out, *options):
    command = [sys.executable, "-m", "powerd_analytics", "journal", "recover", kept / "lost.h5.journal", "-o", out]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    return readings(out)


def test_a_spool_still_gives_what_a_journal_lacks(kept):
    journal = kept / "lost.h5.journal" / "journal.bin"
    journal.write_bytes(journal.read_bytes()[:14_000])
    few = recover(kept, kept / "part.h5")
    url, config = f"ipc://{kept}/powerd", kept / "powerd.toml"
    config.write_text(config.read_text().replace("tcp://127.0.0.1:7399", url))
    command = [sys.executable, "-m", "powerd_daemon", "run", "--config", config, "--spool", kept / "spool"]
    daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for((kept / "powerd").exists)
        whole = recover(kept, kept / "whole.h5", "--from", url)
    finally:
        daemon.terminate()
        daemon.wait()
    # The run's phases end after 2 s: up to there the spool fills what the journal lacks.
    assert few < 60 * LINES
    assert 75 * LINES < whole < 100 * LINES
