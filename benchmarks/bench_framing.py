"""The node's serial line at the host: ten million bytes of noise and damaged frames, then good frames at full speed.

Targets: no exception but ours, no false frame beyond the CRC's odds, and many times the 23 kB/s that a node sends.
"""

from __future__ import annotations

import argparse
import random
import struct
import time

from common import machine, progress

from powerd_core.errors import WireError
from powerd_daemon.serial.framing import MAX_ENCODED, Deframer, encode_frame
from powerd_daemon.serial.protocol import Scan, decode_body

NODE_BYTES_PER_S = 23_000
"""Eight sensors, 500 scans a second."""
CHUNK = 4096


def scan_body(number: int) -> bytes:
    """A scan of eight sensors with codes that tell it from every other."""
    words = b"".join(struct.pack("<hH", (number * 7 + i) % 32000, 24000 + i * 8) for i in range(8))
    return struct.pack("<BBHIBBH", 1, 1, number & 0xFFFF, number * 2000 & 0xFFFFFFFF, 0xFF, 0, 1920) + words


def noise(random_: random.Random, size: int) -> bytes:
    """Random bytes with a zero every 46 on average, so that pieces are as long as frames."""
    raw = bytearray(random_.randbytes(size).replace(b"\0", b"\1"))
    for at in random_.sample(range(size), size // 46):
        raw[at] = 0
    return bytes(raw)


def damaged(random_: random.Random, frames: list[bytes]) -> bytes:
    """Frames of which each lost, gained or changed something: a few bits, a byte, a piece, its order."""
    made = []
    for frame in frames:
        copy, at = bytearray(frame), random_.randrange(len(frame) - 1)
        match random_.randrange(5):
            case 0:
                for _ in range(random_.randint(1, 6)):
                    copy[random_.randrange(len(copy) - 1)] ^= 1 << random_.randrange(8)
            case 1:
                del copy[at]
            case 2:
                copy.insert(at, random_.randrange(256))
            case 3:
                copy[at : at + random_.randint(2, 20)] = random_.randbytes(random_.randint(0, 20))
            case _:
                other = random_.choice(frames)
                copy[at:] = other[random_.randrange(len(other)) :]
        made.append(bytes(copy))
    return b"".join(made)


def hostile(size: int, seed: int) -> None:
    random_ = random.Random(seed)
    for name in ("noise", "damaged frames"):
        deframer, fed, false, events, number, most = Deframer(), 0, 0, 0, 0, 0
        begun = time.perf_counter()
        while fed < size // 2:
            true: set[bytes] = set()
            if name == "noise":
                data = noise(random_, 1 << 16)
            else:
                bodies = [scan_body(number + i) for i in range(1000)]
                number += len(bodies)
                true = set(bodies)
                data = damaged(random_, [encode_frame(b) for b in bodies])
            fed += len(data)
            for at in range(0, len(data), CHUNK):
                for body in deframer.feed(data[at : at + CHUNK]):
                    if body in true:
                        continue
                    false += 1
                    try:
                        decode_body(body)
                    except WireError:
                        continue
                    events += 1
                most = max(most, deframer.pending)
            progress(f"{name}: {fed / 1e6:.1f} MB")
        progress("")
        tried = deframer.damaged + false
        print(f"  {name}: {fed:,} bytes in {time.perf_counter() - begun:.1f} s, {tried:,} pieces that were no frame")
        print(
            f"    taken for a frame {false}, expected by the CRC's odds at most {tried / 65536:.1f}; "
            f"of these a usable event {events}; at most {most} of {MAX_ENCODED} bytes held"
        )
        if false > tried / 65536 + 5 * (tried / 65536) ** 0.5 + 1:
            raise SystemExit(f"{false} false frames are more than the CRC's odds allow")


def throughput(frames: int) -> None:
    stream = b"".join(encode_frame(scan_body(i)) for i in range(frames))
    deframer, events = Deframer(), 0
    begun = time.process_time()
    for at in range(0, len(stream), CHUNK):
        events += sum(isinstance(decode_body(body), Scan) for body in deframer.feed(stream[at : at + CHUNK]))
    spent = time.process_time() - begun
    rate = len(stream) / spent
    print(
        f"  good frames of {len(stream) / frames:.1f} bytes to events: {rate / 1e6:.2f} MB/s, "
        f"{rate / NODE_BYTES_PER_S:,.0f} times the {NODE_BYTES_PER_S / 1000:g} kB/s of a node; lost {frames - events}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(f"framing of the sensor node's serial line ({machine()})")
    hostile(args.bytes, args.seed)
    throughput(200_000)


if __name__ == "__main__":
    main()
