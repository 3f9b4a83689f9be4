"""Hostile peers against whole powerds on real sockets, with and without keys: none dies, and no reader misses a frame?

Each job besieges a powerd of its own: floods of whole messages, parts without end, heartbeats hidden among them,
connections that stop half-way, are half closed or reset; where powerd has keys also floods by a client that may read.
A reader beside them insists on every number of the stream. Release 0.1.0 aborts within a second.

Target: every powerd lives, no reader misses a number. Exit status 1 when one does not.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path

from common import machine, options, progress

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fuzzing.target_sockets import Siege


def besiege(job: int, seed: int, seconds: float) -> Counter[str]:
    """Every second job has keys. What was sent, and how many frames the reader got without a hole."""
    chance, end = random.Random(f"{seed}/{job}"), time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as directory:
        keys = Path(directory) / "keys" if job % 2 else None
        with closing(Siege(keys)) as siege:
            before_mib = siege.powerd.memory_mib()
            try:
                while time.monotonic() < end:
                    siege.harass(chance.randbytes(64))
                    if keys is not None:
                        siege.flood_by_a_client(6000)
            except AssertionError as error:
                print(f"  job {job} with seed {seed}: {error}", flush=True)
                siege.tally["broken"] = 1
            siege.tally["read"] = siege.reader.next
            siege.tally["memory_mib"] = round(siege.powerd.memory_mib() - before_mib) if siege.powerd.is_alive() else 0
            return siege.tally


def main() -> int:
    args = options(__doc__, seconds=30.0, jobs=2, seed=1)
    print(f"{args.jobs} powerds under siege for {args.seconds:g} s ({machine()})")
    with ProcessPoolExecutor(args.jobs) as pool:
        jobs = [pool.submit(besiege, job, args.seed, args.seconds) for job in range(args.jobs)]
        for done, job in enumerate(jobs):
            progress(f"{done} of {args.jobs} sieges are over")
            job.result()
    progress("")
    for name, chosen in (("without keys", jobs[::2]), ("with keys", jobs[1::2])):
        tally: Counter[str] = Counter()
        for job in chosen:
            tally.update(job.result())
        if chosen:
            print(
                f"  {name:12}: {tally['connections']} connections, {tally['resets']} of them reset, {tally['frames']} "
                f"frames sent, {tally['refused']} connections refused meanwhile; readers got {tally['read']} frames "
                f"without a hole, memory grew by {tally['memory_mib'] / len(chosen):.0f} MiB on the average"
            )
    broken = sum(job.result()["broken"] for job in jobs)
    print(f"  powerds that died, or readers that missed something: {broken} of {args.jobs}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
