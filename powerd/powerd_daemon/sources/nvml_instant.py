"""The driver's momentary power of one GPU."""

from __future__ import annotations

from collections.abc import Callable

from powerd_core.model import Accuracy, Column, Flag
from powerd_daemon.clock import Clock
from powerd_daemon.sources.nvml_api import (
    ARCH_AMPERE,
    ARCH_HOPPER,
    FI_DEV_POWER_INSTANT,
    NOT_SUPPORTED,
    Nvml,
    NvmlRefused,
)
from powerd_daemon.sources.nvml_quantity import (
    FILTER_NS,
    FITTED,
    GAIN_ORIGIN,
    U_GAIN,
    UNKNOWN,
    UPDATE_NS,
    Gpu,
    Quantity,
)


class InstantPower(Quantity):
    """The driver's momentary power, a reading for each time it is renewed.

    It is polled more often than it changes, which tells when it changed to within one poll. A value that stays the
    same over a renewal is a new value all the same, and is appended at the time at which it was due.
    """

    suffix = "nvml"
    column = Column("power_mw", "I")

    def __init__(self, nvml: Nvml, clock: Clock, gpu: Gpu, interval_ns: int) -> None:
        super().__init__(nvml, clock, gpu, interval_ns)
        self._read, self._is_instant = self._choose()
        self._value: int | None = None
        self._polled_ns = self._renewed_ns = clock.now_ns()
        """When it last answered, and when the value was renewed."""

    def _choose(self) -> tuple[Callable[[], int], bool]:
        def field() -> int:
            return self.nvml.field(self.gpu.handle, FI_DEV_POWER_INSTANT)

        def usage() -> int:
            return int(self.nvml.call("nvmlDeviceGetPowerUsage", self.gpu.handle))

        try:
            some_power(field())
        except NvmlRefused:
            some_power(usage())
            return usage, False
        return field, True

    @property
    def period_ns(self) -> int:
        return max(UPDATE_NS, self.interval_ns)

    @property
    def _fitted(self) -> bool:
        return self._is_instant and self.gpu.architecture == ARCH_HOPPER

    @property
    def _is_slow(self) -> bool:
        """nvmlDeviceGetPowerUsage averages over a second from Ampere on."""
        return not self._is_instant and self.gpu.architecture >= ARCH_AMPERE

    @property
    def _age_ns(self) -> int:
        """From the centre of what a value shows to its renewal."""
        return 20_000_000 if self._fitted else 500_000_000 if self._is_slow else 0

    @property
    def description(self) -> str:
        if self._is_instant:
            return "instant power by NVML (field 186)"
        average = ", an average over one second" if self._is_slow else ""
        return f"power by NVML (nvmlDeviceGetPowerUsage{average}); this GPU has no instant power"

    @property
    def accuracy(self) -> Accuracy:
        poll_ns, filter_ns = self.interval_ns, 0
        if self._fitted:
            window_ns, filter_ns, centre_ns, origin = 1_000_000, FILTER_NS, 3_000_000 + poll_ns, FITTED
        elif self._is_slow:
            window_ns, centre_ns, origin = 1_000_000_000, 100_000_000 + poll_ns, "window by NVIDIA's documentation"
        else:
            window_ns, centre_ns, origin = 100_000_000, 50_000_000 + poll_ns, UNKNOWN
        update_ns = UPDATE_NS if self.period_ns < UPDATE_NS else 0
        return Accuracy(U_GAIN, 0.0, 1e-3, window_ns, centre_ns, update_ns, f"{GAIN_ORIGIN}; {origin}", filter_ns)

    def poll(self) -> None:
        now_ns = self.clock.now_ns()
        try:
            value = some_power(self._read())
        except NvmlRefused:
            self.refused += 1
            if now_ns - max(self._polled_ns, self._renewed_ns) >= UPDATE_NS:
                self._lose(now_ns, Flag.IO_ERROR)
            return
        before_ns, self._polled_ns = self._polled_ns, now_ns
        if self._value is not None and now_ns - before_ns >= UPDATE_NS + 2 * self.interval_ns:
            # Renewals were slept through.
            self._lose(now_ns, Flag.MISSING)
        if self._value is None:
            # Nobody knows how old the first value is.
            self._value, self._renewed_ns = value, now_ns
        elif value != self._value:
            self._value, self._renewed_ns = value, (max(before_ns, now_ns - UPDATE_NS) + now_ns) // 2
            self.append(self._renewed_ns - self._age_ns, value)
        elif now_ns - self._renewed_ns >= UPDATE_NS * 3 // 2:
            self._renewed_ns = max(self._renewed_ns + UPDATE_NS, now_ns - UPDATE_NS)
            self.append(self._renewed_ns - self._age_ns, value)

    def _lose(self, now_ns: int, flag: Flag) -> None:
        """Nobody knows any more how old the value is that comes next."""
        self._value, self._renewed_ns = None, now_ns
        self.append(now_ns - self._age_ns, 0, flag)


def some_power(value_mw: int) -> int:
    """The value, unless it is 0: a GPU that can be asked takes some power, so NVML does not know it. Raises
    `NvmlRefused`."""
    if not value_mw:
        raise NvmlRefused(NOT_SUPPORTED, "NVML tells 0 W")
    return value_mw
