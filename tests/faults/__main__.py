"""Run cells by name: ``python -m faults [--full] recorder-kill-middle ...``; without names, the quick ones."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor

from faults.cell import run_cell
from faults.scale import FULL, QUICK
from faults.table import cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="*")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--lanes", type=int, default=1)
    arguments = parser.parse_args()
    chosen = [
        (cell, moment)
        for cell, moment in cells("all" if arguments.name else "quick")
        if not arguments.name or any(f"{cell.name}-{moment}".startswith(name) for name in arguments.name)
    ]
    bad = 0
    with ThreadPoolExecutor(arguments.lanes) as pool:
        for o in pool.map(lambda c: run_cell(*c, FULL if arguments.full else QUICK), chosen):
            a = o.account
            print(
                f"{o.name}: fault {o.fault_s:.1f} s, sent {a.sent}, received {a.received}, replayed {a.replayed}, "
                f"lost {a.lost} ({a.lost_s:.2f} s), declared {a.declared}, steps {o.steps}; others {o.clients_frames}",
                flush=True,
            )
            bad += bool(o.problems)
            for problem in o.problems:
                print(f"    {problem}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
