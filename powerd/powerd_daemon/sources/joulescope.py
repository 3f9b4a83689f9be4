"""Source ``joulescope``: a Joulescope JS110 or JS220 by its maker's library. The one module that imports it.

What is taken are the statistics that the instrument makes itself: the mean power of each interval and its energy, from
1 or 2 million samples a second, which no pace of ours can miss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from importlib import import_module
from typing import Any, ClassVar

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Accuracy
from powerd_core.serde import option
from powerd_core.text import needs_extra
from powerd_daemon.clock import Clock
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.polled import ENERGY, Meter, MeterAnswer, MeterChannel, PolledSource, check_pace, micro_code

SAMPLES_HZ = 1_000_000
"""Of a JS220; a JS110's own statistics come twice a second."""
JS110_HZ = 2.0
U_GAIN = 0.0058
"""±1 %, divided by the root of 3."""
LATENCY_NS = 50_000_000
"""From the end of an interval until the library calls, at most: assumed."""
LOOK_NS = 10_000_000
_ERRORS = (OSError, RuntimeError, ValueError)
"""What the library raises; its time-outs are OSErrors."""


@dataclass(frozen=True, slots=True)
class JoulescopeOptions:
    """The instrument chooses its ranges itself."""

    serial: str = option("", "serial number, as in u/js220/000415; empty = the only one")
    rate_hz: float = option(20.0, "intervals per second of a JS220, 1 to 100; a JS110 has 2")
    u_gain: float = option(
        U_GAIN, "relative standard uncertainty; the maker's data sheet has the figures of each range"
    )
    u_offset_w: float = option(0.0, "standard uncertainty of the zero in watts")
    line: str = option("joulescope", "name of the power's line; the energy's is <line>_energy")
    device: str = option("node", "name of the device behind the instrument")

    def __post_init__(self) -> None:
        check_pace(self.rate_hz, u_gain=self.u_gain)
        if not 1 <= self.rate_hz <= 100 or self.u_offset_w < 0:
            raise ConfigError("rate_hz must be from 1 to 100, and u_offset_w not negative")
        if not self.line or not self.device:
            raise ConfigError("line and device must not be empty")


class Joulescope(Meter):
    """One instrument. The library calls from a thread of its own, which only appends to what the next look takes."""

    def __init__(self, o: JoulescopeOptions, clock: Clock, library: Any) -> None:
        """Opens it. Raises `SensorError` or `ConfigError`."""
        self._clock = clock
        self._came: deque[tuple[int, Any]] = deque()
        self._driver = None
        try:
            self._driver = library.Driver()
            path = self._choose(o.serial, self._driver.device_paths())
            self._driver.open(path)
            rate_hz = self._set_up(path, o.rate_hz)
        except (*_ERRORS, SensorError, ConfigError) as error:
            self.close()
            if isinstance(error, SensorError | ConfigError):
                raise
            raise SensorError(f"the Joulescope cannot be opened: {error}: is another program using it?") from error
        self.period_ns = round(1e9 / rate_hz)
        self.detail = {
            "path": path,
            "rate_hz": rate_hz,
            "codes": "microwatts and microjoules of the instrument's statistics",
        }
        origin = "assumed as configured; the maker's data sheet states limits by range"
        if o.u_gain == U_GAIN:
            origin = "assumed ±1 %; the maker's data sheet states limits by range"
        power = Accuracy(o.u_gain, o.u_offset_w, 0.0, self.period_ns, LATENCY_NS, 0, origin)
        energy = Accuracy(o.u_gain, o.u_offset_w, centre_ns=LATENCY_NS, origin=f"{origin}; integrated without a hole")
        self.channels = (
            MeterChannel(o.line, o.device, f"power by the Joulescope {path}", power, age_ns=self.period_ns // 2),
            MeterChannel(f"{o.line}_energy", o.device, f"energy by the Joulescope {path}", energy, ENERGY),
        )

    @staticmethod
    def _choose(serial: str, paths: Sequence[str]) -> str:
        wanted = serial.rpartition("/")[2].lstrip("0")
        alike = [path for path in paths if wanted in ("", path.rpartition("/")[2].lstrip("0"))]
        if len(alike) == 1:
            return alike[0]
        if alike:
            raise ConfigError(f"there are several Joulescopes: choose one by 'serial': {', '.join(alike)}")
        raise SensorError(f"no Joulescope {serial or 'at all'} is connected (there are: {', '.join(paths) or 'none'})")

    def _set_up(self, path: str, rate_hz: float) -> float:
        """Have it send statistics; how many a second."""
        driver: Any = self._driver
        if "js110" in path:
            driver.publish(f"{path}/s/i/range/select", "auto")
            driver.subscribe(f"{path}/s/sstats/value", "pub", self._on_statistics)
            return JS110_HZ
        driver.publish(f"{path}/s/i/range/mode", "auto")
        driver.publish(f"{path}/s/stats/scnt", round(SAMPLES_HZ / rate_hz))
        driver.publish(f"{path}/s/stats/ctrl", 1)
        driver.subscribe(f"{path}/s/stats/value", "pub", self._on_statistics)
        return rate_hz

    def _on_statistics(self, _topic: str, value: Any) -> None:
        self._came.append((self._clock.now_ns(), value))

    def ask(self) -> Iterable[MeterAnswer]:
        answers = []
        while self._came:
            t_ns, value = self._came.popleft()
            answers.append(self._answer(t_ns, value))
        return answers

    def _answer(self, t_ns: int, value: Any) -> MeterAnswer:
        power, energy = self.channels
        codes: dict[str, int] = {}
        stamp: object = None
        with suppress(LookupError, TypeError, ValueError, ArithmeticError):
            codes[power.line] = micro_code(Decimal(value["signals"]["power"]["avg"]["value"]))
            codes[energy.line] = micro_code(Decimal(value["accumulators"]["energy"]["value"]))
            stamp = tuple(value["time"]["samples"]["value"])
        return MeterAnswer(codes, t_ns, stamp)

    def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            with suppress(*_ERRORS):
                driver.finalize()


class JoulescopeSource(PolledSource):
    """Lines ``joulescope`` (mean power of each interval) and ``joulescope_energy`` (the instrument's own integral).

    Tests give ``library`` a module of their own.
    """

    Options: ClassVar[type[JoulescopeOptions]] = JoulescopeOptions
    options: JoulescopeOptions

    def __init__(self, options: JoulescopeOptions, start: Start, library: Any = None) -> None:
        super().__init__(options, start)
        self._library = library

    @property
    def period_ns(self) -> int:
        return LOOK_NS

    def find_meters(self) -> Sequence[Meter]:
        try:
            library = self._library or import_module("pyjoulescope_driver")
        except ImportError as error:
            raise SensorError(
                f"the source 'joulescope' needs pyjoulescope_driver: {needs_extra('joulescope')}"
            ) from error
        return (Joulescope(self.options, self.start.clock, library),)
