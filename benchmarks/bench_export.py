"""What `powerd export` costs: a scrape of 1,000 lines, by the exporter itself and over HTTP.

    python benchmarks/bench_export.py

Target: 1,000 lines in less than 50 ms. Exit status 1 when it is missed.
"""

from __future__ import annotations

import statistics
import sys
import time
import urllib.request
from array import array
from types import SimpleNamespace

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.openmetrics.exposition import generate_latest

from powerd_client.accounting.exporter import Exporter
from powerd_client.energies.live import LiveBoard
from powerd_core.model import (
    Accuracy,
    Block,
    Column,
    Description,
    Device,
    Line,
    Provenance,
    ScaledConversion,
    Stream,
)

LINES, BLOCKS, SCANS, TIMES, TARGET_S = 1000, 5, 10, 20, 0.05


def board(lines: int) -> LiveBoard:
    """One powerd whose lines have told some readings."""
    own = tuple(
        Line(f"gpu{i // 10}.rail_{i % 10}", f"gpu{i // 10}", ScaledConversion("power_mw", 1e-3), Provenance.SIMULATED,
             Accuracy(0.01)) for i in range(lines)
    )  # fmt: skip
    stream = Stream(0, "fake", (Column("power_mw", "I"),), own, 1_000_000, {})
    devices = tuple(
        Device(f"gpu{i}", tuple(line.name for line in own if line.device == f"gpu{i}")) for i in range(lines // 10)
    )
    live = LiveBoard(Description("node", "0", 5, "CLOCK_MONOTONIC_RAW", "tcp://*:1", (stream,), devices, "tcp://*:2"))
    for number in range(BLOCKS):
        t = array("q", [(number * SCANS + i) * 1_000_000 for i in range(SCANS)])
        rest = array("i", [0] * SCANS * lines), array("H", [0] * SCANS * lines), array("I", [90_000] * SCANS * lines)
        payload = b"".join(a.tobytes() for a in (t, *rest))
        live.take(Block(0, 5, number, t[0], t[-1], SCANS, stream.layout, payload))
    return live


def main() -> int:
    exporter = Exporter(["tcp://node:7360"])
    powerd = SimpleNamespace(board=board(LINES), url="tcp://node:7360", trouble="", restarts=0, clock_bound_s=1e-4)
    exporter._listener = SimpleNamespace(powerds=[powerd])  # type: ignore[assignment]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(exporter)
    own, samples = [], 0
    for _ in range(TIMES):
        begin_s = time.perf_counter()
        text = generate_latest(registry)
        own.append(time.perf_counter() - begin_s)
        samples = sum(not line.startswith(b"#") for line in text.splitlines())
    server, _ = start_http_server(0, "127.0.0.1", registry)
    url, scraped = f"http://127.0.0.1:{server.server_port}/metrics", []
    for _ in range(TIMES):
        begin_s = time.perf_counter()
        with urllib.request.urlopen(url) as answer:
            answer.read()
        scraped.append(time.perf_counter() - begin_s)
    server.shutdown()
    for name, values in (("written", own), ("scraped over HTTP", scraped)):
        least, middle, most = min(values), statistics.median(values), max(values)
        print(f"{LINES} lines, {samples} samples, {name}: {1e3 * middle:.0f} ms (least {1e3 * least:.0f}, most "
              f"{1e3 * most:.0f}; target {1e3 * TARGET_S:.0f})")  # fmt: skip
    return 0 if statistics.median(scraped) < TARGET_S else 1


if __name__ == "__main__":
    sys.exit(main())
