"""Joules where a training is watched: in an experiment tracker (W&B, MLflow, TensorBoard), a function or a notebook."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from powerd_client.host.log import install_hint, show, tell
from powerd_client.meter import Meter, recording_here
from powerd_core.errors import PowerdError


def log_totals(path: str | Path, to: Any, *, device: str | None = None) -> dict[str, float]:
    """Log what a run took in all, once its meter is closed: joules with their U95, seconds, watts and energy-delay
    products of the run and of each group, and the means of each kind of phase. Returns the figures by name, as in
    ``powerd/gpu0.measured/energy_j``.

    ``to``  what `EnergyLog` takes, or a run of W&B as `wandb.Api` finds it. W&B has the figures in the summary of its
            run; a function is called with None as the iteration's number

    What goes wrong is told, and nothing is returned: a script may still have a model to save.
    """
    from powerd_client.energies.live_energy import analytics  # more than a training needs

    estimator = analytics()
    if estimator is None:
        tell(f"the totals of {path} are not logged: joules need the analytics: {install_hint('analytics')}")
        return {}
    try:
        figures: dict[str, float] = estimator.totals(Path(path), device)
        _log(to, figures, None)
    except Exception as error:  # noqa: BLE001  (trackers raise what they like)
        text = str(error) if isinstance(error, PowerdError) else f"{type(error).__name__}: {error}"
        tell(f"the totals of {path} are not logged: {text}")
        return {}
    return figures


def _log(to: Any, figures: dict[str, float], iteration: int | None) -> None:
    """Write figures of an iteration, or of the whole run."""
    if hasattr(to, "add_scalar"):  # TensorBoard
        for name, value in figures.items():
            to.add_scalar(name, value, iteration or 0)
    elif hasattr(to, "log_metrics"):  # MLflow takes neither "=" nor "," in names
        names = {name: "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name) for name in figures}
        to.log_metrics({names[name]: value for name, value in figures.items()}, step=iteration)
    elif iteration is None and hasattr(to, "summary"):  # W&B
        to.summary.update(figures)
    elif hasattr(to, "log"):
        to.log(figures, step=iteration)
    else:
        to(figures, iteration)


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
                _log(self._to, self._figures, self._iteration)
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


# -- `%load_ext powerd_client` in IPython or Jupyter: the cell magic `%%joules [NAME]` ---------------------------------


_WAIT_S = 1.0


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext` with IPython's shell."""
    shell.register_magic_function(lambda line, cell: _joules(shell, line.strip() or "cell", cell), "cell", "joules")


def _joules(shell: Any, name: str, cell: str) -> None:
    """Run the cell as a phase of the Meter that records in this notebook, or in a recording of its own."""
    if (meter := recording_here()) is not None:
        with meter.phase(name) as phase:
            shell.run_cell(cell)
        show(f"{name}: {phase.energy(wait_s=_WAIT_S)}")
        return
    with tempfile.TemporaryDirectory(prefix="powerd-cell-") as folder:
        try:
            meter = Meter(out=Path(folder) / "cell.h5", quiet=True)
        except PowerdError as error:
            show(f"%%joules: the cell was not run: {error}")
            return
        with meter, meter.phase(name):
            shell.run_cell(cell)
        show(f"{name}: {meter.energy(name)}")
