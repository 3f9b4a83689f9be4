"""A run's totals for experiment trackers: W&B, MLflow and TensorBoard, where they are installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from powerd_analytics.runs.run import Progress, Run, no_progress, read_run
from powerd_analytics.table import PhaseTable, phase_table
from powerd_core.errors import AnalysisError, ConfigError, PowerdError
from powerd_core.text import printable

PREFIX = "powerd"
_NAMES = {"wandb": "W&B run", "mlflow": "MLflow run", "tensorboard": "TensorBoard log"}
Targets = Mapping[str, str]
"""Where totals go, by package: a run of W&B as `wandb.Api` names it, the id of a run of the tracking server that MLflow
is set to (MLFLOW_TRACKING_URI), a log directory of TensorBoard."""


def targets_of(wandb: str | None, mlflow: str | None, tensorboard: Path | None) -> Targets:
    """Those that are given. Raises `ConfigError` where a tracker is not installed: before a training, not after it."""
    given = {"wandb": wandb, "mlflow": mlflow, "tensorboard": tensorboard}
    targets = {package: str(target) for package, target in given.items() if target is not None}
    for package in targets:
        if not (_is_installed(package) or (package == "tensorboard" and _is_installed("tensorboardX"))):
            raise ConfigError(f"{package} is not installed here: pip install {package}, or leave its option out")
    if wandb is not None and not all(wandb.split("/")):
        raise ConfigError(f"{wandb!r} is no run of W&B: give ENTITY/PROJECT/RUN")
    return targets


def described(targets: Targets) -> str:
    """Where totals go, in words."""
    return ", ".join(f"{_NAMES[package]} {target}" for package, target in targets.items())


def totals(run: Run, device: str | None = None, *, progress: Progress = no_progress) -> dict[str, float]:
    """Joules, seconds, watts and EDP of the run, its groups and their phases, by name, as far as known."""
    return flat(phase_table(run, device, progress=progress))


def flat(table: PhaseTable) -> dict[str, float]:
    """The rows of a table as numbers with names such as ``powerd/gpu0.measured/forward/energy_j``.

    Phases are means over their repeats. Groups are told apart by their attributes: ``…/batch_size=64,model=x/…``.
    Nothing that is a lower bound is written without saying so in its name.
    """
    numbers: dict[str, float] = {}

    def add(row: Any, path: list[str], **values: float | None) -> None:
        for name, value in values.items():
            bound = "_at_least" if row.is_lower_bound and name not in ("time_s", "s_per_batch") else ""
            if value is not None:
                full = "/".join([PREFIX, f"{row.device}.{row.provenance}", *path, name + bound])
                numbers[printable(full)] = float(value)

    for r in table.runs:
        edp = r.energy_j * r.time_s if r.energy_j is not None else None
        add(r, [], energy_j=r.energy_j, energy_u95_j=r.u95_j, time_s=r.time_s, power_w=r.power_w, edp_js=edp)
    for t in table.totals:
        path = _group(t.group) or ["phases"]
        add(t, path, energy_j=t.energy_j, energy_u95_j=t.u95_j, time_s=t.time_s, power_w=t.power_w, edp_js=t.edp_js)
    for p in table.phases:
        path = [*_group(p.group), p.phase.replace("/", ".")]
        add(p, path, j_per_batch=p.j_per_batch, u95_j_per_batch=p.u95_j, s_per_batch=p.s_per_batch, power_w=p.power_w)
    return numbers


def _group(group: Mapping[str, Any]) -> list[str]:
    text = ",".join(f"{k}={v}" for k, v in sorted(group.items()))
    return [text.replace("/", ".")] if text else []


def write_tags(values: Mapping[str, float], targets: Targets) -> None:
    """Write to all targets. Raises `AnalysisError` with the tracker's own words when one refuses."""
    writers = {"wandb": _tag_wandb, "mlflow": _tag_mlflow, "tensorboard": _tag_tensorboard}
    for package, target in targets.items():
        try:
            writers[package](values, target)
        except Exception as error:  # trackers raise what they like
            text = f"{_NAMES[package]} {target}: nothing was written: {type(error).__name__}: {error}"
            raise AnalysisError(text) from error


def tag_active(path: str | Path, *, device: str | None = None) -> tuple[str, ...]:
    """Write a run file's totals to the W&B and MLflow runs that are active in this process; returns which they are.

    For a training script, after `Meter.close`. Trackers that are not imported are not looked for. Raises
    `PowerdError`.
    """
    wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
    values = totals(read_run(path), device)
    written = []
    if wandb is not None and getattr(wandb, "run", None) is not None:
        wandb.run.summary.update(values)
        written.append("wandb")
    if mlflow is not None and mlflow.active_run() is not None:
        mlflow.log_metrics(_named_for_mlflow(values))
        written.append("mlflow")
    if not written:
        raise ConfigError("no run of W&B or MLflow is active in this process: call this before it is finished")
    return tuple(written)


def tag_afterwards(path: Path, targets: Targets) -> None:
    """Tag a run that has just been recorded. A failure is one line: the command's exit status must not depend on it."""
    if not targets:
        return
    try:
        values = totals(read_run(path))
        write_tags(values, targets)
        line = f"{len(values)} values written to {described(targets)}"
    except PowerdError as error:
        line = f"{error}; try again with `joules tag {path}`"
    sys.stderr.write(f"joules: {printable(line)}\n")


def _is_installed(package: str) -> bool:
    return package in sys.modules or importlib.util.find_spec(package) is not None


def _tag_wandb(values: Mapping[str, float], path: str) -> None:
    wandb: Any = importlib.import_module("wandb")
    wandb.Api().run(path).summary.update(dict(values))


def _tag_mlflow(values: Mapping[str, float], run_id: str) -> None:
    client: Any = importlib.import_module("mlflow").MlflowClient()
    client.get_run(run_id)  # an id that is none is refused before anything is written
    for name, value in _named_for_mlflow(values).items():
        client.log_metric(run_id, name, value)


def _named_for_mlflow(values: Mapping[str, float]) -> dict[str, float]:
    """MLflow takes letters, digits, ``_-. :/`` in names, neither ``=`` nor ``,``."""
    return {"".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name): v for name, v in values.items()}


def _tag_tensorboard(values: Mapping[str, float], directory: str) -> None:
    name = "torch.utils.tensorboard" if _is_installed("tensorboard") and _is_installed("torch") else "tensorboardX"
    writer: Any = importlib.import_module(name).SummaryWriter(directory)
    for tag, value in values.items():
        writer.add_scalar(tag, value, 0)
    writer.close()
