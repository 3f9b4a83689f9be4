"""A journal directory of any contents: a run file that holds to its own rules, or one `RunFileError`."""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
from pathlib import Path

from fuzzing.frames import (
    EPOCH,
    STREAMS,
    any_frame,
    description_document,
    good_block,
    likely_block,
    likely_gap,
    message,
    sealed,
)
from fuzzing.picker import Picker, expect, spoiled
from powerd_client.journals.journal import journal_path, packed_path
from powerd_client.runs.build import build_run
from powerd_client.runs.verify import verify_file
from powerd_core import wire
from powerd_core.errors import RunFileError
from powerd_core.marks import RECORD
from powerd_core.model import ClockExchange

_FOLDER = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
_OUT = _FOLDER / f"fuzz-run-{os.getpid()}.h5"
_OFFSET_NS = 10**12
_OURS = ("structure", "checksums", "metadata", "gaps", "counts")
_RUN = {"run_id": "ab", "created_utc": "2026-01-01T00:00:00+00:00", "powerd_version": "0", "command": ["x"],
        "environment": {"host": "h"}}  # fmt: skip


def one(data: bytes) -> None:
    picker = Picker(data)
    journal = journal_path(_OUT)
    shutil.rmtree(journal, ignore_errors=True)
    for left in (_OUT, packed_path(_OUT)):
        left.unlink(missing_ok=True)
    journal.mkdir()
    (journal / "journal.bin").write_bytes(_journal(picker) if picker.flip() else _likely_journal(picker))
    _write_marks(picker, journal)
    try:
        missing = build_run(journal, _OUT)
    except RunFileError as error:
        expect(len(str(error)) < 2000, error)
        assert journal.is_dir(), "a journal that could not be used was removed"
        return
    assert journal.is_dir() == bool(missing) != packed_path(_OUT).exists()
    # What a board said of its readings is kept as it was said; the form and the tables are ours to get right.
    wrong = [f for f in verify_file(_OUT) if f.state == "wrong" and f.check in _OURS]
    assert not wrong, f"a run file that breaks its own rules: {wrong[:3]}"


def _likely_journal(picker: Picker) -> bytes:
    """A run as it is recorded, with a little wrong in it."""
    parts = [
        message("run", _spoiled(dict(_RUN), picker)),
        message("start", _spoiled({"t_start_ns": _OFFSET_NS}, picker)),
    ]
    document = description_document()
    parts.append(message("description", _spoiled(document, picker), EPOCH))
    for n in range(picker.below(10)):
        t_ns = 1_000_000_000 + n * 300_000_000
        parts += [
            _reading(picker, n, t_ns) if picker.rarely() else wire.encode(good_block(stream, n, t_ns))
            for stream in STREAMS
        ]
        t_host_ns = t_ns + _OFFSET_NS
        exchange = ClockExchange(EPOCH, t_host_ns - 10_000, t_ns, t_ns, t_host_ns + 10_000)
        parts.append(_exchange(picker) if picker.rarely() else wire.encode(exchange))
    parts += _rest(picker)
    body = {"t_stop_ns": _OFFSET_NS + 5_000_000_000, "complete": picker.flip(), "reception": {"frames": 3}}
    parts.append(message("stop", _spoiled(body, picker)))
    return b"".join(parts)


def _journal(picker: Picker) -> bytes:
    """Frames that belong into journals, of any contents, in any order."""
    parts = [message("run", _spoiled(dict(_RUN), picker))]
    for _ in range(picker.below(24)):
        how = picker.below(8)
        if how == 0:
            parts.append(any_frame(picker))
        elif how == 1:
            parts.append(message("description", _spoiled(description_document(), picker), picker.one_of((EPOCH, 8))))
        elif how == 2:
            parts.append(_exchange(picker))
        elif how == 3:
            parts += _rest(picker)
        elif how == 4:
            parts.append(picker.take(picker.below(60)))
        else:
            parts.append(_reading(picker, picker.below(12), picker.signed(64)))
    return b"".join(parts)


def _spoiled(document: dict[str, object], picker: Picker) -> object:
    return spoiled(document, picker) if picker.rarely() else document


def _reading(picker: Picker, sequence: int, t_ns: int) -> bytes:
    stream = picker.one_of(STREAMS)
    how = picker.below(3)
    if how == 0:
        return likely_gap(picker, stream, sequence)
    if how == 1 and abs(t_ns) < 1 << 62:
        return wire.encode(good_block(stream, sequence, t_ns))
    return likely_block(picker, stream, sequence)


def _exchange(picker: Picker) -> bytes:
    times = struct.pack("<4q", *(picker.signed(64) for _ in range(4)))
    return sealed(wire.CLOCK, times, epoch=picker.one_of((EPOCH, EPOCH, 8, picker.unsigned(64))))


def _rest(picker: Picker) -> list[bytes]:
    """Phases, notes and whatever else a recorder says."""
    parts = []
    process = picker.one_of((1, 2, picker.unsigned(64)))
    for kind in range(picker.below(3)):
        named = {"process": process, "kind": kind, "name": picker.text(), "attributes": {"batch": 4}, "timing": "host"}
        parts.append(message("phase-names", _spoiled(named, picker)))
    records = b"".join(
        RECORD.pack(picker.one_of((0, -1, 1, -2, picker.signed(32))), picker.below(3), _t_mark(picker, i))
        for i in range(picker.below(8))
    )
    parts.append(
        sealed(wire.MARKS, records, epoch=process, sequence=picker.below(4), count=len(records) // RECORD.size)
    )
    note = {"t_ns": _OFFSET_NS, "level": "warning", "text": picker.text()}
    parts.append(message(picker.one_of(("note", "note", "epoch", "start", "x")), _spoiled(note, picker)))
    return parts


def _t_mark(picker: Picker, number: int) -> int:
    return picker.signed(64) if picker.rarely() else _OFFSET_NS + 1_000_000_000 + number * 1_000_000


def _write_marks(picker: Picker, journal: Path) -> None:
    """What training processes left beside the journal."""
    for _ in range(picker.below(3)):
        token = picker.one_of((f"{1:016x}", f"{2**63:016x}", "x", "-", "f" * 20))
        if picker.flip():
            documents = [_spoiled({"kind": 0, "name": picker.text(), "attributes": {}, "timing": "host"}, picker)]
            text = "".join(json.dumps(d) + "\n" for d in documents)
            (journal / f"marks-{token}.names").write_bytes(text.encode("utf-8", "surrogatepass") + picker.take(4))
        else:
            number = picker.one_of(("000000", "000001", "x", "-1", "9" * 30))
            (journal / f"marks-{token}-{number}.bin").write_bytes(picker.take(picker.below(100)))
