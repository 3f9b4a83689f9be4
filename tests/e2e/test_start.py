"""How the commands begin and end: Ctrl-C at any moment, parts that are not installed, and what --help loads."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

JOULES, POWERD = "powerd_analytics.cli", "powerd_daemon.cli"

# The command in a process whose arguments and packages the test chooses, as its console script would call it. It says
# that it begins with the first import inside of `main`: a line before that is Python's own start.
SCRIPT = """
import atexit, os, signal, sys

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

class Interrupting:
    begun = False

    def find_spec(self, name, *_):
        if name == {at!r}:
            interrupt()
        if main and not self.begun:
            self.begun = True
            print("begins", flush=True)

if {at!r} == "exit":
    atexit.register(interrupt)
for name in {without!r}:
    sys.modules[name] = None
main = None
sys.meta_path.insert(0, Interrupting())
sys.argv = {argv!r}
from {module} import main
sys.exit(main())
"""


def script(module, *argv, at="", without=()):
    name = "joules" if module == JOULES else "powerd"
    return [sys.executable, "-c", SCRIPT.format(module=module, argv=[name, *argv], at=at, without=without)]


def call(command, cwd, **settings):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=110, check=False, **settings)


@pytest.mark.parametrize(
    ("argv", "at"),
    [(["--help"], "powerd_analytics.cli.tables"), (["tables", "nothing.h5"], "numpy"), (["--help"], "exit")],
)
def test_ctrl_c_while_a_command_loads_or_leaves(tmp_path, argv, at):
    done = call(script(JOULES, *argv, at=at), tmp_path)
    assert done.returncode == 130, done.stderr
    assert done.stderr.split() in (["joules:", "interrupted"], [])


@pytest.mark.parametrize("delay_s", [0.0, 0.1])
def test_ctrl_c_at_whatever_moment(tmp_path, delay_s):
    process = subprocess.Popen(
        script(JOULES, "--help"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "begins\n"
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    # Killed by the signal, where the interpreter is already gone as far as that: a shell says 130 as well.
    assert process.returncode in (0, 130, -signal.SIGINT)
    assert "Traceback" not in stderr


def test_ctrl_c_stays_ignored_where_it_was(tmp_path):
    """As under nohup, or behind `&` in a script."""
    ignoring = (
        "import os, signal, sys\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nos.execv(sys.argv[1], sys.argv[1:])"
    )
    done = call([sys.executable, "-c", ignoring, *script(JOULES, "--help", at="cyclopts")], tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("without", "argv", "part", "origin"),
    [
        (["cyclopts", "rich", "numpy", "h5py", "pandas"], ["--help"], "analytics", "checkout"),
        (["numpy", "pandas", "h5py"], ["tables", "nothing.h5"], "analytics", "wheel"),
    ],
)
def test_joules_without_a_package_says_what_to_install(tmp_path, without, argv, part, origin):
    """As on a board, or after `pip install '.[client]'`: the script is there, what it needs is not."""
    checkout, installed = tmp_path / "my powerd", tmp_path / "lib" / "powerd-9.dist-info"
    for folder in (checkout, installed):
        folder.mkdir(parents=True)
    (checkout / "pyproject.toml").touch()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: powerd\nVersion: 9\n")
    about = {"url": checkout.as_uri(), "dir_info": {"editable": True} if origin == "checkout" else {}}
    if origin != "wheel":
        (installed / "direct_url.json").write_text(json.dumps(about))
    place = {"PYTHONPATH": str(installed.parent), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    hint = {
        "checkout": f"pip install -e '{checkout}[{part}]'",
        "wheel": f"pip install 'powerd[{part}]'",
    }[origin]
    for cwd in (tmp_path, checkout) if origin == "checkout" else (tmp_path,):
        done = call(script(JOULES, *argv, without=without), cwd, env=os.environ | place)
        assert done.returncode == 2
        here = hint.replace(str(checkout), "." if cwd == checkout else str(checkout))
        assert re.fullmatch(
            rf"joules: ({'|'.join(without)}) is not installed here: (.* -m )?{re.escape(here)}\n", done.stderr
        )


def test_record_needs_no_more_than_the_clients_part(tmp_path):
    more = ["pandas", "pyarrow", "scipy", "matplotlib", "jinja2", "threadpoolctl", "torch"]
    done = call(script(JOULES, "record", "--", "true", without=more), tmp_path)
    assert (done.returncode, "is not installed" in done.stderr) == (0, False), done.stderr
    assert (tmp_path / "run.h5").is_file()


@pytest.mark.parametrize("module", [JOULES, POWERD])
def test_help_loads_nothing_heavy(tmp_path, module):
    heavy = ["numpy", "h5py", "torch", "pandas", "pyarrow", "matplotlib", "duckdb", "dask"]
    done = call(script(module, "--help", without=heavy), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "For example" in done.stdout


def test_a_command_loads_what_it_needs():
    """So that a reader, too, meets few rooms on the way from a run file to its table."""
    run = Path(__file__).parents[1] / "data" / "truth" / "gaps.h5"
    code = """
import sys
from powerd_analytics import cli
try:
    cli.main(["tables", sys.argv[1], "--format", "csv"])
except SystemExit:
    ours = sorted(name for name in sys.modules if name.startswith("powerd_"))
    sys.exit(f"{len(ours)} modules: {' '.join(ours)}" if len(ours) > 60 else 0)
"""
    done = call([sys.executable, "-c", code, str(run)], None)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("table,")
