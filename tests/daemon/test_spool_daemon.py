"""Whole powerds with a spool: killed and started again, with rings too short, with clients that do not read."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daemon_harness import PATIENCE_S, Client, following, running, steady_config

from powerd_core import Block, Gap, Message, Want
from powerd_core.serde import read_description


def eventually(ask: Callable[[], Any], is_so: Callable[[Any], bool]) -> Any:
    """The first answer of which ``is_so`` holds."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if is_so(answer := ask()):
            return answer
        time.sleep(0.01)
    raise AssertionError(answer)


class Process:
    """A `powerd run` of its own process group, with one test source at 1 kHz."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        config = directory / "powerd.toml"
        config.write_text(
            f'[server]\nlisten = "ipc://{directory}/s"\nring_mib = 0.02\nspool = "{directory}/spool"\n'
            'spool_sync_s = 0.1\n[[source]]\nkind = "steady_source:SteadySource"\n'
        )
        command = [sys.executable, "-P", "-m", "powerd_daemon", "run", "--config", str(config), "--quiet"]
        self.process = subprocess.Popen(command, start_new_session=True)
        # What the one before left has no listener: only an answer tells that this one serves.
        self.epoch = self.description().epoch

    def description(self) -> Any:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            assert self.process.poll() is None
            with Client(f"ipc://{self.directory}/s") as control:
                control.send(Message("describe"))
                if (answer := control.receive(0.3)) is not None:
                    return read_description(answer.body)
        raise AssertionError("it does not answer")

    def client(self, suffix: str = "") -> Client:
        return Client(f"ipc://{self.directory}/s{suffix}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)


@contextmanager
def ended(*processes: Process) -> Iterator[None]:
    try:
        yield
    finally:
        for one in processes:
            if one.process.poll() is None:
                one.process.terminate()
                one.process.wait(PATIENCE_S)


def rest_of(process: Process, epoch: int, begin: int, end: int) -> list[Block | Gap]:
    with process.client(".data") as data:
        data.send(Want(0, epoch, begin, 10_000, reset=True))
        events: list[Block | Gap] = []
        while begin < end:
            event = data.receive()
            assert isinstance(event, Block | Gap)
            assert (event.epoch, event.sequence) == (epoch, begin)
            events.append(event)
            begin = following(event)
    return events


def test_a_killed_powerd_goes_on_serving_what_it_had(tmp_path: Path) -> None:
    first = Process(tmp_path)
    with ended(first), first.client() as control, first.client(".data") as data:
        live = data.frames(0, 0, lambda got: len(got) >= 30)
        eventually(control.stats, lambda s: s["spool"]["streams"][0]["safe"] >= 30)
        first.kill()
    second = Process(tmp_path)
    with ended(second), second.client() as control:
        assert second.epoch != first.epoch
        answer = eventually(lambda: control.ask(Message("epochs")).body, lambda body: body["ready"])
        (held,) = answer["epochs"]
        assert read_description(held["description"]).epoch == held["epoch"] == first.epoch
        ((number, oldest, end),) = [(s["number"], s["oldest"], s["next"]) for s in held["streams"]]
        assert (number, oldest) == (0, 0)
        assert end >= 30
        events = rest_of(second, first.epoch, 0, end)
        assert events[:30] == live[:30]
        assert all(isinstance(e, Block) for e in events)
        stats = control.stats()
        assert stats["replayed_frames"] >= end
        assert stats["spool"]["archive"] == {"ready": True, "epochs": 1}


def test_an_end_in_order_loses_nothing(tmp_path: Path) -> None:
    config = steady_config(tmp_path, server=f'spool = "{tmp_path}/spool"')
    with running(config) as powerd, powerd.data() as data, powerd.control() as control:
        assert control.ask(Message("epochs")).body == {"ready": True, "epochs": []}
        data.frames(0, 0, lambda got: len(got) >= 5)
        epoch = powerd.daemon.epoch
    said = next(line for line in powerd.said.getvalue().splitlines() if " frames" in line and "stream 0" in line)
    count = int(said.rpartition(" in ")[2].split()[0])
    assert f"spool {tmp_path}/spool: 1024 MiB last" in powerd.said.getvalue()
    with running(config) as powerd, powerd.control() as control:
        answer = eventually(lambda: control.ask(Message("epochs")).body, lambda body: body["ready"])
        assert [(e["epoch"], e["streams"][0]["next"]) for e in answer["epochs"]] == [(epoch, count)]


def test_what_a_short_ring_has_let_go_is_read_from_disk(tmp_path: Path) -> None:
    config = steady_config(tmp_path, server=f'spool = "{tmp_path}/spool"\nring_mib = 0.01')
    with running(config) as powerd, powerd.data() as data, powerd.control() as control:
        stats = eventually(control.stats, lambda s: s["streams"][0]["oldest"] > 50)
        events = data.frames(0, 0, lambda got: got[-1].sequence > stats["streams"][0]["newest"] if got else False)
        assert all(isinstance(e, Block) for e in events)
        stats = control.stats()
        assert stats["streams"][0]["held_s"] < 1
        assert stats["spool"]["error"] == ""
        assert stats["spool"]["dropped_frames"] == 0
        assert stats["spool"]["segments"] == 1
        (client,) = stats["clients"]
        assert 50 < client["replayed"] <= client["frames"] == stats["sent_frames"]
        assert client["evicted"] == 0
