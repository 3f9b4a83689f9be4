"""`joules record` and `joules tag`: a command recorded, and its totals written where the training is followed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from powerd_analytics.cli.common import Device, Overwrite, open_run, stderr


def record(
    *command: Annotated[str, Parameter(help="The command to record, after --.", allow_leading_hyphen=True)],
    url: Annotated[str | None, Parameter(help="A running powerd, such as tcp://board:7360; else a local one.")] = None,
    out: Annotated[Path, Parameter(alias="-o", help="Run file to write.")] = Path("run.h5"),
    overwrite: Overwrite = False,
    keys: Annotated[
        Path | None, Parameter(help="Directory of keys; $POWERD_KEYS, else ~/.config/powerd without it.")
    ] = None,
    quiet: Annotated[bool, Parameter(negative="", help="Print nothing of our own.")] = False,
    baseline: Annotated[float | None, Parameter(help="Measure idle power so many seconds before and after.")] = None,
    tag_wandb: Annotated[
        str | None, Parameter(help="Write the totals to this W&B run afterwards: ENTITY/PROJECT/RUN.")
    ] = None,
    tag_mlflow: Annotated[str | None, Parameter(help="The same for an MLflow run, by its id.")] = None,
    tag_tensorboard: Annotated[Path | None, Parameter(help="The same for a TensorBoard log directory.")] = None,
) -> int:
    """Record any command; its phases too, where it marks them. Exits with the command's status.

    For example: joules record --out run.h5 -- python train.py
    """
    from powerd_analytics.cli.tags import Targets, tag_afterwards
    from powerd_client.record import record_command
    from powerd_core.errors import ConfigError

    if not command:
        raise ConfigError("nothing to record: give the command after --, as in `joules record -- python train.py`")
    targets = Targets(tag_wandb, tag_mlflow, tag_tensorboard)
    targets.check()  # before the training, not after it
    options = {} if baseline is None else {"baseline_s": baseline}
    status = record_command(command, url=url, out=out, overwrite=overwrite, quiet=quiet, keys=keys, **options)
    tag_afterwards(out, targets)
    return status


def tag(
    run: Annotated[Path, Parameter(help="A run file.")],
    *,
    wandb: Annotated[str | None, Parameter(help="A W&B run: ENTITY/PROJECT/RUN.")] = None,
    mlflow: Annotated[str | None, Parameter(help="An MLflow run, by its id.")] = None,
    tensorboard: Annotated[Path | None, Parameter(help="A TensorBoard log directory.")] = None,
    device: Device = None,
) -> None:
    """Write a run's joules, seconds, watts and EDP to the experiment trackers that followed the training.

    For example: joules tag run.h5 --wandb me/cifar/3x4mpl3
    """
    from powerd_analytics.cli.tags import Targets, totals, write_tags
    from powerd_analytics.progress import LateProgress
    from powerd_core.errors import ConfigError

    targets = Targets(wandb, mlflow, tensorboard)
    if not targets:
        raise ConfigError("nothing to tag: give --wandb ENTITY/PROJECT/RUN, --mlflow RUN_ID or --tensorboard DIR")
    targets.check()
    with LateProgress(stderr()) as progress:
        values = totals(open_run(run, None, progress), device, progress=progress)
    write_tags(values, targets)
    print(f"{len(values)} values written to {targets}")
