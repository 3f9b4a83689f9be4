"""Source ``nvml``: power and energy of NVIDIA GPUs as the driver tells them. It never sets anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Device, Stream
from powerd_core.serde import option
from powerd_daemon.sources.base import LineOutput, Source, Start
from powerd_daemon.sources.nvml.api import Nvml, NvmlRefused
from powerd_daemon.sources.nvml.gpu_file import gpu_file_path, load_gpus
from powerd_daemon.sources.nvml.quantities import (
    AuxiliaryChannels,
    EnergyCounter,
    Gpu,
    InstantPower,
    MemoryPower,
    ModulePower,
    Quantity,
)
from powerd_daemon.sources.nvml.samples import SampleBuffer, SampleClock


@dataclass(frozen=True, slots=True)
class NvmlOptions:
    """How often each quantity is asked for. The energy counter takes 4 ms a call, in the worst case 20."""

    gpus: tuple[int, ...] = option((), "indices of the GPUs; empty = every GPU")
    instant_ms: float = option(10.0, "distance of looks at the instant power; 0 = leave it out")
    samples_ms: float = option(50.0, "distance of reads of the sample buffer; 0 = leave it out")
    energy_ms: float = option(1000.0, "distance of reads of the energy counter; 0 = leave it out")
    scope_ms: float = option(
        10.0, "distance of looks at the power of the memory and of the module, where they exist; 0 = none"
    )
    side_ms: float = option(
        1000.0, "distance of reads of temperatures, clocks, power limit and throttle reasons; 0 = none"
    )
    calibration: str = option(
        "", "file of `powerd identify` and `powerd calibrate` (default: gpus.toml beside the keys)"
    )
    prefix: str = option("gpu", "devices are named by this and their index")

    def __post_init__(self) -> None:
        for name in ("instant_ms", "samples_ms", "energy_ms", "scope_ms", "side_ms"):
            if getattr(self, name) != 0 and not getattr(self, name) >= 1:
                raise ConfigError(f"{name} must be 0 or at least 1")
        if not (self.instant_ms or self.samples_ms or self.energy_ms):
            raise ConfigError("instant_ms, samples_ms or energy_ms must not be 0")
        if self.samples_ms > 1000:
            raise ConfigError(f"samples_ms = {self.samples_ms:g} lets the driver's buffer of 2 s overrun: at most 1000")
        if len(set(self.gpus)) != len(self.gpus) or any(g < 0 for g in self.gpus):
            raise ConfigError(f"gpus = {list(self.gpus)} must be different indices from 0 on")


class NvmlSource(Source):
    """Lines ``gpuN.nvml``, ``gpuN.nvml_samples``, ``gpuN.nvml_energy``, and what else a GPU has, a stream each.

    The device ``gpuN`` is fed by the samples where the GPU has them, else by the instant power, else by the counter.
    Tests give ``pynvml`` a module of their own.
    """

    Options: ClassVar[type[NvmlOptions]] = NvmlOptions
    options: NvmlOptions

    def __init__(self, options: NvmlOptions, start: Start, pynvml: Any = None) -> None:
        super().__init__(options, start)
        self._nvml = Nvml(pynvml)
        self._started = False
        self._quantities: list[Quantity] = []

    @property
    def period_ns(self) -> int:
        o = self.options
        return round(1e6 * min(p for p in (o.instant_ms, o.samples_ms, o.energy_ms, o.scope_ms, o.side_ms) if p))

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        self._known = load_gpus(gpu_file_path(self.options.calibration))
        self._nvml.start()
        self._started = True
        streams: list[Stream] = []
        devices: list[Device] = []
        for index in self._indices():
            quantities, device = self._open_gpu(index)
            for quantity in quantities:
                stream = self.add_stream((quantity.column,), quantity.lines, quantity.period_ns, quantity.detail)
                quantity.output = LineOutput(self.builders[-1])
                streams.append(stream)
            self._quantities += quantities
            devices.append(device)
        now_ns = self.start.clock.now_ns()
        for i, quantity in enumerate(self._quantities):
            # Spread out, so that the slow calls of several GPUs do not meet in one poll.
            quantity.due_ns = now_ns + quantity.interval_ns * i // len(self._quantities)
        return tuple(streams), tuple(devices)

    def poll(self) -> None:
        now_ns = self.start.clock.now_ns()
        # A poll that comes a little early must not miss its turn for a whole period.
        soon_ns = now_ns + self.period_ns // 2
        for quantity in self._quantities:
            if quantity.due_ns <= soon_ns:
                quantity.poll()
                quantity.due_ns = max(quantity.due_ns + quantity.interval_ns, now_ns)

    def health(self) -> dict[str, object]:
        return {
            "refused": {quantity.name: quantity.refused for quantity in self._quantities},
            "lost_grids": {q.name: q.lost_grids for q in self._quantities if isinstance(q, SampleBuffer)},
            "late_samples": {q.name: q.late_samples for q in self._quantities if isinstance(q, SampleBuffer)},
        }

    def close(self) -> None:
        if self._started:
            self._started = False
            self._nvml.stop()

    def _indices(self) -> tuple[int, ...]:
        count = int(self._must("nvmlDeviceGetCount"))
        if not count:
            raise SensorError("NVML knows no GPU on this machine: leave the source 'nvml' out")
        if absent := [g for g in self.options.gpus if g >= count]:
            raise ConfigError(f"there is no GPU {absent[0]}: this machine has 0 to {count - 1}")
        return self.options.gpus or tuple(range(count))

    def _open_gpu(self, index: int) -> tuple[list[Quantity], Device]:
        o, ask = self.options, self._nvml.ask
        handle = self._must("nvmlDeviceGetHandleByIndex", index)
        pci = getattr(ask("nvmlDeviceGetPciInfo", handle), "busId", None)
        limits = ask("nvmlDeviceGetPowerManagementLimitConstraints", handle) or (None, None)
        detail: dict[str, object] = {
            "name": ask("nvmlDeviceGetName", handle),
            "uuid": ask("nvmlDeviceGetUUID", handle),
            "pci_bus_id": pci.decode() if isinstance(pci, bytes) else pci,
            "driver_version": ask("nvmlSystemGetDriverVersion"),
            "cuda_version": _cuda_text(ask("nvmlSystemGetCudaDriverVersion")),
            "architecture": ask("nvmlDeviceGetArchitecture", handle),
            "power_limit_mw": ask("nvmlDeviceGetPowerManagementLimit", handle),
            "default_power_limit_mw": ask("nvmlDeviceGetPowerManagementDefaultLimit", handle),
            "min_power_limit_mw": limits[0],
            "max_power_limit_mw": limits[1],
            "scope": "gpu",
        }
        architecture = detail["architecture"]
        uuid, pci_bus_id, driver = (str(detail[key] or "") for key in ("uuid", "pci_bus_id", "driver_version"))
        known = self._nvml.known(uuid, driver) or self._known.of(uuid, driver)
        gpu = Gpu(f"{o.prefix}{index}", handle, architecture if isinstance(architecture, int) else 0, detail, known)
        quantities: list[Quantity] = []
        lacking: dict[str, str] = {}

        def add(kind: type[Quantity], pace_ms: float) -> None:
            if pace_ms:
                try:
                    quantities.append(kind(self._nvml, self.start.clock, gpu, round(pace_ms * 1e6)))
                except NvmlRefused as error:
                    lacking[f"{gpu.name}.{kind.suffix}"] = str(error)

        add(SampleBuffer, o.samples_ms)
        add(InstantPower, o.instant_ms)
        add(EnergyCounter, o.energy_ms)
        if not quantities:
            raise SensorError(f"GPU {index} ({detail['name']}) tells neither its power nor its energy: leave it out")
        description = str(detail["name"] or "NVIDIA GPU") + (
            f"; not supported: {', '.join(lacking)}" if lacking else ""
        )
        if (instances := self._mig_instances(handle)) is not None:
            detail["mig"] = instances
            description += f"; power of the whole GPU, whose {len(instances)} MIG instances have none of their own"
        quantities += [SampleClock(buffer) for buffer in quantities if isinstance(buffer, SampleBuffer)]
        # Few GPUs have these: what is missing of them is noted, not announced.
        add(MemoryPower, o.scope_ms)
        add(ModulePower, o.scope_ms)
        add(AuxiliaryChannels, o.side_ms)
        detail["not_supported"] = lacking
        detail["calibration"] = {
            q.name: q.calibration() for q in quantities if isinstance(q, SampleBuffer | InstantPower | EnergyCounter)
        }
        return quantities, Device(gpu.name, (quantities[0].name,), description, uuid=uuid, pci=pci_bus_id)

    def _mig_instances(self, handle: Any) -> list[dict[str, object]] | None:
        """The parts that a GPU is split into, None where it is not: NVML tells power and energy of the whole alone."""
        ask = self._nvml.ask
        mode = ask("nvmlDeviceGetMigMode", handle)
        if not mode or mode[0] != 1:
            return None
        handles = (
            ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, i)
            for i in range(ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0)
        )
        return [
            {"uuid": ask("nvmlDeviceGetUUID", mig), "name": ask("nvmlDeviceGetName", mig)}
            for mig in handles
            if mig is not None
        ]

    def _must(self, function: str, *arguments: Any) -> Any:
        try:
            return self._nvml.call(function, *arguments)
        except NvmlRefused as error:
            raise SensorError(f"NVML: {function} failed: {error}") from error


def _cuda_text(number: object) -> str | None:
    """``13.0`` for 13000 (nvmlSystemGetCudaDriverVersion)."""
    return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) else None
