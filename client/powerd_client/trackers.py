"""Joules per phase in an experiment tracker while the training runs: W&B, MLflow, TensorBoard or a function."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from powerd_client.log import tell

if TYPE_CHECKING:
    from powerd_client.meter import Meter

PREFIX = "energy"
Log = Callable[[Mapping[str, float], int], object]
"""Takes figures by their names, and the number of the iteration."""


class EnergyLog:
    """Logs mean joules and watts of each kind of phase every ``every`` iterations, each time of the iterations since.

    ``to``  what is logged to: a run of W&B (or the module `wandb`), the module `mlflow`, a `SummaryWriter` of
            TensorBoard, or a function of a dict of figures and an iteration's number

    Call it once an iteration, in one thread. The figures are worked out in another thread, and logged by the next call
    after that: they lag by a second or so, and the training does not wait. What goes wrong is told once and stops the
    logging, not the training.
    """

    def __init__(self, meter: Meter, to: Any, *, every: int = 100) -> None:
        self._meter, self._log, self._every = meter, log_of(to), every
        self._iteration = 0
        self._since_s = time.monotonic()
        self._figures: dict[str, float] | None = None
        self._thread: threading.Thread | None = None
        self._is_broken = False

    def __call__(self, iteration: int | None = None) -> None:
        """An iteration has ended: the one with this number, or the next."""
        self._iteration = self._iteration + 1 if iteration is None else iteration
        if self._thread is not None and not self._thread.is_alive():
            self._thread.join()
            self._thread, figures = None, self._figures
            self._write(figures)
        if self._iteration % self._every == 0 and self._thread is None and not self._is_broken:
            since_s, self._since_s, self._figures = self._since_s, time.monotonic(), None
            length_s = self._since_s - since_s
            self._thread = threading.Thread(target=self._work_out, args=(length_s,), name="energies", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Log what is still being worked out. Call it before the meter and the tracker are closed."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
            self._write(self._figures)

    def _work_out(self, last_s: float) -> None:
        figures: dict[str, float] = {}
        for energy in self._meter.energies(last_s=last_s):
            name = f"{PREFIX}/{energy.device}.{energy.provenance}/{energy.phase}"
            bound = "_at_least" if energy.is_lower_bound else ""
            for what, value in (("j", energy.energy_j), ("u95_j", energy.u95_j), ("w", energy.power_w)):
                if value is not None:
                    figures[f"{name}_{what}{bound if what != 'u95_j' else ''}"] = value
        self._figures = figures

    def _write(self, figures: Mapping[str, float] | None) -> None:
        if not figures or self._is_broken:
            return
        try:
            self._log(figures, self._iteration)
        except Exception as error:  # noqa: BLE001  (trackers raise what they like: the training goes on)
            self._is_broken = True
            tell(f"energies are not logged any more: {type(error).__name__}: {error}")


def log_of(to: Any) -> Log:
    """How to log to a tracker, known by the methods that it has."""
    if hasattr(to, "add_scalar"):  # TensorBoard

        def log_scalars(figures: Mapping[str, float], iteration: int) -> None:
            for name, value in figures.items():
                to.add_scalar(name, value, iteration)

        return log_scalars
    if hasattr(to, "log_metrics"):  # MLflow
        return lambda figures, iteration: to.log_metrics(dict(figures), step=iteration)
    if hasattr(to, "log"):  # W&B
        return lambda figures, iteration: to.log(dict(figures), step=iteration)
    log: Log = to
    return log
