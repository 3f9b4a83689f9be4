"""`powerd export`: what a powerd measures as OpenMetrics, for Prometheus and whatever else scrapes.

An ordinary reader of a powerd in a process of its own. Joules are counters, integrated at full rate from numbered
frames (`powerd_client.energies.live`), so that no scrape that comes late loses any; a powerd that was started anew goes
on where it was, and what is not known has no sample. Labels are those of NVIDIA's DCGM exporter where the thing is the
same: ``Hostname``, ``UUID``, ``modelName``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from powerd_client.energies.live import Listener, LiveLine, LivePowerd, RunPhases, RunSources, runs_here
from powerd_client.host.log import tell
from powerd_client.knobs.control import connect
from powerd_core.errors import ConfigError, PowerdError
from powerd_core.lease import LeaseInfo, Request, option_of
from powerd_core.model import QuantityConversion

MOST_PHASES = 50
"""Names of phases that have samples of their own; all others are `OTHER`."""
OTHER = "other"
_MOST_RUNS = 20
"""The latest runs whose phases have samples."""
_STEP_S, _LOOK_S, _AGAIN_S = 1.0, 5.0, 5.0
_NORMAL = 1.96
_GAUGES = {
    "temperature_c": ("powerd_temperature_celsius", "Temperature, by the driver or a sensor."),
    "power_limit_w": ("powerd_power_limit_watts", "Power limit: enforced, or on the line _requested what was asked."),
    "clock_hz": ("powerd_clock_hertz", "Clock."),
    "clock_bound_s": ("powerd_line_clock_bound_seconds", "How far the times of a line may be off."),
}
"""Auxiliary channels by their quantity. The one of `limited_s` is a counter."""
_OF_LINE = ("Hostname", "device", "UUID", "line", "source", "provenance")
_OF_PHASE = ("Hostname", "run", "job", "device", "provenance", "phase")
_OF_HOLD = ("Hostname", "device", "UUID", "knob", "holder", "lease")


@dataclass(slots=True)
class PhaseSums:
    """Joules and seconds of the phases of the latest runs, by the run's name and its job."""

    runs: dict[tuple[str, str], tuple[dict[tuple[str, str, str], float], dict[str, float]]] = field(
        default_factory=dict
    )
    """Joules by device, provenance and phase; seconds by phase."""
    _named: set[str] = field(default_factory=set)

    def take(self, run: RunPhases, job: str, is_used: Callable[[str], bool]) -> None:
        """What a run has by now, on the devices that it uses; nothing where a device times its phases: the host's marks
        are ahead of it."""
        if run.is_timed_on_device:
            return
        joules, seconds = defaultdict[tuple[str, str, str], float](float), defaultdict[str, float](float)
        for (device, provenance), by_phase in run.energies.items():
            for phase, value in by_phase.items() if is_used(device) else ():
                joules[device, provenance, self._name(phase)] += value
        for phase, value in run.seconds.items():
            seconds[self._name(phase)] += value
        self.runs[run.run.stem, job] = joules, seconds
        for old in list(self.runs)[:-_MOST_RUNS]:
            del self.runs[old]

    def _name(self, phase: str) -> str:
        """Its own name, as long as there are few."""
        if phase in self._named or len(self._named) < MOST_PHASES:
            self._named.add(phase)
            return phase
        return OTHER


class Exporter:
    """Listens to powerds in a thread of the caller, and is a collector of `prometheus_client`."""

    def __init__(self, urls: Sequence[str], keys: Path | None = None) -> None:
        self._urls, self._keys, self._host = urls, keys, os.uname().nodename
        self._lock = threading.Lock()
        self._listener: Listener | None = None
        self._phases = PhaseSums()
        self._leases: tuple[LeaseInfo, ...] = ()
        self._looked_s = 0.0
        self._runs: dict[Path, tuple[RunPhases, RunSources]] = {}
        """Those that are recorded here, with what their journals say of them."""

    # -- listening -----------------------------------------------------------------------------------------------------

    def listen(self, is_over: threading.Event) -> None:
        """Until it ``is_over``; a powerd that does not answer is waited for."""
        said = ""
        while not is_over.is_set():
            try:
                self.step()
                is_over.wait(_STEP_S)
            except ConfigError:
                raise
            except PowerdError as error:
                if str(error) != said:
                    tell(f"powerd export waits: {error}")
                said = str(error)
                is_over.wait(_AGAIN_S)

    def step(self) -> None:
        """Take what has come. Raises `PowerdError` where a powerd has never answered."""
        listener = self._listener = self._listener or Listener(self._urls, self._keys, client="powerd export")
        with self._lock:
            listener.step(0.0)
            self._look(listener)

    def _look(self, listener: Listener) -> None:
        """At what changes rarely: leases, and the run whose phases are followed."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        self._leases = _leases()
        for path in runs_here():
            if path not in self._runs:
                with contextlib.suppress(PowerdError):
                    run = RunPhases(path)
                    self._runs[path] = run, run.sources()
        for path, (run, sources) in list(self._runs.items()):
            run.add_up(sources.among(listener.powerds))
            self._phases.take(run, sources.job, self._devices_of(run))
            if run.is_over:
                del self._runs[path]
        listener.forget(*(run for run, _ in self._runs.values()))

    def _devices_of(self, run: RunPhases) -> Callable[[str], bool]:
        """Whether a device is one that a run uses, as far as its processes say."""
        own = run.gpus
        powerds = self._listener.powerds if self._listener is not None else []
        uuids = {d.name: d.uuid for powerd in powerds for d in powerd.board.description.devices}
        return lambda device: not own or not uuids.get(device) or uuids[device] in own

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    # -- what is scraped -----------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """All samples of this moment."""
        with self._lock:
            yield from list(self._metrics())

    def _metrics(self) -> Iterator[Metric]:
        powerds = self._listener.powerds if self._listener is not None else []
        yield self._up(powerds)
        yield self._info(powerds)
        yield from self._of_lines([(powerd, line) for powerd in powerds for line in powerd.board.lines.values()])
        yield from self._of_devices(powerds)
        yield from self._of_powerds(powerds)
        yield from self._of_phases()
        yield from self._of_leases()

    def _up(self, powerds: Sequence[LivePowerd]) -> Metric:
        up = GaugeMetricFamily("powerd_up", "Whether the powerd answers and tells its readings.", labels=("url",))
        heard = {powerd.url: not powerd.trouble for powerd in powerds}
        for url in self._urls:
            up.add_metric((url,), float(heard.get(url, False)))
        return up

    def _info(self, powerds: Sequence[LivePowerd]) -> Metric:
        labels = ("Hostname", "device", "UUID", "modelName")
        info = GaugeMetricFamily("powerd_device_info", "Devices, and how their drivers name them.", labels=labels)
        for powerd in powerds:
            description, lines = powerd.board.description, powerd.board.lines.values()
            for device in description.devices:
                names = (own.line.detail.get("name") for own in lines if own.line.device == device.name)
                name = next((str(name) for name in names if name), "")
                info.add_metric((description.board, device.name, device.uuid, name), 1.0)
        return info

    def _of_lines(self, lines: Sequence[tuple[LivePowerd, LiveLine]]) -> Iterator[Metric]:
        energy = CounterMetricFamily(
            "powerd_energy_joules",
            "Joules of a line since the exporter began. Lines of one device may measure the same power by other means: "
            "compare them, never add them. powerd_device_energy_joules_total has the sums.",
            labels=_OF_LINE,
        )
        missing = CounterMetricFamily("powerd_missing_seconds", "Seconds without good readings.", labels=_OF_LINE)
        readings = CounterMetricFamily("powerd_readings", "Readings by what is wrong with them.",
                                       labels=(*_OF_LINE, "flag"))  # fmt: skip
        faults = GaugeMetricFamily(
            "powerd_fault_ratio", "Share of readings that a fault took; 1 while it lasts.", labels=(*_OF_LINE, "fault")
        )
        limited = CounterMetricFamily(
            "powerd_limited_seconds", "Seconds that the driver held the clock down, by reason.", labels=_OF_LINE
        )
        others = {of: GaugeMetricFamily(*named, labels=_OF_LINE) for of, named in _GAUGES.items()}
        for powerd, own in lines:
            labels, line = self._labels(powerd, own), own.line
            if isinstance(line.conversion, QuantityConversion):
                family = limited if line.quantity == "limited_s" else others.get(line.quantity)
                if family is not None and own.value is not None:
                    family.add_metric(labels, own.value)
                continue
            if own.known_j is not None:
                energy.add_metric(labels, own.known_j)
            missing.add_metric(labels, own.missing_until_now_s())
            for flag, count in [("good", own.readings - own.bad), *own.faults.items()]:
                readings.add_metric((*labels, str(flag)), count)
            for fault, share in own.fault_shares(is_answering=not powerd.trouble).items():
                faults.add_metric((*labels, str(fault)), share)
        yield from (energy, missing, readings, faults, limited, *others.values())

    def _labels(self, powerd: LivePowerd, own: LiveLine) -> tuple[str, ...]:
        line, description = own.line, powerd.board.description
        device = next((d for d in description.devices if d.name == line.device), None)
        uuid = device.uuid if device is not None else ""
        return (description.board, line.device, uuid, line.name, line.source, line.provenance.value)

    def _of_devices(self, powerds: Sequence[LivePowerd]) -> Iterator[Metric]:
        """Sums of the lines that feed a device, each once: other lines of it measure the same power by other means."""
        labels = ("Hostname", "device", "UUID", "provenance")
        joules = CounterMetricFamily("powerd_device_energy_joules", "Joules of a device.", labels=labels)
        u95 = GaugeMetricFamily(
            "powerd_device_energy_u95_joules",
            "Half of the 95 % interval of those joules, by gain and zero.",
            labels=labels,
        )
        for powerd in powerds:
            description = powerd.board.description
            uuids = {device.name: device.uuid for device in description.devices}
            for (device, provenance), own in powerd.board.devices.items():
                known = [line.known_j for line in own]
                if None not in known:
                    place = (description.board, device, uuids.get(device, ""), provenance)
                    joules.add_metric(place, sum(value or 0.0 for value in known))
                    u95.add_metric(place, _NORMAL * hypot(*(part for line in own for part in _unsure_j(line))))
        yield from (joules, u95)

    def _of_powerds(self, powerds: Sequence[LivePowerd]) -> Iterator[Metric]:
        labels = ("Hostname",)
        lost = CounterMetricFamily("powerd_lost_scans", "Scans that powerd declared lost.", labels=labels)
        restarts = CounterMetricFamily("powerd_restarts", "Starts of powerd since the exporter began.", labels=labels)
        bound = GaugeMetricFamily("powerd_clock_bound_seconds", "How far the clocks may be apart.", labels=labels)
        for powerd in powerds:
            host = (powerd.board.description.board,)
            lost.add_metric(host, powerd.board.lost_scans)
            restarts.add_metric(host, powerd.restarts)
            if powerd.clock_bound_s is not None:
                bound.add_metric(host, powerd.clock_bound_s)
        yield from (lost, restarts, bound)

    def _of_phases(self) -> Iterator[Metric]:
        joules = CounterMetricFamily(
            "powerd_phase_energy_joules",
            "Joules while a phase was the innermost one of a run that is recorded here; none where a GPU times it.",
            labels=_OF_PHASE,
        )  # fmt: skip
        seconds = CounterMetricFamily("powerd_phase_seconds", "Seconds of the same.",
                                      labels=("Hostname", "run", "job", "phase"))  # fmt: skip
        for (run, job), (by_device, by_phase) in self._phases.runs.items():
            for (device, provenance, phase), value in by_device.items():
                joules.add_metric((self._host, run, job, device, provenance, phase), value)
            for phase, value in by_phase.items():
                seconds.add_metric((self._host, run, job, phase), value)
        yield from (joules, seconds)

    def _of_leases(self) -> Iterator[Metric]:
        held = GaugeMetricFamily("powerd_lease_value", "What a lease holds a knob at.", labels=_OF_HOLD)
        enforced = GaugeMetricFamily("powerd_lease_enforced", "What the driver enforces of it.", labels=_OF_HOLD)
        left = GaugeMetricFamily("powerd_lease_left_seconds", "What is left without a sign of life.",
                                 labels=("Hostname", "holder", "lease"))  # fmt: skip
        for lease in self._leases:
            left.add_metric((self._host, lease.holder, lease.lease), lease.ends_in_s)
            for hold in lease.holds:
                labels = (self._host, hold.device, hold.uuid, option_of(hold.knob), lease.holder, lease.lease)
                for family, value in ((held, hold.setting.asked), (enforced, hold.setting.enforced)):
                    if isinstance(value, int | float):
                        family.add_metric(labels, float(value))
        yield from (held, enforced, left)


def _unsure_j(line: LiveLine) -> tuple[float, float]:
    """Standard uncertainty of a line's joules by its gain and by its zero."""
    a = line.line.accuracy
    return a.u_gain * line.energy_j, a.u_offset_w * line.covered_s


def _leases() -> tuple[LeaseInfo, ...]:
    """Of the control helper of this machine; none where there is no helper."""
    with contextlib.suppress(PowerdError):
        peer = connect()
        try:
            return peer.ask(Request("status"), 2.0).leases
        finally:
            peer.close()
    return ()


def serve(urls: Sequence[str], place: str, keys: Path | None, tls: Mapping[str, Any]) -> int:
    """Until Ctrl-C. ``place`` is HOST:PORT. Raises `ConfigError` for one where nobody can listen."""
    host, _, port = place.rpartition(":")
    if not port.isdecimal() or not host:
        raise ConfigError(f"--listen {place}: write HOST:PORT, as in 127.0.0.1:9402")
    exporter, registry = Exporter(urls, keys), CollectorRegistry(auto_describe=False)
    registry.register(exporter)
    try:
        server, thread = start_http_server(int(port), host, registry, **tls)
    except OSError as error:
        is_used = error.errno == errno.EADDRINUSE
        remedy = f": `ss -ltnp 'sport = :{port}'` says by whom; name another with --listen HOST:PORT" if is_used else ""
        raise ConfigError(f"--listen {place}: {error.strerror or error}{remedy}") from error
    tell(f"powerd export serves http{'s' if tls else ''}://{place}/metrics of {', '.join(urls)}")
    is_over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_over.set())
    try:
        exporter.listen(is_over)
    finally:
        server.shutdown()
        thread.join(5.0)
        exporter.close()
    return 0
