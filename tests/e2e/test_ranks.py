"""Ranks of a DDP training: real processes over gloo, a real recorder, and every joule counted once."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from powerd_analytics.cli.info import describe_run, run_document
from powerd_analytics.frame.figures import frame_of
from powerd_analytics.output.export import to_markdown
from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.ranks import ranks_of
from powerd_analytics.runs.run import read_run
from powerd_analytics.views.layouts import run_tables

PROGRAM = Path(__file__).parent / "ddp_training.py"


RANKS = 2


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Under `joules record` and DDP: every rank joins."""
    path = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    unset = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "POWERD_RUN", "GROUP_RANK")
    environment = {k: v for k, v in os.environ.items() if k not in unset}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    python = [sys.executable, "-P"]
    done = subprocess.run(
        [*python, "-m", "powerd_analytics", "record", "--output", "run.h5", "--", *python, str(PROGRAM)],
        cwd=path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} has trained" for rank in range(RANKS)]
    assert "powerd:" not in done.stderr
    assert not list(path.glob("*.journal"))
    return read_run(path / "run.h5")


def test_every_rank_is_a_process_of_the_run(run):
    found, devices = ranks_of(run).ranks, tuple(run.devices)
    assert [(r.rank, r.devices) for r in found] == [(i, devices) for i in range(RANKS)]
    assert {p["world_size"] for p in run.processes} == {RANKS}
    assert len({p["pid"] for p in run.processes}) == RANKS
    assert run.is_complete
    assert not [m for m in run.messages if m["level"] in ("warning", "error")]
    assert not run.phases.cut.any()


def test_phases_and_rest_are_the_iteration_on_every_rank(run):
    p, tracks = run.phases, ranks_of(run).tracks(run)
    names = np.array([c.name for c in p.classes])[p.label]
    for rank in range(RANKS):
        iterations = np.flatnonzero((tracks == rank) & (names == "iteration"))
        assert len(iterations) == 4
        for i in iterations:
            inner = np.flatnonzero(p.parent == i)
            assert list(names[inner]) == ["forward", "backward", "update"]
            assert (tracks[inner] == rank).all()
            begins, ends = p.begin_ns[inner], p.end_ns[inner]
            rest = np.append(begins, p.end_ns[i]) - np.insert(ends, 0, p.begin_ns[i])
            assert (rest >= 0).all()
            assert (ends - begins).sum() + rest.sum() == p.end_ns[i] - p.begin_ns[i]


def test_communication_is_beside_them(run):
    tracks = ranks_of(run).tracks(run)
    beside = np.array([c.overlaps for c in run.phases.classes])[run.phases.label]
    assert set(tracks[beside]) == set(range(RANKS))
    assert (run.phases.parent[beside] == -1).all()


@pytest.fixture(scope="module")
def table(run):
    return phase_table(run)


def test_commands_show_ranks(run, table):
    info = list(describe_run(run_document(run)))
    assert [line.split("): ")[1] for line in info if line.startswith("  rank ")] == ["1/2 of cpu0"] * 2
    text = to_markdown(run_tables(frame_of(run, table)))
    assert "mean per rank: each of 2 has 1/2 of the device's power" in text
