"""Writes frames.txt: every type of frame as the firmware encodes it. Only for a new version of the protocol."""

import struct
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "firmware"))

from powernode import protocol  # noqa: E402

WORDS = struct.pack("<hHhH", -1234, 0x5DC2, 31999, 0)
SENSORS = ((0, 0x40, 0x3C4F, 1), (1, 0x4F, 0x399F, 0))
CONFIGURE = struct.pack("<IB", 4000, 2) + b"".join(struct.pack("<BBH", *s[:3]) for s in SENSORS)
BODIES = {
    "data": protocol.data(65535, 0xFFFFFFFE, 1, 2, 480, WORDS),
    "description": protocol.description(7, 1000, 0xDEADBEEF, bytes(range(8)), 2, 1, 15, 4000, SENSORS),
    "echo_answer": protocol.echo_answer(8, 2000, 1990),
    "edge": protocol.edge(9, 3000, 1),
    "status": protocol.status(10, 4000, 0xDEADBEEF, 1, 0, 12, (1, 2, 3, 4, 5, 6)),
    "answer": protocol.answer(11, 5000, protocol.CONFIGURE, protocol.RUNNING),
    "describe": protocol.head(protocol.DESCRIBE, 12, 0),
    "configure": protocol.head(protocol.CONFIGURE, 13, 0) + CONFIGURE,
    "start": protocol.head(protocol.START, 14, 0),
    "stop": protocol.head(protocol.STOP, 15, 0),
    "echo": protocol.head(protocol.ECHO, 16, 0),
}

if __name__ == "__main__":
    (HERE / "frames.txt").write_text("".join(f"{name} {protocol.encode(b).hex()}\n" for name, b in BODIES.items()))
