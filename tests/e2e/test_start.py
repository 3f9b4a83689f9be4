"""How the commands begin: Ctrl-C while they load, parts that are not installed, and what --help loads."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.small_run import make_run_file

JOULES, POWERD = "powerd_analytics.cli", "powerd_daemon.cli"

# The command in a process whose arguments and packages the test chooses, as its console script would call it.
SCRIPT = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == {at!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
for name in {without!r}:
    sys.modules[name] = None
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
    [(["--help"], "powerd_core"), (["tables", "--help"], "cyclopts"), (["tables", "nothing.h5"], "numpy")],
)
def test_ctrl_c_while_a_command_loads(tmp_path, argv, at):
    done = call(script(JOULES, *argv, at=at), tmp_path)
    assert done.returncode == 130, done.stderr
    assert done.stderr.split() in (["joules:", "interrupted"], [])


@pytest.mark.parametrize(
    ("without", "argv", "part", "origin"),
    [
        (["cyclopts", "rich", "numpy", "h5py", "pandas"], ["info", "--help"], "analytics", "checkout"),
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
        "wheel": f"install powerd with its extra [{part}]",
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


HEAVY = ["pandas", "pyarrow", "matplotlib", "jinja2", "torch", "duckdb", "dask"]


@pytest.mark.parametrize(
    ("module", "argv", "without"),
    [
        (POWERD, ["--help"], ["numpy", "h5py"]),
        (JOULES, ["--help"], ["numpy", "h5py", "scipy", "cyclopts", "rich"]),
        (JOULES, ["--version"], ["numpy", "h5py", "scipy", "cyclopts", "rich"]),
        (JOULES, ["tables", "--help"], ["numpy", "h5py", "scipy"]),
        (JOULES, ["info", "run.h5"], ["scipy", "zmq"]),
        (JOULES, ["info", "--check", "run.h5"], ["zmq"]),
        (JOULES, ["tables", "run.h5"], ["zmq"]),
    ],
)
def test_a_command_loads_nothing_heavy_that_it_does_not_use(tmp_path, module, argv, without):
    """Each of these takes longer to load than the command to do its work."""
    make_run_file(tmp_path / "run.h5")
    command = script(module, *argv)
    command[2] = f"import atexit, sys\natexit.register(lambda: print(*sys.modules, file=sys.stderr))\n{command[2]}"
    done = call(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "powerd_core" in (loaded := done.stderr.split())
    assert sorted({*loaded} & {*HEAVY, *without}) == []


def test_what_serves_and_what_receives_loads_nothing_heavy(tmp_path):
    """Two processes of every recording, beside the training."""
    loaded = "import powerd_daemon.daemon, powerd_client.record.worker, sys; print(*sys.modules)"
    done = call([sys.executable, "-c", loaded], tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted({*done.stdout.split()} & {*HEAVY, "asyncio", "ssl", "numpy", "h5py"}) == []


def test_joules_calculates_with_one_thread_and_what_it_records_with_as_many_as_the_user_wants(tmp_path):
    """Threads of linear algebra take a core each, and make nothing of ours faster."""
    make_run_file(tmp_path / "run.h5")
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    own = {name: value for name, value in os.environ.items() if name not in names}
    show = f"import os; print(*(os.environ.get(name) for name in {names!r}))"
    counting = f"""
import atexit
from threadpoolctl import threadpool_info
atexit.register(lambda: print("threads", {{pool["num_threads"] for pool in threadpool_info()}}))
{SCRIPT.format(module=JOULES, argv=["joules", "tables", "run.h5"], at="", without=())}
"""
    done = call([sys.executable, "-c", counting], tmp_path, env=own)
    assert done.stdout.endswith("threads {1}\n"), done.stderr
    done = call(script(JOULES, "record", "--quiet", "--", sys.executable, "-c", show), tmp_path, env=own)
    assert done.stdout == "None None None\n", done.stderr


@pytest.mark.parametrize(
    ("module", "words", "said"),
    [
        (JOULES, ["--help"], "For example"),
        (POWERD, ["--help"], "For example"),
        (POWERD, ["pmlib", "--help"], "--directory"),
        (POWERD, ["identify", "--help"], "--seconds"),
        (POWERD, ["calibrate", "--help"], "--efficiency-u"),
        (POWERD, ["completion", "bash"], "efficiency-u"),
    ],
)
def test_help_loads_nothing_heavy(tmp_path, module, words, said):
    done = call(script(module, *words, without=["numpy", "h5py", *HEAVY]), tmp_path)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


@pytest.mark.parametrize(
    ("words", "part"), [(["pmlib"], "client"), (["identify"], "analytics"), (["calibrate", "gpu0"], "analytics")]
)
def test_commands_of_other_parts_say_what_to_install(tmp_path, words, part):
    options = ["--reference", "rails"] if words[0] == "calibrate" else []
    done = call(script(POWERD, *words, *options, without=["numpy", "h5py", *HEAVY]), tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(rf"powerd: powerd {words[0]} .*\[{part}\]'?\n", done.stderr)


def test_a_command_loads_what_it_needs(tmp_path):
    """So that a reader, too, meets few rooms on the way from a run file to its table."""
    run = make_run_file(tmp_path / "run.h5")
    code = """
import sys
from powerd_analytics import cli
try:
    cli.main(["tables", sys.argv[1], "--format", "csv"])
except SystemExit:
    ours = sorted(n for n, m in sys.modules.items() if n.startswith("powerd_") and not hasattr(m, "__path__"))
    sys.exit(f"{len(ours)} modules: {' '.join(ours)}" if len(ours) > 80 else 0)
"""
    done = call([sys.executable, "-c", code, str(run)], None)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kind,")


def test_the_first_page_fits_a_terminal_and_the_second_has_all_commands():
    from powerd_analytics.cli.all_commands import COMMANDS, FIRST, overview, whole_overview

    lines = overview().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in (*FIRST, "--help-all"))
    every = [name for commands in COMMANDS.values() for name in commands]
    assert all(f"\n  {name} " in whole_overview() for name in every)
