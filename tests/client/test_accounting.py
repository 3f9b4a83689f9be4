"""Joules by second, device and job: the sum is the integral of the same frames, whatever happens to who counts them."""

import json
import os
import sqlite3
import subprocess
import threading
import time
from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_client.accounting.jobs import NOBODY, PROCESSES, CpuTimes, HeldJob, JobBook, began_utc_ns
from powerd_client.accounting.seconds import BRIDGED_NS, SECOND_NS, Reported, SecondsIntegral, position_of, restore
from powerd_client.accounting.service import MODELLED_SHARE, arguments, parts_of, run, told_states, wanted_lines
from powerd_client.accounting.store import DAY_S, NAME, SHARE, WHOLE, Part, State, Store
from powerd_client.host.job_identity import JobIdentity
from powerd_client.signals.signal import Readings, RunLine, make_signal
from powerd_core.errors import ConfigError, PowerdError
from powerd_core.model import (
    Block,
    Column,
    CounterConversion,
    Description,
    Device,
    Flag,
    Gap,
    Line,
    Provenance,
    QuantityConversion,
    Stream,
)
from support.fake_daemon import PERIOD_NS, make_block, make_description, make_stream

UTC_NS = 1_790_000_000 * SECOND_NS
EPOCH = 7
GPU = "gpu0.rail_0"


def readings_of(description, events):
    """All readings of the first line, as they were in the frames."""
    stream = description.streams[0]
    blocks = [e for e in events if isinstance(e, Block)]
    t_ns, flags, codes = [], [], []
    for block in blocks:
        n = block.count
        lines = len(stream.lines)
        t_ns += np.frombuffer(block.payload, "<i8", n).tolist()
        flags += np.frombuffer(block.payload, "<u2", n * lines, 8 * n + 4 * n * lines)[::lines].tolist()
        codes += np.frombuffer(block.payload, "<u4", n * lines, 8 * n + 6 * n * lines)[::lines].tolist()
    return Readings(np.array(t_ns), np.array(flags, np.uint16), {"power_mw": np.array(codes, np.uint32)})


def expected(description, events):
    """Joules and missing seconds of the first line by the integral of a run file, but for what long holes leave out."""
    stream = description.streams[0]
    signal = make_signal(RunLine.of(stream.lines[0], stream, "b"), readings_of(description, events))
    signal = replace(signal, spacing_ns=float(PERIOD_NS))
    dt_ns, missing_ns, integral = np.diff(signal.t_ns), signal.missing_ns(), signal.integral()
    is_out = (missing_ns > 0) & (dt_ns > BRIDGED_NS)
    each_j = integral.between(signal.t_ns[:-1], signal.t_ns[1:])
    whole_j = float(integral.between(signal.t_ns[0], signal.t_ns[-1]))
    missing_s = float(np.where(is_out, dt_ns, missing_ns).sum()) * 1e-9
    return whole_j - float(each_j[is_out].sum()), missing_s, float(signal.t_ns[-1] - signal.t_ns[0]) * 1e-9


def timed_block(stream, epoch, number, t_ns, powers_mw, flags):
    """Scans of one line at these times."""
    n = len(t_ns)
    arrays = array("q", t_ns), array("i", [0] * n), array("H", flags), array("I", powers_mw)
    payload = b"".join(a.tobytes() for a in arrays)
    return Block(stream.number, epoch, number, t_ns[0], t_ns[-1], n, stream.layout, payload)


@st.composite
def streams(draw, epoch=EPOCH, begin_ns=10**9):
    """Frames of one line: blocks of some readings, bad ones among them, and losses of milliseconds and of seconds."""
    stream, at, events = make_stream(lines=1), begin_ns, []
    for number in range(draw(st.integers(3, 8))):
        if number and draw(st.integers(0, 3)) == 0:
            lost_ns = draw(st.sampled_from([3 * PERIOD_NS, 40 * PERIOD_NS, 2 * SECOND_NS, 700 * SECOND_NS]))
            events.append(Gap(0, epoch, len(events), at, at + lost_ns, 1, -1, "lost"))
            at += lost_ns
        n = draw(st.integers(25, 40))
        powers = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 300_000, n).tolist()
        bad = draw(st.sets(st.integers(1, n - 2), max_size=2))
        flags = [int(Flag.IO_ERROR) if i in bad else 0 for i in range(n)]
        t_ns = [at + i * PERIOD_NS for i in range(n)]
        events.append(timed_block(stream, epoch, len(events), t_ns, powers, flags))
        at += n * PERIOD_NS
    return make_description(stream, epoch), events


def totals(rows):
    return (float(sum(r.energy_j.sum() for r in rows)), float(sum(r.missing_s.sum() for r in rows)),
            float(sum(r.time_s.sum() for r in rows)))  # fmt: skip


def known(description):
    """An integral whose lines know their usual spacing already, as after a minute."""
    integral = SecondsIntegral()
    integral.begin(description)
    for stream in integral.epochs[description.epoch].streams.values():
        for line in stream.lines.values():
            line.spacings.append((1 << 20, float(PERIOD_NS)))
    return integral


@settings(max_examples=25)
@given(streams(), st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(-(10**11), 10**11)), max_size=8))
def test_the_sum_of_seconds_is_the_integral_of_the_frames(made, steps):
    """However frames come, whenever who counts is started again from its position, whatever UTC does meanwhile."""
    description, events = made
    integral, rows, left = known(description), [], list(events)
    for count, is_restart, step_ns in [*steps, (len(events), False, 0)]:
        for event in left[:count]:
            integral.take(event)
        left = left[count:]
        counted, _ = integral.settle({EPOCH: UTC_NS + step_ns})
        rows += counted
        if is_restart:
            position = json.loads(json.dumps(position_of(integral.epochs[EPOCH].streams[0])))
            integral = SecondsIntegral()
            integral.begin(description)
            restore(integral.epochs[EPOCH].streams[0], position)
            left = [e for e in events if e.sequence >= position["next"]]  # powerd is asked to go on from there
            for event in events:  # and what comes again all the same is not counted
                if event.sequence < position["next"]:
                    integral.take(event)
    energy_j, missing_s, time_s = totals(rows)
    assert (energy_j, missing_s, time_s) == pytest.approx(expected(description, events), rel=1e-9, abs=1e-7)
    for row in rows:
        ends = row.begin_ns + np.round(row.time_s * 1e9).astype(np.int64)
        assert (np.diff(row.begin_ns) > 0).all()
        assert ((ends - 1) // SECOND_NS - row.second < 60).all()
        assert (row.missing_s <= row.time_s + 1e-9).all()


def test_rows_are_cut_at_seconds_and_where_somebody_takes_the_device():
    description = make_description(make_stream(), EPOCH)
    integral = known(description)
    integral.take(make_block(description.streams[0], EPOCH, 0, 0, [1000] * 2501))
    cut_ns = UTC_NS + 1_250_000_000
    rows, _ = integral.settle({EPOCH: UTC_NS}, lambda device: np.array([cut_ns]) if device == "gpu0" else None)
    assert (rows[0].begin_ns - UTC_NS).tolist() == [0, 10**9, 1_250_000_000, 2 * 10**9]
    assert rows[0].energy_j == pytest.approx([1, 0.25, 0.75, 0.5])
    assert rows[0].shared_j == pytest.approx(0.01 * rows[0].energy_j)


def test_a_counter_counts_on_through_a_hole():
    line = Line("gpu0.e", "gpu0", CounterConversion("power_mw", 0.5, 0.0, 32), Provenance.MEASURED)
    stream = Stream(0, "fake", (Column("power_mw", "I"),), (line,), PERIOD_NS)
    description = Description("b", "0", EPOCH, "", "tcp://*:1", (stream,), (Device("gpu0", ("gpu0.e",)),))
    integral = known(description)
    integral.take(make_block(stream, EPOCH, 0, 0, [2**32 - 10, 2**32 - 4]))
    integral.take(Gap(0, EPOCH, 1, 0, 0, 1, 9, "lost"))
    integral.take(make_block(stream, EPOCH, 2, 900 * 10**9, [6, 10]))
    rows, _ = integral.settle({EPOCH: UTC_NS})
    assert totals(rows) == pytest.approx((10, 900 - 2e-3, 900 + 1e-3), abs=2e-3)
    assert len(rows[0].energy_j) < 20  # a long hole comes in minutes


@given(st.integers(1, 100), st.integers(0, 2))
def test_a_silence_between_two_powerds_is_missing_and_what_comes_late_takes_it_back(seconds, late):
    stream = make_stream(lines=1)
    old, new = (make_description(stream, epoch) for epoch in (EPOCH, EPOCH + 1))
    offsets = {EPOCH: UTC_NS, EPOCH + 1: UTC_NS + 5 * 10**9}
    integral = known(old)
    blocks = [make_block(stream, EPOCH, i, i * 100 * PERIOD_NS, [1000] * 100) for i in range(3)]
    begin_ns = blocks[-1].t_last_ns + seconds * SECOND_NS
    first = make_block(stream, EPOCH + 1, 0, begin_ns - 5 * 10**9, [2000] * 100)
    integral.take(blocks[0])
    rows, _ = integral.settle(offsets)
    integral.begin(new)
    integral.take(first)
    more, _ = integral.settle(offsets)
    rows += more
    for block in blocks[1 : 1 + late]:
        integral.take(block)
    more, _ = integral.settle(offsets)
    rows += more
    there_s = (100 * (1 + late) - 1 + 99) * PERIOD_NS * 1e-9
    whole_s = (begin_ns + 99 * PERIOD_NS) * 1e-9
    energy_j, missing_s, time_s = totals(rows)
    assert energy_j == pytest.approx((100 * (1 + late) - 1) * 1e-3 + 99 * 2e-3)
    assert time_s == pytest.approx(whole_s)
    assert missing_s == pytest.approx(whole_s - there_s - PERIOD_NS * 1e-9, abs=1e-6)


# -- the store ---------------------------------------------------------------------------------------------------------


def book_of(*jobs):
    book = JobBook()
    book.add(jobs)
    return book


def held(number, begin_s, end_s=None, device="gpu0"):
    identity = JobIdentity("slurm", str(number), "n", f"user{number}", "acc", "gpu")
    end_ns = None if end_s is None else UTC_NS + int(end_s * 1e9)
    return HeldJob(identity, (device,), UTC_NS + int(begin_s * 1e9), end_ns)


class Machine:
    """A powerd's frames, and who counts them into a store: killed whenever a test likes."""

    def __init__(self, folder, description, events, book):
        self.folder, self.description, self.events, self.book = folder, description, events, book
        self.start()

    def start(self):
        self.store = Store(self.folder)
        self.integral = SecondsIntegral()
        self.store.load(self.integral)
        self.integral.begin(self.description)
        stream = self.integral.epochs[EPOCH].streams[0]
        self.at = stream.next or 0
        if stream.next is None:
            stream.lines[GPU].spacings.append((1 << 20, float(PERIOD_NS)))

    def take(self, count):
        for event in self.events[self.at : self.at + count]:
            self.integral.take(event)
        self.at += count

    def settle(self, *, fails=False):
        rows, _ = self.integral.settle({EPOCH: UTC_NS}, self.book.cuts)
        parts = [part for row in rows for part in parts_of(row, self.book)]
        if fails:  # the disk is full in the middle of the transaction
            parts.append(Part(0, "", "", "", object(), SHARE, 0, 0, 0, 0, 0))
        self.store.commit(self.integral, parts, [], self.book.jobs.values(), UTC_NS * 1e-9 + 40)

    def kill(self):
        self.store.close()
        self.start()


@settings(max_examples=8)
@given(streams(), st.lists(st.sampled_from(["take", "settle", "kill", "full"]), max_size=12))
def test_nothing_counts_twice_and_nothing_is_lost_unsaid(tmp_path_factory, made, steps):
    """By the sums that a job's row has, however often the one who counts is killed, and the disk is full."""
    description, events = made
    begin_ns = events[0].t_first_ns
    split_s = begin_ns * 1e-9 + 0.04
    book = book_of(held(1, 0, split_s), held(2, split_s))
    machine = Machine(tmp_path_factory.mktemp("store"), description, events, book)
    for step in steps:
        if step == "take":
            machine.take(2)
        elif step == "settle":
            machine.settle()
        elif step == "full":
            with pytest.raises(sqlite3.Error):
                machine.settle(fails=True)
            machine.kill()
        else:
            machine.kill()
        if step == "full" and len(machine.events) == machine.at:
            break
    machine.take(len(events))
    machine.settle()
    machine.store.fold_all()
    sums = "sum(energy_j), sum(missing_s), sum(time_s)"
    whole = expected(description, events)
    for table in ("seconds", "job_days"):
        assert machine.store.rows.execute(f"SELECT {sums} FROM {table}").fetchone() == pytest.approx(whole, abs=1e-6)
    by_job = dict(machine.store.rows.execute("SELECT job, sum(time_s) FROM job_days GROUP BY job").fetchall())
    assert by_job["slurm 1"] == pytest.approx(0.04, abs=1e-6)
    assert [job.key for job in machine.store.jobs()] == ["slurm 1", "slurm 2"]
    machine.store.close()


def test_powerd_and_who_counts_it_start_anew_together_and_the_silence_is_told_once(tmp_path):
    """Then the rest of the old powerd's frames comes, from its spool, to the next who counts."""
    stream = make_stream(lines=1)
    old, new = (make_description(stream, epoch) for epoch in (EPOCH, EPOCH + 1))
    blocks = [make_block(stream, EPOCH, i, i * SECOND_NS // 10, [1000] * 100) for i in range(3)]
    later = make_block(stream, EPOCH + 1, 0, 20 * SECOND_NS, [1000] * 100)
    offsets = {EPOCH: UTC_NS, EPOCH + 1: UTC_NS}
    for description, frames in ((old, blocks[:1]), (new, [later]), (new, blocks[1:])):
        store, integral = Store(tmp_path), SecondsIntegral()
        store.load(integral)
        integral.begin(description)
        for event in frames:
            integral.take(event)
        rows, _ = integral.settle(offsets)
        parts = [part for row in rows for part in parts_of(row, book_of())]
        store.commit(integral, parts, [], [], UTC_NS // SECOND_NS)
        store.close()
    store = Store(tmp_path)
    store.fold_all()
    sums = store.rows.execute("SELECT sum(energy_j), sum(time_s), sum(missing_s) FROM seconds").fetchone()
    whole_s = 20 + 99 * PERIOD_NS * 1e-9
    there_s = (299 + 99) * PERIOD_NS * 1e-9
    assert sums == pytest.approx((there_s, whole_s, whole_s - there_s - PERIOD_NS * 1e-9), abs=1e-6)
    store.close()


def test_a_store_that_is_none_is_refused_and_one_that_is_damaged_says_so(tmp_path):
    (tmp_path / NAME).write_bytes(b"x" * 4096)
    with pytest.raises(sqlite3.Error):
        Store(tmp_path)
    (tmp_path / NAME).unlink()
    with sqlite3.connect(tmp_path / NAME) as other:
        other.execute("CREATE TABLE theirs (a)")
    other.close()
    with pytest.raises(ConfigError, match="another program"):
        Store(tmp_path)
    (tmp_path / NAME).unlink()
    machine = Machine(tmp_path, make_description(make_stream(lines=1), EPOCH), [], book_of())
    machine.settle()
    machine.store.rows.execute("UPDATE positions SET position = '{}'")
    with pytest.raises(PowerdError, match="damaged"):
        machine.store.load(SecondsIntegral())
    machine.store.close()


def part(second, job="slurm 1", energy_j=100.0, counts=WHOLE, device="gpu0", line="l", **of):
    sums = {"shared_j": 0.02 * energy_j, "random_j2": 0.01, "time_s": 1.0, "missing_s": 0.0} | of
    return Part(second, line, device, "measured", job, counts, energy_j, **sums)


def test_lines_become_a_device_under_its_cap_and_its_idle_seconds_are_told(tmp_path):
    store, second = Store(tmp_path), UTC_NS // SECOND_NS
    parts = [part(second, line=line, missing_s=m) for line, m in (("a", 0.25), ("b", 0.5))]
    parts += [part(second + 1, line=line) for line in "ab"]
    states = [("gpu0", second - 5, State(300.0, True, None)), ("gpu0", second + 1, State(250.0, False, "ana"))]
    store.commit(SecondsIntegral(), parts, states, [held(1, 0)], second + 100)
    rows = store.rows.execute("SELECT energy_j, missing_s, time_s, cap_w, is_idle, lease FROM seconds").fetchall()
    assert rows == [(200, 0.5, 1, 300, 1, None), (200, 0, 1, 250, 0, "ana")]
    day = store.rows.execute("SELECT energy_j, shared_j, idle_j, idle_s, known_s FROM job_days").fetchone()
    assert day == pytest.approx((400, 2 * 2 * 2**0.5, 200, 0.5, 1.5))
    store.close()
    again = Store(tmp_path)
    assert again.states.at("gpu0", second + 7) == State(250.0, False, "ana")
    assert again.states.at("gpu1", second) == State()
    again.close()


# -- who held what -----------------------------------------------------------------------------------------------------


def spooled(folder, name, **environment):
    (folder / name).write_bytes(b"".join(f"{k}={v}".encode() + b"\0" for k, v in environment.items()))


def test_prolog_and_epilog_say_who_holds_which_gpu(tmp_path):
    book = JobBook()
    of = {"SLURM_JOB_ID": 7, "SLURM_JOB_USER": "ana", "SLURM_JOB_GPUS": "0,2"}
    spooled(tmp_path, f"{UTC_NS}.7.begin", **of)
    (tmp_path / f"{UTC_NS}.8.begin").mkdir()
    (tmp_path / "notes").write_text("")
    book.read_spool(tmp_path)
    assert book.holders("gpu2", UTC_NS) == ("slurm 7",)
    assert (book.holders("gpu1", UTC_NS), book.holders("gpu0", UTC_NS - 1)) == ((), ())
    spooled(tmp_path, f"{UTC_NS + 5}.7.end", SLURM_JOB_ID=7, SLURM_JOB_EXIT_CODE=9)
    book.read_spool(tmp_path)
    assert book.holders("gpu0", UTC_NS + 5) == ()
    assert book.cuts("gpu0").tolist() == [UTC_NS, UTC_NS + 5]
    (job,) = book.take_changed()
    assert (job.exit, job.identity.user, HeldJob.of_row(job.row)) == ("9", "ana", job)
    again = book_of(HeldJob.of_row(job.row))  # the program begins anew, and reads the folder again
    again.read_spool(tmp_path)
    assert again.take_changed() == []
    spooled(tmp_path, f"{UTC_NS + 9}.7.begin", **of)  # it was queued again
    again.read_spool(tmp_path)
    assert again.holders("gpu0", UTC_NS + 10) == ("slurm 7",)


def test_without_a_prolog_the_programs_on_a_gpu_say_it():
    book, job = JobBook(), JobIdentity("pbs", "3")
    book.see({"gpu0": [job]}, UTC_NS)
    book.see({"gpu0": [job], "gpu1": [job]}, UTC_NS + 5 * SECOND_NS)
    book.see({}, UTC_NS + 9 * SECOND_NS)  # between two programs of a job
    assert book.holders("gpu1", UTC_NS + 8 * SECOND_NS) == ()
    book.see({"gpu1": [job]}, UTC_NS + 15 * SECOND_NS)
    assert book.holders("gpu1", UTC_NS + 15 * SECOND_NS) == ("pbs 3",)
    book.see({"gpu1": [JobIdentity("pbs", "4")]}, UTC_NS + 25 * SECOND_NS, {"pbs 4": UTC_NS + 16 * SECOND_NS})
    assert set(book.cuts("gpu1").tolist()) == {UTC_NS, UTC_NS + 16 * SECOND_NS}
    assert book.holders("gpu1", UTC_NS + 17 * SECOND_NS) == ("pbs 4",)
    known, _ = sorted(book.take_changed(), key=lambda job: job.key)
    assert abs(began_utc_ns(os.getpid()) - time.time_ns()) < 10**12
    assert (known.origin, known.end_ns, known.devices) == (PROCESSES, UTC_NS + 16 * SECOND_NS, ("gpu0", "gpu1"))
    book.see({}, UTC_NS + 60 * SECOND_NS)
    book.take_changed()
    book.forget(UTC_NS + 10**14)
    assert book.jobs == {}


def test_a_processor_is_parted_by_cpu_time_and_says_so():
    line = replace(make_stream(lines=1).lines[0], name="cpu0.pkg", device="cpu0", provenance=Provenance.MEASURED)
    stream = replace(make_stream(lines=1), lines=(line,))
    integral = known(make_description(stream, EPOCH))
    integral.take(make_block(stream, EPOCH, 0, 0, [1000] * 501))
    rows, _ = integral.settle({EPOCH: UTC_NS})
    book = book_of(held(1, 0), held(2, 0))
    book.share({"slurm 1": 3.0, "slurm 2": 1.0}, 8.0, UTC_NS + SECOND_NS)
    alone, *shares = parts_of(rows[0], book)
    assert (alone.job, alone.provenance, alone.energy_j) == (NOBODY, "measured", pytest.approx(0.5))
    assert {p.job: p.energy_j for p in shares} == pytest.approx({"slurm 1": 0.1875, "slurm 2": 0.0625, NOBODY: 0.25})
    assert {p.provenance for p in shares} == {MODELLED_SHARE}


def test_a_gpu_that_jobs_share_is_parted_evenly():
    description = make_description(make_stream(lines=1), EPOCH)
    integral = known(description)
    integral.take(make_block(description.streams[0], EPOCH, 0, 0, [1000] * 501))
    rows, _ = integral.settle({EPOCH: UTC_NS})
    _, *shares = parts_of(rows[0], book_of(held(1, 0), held(2, 0)))
    assert {p.job: p.energy_j for p in shares} == pytest.approx({"slurm 1": 0.25, "slurm 2": 0.25})


def test_cpu_time_is_that_of_the_control_group_or_of_programs(tmp_path):
    group = tmp_path / "system.slice/slurmstepd.scope/job_1"
    group.mkdir(parents=True)
    (tmp_path / "9").mkdir()
    times = CpuTimes(tmp_path, tmp_path)
    jobs = [held(1, 0), HeldJob(JobIdentity("pbs", "3"), (), 0)]
    hz = os.sysconf("SC_CLK_TCK")

    def used(usage_us, ticks, busy):
        (group / "cpu.stat").write_text(f"nr_periods 0\nusage_usec {usage_us}\n")
        (tmp_path / "9" / "stat").write_text("9 (a b) S " + " ".join("0" * 10) + f" {ticks} 0 0")
        (tmp_path / "stat").write_text(f"cpu {busy} 0 0 5 0 0 0 0 0 0\ncpu0 1\n")
        times.see("pbs 3", 9)
        return times.used(jobs)

    assert used(10**6, 0, 0) is None
    assert used(3 * 10**6, hz, 8 * hz) == (pytest.approx({"slurm 1": 2.0, "pbs 3": 1.0}), 8.0)


def test_only_what_counts_is_asked_for():
    side = [
        Line(f"gpu0.{name}", "gpu0", QuantityConversion("power_mw", kind, 1.0), Provenance.MEASURED)
        for name, kind in (("power_limit", "power_limit_w"), ("power_limit_requested", "power_limit_w"),
                           ("clock_events", "clock_events_bits"), ("temperature", "temperature_c"))
    ]  # fmt: skip
    stream = Stream(1, "side", (Column("power_mw", "I"),), tuple(side), PERIOD_NS)
    description = make_description(make_stream(), EPOCH)
    description = replace(description, streams=(*description.streams, stream))
    assert wanted_lines(description) == {GPU, "gpu0.rail_1", "gpu0.power_limit", "gpu0.clock_events"}
    integral = SecondsIntegral(wanted_lines)
    integral.begin(description)
    integral.take(replace(make_block(stream, EPOCH, 0, 0, [300, 250]), stream=1))
    _, reported = integral.settle({EPOCH: UTC_NS})
    assert {r.line.name: r.value.tolist() for r in reported} == {
        "gpu0.power_limit": [300, 250], "gpu0.clock_events": [300, 250],
    }  # fmt: skip


def test_what_channels_say_is_put_in_the_order_of_time():
    def said(name, kind, *values):
        line = Line(f"gpu0.{name}", "gpu0", QuantityConversion("code", kind, 1.0), Provenance.MEASURED)
        stream = Stream(1, "s", (Column("code", "I"),), (line,), PERIOD_NS, {"bits": {line.name: {"gpu_idle": 4}}})
        t_ns = UTC_NS + np.arange(len(values)) * SECOND_NS
        return Reported(RunLine.of(line, stream, "b"), t_ns, np.array(values, float))

    reported = [said("power_limit", "power_limit_w", 250, 250, 300), said("clock_events", "clock_events_bits", 4, 8, 8)]
    states, second = {"gpu0": State(None, None, "ana")}, UTC_NS // SECOND_NS
    told = list(told_states(reported, states))
    assert [entry[1] - second for entry in told] == [0, 0, 1, 2]
    assert told[2][2] == State(250.0, False, "ana")
    assert states["gpu0"] == State(300.0, False, "ana")


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def days():
    pytest.importorskip("pyarrow")
    from powerd_client.accounting import days

    return days


def table(path):
    import pyarrow.parquet as pq

    return pq.read_table(path).to_pylist()


DAY = UTC_NS // SECOND_NS // DAY_S
NOON = DAY * DAY_S + DAY_S // 2


def test_a_day_leaves_as_a_file_once_and_late_rows_in_another(tmp_path, days, monkeypatch):
    store, later = Store(tmp_path), (DAY + 1) * DAY_S + 700
    energies = np.random.default_rng(1).uniform(50, 600, 500)
    parts = [part(NOON + i, energy_j=float(e), missing_s=0.1234567) for i, e in enumerate(energies)]
    store.commit(SecondsIntegral(), parts, [], [held(1, 0, 60)], later)
    days.publish(store, tmp_path, "n1", NOON)
    assert not list((tmp_path / "seconds").iterdir())  # the day is not over
    with monkeypatch.context() as patch:  # it dies before the rows are deleted
        patch.setattr(Store, "transaction", lambda self: (_ for _ in ()).throw(sqlite3.OperationalError("killed")))
        with pytest.raises(sqlite3.Error):
            days.publish(store, tmp_path, "n1", later)
    assert len(list((tmp_path / "seconds").iterdir())) == 1
    days.publish(store, tmp_path, "n1", later)
    (file,) = (tmp_path / "seconds").iterdir()
    rows = table(file)
    assert [row["second"] for row in rows] == list(range(NOON, NOON + 500))
    assert sum(row["energy_j"] for row in rows) == pytest.approx(energies.sum(), abs=days.step_of(24.0))
    assert all(row["u95_j"] >= 1.96 * 0.02 * e for row, e in zip(rows, energies, strict=True))
    assert {(row["node"], row["job"], row["provenance"], row["cap_w"]) for row in rows} == {
        ("n1", "slurm 1", "measured", None)
    }
    assert store.rows.execute("SELECT count(*) FROM seconds").fetchone() == (0,)
    store.commit(SecondsIntegral(), [part(NOON + 900)], [], [], later)
    days.publish(store, tmp_path, "n1", later)
    assert len(list((tmp_path / "seconds").iterdir())) == 2
    (of_jobs,) = (tmp_path / "jobs").glob("2*")
    (job,) = table(of_jobs)
    assert (job["energy_j"], job["user"], job["gpus"]) == (pytest.approx(energies.sum() + 100), "user1", "gpu0")
    store.close()


def test_a_job_without_readings_has_its_row(tmp_path, days):
    store = Store(tmp_path)
    store.commit(SecondsIntegral(), [], [], [held(1, 0)], NOON)
    days.publish(store, tmp_path, "n1", NOON)
    (file,) = (tmp_path / "jobs").iterdir()
    (job,) = table(file)
    assert (job["job"], job["energy_j"], job["device"], job["end_s"]) == ("slurm 1", None, None, None)
    store.close()


def test_old_days_go_first_and_it_is_said(tmp_path, days, monkeypatch):
    store, told = Store(tmp_path), []
    monkeypatch.setattr(days, "tell", told.append)
    names = [f"seconds/{days.name_of(day)}-{store.generation}-0.parquet" for day in range(DAY - 5, DAY + 1)]
    months = sorted({days.name_of(day)[:7] for day in range(DAY - 62, DAY + 1)})
    names += [f"jobs/{month}-{store.generation}.parquet" for month in months]
    for name in (*names, "seconds/mine.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 100)

    def left(kind):
        return [name for name in names if name.startswith(kind) and (tmp_path / name).exists()]

    days.tidy(store, tmp_path, 4, 1e6, NOON)
    assert left("seconds") == names[1:6]  # what is 4 days old stays
    assert "older than 4 days" in told[0]
    days.tidy(store, tmp_path, 4, 250, NOON)
    assert left("seconds") == names[3:6]
    assert "2 files deleted, beyond 0.00025 MB" in told[1]
    days.tidy(store, tmp_path, 400, 0, NOON)
    assert (left("seconds"), left("jobs")) == (names[5:6], names[-1:])  # those of today stay
    assert (tmp_path / "seconds" / "mine.parquet").exists()
    store.close()


@given(st.floats(1e-6, 1e9))
def test_steps_are_a_tenth_of_the_uncertainty_at_most(u95_j):
    pytest.importorskip("pyarrow")
    from powerd_client.accounting.days import step_of

    assert max(u95_j, 0.01) / 26 < step_of(u95_j) <= max(u95_j, 0.01) / 10 * (1 + 1e-6)


def test_the_command_line(tmp_path):
    given = arguments(["board", "--folder", str(tmp_path), "--retention-days", "30"])
    assert (given.url, given.folder, given.retention_days) == ("tcp://board:7360", tmp_path, 30)
    with pytest.raises(ConfigError):
        arguments(["ipc://"])


def test_it_says_what_it_does_when_it_starts(tmp_path, capsys):
    is_over = threading.Event()
    is_over.set()
    for spool, told in ((tmp_path, f"jobs by {tmp_path}"), (tmp_path / "none", f"{tmp_path}/none is not there")):
        run(arguments(["board", "--folder", str(tmp_path / "a"), "--spool", str(spool)]), is_over)
        assert f"powerd: accounting of tcp://board:7360 into {tmp_path}/a; {told}" in capsys.readouterr().err


def test_the_page_says_the_order_of_steps_the_defaults_and_the_extra_of_tables():
    page = (Path(__file__).parents[2] / "docs/howto/cluster.md").read_text()
    assert page.index("/etc/powerd/powerd.toml") < page.index("enable --now")
    given = arguments([])
    stated = (("retention-days", given.retention_days), ("quota-mb", given.quota_mb), ("publish-s", given.publish_s))
    for option, default in stated:
        assert f"`--{option}` ({default:,.0f})" in page
    assert "[query]" in page


def test_slurms_prolog_and_epilog_leave_what_is_read(tmp_path):
    folder = Path(__file__).parents[2] / "powerd/deploy/slurm"
    of = {"PATH": os.environ["PATH"], "POWERD_SPOOL": str(tmp_path / "spool"), "SLURM_JOB_ID": "7"}
    name = "a 'job'\nof \"mine\"; rm -rf $HOME"
    before_ns, book = time.time_ns(), JobBook()
    subprocess.run([folder / "prolog.sh"], env=of | {"SLURM_JOB_GPUS": "1", "SLURM_JOB_NAME": name}, check=True)
    book.read_spool(tmp_path / "spool")
    (job,) = book.running()
    assert (job.devices, job.identity.name) == (("gpu1",), name.replace("\n", "\\n"))
    assert before_ns <= job.begin_ns <= time.time_ns()
    os.utime(next((tmp_path / "spool").iterdir()), (0, 0))
    subprocess.run([folder / "epilog.sh"], env=of | {"SLURM_JOB_EXIT_CODE": "0"}, check=True)
    book.read_spool(tmp_path / "spool")
    assert (book.running(), job.exit) == ([], "0")
    assert len(list((tmp_path / "spool").iterdir())) == 1  # an old event is deleted by who wrote it
    subprocess.run(
        [folder / "prolog.sh"], env=of | {"POWERD_SPOOL": "/dev/null/x"}, check=True, stderr=subprocess.DEVNULL
    )


# -- who held what, afterwards -----------------------------------------------------------------------------------------


def told(held_rows):
    return [(own.holder, own.cap_w, own.begin_s - NOON, own.end_s - NOON, round(own.energy_j)) for own in held_rows]


def test_history_has_what_was_held_over_days_files_and_todays_rows(tmp_path, days, capsys):
    from powerd_client.accounting.history import history

    store, later = Store(tmp_path), (DAY + 1) * DAY_S + 700
    states = [("gpu0", NOON, State(300.0)), ("gpu0", NOON + 10, State(200.0, None, "ada")),
              ("gpu0", NOON + 20, State(250.0, None, "ada")), ("gpu0", NOON + 30, State(300.0))]  # fmt: skip
    store.commit(SecondsIntegral(), [part(NOON + i) for i in range(40)], states, [], later)
    days.publish(store, tmp_path, "n1", later)
    tomorrow = NOON + DAY_S
    store.commit(
        SecondsIntegral(), [part(tomorrow)], [("gpu0", tomorrow, State(260.0, None, "ben"))], [], tomorrow + 60
    )
    store.close()
    expected = [("ada", 200.0, 10, 20, 1000), ("ada", 250.0, 20, 30, 1000), ("ben", 260.0, DAY_S, DAY_S + 1, 100)]
    assert told(history(tmp_path, 0)) == expected
    assert told(history(tmp_path, tomorrow)) == expected[2:]


def test_a_folder_that_is_none_has_no_history(tmp_path):
    from powerd_client.accounting.history import history

    with pytest.raises(ConfigError, match="no folder of powerd-accounting"):
        history(tmp_path, 0)
