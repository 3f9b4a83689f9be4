"""What is loaded as root: which modules of ours, how many lines, and whose code."""

import subprocess
import sys
from pathlib import Path

import pytest

from powerd_control import helper
from powerd_core.errors import ConfigError
from support import file_nvml

MOST_LINES = 2200
"""It was 4,033. Whoever needs more lines takes others out, or says here why root has to run them."""
LOADED = {"powerd_control", "helper", "knobs", "leases", "policy", "requests", "powerd_core", "errors", "hold"}
SCRIPT = """
import sys
from powerd_control.helper import main
at = sys.argv[1]
status = main(["--socket", at + "/socket", "--nvml", "file_nvml", "--simulated", "--revert-all"])
for module in list(sys.modules.values()):
    if module.__name__.partition(".")[0].startswith("powerd"):
        print(module.__file__)
sys.exit(status)
"""


def lines_of(path):
    return len(Path(path).read_text().splitlines())


@pytest.mark.slow
def test_so_many_lines_are_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("POWERD_FAKE_NVML", str(file_nvml.fresh(tmp_path / "gpus.json")))
    monkeypatch.setenv("PYTHONPATH", str(Path(file_nvml.__file__).parent))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    files = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    names = {Path(file).parent.name if file.endswith("__init__.py") else Path(file).stem for file in files}
    assert names == LOADED
    lines = sum(map(lines_of, files))
    assert lines <= MOST_LINES, f"{lines} lines in {len(files)} modules"


class TestRoot:
    """Only what is installed runs as root, whatever its environment says."""

    @pytest.fixture(autouse=True)
    def _root(self, monkeypatch):
        monkeypatch.setattr(helper.os, "geteuid", lambda: 0)
        monkeypatch.delenv("POWERD_SIM_GPU", raising=False)

    def check(self, *words, is_isolated=True):
        return helper.check_root(helper.parser().parse_args(words), is_isolated)

    def test_a_path_for_modules_is_refused(self):
        with pytest.raises(ConfigError, match="-I -m powerd_control`: .PYTHONPATH would run as root"):
            self.check(is_isolated=False)
        assert not self.check()

    def test_a_simulated_driver_is_refused_unless_it_is_asked_for(self, monkeypatch):
        for words in (["--nvml", "file_nvml"], []):
            with pytest.raises(ConfigError, match="root has to say --simulated"):
                self.check(*words)
            assert self.check(*words, "--simulated", is_isolated=False)
            monkeypatch.setenv("POWERD_SIM_GPU", "/tmp/of-a-user")

    def test_other_users_start_it_as_they_like(self, monkeypatch):
        monkeypatch.setattr(helper.os, "geteuid", lambda: 1000)
        assert self.check("--nvml", "file_nvml", is_isolated=False)
        assert not self.check(is_isolated=False)
