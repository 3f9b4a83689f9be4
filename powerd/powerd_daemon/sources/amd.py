"""Source ``amd``: power and energy of AMD GPUs by AMD's library amdsmi. The one module that imports it.

Two calls of a GPU: `amdsmi_get_power_info` (watts of the socket) and `amdsmi_get_energy_count` (an accumulator, its
resolution in microjoules, and its own time stamp).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, ClassVar

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Accuracy, CounterConversion, Device
from powerd_core.serde import option
from powerd_core.text import needs_extra
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.polled import (
    CODES_PER_UNIT,
    Meter,
    MeterAnswer,
    MeterChannel,
    PolledSource,
    Unanswered,
    check_pace,
)

U_GAIN = 0.029
"""±5 %, divided by the root of 3."""
WINDOW_NS = 100_000_000
_GONE = (32, 34)
"""Status codes: not initialised, driver not loaded."""
_POWERS = ("current_socket_power", "average_socket_power", "socket_power")
"""Where the watts are: of MI300 and later, of earlier ones and Navi, and of newer libraries for all."""
_NONE = (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
"""What the library's structures hold where there is no value."""


@dataclass(frozen=True, slots=True)
class AmdOptions:
    """Nothing is set."""

    gpus: tuple[int, ...] = option((), "indices of the GPUs; empty = every GPU")
    rate_hz: float = option(10.0, "readings per second")
    u_gain: float = option(U_GAIN, "relative standard uncertainty; AMD specifies none")
    prefix: str = option("gpu", "devices are named by this and their index")

    def __post_init__(self) -> None:
        check_pace(self.rate_hz, u_gain=self.u_gain)
        if len(set(self.gpus)) != len(self.gpus) or any(g < 0 for g in self.gpus):
            raise ConfigError(f"gpus = {list(self.gpus)} must be different indices from 0 on")


class AmdSmi:
    """Calls of the library by name, with its errors as ours. ``module`` is ``amdsmi`` or a test's."""

    def __init__(self, module: Any = None) -> None:
        self._module = module

    def start(self) -> None:
        """Load the library. Raises `SensorError` where there is none, or no driver."""
        try:
            self._module = self._module or import_module("amdsmi")
        except Exception as error:
            # Without ROCm its import fails in ways of its own: KeyError, OSError, AttributeError.
            why = f"{type(error).__name__}: {error}"
            raise SensorError(f"the source 'amd' needs amdsmi and ROCm ({why}): {needs_extra('amd')}") from error
        self.call("amdsmi_init")

    def stop(self) -> None:
        with suppress(self._module.AmdSmiException):
            self._module.amdsmi_shut_down()

    def call(self, function: str, *arguments: Any) -> Any:
        """The function's value. Raises `Unanswered`, or `SensorError` when the driver is gone."""
        try:
            return getattr(self._module, function)(*arguments)
        except self._module.AmdSmiException as error:
            text = " ".join(str(error).split())
            if getattr(error, "err_code", None) in _GONE or function == "amdsmi_init":
                raise SensorError(f"amdsmi: the driver is gone or was never loaded: {text}") from error
            raise Unanswered(f"{function}: {text}") from error

    def ask(self, function: str, *arguments: Any) -> Any:
        """The function's value, or None where the GPU or the library does not have it."""
        with suppress(Unanswered, AttributeError):
            return self.call(function, *arguments)
        return None


def socket_code(info: Any) -> int | None:
    """The socket's microwatts in an answer of `amdsmi_get_power_info`; None where it has none.

    A GPU that can be asked takes some power: 0 is what a driver says that does not know.
    """
    for name in _POWERS:
        value = info.get(name) if isinstance(info, dict) else None
        if isinstance(value, int) and value > 0 and value not in _NONE:
            return value * CODES_PER_UNIT
    return None


class PowerMeter(Meter):
    """The socket power of one GPU."""

    def __init__(self, smi: AmdSmi, handle: Any, channel: MeterChannel, period_ns: int) -> None:
        """Asks once. Raises `Unanswered` where the GPU does not tell it."""
        self._smi, self._handle = smi, handle
        self.channels, self.period_ns = (channel,), period_ns
        if not self._read().codes:
            raise Unanswered("amdsmi tells no socket power of it")

    def _read(self) -> MeterAnswer:
        code = socket_code(self._smi.call("amdsmi_get_power_info", self._handle))
        return MeterAnswer({} if code is None else {self.channels[0].line: code})

    def ask(self) -> Iterable[MeterAnswer]:
        return (self._read(),)


class EnergyMeter(Meter):
    """The energy accumulator of one GPU."""

    def __init__(self, smi: AmdSmi, handle: Any, channel: MeterChannel, period_ns: int) -> None:
        """Asks once. Raises `Unanswered` where the GPU has none."""
        self._smi, self._handle, self.period_ns = smi, handle, period_ns
        self.channels = (channel,)
        resolution_uj = float(self._count()["counter_resolution"])
        if not 0 < resolution_uj < 1e6:
            raise Unanswered(f"amdsmi says that its accumulator counts in {resolution_uj:g} uJ")
        self.channels = (replace(channel, conversion=CounterConversion("energy_codes", resolution_uj * 1e-6)),)

    def _count(self) -> dict[str, Any]:
        counted = self._smi.call("amdsmi_get_energy_count", self._handle)
        # Before ROCm 6.2 the accumulator was called power.
        code = counted.get("energy_accumulator", counted.get("power"))
        if not isinstance(code, int) or not 0 < code < 1 << 63 or "counter_resolution" not in counted:
            raise Unanswered("amdsmi tells no energy count of it")
        return {**counted, "code": code}

    def ask(self) -> Iterable[MeterAnswer]:
        counted = self._count()
        return (MeterAnswer({self.channels[0].line: counted["code"]}, stamp=counted.get("timestamp") or None),)


class AmdSource(PolledSource):
    """Lines ``gpuN.amd`` (watts of the socket) and ``gpuN.amd_energy`` (the accumulator), as far as a GPU has them.

    The device ``gpuN`` is fed by the power where there is one. Tests give ``amdsmi`` a module of their own.
    """

    Options: ClassVar[type[AmdOptions]] = AmdOptions
    options: AmdOptions

    def __init__(self, options: AmdOptions, start: Start, amdsmi: Any = None) -> None:
        super().__init__(options, start)
        self._smi = AmdSmi(amdsmi)
        self._started = False
        self._devices: list[Device] = []

    def find_meters(self) -> Sequence[Meter]:
        self._smi.start()
        self._started = True
        handles = self._smi.call("amdsmi_get_processor_handles")
        if not handles:
            raise SensorError("amdsmi knows no GPU on this machine: leave the source 'amd' out")
        if absent := [g for g in self.options.gpus if g >= len(handles)]:
            raise ConfigError(f"there is no GPU {absent[0]}: this machine has {len(handles)}")
        indices = self.options.gpus or tuple(range(len(handles)))
        return [meter for index in indices for meter in self._meters_of(index, handles[index])]

    def describe_devices(self, channels: Sequence[MeterChannel]) -> tuple[Device, ...]:
        return tuple(self._devices)

    def close(self) -> None:
        if self._started:
            self._started = False
            self._smi.stop()

    def _meters_of(self, index: int, handle: Any) -> list[Meter]:
        name, ask = f"{self.options.prefix}{index}", self._smi.ask
        asic = ask("amdsmi_get_gpu_asic_info", handle)
        product = asic.get("market_name") if isinstance(asic, dict) else None
        uuid, pci = (str(ask(f"amdsmi_get_gpu_device_{what}", handle) or "") for what in ("uuid", "bdf"))
        detail = {"name": product, "uuid": uuid, "pci_bus_id": pci}
        gain = "gain assumed as ±5 %: AMD specifies none" if self.options.u_gain == U_GAIN else "gain as configured"
        power = Accuracy(
            self.options.u_gain, 0.0, 1.0, WINDOW_NS, WINDOW_NS, 0, f"{gain}; window not characterised, taken as 0.1 s"
        )
        energy = Accuracy(self.options.u_gain, centre_ns=WINDOW_NS, origin=f"{gain}; renewed within 0.1 s, assumed")
        meters: list[Meter] = []
        for kind, channel in (
            (PowerMeter, MeterChannel(f"{name}.amd", name, "socket power by amdsmi", power, age_ns=WINDOW_NS // 2)),
            (EnergyMeter, MeterChannel(f"{name}.amd_energy", name, "energy accumulator by amdsmi", energy)),
        ):
            with suppress(Unanswered):
                meter = kind(self._smi, handle, channel, self.period_ns)
                meter.detail = detail
                meters.append(meter)
        if not meters:
            raise SensorError(f"GPU {index} ({product}) tells neither its power nor its energy: leave it out by 'gpus'")
        feed = meters[0].channels[0].line
        self._devices.append(Device(name, (feed,), str(product or "AMD GPU"), uuid=uuid, pci=pci))
        return meters
