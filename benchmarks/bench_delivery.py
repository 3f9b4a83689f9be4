"""What powerd's delivery costs: throughput and age for 1, 4 and 16 clients, with and without CURVE; the highest rate
at which nothing is lost, against raw ZeroMQ with frames of the same size; memory with a full ring.

Every client is a process of its own on this machine, so that clocks need no comparing. CURVE is what powerd does beyond
loopback: it listens on all addresses and the clients come over 127.0.0.1. Target: nothing is lost (else exit status 1).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import zmq
from common import connected, cpu_seconds, free_port, machine, options, p50_p99_max, powerd, progress, wait_until

from powerd_client.host.hostclock import now_ns
from powerd_core.model import Gap
from powerd_daemon.sockets import SEND_HWM

LINES, RING_MIB = 8, 32
SOURCE = '[[source]]\nkind = "ready_blocks:ReadyBlocks"\nname = "rails"\nrate_hz = {rate}\nblock_ms = {block_ms}\n'
FRAME_BYTES, SCAN_BYTES = 56, 8 + LINES * 10
"""On the wire: a frame's header, and of each scan its time and for each line a time difference, flags and a code."""
SPAWN = get_context("spawn")


@contextmanager
def serving(rate: float, *, curve: bool, block_ms: float = 10, ring_mib: int = 256) -> Iterator[tuple[str, int, str]]:
    """A powerd on TCP; yields address, process id and the directory of keys."""
    with tempfile.TemporaryDirectory(prefix="bench-") as keys:
        environment, port = {"POWERD_KEYS": keys}, free_port()
        server = f"ring_mib = {ring_mib}\n"
        if curve:
            server += f'keys = "{keys}"\n'
            public = {}
            for name in ("server", "client"):
                key_command(keys, name)
                public[name] = tomllib.loads(Path(keys, f"{name}.toml").read_text())["public"]
            key_command(keys, "allow", "bench", public["client"])
            key_command(keys, "trust", f"127.0.0.1:{port}", public["server"])
        listen = f"tcp://{'0.0.0.0' if curve else '127.0.0.1'}:{port}"
        source = SOURCE.format(rate=rate, block_ms=block_ms)
        with powerd(source, server=server, listen=listen, environment=environment) as (_, pid):
            yield f"tcp://127.0.0.1:{port}", pid, keys


def key_command(keys: str, *words: str) -> None:
    command = [sys.executable, "-P", "-m", "powerd_daemon", "keys", *words]
    subprocess.run(command, env={**os.environ, "POWERD_KEYS": keys}, capture_output=True, check=True)


def receive(url: str, keys: str, seconds: float, results: Connection) -> None:
    """One client: takes everything for some seconds, and sends frames, bytes, blocks lost, scans a second, its share of
    a core and the blocks' ages [ns]."""
    os.environ["POWERD_KEYS"] = keys
    with connected(url) as link:
        ages = array("q")
        frames = size = lost = scans = 0
        begin_ns, cpu = now_ns(), time.process_time()
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
        elapsed, share = (now_ns() - begin_ns) / 1e9, time.process_time() - cpu
        results.send((frames, size / elapsed, lost, scans / elapsed, share / elapsed, ages.tobytes()))


def measure(rate: float, clients: int, seconds: float, *, curve: bool) -> dict[str, float]:
    """All clients at once; rates are of the sum over the clients."""
    with serving(rate, curve=curve) as (url, pid, keys):
        pipes = [SPAWN.Pipe(duplex=False) for _ in range(clients)]
        processes = [SPAWN.Process(target=receive, args=(url, keys, seconds, sender)) for _, sender in pipes]
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
    for *_, data in results:
        ages.frombytes(data)
    p50_ms, p99_ms, _ = p50_p99_max(ages, 1e6)
    return {
        "readings_per_s": sum(r[3] * LINES for r in results),
        "bytes_per_s": sum(r[1] for r in results),
        "lost": sum(r[2] for r in results),
        "p50_ms": p50_ms,
        "p99_ms": p99_ms,
        "powerd_cpu": share,
        "client_cpu": sum(r[4] for r in results) / clients,
        "complete": min(r[0] for r in results) / (seconds * 100),
    }


def raw_zeromq(frame_bytes: int, seconds: float) -> float:
    """Bytes a second that a Python loop moves from a ROUTER in one process to a DEALER in another over loopback."""
    receiver, sender = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=_send_raw, args=(frame_bytes, sender))
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


def _send_raw(frame_bytes: int, address: Connection) -> None:
    router = zmq.Context().socket(zmq.ROUTER)
    router.set(zmq.SNDHWM, SEND_HWM)
    router.set(zmq.ROUTER_MANDATORY, 1)
    address.send(f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}")
    peer, _ = router.recv_multipart()
    frame = bytes(frame_bytes)
    while True:
        router.send_multipart([peer, frame])


def highest_rate(seconds: float, *, curve: bool) -> tuple[float, float]:
    """Scans and bytes a second of the highest of a series of rates, each 1.5 times the one before, that one client gets
    whole."""
    best, rate = (0.0, 0.0), 500_000.0
    while True:
        r = measure(rate, 1, seconds, curve=curve)
        is_whole = r["lost"] == 0 and r["complete"] > 0.97 and r["p99_ms"] < 1000
        progress(f"{rate:,.0f} scans a second {'whole' if is_whole else 'lost'}")
        if not is_whole:
            return best
        best, rate = (rate, r["bytes_per_s"]), 1.5 * rate


def memory(ring_mib: int) -> tuple[float, float]:
    """Resident MiB of powerd's server process with an empty ring and with one full of small frames."""
    with serving(10_000, curve=False, block_ms=1, ring_mib=ring_mib) as (url, pid, _):

        def held_mib() -> float:
            command = [sys.executable, "-P", "-m", "powerd_daemon", "stats", url, "--json"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return -1.0 if done.returncode else float(json.loads(done.stdout)["streams"][0]["ring_bytes"]) / (1 << 20)

        wait_until(lambda: held_mib() >= 0)
        before = resident_mib(pid) - held_mib()
        deadline = time.monotonic() + 300
        while (held := held_mib()) < 0.999 * ring_mib and time.monotonic() < deadline:
            progress(f"filling the ring: {held / ring_mib:.0%}")
            time.sleep(0.5)
        time.sleep(2)
        return before, resident_mib(pid)


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def main() -> int:
    args = options(__doc__, seconds=10.0)
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
        frame = FRAME_BYTES + round(rate / 100) * SCAN_BYTES
        raw = raw_zeromq(frame, 3.0)
        print(
            f"highest rate that one client got whole, {'with' if curve else 'without'} CURVE: {rate:,.0f} scans/s of 8 "
            f"lines, {size / 1e6:.0f} MB/s; raw ZeroMQ moves frames of {frame / 1000:.0f} kB at "
            f"{raw / 1e6:.0f} MB/s, {raw / max(size, 1):.1f} times as much"
        )
    before, after = memory(RING_MIB)
    progress("")
    print(
        f"memory of powerd's server with a ring of {RING_MIB} MiB full of frames of 0.9 kB: {after:.0f} MiB, "
        f"{before:.0f} MiB with an empty one: {(after - before) / RING_MIB:.2f} MiB for each MiB asked for"
    )
    print(f"blocks lost: {lost:.0f} (target 0)")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
