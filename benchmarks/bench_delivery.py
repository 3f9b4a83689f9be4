"""What powerd's delivery costs: throughput and age for 1, 4 and 16 clients, with and without CURVE; the highest rate
at which nothing is lost, against raw ZeroMQ with the same bytes; memory with a full ring.

Every client is a process of its own on this machine, so that clocks need no comparing. CURVE is what powerd does beyond
loopback: it listens on all addresses and the clients come over 127.0.0.1.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq
from common import HERE, cpu_seconds, machine, progress, wait_until

from powerd_client.hostclock import now_ns
from powerd_client.link import BoardLink
from powerd_core.model import Gap
from powerd_daemon.sockets import SEND_HWM

LINES = 8
SOURCE = '[[source]]\nkind = "ready_blocks:ReadyBlocks"\nname = "rails"\nrate_hz = {rate}\nblock_ms = {block_ms}\n'
READING_BYTES = 10
"""A reading of the benchmark's stream on the wire: time difference, flags, one 32-bit code."""


def keys(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "powerd_daemon", "keys", *arguments],
        env={**os.environ, "POWERD_KEYS": str(directory)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


@contextmanager
def serving(rate: float, *, curve: bool, block_ms: float = 10, server: str = "") -> Iterator[tuple[str, int, Path]]:
    """A powerd on tcp; yields address, process id and the directory of keys."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        directory = Path(name)
        host = "0.0.0.0" if curve else "127.0.0.1"
        port = free_port()
        config = directory / "powerd.toml"
        config.write_text(
            f'[server]\nlisten = "tcp://{host}:{port}"\n{server}\n'
            + (f'keys = "{directory}"\n' if curve else "")
            + SOURCE.format(rate=rate, block_ms=block_ms)
        )
        if curve:
            keys(directory, "server")
            keys(directory, "client")
            own = public_key(directory / "client.toml")
            keys(directory, "allow", "bench", own)
            keys(directory, "trust", f"127.0.0.1:{port}", public_key(directory / "server.toml"))
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "powerd_daemon", "run", "--config", config, "--quiet"],
            env={**os.environ, "PYTHONPATH": str(HERE), "POWERD_KEYS": str(directory)},
            start_new_session=True,
        )
        try:
            yield f"tcp://127.0.0.1:{port}", process.pid, directory
        finally:
            process.terminate()
            process.wait(10)


def free_port() -> int:
    """The first of three free ports in a row."""
    context = zmq.Context.instance()
    while True:
        sockets = [context.socket(zmq.ROUTER) for _ in range(3)]
        try:
            first = sockets[0].bind_to_random_port("tcp://127.0.0.1", min_port=20_000, max_port=50_000)
            for step in (1, 2):
                sockets[step].bind(f"tcp://127.0.0.1:{first + step}")
        except zmq.ZMQError:
            continue
        else:
            return first
        finally:
            for socket in sockets:
                socket.close(0)


def public_key(file: Path) -> str:
    import tomllib

    return str(tomllib.loads(file.read_text())["public"])


def receive(url: str, directory: str, seconds: float, found: multiprocessing.connection.Connection) -> None:
    """One client: takes everything for some seconds and tells what came, how old, and what was lost."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    os.environ["POWERD_KEYS"] = directory
    link = BoardLink(context, url)
    link.describe(10.0)
    ages = array("q")
    frames = size = lost = scans = 0
    begin_ns = now_ns()
    cpu = time.process_time()
    while now_ns() - begin_ns < seconds * 1e9:
        link.ask()
        if link.data is None or not link.data.poll(10):
            continue
        for event, frame in link.receive():
            frames += 1
            size += len(frame)
            if isinstance(event, Gap):
                lost += event.span
            else:
                scans += event.count
            ages.append(now_ns() - event.t_last_ns)
    elapsed = (now_ns() - begin_ns) / 1e9
    found.send((frames, size, lost, scans, elapsed, (time.process_time() - cpu) / elapsed, ages.tobytes()))
    link.close()
    context.destroy(0)


def measure(rate: float, clients: int, seconds: float, *, curve: bool, server: str = "") -> dict[str, float]:
    """All clients at once; rates are of the sum over the clients."""
    with serving(rate, curve=curve, server=server) as (url, pid, directory):
        started = multiprocessing.get_context("spawn")
        pipes = [started.Pipe(duplex=False) for _ in range(clients)]
        processes = [
            started.Process(target=receive, args=(url, str(directory), seconds, sender)) for _, sender in pipes
        ]
        for process in processes:
            process.start()
        cpu, begin = cpu_seconds(pid), time.monotonic()
        for receiver, _ in pipes:
            if not receiver.poll(seconds + 30):
                sys.exit("a client of the benchmark did not answer: see above")
        results = [receiver.recv() for receiver, _ in pipes]
        share = (cpu_seconds(pid) - cpu) / (time.monotonic() - begin)
        for process in processes:
            process.join()
    ages = array("q")
    for result in results:
        ages.frombytes(result[6])
    ordered = sorted(ages)
    return {
        "readings_per_s": sum(r[3] * LINES / r[4] for r in results),
        "bytes_per_s": sum(r[1] / r[4] for r in results),
        "lost": sum(r[2] for r in results),
        "p50_ms": ordered[len(ordered) // 2] / 1e6,
        "p99_ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] / 1e6,
        "powerd_cpu": share,
        "client_cpu": sum(r[5] for r in results) / clients,
        "complete": min(r[0] for r in results) / (seconds * 100),
    }


def raw_zeromq(frame_bytes: int, seconds: float) -> float:
    """Bytes a second that a Python loop moves from a ROUTER in one process to a DEALER in another over loopback."""
    started = multiprocessing.get_context("spawn")
    receiver, sender = started.Pipe(duplex=False)
    process = started.Process(target=_raw_sender, args=(frame_bytes, sender))
    process.start()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(receiver.recv())
    dealer.send(b"go")
    dealer.recv()
    size, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        size += len(dealer.recv())
    elapsed = time.perf_counter() - begin
    process.terminate()
    process.join()
    context.destroy(0)
    return size / elapsed


def _raw_sender(frame_bytes: int, ready: multiprocessing.connection.Connection) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.set(zmq.SNDHWM, SEND_HWM)
    router.set(zmq.ROUTER_MANDATORY, 1)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    ready.send(f"tcp://127.0.0.1:{port}")
    peer, _ = router.recv_multipart()
    frame = bytes(frame_bytes)
    while True:
        router.send_multipart([peer, frame])


def highest_rate(seconds: float, *, curve: bool) -> tuple[float, float]:
    """The highest of a series of rates, each 1.5 times the one before, that one client gets whole: scans a second and
    bytes a second.
    """
    best = (0.0, 0.0)
    rate = 500_000.0
    while True:
        found = measure(rate, 1, seconds, curve=curve, server="ring_mib = 256")
        whole = found["lost"] == 0 and found["complete"] > 0.97 and found["p99_ms"] < 1000
        progress(f"{rate:,.0f} scans a second {'whole' if whole else 'lost'}")
        if not whole:
            return best
        best = rate, found["bytes_per_s"]
        rate *= 1.5


def memory(ring_mib: int) -> tuple[float, float, float]:
    """Resident MiB of powerd's server process before and with a full ring of small frames, and the ring's own count."""
    server = f"ring_mib = {ring_mib}"
    with serving(10_000, curve=False, block_ms=1, server=server) as (url, pid, _):

        def held() -> float:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "powerd_daemon", "stats", url, "--json"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                return -1.0
            return float(json.loads(done.stdout)["streams"][0]["ring_bytes"])

        wait_until(lambda: held() >= 0)
        before = resident(pid)
        begun = held()
        deadline = time.monotonic() + 300
        while (now := held()) < 0.999 * ring_mib * (1 << 20) and time.monotonic() < deadline:
            progress(f"filling the ring: {now / (ring_mib << 20):.0%}")
            time.sleep(0.5)
        time.sleep(2)
        return before - begun / (1 << 20), resident(pid), held() / (1 << 20)


def resident(pid: int) -> float:
    """Resident MiB of one process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--ring-mib", type=int, default=32)
    args = parser.parse_args()
    print(f"delivery of 8 lines in blocks of 10 ms, sent every 20 ms, over loopback ({machine()})")
    print("  clients   scans/s  CURVE   readings/s    MB/s   age p50    p99      CPU of powerd  of a client   lost")
    lost = 0.0
    for rate in (1000.0, 20_000.0):
        for clients in (1, 4, 16):
            for curve in (False, True):
                progress(f"{clients} clients at {rate:g} scans a second, {'with' if curve else 'without'} CURVE")
                r = measure(rate, clients, args.seconds, curve=curve)
                progress("")
                lost += r["lost"]
                print(
                    f"  {clients:7}  {rate:8,.0f}  {'yes' if curve else 'no':>5}  {r['readings_per_s']:11,.0f}  "
                    f"{r['bytes_per_s'] / 1e6:6.2f}  {r['p50_ms']:5.1f} ms  {r['p99_ms']:5.1f} ms  "
                    f"{r['powerd_cpu']:12.1%}  {r['client_cpu']:11.1%}  {r['lost']:5.0f}"
                )
    for curve in (False, True):
        rate, size = highest_rate(max(3.0, args.seconds / 3), curve=curve)
        progress("")
        frame = 56 + round(rate / 100) * (8 + LINES * READING_BYTES)
        raw = raw_zeromq(frame, 3.0)
        print(
            f"highest rate that one client got whole, {'with' if curve else 'without'} CURVE: {rate:,.0f} scans/s of 8 "
            f"lines, {size / 1e6:.0f} MB/s; raw ZeroMQ moves frames of {math.ceil(frame / 1000)} kB at "
            f"{raw / 1e6:.0f} MB/s, {raw / size:.1f} times as much"
        )
    before, after, ring = memory(args.ring_mib)
    progress("")
    print(
        f"memory of powerd's server with a ring of {args.ring_mib} MiB full of frames of 0.9 kB: {after:.0f} MiB, "
        f"{before:.0f} MiB with an empty one: {(after - before) / args.ring_mib:.2f} MiB for each MiB asked for "
        f"(it counts {ring:.1f} MiB)"
    )
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
