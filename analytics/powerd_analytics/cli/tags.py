"""A run's totals for experiment trackers: W&B, MLflow and TensorBoard, where they are installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerd_analytics.energy.devices import Progress, no_progress
from powerd_analytics.runs.run import Run, read_run
from powerd_analytics.tables.rows import PhaseTable
from powerd_analytics.tables.table import phase_table
from powerd_core.errors import AnalysisError, ConfigError, PowerdError
from powerd_core.text import printable

PREFIX = "powerd"


@dataclass(frozen=True, slots=True)
class Targets:
    """Where totals go."""

    wandb: str | None = None
    """``entity/project/run``, or as much of it as `wandb.Api` needs."""
    mlflow: str | None = None
    """The id of a run of the tracking server that MLflow is set to (MLFLOW_TRACKING_URI)."""
    tensorboard: Path | None = None
    """A log directory."""

    def __bool__(self) -> bool:
        return any(t is not None for t in (self.wandb, self.mlflow, self.tensorboard))

    def __str__(self) -> str:
        named = {"W&B run": self.wandb, "MLflow run": self.mlflow, "TensorBoard log": self.tensorboard}
        return ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)

    def check(self) -> None:
        """Raises `ConfigError` where a tracker is not installed: said before a training, not after it."""
        for wanted, package in ((self.wandb, "wandb"), (self.mlflow, "mlflow")):
            if wanted is not None and not _is_installed(package):
                raise ConfigError(f"{package} is not installed here: pip install {package}, or leave its option out")
        if self.tensorboard is not None and not (_is_installed("tensorboard") or _is_installed("tensorboardX")):
            raise ConfigError("tensorboard is not installed here: pip install tensorboard, or leave its option out")
        if self.wandb is not None and not all(self.wandb.split("/")):
            raise ConfigError(f"--wandb {self.wandb!r} is no run of W&B: give ENTITY/PROJECT/RUN")


def totals(run: Run, device: str | None = None, *, progress: Progress = no_progress) -> dict[str, float]:
    """Joules, seconds, watts and EDP of the run, its groups and their phases, by name, as far as known."""
    return flat(phase_table(run, device, progress=progress))


def flat(table: PhaseTable) -> dict[str, float]:
    """The rows of a table as numbers with names such as ``powerd/gpu0.measured/forward/energy_j``.

    Phases are means over their repeats. Groups are told apart by their attributes: ``…/batch_size=64,model=x/…``.
    Nothing that is a lower bound is written without saying so in its name.
    """
    found: dict[str, float] = {}

    def add(path: list[str], is_lower_bound: bool, **values: float | None) -> None:
        for name, value in values.items():
            bound = "_at_least" if is_lower_bound and name not in ("time_s", "s_per_batch") else ""
            if value is not None:
                found[printable("/".join([PREFIX, *path, name + bound]))] = float(value)

    for r in table.runs:
        edp = r.energy_j * r.time_s if r.energy_j is not None else None
        add(
            [f"{r.device}.{r.provenance}"],
            r.is_lower_bound,
            energy_j=r.energy_j,
            energy_u95_j=r.u95_j,
            time_s=r.time_s,
            power_w=r.power_w,
            edp_js=edp,
        )
    for t in table.totals:
        path = [f"{t.device}.{t.provenance}", *_group(t.group)]
        if len(path) == 1:
            path.append("phases")
        values = {"energy_j": t.energy_j, "energy_u95_j": t.u95_j, "time_s": t.time_s, "power_w": t.power_w}
        add(path, t.is_lower_bound, **values, edp_js=t.edp_js)
    for p in table.phases:
        path = [f"{p.device}.{p.provenance}", *_group(p.group), p.phase.replace("/", ".")]
        values = {"j_per_batch": p.j_per_batch, "u95_j_per_batch": p.u95_j, "s_per_batch": p.s_per_batch}
        add(path, p.is_lower_bound, **values, power_w=p.power_w)
    return found


def _group(group: Mapping[str, Any]) -> list[str]:
    text = ",".join(f"{k}={v}" for k, v in sorted(group.items()))
    return [text.replace("/", ".")] if text else []


def write_tags(values: Mapping[str, float], targets: Targets) -> None:
    """Write to all targets. Raises `AnalysisError` with the tracker's own words when one refuses."""
    jobs: list[tuple[str, Callable[[], None]]] = []
    if (path := targets.wandb) is not None:
        jobs.append((f"W&B run {path}", lambda: _tag_wandb(values, path)))
    if (run_id := targets.mlflow) is not None:
        jobs.append((f"MLflow run {run_id}", lambda: _tag_mlflow(values, run_id)))
    if (directory := targets.tensorboard) is not None:
        jobs.append((f"TensorBoard log {directory}", lambda: _tag_tensorboard(values, directory)))
    for name, job in jobs:
        try:
            job()
        except Exception as error:  # trackers raise what they like
            raise AnalysisError(f"{name}: nothing was written: {type(error).__name__}: {error}") from error


def tag_active(path: str | Path, *, device: str | None = None) -> tuple[str, ...]:
    """Write a run file's totals to the W&B and MLflow runs that are active in this process; returns which they are.

    For a training script, after `Meter.close`. Trackers that are not imported are not looked for. Raises
    `PowerdError`.
    """
    wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
    jobs: list[tuple[str, Callable[[dict[str, float]], object]]] = []
    if wandb is not None and getattr(wandb, "run", None) is not None:
        jobs.append(("wandb", wandb.run.summary.update))
    if mlflow is not None and mlflow.active_run() is not None:
        jobs.append(("mlflow", lambda values: mlflow.log_metrics(_named_for_mlflow(values))))
    if not jobs:
        raise ConfigError("no run of W&B or MLflow is active in this process: call this before it is finished")
    values = totals(read_run(path), device)
    for _, write in jobs:
        write(values)
    return tuple(name for name, _ in jobs)


def tag_afterwards(path: Path, targets: Targets) -> None:
    """Tag a run that has just been recorded. A failure is one line: the command's exit status must not depend on it."""
    if not targets:
        return
    try:
        values = totals(read_run(path))
        write_tags(values, targets)
    except PowerdError as error:
        sys.stderr.write(f"joules: {printable(str(error))}; try again with `joules tag {printable(str(path))}`\n")
    else:
        sys.stderr.write(f"joules: {len(values)} values written to {printable(str(targets))}\n")


def _is_installed(package: str) -> bool:
    try:
        return package in sys.modules or importlib.util.find_spec(package) is not None
    except ValueError:
        return False


def _tag_wandb(values: Mapping[str, float], path: str) -> None:
    wandb: Any = importlib.import_module("wandb")
    run = wandb.Api().run(path)
    run.summary.update(dict(values))


def _tag_mlflow(values: Mapping[str, float], run_id: str) -> None:
    client: Any = importlib.import_module("mlflow").MlflowClient()
    client.get_run(run_id)  # an id that is none is said before anything is written
    for name, value in _named_for_mlflow(values).items():
        client.log_metric(run_id, name, value)


def _named_for_mlflow(values: Mapping[str, float]) -> dict[str, float]:
    """MLflow takes letters, digits, ``_-. :/`` in names, neither ``=`` nor ``,``."""
    allowed = "_-. :/"
    return {"".join(c if c.isalnum() or c in allowed else "_" for c in name): v for name, v in values.items()}


def _tag_tensorboard(values: Mapping[str, float], directory: Path) -> None:
    name = "torch.utils.tensorboard" if _is_installed("tensorboard") and _is_installed("torch") else "tensorboardX"
    writer: Any = importlib.import_module(name).SummaryWriter(str(directory))
    try:
        for tag, value in values.items():
            writer.add_scalar(tag, value, 0)
    finally:
        writer.close()
