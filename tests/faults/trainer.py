"""A small training as a process of its own. Arguments: the address of powerd, the run file, a directory of keys or "".

Says as JSON, one object a line: ``ready`` with the recorder's process id, ``steps`` now and then, and at the end how
many steps it made, how long the longest took, and that it has closed its run. Commands on standard input: ``burst``
makes many marks at once, ``finish`` (or the end of the input) ends the training.
"""

import json
import os
import select
import sys
import time

from powerd_client import Meter
from powerd_client.host.hostclock import now_ns

STEP_S = 0.01
REPORT_STEPS = 10
BURST_MARKS = 150_000


def say(**message):
    os.write(1, json.dumps(message).encode() + b"\n")


def commands():
    while select.select([0], [], [], 0)[0]:
        data = os.read(0, 4096)
        if not data:
            yield "finish"
            return
        yield from data.decode().split()


def main():
    url, out, keys = sys.argv[1:]
    meter = Meter(url, out, **({"keys": keys} if keys else {}))
    training, step = meter.phase("training", batch_size=8), meter.phase("step")
    forward, backward, burst = meter.phase("forward"), meter.phase("backward"), meter.phase("burst")
    say(ready=True, recorder=meter._recording.pid, t_ns=now_ns())
    steps, longest_s, going = 0, 0.0, True
    with training:
        while going:
            began = time.monotonic()
            with step:
                with forward:
                    time.sleep(STEP_S / 2)
                with backward:
                    time.sleep(STEP_S / 2)
            steps += 1
            longest_s = max(longest_s, time.monotonic() - began)
            if steps % REPORT_STEPS == 0:
                say(steps=steps)
            for command in commands():
                if command == "burst":
                    for _ in range(BURST_MARKS):
                        with burst:
                            pass
                going = going and command != "finish"
    t_close_ns = now_ns()
    say(closing=True, t_ns=t_close_ns, steps=steps, longest_s=longest_s)
    began = time.monotonic()
    meter.close()
    say(closed=True, close_s=time.monotonic() - began)


main()
