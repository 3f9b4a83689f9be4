"""A Chrome trace of torch.profiler that something is added to: copied byte by byte, never held in memory.

torch.profiler dates its events in microseconds of the wall clock less ``baseTimeNanoseconds`` (since torch 2.4; before
that, of the wall clock itself). Kineto converts the CPU's counter and CUPTI's clock to that; the conversion is measured
at the profile's beginning and end.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from powerd_core.errors import AnalysisError

_CHUNK = 1 << 22
_EDGE = 8192
"""Bytes of one chunk that are seen again with the next: nothing that is looked for is longer."""
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
_TS = re.compile(rb'"ts"\s*:\s*"?(\d+(?:\.\d+)?)"?\s*[,}\s]')
_END = re.compile(rb'\}\s*\]\s*(,\s*"[^"]*"\s*:\s*("[^"]*"|[-\d.]+)\s*)*\}\s*$')
"""The last event, the end of the list, and whatever plain values the trace has behind it."""

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Profile:
    """What has to be known of a profile before something is put into it."""

    path: Path
    insert_at: int
    """Offset in the (unpacked) text, right behind the bracket that opens the events."""
    base_ns: int
    """Unix time of ``ts`` 0."""
    first_ns: int
    last_ns: int
    """Unix time of its events' beginnings."""


def read_profile(path: Path, progress: Progress = lambda share: None) -> Profile:
    """Look through a profile once. Raises `AnalysisError` for what is none, is cut off, or holds no event."""
    insert_at, base, low, high, has_events = -1, 0, float("inf"), 0.0, False
    at, tail = 0, b""
    for chunk, share in _chunks(path):
        progress(share)
        text = tail + chunk
        begin = at - len(tail)
        if insert_at < 0 and (found := _EVENTS.search(text)) is not None:
            insert_at = begin + found.end()
        if (found := _BASE.search(text)) is not None:
            base = int(found[1])
        times = [t for t in map(float, _TS.findall(text)) if t > 0]  # metadata of older torch is dated 0
        if times:
            low, high, has_events = min(low, *times), max(high, *times), True
        at += len(chunk)
        tail = text[-_EDGE:]
    if insert_at < 0:
        raise AnalysisError(f'{path} has no "traceEvents": it is no trace of torch.profiler (export_chrome_trace)')
    if not has_events:
        raise AnalysisError(f"{path} holds no events")
    if _END.search(tail) is None:
        raise AnalysisError(f"{path} is cut off: export it again")
    return Profile(path, insert_at, base, base + round(low * 1e3), base + round(high * 1e3))


def copy_with(
    profile: Profile, out: IO[bytes], added: Iterator[bytes], progress: Progress = lambda share: None
) -> None:
    """Write the profile to ``out`` with further events in front of its own. Everything of its own stays as it is."""
    at, is_inserted = 0, False
    for chunk, share in _chunks(profile.path):
        progress(share)
        cut = profile.insert_at - at
        if not is_inserted and cut <= len(chunk):
            out.write(chunk[:cut])
            for event in added:
                out.write(b"\n" + event + b",")
            out.write(chunk[cut:])
            is_inserted = True
        else:
            out.write(chunk)
        at += len(chunk)


def _chunks(path: Path) -> Iterator[tuple[bytes, float]]:
    """The unpacked text in pieces, with the share of the file that has been read."""
    try:
        size = max(path.stat().st_size, 1)
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            text: io.BufferedIOBase = gzip.GzipFile(fileobj=raw) if packed else raw
            while chunk := text.read(_CHUNK):
                yield chunk, raw.tell() / size
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise AnalysisError(f"{path} is cut off or damaged ({error}): export it again") from error
    except OSError as error:
        raise AnalysisError(f"{path} cannot be read: {error.strerror or error}") from error
