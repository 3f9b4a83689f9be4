"""Frames that wait for a disk, on a real one of one megabyte where that can be had."""

import contextlib
import errno
import os
import subprocess

import pytest

from powerd_client import backlog as backlogs
from powerd_client.backlog import RESERVE_BYTES, Backlog
from powerd_client.journalfile import read_events
from powerd_core.marks import RECORD, Marks
from powerd_core.model import Block, ClockExchange, Gap
from powerd_core.wire import Garbage, Message
from support.fake_daemon import make_block, make_stream

SECOND_NS = 1_000_000_000
STREAM = make_stream()


@pytest.fixture
def small_disk(tmp_path):
    """A directory on a file system of one megabyte."""
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def fill(directory):
    """Take all the space there is; returns the file that holds it."""
    with (directory / "filler").open("wb", buffering=0) as file:
        for size in (4096, 512, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return directory / "filler"


def block(sequence):
    return make_block(STREAM, 5, sequence, 1000 * sequence, [7] * 50)


def events_in(directory):
    return [event for event, _, _ in read_events(directory / "journal.bin")]


def test_what_waited_is_written_when_there_is_room_again(small_disk):
    backlog = Backlog(small_disk)
    backlog.add(block(0))
    backlog.flush(0)
    filler = fill(small_disk)
    for number in range(1, 50):
        backlog.add(block(number))
    backlog.flush(0)
    assert backlog.failure.errno == errno.ENOSPC
    filler.unlink()
    backlog.flush(SECOND_NS // 2)
    assert not backlog.is_empty  # the disk is tried once a second
    backlog.flush(SECOND_NS)
    assert backlog.is_empty
    assert backlog.failure is None
    assert [e.sequence for e in events_in(small_disk)] == list(range(50))
    backlog.close()


def test_at_the_end_gaps_take_the_place_of_what_does_not_fit(small_disk):
    backlog = Backlog(small_disk)
    backlog.add(block(0))
    backlog.flush(0)
    fill(small_disk)
    for number in range(1, 50):
        backlog.add(block(number))
        for k in range(200):
            backlog.add(ClockExchange(5, number * 1000 + k, 2, 3, 4))
    backlog.add(Marks(9, 0, bytes(RECORD.size)))
    backlog.add(Gap(0, 5, 50, 0, 60_000, 3, 7, "sensor"))
    backlog.add(Message("stop", {"t_stop_ns": 1}))
    backlog.flush(0)
    assert backlog.give_up("full") == 49 * 50 + 7
    first, *rest, gap = events_in(small_disk)
    assert (first.sequence, type(first)) == (0, Block)
    assert (gap.sequence, gap.span, gap.lost, gap.t_last_ns, gap.cause) == (1, 52, 49 * 50 + 7, 60_000, "full")
    assert rest[0] == Message("stop", {"t_stop_ns": 1})
    exchanges = [e for e in rest if isinstance(e, ClockExchange)]
    assert exchanges[0].t1_host_ns == 1000
    assert exchanges[-1].t1_host_ns > 49_000  # thinned, not cut off
    assert (small_disk / "journal.bin").stat().st_size < RESERVE_BYTES
    backlog.close()


def test_a_disk_that_takes_not_even_the_gaps(tmp_path, monkeypatch):
    backlog = Backlog(tmp_path)
    backlog.add(block(0))

    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "write", refuse)
    backlog.flush(0)
    assert backlog.failure.errno == errno.EROFS
    with pytest.raises(OSError, match="Read-only"):
        backlog.give_up("read-only")
    monkeypatch.undo()
    backlog.close()


def test_half_a_write_is_taken_back_even_when_that_fails_at_first(tmp_path, monkeypatch):
    backlog = Backlog(tmp_path)
    write, truncate = os.write, os.ftruncate
    backlog.add(block(0))
    backlog.flush(0)
    backlog.add(block(1))

    def write_half(descriptor, data, calls=[]):  # noqa: B006
        calls.append(1)
        if len(calls) > 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(descriptor, data[: len(data) // 2])

    def refuse(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "write", write_half)
    monkeypatch.setattr(os, "ftruncate", refuse)
    backlog.flush(0)
    monkeypatch.undo()
    assert os.ftruncate is truncate
    backlog.flush(SECOND_NS)
    assert [type(e) for e in events_in(tmp_path)] == [Block, Block]
    assert not [e for e in events_in(tmp_path) if isinstance(e, Garbage)]
    backlog.close()


def test_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(backlogs, "MAX_BYTES", 1000)
    backlog = Backlog(tmp_path)
    assert not backlog.is_full
    backlog.add(block(0))
    assert backlog.is_full
    backlog.flush(0)
    assert not backlog.is_full
    backlog.close()
