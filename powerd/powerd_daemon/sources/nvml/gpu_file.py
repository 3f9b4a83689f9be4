"""The file of what was found of GPUs, by UUID: how their drivers see power, and the gains of what they say.

The analytics write it (`powerd identify`, `powerd calibrate gpu0`).
"""

from __future__ import annotations

import os
from pathlib import Path

from powerd_core.calibration import GPUS_FILE, GpuFile
from powerd_core.keys import keys_directory
from powerd_core.serde import build_options
from powerd_daemon.toml_files import read_document


def gpu_file_path(given: str | Path = "") -> Path:
    """Where the file is unless ``given`` says: in the directory of powerd's keys."""
    return Path(given) if str(given) else Path(keys_directory(os.environ, str(Path.home()))) / GPUS_FILE


def load_gpus(path: Path) -> GpuFile:
    """Empty where there is no file. Raises `ConfigError` for one that cannot be read."""
    try:
        if not path.exists():
            return GpuFile()
    except OSError:  # the home of somebody else
        return GpuFile()
    return build_options(GpuFile, read_document(path), str(path))
