"""The main job from end to end on any machine: powerd, a training with phases, a table and a picture.

powerd reads a simulated sensor board (eight INA219s on a graphics card's rails, whose load follows this machine's CPU
activity) and a model of this process's CPU power. Everything else is real: driver, samplers, stream, clocks, marks,
recorder, run file, energies.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from train_cnn import train

from powerd_analytics import cli
from powerd_client import Meter
from powerd_core import PowerdError
from powerd_daemon.peer import ask

CONFIG = """\
[server]
listen = "{url}"
board = "demo"

[[source]]              # a PCIe graphics card's eight supply lines, simulated down to the chips' registers
kind = "sim"
name = "rails"
rate_hz = 500.0
waveform = "host"       # the load follows this machine's CPU activity
pid = {pid}

[[source]]              # what the training process's CPU time would cost, by a stated model
kind = "cpu-model"
name = "cpu"
pid = {pid}
"""


@contextmanager
def daemon(config: Path, url: str) -> Iterator[None]:
    """`powerd run` with this configuration, from when it answers at ``url`` until the end of the block."""
    process = subprocess.Popen([sys.executable, "-P", "-m", "powerd_daemon", "run", "--config", config, "--quiet"])
    try:
        for _ in range(60):  # a minute: a busy machine takes longer than a Meter waits for an answer
            with suppress(PowerdError):
                ask(url, "describe", 1000)
                break
            if process.poll() is not None:
                break
        yield
    finally:
        process.terminate()
        process.wait(10)


def main() -> int:
    """Run the demo into a directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("demo"), help="where the results go (default: demo)")
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 64, 128], metavar="N", help="batch sizes")
    parser.add_argument("--seconds", type=float, default=15.0, help="training time for each batch size")
    args = parser.parse_args()
    args.directory.mkdir(exist_ok=True)
    # The simulated chips are worked out on this machine's CPU: leave them a core, as a real board would not need.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
    # The first optimizer of a process loads for seconds what no training of the demo needs: not in the recording.
    torch.optim.SGD([torch.zeros(1)], lr=0.1)
    console = Console()
    try:
        with tempfile.TemporaryDirectory(prefix="powerd-demo-") as sockets:
            url = f"ipc://{sockets}/powerd"
            config = args.directory / "powerd.toml"
            config.write_text(CONFIG.format(url=url, pid=os.getpid()))
            console.print(
                f"[bold]1. powerd[/bold] starts with {config}: a simulated sensor board and a CPU power model"
            )
            with daemon(config, url):
                record(args, url, console)
        show(args.directory, console)
    except PowerdError as error:
        console.print(f"demo: {error}", style="red")
        return 2
    except KeyboardInterrupt:
        console.print("\ndemo: interrupted")
        return 130
    return 0


def record(args: argparse.Namespace, url: str, console: Console) -> None:
    """Train with each batch size, recorded into one run file."""
    console.print("[bold]2. Training[/bold] a small CNN on the CPU; data, forward, backward and update are marked")
    bar = Progress(
        TextColumn("   batch size {task.description:>4}"), BarColumn(), TimeRemainingColumn(), console=console
    )
    with Meter(url, args.directory / "run.h5", overwrite=True) as meter, bar:
        tasks = [bar.add_task(str(batch_size), total=1.0, start=False) for batch_size in args.batch]
        for batch_size, task in zip(args.batch, tasks, strict=True):
            bar.start_task(task)
            train(
                meter,
                "small-cnn",
                batch_size,
                torch.device("cpu"),
                seconds=args.seconds,
                warm_up=3,
                loader_s=0.02,
                advance=lambda share, task=task: bar.update(task, completed=share),
            )
            time.sleep(0.5)  # a little idle power between the batch sizes, to be seen in the picture


def joules(*arguments: str) -> None:
    """A `joules` command in this process; ends the demo when it fails."""
    try:
        cli.main(list(arguments))
    except SystemExit as end:
        if end.code:
            raise


def show(directory: Path, console: Console) -> None:
    """The table, the same as CSV, the picture, and the page."""
    run, table, picture, page = (directory / name for name in ("run.h5", "table.csv", "power.png", "report.html"))
    console.print(f"[bold]3. Joules for every phase[/bold], from {run}")
    for command in (
        ["tables", str(run)],
        ["tables", str(run), "--format", "csv", "--output", str(table), "--overwrite"],
        ["plot", str(run), "--output", str(picture), "--overwrite"],
        ["report", str(run), "--output", str(page), "--overwrite"],
    ):
        joules(*command)
    console.print(f"\nRun file: {run}   table: {table}   picture: {picture}   page: {page}")
    console.print(
        "[bold]Next, on your own hardware:[/bold] joules record -- python your_training.py "
        "(on a machine with an NVIDIA GPU it reads the driver; for a sensor board see README.md)"
    )


if __name__ == "__main__":
    sys.exit(main())
