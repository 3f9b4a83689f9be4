"""A counter: measures some lines of a device between start and stop, as often as it is continued."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import numpy as np

from powerd_client.hostclock import now_ns
from powerd_client.pmlib.data import ALL_SETS, CounterData, CounterSet
from powerd_core.errors import ConfigError, PeerError

if TYPE_CHECKING:
    from powerd_client.markwriter import MarkWriter
    from powerd_client.pmlib.lines import Lines
    from powerd_client.pmlib.session import Session

_WORTH_SAYING = 1e-3
"""Share of a set without readings from which on it is told."""


class Counter:
    """Made by `Server.counter`. With ``with``, it is started and stopped.

    In the run file every set is a phase with the counter's name. To start and to stop a counter costs a mark in
    mapped memory; nothing else happens in this process until `get_data`.
    """

    def __init__(
        self,
        session: Session,
        wait_for_device: Callable[[], str],
        name: str,
        device: str,
        lines: Mapping[int, str],
        is_aggregate: bool,
        frequency: float,
    ) -> None:
        self.name = name
        self.device = device
        self.lines = lines
        """Names by number."""
        self.is_aggregate = is_aggregate
        self.frequency = frequency
        self._session = session
        self._wait_for_device = wait_for_device
        self._writer: MarkWriter | None = session.take_writer()
        self._kinds: dict[str, int] = {}
        self._begun: tuple[int, int] | None = None
        """Kind and time of the set that goes on."""
        self._ended: list[tuple[int, int]] = []
        self._read: list[CounterSet] = []
        self._data: CounterData | None = None
        self._kind("host")  # written down now, so that the first start costs no more than the others

    def start(self) -> None:
        """Forget all sets and begin the first one. Raises `ConfigError` while a set goes on, and after the server was
        closed."""
        self._begin(forget=True)

    def resume(self) -> None:
        """Begin a further set (pmlib's *continue*). Raises as `start` does."""
        self._begin(forget=False)

    def _begin(self, *, forget: bool) -> None:
        writer = self._usable()
        self._session.check_open()
        if self._begun is not None:
            raise ConfigError(f"{self.name!r} runs already: stop it before a further set begins")
        if forget:
            self._ended, self._read, self._data = [], [], None
        kind = self._kind(self._wait_for_device())
        t_ns = now_ns()
        writer.mark_at(kind, t_ns)
        self._begun = kind, t_ns

    def stop(self) -> None:
        """End the set that goes on. Raises `ConfigError` when none does."""
        writer = self._usable()
        if self._begun is None:
            raise ConfigError(f"{self.name!r} is not running: start it before it is stopped")
        kind, begin_ns = self._begun
        self._wait_for_device()
        t_ns = now_ns()
        writer.mark_at(~kind, t_ns)
        self._begun = None
        self._ended.append((begin_ns, t_ns))

    def _kind(self, timing: str) -> int:
        if timing not in self._kinds:
            self._kinds[timing] = self._usable().kind(self.name, {}, timing)
        return self._kinds[timing]

    def _usable(self) -> MarkWriter:
        if self._writer is None:
            raise ConfigError(f"{self.name!r} is finalised: create another counter")
        return self._writer

    @property
    def is_running(self) -> bool:
        return self._begun is not None

    @property
    def num_sets(self) -> int:
        """Sets that have ended."""
        return len(self._ended)

    def get_data(self) -> CounterData:
        """The readings of all sets; waits until those of the last set's end have arrived.

        Warns of seconds without readings and of readings at full scale. Raises `ConfigError` for a counter that runs
        or was never started, `PeerError` when a set has no readings at all.
        """
        self._usable()
        if self._begun is not None:
            raise ConfigError(f"{self.name!r} runs: stop it before it is read")
        if not self._ended:
            raise ConfigError(f"{self.name!r} has no data: it was not started")
        if len(self._read) < len(self._ended):
            self._session.await_readings(tuple(self.lines.values()), self._ended[-1][1])
            for number in range(len(self._read), len(self._ended)):
                self._read.append(self._read_set(number, *self._ended[number]))
        self._data = CounterData(self.device, self.lines, self.is_aggregate, self.frequency, tuple(self._read))
        return self._data

    def _read_set(self, number: int, begin_ns: int, end_ns: int) -> CounterSet:
        found = self._session.readings(tuple(self.lines.values()), begin_ns, end_ns)
        made = CounterSet(number, begin_ns, end_ns, {i: found[name] for i, name in self.lines.items()})
        where = f"set {number} of {self.name!r}"
        for name, r in found.items():
            if len(r.t_ns) < 2 or r.t_ns[-1] <= begin_ns or r.t_ns[0] >= end_ns:
                raise PeerError(f"{where} has no reading of line {name!r}: does its powerd still run?")
            if clipped := np.sum((r.clipped >= begin_ns) & (r.clipped <= end_ns)):
                self._warn(f"{where}: {clipped} readings of {name!r} were at full scale: its energy is at least this")
        missing_s = made.missing_s(list(self.lines))
        if missing_s > _WORTH_SAYING * made.duration_s:
            self._warn(f"{where}: {missing_s:.3g} of {made.duration_s:.3g} s have no readings")
        elif len(made.moments(list(self.lines), 0)) < 4:
            self._warn(f"{where}, {made.duration_s:.3g} s, is too short for its readings: its energy is interpolated")
        return made

    @staticmethod
    def _warn(text: str) -> None:
        warnings.warn(f"powerd: {text}", stacklevel=5)

    @property
    def data(self) -> CounterData:
        """What `get_data` gave last. Raises `ConfigError` when it has not been called since the counter was started."""
        if self._data is None:
            raise ConfigError(f"the data of {self.name!r} have not been fetched: get them when it is stopped")
        return self._data

    def energy_j(self, lines: Lines | None = None, set_number: int = ALL_SETS) -> float:
        """Joules of the data that were fetched, see `CounterData.energy_j`."""
        return self.data.energy_j(lines, set_number)

    def finalize(self) -> None:
        """Let go of it, and of its data. A set that goes on ends here. Raises `ConfigError` the second time."""
        writer = self._usable()
        if self._begun is not None:
            self.stop()
        self._writer, self._data = None, None
        self._ended, self._read = [], []
        self._session.give_writer(writer)

    def __enter__(self) -> Counter:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.stop()
        return False
