"""The simulated WT310E as a USBTMC device, by FunctionFS: 60 W, exactly. Arguments: the mounted FunctionFS, and the
gadget's UDC file with the name of the controller to bind it to.

Messages as in the USBTMC 1.0 specification: DEV_DEP_MSG_OUT, REQUEST_DEV_DEP_MSG_IN, DEV_DEP_MSG_IN.
"""

import os
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "daemon/support"))

from simulated_wt310e import SimWt310

WATTS = 60.0
OUT, IN = 1, 2
"""Message types; a request for an answer and the answer have the same."""
HEADER = struct.Struct("<BBBxIBxxx")
GET_CAPABILITIES, SETUP = 7, 4
ANSWER_S = 5.0


def descriptors() -> bytes:
    """One interface of class USBTMC with two bulk endpoints, at full and at high speed."""
    parts = b""
    for packet in (64, 512):
        parts += struct.pack("<BBBBBBBBB", 9, 4, 0, 0, 2, 0xFE, 3, 0, 1)
        parts += struct.pack("<BBBBHB", 7, 5, 0x01, 2, packet, 0) + struct.pack("<BBBBHB", 7, 5, 0x82, 2, packet, 0)
    return struct.pack("<IIIII", 3, 20 + len(parts), 3, 3, 3) + parts


def serve_control(control: int) -> None:
    """Answer the driver's questions; the one with data is that for the capabilities, of which there are none."""
    while True:
        event = os.read(control, 12)
        kind, request, _value, _index, size = struct.unpack_from("<BBHHH", event)
        if event[8] != SETUP:
            continue
        with suppress(OSError):  # unplugged meanwhile
            if kind & 0x80:
                answer = bytes([1, 0, 0, 1]) + bytes(20) if request == GET_CAPABILITIES else bytes([1])
                os.write(control, answer[:size])
            else:
                os.read(control, 0)


def serve_one(meter: SimWt310, to_us: int, to_host: int) -> None:
    """Take a message, or send an answer that is asked for."""
    message = os.read(to_us, 4096)
    kind, tag, _, size, _ = HEADER.unpack_from(message)
    if kind == OUT:
        text = message[HEADER.size : HEADER.size + size].rstrip(b"\r\n") + b"\r\n"
        meter.receive(text, time.monotonic_ns())
    elif kind == IN:
        answer, end_s = b"", time.monotonic() + ANSWER_S
        while not answer.endswith(b"\n") and time.monotonic() < end_s:
            answer += meter.transmit(time.monotonic_ns())
            time.sleep(0.001)
        if answer:
            padded = answer + bytes(-len(answer) % 4)
            os.write(to_host, HEADER.pack(IN, tag, ~tag & 0xFF, len(answer), 1) + padded)


def serve(path: Path) -> None:
    """Answer until the machine ends."""
    meter = SimWt310(lambda begin_ns, end_ns: WATTS * (end_ns - begin_ns) * 1e-9, time.monotonic_ns(), byte_ns=0)
    to_us, to_host = os.open(path / "ep1", os.O_RDWR), os.open(path / "ep2", os.O_RDWR)
    while True:
        try:
            serve_one(meter, to_us, to_host)
        except OSError:  # unplugged: it may be plugged again
            time.sleep(0.1)


def main() -> None:
    path = Path(sys.argv[1])
    control = os.open(path / "ep0", os.O_RDWR)
    os.write(control, descriptors())
    text = b"USBTMC\0"
    os.write(control, struct.pack("<IIIIH", 2, 16 + 2 + len(text), 1, 1, 0x409) + text)
    threading.Thread(target=serve_control, args=(control,), daemon=True).start()
    Path(sys.argv[2]).write_text(sys.argv[3])
    print("bound", flush=True)
    serve(path)


if __name__ == "__main__":
    main()
