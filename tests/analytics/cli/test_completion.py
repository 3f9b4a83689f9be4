"""What the tab key finds."""

import shutil
import subprocess

import pytest
from command import joules, refused

needs_bash = pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")


def completed(script, *words):
    """The words that bash offers for the last one of a command line."""
    count = len(words)
    program = f"""{script}
COMP_WORDS=("$@"); COMP_CWORD={count - 1}
_joules "$1" "${{@: -1}}" "${{@: -2:1}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return subprocess.run(
        ["bash", "-c", program, "bash", *words], capture_output=True, text=True, check=True
    ).stdout.split()


@needs_bash
def test_bash_completes_commands_options_and_choices(capsys):
    code, script, err = joules(capsys, "completion", "bash")
    assert (code, err) == (0, "")
    assert completed(script, "joules", "ta") == ["tables", "tag"]
    assert "--co2-g-per-kwh" in completed(script, "joules", "tables", "--co")
    assert completed(script, "joules", "pick", "--metric", "e") == ["e", "edp", "eds"]


def test_a_shell_that_is_not_known_is_refused(capsys):
    assert "csh" in refused(capsys, "completion", "csh")
