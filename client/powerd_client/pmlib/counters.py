"""The powerd that a script measures with: its devices, counters on them, and pmlib's calls by their own names.

All counters of a server share one recording. A recorder process beside the script receives the readings. Here, only
marks are written while a counter runs, and the recorder's journal is read when a stopped counter is asked for its data.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from powerd_client.host.hostclock import now_ns
from powerd_client.host.log import tell
from powerd_client.journals.journal import is_locked, joined_journal, run_of
from powerd_client.journals.marks import MarkWriter
from powerd_client.pmlib.readings import (
    ALL_SETS,
    MAX_LINES,
    CounterData,
    CounterSet,
    DeviceInfo,
    JournalReader,
    LineReadings,
    Lines,
    write_paraver,
)
from powerd_client.record.recording import Recording
from powerd_core.errors import ConfigError, PeerError, RunFileError
from powerd_core.model import Description, QuantityConversion

__all__ = [
    "LINE_CLR",
    "LINE_CLR_ALL",
    "LINE_ISSET",
    "LINE_SET",
    "LINE_SET_ALL",
    "Counter",
    "CounterData",
    "CounterSet",
    "DeviceInfo",
    "Lines",
    "Server",
    "pm_calculate_energy",
    "pm_close_server",
    "pm_continue_counter",
    "pm_create_counter",
    "pm_finalize_counter",
    "pm_get_counter_data",
    "pm_get_counter_num_sets",
    "pm_get_device_info",
    "pm_get_devices",
    "pm_print_data_csv",
    "pm_print_data_paraver",
    "pm_print_data_stdout",
    "pm_print_data_text",
    "pm_set_lines",
    "pm_set_server",
    "pm_start_counter",
    "pm_stop_counter",
]

PathLike = str | os.PathLike[str]

_POLL_S = 0.005
_PATIENCE_S = 3.0
_WORTH_SAYING = 1e-3
"""Share of a set without readings from which on it is told."""


class Server:
    """One powerd and the run that is recorded from it.

    ``url``        where it listens; None starts one on this machine, with its best source or the one of ``source``
    ``out``        the run file; by default the first of ``pmlib.h5``, ``pmlib-2.h5``, ... that is free
    ``overwrite``  replace ``out`` if it exists

    Nothing is started before it is needed: by the first question for devices or the first counter. `close` completes
    the run file; the end of the process does the same. Under ``joules record`` the counters join the run that goes on,
    and these arguments do not count.
    """

    def __init__(
        self,
        url: str | None = None,
        out: PathLike | None = None,
        *,
        overwrite: bool = False,
        source: Mapping[str, object] | None = None,
    ) -> None:
        self.url = url
        self.out = None if out is None else Path(out)
        self._overwrite = overwrite
        self._source = dict(source) if source else None
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._recording: Recording | None = None
        """What this process began; None where it has joined."""
        self._reader: JournalReader | None = None
        """Of the recording's journal, from the moment on at which the recording is needed."""
        self._writer: MarkWriter | None = None
        self._counters = 0
        self._is_closed = False

    def _started(self) -> JournalReader:
        """The journal of the recording, which begins when it is first needed. Raises `ConfigError` after `close`."""
        with self._lock:
            if self._is_closed:
                raise ConfigError(f"this server is closed: its run is in {self.out}")
            if self._reader is None:
                journal = joined_journal()
                if journal is None:
                    self._recording = Recording(
                        self.out or Path("pmlib.h5"),
                        self.url or None,
                        overwrite=self._overwrite,
                        is_numbered=self.out is None,
                        source=self._source,
                        trainer_pid=self._pid,
                    )
                    journal = self._recording.journal
                self.out, self._reader = run_of(journal), JournalReader(journal)
                atexit.register(self.close)
                self._reader.update()
            return self._reader

    def devices(self) -> tuple[DeviceInfo, ...]:
        """What can be measured. A line that measures a device by other means is one of its own, behind the others."""
        devices: dict[str, DeviceInfo] = {}
        for description in self._started().descriptions:
            for device in devices_of(description):
                devices.setdefault(device.name, device)
        return tuple(devices.values())

    def device(self, name: str) -> DeviceInfo:
        """The device of that name. Raises `ConfigError` with the names that there are."""
        devices = {device.name: device for device in self.devices()}
        if name not in devices:
            raise ConfigError(f"there is no device {name!r}: there are {', '.join(devices)}")
        return devices[name]

    def counter(
        self,
        device: str,
        lines: Lines | str | None = None,
        *,
        aggregate: bool = True,
        frequency: float = 0.0,
        name: str | None = None,
    ) -> Counter:
        """A counter on some of a device's lines (None: all), of their sum or (``aggregate=False``) of each line;
        ``name`` is its phase's name in the run.

        ``frequency`` thins what is printed, never what is measured; 0 prints all. Raises `ConfigError` for a device,
        lines or a frequency that there are not.
        """
        info = self.device(device)
        wanted = Lines.parse(lines) if isinstance(lines, str) else Lines.all() if lines is None else lines
        numbers = list(range(info.n_lines) if len(wanted) == MAX_LINES else wanted)
        if not numbers or numbers[-1] >= info.n_lines:
            raise ConfigError(f"lines {wanted}: device {device!r} has the lines 0 to {info.n_lines - 1}")
        if len(kinds := sorted({info.lines[i].provenance.value for i in numbers})) > 1:
            raise ConfigError(f"lines {wanted} are partly {' and partly '.join(kinds)}: make a counter for each")
        if not 0 <= frequency <= info.max_frequency * (1 + 1e-6):
            raise ConfigError(
                f"device {device!r} is read {info.max_frequency:g} times a second, not {frequency:g}: 0 is all"
            )
        with self._lock:
            self._counters += 1
            number, writer = self._counters, self._marks()
        names = {i: info.lines[i].name for i in numbers}
        return Counter(self, writer, number, name or f"counter {number}", device, names, bool(aggregate), frequency)

    def _marks(self) -> MarkWriter:
        if self._writer is None:
            journal = self._started().journal
            try:
                self._writer = MarkWriter(journal)
            except OSError as error:
                raise RunFileError(f"marks cannot be written under {journal}: {error.strerror}") from error
        return self._writer

    def _read(self, lines: Sequence[str], sets: Sequence[tuple[int, int]]) -> list[dict[str, LineReadings]]:
        """Readings of lines around each stretch of time, once all have been read after the last, or will not be."""
        with self._lock:
            reader = self._started()
            streams = [stream for description in reader.descriptions for stream in description.streams]
            period_ns = max(s.period_ns for s in streams if any(line.name in lines for line in s.lines))
            deadline = time.monotonic() + _PATIENCE_S + 3e-9 * period_ns
            is_recorded = True
            while not reader.reaches(lines, sets[-1][1]) and is_recorded and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                # Asked before reading: what a recorder wrote before it ended is then still read.
                is_recorded = is_locked(reader.journal)
                reader.update()
            return reader.readings(lines, sets)

    def close(self) -> None:
        """End the recording and wait until the run file is complete. Data that counters have read stay.

        A run without a single counter is thrown away.
        """
        if os.getpid() != self._pid:
            return  # in a forked child a thread that is not there may hold the lock for ever
        with self._lock:
            atexit.unregister(self.close)
            if self._is_closed:
                return
            self._is_closed = True
            stop_ns, writer = now_ns(), self._writer
            if writer is not None:
                writer.close()
            if self._recording is not None and writer is not None:
                self._recording.finish(stop_ns, writer.failure, told=writer.told)
            elif self._recording is not None:
                self._recording.abandon()
            elif writer is not None and writer.failure and not writer.told:
                tell(writer.failure)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def devices_of(description: Description) -> list[DeviceInfo]:
    """The devices, each with the lines that feed it; then every other line that measures power or energy, alone."""
    lines = {
        line.name: (line, 1e9 / max(stream.period_ns, 1)) for stream in description.streams for line in stream.lines
    }
    groups = [(device.name, device.feeds[:MAX_LINES], device.description) for device in description.devices]
    fed = {name for _, feeds, _ in groups for name in feeds}
    groups += [
        (name, (name,), line.description)
        for name, (line, _) in lines.items()
        if name not in fed and not isinstance(line.conversion, QuantityConversion)
    ]
    return [
        DeviceInfo(name, max(lines[n][1] for n in feeds), tuple(lines[n][0] for n in feeds), text)
        for name, feeds, text in groups
        if feeds
    ]


class Counter:
    """Measures some lines of a device between start and stop (or in a ``with``), as often as it is continued. Made by
    `Server.counter`. In the run file every set is a phase with the counter's name."""

    def __init__(
        self,
        server: Server,
        writer: MarkWriter,
        number: int,
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
        self._server = server
        self._writer: MarkWriter | None = writer
        """None once it is finalised."""
        self._track = 2 * number - 1
        """Counters overlap, and phases of one thread would have to nest. No thread has an odd number."""
        self._begun: tuple[int, int] | None = None
        """Kind and time of the set that goes on."""
        self._ended: list[tuple[int, int]] = []
        """Begin and end of the others."""
        self._data: CounterData | None = None
        writer.kind(name, {}, "host")  # written down now, so that the first start costs no more than the others

    def start(self) -> None:
        """Forget all sets, begin the first one. Raises `ConfigError` while a set goes on, and after `Server.close`."""
        self._begin(forget=True)

    def resume(self) -> None:
        """Begin a further set (pmlib's *continue*). Raises as `start` does."""
        self._begin(forget=False)

    def _begin(self, *, forget: bool) -> None:
        writer = self._usable()
        self._server._started()
        if self._begun is not None:
            raise ConfigError(f"{self.name!r} runs already: stop it before a further set begins")
        if forget:
            self._ended, self._data = [], None
        kind = writer.kind(self.name, {}, _wait_for_gpu())
        t_ns = now_ns()
        writer.mark_at(kind, t_ns, self._track)
        self._begun = kind, t_ns

    def stop(self) -> None:
        """End the set that goes on. Raises `ConfigError` when none does."""
        writer = self._usable()
        if self._begun is None:
            raise ConfigError(f"{self.name!r} is not running: start it before it is stopped")
        kind, begin_ns = self._begun
        _wait_for_gpu()
        t_ns = now_ns()
        writer.mark_at(~kind, t_ns, self._track)
        self._begun = None
        self._ended.append((begin_ns, t_ns))

    def _usable(self) -> MarkWriter:
        if self._writer is None:
            raise ConfigError(f"{self.name!r} is finalised: create another counter")
        return self._writer

    @property
    def spans_ns(self) -> tuple[tuple[int, int], ...]:
        """Begin and end of each set that has ended, on the host's clock."""
        return tuple(self._ended)

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
        if self._begun is not None or not self._ended:
            raise ConfigError(f"{self.name!r} is {'running' if self._begun else 'not started'}: stop it, then read it")
        readings = self._server._read(tuple(self.lines.values()), self._ended)
        sets = tuple(self._checked(number, of_set) for number, of_set in enumerate(readings))
        self._data = CounterData(self.device, self.lines, self.is_aggregate, self.frequency, sets)
        return self._data

    def _checked(self, number: int, readings: Mapping[str, LineReadings]) -> CounterSet:
        begin_ns, end_ns = self._ended[number]
        part = CounterSet(number, begin_ns, end_ns, {i: readings[name] for i, name in self.lines.items()})
        where, duration_s = f"set {number} of {self.name!r}", (end_ns - begin_ns) * 1e-9
        for name, r in readings.items():
            if len(r.t_ns) < 2 or r.t_ns[-1] <= begin_ns or r.t_ns[0] >= end_ns:
                raise PeerError(f"{where} has no reading of line {name!r}: does its powerd still run?")
            if clipped := np.sum((r.clipped_ns >= begin_ns) & (r.clipped_ns <= end_ns)):
                _warn(f"{where}: {clipped} readings of {name!r} were at full scale: its energy is at least this")
        missing_s = part.missing_s(list(self.lines))
        if missing_s > _WORTH_SAYING * duration_s:
            _warn(f"{where}: {missing_s:.3g} of {duration_s:.3g} s have no readings")
        elif len(part.moments(list(self.lines), 0)) < 4:
            _warn(f"{where}, {duration_s:.3g} s, is too short for its readings: its energy is interpolated")
        return part

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
        """Let go of its data. A set that goes on ends here. Raises `ConfigError` the second time."""
        self._usable()
        if self._begun is not None:
            self.stop()
        self._writer, self._data, self._ended = None, None, []

    def __enter__(self) -> Counter:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _wait_for_gpu() -> str:
    """Wait for the current device, where this process uses CUDA through torch. Returns the timing of the next mark."""
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):  # the script's next call will raise it too
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
            return "host-synchronised"
    return "host"


def _warn(text: str) -> None:
    warnings.warn(f"powerd: {text}", stacklevel=5)


# ---- pmlib's names: what C gives back through pointers is returned; errors are raised ------------------------------


def pm_set_server(
    ip: str | None = None,
    port: int = 7360,
    *,
    out: PathLike | None = None,
    overwrite: bool = False,
    source: Mapping[str, object] | None = None,
) -> Server:
    """The powerd at ``ip`` (a host's name or address, or a whole address such as ``ipc:///run/powerd/powerd.sock``).

    Nobody is asked yet. For None and for the other arguments see `Server`.
    """
    if ip and "://" not in ip:
        ip = f"tcp://[{ip}]:{port}" if ":" in ip else f"tcp://{ip}:{port}"
    return Server(ip, out, overwrite=overwrite, source=source)


pm_close_server = Server.close
"""Complete the run file now (pmlib has no such call: without it, the end of the script does it)."""
pm_get_device_info = Server.device
"""Name, highest frequency and lines of a device."""
pm_set_lines = Lines.parse
LINE_CLR_ALL = Lines.clear
pm_start_counter = Counter.start
pm_continue_counter = Counter.resume
pm_stop_counter = Counter.stop
pm_get_counter_data = Counter.get_data
pm_finalize_counter = Counter.finalize


def pm_get_devices(server: Server) -> list[str]:
    """The names of the devices."""
    return [device.name for device in server.devices()]


def LINE_SET(i: int, lines: Lines) -> None:
    lines.add(i)


def LINE_CLR(i: int, lines: Lines) -> None:
    lines.discard(i)


def LINE_ISSET(i: int, lines: Lines) -> bool:
    return i in lines


def LINE_SET_ALL(lines: Lines) -> None:
    lines |= Lines.all()


def pm_create_counter(
    device: str, lines: Lines, aggregate: int, frequency: float, server: Server, *, name: str | None = None
) -> Counter:
    """A counter: with ``aggregate`` of the lines' sum, without it of each line. See `Server.counter`."""
    return server.counter(device, lines, aggregate=bool(aggregate), frequency=frequency, name=name)


def pm_get_counter_num_sets(counter: Counter) -> int:
    """How many sets the counter has."""
    return counter.num_sets


def pm_calculate_energy(counter: Counter, lines: Lines | None = None, set: int = ALL_SETS) -> float:
    """Joules of some lines in one set, or in all sets together for -1, of the data that were fetched."""
    return counter.energy_j(lines, set)


def pm_print_data_stdout(counter: Counter, lines: Lines | None = None, set: int = ALL_SETS) -> None:
    """The data as rows, separated by tabs."""
    for row in counter.data.rows(lines, set, "\t"):
        print(row)


def pm_print_data_text(file_name: PathLike, counter: Counter, lines: Lines | None = None, set: int = ALL_SETS) -> None:
    """The same into a file."""
    counter.data.write(Path(file_name), lines, set, "\t")


def pm_print_data_csv(file_name: PathLike, counter: Counter, lines: Lines | None = None, set: int = ALL_SETS) -> None:
    """The same, separated by semicolons: ``Set_id;Time;Line N;...;Sum``."""
    counter.data.write(Path(file_name), lines, set, ";")


def pm_print_data_paraver(
    file_name: PathLike, counter: Counter, lines: Lines | None = None, set: int = ALL_SETS, unit: str = "ns"
) -> None:
    """A trace for Paraver; see `powerd_client.pmlib.readings.write_paraver`."""
    write_paraver(Path(file_name), counter.data, lines, set, unit)
