"""Ranks as their launcher names them, and how those of one machine meet in one recording."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from powerd_client import open_run
from powerd_client.journals import ranks
from powerd_client.journals.marks import MarkWriter
from powerd_client.journals.ranks import APPEAR_S, CLOSE_S, JOIN_S, Rendezvous, rank_here, training_here
from powerd_client.runs import build
from powerd_core.errors import ConfigError, PeerError, PeerTimeout
from support import small_run

FOUR = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1"}


def rank(number, ranks=2, **more):
    names = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return rank_here({**{k: str(v) for k, v in names.items()}, "POWERD_JOB": "this", **more})


class TestEnvironment:
    def test_what_torchrun_sets(self):
        found = rank_here(FOUR)
        assert found.about == {"rank": 5, "local_rank": 1, "world_size": 8}
        assert found.file_of(Path("a/run.h5")) == Path("a/run.node1.h5")

    def test_the_first_machine_keeps_the_name_and_a_restart_does_not_meet_the_file_before(self):
        assert rank(0).file_of(Path("run.h5")) == Path("run.h5")
        assert rank(0, TORCHELASTIC_RESTART_COUNT="2").file_of(Path("run.h5")) == Path("run.restart2.h5")

    @pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
    def test_without_all_of_them_a_process_is_alone(self, name):
        assert rank_here({k: v for k, v in FOUR.items() if k != name}) is None
        assert rank_here({**FOUR, name: ""}) is None

    @pytest.mark.parametrize(
        ("name", "value"), [("RANK", "two"), ("LOCAL_RANK", "\x1b[2J"), ("RANK", "8"), ("LOCAL_WORLD_SIZE", "1")]
    )
    def test_values_that_cannot_be(self, name, value):
        with pytest.raises(ConfigError, match=f"{name}="):
            rank_here({**FOUR, name: value})

    def test_launches_differ(self):
        def launch(**more):
            return rank_here({**FOUR, **more}).launch

        torchrun = {"TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29500"}
        once = {"TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_a/none_x/attempt_0/{}/error.json"}
        again = {"TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_b/none_y/attempt_0/{}/error.json"}

        def under_torchrun(files, local):
            return launch(**torchrun, LOCAL_RANK=str(local), **{k: v.format(local) for k, v in files.items()})

        assert under_torchrun(once, 0) == under_torchrun(once, 1)
        assert under_torchrun(once, 0) != under_torchrun(again, 0)
        assert launch(MASTER_PORT="1") == launch(MASTER_PORT="1", LOCAL_RANK="2")
        assert launch(MASTER_PORT="1") != launch(MASTER_PORT="2")
        assert launch(SLURM_JOB_ID="7", SLURM_STEP_ID="0") != launch(SLURM_JOB_ID="7", SLURM_STEP_ID="1")
        assert launch(POWERD_JOB="mine", MASTER_PORT="1") == "mine"


class TestTraining:
    """What is the same on all machines of one training."""

    TORCHRUN: ClassVar = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}

    def test_torchrun(self):
        found = training_here({**self.TORCHRUN, "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "RANK": "3"})
        assert found == {"job": "torchrun none at 10.0.0.1:29500", "machines": "2"}


class Later:
    """A clock that something happens on, when it gets there."""

    def __init__(self, **events):
        self.now_s = 0.0
        self.events = sorted((float(k.strip("at_").replace("_", ".")), do) for k, do in events.items())

    def sleep(self, seconds):
        self.now_s += max(seconds, 0.1)
        while self.events and self.events[0][0] <= self.now_s:
            self.events.pop(0)[1]()


@pytest.fixture(autouse=True)
def _nothing_opened(monkeypatch):
    monkeypatch.setattr(ranks, "_opened", {})


@pytest.fixture
def at(monkeypatch):
    """Has things happen at their times, on a clock that goes on while somebody waits."""

    def make(**events):
        later = Later(**events)
        monkeypatch.setattr(ranks, "monotonic", lambda: later.now_s)
        monkeypatch.setattr(ranks, "sleep", later.sleep)
        return later

    return make


def meet(out, number, **more):
    ranks._opened.clear()  # each stands for a process of its own
    return Rendezvous(out, rank(number, **more))


class TestJoining:
    def test_a_journal_of_an_earlier_job_is_not_joined(self, tmp_path, at):
        later = at()
        earlier = meet(tmp_path / "run.h5", 0, POWERD_JOB="earlier")
        small_run.claim_journal(earlier.out)
        earlier.announce(ready=True)
        with pytest.raises(PeerTimeout):
            meet(tmp_path / "run.h5", 1).join(overwrite=False)
        assert later.now_s > JOIN_S

    def test_a_run_that_was_numbered_is_found(self, tmp_path, at):
        at()
        (tmp_path / "run.h5").touch()
        first = meet(tmp_path / "run.h5", 0)
        first.use(tmp_path / "run-2.h5")
        small_run.claim_journal(first.out)
        first.announce(ready=True)
        ranks._opened.clear()
        other = Rendezvous(tmp_path / "run.h5", rank(1), is_numbered=True)
        other.join(overwrite=False)
        assert other.journal == first.journal

    def test_local_rank_0_that_gives_up_is_not_waited_for(self, tmp_path, at):
        later = at(at_1=lambda: (small_run.claim_journal(first.out), first.announce(ready=False)),
                   at_3=lambda: [p.unlink() for p in first.journal.iterdir()])  # fmt: skip
        first = meet(tmp_path / "run.h5", 0)
        with pytest.raises(PeerError):
            meet(tmp_path / "run.h5", 1).join(overwrite=False)
        assert later.now_s < 5


class TestTheEnd:
    def first(self, tmp_path, ranks=2):
        found = Rendezvous(tmp_path / "run.h5", rank(0, ranks))
        small_run.claim_journal(found.out)
        return found

    def test_it_waits_for_marks_that_are_open(self, tmp_path, at, capfd):
        later = at(at_10=lambda: [other.close()])
        first = self.first(tmp_path)
        other = MarkWriter(first.journal, about=rank(1).about)
        assert first.await_others() == []
        assert 10 <= later.now_s < 11
        assert capfd.readouterr().err.startswith(f"powerd: waiting for rank 1 (process {os.getpid()})")

    def test_but_not_for_ever(self, tmp_path, at):
        later = at()
        first = self.first(tmp_path)
        other = MarkWriter(first.journal, about=rank(1).about)
        (note,) = first.await_others()
        assert note.startswith(f"rank 1 (process {os.getpid()}) had not closed its Meter")
        assert later.now_s < CLOSE_S + 1
        other.close()

    def test_nor_for_a_rank_that_is_dead(self, tmp_path, at):
        at()
        first = self.first(tmp_path)
        MarkWriter(first.journal, about=rank(1).about).close()
        (names,) = first.journal.glob("*.names")
        done = subprocess.Popen(["true"])
        done.wait()
        line = names.read_text().splitlines()[0].replace(str(os.getpid()), str(done.pid))
        names.write_text(line + "\n")
        assert first.await_others() == []

    def test_a_rank_that_makes_no_meter_is_waited_for_only_in_the_beginning(self, tmp_path, at):
        later = at()
        first = self.first(tmp_path, ranks=3)
        MarkWriter(first.journal, about=rank(1, 3).about).close()
        MarkWriter(first.journal).close()  # a counter of pmlib's: no rank
        assert first.await_others() == ["local rank 2 made no Meter: its phases are not in this run"]
        assert APPEAR_S <= later.now_s < APPEAR_S + 1


def built(tmp_path, *closed):
    """A run file of ranks of which only some closed their marks."""
    out = tmp_path / "run.h5"
    pieces = small_run.whole()
    journal = small_run.make_journal(out, pieces, marks=False)
    for number, is_closed in enumerate(closed):
        writer = MarkWriter(journal, about=rank(number, len(closed)).about)
        writer.identify([{"index": 0, "uuid": f"GPU-{number:08d}-0000-0000-0000-000000000000", "pci": ""}])
        if is_closed:
            writer.close()
        else:
            os.close(writer._names)
            writer._segment = None
    build.build_run(journal, out)
    with open_run(out) as file:
        texts = [json.loads(m)["text"] for m in file["messages"].asstr()]
        return [json.loads(p) for p in file["processes"].asstr()], [t for t in texts if "rank" in t]


def test_the_run_file_says_who_its_processes_were_and_who_died(tmp_path):
    processes, texts = built(tmp_path, True, False)
    shown = {p["rank"]: (p["local_rank"], p["world_size"], p["devices"]) for p in processes}
    assert shown[1] == (1, 2, [{"index": 0, "uuid": "GPU-00000001-0000-0000-0000-000000000000", "pci": ""}])
    assert sorted(shown) == [0, 1]
    assert texts == [f"rank 1 (process {os.getpid()}) ended without closing its Meter"]


RANKS = """
import os, signal, sys, time
from powerd_client import Meter
out, do = sys.argv[1:]
pids = []
for rank in range(3):
    pid = os.fork()
    if pid == 0:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
        with Meter(out=out) as meter:
            with meter.phase("iteration"):
                time.sleep(0.1)
                meter.event("lease", watts=200 + rank, why="x" * 3000)
                if rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(0.1 * rank)
            meter.result(top1=0.5 + rank)
        os._exit(0)
    pids.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])
"""


def test_a_rank_that_is_killed_leaves_the_others_whole(tmp_path):
    """Real processes, recorder and all: rank 2 closes after local rank 0, and is not cut."""
    hidden = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "POWERD_RUN")
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    done = subprocess.run(
        [sys.executable, "-P", "-c", RANKS, tmp_path / "run.h5", ""],
        capture_output=True, text=True, env=environment, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == f"{[0, -signal.SIGKILL, 0]}\n", done.stderr
    with open_run(tmp_path / "run.h5") as file:
        ranks = [json.loads(p)["rank"] for p in file["processes"].asstr()]
        cut = {ranks[p]: bool(c) for p, c in zip(file["phases/process"][:], file["phases/cut"][:], strict=True)}
        texts = [json.loads(m)["text"] for m in file["messages"].asstr()]
        events = file["events"]
        t_ns, names = events["t_ns"][:].tolist(), events["name"].asstr()[:].tolist()
        values = [json.loads(v) for v in events["values"].asstr()]
        said = {(ranks[p], name): v for p, name, v in zip(events["process"][:], names, values, strict=True)}
        begun = {ranks[p]: t for p, t in zip(file["phases/process"][:], file["phases/begin_ns"][:], strict=True)}
        assert file.attrs["complete"] == 1
    leases = {rank: {"watts": 200 + rank, "why": "x" * 3000} for rank in range(3)}
    assert {rank: v for (rank, name), v in said.items() if name == "lease"} == leases  # that of the dead one too
    assert {rank: v for (rank, name), v in said.items() if name == "result"} == {0: {"top1": 0.5}, 2: {"top1": 2.5}}
    assert t_ns == sorted(t_ns)
    assert min(t_ns) > max(begun.values()) - 90_000_000  # each on the clock of the phases
    assert cut == {0: False, 1: True, 2: False}
    assert [t for t in texts if "without closing" in t and t.startswith("rank 1 ")]
