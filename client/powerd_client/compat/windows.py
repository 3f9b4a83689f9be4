"""Windows: stretches of a program's time with names, which may overlap, and their joules.

All windows of a process are phases of one recording: the one that it makes already (`Meter`, ``joules record``), or one
that begins with the first of them and ends with the process. A window that ends writes a mark, and nothing is waited
for: its joules are worked out when somebody asks for them.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from powerd_client.energies.live_energy import Energy, LiveRun
from powerd_client.host.hostclock import now_ns
from powerd_client.host.visible_gpus import visible_uuids
from powerd_client.meter import Meter, recording_here
from powerd_core.model import Device, uuid_key

READINGS_S = 5.0
"""How long to wait for the last readings of a window."""
LONG_S = 2.0
"""A window as long as that is worth the estimator's half a second of CPU."""
_TRACKS = itertools.count(1 << 20 | 1, 2)
"""Of windows that overlap, as the phases of a thread nest. No thread has an odd number; pmlib's are small."""
_DRAM = re.compile(r"\bdram_(\d+)$")
_PACKAGE = re.compile(r"\bpackage_(\d+)$")


@dataclass(slots=True, eq=False)
class Window:
    """One of `Windows.begin`."""

    name: str
    begin_ns: int
    """By the host's clock."""
    begin_unix_s: float
    kind: int
    number: int | None
    """Of the mark that begins it; None where nothing is recorded."""
    track: int
    """The thread to whose phases it belongs."""
    end_ns: int | None = None
    energies: dict[str, Energy] = field(default_factory=dict)
    """By device: what was found of it."""

    @property
    def seconds(self) -> float:
        """Its length, so far where it has not ended."""
        return ((now_ns() if self.end_ns is None else self.end_ns) - self.begin_ns) * 1e-9


class Windows:
    """The windows of one meter."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._mutex = threading.Lock()
        self._open: list[Window] = []

    @property
    def is_recorded(self) -> bool:
        return self.meter._live is not None

    def begin(self, name: str, timing: str = "host") -> Window:
        """``timing`` says what the marks were waited for: ``host`` or ``host-synchronised``."""
        writer = self.meter._writer
        kind = 0 if writer is None else writer.kind(name, {}, timing)
        with self._mutex:
            window = Window(name, now_ns(), time.time(), kind, None, threading.get_ident())
            if writer is not None:
                window.number = writer.mark_at(kind, window.begin_ns, window.track)
            self._open.append(window)
        return window

    def end(self, window: Window, *, is_cut: bool = False) -> Window:
        """The same, ended now; one that is cut is no phase of its name."""
        with self._mutex:
            end_ns = now_ns()
            at = self._open.index(window)
            del self._open[at]
            if (writer := self.meter._writer) is not None and window.number is not None:
                for inner in self._open[at:]:
                    if inner.track == window.track:
                        self._move(inner, end_ns)
                writer.mark_at(writer.cut(window.kind) if is_cut else ~window.kind, end_ns, window.track)
            window.end_ns = end_ns
        return window

    def _move(self, window: Window, t_ns: int) -> None:
        """Give a window that outlasts the one around it a track of its own, from its beginning on."""
        writer = self.meter._writer
        assert writer is not None
        writer.mark_at(writer.cut(window.kind), t_ns, window.track)
        window.track = next(_TRACKS)
        window.number = writer.mark_at(window.kind, window.begin_ns, window.track)

    def energies(self, window: Window, devices: Sequence[str]) -> dict[str, Energy]:
        """By device: the joules of a window, of a long one as the tables of the run will tell them. Of others the
        integral of its readings, whose U95 is wider: windows one behind the other add up.
        """
        if window.energies.keys() >= {*devices}:
            return {name: window.energies[name] for name in devices}
        energies = self.plain(window, devices)
        if window.end_ns is None or all(energy.energy_j is None for energy in energies.values()):
            return energies
        if window.seconds >= LONG_S:
            for energy in self._live.ask(window.name, None, number=window.number, wait_s=READINGS_S):
                if energy.device in energies and energy.energy_j is not None and not energy.is_so_far:
                    energies[energy.device] = replace(energy, missing_s=energies[energy.device].missing_s)
        window.energies |= energies
        return energies

    def plain(
        self, window: Window, devices: Sequence[str] | Mapping[str, Sequence[str]], *, wait_s: float = READINGS_S
    ) -> dict[str, Energy]:
        """The integral of the readings of devices, or of lines by name, in the window so far."""
        if not self.is_recorded or not devices:
            return {name: Energy(window.name, note="nothing is recorded", device=name) for name in devices}
        end_ns = now_ns() if window.end_ns is None else window.end_ns
        every = self._live.between(window.begin_ns, end_ns, wait_s, devices)
        found = {energy.device: energy for energy in every}
        why = next((energy.note for energy in every if not energy.device), "nothing reads it")
        return {name: found.get(name, Energy(window.name, note=why, device=name)) for name in devices}

    @property
    def _live(self) -> LiveRun:
        assert self.meter._live is not None
        return self.meter._live()

    def devices(self) -> list[Device]:
        return self._live.devices() if self.is_recorded else []

    def gpus(self) -> list[Device]:
        """The GPUs that are measured, as CUDA_VISIBLE_DEVICES numbers them, where the driver says which these are; else
        by their names."""
        by_name = sorted((d for d in self.devices() if _is_gpu(d)), key=lambda d: (len(d.name), d.name))
        by_uuid = {uuid_key(device.uuid): device for device in by_name if device.uuid}
        visible = [by_uuid.get(uuid_key(uuid)) for uuid in visible_uuids()]
        named = [device for device in visible if device is not None]
        return named if visible and len(named) == len(visible) else by_name

    def processors(self) -> tuple[dict[int, str], dict[int, str]]:
        """The lines that RAPL counts packages with, and memory, by the number of the package."""
        lines = [line for device in self.devices() if not _is_gpu(device) for line in device.feeds]
        return _numbered(_PACKAGE, lines), _numbered(_DRAM, lines)

    def modelled_processors(self) -> list[str]:
        """The devices whose joules are a model of CPU time."""
        return [d.name for d in self.devices() if not _is_gpu(d) and any(line.endswith(".model") for line in d.feeds)]


def _numbered(pattern: re.Pattern[str], lines: Sequence[str]) -> dict[int, str]:
    matches = {line: pattern.search(line) for line in lines}
    return {int(match[1]): line for line, match in matches.items() if match}


def _is_gpu(device: Device) -> bool:
    return device.name.startswith("gpu")


_here: Windows | None = None
_here_pid = 0
_making = threading.Lock()


def windows_here() -> Windows:
    """Those of the meter that records in this process, which begins where there is none. A powerd that is not there is
    told, and nothing is recorded. Raises `ConfigError` or `RunFileError` where the run file cannot be made."""
    global _here, _here_pid
    with _making:
        meter = recording_here()
        if _here is None or _here_pid != os.getpid() or (_here.is_recorded and _here.meter._writer is None):
            _here, _here_pid = Windows(meter or Meter(required=False)), os.getpid()
        return _here
