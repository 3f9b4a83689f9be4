"""Which programs the NVIDIA driver lists on the GPUs of a run: a second one takes joules that look like the training's.

A recorder asks the driver of its own machine each second, in a thread, about those GPUs of its powerds that are here,
by their UUIDs. What it sees becomes events `OTHERS` of the run. Nothing is said where a process id of the driver may be
another one's here (a container), and of a GPU that is divided (MIG), which shares its power but not its programs.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import threading
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerd_client.host.hostclock import now_ns
from powerd_client.journals.ranks import rank_here
from powerd_core.errors import ConfigError
from powerd_core.marks import OTHERS
from powerd_core.model import Device, uuid_key

LOOK_S = 1.0
_FIRST_NAMESPACE = "pid:[4026531836]"
"""Where process ids are the machine's own, as the driver's are (PROC_PID_INIT_INO of linux/proc_ns.h)."""
_NO_MEMORY = (1 << 64) - 1
_MPS = "nvidia-cuda-mps"
"""How the names of the multi-process service's own processes begin: they compute for others."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that the driver lists."""

    pid: int
    user: str
    memory_mib: int | None

    @property
    def document(self) -> dict[str, object]:
        return {"pid": self.pid, "user": self.user, "memory_mib": self.memory_mib}


class OwnProcesses:
    """The processes of a run: its roots, and what they have started. One that was of the run once stays so."""

    def __init__(self, roots: Iterable[int], proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known = set(roots)

    def add(self, pid: int) -> None:
        """A process that marks phases, as a rank does."""
        self._known.add(pid)

    def has(self, pid: int) -> bool:
        line, at = [pid], pid
        while at > 1 and at not in self._known:
            at = self._parent(at)
            if at in line:
                break
            line.append(at)
        if at not in self._known:
            return False
        self._known.update(line)
        return True

    def _parent(self, pid: int) -> int:
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = (self._proc / str(pid) / "stat").read_text(errors="replace")
            return int(stat.rpartition(")")[2].split()[1])  # behind the name, which may hold anything
        return 0


def own_processes(parent_pid: int, trainer_pid: int | None) -> OwnProcesses:
    """Those of a recording that ``parent_pid`` began: its program, and its ranks, which one launcher has started."""
    own = OwnProcesses({parent_pid, os.getpid(), *([trainer_pid] if trainer_pid else [])})
    with contextlib.suppress(ConfigError):
        rank = rank_here()
        launcher = own._parent(parent_pid) if rank is not None and rank.local_world_size > 1 else 0
        if launcher > 1:
            own.add(launcher)
    return own


class DriverLists:
    """What the driver lists on GPUs of this machine. Raises what pynvml raises."""

    def __init__(self, devices: Iterable[Device], pynvml: Any, proc: Path = Path("/proc")) -> None:
        """``devices``: those of all powerds of a run, of which some may be GPUs of this machine."""
        self._nvml, self._proc = pynvml, proc
        pynvml.nvmlInit()
        here = {}
        for index in range(pynvml.nvmlDeviceGetCount() if self._tells_pids() else 0):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            here[uuid_key(_text(pynvml.nvmlDeviceGetUUID(handle)))] = handle
        wanted = {device.name: here.get(uuid_key(device.uuid)) for device in devices if uuid_key(device.uuid)}
        self._handles = {name: h for name, h in wanted.items() if h is not None and not self._is_divided(h)}

    def _tells_pids(self) -> bool:
        if getattr(self._nvml, "SIMULATED", False):
            return True
        with contextlib.suppress(OSError):
            return str((self._proc / "self/ns/pid").readlink()) == _FIRST_NAMESPACE
        return False

    def _is_divided(self, handle: Any) -> bool:
        with contextlib.suppress(self._nvml.NVMLError):  # most cannot be
            return bool(self._nvml.nvmlDeviceGetMigMode(handle)[0])
        return False

    def look(self) -> dict[str, list[GpuProcess]]:
        """By device; without one that does not answer now."""
        seen = {}
        for name, handle in self._handles.items():
            with contextlib.suppress(self._nvml.NVMLError):
                seen[name] = list(self._processes(handle))
        return seen

    def _processes(self, handle: Any) -> Iterator[GpuProcess]:
        for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle):
            pid, used = int(process.pid), process.usedGpuMemory
            name = user = ""
            with contextlib.suppress(OSError, KeyError):  # it has just ended, or is hidden
                name = (self._proc / str(pid) / "comm").read_text(errors="replace")
                uid = (self._proc / str(pid)).stat().st_uid
                user = str(uid)
                user = pwd.getpwuid(uid).pw_name
            if not name.startswith(_MPS):
                yield GpuProcess(pid, user, None if used in (None, _NO_MEMORY) else int(used) >> 20)

    @property
    def has_gpus(self) -> bool:
        return bool(self._handles)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class Others:
    """Events for what changes between looks: who is on a device that is not of the run."""

    def __init__(self, own: OwnProcesses) -> None:
        self._own = own
        self._last: dict[str, Collection[int] | None] = {}

    def take(self, seen: dict[str, list[GpuProcess]], t_ns: int) -> Iterator[dict[str, object]]:
        """The events of a look, as the documents in which processes say them."""
        for device, processes in seen.items():
            others = [p for p in processes if not self._own.has(p.pid)]
            pids = frozenset(p.pid for p in others)
            if pids != self._last.get(device):
                self._last[device] = pids
                values = {"device": device, "others": [p.document for p in others]}
                yield {"t_ns": t_ns, "event": OTHERS, "values": values}


class GpuWatch:
    """The thread that asks, each second, from `start` on; `take` gives what has been seen since."""

    def __init__(self, own: OwnProcesses, devices: Iterable[Device]) -> None:
        self._others = Others(own)
        self._devices = [device for device in devices if uuid_key(device.uuid)]
        self._documents: list[dict[str, object]] = []
        self._is_over = threading.Event()

    def start(self) -> None:
        if self._devices:
            threading.Thread(target=self._watch, name="gpu processes", daemon=True).start()

    def take(self) -> list[dict[str, object]]:
        documents, self._documents = self._documents, []
        return documents

    def close(self) -> None:
        """No more of it. Nobody waits for a driver that hangs."""
        self._is_over.set()

    def _watch(self) -> None:
        with contextlib.suppress(Exception):  # no driver, or one that is gone: then there is nothing to say
            import pynvml

            lists = DriverLists(self._devices, pynvml)
            while lists.has_gpus:
                for document in self._others.take(lists.look(), now_ns()):
                    self._documents = [*self._documents, document]
                if self._is_over.wait(LOOK_S):
                    return
