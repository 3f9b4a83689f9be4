"""Runs a simulated campaign in children that are killed with SIGKILL at random moments; then lets the last one finish.

kill_campaign.py FOLDER KILLS prints how many were killed, and how many states of the journal these moments met. The
campaign is in FOLDER/killed; FOLDER/whole has the same one, undisturbed.
"""

import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from powerd_analytics.campaigns.campaign_file import design_of
from powerd_analytics.campaigns.journal import NAME, Journal
from powerd_analytics.campaigns.runner import Blocks, Runner, begin
from powerd_analytics.campaigns.simulated import Simulated

DESIGN = design_of({
    "campaign": {"name": "killed", "command": ["train"]},
    "factors": {"power_cap_w": {"from": 100, "to": 260, "step": 5}},
    "order": {"reference": {"power_cap_w": "default"}},
    "repeats": {"min": 8, "max": 12, "until": {"metric": "energy_j", "half_width": 0.01}},
    "simulation": {"network": "vgg19", "iterations": 100, "noise": 0.01, "throttled": 0.1},
})  # fmt: skip


@dataclass
class Slow:
    """The simulated card, with a run file, and runs that last a moment."""

    inner: Simulated

    def ranges(self):
        return self.inner.ranges()

    def run(self, item, attempt, file):
        file.write_bytes(b"half")
        time.sleep(0.001)
        file.write_bytes(b"a whole run")
        return self.inner.run(item, attempt, file)


def work(folder: Path) -> None:
    card = Simulated.named(DESIGN, "sim:rtx6000")
    with Journal(folder) as journal:
        design = begin(DESIGN, card, journal)
        Runner(design, Blocks(design), Slow(Simulated(design, card.card)), journal).run()


def size(folder: Path) -> int:
    journal = folder / NAME
    return journal.stat().st_size if journal.exists() else 0


def main(root: Path, kills: int) -> None:
    folder = root / "killed"
    draw, killed, states = random.Random(1), 0, set()
    for _ in range(kills):
        pid = os.fork()
        if not pid:
            work(folder)
            while True:  # at its end, too, it is killed
                time.sleep(1)
        # A busy machine may take long until the child is at work: so wait for what it writes, and then a moment more.
        wanted, until_s = size(folder) + draw.randrange(1200), time.monotonic() + 5.0
        while size(folder) < wanted and time.monotonic() < until_s:
            time.sleep(0.0005)
        time.sleep(draw.uniform(0.0, 0.004))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        killed += os.WIFSIGNALED(status)
        states.add(size(folder))
    work(folder)
    work(root / "whole")
    print(json.dumps({"killed": killed, "at different states": len(states)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
