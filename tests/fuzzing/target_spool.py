"""A spool directory of any contents, as a power cut or a failing disk leaves it: frames and gaps, and never an end."""

from __future__ import annotations

from fuzzing.frames import (
    EPOCH,
    STREAMS,
    any_frame,
    description_document,
    good_block,
    likely_block,
    likely_gap,
    message,
)
from fuzzing.picker import Picker, spoiled
from powerd_core import wire
from powerd_daemon.spool import Catalogue, Place, Segment, segment_head


class Files:
    """A disk that holds what it was given."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def names(self) -> dict[str, int]:
        return {name: len(data) for name, data in self.files.items()}

    def read(self, name: str, size: int) -> bytes:
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name][:size]

    def remove(self, name: str) -> None:
        del self.files[name]


class AtOnce:
    """A worker that is never behind."""

    pending = 0

    def put(self, job: object) -> None:
        job()  # type: ignore[operator]


def one(data: bytes) -> None:
    picker = Picker(data)
    disk = Files(dict(_segment(picker, number) for number in range(1 + picker.below(3))))
    catalogue = Catalogue(disk, AtOnce())  # type: ignore[arg-type]
    asked = picker.value() if picker.rarely() else EPOCH
    wire.decode(wire.encode(wire.Message("epochs", catalogue.answer({"epoch": asked} if picker.flip() else {}), EPOCH)))
    for stream in (*STREAMS, None):
        number, epoch = 7 if stream is None else stream.number, picker.one_of((EPOCH, 8))
        shelf = catalogue.find_past(number, epoch)
        if shelf is None:
            continue
        at = picker.unsigned(64) if picker.rarely() else max(shelf.oldest - 1, 0)
        for _ in range(12):
            found = shelf.find(at) or shelf.find(at)  # the first asks the worker
            if found is None:
                break
            assert found[1] > at, "it would be sent for ever"
            event = wire.decode(found[0])
            assert (event.stream, event.sequence) == (number, at)  # type: ignore[union-attr]
            at = found[1]


def _segment(picker: Picker, number: int) -> tuple[str, bytes]:
    epoch = picker.one_of((EPOCH, EPOCH, 8))
    document = description_document() | {"epoch": epoch}
    description = message("description", spoiled(document, picker) if picker.rarely() else document, epoch)
    begin = 12 * number
    places = {s.number: Place(begin, 1_000_000 * begin) for s in STREAMS}
    if picker.rarely():
        places[picker.unsigned(16)] = Place(picker.unsigned(64), picker.signed(64))
    parts = [segment_head(description, epoch, places)]
    if picker.rarely():
        body = {"streams": picker.value()}
        parts = [description, message("segment", spoiled(body, picker), epoch)]
    for n in range(begin, begin + picker.below(12)):
        stream = picker.one_of(STREAMS)
        how = picker.below(8)
        if how == 0:
            parts.append(any_frame(picker))
        elif how == 1:
            parts.append(picker.take(picker.below(60)))
        elif how == 2:
            parts.append(likely_gap(picker, stream, n, epoch))
        elif how == 3:
            parts.append(likely_block(picker, stream, n, epoch))
        else:
            parts.append(wire.encode(good_block(stream, n, 1_000_000 * n, epoch)))
    data = b"".join(parts)
    if picker.rarely():
        data = data[: picker.below(len(data))]
    return Segment(epoch, number, len(data)).name, data
