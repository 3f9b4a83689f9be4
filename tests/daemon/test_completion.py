"""Completion of the command line: what the scripts know is what the parser takes."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from powerd_daemon.arguments import COMMANDS, make_parser
from powerd_daemon.cli import main
from powerd_daemon.completion import SHELLS, bash
from powerd_daemon.completion_words import commands_of

KEYS = ("server", "client", "allow", "revoke", "trust", "list")


def test_every_command_and_option_of_the_parser_is_known():
    found = {c.name: c for c in commands_of(make_parser())}
    assert set(found) == {"powerd", *(f"powerd {c}" for c in COMMANDS), *(f"powerd keys {a}" for a in KEYS)}
    assert {w.text for w in found["powerd"].commands} == set(COMMANDS)
    assert all(w.help for c in found.values() for w in (*c.commands, *c.options))
    options = {w.text: w for w in found["powerd run"].options}
    assert {"--config", "--sim", "--quiet", "-h", "--help"} <= set(options)
    assert options["--config"].takes_value
    assert options["--config"].is_file
    assert not options["--sim"].takes_value
    assert not options["--seed"].is_file
    assert next(w for w in found["powerd keys allow"].options if w.text == "--role").choices == ("read", "control")
    assert found["powerd plan"].takes_file
    assert not found["powerd scan"].takes_file


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_a_script_with_all_of_it(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in commands_of(make_parser()):
        for word in (*command.commands, *command.options):
            assert word.text.lstrip("-") in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True)


def test_another_shell_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "bash" in capsys.readouterr().err


def completed(*words: str, directory: str = ".") -> list[str]:
    """What bash offers behind these words, of which the last may be begun."""
    quoted = " ".join(f"'{w}'" for w in words)
    ask = (
        f"\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
        "compopt() { :; }\n_powerd\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    script = bash(list(commands_of(make_parser()))) + ask
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, cwd=directory)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
class TestBash:
    def test_commands(self):
        assert set(completed("powerd", "")) == set(COMMANDS)
        assert completed("powerd", "des") == ["describe"]
        assert set(completed("powerd", "keys", "")) == set(KEYS)

    def test_options_are_those_of_the_command(self):
        assert completed("powerd", "run", "--wave") == ["--waveform"]
        assert completed("powerd", "keys", "allow", "lab", "KEY", "--r") == ["--role"]
        assert completed("powerd", "scan", "--wave") == []

    def test_values(self, tmp_path):
        (tmp_path / "powerd.toml").touch()
        (tmp_path / "other.toml").touch()
        assert completed("powerd", "keys", "allow", "--role", "") == ["read", "control"]
        assert completed("powerd", "run", "--config", "pow", directory=str(tmp_path)) == ["powerd.toml"]
        assert set(completed("powerd", "plan", "", directory=str(tmp_path))) == {"powerd.toml", "other.toml"}
        assert completed("powerd", "run", "--seed", "", directory=str(tmp_path)) == []
        assert completed("powerd", "completion", "") == ["bash", "zsh", "fish"]
