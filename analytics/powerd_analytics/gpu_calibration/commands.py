"""The commands that the analytics add to `powerd`; `powerd_daemon.commands` says what a command brings.

What they find of a GPU goes into one file (`powerd_core.calibration.GpuFile`), which the source nvml reads. They load
nothing before they run: `powerd --help` needs no numpy, and neither does a shell that completes options.
"""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

from powerd_core.calibration import GPUS_FILE, GpuFile, gpus_text
from powerd_core.errors import ConfigError
from powerd_core.keys import keys_directory
from powerd_core.serde import build_options, parse_toml
from powerd_core.text import printable


class Identify:
    """`powerd identify`."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.description = (
            "Runs random loads on an idle GPU (matrix products, copies, waits of 2.5 to 90 ms), fits how the driver's "
            "readings follow them, and stores the delay and the time constant for every later run. It sets nothing on "
            "the GPU. Needs powerd[analytics,torch]."
        )
        parser.epilog = "powerd identify gpu0"
        parser.add_argument("gpu", nargs="?", default="gpu0", metavar="GPU", help="gpu0, gpu1, ... (default gpu0)")
        parser.add_argument("--seconds", type="number", default=90.0, metavar="S", help="of loads (default 90)")
        recorded = "fit a run file of such loads instead of running them"
        parser.add_argument("--run", type=Path, metavar="FILE", help=recorded)
        gpu_file = "file to write (default: gpus.toml beside the keys, where every later run finds it)"
        parser.add_argument("--out", type=Path, metavar="FILE", help=gpu_file)

    @staticmethod
    def run(arguments: argparse.Namespace) -> None:
        loads = _needs_analytics("identify", "powerd_analytics.gpu_calibration.random_loads")
        try:
            found = loads.identify(arguments.gpu, arguments.seconds, arguments.run)
        except KeyboardInterrupt:
            print("powerd identify: interrupted; nothing was stored", file=sys.stderr)
            raise
        for r in found:
            age = f"centre {r.age_ms:.2f} ± {r.u95_age_ms:.2f} ms"
            print(f"{arguments.gpu}.{r.field:<13} {printable(r.text)}, {age}, residual {r.residual_w:.1f} W")
        _keep(GpuFile(response=tuple(found)), arguments.out)


class CalibrateGpu:
    """`powerd calibrate gpu0`: what is needed beside the options of `powerd calibrate`."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        supply = "with a wall meter: efficiency of the power supply at this load, such as 0.93"
        parser.add_argument("--efficiency", type="number", metavar="E", help=supply)
        parser.add_argument("--efficiency-u", type="number", metavar="U", help="its relative standard uncertainty")
        recorded = "of a GPU: a run with both, in place of recording"
        parser.add_argument("--run", type=Path, metavar="FILE", help=recorded)
        both = "of a GPU: the powerd that reads both it and the reference; several where they are apart"
        parser.add_argument("--url", action="append", metavar="URL", help=both)

    @staticmethod
    def run(arguments: argparse.Namespace) -> None:
        gpu, reference = str(arguments.file), arguments.reference
        if reference is None and arguments.reference_w is not None:
            reference = str(arguments.reference_w)
        if not reference:
            raise ConfigError(f"{gpu}: a GPU is calibrated with --reference rails, wall or WATTS")
        found = _needs_analytics("calibrate", "powerd_analytics.gpu_calibration.gpu_gain").gains(
            gpu,
            reference.removesuffix("W"),
            u=arguments.reference_u or 0.0,
            efficiency=arguments.efficiency or 0.0,
            u_efficiency=arguments.efficiency_u or 0.0,
            run=arguments.run,
            url=arguments.url,
            seconds=arguments.seconds,
        )
        for g in found:
            print(f"{gpu}.{g.field:<13} gain {g.gain:.4f} ± {1.96 * g.u_gain:.2%} by {printable(g.reference)}")
        _keep(GpuFile(gain=tuple(found)), arguments.out)


def _needs_analytics(command: str, module: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        from powerd_client.host.log import install_hint

        raise ConfigError(f"powerd {command} needs the analytics: {install_hint('analytics')}") from error


def _keep(new: GpuFile, given: Path | None) -> None:
    """Add to the file what is new, and say where it is. Raises `ConfigError`, with the file as it was."""
    from powerd_client.host.ownership import read_small, whole_text

    path = given or Path(keys_directory(os.environ, str(Path.home()))) / GPUS_FILE
    try:
        known = GpuFile()
        if path.exists():
            known = build_options(GpuFile, parse_toml(read_small(path).decode("utf-8-sig")), str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        whole_text(path, gpus_text(known.with_new(new)), 0o644)  # powerd may be another user
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    option = f'; load it in the [[source]] of kind nvml with: calibration = "{path.absolute()}"' if given else ""
    print(f"± is 95 %; written to {path}{option}")
