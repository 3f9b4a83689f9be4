"""A script written for pmlib, on powerd: counters around a calculation, its energy, a CSV file and a Paraver trace.

    python examples/pmlib_script.py --sim
    python examples/pmlib_script.py --ip board --device gpu0 --lines 0-3

docs/howto/pmlib.md shows each of these calls beside the one in C.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from powerd_client.pmlib import (
    pm_calculate_energy,
    pm_close_server,
    pm_continue_counter,
    pm_create_counter,
    pm_finalize_counter,
    pm_get_counter_data,
    pm_get_counter_num_sets,
    pm_get_device_info,
    pm_get_devices,
    pm_print_data_csv,
    pm_print_data_paraver,
    pm_set_lines,
    pm_set_server,
    pm_start_counter,
    pm_stop_counter,
)
from powerd_core import PowerdError

SETS = 3


def calculate(seconds: float) -> None:
    """What is measured."""
    a = np.random.default_rng(1).random((256, 256))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        a = a @ a
        a /= np.abs(a).max()


def measure(args: argparse.Namespace) -> None:
    """Measure the calculation in several sets, and write what came out."""
    out = args.directory / "pmlib.h5"
    source = {"kind": "sim", "name": "card"} if args.sim else None
    server = pm_set_server(args.ip, args.port, out=out, source=source)
    print("devices:", ", ".join(pm_get_devices(server)))
    info = pm_get_device_info(server, args.device)
    lines = pm_set_lines(args.lines or f"0-{info.n_lines - 1}")
    counter = pm_create_counter(args.device, lines, 0, 0, server, name="matmul")

    pm_start_counter(counter)
    calculate(args.seconds)
    pm_stop_counter(counter)
    for _ in range(SETS - 1):
        time.sleep(args.seconds / 2)  # not measured
        pm_continue_counter(counter)
        calculate(args.seconds)
        pm_stop_counter(counter)

    pm_get_counter_data(counter)
    for i, line in enumerate(info.lines):
        if i in lines:
            print(f"  line {i}, {line.name}: {pm_calculate_energy(counter, pm_set_lines(str(i))):.4f} J")
    print(f"{pm_calculate_energy(counter, lines, -1):.4f} J in {pm_get_counter_num_sets(counter)} sets")
    pm_print_data_csv(args.directory / "matmul.csv", counter, lines, -1)
    pm_print_data_paraver(args.directory / "matmul.prv", counter, lines, -1, "us")
    pm_finalize_counter(counter)
    pm_close_server(server)
    print(f"The whole run, with uncertainties: joules tables {out}")


def main() -> int:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ip", help="host of the powerd (default: one of this machine's own)")
    parser.add_argument("--port", type=int, default=7360, help="its port")
    parser.add_argument("--sim", action="store_true", help="measure a simulated card")
    parser.add_argument("--device", default="gpu0", help="what to measure")
    parser.add_argument("--lines", help="which of its lines, such as 0-3,5 (default: all)")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of each set")
    parser.add_argument("--directory", type=Path, default=Path(), help="where the files go")
    args = parser.parse_args()
    try:
        measure(args)
    except PowerdError as error:
        print(f"pmlib_script: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
