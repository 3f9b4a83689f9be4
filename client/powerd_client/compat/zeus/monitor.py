"""Windows of a program and their joules, by Zeus' names (`zeus.monitor`)."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from powerd_client.compat.windows import Window, windows_here
from powerd_client.energies.live_energy import Energy, said_provenance
from powerd_client.host.log import tell
from powerd_client.host.ownership import led_to, make_folder, open_own
from powerd_core.errors import ConfigError, RunFileError
from powerd_core.text import with_u95

UNKNOWN = float("nan")
"""Joules that nobody knows, which are 0 in Zeus: arithmetic and formats take it."""
Framework = Literal["torch", "jax", "cupy"]


class Measurement:
    """Seconds and joules of a window. Joules are worked out when they are first asked for, which waits for the last
    readings of the window: a loop that adds them up behind its last window is not held up."""

    def __init__(self, time_s: float, gpu_indices: Sequence[int], look: Callable[[], _Found]) -> None:
        self.time = time_s
        self._indices, self._look = tuple(gpu_indices), look
        self._mutex = threading.Lock()
        self._looked: _Found | None = None

    @property
    def _found(self) -> _Found:
        with self._mutex:
            if self._looked is None:
                self._looked = self._look()
            return self._looked

    @property
    def gpu_energy(self) -> dict[int, float]:
        """Joules by GPU; NaN of one that nobody knows, never 0."""
        return {i: _joules(self._found.gpus[i]) for i in self._indices}

    @property
    def total_energy(self) -> float:
        """Joules of all GPUs; NaN where one is not known, and without any."""
        return sum(self.gpu_energy.values()) if self._indices else UNKNOWN

    @property
    def cpu_energy(self) -> dict[int, float] | None:
        """Joules by processor, as RAPL counts them; None where nothing reads that."""
        return _all_joules(self._found.cpus)

    @property
    def dram_energy(self) -> dict[int, float] | None:
        """Joules of memory by processor, as RAPL counts them; None where nothing reads that."""
        return _all_joules(self._found.memories)

    soc_energy = None
    """Zeus' figures of Apple's and NVIDIA's single chips, which powerd does not read."""

    @property
    def gpu_u95(self) -> dict[int, float | None]:
        """Half of the 95 % interval by GPU, in joules; None where it is not known. Zeus has none."""
        return {i: self._found.gpus[i].u95_j for i in self._indices}

    @property
    def provenance(self) -> dict[int, str]:
        """By GPU whether its joules were ``measured``, ``modelled`` or ``simulated``. Zeus has none."""
        return {i: self._found.gpus[i].provenance for i in self._indices}

    @property
    def missing_s(self) -> dict[int, float | None]:
        """Seconds of the window without readings, by GPU; None where that is not known. Zeus has none."""
        return {i: self._found.gpus[i].missing_s for i in self._indices}

    @property
    def notes(self) -> dict[int, str]:
        """What else is to be known of the joules of a GPU. Zeus has none."""
        return {i: self._found.gpus[i].note for i in self._indices}

    def __repr__(self) -> str:
        parts = [f"time={self.time!r}", f"gpu_energy={self.gpu_energy}", f"gpu_u95={self.gpu_u95}"]
        parts += [f"cpu_energy={self.cpu_energy}", f"dram_energy={self.dram_energy}"]
        parts += [f"provenance={self.provenance}"]
        return f"Measurement({', '.join(parts)})"

    def __str__(self) -> str:
        texts = [
            f"GPU {i} {with_u95(j.energy_j, j.u95_j, 'J', is_lower_bound=j.is_lower_bound)} "
            f"{said_provenance(j.provenance)}"
            if j.energy_j is not None
            else f"GPU {i} not known: {j.note}"
            for i, j in self._found.gpus.items()
        ]
        return f"{self.time:.4g} s, {', '.join(texts) or 'no GPU'}"


@dataclass(frozen=True, slots=True)
class _Found:
    """What the windows say: energies by Zeus' numbers."""

    gpus: Mapping[int, Energy]
    cpus: Mapping[int, Energy]
    memories: Mapping[int, Energy]


def _joules(energy: Energy) -> float:
    return UNKNOWN if energy.energy_j is None else energy.energy_j


def _all_joules(of: Mapping[int, Energy]) -> dict[int, float] | None:
    return {i: _joules(energy) for i, energy in of.items()} or None


class ZeusMonitor:
    """Measures windows of a program, as Zeus' class of that name.

    ``gpu_indices``          which GPUs, as CUDA_VISIBLE_DEVICES numbers them; None: all
    ``cpu_indices``          which processors; None: all that RAPL lets this user read
    ``approx_instant_energy``  of no use here: joules come from readings, no window has 0 of them
    ``log_file``             a CSV with a row a window, written in another thread as its joules become known
    ``sync_execution_with``  what the begin and end of a window wait for, where it is imported: torch, jax or cupy

    Raises `ConfigError`, a ValueError, for a GPU or processor that there is not, and `RunFileError`, an OSError, for a
    file that cannot be written. Where no powerd answers one line says so, windows have their seconds, and their joules
    are not known.
    """

    def __init__(
        self,
        gpu_indices: list[int] | None = None,
        cpu_indices: list[int] | None = None,
        approx_instant_energy: bool = False,
        log_file: str | Path | None = None,
        sync_execution_with: Framework = "torch",
    ) -> None:
        if sync_execution_with not in _SYNCHRONISE:
            raise ConfigError(f"sync_execution_with={sync_execution_with!r}: give one of {', '.join(_SYNCHRONISE)}")
        self.approx_instant_energy, self.sync_with = approx_instant_energy, sync_execution_with
        self._windows = windows_here()
        self._told: set[str] = set()
        self._open: dict[str, Window] = {}
        gpus = dict(enumerate(device.name for device in self._windows.gpus()))
        packages, memories = self._windows.processors()
        is_recorded = self._windows.is_recorded
        self.gpu_indices = _chosen(gpu_indices, gpus, "GPU", is_recorded=is_recorded)
        self.cpu_indices = _chosen(cpu_indices, packages, "processor", is_recorded=is_recorded)
        self.devices = [gpus[i] for i in self.gpu_indices if i in gpus]
        """Their names in the recording."""
        self._gpus = {i: gpus.get(i, f"gpu{i}") for i in self.gpu_indices}
        self._lines = {f"cpu {i}": [packages[i]] for i in self.cpu_indices if i in packages}
        self._lines |= {f"dram {i}": [memories[i]] for i in self.cpu_indices if i in memories}
        if is_recorded and not gpus:
            tell("no GPU is measured here: total_energy is not a number")
        self.log_file = None if log_file is None else Path(log_file)
        if self.log_file is not None:
            make_folder(self.log_file.parent)
            columns = ["start_time", "window_name", "elapsed_time", *(f"gpu{i}_energy" for i in self.gpu_indices)]
            _append(self.log_file, columns, os.O_TRUNC)
        self._writing = None if log_file is None else ThreadPoolExecutor(1, thread_name_prefix="zeus-log")

    def begin_window(self, key: str, sync_execution: bool = True, restart: bool = False) -> None:
        """Raises `ConfigError`, a ValueError, where a window of that name is open, unless it is to begin anew."""
        if key in self._open:
            if not restart:
                raise ConfigError(f"Measurement window '{key}' already exists")
            self._windows.end(self._open.pop(key), is_cut=True)
        self._open[key] = self._windows.begin(key, self._wait(sync_execution))

    def end_window(self, key: str, sync_execution: bool = True, cancel: bool = False) -> Measurement:
        """What the window has taken; of one that is cancelled nothing is known. Raises `ConfigError`, a ValueError, for
        a name of which no window is open."""
        if (window := self._open.pop(key, None)) is None:
            raise ConfigError(f"Measurement window '{key}' does not exist")
        self._wait(sync_execution)
        self._windows.end(window, is_cut=cancel)
        if cancel:
            nothing = {i: Energy(key, note="the window was cancelled") for i in self.gpu_indices}
            return Measurement(0.0, self.gpu_indices, lambda: _Found(nothing, {}, {}))
        measurement = Measurement(window.seconds, self.gpu_indices, lambda: self._find(window))
        if self._writing is not None:
            self._writing.submit(self._write, window, measurement)
        return measurement

    def reset_windows(self) -> None:
        """Forget all windows that are open."""
        while self._open:
            self._windows.end(self._open.popitem()[1], is_cut=True)

    def _wait(self, sync_execution: bool) -> str:
        """Wait for the GPUs; how the next mark is timed."""
        module = sys.modules.get(self.sync_with)
        if not sync_execution or module is None or not self.gpu_indices:
            return "host"
        return "host-synchronised" if _SYNCHRONISE[self.sync_with](module, self.gpu_indices) else "host"

    def _find(self, window: Window) -> _Found:
        gpus = self._windows.energies(window, list(self._gpus.values()))
        parts = self._windows.plain(window, self._lines)
        cpus, memories = (
            {i: parts[f"{of} {i}"] for i in self.cpu_indices if f"{of} {i}" in parts} for of in ("cpu", "dram")
        )
        weak = next((j for j in gpus.values() if j.energy_j is None or j.is_lower_bound), None)
        if weak is not None and self._windows.is_recorded:
            known = "not known" if weak.energy_j is None else "a lower bound"
            text = f"window {window.name!r}: the joules of {weak.device} are {known}: {weak.note}"
            if text not in self._told:  # a loop has hundreds of windows; each one's `Measurement` says it
                self._told.add(text)
                tell(text)
        return _Found({i: gpus[name] for i, name in self._gpus.items()}, cpus, memories)

    def _write(self, window: Window, measurement: Measurement) -> None:
        joules = [str(j) for j in measurement.gpu_energy.values()]
        row = [str(window.begin_unix_s), window.name, str(measurement.time), *joules]
        assert self.log_file is not None
        try:
            _append(self.log_file, row)
        except RunFileError as error:
            tell(str(error))


def _append(path: Path, row: Sequence[str], flags: int = 0) -> None:
    """Write a row of a CSV, as Zeus does. Raises `RunFileError`."""
    try:
        descriptor = open_own(led_to(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND | flags, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(",".join(row) + "\n")
    except OSError as error:
        raise RunFileError(f"{path} cannot be written: {error.strerror or error}") from error


def _chosen(wanted: list[int] | None, known: Mapping[int, str], what: str, *, is_recorded: bool) -> list[int]:
    """Which of the known ones, all for None. Raises `ConfigError` for others, where it can be told."""
    if wanted is None or not is_recorded:
        return list(known) if wanted is None else list(wanted)
    for index in wanted:
        if index not in known:
            there = f"there are {', '.join(map(str, known))}" if known else f"no {what} is measured"
            raise ConfigError(f"there is no {what} {index} here: {there}")
    return list(wanted)


def _wait_for_torch(torch: Any, indices: Sequence[int]) -> bool:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return False
    for index in indices:
        torch.cuda.synchronize(index)
    return True


def _wait_for_jax(jax: Any, indices: Sequence[int]) -> bool:
    """An array that is made last is there last: JAX has no call for it (google/jax issue 4335)."""
    devices = [jax.devices("gpu")[i] for i in indices] if jax.default_backend() == "gpu" else []
    jax.block_until_ready([jax.device_put(0.0, device=d) + 0 for d in [*devices, jax.devices("cpu")[0]]])
    return True


def _wait_for_cupy(cupy: Any, indices: Sequence[int]) -> bool:
    for index in indices:
        cupy.cuda.Device(index).synchronize()
    return True


_SYNCHRONISE: Mapping[str, Callable[[Any, Sequence[int]], bool]] = {
    "torch": _wait_for_torch,
    "jax": _wait_for_jax,
    "cupy": _wait_for_cupy,
}
