"""CodeCarbon's names for scripts written for it: ``from powerd_client.compat.codecarbon import EmissionsTracker``.

A tracker and its tasks are windows of a recording. ``emissions.csv`` has the columns of CodeCarbon 3.3. The network is
not asked: where the electricity comes from is an option, a variable ``CODECARBON_COUNTRY_ISO_CODE`` or a line of
``.codecarbon.config``. docs/howto/from-others.md says what differs. Nothing of CodeCarbon is needed.
"""

from __future__ import annotations

import configparser
import functools
import math
import os
import platform
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from powerd_client.compat.emissions import UNKNOWN, EmissionsData, TaskEmissionsData, task_text, write_row
from powerd_client.compat.windows import Window, windows_here
from powerd_client.energies.carbon import Intensity, carbon_intensity
from powerd_client.energies.live_energy import MEASURED, Energy, said_provenance
from powerd_client.host.log import show, tell
from powerd_client.host.ownership import whole_text
from powerd_client.record.recording import machine
from powerd_core.errors import ConfigError, RunFileError
from powerd_core.model import Device
from powerd_core.text import did_you_mean, with_u95

__all__ = [
    "EmissionsData",
    "EmissionsTracker",
    "OfflineEmissionsTracker",
    "OutputMethod",
    "TaskEmissionsData",
    "TaskEmissionsTracker",
    "track_emissions",
    "track_task_emissions",
]

P = ParamSpec("P")
R = TypeVar("R")

J_PER_KWH = 3.6e6
_VARIABLE = "codecarbon_"
_CONFIG = ".codecarbon.config"
_FORCED = "force_carbon_intensity_g_co2e_kwh"


class OutputMethod(StrEnum):
    """Where CodeCarbon sends emissions. Here CSV and LOGGER have an effect."""

    CSV = "csv"
    API = "api"
    LOGGER = "logger"
    PROMETHEUS = "prometheus"
    LOGFIRE = "logfire"
    BOAMPS = "boamps"


OPTIONS: Mapping[str, Any] = {
    "project_name": "codecarbon",
    "measure_power_secs": 15.0,
    "api_call_interval": 8,
    "api_endpoint": "",
    "api_key": "",
    "output_dir": ".",
    "output_file": "emissions.csv",
    "output_methods": None,
    "save_to_file": True,
    "save_to_api": False,
    "save_to_logger": False,
    "logging_logger": None,
    "save_to_prometheus": False,
    "save_to_logfire": False,
    "prometheus_url": "",
    "output_handlers": None,
    "gpu_ids": None,
    "emissions_endpoint": None,
    "experiment_id": "5b0fa12a-3dd7-45bb-9766-cc326314d9f1",
    "experiment_name": "base",
    "electricitymaps_api_token": None,
    "co2_signal_api_token": None,
    "tracking_mode": "machine",
    "log_level": "info",
    "on_csv_write": "append",
    "logger_preamble": "",
    "force_cpu_power": None,
    "force_ram_power": None,
    "pue": 1.0,
    "wue": 0.0,
    "force_carbon_intensity_g_co2e_kwh": None,
    "force_mode_cpu_load": False,
    "allow_multiple_runs": True,
    "rapl_include_dram": False,
    "rapl_prefer_psys": False,
    "metadata": None,
    "country_iso_code": None,
    "region": None,
    "cloud_provider": None,
    "cloud_region": None,
    "country_2letter_iso_code": None,
    "offline": False,
}
"""CodeCarbon's options in its order, with their defaults."""
_NO_EFFECT = (
    "api_key",
    "emissions_endpoint",
    "electricitymaps_api_token",
    "co2_signal_api_token",
    "force_cpu_power",
    "force_ram_power",
    "cloud_provider",
)
"""Options that promise something which is not done."""


@dataclass
class Task:
    """One task of a tracker; its ``emissions_data`` are there when it has ended."""

    task_name: str
    window: Window
    is_active: bool = True
    emissions_data: EmissionsData | None = None


def settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """All options: those that are given, else those of the environment, of ``.codecarbon.config`` here, and of that in
    the home folder, else the defaults. Raises `ConfigError` for a value that is no number where one is needed, and for
    a file that is none."""
    texts: dict[str, str] = {}
    for folder in (Path.home(), Path.cwd()):
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(folder / _CONFIG)
        except (configparser.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"{folder / _CONFIG} cannot be read: {' '.join(str(error).split())}") from error
        texts |= dict(parser["codecarbon"]) if parser.has_section("codecarbon") else {}
    texts |= {n.lower().removeprefix(_VARIABLE): v for n, v in os.environ.items() if n.lower().startswith(_VARIABLE)}
    known = {name: _typed(name, text) for name, text in texts.items() if name in OPTIONS and name not in options}
    return {**OPTIONS, **known, **{name: _checked(name, value) for name, value in options.items()}}


def _typed(name: str, text: str) -> Any:
    """A text of the environment or a file as the option's type."""
    return text.lower() == "true" if isinstance(OPTIONS[name], bool) else _checked(name, text)


def _checked(name: str, value: Any) -> Any:
    """The same, a number where the option is one."""
    if value is None or not (isinstance(OPTIONS[name], float) or name == _FORCED):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}={value!r} is no number") from error
    if not 0 <= number < math.inf:
        raise ConfigError(f"{name}={value!r}: give a number from 0")
    return number


class EmissionsTracker:
    """Measures what a program takes, as CodeCarbon's class of that name, and writes a row of ``emissions.csv``.

    It takes CodeCarbon's options; docs/howto/from-others.md says which have no effect. ``country_iso_code`` and
    ``force_carbon_intensity_g_co2e_kwh`` say what a kWh emits.

    Raises TypeError for an option that CodeCarbon does not have, `ConfigError` (a ValueError) for one that cannot be,
    `RunFileError` (an OSError) where ``output_dir`` is no folder. What fails after that is told, and the program goes
    on.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options = dict(zip(OPTIONS, arguments, strict=False)) | options
        if unknown := [name for name in options if name not in OPTIONS]:
            raise TypeError(f"{type(self).__name__} has no option {unknown[0]!r}{did_you_mean(unknown[0], OPTIONS)}")
        self._conf = settings(options)
        if self._conf["on_csv_write"] not in ("append", "update"):
            raise ConfigError(f"on_csv_write={self._conf['on_csv_write']!r}: give append or update")
        self.output_path = Path(self._conf["output_dir"], self._conf["output_file"])
        if not self.output_path.parent.is_dir():
            raise RunFileError(f"output_dir: there is no folder {self.output_path.parent}")
        self.run_id = uuid.uuid4()
        self.final_emissions: float | None = None
        self.final_emissions_data: EmissionsData | None = None
        self._tasks: dict[str, Task] = {}
        self._active_task: str | None = None
        self._window: Window | None = None
        self._is_stopped = False
        self._told: set[str] = set()
        self._tell_no_effect()
        self._windows = windows_here()

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            tell(text)

    def _tell_no_effect(self) -> None:
        given = [name for name in _NO_EFFECT if self._conf[name]]
        methods = [str(m) for m in self._methods() if m not in (OutputMethod.CSV, OutputMethod.LOGGER)]
        if given or methods:
            self._tell(f"without effect in powerd's EmissionsTracker: {', '.join([*given, *methods])}")

    def _methods(self) -> list[OutputMethod]:
        """Where figures go. Raises `ConfigError`."""
        methods = self._conf["output_methods"]
        if methods is None:
            return [m for m in OutputMethod if self._conf.get(_FLAGS.get(m, ""))]
        names = methods.split(",") if isinstance(methods, str) else methods
        try:
            return [OutputMethod(str(name).strip()) for name in names]
        except ValueError as error:
            raise ConfigError(f"output_methods: {error}; there are {', '.join(OutputMethod)}") from error

    def start(self) -> None:
        """Begin. A tracker that runs already says so."""
        if self._window is not None:
            self._tell("Already started tracking")
        else:
            self._window, self._is_stopped = self._windows.begin(self._conf["project_name"]), False

    def start_task(self, task_name: str | None = None) -> None:
        """Begin a task; while another one goes on, that is said, and nothing begins."""
        if self._active_task is not None:
            self._tell("A task is already under measure")
            return
        name = task_name or str(uuid.uuid4())
        key = f"{name}_{uuid.uuid4()}" if name in self._tasks else name
        self._tasks[key] = Task(key, self._windows.begin(name))
        self._active_task, self._is_stopped = key, False

    def stop_task(self, task_name: str | None = None) -> EmissionsData | None:
        """End a task: what it has taken, None where there is no such task."""
        task = self._tasks.get(task_name or self._active_task or "")
        if task is None:
            self._tell("stop_task : No active task to stop.")
            return None
        if task.is_active:
            self._windows.end(task.window)
            task.is_active, self._active_task = False, None
            task.emissions_data = self._data([task.window])
        return task.emissions_data

    def flush(self) -> float | None:
        """Write the figures so far, and go on: kg of CO2e."""
        if self._window is None and not self._tasks:
            self._tell("You first need to start the tracker.")
            return None
        data = self._so_far()
        self._write(data)
        return data.emissions

    def stop(self) -> float | None:
        """End, and write a row: kg of CO2e, NaN where nobody knows the electricity's; None where it never began."""
        if self._is_stopped or (self._window is None and not self._tasks):
            self._tell("Tracker already stopped or never started.")
            return self.final_emissions
        if self._active_task is not None:
            self.stop_task()
        if self._window is not None:
            self._windows.end(self._window)
        data = self._so_far()
        self._window, self._is_stopped = None, True
        self.final_emissions, self.final_emissions_data = data.emissions, data
        self._write(data)
        self._show(data)
        return data.emissions

    def service_shutdown(self, signum: int, frame: object) -> None:
        """A handler of signals: it stops the tracker."""
        self.stop()

    def __enter__(self) -> EmissionsTracker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def get_detected_hardware(self) -> dict[str, Any]:
        """What is known of the machine."""
        gpus = self._gpus()
        return {
            "ram_total_size": _memory_gb(),
            "cpu_count": os.cpu_count(),
            "cpu_physical_count": len(self._windows.processors()[0]) or None,
            "cpu_model": _cpu_model(),
            "gpu_count": len(gpus) or None,
            "gpu_model": _counted([text for _, text in gpus]),
            "gpu_ids": self._conf["gpu_ids"],
        }

    # ---- figures ---------------------------------------------------------------------------------------------------

    def _gpus(self) -> list[tuple[str, str]]:
        """Device and model of the GPUs that are tracked. ``gpu_ids`` are numbers or beginnings of UUIDs."""
        gpus, ids = self._windows.gpus(), self._conf["gpu_ids"]
        if ids is not None:
            wanted = [str(i).strip() for i in (ids.split(",") if isinstance(ids, str) else ids)]
            named = {i: _gpu_of(i, gpus) for i in wanted}
            gpus = [device for device in named.values() if device is not None]
            lost = [i for i, device in named.items() if device is None]
            if lost:
                self._tell(f"gpu_ids: there is no GPU {', '.join(lost)} here")
        return [(device.name, device.description or device.name) for device in gpus]

    def _so_far(self) -> EmissionsData:
        windows = [task.window for task in self._tasks.values()] if self._window is None else [self._window]
        return self._data(windows)

    def _energies(
        self, windows: Sequence[Window], devices: Sequence[str] | Mapping[str, Sequence[str]]
    ) -> list[Energy]:
        """Of each device in all windows."""
        if not devices:
            return []
        own = self._windows
        every = [own.plain(w, devices) if isinstance(devices, Mapping) else own.energies(w, devices) for w in windows]
        return [_added([of_window[name] for of_window in every]) for name in devices]

    def _data(self, windows: Sequence[Window]) -> EmissionsData:
        conf, gpus = self._conf, self._gpus()
        packages, memories = self._windows.processors()
        models = [] if packages else self._windows.modelled_processors()
        of_gpus = self._energies(windows, [name for name, _ in gpus])
        of_cpus = self._energies(windows, {f"cpu{i}": [line] for i, line in packages.items()})
        of_cpus += self._energies(windows, models)
        of_memory = self._energies(windows, {f"dram{i}": [line] for i, line in memories.items()})
        pue, seconds = conf["pue"], sum(window.seconds for window in windows)
        gpu_j, cpu_j, ram_j = (_sum(own) * pue for own in (of_gpus, of_cpus, of_memory))
        known_j = [j for j in (gpu_j, cpu_j, ram_j) if not math.isnan(j)]
        kwh = sum(known_j) / J_PER_KWH if known_j else UNKNOWN
        place = self._place()
        emissions = UNKNOWN if place is None else kwh * place.g_per_kwh / 1000
        self._tell_unknown({"GPU": gpu_j, "processor": cpu_j, "memory": ram_j}, has_gpus=bool(gpus))
        return EmissionsData(
            timestamp=datetime.now().strftime("%Y-%m-%dT%H:%M:%S"),
            project_name=conf["project_name"],
            run_id=str(self.run_id),
            experiment_id=str(conf["experiment_id"]),
            duration=seconds,
            emissions=emissions,
            emissions_rate=emissions / seconds,
            cpu_power=cpu_j / seconds,
            gpu_power=gpu_j / seconds,
            ram_power=ram_j / seconds,
            cpu_energy=cpu_j / J_PER_KWH,
            gpu_energy=gpu_j / J_PER_KWH,
            ram_energy=ram_j / J_PER_KWH,
            energy_consumed=kwh,
            water_consumed=kwh * conf["wue"] if conf["wue"] else UNKNOWN,
            country_name=place.name if place else "",
            country_iso_code=conf["country_iso_code"] or "",
            region=conf["region"] or "",
            cloud_provider="",
            cloud_region="",
            os=platform.platform(),
            python_version=platform.python_version(),
            codecarbon_version="powerd",
            cpu_count=os.cpu_count() or UNKNOWN,
            cpu_model=_marked(_cpu_model(), of_cpus),
            gpu_count=len(gpus) or UNKNOWN,
            gpu_model=_marked(_counted([text for _, text in gpus]), of_gpus),
            longitude=UNKNOWN,
            latitude=UNKNOWN,
            ram_total_size=_memory_gb(),
            tracking_mode=conf["tracking_mode"],
            pue=pue,
            wue=conf["wue"],
            energies=(*of_gpus, *of_cpus, *of_memory),
        )

    def _place(self) -> Intensity | None:
        """The electricity's intensity; what is not known is told once."""
        forced, country = self._conf[_FORCED], self._conf["country_iso_code"]
        if forced is not None:
            return Intensity(country or "", "", forced, 0, "")
        if country:
            try:
                return carbon_intensity(country)
            except ConfigError as error:
                self._tell(f"kg of CO2e are not known: {error}")
                return None
        self._tell(
            "kg of CO2e are not known: no country is named, and the network is not asked: give country_iso_code, "
            "force_carbon_intensity_g_co2e_kwh, or CODECARBON_COUNTRY_ISO_CODE in the environment"
        )
        return None

    def _tell_unknown(self, joules: Mapping[str, float], *, has_gpus: bool) -> None:
        unknown = [what for what, j in joules.items() if math.isnan(j) and (what != "GPU" or has_gpus)]
        if unknown:
            self._tell(f"nothing reads the joules of {', '.join(unknown)} here: they are not in the sum")

    def _show(self, data: EmissionsData) -> None:
        if str(self._conf["log_level"]).lower() in ("error", "critical", "40", "50"):
            return
        parts = ", ".join(
            f"{e.device} {with_u95(e.energy_j, e.u95_j, 'J', is_lower_bound=e.is_lower_bound)} "
            f"{said_provenance(e.provenance)}"
            for e in data.energies
            if e.energy_j is not None
        )
        grams, place = "", self._place()
        if place is not None:
            source = str(place) if place.source else f"{place.g_per_kwh:g} g/kWh, as given"
            grams = f", {1000 * data.emissions:.3g} g CO2e at {source}"
        show(f"{data.project_name}: {data.energy_consumed:.3g} kWh{grams} in {data.duration:.3g} s: {parts}")

    # ---- files -----------------------------------------------------------------------------------------------------

    def _write(self, data: EmissionsData) -> None:
        """To everything that was asked for. What fails is told."""
        methods = self._methods()
        tasks = [TaskEmissionsData(k, t.emissions_data) for k, t in self._tasks.items() if t.emissions_data]
        try:
            if OutputMethod.CSV in methods:
                write_row(self.output_path, data.values, update=self._conf["on_csv_write"] == "update")
                if tasks:
                    name = f"emissions_{self._conf['experiment_name']}_{self.run_id}.csv"
                    whole_text(self.output_path.with_name(name), task_text(tasks))
        except OSError as error:
            tell(f"{self.output_path} is not written: {error.strerror or error}")
        handlers = [*(self._conf["output_handlers"] or ())]
        if OutputMethod.LOGGER in methods and self._conf["logging_logger"] is not None:
            handlers.append(self._conf["logging_logger"])
        for handler in handlers:
            self._hand(handler, data, tasks)

    def _hand(self, handler: Any, data: EmissionsData, tasks: list[TaskEmissionsData]) -> None:
        try:
            handler.out(data, data)
            if tasks:
                handler.task_out(tasks, self._conf["experiment_name"])
        except Exception as error:  # noqa: BLE001  (somebody's own: the program goes on)
            tell(f"{type(handler).__name__} failed: {type(error).__name__}: {error}")


_FLAGS = {
    OutputMethod.CSV: "save_to_file",
    OutputMethod.API: "save_to_api",
    OutputMethod.LOGGER: "save_to_logger",
    OutputMethod.PROMETHEUS: "save_to_prometheus",
    OutputMethod.LOGFIRE: "save_to_logfire",
}


class OfflineEmissionsTracker(EmissionsTracker):
    """The same: no tracker of powerd asks the network."""


class TaskEmissionsTracker:
    """A task of a tracker, or of one of its own, for the time of a ``with``."""

    def __init__(self, task_name: str, tracker: EmissionsTracker | None = None) -> None:
        self.task_name, self.is_default_tracker = task_name, tracker is None
        self.tracker = EmissionsTracker() if tracker is None else tracker

    def __enter__(self) -> TaskEmissionsTracker:
        self.tracker.start_task(self.task_name)
        return self

    def __exit__(self, *_: object) -> None:
        self.tracker.stop_task()
        if self.is_default_tracker:
            self.tracker.stop()


def track_emissions(fn: Callable[..., Any] | None = None, *arguments: Any, **options: Any) -> Any:
    """A decorator: each call of the function is tracked, as by ``with EmissionsTracker(...)``."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def tracked(*args: P.args, **kwargs: P.kwargs) -> R:
            with EmissionsTracker(*arguments, **options):
                return function(*args, **kwargs)

        return tracked

    return decorate if fn is None else decorate(fn)


def track_task_emissions(
    fn: Callable[..., Any] | None = None, tracker: EmissionsTracker | None = None, task_name: str = ""
) -> Any:
    """A decorator: each call of the function is a task of a tracker."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def tracked(*args: P.args, **kwargs: P.kwargs) -> R:
            with TaskEmissionsTracker(task_name or function.__name__, tracker):
                return function(*args, **kwargs)

        return tracked

    return decorate if fn is None else decorate(fn)


# ---- what is known of the machine, and sums ------------------------------------------------------------------------


def _gpu_of(text: str, gpus: Sequence[Device]) -> Device | None:
    """The GPU of a number, or of the beginning of a UUID."""
    if text.isdecimal():
        return gpus[int(text)] if int(text) < len(gpus) else None
    return next((device for device in gpus if len(text) > len("GPU-") and device.uuid.startswith(text)), None)


def _cpu_model() -> str:
    return machine().get("processor", "")


def _memory_gb() -> float:
    """GiB, as CodeCarbon has it."""
    text = machine().get("memory", "")
    return float(text.partition(" ")[0]) if text else UNKNOWN


def _counted(models: Sequence[str]) -> str:
    """``2 x Quadro RTX 6000``, as CodeCarbon writes it."""
    return ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models))


def _marked(model: str, energies: Sequence[Energy]) -> str:
    """The model, with a word where its joules were not measured: the columns of the CSV have no other place for it."""
    kinds = dict.fromkeys(said_provenance(e.provenance) for e in energies if e.provenance not in ("", MEASURED))
    return " ".join([model, *kinds]).strip()


def _added(energies: Sequence[Energy]) -> Energy:
    """The sum of a device's joules in several windows. Their errors are taken as one: gain and zero are the same."""
    first = energies[0]
    if len(energies) == 1:
        return first
    known = [e.energy_j for e in energies if e.energy_j is not None]
    u95_j = [e.u95_j for e in energies if e.u95_j is not None]
    return replace(
        first,
        energy_j=sum(known) if len(known) == len(energies) else None,
        u95_j=sum(u95_j) if len(u95_j) == len(energies) else None,
        seconds=sum(e.seconds for e in energies),
        is_lower_bound=any(e.is_lower_bound for e in energies),
    )


def _sum(energies: Sequence[Energy]) -> float:
    """Joules of several devices; NaN where none is known."""
    known = [e.energy_j for e in energies if e.energy_j is not None]
    return sum(known) if known else UNKNOWN
