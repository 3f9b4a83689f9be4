"""pmlib's calls against a fake powerd on real sockets, with the recorder process in between."""

import json
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from powerd_analytics import read_run
from powerd_analytics.energy.devices import load_parts
from powerd_analytics.runs.signals import plain_j
from powerd_client import pmlib as pm
from powerd_client.pmlib import counters
from powerd_client.record.recording import record_command
from powerd_core.errors import ConfigError, PeerError
from support.steady import steady_daemon, wait_for

POWERS_MW = [1000, 1000, 4000, 2500, 2500, 0, 7000, 3000, 1500, 1500]


def integrals(run):
    """Joules of each phase of gpu0 as pmlib's calls have them: power that is linear between readings."""
    (part,) = load_parts(run, "gpu0")
    ends = zip(run.phases.begin_ns, run.phases.end_ns, strict=True)
    spans = [(np.array([begin]), np.array([end])) for begin, end in ends]
    return sum(np.concatenate(plain_j(signal, *spans)) for signal in part.signals)


PAUSED = threading.Event()


@pytest.fixture(scope="module")
def daemon():
    with steady_daemon(POWERS_MW * 2, PAUSED) as made:
        yield made


@pytest.fixture(scope="module")
def server(daemon, tmp_path_factory):
    """One server for the tests that do not end it."""
    with pm.Server(daemon.url, tmp_path_factory.mktemp("shared") / "run.h5") as made:
        yield made


def measure(counter, seconds=(0.06,)):
    """A set for each of the seconds."""
    for number, length in enumerate(seconds):
        (pm.pm_continue_counter if number else pm.pm_start_counter)(counter)
        time.sleep(length)
        pm.pm_stop_counter(counter)
    return pm.pm_get_counter_data(counter)


def test_a_pmlib_script_from_beginning_to_end(daemon, tmp_path, capsys):
    out = tmp_path / "run.h5"
    server = pm.pm_set_server("127.0.0.1", int(daemon.url.rpartition(":")[2]), out=out)
    assert pm.pm_get_devices(server) == ["gpu0"]
    info = pm.pm_get_device_info(server, "gpu0")
    assert (info.name, info.max_frequency, info.n_lines) == ("gpu0", 1000.0, 2)
    lines = pm.pm_set_lines("0-1")
    each = pm.pm_create_counter("gpu0", lines, 0, 0, server, name="each line")
    both = pm.pm_create_counter("gpu0", lines, 1, 100, server, name="sum")
    pm.pm_start_counter(both)
    pm.pm_start_counter(each)
    time.sleep(0.05)
    pm.pm_stop_counter(both)  # before the other, which it does not enclose
    pm.pm_stop_counter(each)
    pm.pm_continue_counter(each)
    time.sleep(0.03)
    pm.pm_stop_counter(each)
    for counter, sets in ((each, 2), (both, 1)):
        assert pm.pm_get_counter_num_sets(counter) == len(pm.pm_get_counter_data(counter).sets) == sets
    pm.pm_print_data_stdout(both)
    assert capsys.readouterr().out.startswith("Set_id\tTime\tValue_aggregate\n0\t0.000000000\t")
    pm.pm_print_data_csv(tmp_path / "out.csv", each, lines, -1)
    pm.pm_print_data_text(tmp_path / "out.txt", each, lines, 0)
    pm.pm_print_data_paraver(tmp_path / "out.prv", each, lines, -1, "us")
    assert (tmp_path / "out.csv").read_text().startswith("Set_id;Time;Line 0;Line 1;Sum\n0;0.000000000;")
    assert "\t" in (tmp_path / "out.txt").read_text()
    assert {p.suffix for p in tmp_path.glob("out.*")} == {".csv", ".txt", ".prv", ".pcf", ".row"}
    of_sets = [pm.pm_calculate_energy(each, lines, number) for number in (0, 1)]
    of_lines = [pm.pm_calculate_energy(each, pm.Lines([i])) for i in (0, 1)]
    total, summed = pm.pm_calculate_energy(each), pm.pm_calculate_energy(both)
    assert total == pytest.approx(sum(of_sets)) == pytest.approx(sum(of_lines))
    pm.pm_finalize_counter(each)
    pm.pm_finalize_counter(both)
    pm.pm_close_server(server)

    run = read_run(out)
    names = [run.phases.classes[i].name for i in run.phases.label]
    assert sorted(names) == ["each line", "each line", "sum"]
    assert not run.phases.cut.any()
    assert [m["text"] for m in run.messages if m["level"] != "info"] == []
    # The run's clocks are known better at its end than they were when the counters were read: by microseconds.
    joules = integrals(run)
    assert [joules[i] for i in np.flatnonzero(np.array(names) == "each line")] == pytest.approx(of_sets, rel=1e-3)
    assert joules[names.index("sum")] == pytest.approx(summed, rel=1e-3)


def test_start_resets_and_continue_adds(server):
    counter = server.counter("gpu0")
    first = measure(counter, (0.03, 0.02))
    assert [s.number for s in first.sets] == [0, 1]
    assert first.sets[0].end_ns < first.sets[1].begin_ns
    again = measure(counter, (0.02,))
    assert len(again.sets) == pm.pm_get_counter_num_sets(counter) == 1
    assert again.sets[0].begin_ns > first.sets[1].end_ns
    pm.pm_continue_counter(counter)
    time.sleep(0.02)
    pm.pm_stop_counter(counter)
    more = pm.pm_get_counter_data(counter)
    assert more.sets[0].begin_ns == again.sets[0].begin_ns
    assert (len(more.sets), len(first.sets)) == (2, 2)


def test_calls_in_the_wrong_order(server):
    counter = server.counter("gpu0", "0", name="c")

    def refused(*calls):
        for call in calls:
            with pytest.raises(ConfigError, match="'c'"):
                call(counter)

    refused(pm.pm_stop_counter, pm.pm_get_counter_data)
    pm.pm_start_counter(counter)
    refused(pm.pm_start_counter, pm.pm_continue_counter, pm.pm_get_counter_data)
    pm.pm_stop_counter(counter)
    refused(pm.pm_calculate_energy)
    pm.pm_start_counter(counter)
    pm.pm_finalize_counter(counter)
    refused(pm.pm_start_counter, pm.pm_stop_counter, pm.pm_get_counter_data, pm.pm_finalize_counter)


def test_a_powerd_that_stops_sending(daemon, tmp_path, monkeypatch):
    monkeypatch.setattr(counters, "_PATIENCE_S", 0.3)
    with pm.Server(daemon.url, tmp_path / "run.h5") as server:
        counter = server.counter("gpu0", name="c")
        counter.start()
        time.sleep(0.05)
        PAUSED.set()
        try:
            begun_ns = counter._begun[1] + 1
            wait_for(lambda: [server._reader.update(), server._reader.reaches(["gpu0.rail_0"], begun_ns)][1])
            time.sleep(0.1)
            counter.stop()
            with pytest.warns(UserWarning, match="have no readings"):
                data = counter.get_data()
            assert data.sets[0].missing_s([0, 1]) > 0.05
            counter.start()
            counter.stop()
            with pytest.raises(PeerError, match="gpu0.rail_0"):
                counter.get_data()
        finally:
            PAUSED.clear()


@pytest.mark.parametrize("is_initialized", [True, False])
def test_counters_wait_for_a_gpu_that_is_in_use(server, monkeypatch, is_initialized):
    waits, name = [], f"on a gpu: {is_initialized}"
    cuda = SimpleNamespace(is_initialized=lambda: is_initialized, synchronize=lambda: waits.append(1))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    measure(server.counter("gpu0", name=name))
    documents = [json.loads(t) for p in server._reader.journal.glob("*.names") for t in p.read_text().splitlines()]
    timings = {d["timing"] for d in documents if d.get("name") == name}
    assert (len(waits), timings) == ((2, {"host", "host-synchronised"}) if is_initialized else (0, {"host"}))


SCRIPT = """
import sys, time
sys.stdout = open(sys.argv[1], "w")
from powerd_client.pmlib import *
server = pm_set_server("elsewhere", out="elsewhere.h5")
counter = pm_create_counter("gpu0", pm_set_lines("0"), 1, 0, server, name="joined")
pm_start_counter(counter)
time.sleep(0.05)
pm_stop_counter(counter)
print(len(pm_get_counter_data(counter).sets[0].readings[0].t_ns), pm_calculate_energy(counter))
"""


def test_a_script_under_joules_record_joins_its_run(daemon, tmp_path):
    out, printed = tmp_path / "run.h5", tmp_path / "printed"
    command = [sys.executable, "-c", SCRIPT, str(printed)]
    assert record_command(command, url=daemon.url, out=out, overwrite=False, quiet=True) == 0
    count, joules = printed.read_text().split()
    assert int(count) > 40
    run = read_run(out)
    assert [run.phases.classes[i].name for i in run.phases.label] == ["joined"]
    assert integrals(run)[0] == pytest.approx(2 * float(joules), rel=1e-3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["printed", "run.h5", "run.h5.journal.gz"]


def test_the_example_runs_on_the_simulated_board(tmp_path):
    command = [sys.executable, "examples/pmlib_script.py", "--sim", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert {p.name for p in tmp_path.iterdir() if p.suffix != ".gz"} == {
        "pmlib.h5", "matmul.csv", "matmul.prv", "matmul.pcf", "matmul.row"
    }  # fmt: skip
    run = read_run(tmp_path / "pmlib.h5")
    assert {line.provenance.value for line in run.lines.values()} == {"simulated"}
    printed = float(done.stdout.split(" J in 3 sets")[0].split()[-1])
    assert integrals(run).sum() == pytest.approx(printed, rel=2e-3)


def test_the_surface():
    made_here = {n for n in vars(counters) if n.startswith(("pm_", "LINE_"))}
    others = {"Counter", "CounterData", "CounterSet", "DeviceInfo", "Lines", "Server"}
    assert set(pm.__all__) == made_here | others
    assert all(hasattr(pm, name) for name in pm.__all__)
