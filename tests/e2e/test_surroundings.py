"""The commands where a terminal, an encoding, a directory or a name is not what one is used to."""

import os
import subprocess
import sys

import pytest

POWERD = [sys.executable, "-P", "-m", "powerd_daemon"]
JOULES = [sys.executable, "-P", "-m", "powerd_analytics"]
TABLE = "model,target,energy_j,time_s\nm ± ü,default,10,2\nm ± ü,low,8,2.5\n"


def call(*command, cwd, **environment):
    variables = os.environ | environment
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=60, check=False)


def pick(name, *options):
    return [*JOULES, "pick", name, "--reference", "target=default", "--metric", "e", *options]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (pick("t.csv"), "m +- \\xfc,low"),
        (pick("t.csv", "--format", "table"), "m +- \\xfc"),
        ([*POWERD, "sources"], "+-"),
    ],
    ids=["csv", "table", "powerd"],
)
def test_an_encoding_without_our_signs(tmp_path, command, shown):
    (tmp_path / "t.csv").write_text(TABLE, encoding="utf-8")
    done = call(*command, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout


def test_the_c_locale_writes_files_in_utf_8_all_the_same(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE, encoding="utf-8")
    done = call(*pick("t.csv", "-o", "out.csv"), cwd=tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 0, done.stderr
    assert "m ± ü,low" in (tmp_path / "out.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", [[*JOULES, "--help"], [*JOULES, "completion", "bash"], [*POWERD, "sources"]])
def test_a_reader_that_has_gone(tmp_path, command):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        done = subprocess.run(command, cwd=tmp_path, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("name", ["a\nb c.csv", "-ü.csv", b"\xff.csv".decode(errors="surrogateescape")])
def test_names_of_any_bytes(tmp_path, name):
    (tmp_path / name).write_text(TABLE, encoding="utf-8")
    done = call(*pick(f"./{name}", "-o", f"./{name}.out"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"{name}.out").exists()
    missing = call(*pick(f"./no{name}"), cwd=tmp_path)
    assert missing.returncode == 2
    assert len(missing.stderr.splitlines()) == 1


def test_without_a_home_and_a_directory_for_temporary_files(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE, encoding="utf-8")
    done = call(*pick("t.csv"), cwd=tmp_path, HOME="/nonexistent", TMPDIR="/nonexistent")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ([*JOULES, "--hlep"], "--hlep"),
        ([*JOULES, "info", "a.h5", "b.h5"], "too many arguments: b.h5"),
        ([*JOULES, "info", "a.h5", "--devise", "x"], "--devise. Did you mean --device?"),
    ],
)
def test_slips_of_the_keyboard(tmp_path, command, named):
    done = call(*command, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n"), named in done.stderr) == (2, 1, True)
