"""The hold of a job's ranks, all in this process: a dictionary stands for torch's store, and holds that keep a list."""

import pytest

from powerd_client.knobs import job_hold
from powerd_client.knobs.job_hold import JobHold
from powerd_core.errors import ControlDenied, ControlError
from support.steady import wait_for


class Store(dict):
    """What is told; with ``is_gone`` nobody answers."""

    is_gone = False

    def set(self, key, value):
        self[key] = value

    def get(self, key):
        return self[key]

    def check(self, keys):
        if self.is_gone:
            raise ConnectionError
        return all(key in self for key in keys)


class Held:
    """Stands for the hold of one rank's devices."""

    settle_s = 0.0

    def __init__(self, devices, refusal=None):
        self.devices, self.refusal, self.levels = list(devices), refusal, []
        self.problem, self.is_held = "", False

    def acquire(self):
        if self.devices and isinstance(self.refusal, Exception):
            raise self.refusal
        self.is_held = bool(self.devices)
        return self

    def set(self, power_cap_w):
        if power_cap_w == self.refusal:
            return False
        self.levels.append(power_cap_w)
        return True

    def release(self):
        self.is_held = False


class Job:
    """The ranks of a job, each with what it holds; ``places`` says whom each asks."""

    def __init__(self, monkeypatch, *places, refusals=(), ranges=()):
        self.store, self.held = Store(), [[] for _ in places]
        self.holds = []
        for rank, place in enumerate(places):
            refusal = dict(refusals).get(rank)
            monkeypatch.setenv("POWERD_CONTROL", place)

            def make_hold(devices, rank=rank, refusal=refusal):
                self.held[rank].append(Held(devices, refusal))
                return self.held[rank][-1]

            hold = JobHold(self.store, rank, len(places), make_hold, "power_cap_w")
            levels = dict(ranges).get(rank, (100.0, 260.0))

            def reach(levels=levels):
                if isinstance(levels, Exception):
                    raise levels
                return (["gpu0", "gpu1"], *levels)

            hold.offer(reach)
            self.holds.append(hold)

    @property
    def first(self):
        return self.holds[0]

    def devices(self):
        return [held[-1].devices for held in self.held]

    def end(self):
        for hold in self.holds:
            hold.release()
        assert not any(hold.is_held for held in self.held for hold in held)


def test_each_device_is_held_once_and_all_follow_the_first(monkeypatch):
    """Ranks 0 and 1 share a machine, and see the same GPUs; rank 2 is elsewhere."""
    job = Job(monkeypatch, "here", "here", "there")
    assert job.first.reach() == (["gpu0", "gpu1"], 100.0, 260.0)
    job.first.acquire()
    wait_for(lambda: job.first.is_set)
    assert job.first.set(power_cap_w=150.0)
    wait_for(lambda: job.first.is_set)
    assert job.devices() == [["gpu0", "gpu1"], [], ["gpu0", "gpu1"]]
    assert [held[-1].levels for held in job.held] == [[150.0], [], [150.0]]
    assert [held[-1].is_held for held in job.held] == [True, False, True]
    job.first.release()
    wait_for(lambda: not job.held[2][-1].is_held)
    assert not job.holds[2].is_failure, "the training has ended"
    job.end()


def end_of(job, rank):
    """Why the hold has ended on a rank."""
    wait_for(lambda: job.holds[rank].problem and not job.held[rank][-1].is_held)
    assert job.holds[rank].is_failure
    return job.holds[rank].problem


@pytest.mark.parametrize("refusal", [ControlDenied("held by ada"), 150.0])
def test_where_one_rank_is_refused_all_let_go(monkeypatch, refusal):
    job = Job(monkeypatch, "here", "there", refusals=[(1, refusal)])
    job.first.reach()
    job.first.acquire()
    if refusal == 150.0:
        wait_for(lambda: job.first.is_set)
        assert job.first.set(power_cap_w=150.0)
    assert end_of(job, 0).startswith("rank 1: ")
    assert end_of(job, 0) == end_of(job, 1)
    assert not job.first.set(power_cap_w=140.0)
    job.end()


def test_where_the_first_rank_is_refused_nobody_is_asked(monkeypatch):
    job = Job(monkeypatch, "here", "there", refusals=[(0, 150.0)])
    job.first.reach()
    job.first.acquire()
    assert not job.first.set(power_cap_w=150.0)
    assert job.first.set(power_cap_w=160.0)
    wait_for(lambda: job.first.is_set)
    assert job.held[1][-1].levels == [160.0]
    job.end()


def test_a_lease_that_ends_on_one_rank_ends_on_all(monkeypatch):
    job = Job(monkeypatch, "here", "there")
    job.first.reach()
    job.first.acquire()
    wait_for(lambda: job.first.is_set)
    job.held[1][-1].problem = "the helper has ended"
    assert end_of(job, 0) == "rank 1: the helper has ended"
    job.end()


def test_where_the_store_is_gone_every_rank_lets_go(monkeypatch):
    job = Job(monkeypatch, "here", "there")
    job.first.reach()
    job.first.acquire()
    wait_for(lambda: job.first.is_set)
    job.store.is_gone = True
    assert all("cannot be reached" in end_of(job, rank) for rank in (0, 1))
    job.end()


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([(1, ControlError("no helper answers"))], "^rank 1: no helper answers$"),
        ([(1, (120.0, 300.0))], "no common range"),
    ],
)
def test_what_one_rank_cannot_hold_none_holds(monkeypatch, ranges, message):
    job = Job(monkeypatch, "here", "there", ranges=ranges)
    with pytest.raises(ControlError, match=message):
        job.first.reach()
    job.end()


def test_a_rank_that_takes_no_part_is_named(monkeypatch):
    job = Job(monkeypatch, "here", "there")
    del job.store["offer/1"]
    assert job.first.reach() is None
    monkeypatch.setattr(job_hold, "JOIN_S", 0.0)
    with pytest.raises(ControlError, match="rank 1 takes no part"):
        job.first.reach()
    job.end()
