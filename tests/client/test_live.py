"""Running joules: readings of lines as they arrive, phases of a recording as they are marked, both with ± 95 %."""

import shutil
import time
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_client import Meter
from powerd_client.energies.live import LiveBoard, RecordingEnergies, RunPhases, powerds_here, runs_here
from powerd_client.journals.marks import MarkWriter
from powerd_client.signals.pairing import PhaseSpans, pair_marks
from powerd_client.signals.signal import Readings, make_signal
from powerd_core.errors import RunFileError
from powerd_core.marks import Mark
from powerd_core.model import (
    UNKNOWN_TIME_NS,
    Block,
    Column,
    CounterConversion,
    Description,
    Device,
    Fault,
    Flag,
    Gap,
    Line,
    Provenance,
    QuantityConversion,
    Stream,
)
from support import small_run
from support.fake_daemon import PERIOD_NS, make_block, make_description, make_stream
from support.steady import steady_daemon, wait_for

EPOCH = 5


@pytest.fixture
def journal(tmp_path):
    """The directory of a run that is being recorded, as far as its reader looks."""
    path = tmp_path / "run.h5.journal"
    path.mkdir()
    (path / "journal.bin").touch()
    (path / "lock").touch()
    return path


def timed_block(stream, number, readings):
    """Times and flags of one line, whose power is 1 W."""
    n, (t_ns, flags) = len(readings), zip(*readings, strict=True)
    arrays = array("q", t_ns), array("i", [0] * n), array("H", flags), array("I", [1000] * n)
    payload = b"".join(a.tobytes() for a in arrays)
    return Block(stream.number, EPOCH, number, t_ns[0], t_ns[-1], n, stream.layout, payload)


def board_of(stream):
    return LiveBoard(make_description(stream, EPOCH))


@given(st.lists(st.lists(st.integers(0, 300_000), min_size=1, max_size=8), min_size=1, max_size=8))
def test_joules_do_not_depend_on_how_readings_are_cut_into_blocks(pieces):
    stream = make_stream()
    board, at = board_of(stream), 10**9
    for number, powers in enumerate(pieces):
        board.take(make_block(stream, EPOCH, number, at, powers))
        at += len(powers) * PERIOD_NS
    watts = np.array([p for piece in pieces for p in piece]) * 1e-3
    expected = float(np.sum((watts[1:] + watts[:-1]) / 2)) * PERIOD_NS * 1e-9
    for line in board.lines.values():
        assert line.energy_j == pytest.approx(expected, abs=1e-9)
        assert line.readings == len(watts)
        assert line.covered_s == pytest.approx((len(watts) - 1) * PERIOD_NS * 1e-9)


def test_a_loss_is_counted_and_not_bridged():
    stream = make_stream()
    board = board_of(stream)
    board.take(make_block(stream, EPOCH, 0, 10**9, [1000] * 11))
    board.take(Gap(0, EPOCH, 1, 10**9, 5 * 10**9, 1, 4000, "sensor lost"))
    board.take(make_block(stream, EPOCH, 2, 5 * 10**9, [1000] * 11))
    board.take(Gap(0, EPOCH, 3, UNKNOWN_TIME_NS, 6 * 10**9, 1, -1, "no longer in powerd's ring"))
    board.take(Gap(0, EPOCH + 1, 3, 0, 0, 1, 7, "of another life"))
    line = board.lines["gpu0.rail_0"]
    assert line.energy_j == pytest.approx(0.02)
    assert (board.losses, board.unknown_losses, board.lost_scans) == (2, 1, 4000)
    assert line.missing_s == pytest.approx(4 - 11 * PERIOD_NS * 1e-9)
    assert line.covered_s == pytest.approx(20 * PERIOD_NS * 1e-9)


@given(
    st.lists(st.booleans(), min_size=30, max_size=60),
    st.lists(st.integers(1, 12), min_size=1, max_size=60),
    st.sampled_from([0, int(Flag.MISSING)]),
)
def test_seconds_without_readings_are_those_of_the_tables_however_blocks_are_cut(is_there, sizes, flag):
    """Of readings that nobody took, and of readings that failed."""
    stream = make_stream(lines=1)
    is_there = [True] * 60 + is_there + [True] * 60
    t_ns = [10**9 + k * PERIOD_NS for k in range(len(is_there))]
    flags = [0 if there else flag for there in is_there]
    taken = [(t, f) for t, f, there in zip(t_ns, flags, is_there, strict=True) if there or flag]
    times, told = np.array(taken).T
    readings = Readings(times, told.astype(np.uint16), {"power_mw": np.full(len(times), 1000)})
    board, number = board_of(stream), 0
    while taken:
        size = sizes[number % len(sizes)]
        some, taken = taken[:size], taken[size:]
        board.take(timed_block(stream, number, some))
        number += 1
    line = board.lines["gpu0.rail_0"]
    whole = make_signal(line.line, readings)
    assert line.missing_s == pytest.approx(float(whole.missing_ns().sum()) * 1e-9, abs=1e-9)


def test_seconds_without_readings_go_on_over_a_new_start_of_powerd():
    stream = make_stream(lines=1)
    board = board_of(stream)
    board.take(make_block(stream, EPOCH, 0, 10**9, [1000] * 11))
    before_ns = 10**9 + 10 * PERIOD_NS
    again = LiveBoard(make_description(stream, EPOCH + 1), board)
    again.take(make_block(stream, EPOCH + 1, 0, before_ns + 10**9 // 2, [1000] * 11))
    line = again.lines["gpu0.rail_0"]
    assert line.missing_s == pytest.approx(0.5 - PERIOD_NS * 1e-9)
    assert line.energy_j == pytest.approx(20 * PERIOD_NS * 1e-9)
    assert again.losses == 1


def test_readings_that_fail_are_missing_seconds_while_it_lasts():
    stream = make_stream(lines=1)
    board = board_of(stream)
    board.take(timed_block(stream, 0, [(10**9 + k * PERIOD_NS, 0) for k in range(11)]))
    line = board.lines["gpu0.rail_0"]
    line.heard_s -= 20
    board.take(timed_block(stream, 1, [(2 * 10**9 + k * PERIOD_NS, int(Flag.STALE)) for k in range(11)]))
    assert line.missing_s == 0
    assert line.missing_until_now_s() == pytest.approx(20, abs=1)
    assert line.fault_shares() == {Fault.STOOD_STILL: 1.0}


def test_flagged_readings_are_no_values():
    stream = make_stream(lines=1)
    board = board_of(stream)
    block = make_block(stream, EPOCH, 0, 10**9, [1000, 999_999, 1000])
    payload = bytearray(block.payload)
    payload[3 * 8 + 3 * 4 + 2] = 8  # the second reading's flags: the transfer failed
    board.take(type(block)(0, EPOCH, 0, block.t_first_ns, block.t_last_ns, 3, block.layout, bytes(payload)))
    line = board.lines["gpu0.rail_0"]
    assert (line.bad, line.readings) == (1, 3)
    assert line.energy_j == pytest.approx(1.0 * 2 * PERIOD_NS * 1e-9)


def test_a_counter_misses_nothing_in_a_gap_and_wraps():
    line = Line("gpu0.e", "gpu0", CounterConversion("power_mw", 0.5, 0.0, 32), Provenance.MEASURED)
    stream = Stream(0, "fake", (Column("power_mw", "I"),), (line,), PERIOD_NS)
    board = LiveBoard(Description("b", "0", EPOCH, "", "tcp://*:1", (stream,), (Device("gpu0", ("gpu0.e",)),)))
    board.take(make_block(stream, EPOCH, 0, 10**9, [2**32 - 10, 2**32 - 4]))
    board.take(Gap(0, EPOCH, 1, 10**9, 2 * 10**9, 1, 9, "lost"))
    board.take(make_block(stream, EPOCH, 2, 2 * 10**9, [6, 10]))
    assert board.lines["gpu0.e"].energy_j == pytest.approx(20 * 0.5)


def test_a_failed_reading_of_a_temperature_is_no_value():
    """Nor is the reading before it shown as if it were new: it stays the latest one."""
    line = Line("gpu0.t", "gpu0", QuantityConversion("power_mw", "temperature_c", 1.0), Provenance.MEASURED)
    stream = Stream(0, "fake", (Column("power_mw", "I"),), (line,), PERIOD_NS)
    board = LiveBoard(Description("b", "0", EPOCH, "", "tcp://*:1", (stream,), ()))
    board.take(make_block(stream, EPOCH, 0, 10**9, [40]))
    block = make_block(stream, EPOCH, 1, 2 * 10**9, [0])
    payload = bytearray(block.payload)
    payload[8 + 4] = Flag.IO_ERROR
    board.take(type(block)(0, EPOCH, 1, block.t_first_ns, block.t_last_ns, 1, block.layout, bytes(payload)))
    assert (board.lines["gpu0.t"].value, board.lines["gpu0.t"].bad) == (40.0, 1)


def test_the_current_phase_is_read_from_the_marks(journal):
    writer = MarkWriter(journal, segment_records=4)
    outer, inner = (writer.kind(name, {}, "host") for name in ("training", "forward"))
    watched = RunPhases(journal.with_name("run.h5"))
    writer.mark(outer)
    writer.mark(inner)
    assert [p.path for p in watched.current()] == [("training", "forward")]
    for _ in range(6):
        writer.mark(~inner)
        assert [p.path for p in watched.current()] == [("training",)]
        writer.mark(inner)
        assert watched.current()[0].path == ("training", "forward")
    for old in sorted(journal.glob("marks-*.bin"))[:3]:
        old.unlink()  # as the recorder does
    writer.mark(~inner)
    writer.mark(~outer)
    assert [(p.path, p.ended) for p in watched.current()] == [((), 8)]
    assert RunPhases(journal.with_name("run.h5")).current()[0].path == ()
    writer.close()
    shutil.rmtree(journal)
    watched.current()
    assert watched.is_over
    with pytest.raises(RunFileError):
        RunPhases(journal.with_name("run.h5"))


def test_runs_of_this_machine_are_found(journal):
    with (journal / "journal.bin").open("ab"):
        assert journal.with_name("run.h5") in runs_here()
    assert journal.with_name("run.h5") not in runs_here()
    assert all("://" in url for url in powerds_here())


NAMES = {0: "training", 1: "forward", 2: "backward"}
CUTS = {3: 0, 4: 1}
MARKS = st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(1, 2)), max_size=40)


@given(MARKS)
def test_phases_are_paired_as_in_the_run_file(tmp_path_factory, drawn):
    """What is open, and what has ended, after every mark of two threads; ends that fit nothing, and cuts too."""
    journal = tmp_path_factory.mktemp("live") / "run.h5.journal"
    journal.mkdir()
    (journal / "journal.bin").touch()
    writer = MarkWriter(journal)
    assert [writer.kind(name, {}, "host") for name in NAMES.values()] == [0, 1, 2]
    assert [writer.cut(kind) for kind in CUTS.values()] == [3, 4]
    watched, marks = RunPhases(journal.with_name("run.h5")), []
    for t_ns, (kind, begins, thread) in enumerate(drawn, 1):
        is_begin = begins or kind in CUTS  # such a mark has one code
        writer.mark_at(kind if is_begin else ~kind, t_ns, thread)
        marks.append(Mark(kind, is_begin, thread, t_ns))
        spans = PhaseSpans()
        pair_marks(spans, marks, process=0, kinds={k: k for k in NAMES}, names=NAMES, last_ns=10**9, cuts=CUTS)
        numbers = list(dict.fromkeys(mark.thread for mark in marks))
        is_open = [bool(c) and end == 10**9 for c, end in zip(spans.cut, spans.end_ns, strict=True)]
        here = [i for i, o in enumerate(is_open) if o and spans.thread[i] == numbers.index(thread)]
        (current,) = watched.current()
        assert current.path == tuple(NAMES[spans.kind[i]] for i in here)
        assert current.ended == len(spans.cut) - sum(spans.cut)
    writer.close()


def test_energies_of_a_recording_are_those_that_its_meter_tells(tmp_path):
    """With their uncertainties, and the power of the device beside them."""
    with steady_daemon() as daemon, Meter(daemon.url, tmp_path / "run.h5", quiet=True) as meter:
        for _ in range(5):
            with meter.phase("forward"):
                time.sleep(0.05)
        told = meter.energy("forward", wait_s=60)
        assert told.u95_j > 0
        energies = RecordingEnergies(RunPhases(meter.out))
        energies.start()
        device, *phases = wait_for(lambda: energies.latest)
        energies.close()
        assert (device.phase, device.device, device.provenance) == ("", "gpu0", "simulated")
        assert device.energy_j / device.seconds == pytest.approx(3.0, rel=0.01)
        assert 0 < device.u95_j < device.energy_j
        (forward,) = [e for e in phases if e.phase == "forward"]
        assert (forward.count, forward.device) == (told.count, told.device)
        assert forward.energy_j == pytest.approx(told.energy_j, abs=0.1 * told.u95_j)
        assert forward.u95_j == pytest.approx(told.u95_j, rel=0.1)


def test_a_recording_without_readings_has_no_energies(journal):
    (journal / "journal.bin").write_bytes(b"".join([*small_run.head(), small_run.description()]))
    assert RecordingEnergies(RunPhases(journal.with_name("run.h5"))).look() == []
