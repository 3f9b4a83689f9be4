"""pmlib's protocol on the wire: programs that were compiled against pmlib's C library measure with a powerd.

`powerd pmlib [URL]` listens where such programs look for pmlib's server. Integers have 4 bytes and values 8, in this
machine's order; a text is its length and its bytes. Each request begins with its number:

    7 devices          6 device          8 status           9 live values
    0 a counter; its connection then takes   1 start  2 continue  3 stop  4 data  5 finalise

The library divides the time of a set, which it measures itself, evenly among the values that it gets. So the values of
a set are the mean powers of equal stretches of it, of which there are as many as the asked frequency says. Their mean
times the duration is the set's energy. Each counter is a recording of its own, with a run file for `joules`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import socketserver
import struct
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import zmq
from numpy.typing import NDArray

from powerd_client.journals.link import BoardLink
from powerd_client.pmlib.counters import Counter, Server, devices_of
from powerd_client.pmlib.readings import MAX_LINES, CounterSet, DeviceInfo, Lines
from powerd_core.errors import ConfigError, PeerError, PowerdError

CREATE, START, CONTINUE, STOP, GET, FINALISE, DEVICE, DEVICES, STATUS, LIVE = range(10)
_LONGEST_TEXT = 1024
_MASK_BYTES = MAX_LINES // 8
MAX_CONNECTIONS = 64
"""Each has a thread."""
MAX_COUNTERS = 16
"""Each is a recording, with two processes and some 50 MiB."""
MAX_VALUES = 1 << 22
"""Of one answer, 32 MiB: four hours of a line at 291 values a second."""
IDLE_S = 60.0
"""A connection that is no counter and asks nothing for so long is closed, and so is one that stops within a message."""
_UNKNOWN_V = float("nan")
"""pmlib tells a nominal voltage of each line; powerd measures it."""

log = logging.getLogger("powerd.pmlib")


def evenly(part: CounterSet, lines: Sequence[int], frequency_hz: float) -> NDArray[np.float64]:
    """Mean powers [lines, n] in watts of the n equal stretches into which a frequency divides a set.

    NaN where more than half of a stretch has no readings.
    """
    count = max(round((part.end_ns - part.begin_ns) * 1e-9 * frequency_hz), 1)
    edges = np.linspace(part.begin_ns, part.end_ns, count + 1).round().astype(np.int64)
    length_s = np.diff(edges) * 1e-9
    rows = []
    for line in lines:
        readings = part.readings[line]
        watts = readings.joules(edges[:-1], edges[1:]) / length_s
        rows.append(np.where(np.diff(readings.missing_until(edges)) > 0.5 * length_s, np.nan, watts))
    return np.array(rows)


class Wire:
    """One client's connection: what the protocol's messages are made of. Raises `EOFError` when the client is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                piece = self._connection.recv(size - len(data))
            except OSError:
                piece = b""
            if not piece:
                raise EOFError
            data += piece
        return data

    def number(self) -> int:
        return int(struct.unpack("=i", self.take(4))[0])

    def text(self) -> str:
        """Raises `ConfigError` for one that is no name."""
        size = self.number()
        if not 0 <= size <= _LONGEST_TEXT:
            raise ConfigError(f"a text of {size} bytes")
        return self.take(size).rstrip(b"\0").decode("utf-8", "replace")

    def lines(self) -> Lines:
        """A mask of lines, least significant bit first; an empty one means all."""
        size = self.number()
        if size != _MASK_BYTES:
            raise ConfigError(f"a mask of {size} bytes")
        bits = np.unpackbits(np.frombuffer(self.take(size), np.uint8), bitorder="little")
        return Lines(np.flatnonzero(bits).tolist()) if bits.any() else Lines.all()

    def give(self, *values: int | str | bytes) -> None:
        """Integers, texts with their lengths, and bytes as they are, at once."""
        message = b""
        for value in values:
            if isinstance(value, str):
                data = value.encode()
                message += struct.pack("=i", len(data)) + data
            else:
                message += value if isinstance(value, bytes) else struct.pack("=i", value)
        try:
            self._connection.sendall(message)
        except OSError:
            raise EOFError from None


class Service(socketserver.ThreadingTCPServer):
    """pmlib's server in front of the powerd at ``url``. Counters leave their run files in the working directory."""

    allow_reuse_address = True
    request_queue_size = 128
    daemon_threads = False

    def __init__(self, address: tuple[str, int], url: str) -> None:
        """Raises `OSError` when it cannot listen there."""
        self.url = url
        self.counters: dict[int, tuple[str, Counter]] = {}
        """By a number of its own: the client's address and the counter."""
        self.connections: set[socket.socket] = set()
        self._mutex = threading.Lock()
        self._numbers = self._taken = 0
        super().__init__(address, _Client)

    def describe(self) -> tuple[str, dict[str, DeviceInfo]]:
        """The board's name and its devices by theirs. Raises `PowerdError`."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            link = BoardLink(context, self.url, client="powerd pmlib")
            try:
                description = link.describe()
            finally:
                link.close()
        finally:
            context.destroy(linger=0)
        return description.board, {device.name: device for device in devices_of(description)}

    def process_request(self, request: socket.socket, client_address: tuple[str, int]) -> None:  # type: ignore[override]
        """Known before its thread runs: so `end` finds every connection that was taken."""
        if len(self.connections) >= MAX_CONNECTIONS:
            log.warning("%s:%d is turned away: there are %d connections", *client_address[:2], MAX_CONNECTIONS)
            self.shutdown_request(request)
            return
        self.connections.add(request)
        super().process_request(request, client_address)

    @contextlib.contextmanager
    def room(self) -> Iterator[None]:
        """Room for one more counter. Raises `ConfigError` where there are `MAX_COUNTERS`."""
        with self._mutex:
            if self._taken >= MAX_COUNTERS:
                raise ConfigError(f"there are {MAX_COUNTERS} counters already")
            self._taken += 1
        try:
            yield
        finally:
            with self._mutex:
                self._taken -= 1

    def count(self, client: str, counter: Counter) -> int:
        with self._mutex:
            self._numbers += 1
            self.counters[self._numbers] = client, counter
            return self._numbers

    def end(self) -> None:
        """Take no more clients, end the counters, and wait for their run files."""
        self.shutdown()
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # it has just ended by itself
                continue
        self.server_close()


class _Client(socketserver.BaseRequestHandler):
    """One connection: questions, or one counter."""

    server: Service

    def handle(self) -> None:
        self.wire = Wire(self.request)
        self.name = f"{self.client_address[0]}:{self.client_address[1]}"
        self.request.settimeout(IDLE_S)
        try:
            while True:
                self._answer(self.wire.number())
        except EOFError:
            pass
        except PowerdError as error:
            log.warning("%s is cut off: %s", self.name, error)
        finally:
            self.server.connections.discard(self.request)

    def _answer(self, request: int) -> None:
        if request == DEVICES:
            _, devices = self.server.describe()
            self.wire.give(len(devices), *devices)
        elif request == DEVICE:
            info = self.server.describe()[1].get(self.wire.text())
            self.wire.give(-1) if info is None else self.wire.give(_hertz(info), info.n_lines, info.name)
        elif request == STATUS:
            self._tell_status()
        elif request == LIVE:
            self._tell_live(self.wire.text(), self.wire.number())
        elif request == CREATE:
            self._count()
        else:
            raise ConfigError(f"it sent the number {request}, which begins no request of pmlib's")

    def _tell_status(self) -> None:
        board, devices = self.server.describe()
        self.wire.give(len(devices))
        for info in devices.values():
            self.wire.give(info.name, _hertz(info), info.n_lines, 0, board)
            for number, line in enumerate(info.lines):
                self.wire.give(number, line.name, struct.pack("=f", _UNKNOWN_V), line.description or line.name)
        counters = dict(self.server.counters)
        self.wire.give(len(counters))
        for number, (client, counter) in counters.items():
            self.wire.give(number, client, len(counter.lines), *counter.lines)

    def _tell_live(self, device: str, frequency_hz: int) -> None:
        """Mean powers of one stretch after the other, until the client has enough."""
        info = self.server.describe()[1].get(device)
        if info is None or not 0 <= frequency_hz <= _hertz(info):
            self.wire.give(-1) if info is None else self.wire.give(-2, _hertz(info))
            return
        frequency_hz = frequency_hz or _hertz(info)
        with self.server.room(), Server(self.server.url) as server:
            counter = server.counter(device, aggregate=False, name="live")
            self.wire.give(0)
            go_on = 1
            while go_on:
                counter.start()
                time.sleep(1 / frequency_hz)
                counter.stop()
                watts = _values(counter, frequency_hz)[0]
                self.wire.give(len(watts), watts.mean(axis=1).tobytes())
                go_on = self.wire.number()
            counter.finalize()

    def _count(self) -> None:
        """The connection is a counter from here on."""
        device, frequency_hz, aggregate, lines = (
            self.wire.text(), self.wire.number(), self.wire.number(), self.wire.lines()
        )  # fmt: skip
        try:
            with self.server.room(), Server(self.server.url) as server:
                info = server.device(device)
                if len(lines) < MAX_LINES:  # bits beyond the device's lines mean nothing
                    lines = Lines(i for i in lines if i < info.n_lines)
                if not 0 <= frequency_hz <= _hertz(info):
                    raise ConfigError(f"{device!r} is read {_hertz(info)} times a second, not {frequency_hz}")
                counter = server.counter(device, lines, aggregate=bool(aggregate))
                number = self.server.count(self.name, counter)
                try:
                    self.wire.give(0)
                    log.info("%s measures %s: %s", self.name, device, server.out)
                    self._obey(counter, frequency_hz or _hertz(info))
                finally:
                    del self.server.counters[number]
                    counter.finalize()
        except PowerdError as error:
            log.warning("%s gets no counter: %s", self.name, error)
            self.wire.give(-1)
        else:
            log.info("%s has ended its counter: %s is recorded", self.name, server.out)

    def _obey(self, counter: Counter, frequency_hz: float) -> None:
        """Start and stop, until the counter is finalised or its client gone."""
        changes = {START: counter.start, CONTINUE: counter.resume, STOP: counter.stop}
        # It may be silent for as long as its program works; whether its machine is still there the kernel asks.
        self.request.settimeout(None)
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            while (request := self.wire.number()) != FINALISE:
                try:
                    if request == GET:
                        self._tell_data(counter, frequency_hz)
                    elif request in changes:
                        changes[request]()
                        self.wire.give(0)
                    else:
                        log.warning("%s: the number %d is no request to a counter", self.name, request)
                        self.wire.give(-1)
                except ConfigError as error:
                    log.warning("%s: %s", self.name, error)
                    self.wire.give(-1)
            self.wire.give(0)
        except EOFError:
            log.warning("%s is gone without a word: its counter ends", self.name)

    def _tell_data(self, counter: Counter, frequency_hz: float) -> None:
        """All values of the first line, set by set, then those of the next. Raises `ConfigError` while it runs."""
        seconds = sum(end - begin for begin, end in counter.spans_ns) * 1e-9
        count = seconds * frequency_hz * len(list(counter.lines))
        if count > MAX_VALUES:
            raise ConfigError(
                f"{count:.2g} values are too many for one answer ({MAX_VALUES}): ask for a lower frequency"
            )
        sets = _values(counter, frequency_hz)
        if unknown := sum(int(np.isnan(watts).any(axis=0).sum()) for watts in sets):
            log.warning("%s: %d values are NaN, for there are no readings of them", self.name, unknown)
        if counter.is_aggregate:
            sets = [watts.sum(axis=0, keepdims=True) for watts in sets]
        values = np.concatenate(sets, axis=1)
        ends = np.cumsum([0, *(watts.shape[1] for watts in sets)]).tolist()
        self.wire.give(values.size, len(ends), len(counter.lines), *ends, values.tobytes())


def _values(counter: Counter, frequency_hz: float) -> list[NDArray[np.float64]]:
    """Mean powers [lines, n] of each set's stretches; NaN where no set can be read. Raises `ConfigError`."""
    lines = list(counter.lines)
    try:
        return [evenly(part, lines, frequency_hz) for part in counter.get_data().sets]
    except PeerError as error:
        log.warning("%s", error)
        counts = [max(round((end - begin) * 1e-9 * frequency_hz), 1) for begin, end in counter.spans_ns]
        return [np.full((len(lines), count), np.nan) for count in counts]


def _hertz(info: DeviceInfo) -> int:
    return max(int(info.max_frequency), 1)


def serve(url: str, listen: str, directory: Path) -> int:
    """`powerd pmlib`: serve until Ctrl-C or SIGTERM. Returns the exit status. Raises `ConfigError`."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--listen {listen}: write HOST:PORT")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        os.chdir(directory)
        service = Service((host.strip("[]"), int(port)), url)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"pmlib's server cannot begin at {listen} in {directory}: {error}") from error
    warnings.simplefilter("ignore")  # what readings a counter misses is told with its values
    logging.basicConfig(level=logging.INFO, format="powerd: %(message)s")
    where = "{}:{}".format(*service.server_address[:2])
    if host not in ("127.0.0.1", "localhost", "[::1]"):
        log.warning("pmlib's protocol has no keys: whoever reaches %s can read, and fill this disk with runs", where)
    try:
        board, devices = service.describe()
        log.info("pmlib's server at %s for the board %s: %s", where, board, ", ".join(devices))
    except PowerdError as error:
        log.warning("%s", error)
    # As Ctrl-C: counters that run leave whole run files.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    loop = threading.Thread(target=service.serve_forever, name="pmlib")
    loop.start()
    try:
        loop.join()
    except KeyboardInterrupt:
        log.info("ending %d counters", len(service.counters))
    finally:
        service.end()
        loop.join()
    return 0
