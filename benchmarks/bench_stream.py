"""From powerd to the recorder on this machine: 8 lines x 20 kHz for 60 s from a source of ready-made blocks.

Target: no reading lost, p99 age at the recorder under 50 ms. Prints the CPU shares of both sides. Exit status 1
when the target is missed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import cpu_seconds, machine, options, powerd, progress

from powerd_client import Meter, open_run

P99_LIMIT_MS = 50
SOURCE = '[[source]]\nkind = "ready_blocks:ReadyBlocks"\nname = "rails"\nrate_hz = {rate}\n'


def main() -> int:
    args = options(__doc__, seconds=60.0, rate_hz=20_000.0)
    with (
        tempfile.TemporaryDirectory() as directory,
        powerd(SOURCE.format(rate=args.rate_hz), server="ring_mib = 256") as (url, pid),
    ):
        out = Path(directory) / "run.h5"
        meter = Meter(url, out)
        begun, cpu = time.monotonic(), cpu_seconds(pid)
        while (spent := time.monotonic() - begun) < args.seconds:
            progress(f"{spent:.0f} of {args.seconds:.0f} s")
            time.sleep(0.5)
        daemon_share = (cpu_seconds(pid) - cpu) / (time.monotonic() - begun)
        closing = time.monotonic()
        meter.close()
        closing = time.monotonic() - closing
        progress("")
        with open_run(out) as file:
            reception = json.loads(file.attrs["reception"])
            distances = np.diff(file["lines/gpu0.line_7/t_board_ns"][:])
            readings = sum(len(line["t_ns"]) for line in file["lines"].values())
            gaps = len(file["gaps/lost"])
    period = round(1e9 / args.rate_hz)
    lost = int((distances // period - 1).sum())
    evenly = bool((distances == period).all())
    print(f"powerd to recorder, 8 lines x {args.rate_hz:g} Hz for {args.seconds:g} s ({machine()})")
    print(f"  readings {readings:,}, lost {lost}, gaps {gaps}, distances all one period: {evenly}")
    ages = [reception[f"age_{which}_ms"] for which in ("p50", "p99", "max")]
    print("  age of a block's oldest reading at the recorder: p50 {} ms, p99 {} ms, max {} ms".format(*ages))
    print("  (blocks of 10 ms, sent every 20 ms)")
    print(f"  CPU shares of one core: powerd {daemon_share:.1%}, recorder {reception['recorder_cpu_share']:.1%}")
    print(f"  {reception['bytes'] / reception['elapsed_s'] / 1e6:.2f} MB/s; closing and writing HDF5 {closing:.1f} s")
    is_met = not lost and not gaps and ages[1] < P99_LIMIT_MS
    verdict = "met" if is_met else "MISSED"
    print(f"  target: nothing lost, p99 {ages[1] / P99_LIMIT_MS:.0%} of {P99_LIMIT_MS} ms: {verdict}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
