"""`powerd export`: what is scraped, by the parser of Prometheus' client; joules across scrapes, losses, restarts."""

import socket
import time

import numpy as np
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from powerd_client.accounting.exporter import MOST_PHASES, OTHER, Exporter, PhaseSums
from powerd_client.energies.live import LiveBoard
from powerd_core.errors import ConfigError, PowerdError
from powerd_core.model import Gap
from support.fake_daemon import PERIOD_NS, FakeDaemon, make_block, make_description, make_stream

RAIL = {"line": "gpu0.rail_0"}


@pytest.fixture
def daemon():
    with zmq.Context() as context:
        fake = FakeDaemon(context)
        yield fake
        fake.close()


def scraped(exporter):
    """Samples by name, each with its labels."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(exporter)
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def value(samples, name, **labels):
    (found,) = [own for told, own in samples.get(name, ()) if labels.items() <= told.items()]
    return found


def until(exporter, is_there):
    """Step until something is there, and what was scraped then."""
    deadline_s = time.monotonic() + 30
    while True:
        exporter.step()
        samples = scraped(exporter)
        if is_there(samples):
            return samples
        assert time.monotonic() < deadline_s, samples
        time.sleep(0.01)


def has_joules(least):
    def is_there(samples):
        return any(
            own >= least
            for labels, own in samples.get("powerd_energy_joules_total", ())
            if RAIL.items() <= labels.items()
        )

    return is_there


@pytest.fixture
def exporter(daemon):
    own = Exporter([daemon.url])
    yield own
    own.close()


def test_joules_between_two_scrapes_are_the_integral_of_what_came(daemon, exporter):
    begin_ns = daemon.now_ns()
    daemon.add_block([10_000] * 1001, begin_ns)
    before = until(exporter, has_joules(9.99))
    assert value(before, "powerd_energy_joules_total", **RAIL) == pytest.approx(10.0)
    daemon.add_block([20_000] * 500, begin_ns + 1001 * PERIOD_NS)
    after = until(exporter, has_joules(19.9))
    grown = value(after, "powerd_energy_joules_total", **RAIL) - value(before, "powerd_energy_joules_total", **RAIL)
    assert grown == pytest.approx(0.015 + 20 * 0.499)  # the first interval goes from 10 to 20 W
    labels, _ = next(pair for pair in after["powerd_energy_joules_total"] if RAIL.items() <= pair[0].items())
    assert labels == {"Hostname": "fake board", "device": "gpu0", "UUID": "", "source": "fake",
                      "provenance": "simulated", **RAIL}  # fmt: skip
    assert value(after, "powerd_readings_total", flag="good", **RAIL) == 1501
    # Two rails, each off by 1 % by itself.
    assert value(after, "powerd_device_energy_joules_total", device="gpu0") == pytest.approx(2 * 19.995, rel=1e-3)
    u95_j = 1.96 * 0.01 * 19.995 * 2**0.5
    assert value(after, "powerd_device_energy_u95_joules", device="gpu0") == pytest.approx(u95_j, rel=1e-3)


def hears_nothing_for(exporter, seconds):
    """As if the line's latest good reading had come so long ago."""
    line = exporter._listener.powerds[0].board.lines[RAIL["line"]]
    line.heard_s -= seconds


def test_a_line_of_which_nothing_comes_is_missing_while_it_lasts(daemon, exporter):
    begin_ns = daemon.now_ns()
    daemon.add_block([10_000] * 1001, begin_ns)
    before = until(exporter, has_joules(9.99))
    assert value(before, "powerd_missing_seconds_total", **RAIL) == 0
    assert "powerd_fault_ratio" not in before
    hears_nothing_for(exporter, 20)
    dead = scraped(exporter)
    assert value(dead, "powerd_missing_seconds_total", **RAIL) == pytest.approx(20, abs=1)
    assert value(dead, "powerd_fault_ratio", fault="no answer", **RAIL) == 1
    assert value(dead, "powerd_missing_seconds_total", line="gpu0.rail_1") == 0
    told_s = value(scraped(exporter), "powerd_missing_seconds_total", **RAIL)
    daemon.add_block([10_000] * 101, begin_ns + 19_000_000_000)
    after = until(exporter, has_joules(10.09))
    assert value(after, "powerd_missing_seconds_total", **RAIL) >= told_s, "a counter never falls"
    assert "powerd_fault_ratio" not in after


def test_a_line_that_was_dead_from_the_beginning_is_missing(daemon, exporter):
    until(exporter, lambda found: value(found, "powerd_up") == 1)
    hears_nothing_for(exporter, 20)
    told_s = value(scraped(exporter), "powerd_missing_seconds_total", **RAIL)
    assert told_s == pytest.approx(20, abs=1)
    daemon.add_block([10_000] * 1001)
    until(exporter, has_joules(9.99))
    hears_nothing_for(exporter, 20)
    assert value(scraped(exporter), "powerd_missing_seconds_total", **RAIL) == pytest.approx(told_s + 20, abs=1)


def test_what_is_not_known_has_no_sample(daemon, exporter):
    daemon.add_block([10_000])
    samples = until(exporter, lambda found: value(found, "powerd_up") == 1)
    assert "powerd_energy_joules_total" not in samples
    assert "powerd_lease_value" not in samples
    nobody = Exporter(["tcp://127.0.0.1:9"])
    assert value(scraped(nobody), "powerd_up", url="tcp://127.0.0.1:9") == 0


def test_a_powerd_that_does_not_answer_is_waited_for(monkeypatch):
    monkeypatch.setattr("powerd_client.journals.link.ANSWER_S", 0.05, raising=False)
    with pytest.raises(PowerdError):
        Exporter(["tcp://127.0.0.1:9"]).step()


def test_a_restarted_powerd_goes_on_where_it_was(daemon):
    exporter = Exporter([daemon.url])
    begin_ns = daemon.now_ns()
    daemon.add_block([10_000] * 1001, begin_ns)
    until(exporter, has_joules(9.99))
    daemon.close()
    with zmq.Context() as context:
        again = FakeDaemon(context, epoch=6, control_port=daemon.port)
        again.add_block([10_000] * 101, begin_ns + 3_000_000_000)
        samples = until(exporter, has_joules(10.9))
        again.close()
    assert value(samples, "powerd_energy_joules_total", **RAIL) == pytest.approx(11.0)
    assert value(samples, "powerd_restarts_total") == 1
    assert value(samples, "powerd_missing_seconds_total", **RAIL) == pytest.approx(2.0, abs=0.01)
    exporter.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["block", "gap", "restart"]), st.integers(2, 30), st.integers(1, 500)),
                min_size=1, max_size=12))  # fmt: skip
def test_over_losses_and_restarts_every_joule_counts_once(steps):
    """The counter never falls, and holds the integral between readings that follow each other without a loss, whether
    the frames come one by one or together."""
    stream, epoch, number, t_ns, expected, latest = make_stream(1), 5, 0, 0, 0.0, None
    board, before = LiveBoard(make_description(stream, epoch)), 0.0
    together, waiting = LiveBoard(make_description(stream, epoch)), []
    for kind, scans, watts in steps:
        if kind == "restart":
            epoch, number, latest = epoch + 1, 0, None
            together.take(*waiting)
            waiting = []
            board, together = (LiveBoard(make_description(stream, epoch), own) for own in (board, together))
        elif kind == "gap":
            waiting.append(Gap(0, epoch, number, t_ns, t_ns + scans * PERIOD_NS, 1, scans, "lost"))
            board.take(waiting[-1])
            number, t_ns, latest = number + 1, t_ns + scans * PERIOD_NS, None
        else:
            powers = np.full(scans, 1000 * watts)
            waiting.append(make_block(stream, epoch, number, t_ns, powers.tolist()))
            board.take(waiting[-1])
            known = powers if latest is None else np.concatenate([[latest], powers])
            expected += float(np.sum((known[1:] + known[:-1]) / 2)) * 1e-3 * PERIOD_NS * 1e-9
            number, t_ns, latest = number + 1, t_ns + scans * PERIOD_NS, 1000 * watts
        (line,) = board.lines.values()
        assert line.energy_j >= before
        before = line.energy_j
    assert before == pytest.approx(expected, rel=1e-9, abs=1e-12)
    together.take(*waiting)
    (line,) = together.lines.values()
    assert line.energy_j == pytest.approx(expected, rel=1e-9, abs=1e-12)


class _Run:
    """As far as the sums look at one."""

    def __init__(self, name, phases, on_device=False):
        from pathlib import Path

        self.is_timed_on_device = on_device
        self.run = Path(name)
        self.energies = {("gpu0", "simulated"): dict.fromkeys(phases, 1.0)}
        self.seconds = dict.fromkeys(phases, 0.5)


def test_many_names_of_phases_are_one():
    sums = PhaseSums()
    sums.take(_Run("r.h5", [f"p{i}" for i in range(MOST_PHASES + 30)]), "4711", lambda device: True)
    joules, seconds = sums.runs["r", "4711"]
    assert len(joules) == MOST_PHASES + 1
    assert (joules["gpu0", "simulated", OTHER], seconds[OTHER]) == (30.0, 15.0)


def test_phases_that_a_gpu_times_have_no_samples():
    """The host is ahead of the GPU: its marks would give forward's joules to what follows."""
    sums = PhaseSums()
    sums.take(_Run("r.h5", ["forward"], on_device=True), "", lambda device: True)
    assert sums.runs == {}


def test_the_latest_runs_have_samples():
    sums = PhaseSums()
    for i in range(40):
        sums.take(_Run(f"r{i}.h5", ["forward"]), "", lambda device: device == "gpu0")
    assert ("r39", "") in sums.runs
    assert ("r0", "") not in sums.runs


@pytest.mark.parametrize("place", ["9402", "here:port", ":9402"])
def test_where_nobody_can_listen_one_line_says_so(place):
    from powerd_client.accounting.exporter import serve

    with pytest.raises(ConfigError, match="--listen"):
        serve([], place, None, {})


def test_a_port_that_is_used_says_whom_to_ask():
    from powerd_client.accounting.exporter import serve

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"in use: `ss -ltnp 'sport = :{port}'` .* --listen HOST:PORT"):
            serve([], f"127.0.0.1:{port}", None, {})


def test_a_step_takes_all_that_has_come(daemon, exporter):
    """Small frames come faster than one round of the link takes them: nothing piles up."""
    begin_ns = daemon.now_ns()
    daemon.add_block([10_000] * 2, begin_ns)
    until(exporter, has_joules(0.009))
    for i in range(1, 400):
        daemon.add_block([10_000] * 2, begin_ns + 2 * i * PERIOD_NS)
    time.sleep(1.0)
    for _ in range(3):  # of which one asks for what was not asked for yet
        exporter.step()
        time.sleep(0.3)
    assert value(scraped(exporter), "powerd_energy_joules_total", **RAIL) == pytest.approx(0.799 * 10)
