"""A network that can be cut: TCP proxies between 127.0.0.2 and the same ports of 127.0.0.1."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time


class Proxy:
    """Passes bytes both ways for ``ports`` until it is `cut`; then nothing does, as when packets are dropped: what was
    sent arrives when the network is back, if both ends still want it.
    """

    host = "127.0.0.2"

    def __init__(self, ports: list[int]) -> None:
        self._selector = selectors.DefaultSelector()
        self._sockets: set[socket.socket] = set()
        self._silent = threading.Event()
        self._stop = False
        for port in ports:
            listener = socket.create_server((self.host, port))
            self._sockets.add(listener)
            self._selector.register(listener, selectors.EVENT_READ, (self._accept, port))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _accept(self, listener: socket.socket, port: int) -> None:
        near, _ = listener.accept()
        self._sockets.add(near)
        try:
            far = socket.create_connection(("127.0.0.1", port))
        except OSError:
            near.close()
            return
        self._sockets.add(far)
        self._selector.register(near, selectors.EVENT_READ, (self._pass, far))
        self._selector.register(far, selectors.EVENT_READ, (self._pass, near))

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = source.recv(65536)
        try:
            if not data:
                raise ConnectionResetError
            target.sendall(data)
        except OSError:
            for end in (source, target):
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(end)
                end.close()

    def _serve(self) -> None:
        while not self._stop:
            if self._silent.is_set():
                time.sleep(0.01)
                continue
            for key, _ in self._selector.select(0.02):
                act, what = key.data
                if key.fileobj.fileno() >= 0:  # type: ignore[union-attr]
                    act(key.fileobj, what)

    def cut(self) -> None:
        """From now on nothing passes."""
        self._silent.set()

    def mend(self) -> None:
        self._silent.clear()

    def close(self) -> None:
        self._stop = True
        self._thread.join()
        for each in self._sockets:
            each.close()
        self._selector.close()
