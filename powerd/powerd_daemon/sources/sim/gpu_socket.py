"""Simulated GPUs in a process of their own: `powerd sim-gpu` at one end of a Unix socket, `SimGpu` at the other.

A request is one JSON object a line, and so is its answer.

    {"call": NAME, "arguments": [...]}     a function of NVML: {"value": ...} or {"nvml_error": CODE}
    {"work": {...}, "gpu": 0}              the members of `gpu.Work`; answered when the card has done it
    {"faults": [...], "gpu": 0}            what goes wrong from now on, of `gpu.FAULTS`
    {"reload": true, "gpu": 0}             the driver is loaded anew
    {"truth": true, "gpu": 0}              exact joules and seconds, and the settings that were asked for
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import socket
import struct
import time
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from powerd_core.errors import PeerError
from powerd_core.text import printable
from powerd_daemon.sources.sim.as_pynvml.pynvml import DRIVER_NOT_LOADED, ENVIRONMENT, Refusal, Wire
from powerd_daemon.sources.sim.gpu import SLOW_S, SimulatedGpu, SimulatedNode, Work, check_faults
from powerd_daemon.sources.sim.nvml_face import READINGS, NvmlFace

MAX_LINE = 1 << 16
PARTS = ("wait_s", "core_s", "memory_s", "busy_w", "exchange_s")
"""The members of a piece of work."""
_IDLE_S = 0.5
_MOST = 1e6
"""Neither seconds nor watts of a piece of work are more: a card that is never done would keep all others waiting."""
_SETTERS = ("nvmlDeviceSet", "nvmlDeviceReset")


def now_s() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


@dataclass(eq=False)
class _Client:
    socket: socket.socket
    pid: int
    """Of its process."""
    face: NvmlFace
    received: bytearray = field(default_factory=bytearray)
    work: Work | None = None
    due_s: float | None = None
    """When a setting that takes its time is done, and what is answered then."""
    answer: dict[str, Any] = field(default_factory=dict)


class GpuServer:
    """Serves a node on a listening socket, in real time, until `is_stopping`."""

    def __init__(self, node: SimulatedNode, listener: socket.socket) -> None:
        self.node, self._listener = node, listener
        self.was_measured = False
        """Whether somebody has read power or joules."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._clients: list[_Client] = []
        self._spare = os.open(os.devnull, os.O_RDONLY)
        """A descriptor to turn a client away with when there is no other."""
        self.is_stopping = False

    def serve(self) -> None:
        """Clients hear of its end, whatever it ends by: none waits for ever."""
        try:
            while not self.is_stopping:
                for key, _ in self._selector.select(self._patience_s()):
                    key.data()
                self.node.advance(now_s())
                for client in list(self._clients):
                    self._finish(client)
        finally:
            self.is_stopping = True
            for client in list(self._clients):
                self._drop(client)
            self._listener.close()
            with contextlib.suppress(OSError):
                os.close(self._spare)

    def _patience_s(self) -> float:
        waits = [_IDLE_S, *(client.due_s - now_s() for client in self._clients if client.due_s is not None)]
        waits += [gpu.next_change_s() - now_s() for gpu in self.node.gpus if not gpu.is_idle]
        return max(0.0, min(waits))

    def _finish(self, client: _Client) -> None:
        """Send what has been waited for."""
        if client.work is not None and client.work.done_s is not None:
            done_s, client.work = client.work.done_s, None
            self._send(client, {"done_s": done_s})
        elif client.due_s is not None and now_s() >= client.due_s:
            client.due_s = None
            self._send(client, client.answer)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor is left: this client is turned away, and hears of it
            with contextlib.suppress(OSError):
                os.close(self._spare)
            with contextlib.suppress(OSError):
                self._listener.accept()[0].close()
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)
            return
        accepted.setblocking(False)
        pid, _, _ = struct.unpack("3i", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        client = _Client(accepted, pid, NvmlFace(self.node, now_s))
        self._clients.append(client)
        self._selector.register(accepted, selectors.EVENT_READ, lambda: self._receive(client))

    def _receive(self, client: _Client) -> None:
        try:
            part = client.socket.recv(MAX_LINE)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        client.received += part
        while b"\n" in client.received:
            line, _, rest = bytes(client.received).partition(b"\n")
            client.received = bytearray(rest)
            self._take(client, line)
        if not part or len(client.received) > MAX_LINE:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        if client in self._clients:
            self._clients.remove(client)
            self._selector.unregister(client.socket)
            client.socket.close()
            if client.pid not in {other.pid for other in self._clients}:
                for gpu in self.node.gpus:
                    gpu.processes.discard(client.pid)

    def _send(self, client: _Client, answer: dict[str, Any]) -> None:
        try:
            client.socket.sendall(json.dumps(answer).encode() + b"\n")
        except OSError:
            self._drop(client)

    def _take(self, client: _Client, line: bytes) -> None:
        try:
            request = json.loads(line)
            self.node.advance(now_s())
            answer = self._answer(client, request)
        except Refusal as refusal:
            answer = {"nvml_error": refusal.code}
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            answer = {"error": printable(f"no such request: {error}", limit=200)}
        if answer is not None:
            self._send(client, answer)

    def _answer(self, client: _Client, request: dict[str, Any]) -> dict[str, Any] | None:
        if "call" in request:
            return self._call(client, str(request["call"]), list(request["arguments"]))
        gpu = self.node.gpus[int(request.get("gpu", 0))]
        if "work" in request:
            of = {name: float(request["work"][name]) for name in PARTS}
            if not all(math.isfinite(n) and 0 <= n <= _MOST for n in of.values()):
                raise ValueError(f"work of 0 to {_MOST:g} s and W")
            work = Work(of["wait_s"], of["core_s"], of["memory_s"], of["busy_w"], of["exchange_s"])
            client.work = work
            gpu.submit(work)
            gpu.processes.add(client.pid)
            return None
        if "faults" in request:
            gpu.faults = check_faults({str(name) for name in request["faults"]})
        elif "reload" in request:
            gpu.reload()
        elif "truth" not in request:
            raise ValueError("call, work, faults, reload or truth")
        return {"truth": truth_of(gpu)}

    def _call(self, client: _Client, name: str, arguments: list[Any]) -> dict[str, Any] | None:
        self.was_measured |= name in READINGS
        answer = {"value": client.face.call(name, arguments)}
        if not name.startswith(_SETTERS):
            return answer
        gpu = self.node.gpus[int(arguments[0])]
        if not gpu.setters or not gpu.has_fault("slow", gpu.setters[-1][0]):
            return answer
        client.due_s, client.answer = now_s() + SLOW_S, answer
        return None


def truth_of(gpu: SimulatedGpu) -> dict[str, Any]:
    """Exact joules and seconds of a card, and every setting that was asked for."""
    exact = asdict(gpu.truth)
    ns = {f"{name}_ns": round(1e9 * exact[f"{name}_s"]) for name in ("at_cap", "thermal", "brake")}
    return {**exact, **ns, "now_s": gpu.now_s, "setters": gpu.setters, "faults": sorted(gpu.faults)}


def visible_gpu() -> int:
    """The number of the first GPU that this process may use; 0 where nothing says."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
    return int(first) if first.isdecimal() else 0


class SimGpu:
    """A client of a `powerd sim-gpu`. Each thread has a connection of its own."""

    _of_environment: ClassVar[SimGpu | None] = None

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises `PeerError` at the first question where nobody answers."""
        self._wire = Wire(os.fspath(path))

    @classmethod
    def here(cls) -> SimGpu:
        """The one that $POWERD_SIM_GPU names. Raises `PeerError`."""
        path = os.environ.get(ENVIRONMENT)
        if not path:
            raise PeerError(f"${ENVIRONMENT} names no simulated GPU: start `powerd sim-gpu` and set what it prints")
        if cls._of_environment is None or cls._of_environment._wire.path != path:
            cls._of_environment = cls(path)
        return cls._of_environment

    def call(self, name: str, arguments: list[Any]) -> Any:
        """A function of NVML. Raises `Refusal` with the driver's return value; for a process that is gone, that the
        driver is not loaded."""
        try:
            answer = self._ask({"call": name, "arguments": arguments})
        except PeerError:
            raise Refusal(DRIVER_NOT_LOADED) from None
        if "nvml_error" in answer:
            raise Refusal(int(answer["nvml_error"]))
        return answer["value"]

    def work(
        self,
        flops: float = 0.0,
        bytes_: float = 0.0,
        wait_s: float = 0.0,
        *,
        gpu: int | None = None,
        busy_w: float | None = None,
        exchange_s: float = 0.0,
    ) -> float:
        """Let a card work, and wait until it has: ``flops`` operations and ``bytes_`` of memory traffic behind
        ``wait_s`` of waiting. It takes as long as the card needs at its clocks. The seconds it took.

        ``busy_w`` is what its kernels add to the card's floor at full clock. Without ``gpu`` it is the first one that
        CUDA_VISIBLE_DEVICES names, as a scheduler sets it.
        """
        gpu = visible_gpu() if gpu is None else gpu
        card = self._card(gpu)
        return self.run(
            wait_s, flops / card.flops, bytes_ / card.bytes_per_s, busy_w or card.work_w, exchange_s=exchange_s, gpu=gpu
        )

    def run(
        self, wait_s: float, core_s: float, memory_s: float, busy_w: float, *, exchange_s: float = 0.0,
        gpu: int | None = None,
    ) -> float:  # fmt: skip
        """The same in seconds at full clocks."""
        gpu = visible_gpu() if gpu is None else gpu
        begin_s = now_s()
        work = dict(zip(PARTS, (wait_s, core_s, memory_s, busy_w, exchange_s), strict=True))
        return float(self._ask({"work": work, "gpu": gpu})["done_s"]) - begin_s

    def _card(self, gpu: int) -> Any:
        from powerd_core.gpu_physics import CARDS

        name = self.call("nvmlDeviceGetName", [gpu])
        # One from a file is called after the card that it is like.
        return next((card for card in CARDS.values() if str(name).startswith(card.name)), CARDS["rtx6000"])

    def truth(self, gpu: int = 0) -> dict[str, Any]:
        """What the card truly did: `gpu.Truth`, and the settings that were asked for."""
        truth: dict[str, Any] = self._ask({"truth": True, "gpu": gpu})["truth"]
        return truth

    def set_faults(self, *names: str, gpu: int = 0) -> None:
        """What goes wrong from now on; nothing without a name."""
        self._ask({"faults": sorted(check_faults(set(names))), "gpu": gpu})

    def reload(self, gpu: int = 0) -> None:
        self._ask({"reload": True, "gpu": gpu})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = self._wire.ask(request)
        except OSError as error:
            raise PeerError(f"no simulated GPU answers at {self._wire.path}: {error}") from error
        if "error" in answer:
            raise PeerError(f"the simulated GPU says: {answer['error']}")
        return answer
