"""`powerd identify` and `powerd calibrate gpu0`: what the analytics find of a GPU, kept where the source nvml looks.

The analytics are no part of this package: they are found as entry points.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from powerd_core.calibration import GpuFile
from powerd_core.errors import ConfigError
from powerd_core.text import printable
from powerd_daemon.sources.nvml.gpu_file import gpu_file_path, save_gpus


def ask_analytics(command: str) -> Any:
    """The function behind a command. Raises `ConfigError` where it is not installed."""
    try:
        (point,) = entry_points(group="powerd.commands", name=command)
        return point.load()
    except (ValueError, ImportError) as error:
        raise ConfigError(f"powerd {command} needs the analytics: pip install 'powerd[analytics]'") from error


def identify(arguments: argparse.Namespace) -> None:
    """Run random loads, print what they tell, and keep it. Raises `PowerdError`."""
    try:
        found = ask_analytics("identify")(arguments.gpu, arguments.seconds, arguments.run)
    except KeyboardInterrupt:
        print("powerd identify: interrupted; nothing was stored", file=sys.stderr)
        raise
    path = gpu_file_path(arguments.out or "")
    for r in found:
        age = f"centre {r.age_ms:.2f} ± {r.u95_age_ms:.2f} ms"
        print(f"{arguments.gpu}.{r.field:<13} {printable(r.text)}, {age}, residual {r.residual_w:.1f} W")
    save_gpus(path, GpuFile(response=tuple(found)))
    _say_where(path, bool(arguments.out))


def calibrate(arguments: argparse.Namespace) -> None:
    """Hold the driver's power against a reference, print the gains, and keep them. Raises `PowerdError`."""
    what = arguments.reference or (arguments.reference_w and str(arguments.reference_w))
    if not what:
        raise ConfigError(f"{arguments.file}: a GPU is calibrated with --reference rails, wall or WATTS")
    found = ask_analytics("calibrate")(
        str(arguments.file),
        what.removesuffix("W"),
        u=arguments.reference_u or 0.0,
        efficiency=arguments.efficiency or 0.0,
        u_efficiency=arguments.efficiency_u or 0.0,
        run=arguments.run,
        url=arguments.url,
        seconds=arguments.seconds,
    )
    path = gpu_file_path(arguments.out or "")
    for g in found:
        print(f"{arguments.file}.{g.field:<13} gain {g.gain:.4f} ± {1.96 * g.u_gain:.2%} by {printable(g.reference)}")
    save_gpus(path, GpuFile(gain=tuple(found)))
    _say_where(path, bool(arguments.out))


def _say_where(path: Path, is_told: bool) -> None:
    option = f'; load it in the [[source]] of kind nvml with: calibration = "{path.absolute()}"' if is_told else ""
    print(f"± is 95 %; written to {path}{option}")
