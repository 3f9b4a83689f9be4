"""Joules per phase in an experiment tracker while the training runs: W&B, MLflow, TensorBoard or a function."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from powerd_client.log import tell

if TYPE_CHECKING:
    from powerd_client.meter import Meter


class EnergyLog:
    """Logs mean joules and watts of each kind of phase every ``every`` iterations, each time of the iterations since.

    ``to``  what is logged to: a run of W&B (or the module `wandb`), the module `mlflow`, a `SummaryWriter` of
            TensorBoard, or a function of a dict of figures and an iteration's number

    Call it once an iteration, in one thread. The figures are worked out in another thread, and logged by the next call
    after that: the training does not wait. What goes wrong is told once and stops the logging, not the training.
    """

    def __init__(self, meter: Meter, to: Any, *, every: int = 100) -> None:
        self._meter, self._to, self._every = meter, to, every
        self._iteration, self._since_s = 0, time.monotonic()
        self._figures: dict[str, float] = {}
        self._thread: threading.Thread | None = None
        self._is_broken = False

    def __call__(self, iteration: int | None = None) -> None:
        """An iteration has ended: the one with this number, or the next."""
        self._iteration = self._iteration + 1 if iteration is None else iteration
        if self._thread is not None and not self._thread.is_alive():
            self.close()
        if self._iteration % self._every == 0 and self._thread is None and not self._is_broken:
            since_s, self._since_s = self._since_s, time.monotonic()
            self._thread = threading.Thread(target=self._work_out, args=(self._since_s - since_s,), daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Log what is still being worked out. Call it before the meter and the tracker are closed."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.join()
        try:
            if self._figures:  # a busy machine may not have any yet
                self._log(self._figures, self._iteration)
        except Exception as error:  # noqa: BLE001  (trackers raise what they like: the training goes on)
            self._is_broken = True
            tell(f"energies are not logged any more: {type(error).__name__}: {error}")

    def _work_out(self, last_s: float) -> None:
        self._figures = {
            f"energy/{e.device}.{e.provenance}/{e.phase}_{what}{'_at_least' * e.is_lower_bound}": value
            for e in self._meter.energies(last_s=last_s)
            for what, value in (("j", e.energy_j), ("u95_j", e.u95_j), ("w", e.power_w))
            if value is not None
        }

    def _log(self, figures: dict[str, float], iteration: int) -> None:
        to = self._to
        if hasattr(to, "add_scalar"):  # TensorBoard
            for name, value in figures.items():
                to.add_scalar(name, value, iteration)
        elif hasattr(to, "log_metrics"):  # MLflow
            to.log_metrics(figures, step=iteration)
        elif hasattr(to, "log"):  # W&B
            to.log(figures, step=iteration)
        else:
            to(figures, iteration)
