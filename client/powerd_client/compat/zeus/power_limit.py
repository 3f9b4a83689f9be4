"""Power limits that are tried inside a training, by Zeus' names (`zeus.optimizer.power_limit`)."""

from __future__ import annotations

import atexit
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from powerd_client.compat.windows import Windows
from powerd_client.compat.zeus.monitor import ZeusMonitor
from powerd_client.host.log import tell
from powerd_client.host.ownership import whole_text
from powerd_client.journals.ranks import rank_here
from powerd_client.knobs.cap_search import CapWindow, Decision
from powerd_client.knobs.control import Hold
from powerd_client.knobs.power_choice import SETTLE_S, PowerChooser, range_of
from powerd_core.errors import ConfigError

T = TypeVar("T")


class Callback:
    """What a training calls, as Zeus' class of that name: everything does nothing."""

    def on_train_begin(self) -> None: ...

    def on_train_end(self) -> None: ...

    def on_epoch_begin(self) -> None: ...

    def on_epoch_end(self) -> None: ...

    def on_step_begin(self) -> None: ...

    def on_step_end(self) -> None: ...

    def on_evaluate(self, metric: float) -> None: ...

    def on_instruction_begin(self, name: str) -> None: ...

    def on_instruction_end(self, name: str) -> None: ...


class CallbackSet(Callback):
    """Several callbacks as one."""

    def __init__(self, callbacks: list[Callback]) -> None:
        self.callbacks = callbacks

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        methods = [getattr(callback, name) for callback in self.callbacks]

        def call_all(*arguments: Any) -> None:
            for method in methods:
                method(*arguments)

        return call_all


@dataclass(frozen=True, slots=True)
class PowerLimitMeasurement:
    """Joules of all GPUs, and seconds, of ``profile_steps`` steps at a power limit in watts."""

    power_limit: int
    energy: float
    time: float


class OptimumSelector(ABC):
    """Says which power limit is the best one."""

    @abstractmethod
    def select(self, measurements: list[PowerLimitMeasurement]) -> int:
        """The power limit of one of the measurements."""


class Energy(OptimumSelector):
    """The power limit of least energy."""

    def select(self, measurements: list[PowerLimitMeasurement]) -> int:
        return min(measurements, key=lambda m: m.energy).power_limit


class Time(OptimumSelector):
    """The power limit of least time."""

    def select(self, measurements: list[PowerLimitMeasurement]) -> int:
        return min(measurements, key=lambda m: m.time).power_limit


class ZeusCost(OptimumSelector):
    """The power limit of least ``eta_knob * energy + (1 - eta_knob) * greatest limit * world_size * time`` (Zeus, NSDI
    2023, equation 2)."""

    def __init__(self, eta_knob: float, world_size: int = 1) -> None:
        if not 0 <= eta_knob <= 1:
            raise ConfigError(f"eta_knob={eta_knob}: give a number from 0 (time alone) to 1 (energy alone)")
        if world_size < 1:
            raise ConfigError(f"world_size={world_size}: give how many GPUs train, 1 at least")
        self.eta_knob, self.world_size = eta_knob, world_size

    def select(self, measurements: list[PowerLimitMeasurement]) -> int:
        most_w = max(m.power_limit for m in measurements) * self.world_size
        eta = self.eta_knob
        return min(measurements, key=lambda m: eta * m.energy + (1 - eta) * most_w * m.time).power_limit


class MaxSlowdownConstraint(OptimumSelector):
    """The least power limit at which a step takes at most ``factor`` times as long as at the greatest one."""

    def __init__(self, factor: float) -> None:
        if factor < 1:
            raise ConfigError(f"factor={factor}: give 1 or more, as 1.1 for steps that may take 10 % longer")
        self.factor = factor

    def select(self, measurements: list[PowerLimitMeasurement]) -> int:
        full_s = max(measurements, key=lambda m: m.power_limit).time
        return min(m.power_limit for m in measurements if m.time <= self.factor * full_s)


class LimitSweep:
    """Every power limit from the default downwards, a window each; then the selector's. A `Search`."""

    def __init__(self, least_w: float, default_w: float, step_w: float, steps: int, selector: OptimumSelector) -> None:
        self.default = default_w
        self._left_w = [default_w - i * step_w for i in range(int((default_w - least_w) // step_w) + 1)]
        self._steps, self._selector = steps, selector
        self.measurements: list[PowerLimitMeasurement] = []
        self._windows: dict[int, CapWindow] = {}

    def load(self, measurements: Sequence[PowerLimitMeasurement]) -> None:
        """Measure nothing: choose by these."""
        self._left_w, self.measurements = [], list(measurements)
        for m in measurements:
            self._windows[m.power_limit] = CapWindow(m.power_limit, m.energy / self._steps, 0.0, m.time / self._steps)

    def next_cap(self, windows_left: float = 0.0) -> float | None:
        return self._left_w[0] if self._left_w else None

    def refuse(self, cap_w: float) -> None:
        self._left_w.remove(cap_w)

    def observe(self, window: CapWindow) -> None:
        self._left_w.remove(window.level)
        of_window = round(window.level), window.energy_j * self._steps, window.time_s * self._steps
        self.measurements.append(PowerLimitMeasurement(*of_window))
        self._windows[round(window.level)] = window

    def decision(self) -> Decision:
        level_w = self._selector.select(list(self.measurements))
        if level_w not in self._windows:
            raise ConfigError(f"{type(self._selector).__name__} chose {level_w} W, which was not measured")
        best, full = self._windows[level_w], self._windows[max(self._windows)]
        return Decision(
            level=best.level,
            default=self.default,
            windows=len(self._windows),
            energy_j=best.energy_j,
            time_s=best.time_s,
            default_energy_j=full.energy_j,
            default_time_s=full.time_s,
            saving_j=full.energy_j - best.energy_j,
            saving_u95_j=(full.u95_j**2 + best.u95_j**2) ** 0.5 if best is not full else 0.0,
            slowdown=best.time_s / full.time_s - 1,
            as_good=(best.level,),
        )

    def spent(self, iterations: Mapping[float, int]) -> tuple[float, float]:
        """Joules and seconds that the iterations took more than as many at the chosen limit."""
        best = self._windows[round(self.decision().level)]
        known = [(self._windows[round(w)], n) for w, n in iterations.items() if round(w) in self._windows]
        return sum(n * (w.energy_j - best.energy_j) for w, n in known), sum(
            n * (w.time_s - best.time_s) for w, n in known
        )


class GlobalPowerLimitOptimizer(Callback):
    """Tries power limits while a training goes on, and holds the best one to the end of the process, as Zeus' class of
    that name.

    The limits are a lease of the control helper: what was found stands again, whoever is killed. Where nothing may be
    held one line says why, and the training goes on. A limit's window has ``profile_steps`` steps and lasts 1.4 s at
    least. Before it the GPUs settle for 0.3 s, in place of ``wait_steps`` and ``warmup_steps``.

    ``monitor``           whose GPUs are held
    ``optimum_selector``  what is best; by default ``ZeusCost(0.5)``
    ``pl_step``           watts between two limits
    ``profile_path``      a JSON file of the measurements: where it is there, it says what is best, and nothing is tried

    Raises `ConfigError`, a ValueError, for numbers that cannot be, and for a file that is no profile.
    """

    def __init__(
        self,
        monitor: ZeusMonitor,
        optimum_selector: OptimumSelector | None = None,
        wait_steps: int = 1,
        warmup_steps: int = 10,
        profile_steps: int = 40,
        pl_step: int = 25,
        profile_path: str | Path | None = None,
    ) -> None:
        least = {"wait_steps": (wait_steps, 0), "warmup_steps": (warmup_steps, 0)}
        least |= {"profile_steps": (profile_steps, 1), "pl_step": (pl_step, 1)}
        for name, (value, least_value) in least.items():
            if value < least_value:
                raise ConfigError(f"{name}={value}: give {least_value} or more")
        self.monitor = monitor
        self.optimum_selector = optimum_selector or ZeusCost(0.5, max(len(monitor.gpu_indices), 1))
        self.profile_path = None if profile_path is None else Path(profile_path)
        self._steps, self._pl_step = profile_steps, pl_step
        self._loaded = None if self.profile_path is None else read_profile(self.profile_path)
        self._sweep: LimitSweep | None = None
        self._is_in_step = self._is_saved = False
        self._chooser = self._make_chooser(monitor._windows).__enter__()
        self._chooser.pause()
        atexit.register(self._chooser.__exit__)

    def _make_chooser(self, windows: Windows) -> PowerChooser:
        name, devices = Path(sys.argv[0] or "python").name, self.monitor.devices
        emit, live = windows.meter._emit, windows.meter._live
        return PowerChooser(
            self._search,
            lambda held: Hold({"power_cap_w": "default"}, held, emit=emit, name=name, settle_s=SETTLE_S),
            None if live is None else lambda *window: live().between(*window),
            emit,
            least_iterations=self._steps,
            find_range=None if rank_here() is not None else lambda knob: range_of(knob, devices or None),
        )

    def _search(self, least_w: float, default_w: float) -> LimitSweep:
        self._sweep = LimitSweep(least_w, default_w, self._pl_step, self._steps, self.optimum_selector)
        if self._loaded is not None:
            self._sweep.load(self._loaded)
        return self._sweep

    @property
    def measurements(self) -> list[PowerLimitMeasurement]:
        """What was measured so far."""
        return [] if self._sweep is None else self._sweep.measurements

    @property
    def optimal_power_limit(self) -> int | None:
        """The chosen limit in watts; None before that. Zeus has it in ``state``."""
        return None if self._chooser.decision is None else round(self._chooser.decision.level)

    def on_step_begin(self) -> None:
        """A step begins, and the one before it has ended."""
        self._chooser.step()
        self._is_in_step = True
        self._save()

    def on_epoch_end(self) -> None:
        """What comes before the next step is none, as a validation."""
        if self._is_in_step:
            self._chooser.step()
        self._is_in_step = False
        self._chooser.pause()

    def _save(self) -> None:
        if self.profile_path is None or self._loaded is not None or self._is_saved or self._chooser.decision is None:
            return
        self._is_saved = True
        rows = [{"power_limit": m.power_limit, "energy": m.energy, "time": m.time} for m in self.measurements]
        try:
            whole_text(self.profile_path, json.dumps({"measurements": rows}, indent=4))
        except OSError as error:
            tell(f"the profile cannot be written to {self.profile_path}: {error}")


def read_profile(path: Path) -> list[PowerLimitMeasurement] | None:
    """The measurements of a file that Zeus or this wrote; None where there is none. Raises `ConfigError`."""
    if not path.exists():
        return None
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["measurements"]
        of_file = [PowerLimitMeasurement(int(r["power_limit"]), float(r["energy"]), float(r["time"])) for r in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no profile of power limits: delete it, or name another one") from error
    if not of_file or any(not (m.power_limit > 0 and m.energy > 0 and m.time > 0) for m in of_file):
        raise ConfigError(
            f"{path} is no profile of power limits: it has no measurements, or some that are not positive"
        )
    return of_file


def get_env(name: str, value_type: type[T], default: T | None = None) -> T:
    """A variable of the environment as a value of that type. Raises `ConfigError` where there is none, or no such."""
    text = os.environ.get(name)
    if text is None:
        if default is None:
            raise ConfigError(f"the variable {name} is not set")
        return default
    try:
        if value_type is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]  # type: ignore[return-value]
        return value_type(text)  # type: ignore[call-arg]
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{name}={text!r} is no {value_type.__name__}") from error
