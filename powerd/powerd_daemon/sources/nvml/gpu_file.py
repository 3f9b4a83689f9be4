"""The file of what was found of GPUs, by UUID: how their drivers see power, and the gains of what they say."""

from __future__ import annotations

import os
from pathlib import Path

from powerd_core.calibration import GpuFile
from powerd_core.keys import keys_directory
from powerd_core.serde import build_options
from powerd_daemon.toml_files import read_document, toml_table, write_text

_HEAD = """\
# What `powerd identify` and `powerd calibrate gpu0` found of GPUs; the source nvml reads it here, or where its option
# calibration says.
"""


def gpu_file_path(given: str | Path = "") -> Path:
    """Where the file is unless ``given`` says: gpus.toml in the directory of powerd's keys."""
    return Path(given) if str(given) else Path(keys_directory(os.environ, str(Path.home()))) / "gpus.toml"


def load_gpus(path: Path) -> GpuFile:
    """Empty where there is no file. Raises `ConfigError` for one that cannot be read."""
    try:
        if not path.exists():
            return GpuFile()
    except OSError:  # the home of somebody else
        return GpuFile()
    return build_options(GpuFile, read_document(path), str(path))


def save_gpus(path: Path, new: GpuFile) -> None:
    """Add what is new. Raises `ConfigError` where the file cannot be written."""
    file = load_gpus(path).with_new(new)
    tables = [toml_table(f"[[{name}]]", row) for name in ("response", "gain") for row in getattr(file, name)]
    write_text(path, "\n".join([_HEAD, *tables]))
