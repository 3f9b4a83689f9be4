"""How the faults around powerd and the recorder are made: of the node, the network, the disk, and the sensor bus."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator

from faults.acts import act, no_room
from faults.processes import stopped, throttled, wait_for
from faults.stage import Stage
from powerd_client.journal import journal_path

CHOKE_SHARE = 1 / 3
SLOW_S = 0.3


@act("node", "kill")
def _(stage: Stage) -> Iterator[None]:
    assert stage.node is not None
    stage.node.end(signal.SIGKILL)
    stage.node_link.unlink()
    yield
    stage.plug()


@act("node", "restart")
def _(stage: Stage) -> Iterator[None]:
    assert stage.node is not None
    stage.node.end(signal.SIGKILL)
    stage.plug()
    yield


@act("node", "stop")
def _(stage: Stage) -> Iterator[None]:
    with stopped(lambda: [stage.node.pid] if stage.node else []):
        yield


@act("node", "slow")
def _(stage: Stage) -> Iterator[None]:
    with throttled(lambda: [stage.node.pid] if stage.node else []):
        yield


@act("node", "garbage")
def _(stage: Stage) -> Iterator[None]:
    done = threading.Event()

    def work() -> None:
        while not done.wait(0.1):
            if stage.node is not None:
                stage.node.tell("garbage")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@act("node", "full")
def _(stage: Stage) -> Iterator[None]:
    with stopped(stage.samplers):
        yield


def _network(kind: str, begins: str) -> None:
    def made(stage: Stage) -> Iterator[None]:
        stage.network(begins)
        yield
        stage.network("pass")

    act("network", kind)(made)


_network("kill", "cut")
_network("five-minute cut", "cut")
_network("stop", "stall")
_network("restart", "reset")
_network("slow", "slow 0.2 200000")
_network("garbage", "spoil 0.1 both")


@act("network", "full")
def _(stage: Stage) -> Iterator[None]:
    scan_bytes = 8 + 10 * stage.scale.lines
    needed = scan_bytes * stage.scale.rate_hz
    stage.network(f"slow 0 {needed * CHOKE_SHARE:.0f}")
    yield
    stage.network("pass")


def _disk(kind: str, word: str, *more: object) -> None:
    def made(stage: Stage) -> Iterator[None]:
        stage.disk.write_text(" ".join(map(str, (word, journal_path(stage.out), *more))))
        yield
        stage.disk.unlink()

    act("disk", kind)(made)


_disk("stop", "hang")
_disk("restart", "broken")
_disk("slow", "slow", SLOW_S)


@act("disk", "kill")
def _(stage: Stage) -> Iterator[None]:
    # Ended by the stage's end: it is never good again as long as the run lasts.
    stage.disk.write_text(f"broken {journal_path(stage.out)}")
    yield


@act("disk", "garbage")
def _(stage: Stage) -> Iterator[None]:
    journal = journal_path(stage.out) / "journal.bin"
    wait_for("the journal has something to be damaged", lambda: journal.stat().st_size > 30_000)
    with journal.open("r+b") as file:
        file.seek(journal.stat().st_size // 2)
        file.write(random.Random(1).randbytes(4096))
    yield


@act("disk", "full")
def _(stage: Stage) -> Iterator[None]:
    with no_room(stage):
        yield


def _bus(kind: str, word: str) -> None:
    def made(stage: Stage) -> Iterator[None]:
        stage.script.write_text(word)
        yield
        stage.script.unlink()

    act("sensor bus", kind)(made)


_bus("kill", "dead")
_bus("stop", "stuck")
_bus("restart", "brown-out")
_bus("slow", "latency")
_bus("garbage", "wrong-device")
