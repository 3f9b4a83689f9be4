"""A small recording as frames, as a journal and as a run file: two lines at 1 kHz, one training with ten iterations."""

from __future__ import annotations

import os
from pathlib import Path

from powerd_client.journals import journal
from powerd_client.journals.marks import MarkWriter
from powerd_client.runs import build
from powerd_client.runs.verify import verify_file
from powerd_core.model import ClockExchange
from powerd_core.serde import to_document
from powerd_core.wire import Message, encode
from support.fake_daemon import PERIOD_NS, make_block, make_description, make_stream

EPOCH, OFFSET_NS = 5, 10**12
RUN = {
    "run_id": "ab",
    "created_utc": "2026-01-01T00:00:00+00:00",
    "powerd_version": "0",
    "command": ["x"],
    "environment": {"host": "h"},
}
STREAM = make_stream()


def exchange(t_board_ns: int, epoch: int = EPOCH) -> ClockExchange:
    t = t_board_ns + OFFSET_NS
    return ClockExchange(epoch, t - 10_000, t_board_ns, t_board_ns, t + 10_000)


def description(epoch: int = EPOCH) -> bytes:
    return encode(Message("description", to_document(make_description(STREAM, epoch)), epoch))


def frames(blocks: int = 30, scans: int = 40, epoch: int = EPOCH, start_ns: int = 0) -> list[bytes]:
    """Blocks and clock exchanges in turn, without the description."""
    made = []
    for k in range(blocks):
        t = start_ns + k * scans * PERIOD_NS
        made.append(encode(make_block(STREAM, epoch, k, t, [1000 + k] * scans)))
        made.append(encode(exchange(t, epoch)))
    return made


def head() -> list[bytes]:
    return [encode(Message("run", RUN)), encode(Message("start", {"t_start_ns": OFFSET_NS}))]


def stop(t_board_ns: int) -> list[bytes]:
    return [encode(Message("stop", {"t_stop_ns": t_board_ns + OFFSET_NS, "complete": True}))]


def whole(blocks: int = 30, scans: int = 40) -> list[bytes]:
    """All frames of a recording that ended in order."""
    return [*head(), description(), *frames(blocks, scans), *stop(blocks * scans * PERIOD_NS)]


def claim_journal(out: Path, *, overwrite: bool = False) -> Path:
    """The empty journal of the run file ``out``, which nobody owns."""
    directory, held = journal.claim(out, overwrite=overwrite)
    os.close(held)
    return directory


def make_journal(out: Path, pieces: list[bytes], *, marks: bool = True) -> Path:
    """The journal of the run file ``out``, with the marks still in their segment."""
    directory = claim_journal(out)
    (directory / "journal.bin").write_bytes(b"".join(pieces))
    if marks:
        writer = MarkWriter(directory)
        training, forward = writer.kind("training", {"batch_size": 4}, "host"), writer.kind("forward", {}, "host")
        t = OFFSET_NS + 50 * PERIOD_NS
        writer.mark_at(training, t)
        for k in range(10):
            writer.mark_at(forward, t + k * 100 * PERIOD_NS)
            writer.mark_at(~forward, t + (k * 100 + 60) * PERIOD_NS)
        writer.mark_at(~training, t + 1000 * PERIOD_NS)
        writer.event("result", {"top1": 0.71}, t + 900 * PERIOD_NS)
        writer.close()
    return directory


def make_run_file(out: Path, pieces: list[bytes] | None = None) -> Path:
    """The run file of a recording."""
    build.build_run(make_journal(out, whole() if pieces is None else pieces), out)
    return out


def wrong(path: Path) -> dict[str, str]:
    """What `verify_file` calls wrong in a run file, by check."""
    return {finding.check: finding.text for finding in verify_file(path) if finding.state == "wrong"}
