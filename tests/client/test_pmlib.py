"""pmlib's calls against a fake powerd on real sockets, with the recorder process in between."""

import json
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import zmq

from powerd_analytics import phase_energies, read_run
from powerd_client import pmlib
from powerd_client.pmlib import (
    Lines,
    Server,
    calls,
    pm_calculate_energy,
    pm_continue_counter,
    pm_create_counter,
    pm_finalize_counter,
    pm_get_counter_data,
    pm_get_counter_num_sets,
    pm_get_device_info,
    pm_get_devices,
    pm_print_data_csv,
    pm_print_data_paraver,
    pm_print_data_stdout,
    pm_print_data_text,
    pm_set_lines,
    pm_set_server,
    pm_start_counter,
    pm_stop_counter,
)
from powerd_client.pmlib import (
    server as server_module,
)
from powerd_client.pmlib.server import devices_of
from powerd_client.recording import record_command
from powerd_core.errors import ConfigError, PeerError, RunFileError
from powerd_core.model import Device, Line, Provenance, ScaledConversion
from support.fake_daemon import PERIOD_NS, FakeDaemon

POWERS_MW = [1000, 1000, 4000, 2500, 2500, 0, 7000, 3000, 1500, 1500]


class Producer:
    """A powerd that adds a block of 20 readings every 20 ms until it is told to pause; its clock is 7 s behind."""

    def __init__(self):
        self.context = zmq.Context()
        self.daemon = FakeDaemon(self.context, offset_ns=-7_000_000_000)
        self.stop = threading.Event()
        self.paused = threading.Event()
        self.thread = threading.Thread(target=self._produce)
        self.thread.start()

    def _produce(self):
        t = self.daemon.now_ns()
        while not self.stop.wait(max(0.0, (t - self.daemon.now_ns()) * 1e-9)):
            if not self.paused.is_set():
                self.daemon.add_block(POWERS_MW * 2, t - 20 * PERIOD_NS)
            t += 20 * PERIOD_NS

    def close(self):
        self.stop.set()
        self.thread.join()
        self.daemon.close()
        self.context.destroy(linger=0)


@pytest.fixture(scope="module")
def producer():
    made = Producer()
    yield made
    made.close()


@pytest.fixture
def playing(producer):
    yield producer
    producer.paused.clear()


@pytest.fixture(scope="module")
def server(producer, tmp_path_factory):
    """One server for the tests that do not end it."""
    with Server(producer.daemon.url, tmp_path_factory.mktemp("shared") / "run.h5") as made:
        yield made


def measure(counter, seconds=(0.06,)):
    """A set for each of the seconds."""
    for number, length in enumerate(seconds):
        (pm_continue_counter if number else pm_start_counter)(counter)
        time.sleep(length)
        pm_stop_counter(counter)
    return pm_get_counter_data(counter)


def test_a_pmlib_script_from_beginning_to_end(producer, tmp_path, capsys):
    out = tmp_path / "run.h5"
    address = producer.daemon.url.removeprefix("tcp://127.0.0.1:")
    server = pm_set_server("127.0.0.1", int(address), out=out)
    assert pm_get_devices(server) == ["gpu0"]
    info = pm_get_device_info(server, "gpu0")
    assert (info.name, info.max_frequency, info.n_lines) == ("gpu0", 1000.0, 2)
    lines = pm_set_lines("0-1")
    each = pm_create_counter("gpu0", lines, 0, 0, server, name="each line")
    both = pm_create_counter("gpu0", lines, 1, 100, server, name="sum")
    pm_start_counter(both)
    pm_start_counter(each)
    time.sleep(0.05)
    pm_stop_counter(both)  # before the other, which it does not enclose
    pm_stop_counter(each)
    pm_continue_counter(each)
    time.sleep(0.03)
    pm_stop_counter(each)
    for counter, sets in ((each, 2), (both, 1)):
        assert pm_get_counter_num_sets(counter) == sets
        assert len(pm_get_counter_data(counter).sets) == sets
    pm_print_data_stdout(both)
    assert capsys.readouterr().out.startswith("Set_id\tTime\tValue_aggregate\n0\t0.000000000\t")
    pm_print_data_csv(tmp_path / "out.csv", each, lines, -1)
    pm_print_data_text(tmp_path / "out.txt", each, lines, 0)
    pm_print_data_paraver(tmp_path / "out.prv", each, lines, -1, "us")
    assert (tmp_path / "out.csv").read_text().startswith("Set_id;Time;Line 0;Line 1;Sum\n0;0.000000000;")
    assert "\t" in (tmp_path / "out.txt").read_text()
    assert {p.suffix for p in tmp_path.glob("out.*")} == {".csv", ".txt", ".prv", ".pcf", ".row"}
    of_sets = [pm_calculate_energy(each, lines, number) for number in (0, 1)]
    of_lines = [pm_calculate_energy(each, Lines([i])) for i in (0, 1)]
    total, summed = pm_calculate_energy(each), pm_calculate_energy(both)
    assert total == pytest.approx(sum(of_sets)) == pytest.approx(sum(of_lines))
    pm_finalize_counter(each)
    pm_finalize_counter(both)
    pmlib.pm_close_server(server)

    run = read_run(out)
    names = [run.phases.classes[i].name for i in run.phases.label]
    assert sorted(names) == ["each line", "each line", "sum"]
    assert not run.phases.cut.any()
    assert [m["text"] for m in run.messages if m["level"] != "info"] == []
    # The run's clocks are known better at its end than they were when the counters were read: by microseconds.
    joules = phase_energies(run, "gpu0").linear_j
    assert [joules[i] for i in np.flatnonzero(np.array(names) == "each line")] == pytest.approx(of_sets, rel=1e-3)
    assert joules[names.index("sum")] == pytest.approx(summed, rel=1e-3)


def test_start_resets_and_continue_adds(server):
    counter = pm_create_counter("gpu0", Lines.all(), 1, 0, server)
    first = measure(counter, (0.03, 0.02))
    assert [s.number for s in first.sets] == [0, 1]
    assert first.sets[0].end_ns < first.sets[1].begin_ns
    again = measure(counter, (0.02,))
    assert len(again.sets) == pm_get_counter_num_sets(counter) == 1
    assert again.sets[0].begin_ns > first.sets[1].end_ns
    pm_continue_counter(counter)
    time.sleep(0.02)
    pm_stop_counter(counter)
    more = pm_get_counter_data(counter)
    assert more.sets[0] is again.sets[0]
    assert len(more.sets) == 2
    assert len(first.sets) == 2


def test_data_are_there_as_soon_as_they_are_asked_for(server):
    counter = server.counter("gpu0", "1")
    with counter:
        time.sleep(0.02)
    part = counter.get_data().sets[0]
    t = part.readings[1].t_ns
    assert t[0] < part.begin_ns < part.end_ns < t[-1]
    assert np.all(np.diff(t) == PERIOD_NS)
    inside = (t > part.begin_ns) & (t < part.end_ns)
    assert part.moments([1], 0).tolist() == [part.begin_ns, *t[inside], part.end_ns]


def test_calls_in_the_wrong_order(server):
    counter = pm_create_counter("gpu0", Lines([0]), 1, 0, server, name="c")

    def refused(*calls):
        for call in calls:
            with pytest.raises(ConfigError, match="'c'"):
                call(counter)

    refused(pm_stop_counter, pm_get_counter_data)
    pm_start_counter(counter)
    refused(pm_start_counter, pm_continue_counter, pm_get_counter_data)
    pm_stop_counter(counter)
    refused(pm_calculate_energy)
    pm_start_counter(counter)
    pm_finalize_counter(counter)
    refused(pm_start_counter, pm_stop_counter, pm_get_counter_data, pm_finalize_counter)


@pytest.mark.parametrize(
    ("device", "lines", "frequency"),
    [("gpu7", None, 0), ("gpu0", "1-4", 0), ("gpu0", Lines(), 0), ("gpu0", None, 1200), ("gpu0", None, -1)],
)
def test_what_a_counter_cannot_be_made_of(server, device, lines, frequency):
    with pytest.raises(ConfigError, match=device):
        server.counter(device, lines, frequency=frequency)


def test_lines_that_compare_and_lines_of_other_provenance(producer):
    rails, besides = producer.daemon.stream.lines, Line("gpu0.nvml", "gpu0", ScaledConversion("c", 1e-3), "measured")
    mixed = Line("gpu0.model", "gpu0", ScaledConversion("c", 1e-3), Provenance.MODELLED)
    stream = SimpleNamespace(lines=(*rails, mixed, besides), period_ns=PERIOD_NS)
    devices = (Device("gpu0", tuple(line.name for line in (*rails, mixed))),)
    found = devices_of(SimpleNamespace(streams=(stream,), devices=devices))
    assert [(d.name, d.n_lines) for d in found] == [("gpu0", 3), ("gpu0.nvml", 1)]
    server = Server("tcp://nobody:1")
    server.devices = lambda: tuple(found)
    with pytest.raises(ConfigError, match="modelled and partly simulated"):
        server.counter("gpu0")


def test_a_powerd_that_stops_sending(playing, tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "_PATIENCE_S", 0.3)
    with Server(playing.daemon.url, tmp_path / "run.h5") as server:
        counter = server.counter("gpu0", name="c")
        counter.start()
        time.sleep(0.05)
        playing.paused.set()
        deadline = time.monotonic() + 10
        while not server._reader.reaches(["gpu0.rail_0"], counter._begun[1] + 1):
            assert time.monotonic() < deadline
            time.sleep(0.005)
            server._reader.update()
        time.sleep(0.1)
        counter.stop()
        with pytest.warns(UserWarning, match="have no readings"):
            data = counter.get_data()
        assert data.sets[0].missing_s([0, 1]) > 0.05
        counter.start()
        counter.stop()
        with pytest.raises(PeerError, match=r"no reading of line 'gpu0\.rail_0'"):
            counter.get_data()
        playing.paused.clear()


def test_what_is_in_the_way_and_names_by_default(producer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pmlib.h5").write_text("precious")
    (tmp_path / "pmlib-2.h5.journal").mkdir()
    with Server(producer.daemon.url) as server:
        server.counter("gpu0").finalize()
    runs = {p.name for p in tmp_path.iterdir() if p.suffix != ".gz"}
    assert runs == {"pmlib.h5", "pmlib-2.h5.journal", "pmlib-3.h5"}
    with pytest.raises(RunFileError, match="exists"):
        Server(producer.daemon.url, tmp_path / "pmlib.h5").devices()
    assert (tmp_path / "pmlib.h5").read_text() == "precious"


def test_a_run_without_counters_leaves_nothing_and_a_closed_server_says_so(producer, tmp_path):
    server = Server(producer.daemon.url, tmp_path / "run.h5")
    server.close()
    server = Server(producer.daemon.url, tmp_path / "run.h5")
    server.devices()
    server.close()
    server.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="closed"):
        server.devices()


def fake_cuda(*, is_initialized=True):
    calls_made = []
    cuda = SimpleNamespace(is_initialized=lambda: is_initialized, synchronize=lambda: calls_made.append(1))
    return SimpleNamespace(cuda=cuda), calls_made


def timings(server, name):
    documents = [json.loads(t) for p in server._reader.journal.glob("*.names") for t in p.read_text().splitlines()]
    return {d["timing"] for d in documents if d.get("name") == name}


def test_counters_wait_for_a_gpu_that_is_in_use(server, monkeypatch):
    torch, calls_made = fake_cuda()
    monkeypatch.setitem(sys.modules, "torch", torch)
    measure(server.counter("gpu0", name="on the gpu"))
    assert len(calls_made) == 2
    assert timings(server, "on the gpu") == {"host", "host-synchronised"}
    torch, calls_made = fake_cuda(is_initialized=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    measure(server.counter("gpu0", name="on the cpu"))
    assert calls_made == []


SCRIPT = """
import time
from powerd_client.pmlib import *
server = pm_set_server("elsewhere", out="elsewhere.h5")
counter = pm_create_counter("gpu0", pm_set_lines("0"), 1, 0, server, name="joined")
pm_start_counter(counter)
time.sleep(0.05)
pm_stop_counter(counter)
print(len(pm_get_counter_data(counter).sets[0].readings[0].t_ns), pm_calculate_energy(counter))
"""


def test_a_script_under_joules_record_joins_its_run(producer, tmp_path):
    out, printed = tmp_path / "run.h5", tmp_path / "printed"
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.stdout = open({str(printed)!r}, 'w')\n{SCRIPT}")
    command = [sys.executable, str(script)]
    assert record_command(command, url=producer.daemon.url, out=out, overwrite=False, quiet=True) == 0
    count, joules = printed.read_text().split()
    assert int(count) > 40
    run = read_run(out)
    assert [run.phases.classes[i].name for i in run.phases.label] == ["joined"]
    assert phase_energies(run, "gpu0").linear_j[0] == pytest.approx(2 * float(joules), rel=1e-3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["printed", "run.h5", "run.h5.journal.gz", "script.py"]


def test_the_example_runs_on_the_simulated_board(tmp_path):
    example = "examples/pmlib_script.py"
    done = subprocess.run(
        [sys.executable, example, "--sim", "--directory", str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "J in 3 sets" in done.stdout
    made = {p.name for p in tmp_path.iterdir() if p.suffix != ".gz"}
    assert made == {"pmlib.h5", "matmul.csv", "matmul.prv", "matmul.pcf", "matmul.row"}
    run = read_run(tmp_path / "pmlib.h5")
    assert {line.provenance.value for line in run.lines.values()} == {"simulated"}
    printed = float(done.stdout.split(" J in 3 sets")[0].split()[-1])
    assert phase_energies(run, "gpu0").linear_j.sum() == pytest.approx(printed, rel=2e-3)


def test_the_surface():
    made_here = {n for n in vars(calls) if n.startswith(("pm_", "LINE_"))}
    others = {"Counter", "CounterData", "CounterSet", "DeviceInfo", "Lines", "Server"}
    assert set(pmlib.__all__) == made_here | others
    assert all(hasattr(pmlib, name) for name in pmlib.__all__)
