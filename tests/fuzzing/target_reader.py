"""A byte stream in any pieces: the events of the whole, nothing held beyond one frame, nothing lost unreported."""

from __future__ import annotations

from fuzzing.frames import any_frame
from fuzzing.picker import Picker
from powerd_core.wire import FrameReader, Garbage


def one(data: bytes) -> None:
    picker = Picker(data)
    stream = bytearray()
    for _ in range(picker.below(6)):
        frame = any_frame(picker) if picker.flip() else picker.take(picker.below(80))
        if frame and picker.rarely():
            frame = frame[: picker.below(len(frame))]
        stream += frame
    cuts = sorted({picker.below(len(stream) + 1) for _ in range(picker.below(6))})
    pieces = [bytes(stream[a:b]) for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole, split = _read([bytes(stream)]), _read(pieces)
    assert repr(whole) == repr(split)
    assert sum(size for _, size in whole) == len(stream)


def _read(pieces: list[bytes]) -> list[tuple[object, int]]:
    reader, found, fed = FrameReader(), [], 0
    for piece in pieces:
        fed += len(piece)
        found += list(reader.feed(piece))
        assert reader.pending <= fed
    found += list(reader.close())
    assert reader.pending == 0
    return [(e, e.count if isinstance(e, Garbage) else len(frame)) for e, frame in found]
