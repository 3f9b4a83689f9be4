"""Whole powerds with a spool: ended and started again, with rings too short. `tests/faults` kills them."""

from __future__ import annotations

from pathlib import Path

from daemon_harness import following, running, steady_config

from powerd_core import Block, Gap, Message, Want
from powerd_core.serde import read_description
from support.steady import wait_for


def test_an_end_in_order_loses_nothing_and_the_next_life_serves_it(tmp_path: Path) -> None:
    config = steady_config(tmp_path, server=f'spool = "{tmp_path}/spool"\nring_mib = 0.02')
    with running(config) as powerd, powerd.data() as data, powerd.control() as control:
        assert control.ask(Message("epochs")).body == {"ready": True, "epochs": []}
        live = data.frames(0, 0, lambda got: len(got) >= 30)
        epoch = powerd.daemon.epoch
    said = next(line for line in powerd.said.getvalue().splitlines() if " frames" in line and "stream 0" in line)
    count = int(said.rpartition(" in ")[2].split()[0])
    assert f"spool {tmp_path}/spool: 1024 MiB last" in powerd.said.getvalue()
    with running(config) as powerd, powerd.control() as control, powerd.data() as data:
        answer = wait_for(lambda: body if (body := control.ask(Message("epochs")).body)["ready"] else None)
        (held,) = answer["epochs"]
        assert read_description(held["description"]).epoch == held["epoch"] == epoch != powerd.daemon.epoch
        assert held["streams"] == [{"number": 0, "oldest": 0, "next": count}]
        data.send(Want(0, epoch, 0, 10_000, reset=True))
        events: list[Block | Gap] = []
        while not events or following(events[-1]) < count:
            events.append(data.receive())
        assert events[:30] == live[:30]
        assert [e.sequence for e in events if isinstance(e, Block) and e.epoch == epoch] == list(range(count))
        stats = control.stats()
        assert stats["replayed_frames"] >= count
        assert stats["spool"]["archive"] == {"ready": True, "epochs": 1}


def test_what_a_short_ring_has_let_go_is_read_from_disk(tmp_path: Path) -> None:
    config = steady_config(tmp_path, server=f'spool = "{tmp_path}/spool"\nring_mib = 0.04')
    with running(config) as powerd, powerd.data() as data, powerd.control() as control:
        stats = control.stats_when(lambda s: s["streams"][0]["oldest"] > 5)
        events = data.frames(0, 0, lambda got: got[-1].sequence > stats["streams"][0]["newest"] if got else False)
        assert all(isinstance(e, Block) for e in events)
        stats = control.stats()
        assert stats["spool"]["error"] == ""
        assert stats["spool"]["dropped_frames"] == 0
        assert stats["spool"]["segments"] == 1
        (client,) = stats["clients"]
        assert 50 < client["replayed"] <= client["frames"] == stats["sent_frames"]
        assert client["evicted"] == 0
