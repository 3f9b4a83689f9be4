"""The node's own decoder against the host's, and its main loop against any commands."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from fuzzing.picker import Picker
from powerd_core.errors import WireError
from powerd_daemon.sources.node.protocol import Deframer as HostDeframer
from powerd_daemon.sources.node.protocol import decode_frame, encode_frame

ROOT = Path(__file__).parents[2]
for _folder in (ROOT / "firmware", ROOT / "tests" / "firmware" / "support"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

from powernode import protocol  # noqa: E402
from powernode.node import Node  # noqa: E402
from simulated_pico import SimulatedPico, chips  # noqa: E402


def one(data: bytes) -> None:
    picker = Picker(data)
    if picker.flip():
        return _commands(picker)
    encoded = picker.rest().replace(b"\0", b"\1")
    found = protocol.decode(encoded)
    try:
        assert decode_frame(encoded) == found
    except WireError:
        assert found is None
    ours, theirs = protocol.Deframer(), HostDeframer()
    assert ours.feed(data) == theirs.feed(data)
    assert ours.damaged == theirs.damaged
    return None


def _commands(picker: Picker) -> None:
    pico = SimulatedPico(chips(2))
    node = Node(pico)
    while picker.left:
        kind = picker.one_of((0x81, 0x82, 0x82, 0x83, 0x84, 0x85, picker.below(256)))
        body = struct.pack("<BBHI", 1 + picker.rarely(), kind, picker.unsigned(16), picker.unsigned(32))
        if kind == protocol.CONFIGURE:
            count = picker.below(10)
            body += struct.pack("<IB", picker.unsigned(32) if picker.rarely() else 4000, count)
            body += b"".join(
                struct.pack("<BBH", picker.below(3), 0x40 + picker.below(70), 0x3C4F) for _ in range(count)
            )
        if picker.rarely():
            body = body[: picker.below(len(body))] + picker.take(picker.below(200))
        pico.incoming += encode_frame(body[:240]) if body and not picker.rarely() else picker.take(40)
        for _ in range(40):
            node.step()
    # What it said can be read, and its memory is what it set aside.
    said = HostDeframer()
    said.feed(bytes(pico.outgoing))
    assert said.damaged == 0
