"""Sets of lines and of readings: their energy, rows and Paraver trace, against sums that are made another way; and the
journal that they come from while it grows: any pieces, torn appends, restarts of powerd."""

import csv
import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid

from powerd_client import pmlib
from powerd_client.pmlib import pm_set_lines
from powerd_client.pmlib.readings import (
    LINE_TYPE,
    SET_TYPE,
    SUM_TYPE,
    UNITS,
    CounterData,
    CounterSet,
    JournalReader,
    LineReadings,
    Lines,
    write_paraver,
)
from powerd_client.signals.integral import counter_energy_j, energy_j
from powerd_client.signals.signal import Readings, RunLine, make_signal
from powerd_core import wire
from powerd_core.errors import ConfigError
from powerd_core.model import (
    Accuracy,
    ClockExchange,
    CounterConversion,
    Flag,
    Line,
    Provenance,
    ScaledConversion,
    ShuntConversion,
    Stream,
)
from powerd_core.serde import to_document
from support.fake_daemon import PERIOD_NS, make_block, make_description, make_stream

MS = 1_000_000
POWER = Line("gpu0.rail", "gpu0", ScaledConversion("power_mw", 1e-3), Provenance.SIMULATED)
COUNTER = Line("gpu0.nvml", "gpu0", CounterConversion("energy_mj", 1e-3, 0.5, bits=48), Provenance.SIMULATED)


def readings(line, t_ns, codes, flags=None, column=None):
    t_ns = np.array(t_ns, np.int64)
    flags = np.zeros(len(t_ns), np.uint16) if flags is None else np.array(flags, np.uint16)
    column = column or line.conversion.column
    return of_codes(line, t_ns, flags, {column: np.array(codes, np.int64)})


def of_codes(line, t_ns, flags, codes):
    info = RunLine.of(line, Stream(0, "fake", (), (line,), MS), "board")
    return LineReadings(make_signal(info, Readings(t_ns, flags, codes)))


def power(t_ns, milliwatts, flags=None):
    return readings(POWER, t_ns, milliwatts, flags)


def data_of(*sets, is_aggregate=False, frequency=0.0):
    names = {i: f"gpu0.rail_{i}" for i in sets[0].readings}
    return CounterData("gpu0", names, is_aggregate, frequency, tuple(sets))


TIMES = st.lists(st.integers(1, 40 * MS), min_size=3, max_size=30).map(np.cumsum)
EDGES = st.lists(st.integers(-10 * MS, 500 * MS), min_size=2, max_size=2, unique=True).map(sorted)


@given(TIMES, EDGES, st.data())
def test_energy_is_that_of_the_tables(t, edges, data):
    codes = data.draw(st.lists(st.integers(-(10**6), 10**6), min_size=len(t), max_size=len(t)))
    expected = energy_j(t, np.array(codes) * 1e-3, *edges)
    assert power(t, codes).joules(*edges) == pytest.approx(expected, abs=1e-9)


@given(TIMES, EDGES, st.integers(0, 2**48 - 1), st.data())
def test_a_counter_that_wraps_has_the_energy_of_the_tables(t, edges, first, data):
    steps = data.draw(st.lists(st.integers(0, 10**6), min_size=len(t) - 1, max_size=len(t) - 1))
    counts = np.concatenate([[0], np.cumsum(steps)])
    joules = counts * 1e-3 + 0.5 * (t - t[0]) * 1e-9
    made = readings(COUNTER, t, (counts + first) % 2**48)
    assert made.joules(*edges) == pytest.approx(counter_energy_j(t, joules, *edges), abs=1e-6)


def test_a_counter_of_64_bits_that_falls_was_set_back():
    line = Line("nvml", "gpu0", CounterConversion("energy_mj", 1e-3), Provenance.MEASURED)
    made = readings(line, [0, MS, 2 * MS, 3 * MS], [5000, 6000, 10, 1010])
    assert made.joules(0, 3 * MS) == pytest.approx(2.0)
    assert made.missing_s(0, 3 * MS) == pytest.approx(1e-3)


def test_a_counter_that_may_have_gone_round_unseen_says_so():
    """At the power that it had before, one of 16 bits goes round in 66 ms."""
    line = Line("rapl", "cpu0", CounterConversion("energy", 1e-3, bits=16), Provenance.MEASURED)
    t = np.array([*range(10), *range(110, 120)]) * MS
    made = readings(line, t, (t // MS * 1000) % 2**16)
    assert made.joules(0, 9 * MS) == pytest.approx(9.0)
    assert made.missing_s(0, 119 * MS) == pytest.approx(0.101)
    assert made.joules(0, 119 * MS) == pytest.approx(18.0)


def test_a_counter_read_more_often_than_it_moves_counts_where_it_moved():
    accuracy = Accuracy(update_ns=4 * MS)
    line = Line("nvml", "gpu0", CounterConversion("energy_mj", 1e-3), Provenance.MEASURED, accuracy)
    codes = [1000 * (i // 4) for i in range(17)]
    made = readings(line, np.arange(17) * MS, codes)
    assert made.t_ns.tolist() == [0, 4 * MS, 8 * MS, 12 * MS, 16 * MS]
    assert made.joules(2 * MS, 6 * MS) == pytest.approx(1.0)


def test_power_of_a_shunt_keeps_its_sign():
    conversion = ShuntConversion(0.05, 10e-6, 4e-3, bus_shift=3, offset_a=0.1, gain=2.0)
    line = Line("rail", "gpu0", conversion, Provenance.MEASURED)
    codes = {"shunt": np.array([-2500, 500], np.int16), "bus": np.array([3000 << 3, 3000 << 3], np.uint16)}
    made = of_codes(line, np.array([0, MS]), np.zeros(2, np.uint16), codes)
    assert made.watts_at(made.t_ns).tolist() == pytest.approx([12 * (-0.5 + 0.1) * 2, 12 * (0.1 + 0.1) * 2])


def test_bad_readings_are_left_out_and_their_time_is_missing():
    codes = np.full(20, 2000)
    codes[8:12] = 65535
    flags = np.zeros(20, int)
    flags[8:11], flags[11] = Flag.IO_ERROR, Flag.SATURATED
    made = power(np.arange(20) * MS, codes, flags)
    assert made.joules(0, 19 * MS) == pytest.approx(2.0 * 19e-3)
    assert made.missing_s(0, 19 * MS) == pytest.approx(4e-3)
    assert made.missing_s(-MS, 0) == pytest.approx(1e-3)
    assert made.clipped_ns.tolist() == [11 * MS]
    known = ~np.isnan(made.watts_at(np.array([-1, 0, 7 * MS, 9 * MS, 12 * MS, 19 * MS, 20 * MS])))
    assert known.tolist() == [False, True, True, False, True, True, False]


def parsed(path):
    """Header, events by type as lists of (time, value), and states, read as Paraver does: integers and nothing else."""
    head, *lines = path.read_text().splitlines()
    events, states = {}, []
    before = 0
    for line in lines:
        kind, cpu, *numbers = [int(n) for n in line.split(":")]
        assert (cpu, numbers[:3]) == (1, [1, 1, 1])
        if kind == 1:
            states.append(tuple(numbers[3:]))
            continue
        assert kind == 2
        time, *pairs = numbers[3:]
        assert time >= before
        before = time
        for number, value in zip(pairs[::2], pairs[1::2], strict=True):
            events.setdefault(number, []).append((time, value))
    return head, events, states


def joules_in(events, unit):
    """Values times durations."""
    step = Fraction(UNITS[unit][0], 10**9)
    return float(sum(Fraction(v, 1000) * (b - a) * step for (a, v), (b, _) in itertools.pairwise(events)))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(TIMES, st.integers(0, 3 * MS), st.integers(0, 90 * MS)), min_size=1, max_size=3),
    st.sampled_from(["ns", "us", "ms"]),
    st.booleans(),
    st.sampled_from([0.0, 10.0, 333.0]),
    st.data(),
)
def test_values_times_durations_of_a_trace_are_the_energy(tmp_path_factory, drawn, unit, aggregate, frequency, data):
    path = tmp_path_factory.mktemp("trace") / "out.prv"
    sets, begin = [], 7_000_000_123
    for number, (t, early, length) in enumerate(drawn):
        lines = {
            i: power(
                begin - early + t + 7 * i, data.draw(st.lists(st.integers(0, 10**6), min_size=len(t), max_size=len(t)))
            )
            for i in (1, 4)
        }
        end = begin + 1 + min(length, int(t[-1]))
        sets.append(CounterSet(number, begin, end, lines))
        begin = end + data.draw(st.integers(0, 5 * MS))
    counted = data_of(*sets, is_aggregate=aggregate, frequency=frequency)
    write_paraver(path, counted, None, -1, unit)
    head, events, states = parsed(path)
    assert head.endswith(f"_{unit}:1(1):1:1(1:1)")
    assert int(head.rpartition(f"_{unit}")[0].rpartition("):")[2]) == events[SUM_TYPE][-1][0]
    assert len(states) == len(sets)
    wanted = {SUM_TYPE: counted.energy_j()}
    if not aggregate:
        wanted |= {LINE_TYPE + i: counted.energy_j(Lines([i])) for i in (1, 4)}
    assert events.keys() == {SET_TYPE, *wanted}
    for kind, joules in wanted.items():
        rounding = 0.5e-3 * (events[kind][-1][0] - events[kind][0][0]) * UNITS[unit][0] * 1e-9
        assert joules_in(events[kind], unit) == pytest.approx(joules, abs=rounding + 1e-9)


def test_rows_have_the_readings_own_times_and_add_up(tmp_path):
    t = np.arange(0, 101) * MS
    ramp = [1000 + 10 * i for i in range(101)]
    lines = {0: power(t, ramp), 2: power(t[::5] + 300, [2000] * 21)}
    sets = CounterSet(0, 10_500_000, 30_250_000, lines), CounterSet(1, 50 * MS, 60 * MS, lines)
    data_of(*sets).write(tmp_path / "out.csv", None, -1, ";")
    with (tmp_path / "out.csv").open(newline="") as file:
        found = list(csv.DictReader(file, delimiter=";"))
    assert list(found[0]) == ["Set_id", "Time", "Line 0", "Line 2", "Sum"]
    first = [row for row in found if row["Set_id"] == "0"]
    times = np.array([float(row["Time"]) for row in first])
    assert times == pytest.approx([0, *np.arange(11, 31) * 1e-3 - 0.0105, 0.01975])
    # Both powers are linear between the rows, so that the trapezia of the rows are the exact energy.
    assert trapezoid([float(row["Sum"]) for row in first], times) == pytest.approx(sets[0].energy_j([0, 2]), abs=1e-7)
    assert float(found[len(first)]["Time"]) == pytest.approx(0.0395)
    assert float(found[-1]["Sum"]) == pytest.approx(1.6 + 2.0)


NUMBERS = st.sets(st.integers(0, 127), min_size=1)


@given(NUMBERS)
def test_a_set_survives_its_text(numbers):
    lines = Lines(numbers)
    assert pm_set_lines(str(lines)) == lines
    assert list(lines) == sorted(numbers)


@pytest.mark.parametrize("text", ["", "1,,2", "1-4-6", "-3", "4-1", "128", "0-200"])
def test_text_that_is_no_set(text):
    with pytest.raises(ConfigError):
        pm_set_lines(text)


def test_macros():
    lines = Lines()
    pmlib.LINE_SET(7, lines)
    pmlib.LINE_SET(9, lines)
    pmlib.LINE_CLR(9, lines)
    pmlib.LINE_CLR(9, lines)
    assert pmlib.LINE_ISSET(7, lines)
    assert not pmlib.LINE_ISSET(9, lines)
    pmlib.LINE_SET_ALL(lines)
    assert str(lines) == "0-127"
    pmlib.LINE_CLR_ALL(lines)
    assert str(lines) == ""
    with pytest.raises(ConfigError):
        pmlib.LINE_SET(-1, lines)


# ---- the journal that they come from


STREAM = make_stream()
NAMES = [line.name for line in STREAM.lines]
S = 1_000_000_000
AHEAD_NS = 7 * S
"""Host minus board."""


def described(epoch=5):
    return wire.Message("description", to_document(make_description(STREAM, epoch)), epoch)


def exchange(t_board_ns, epoch=5, ahead_ns=AHEAD_NS):
    return ClockExchange(epoch, t_board_ns + ahead_ns - 40_000, t_board_ns, t_board_ns, t_board_ns + ahead_ns + 40_000)


def block(sequence, t_board_ns, epoch=5, milliwatts=2000):
    return make_block(STREAM, epoch, sequence, t_board_ns, [milliwatts] * 20)


def events(count=10):
    """A second of readings in blocks of 20 ms from board time 1 s on."""
    found = [described(), exchange(S)]
    for i in range(count):
        found += [block(i, S + i * 20 * PERIOD_NS), exchange(S + (i + 1) * 20 * PERIOD_NS)]
    return found


def frames(parts):
    return b"".join(wire.encode(event) for event in parts)


def reader_of(tmp_path, parts):
    (tmp_path / "journal.bin").write_bytes(frames(parts))
    reader = JournalReader(tmp_path)
    reader.update()
    return reader


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 12_000), max_size=5))
def test_any_pieces_give_the_same_readings(tmp_path_factory, cuts):
    path = tmp_path_factory.mktemp("journal")
    data = frames(events())
    reader = None
    edges = sorted({0, len(data), *(min(c, len(data)) for c in cuts)})
    for low, high in itertools.pairwise(edges):
        with (path / "journal.bin").open("ab") as file:
            file.write(data[low:high])
        reader = reader or JournalReader(path)
        reader.update()
    found = reader.readings(NAMES, [(0, 100 * S)])[0]
    for j, name in enumerate(NAMES):
        t = S + AHEAD_NS + PERIOD_NS * np.arange(200) + 10_000 * j
        assert np.abs(found[name].t_ns - t).max() < 100
        assert found[name].watts_at(found[name].t_ns) == pytest.approx(np.full(200, 2.0))


def test_a_powerd_that_was_started_anew(tmp_path):
    ahead = AHEAD_NS + 2 * S
    anew = [described(6), exchange(100, 6, ahead), block(0, 1000, 6, 3000), exchange(40 * PERIOD_NS, 6, ahead)]
    of_nobody = block(0, 50 * S, epoch=99)  # a life that was never described
    found = reader_of(tmp_path, [*events(), *anew, of_nobody]).readings(NAMES, [(0, 100 * S)])[0][NAMES[0]]
    assert found.watts_at(found.t_ns) == pytest.approx([2.0] * 200 + [3.0] * 20)
    between_ns = 1000 + ahead - (S + AHEAD_NS + 199 * PERIOD_NS)
    missing_s = found.missing_s(int(found.t_ns[0]), int(found.t_ns[-1]))
    assert missing_s == pytest.approx((between_ns - PERIOD_NS) * 1e-9, rel=1e-4)
