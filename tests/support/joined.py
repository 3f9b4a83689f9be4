"""A recording that a process finds around it (``joules record``), made of frames whose readings last for some seconds
from now on: windows of these seconds have their joules at once, and no process runs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from pathlib import Path

from powerd_client.host.hostclock import now_ns
from powerd_client.journals.journal import RUN_ENVIRONMENT
from powerd_core.model import (
    Accuracy,
    Block,
    ClockExchange,
    Column,
    Conversion,
    CounterConversion,
    Description,
    Device,
    Line,
    Provenance,
    ScaledConversion,
    Stream,
)
from powerd_core.serde import to_document
from powerd_core.wire import Message, encode
from support.small_run import RUN, claim_journal

EPOCH, OFFSET_NS, PERIOD_NS, BEFORE_NS = 5, 10**9, 5_000_000, 1_000_000_000
SECONDS = 6
Watts = Callable[[float], float]
"""Of seconds since the recording was made."""


def join_recording(
    folder: Path,
    monkeypatch,
    gpus: Mapping[str, Watts],
    rapl: Mapping[str, Watts] | None = None,
    *,
    provenance: Provenance = Provenance.SIMULATED,
) -> Path:
    """The journal of such a recording. ``gpus`` are devices, ``rapl`` lines such as ``cpu0.package_0``."""
    begin_ns = now_ns()
    gpu_stream = _stream(0, "nvml", Column("power_mw", "I"), ScaledConversion("power_mw", 1e-3), provenance, [
        (f"{name}.nvml", name) for name in gpus
    ])  # fmt: skip
    devices = [Device(name, (f"{name}.nvml",), f"Card of {name}", uuid=f"GPU-{name}-0000") for name in gpus]
    streams, powers = [gpu_stream] * bool(gpus), [[*gpus.values()]] * bool(gpus)
    if rapl:
        counted = CounterConversion("energy_uj", 1e-6)
        streams.append(
            _stream(
                1, "rapl", Column("energy_uj", "Q"), counted, Provenance.MEASURED, [(line, "cpu0") for line in rapl]
            )
        )
        powers.append([*rapl.values()])
        devices.append(Device("cpu0", tuple(rapl), "processors"))
    description = Description("board", "0", EPOCH, "CLOCK_MONOTONIC_RAW", "", tuple(streams), tuple(devices), "")
    frames = [
        encode(Message("run", RUN)),
        encode(Message("start", {"t_start_ns": begin_ns - BEFORE_NS})),
        encode(Message("description", to_document(description), EPOCH)),
    ]
    for stream, own in zip(streams, powers, strict=True):
        frames.append(encode(_block(stream, own, begin_ns)))
    frames += [
        encode(ClockExchange(EPOCH, t - 1000, t - OFFSET_NS, t - OFFSET_NS, t + 1000))
        for t in range(begin_ns - BEFORE_NS, begin_ns + SECONDS * 10**9, 200_000_000)
    ]
    journal = claim_journal(folder / "joined.h5")
    (journal / "journal.bin").write_bytes(b"".join(frames))
    monkeypatch.setenv(RUN_ENVIRONMENT, str(journal))
    return journal


def _stream(
    number: int,
    source: str,
    column: Column,
    conversion: Conversion,
    provenance: Provenance,
    lines: list[tuple[str, str]],
) -> Stream:
    accuracy = Accuracy(0.01)
    every = tuple(Line(name, device, conversion, provenance, accuracy) for name, device in lines)
    return Stream(number, source, (column,), every, PERIOD_NS, {})


def _block(stream: Stream, powers: list[Watts], begin_ns: int) -> Block:
    times = range(begin_ns - BEFORE_NS, begin_ns + SECONDS * 10**9, PERIOD_NS)
    column = stream.columns[0]
    codes, counted_uj = array(column.typecode), [0.0] * len(powers)
    for t in times:
        for i, watts in enumerate(powers):
            power_w = watts((t - begin_ns) * 1e-9)
            counted_uj[i] += power_w * PERIOD_NS * 1e-3
            codes.append(round(power_w * 1e3 if column.name == "power_mw" else counted_uj[i]))
    t_board = array("q", [t - OFFSET_NS for t in times])
    dt, flags = array("i", bytes(4 * len(codes))), array("H", bytes(2 * len(codes)))
    payload = b"".join(a.tobytes() for a in (t_board, dt, flags, codes))
    return Block(stream.number, EPOCH, 0, t_board[0], t_board[-1], len(t_board), stream.layout, payload)
