"""Record the runs of the simulated board that tests/e2e/test_truth.py reads: `python record.py [NAME ...]`.

They go into the current directory. Each recording differs, so the tables of a new one have to be pinned anew.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import zmq

from powerd_client import Meter
from powerd_client.hostclock import now_ns
from powerd_client.link import BoardLink
from powerd_daemon.sources.sim.waveforms import CardLoad, waveform_from_detail

URL = "tcp://127.0.0.1:7391"
SERVER = f'[server]\nlisten = "{URL}"\nboard = "truth"\n'
RAILS = '[[source]]\nkind = "sim"\nname = "rails"\nrate_hz = {rate}\nseed = {seed}\n'
SENSORS = """
[[source.sensors]]
name = "slot"
address = 0x40
shunt_ohm = 0.02
nominal_v = 12.0
shunt_adc = "avg2"
bus_adc = "10bit"
[[source.sensors]]
name = "connector"
address = 0x41
shunt_ohm = 0.02
nominal_v = 12.0
shunt_adc = "avg2"
bus_adc = "10bit"
"""
MODEL = '[[source]]\nkind = "cpu-model"\nname = "cpu"\n'
FAULTS = 'fault_every_s = 0.2\nfaults = ["nack", "eio", "brown-out"]\n'
RAPL = '[[source]]\nkind = "rapl"\nname = "counters"\nrate_hz = 20.0\nroot = "powercap"\n'
ZONES = {"intel-rapl:0": ("package-0", 65_532_610_987, 45.0), "intel-rapl:0:0": ("dram", 65_712_999_613, 6.0)}


def load_of(url: str) -> CardLoad:
    """The load of the simulated board at ``url``."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = BoardLink(context, url)
    try:
        streams = link.describe(10).streams
    finally:
        link.close()
        context.destroy(linger=0)
    return waveform_from_detail(next(s.detail for s in streams if "waveform" in s.detail))


@contextlib.contextmanager
def powerd(config: str) -> Iterator[int]:
    """`powerd run` with this configuration; gives its process id."""
    path = Path("truth.toml")
    path.write_text(config)
    process = subprocess.Popen(["powerd", "run", "--config", path.name, "--quiet"])
    try:
        time.sleep(2)
        yield process.pid
    finally:
        process.terminate()
        process.wait(10)
        path.unlink()


def until(t_ns: int) -> None:
    """Sleep until then."""
    time.sleep(max(0, t_ns - now_ns()) * 1e-9)


def step_by_step(meter: Meter, seconds: float, load: CardLoad) -> None:
    """Iterations whose phases begin and end where the load steps, with the wait for data at their end."""
    start = now_ns() + 200_000_000
    phases = list(load.waveform.phases(start, start + round(seconds * 1e9)))  # type: ignore[attr-defined]
    first = next(i for i, (name, begin, _) in enumerate(phases) if name == "forward" and begin >= start)
    for i in range(first, len(phases) - 3, 4):
        until(phases[i][1])
        with meter.phase("iteration"):
            for name, _, end in phases[i : i + 4]:
                with meter.phase("data" if name == "idle" else name):
                    until(end)


def freely(meter: Meter, seconds: float, scale: float = 1.0) -> None:
    """Iterations that know nothing of the load."""
    draw, end = random.Random(7600), time.monotonic() + seconds
    while time.monotonic() < end:
        with meter.phase("iteration"):
            for name, length_s in (("data", 0.015), ("forward", 0.045), ("backward", 0.09), ("update", 0.02)):
                with meter.phase(name):
                    time.sleep(scale * length_s * draw.uniform(0.95, 1.05))


def train(meter: Meter, batch_size: int, iterations: Callable[[], None]) -> None:
    """A training of a model that sleeps."""
    with meter.phase("training", model="sleeper", batch_size=batch_size, operations_per_sample=2.5e9):
        iterations()


def record_sim() -> None:
    """Two batch sizes, one along the load and one across it."""
    with powerd(SERVER + RAILS.format(rate=200.0, seed=7600) + SENSORS + MODEL):
        load = load_of(URL)
        with Meter(URL, "sim.h5", overwrite=True) as meter:
            with meter.phase("warm-up"):
                time.sleep(0.7)
            train(meter, 16, lambda: step_by_step(meter, 8, load))
            time.sleep(0.5)
            train(meter, 32, lambda: freely(meter, 8))
            time.sleep(0.3)


def record_ranks() -> None:
    """Two ranks that share the simulated card, under `joules record`."""
    with powerd(SERVER + RAILS.format(rate=100.0, seed=7601) + MODEL):
        record = ["joules", "record", "--quiet", "--overwrite", "--url", URL, "--out", "ranks.h5", "--baseline", "1"]
        ranks = ["python", "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        subprocess.run(
            [*record, "--", *ranks, "record.py", "--rank"], check=True, env=os.environ | {"POWERD_JOB": "truth"}
        )


def one_rank() -> None:
    """What each of them does."""
    with Meter(out="ranks.h5") as meter:
        train(meter, 16, lambda: freely(meter, 6, 1 + 0.2 * int(os.environ["RANK"])))


def record_gaps() -> None:
    """A bus with faults, a sampler that is killed, and counters of a processor's energy that go round."""
    stop, microjoules = threading.Event(), {}
    for directory, (name, range_uj, watts) in ZONES.items():
        zone = Path("powercap", directory)
        zone.mkdir(parents=True)
        (zone / "name").write_text(name)
        (zone / "max_energy_range_uj").write_text(str(range_uj))
        counter = (zone / "energy_uj").open("wb", buffering=0)
        microjoules[counter] = (range_uj, range_uj - 6e6 * watts, watts)
    start = time.monotonic()

    def count() -> None:
        while not stop.wait(0.002):
            elapsed = time.monotonic() - start
            for counter, (range_uj, first, watts) in microjoules.items():
                if 8 < elapsed < 8.4:
                    counter.truncate(0)  # no number: the readings fail
                else:
                    os.pwrite(counter.fileno(), b"%-12d" % (int(first + watts * 1e6 * elapsed) % range_uj), 0)

    def kill(parent: int) -> None:
        time.sleep(5)
        os.kill(min(children(parent)), signal.SIGKILL)  # the first source's, the rails'

    thread = threading.Thread(target=count)
    thread.start()
    try:
        with powerd(SERVER + RAILS.format(rate=100.0, seed=7602) + FAULTS + RAPL) as daemon:
            killer = threading.Thread(target=kill, args=(daemon,))
            with Meter(URL, "gaps.h5", overwrite=True) as meter:
                killer.start()
                train(meter, 16, lambda: freely(meter, 6))
                train(meter, 32, lambda: freely(meter, 6, 1.5))
            killer.join()
    finally:
        stop.set()
        thread.join()
        for counter in microjoules:
            counter.close()
        shutil.rmtree("powercap")


def children(pid: int) -> list[int]:
    """Processes that this one started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


def main() -> None:
    """Record those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="sim, ranks, gaps; all without it")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        one_rank()
        return
    recordings = {"sim": record_sim, "ranks": record_ranks, "gaps": record_gaps}
    for name in args.names or recordings:
        recordings[name]()


if __name__ == "__main__":
    sys.exit(main())
