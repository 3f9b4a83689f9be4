"""The `powerd` command: what it prints, how it ends, and one clear line for bad input."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from daemon_harness import PATIENCE_S, Client, Running, running, steady_config

from powerd_daemon.cli import main, run_config
from powerd_daemon.commands import make_parser
from powerd_daemon.sources.sim.bus import VirtualClock
from support.steady import wait_for

STEADY = '[[source]]\nkind = "steady_source:SteadySource"\nname = "steady"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration with a test source, listening in ``tmp_path``."""
    path = tmp_path / "c.toml"
    path.write_text(f'[server]\nlisten = "ipc://{tmp_path}/s"\n{STEADY}')
    return path


@contextmanager
def command(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """`powerd` as a process."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "powerd_daemon", *map(str, arguments)], stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until_it_listens(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "listens on" in line
    return line


def until_it_serves(powerd: Running) -> str:
    """Where it listens; a command does not wait as long as a busy machine takes to start a sampler."""
    with powerd.control() as client:
        client.stats()
    return powerd.daemon.listen


def folded(text: str) -> str:
    """What was printed, without the line breaks of a narrow terminal."""
    return " ".join(text.split())


def bad(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a command that cannot do what it is asked."""
    assert main([str(a) for a in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("powerd: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([], "COMMAND"),
        (["rum"], "'rum'"),
        (["run"], "--config"),
        (["run", "--sim", "--config", "x"], "--config"),
        (["run", "--sim", "--seeed", "5"], "--seed"),
        (["run", "--sim", "x", "y"], "x"),
        (["run", "--sim", "--rate-hz", "nan"], "--rate-hz"),
        (["run", "--sim", "--rate-hz", "fast"], "'fast' is no number"),
        (["plan", "x", "--load", "5"], "--load"),
        (["calibrate", "x", "--temperature-c", "20"], "--zero"),
        (["keys", "allow", "a", "k", "--role", "root"], "--role"),
    ],
)
def test_bad_command_lines(arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(" ".join(["powerd", *arguments[:1]]) if name != "'rum'" and arguments else "powerd: ")
    assert name in first
    assert second.startswith("usage: powerd")


def test_completion_sources_and_check(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["completion", "bash"], ("check", "calibrate", "ring-mib", "temperature-c", "revoke")),
        (["sources"], ("cpu-model\n", "nvml\n", "replay\n", "sim\n", "rate_hz = a number (default 500.0)")),
        (["check", str(file), "--file-only"], ("steady (steady_source:SteadySource)", "1 ok")),
        (["config-check", str(file)], ("steady (steady_source:SteadySource)", "1 ok")),
    ):
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        assert all(word in printed or word in folded(printed) for word in words)


def test_the_serving_process_loads_no_other_command(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from powerd_daemon import daemon\n"
        "def end(*_):\n"
        "    print(*sorted(n for n in sys.modules if n.startswith('powerd')))\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "daemon.Notifier.ready = end\n"
        "from powerd_daemon.cli import main\n"
        f"sys.exit(main(['run', '--sim', '--quiet', '--listen', 'ipc://{tmp_path}/s']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    loaded = {name.removeprefix("powerd_daemon.") for name in done.stdout.split()}
    assert "daemon" in loaded
    assert not loaded & {"calibrate", "diagnostics", "keygen", "peer", "plan", "scan"}
    assert not [name for name in loaded if name.startswith(("powerd_client", "powerd_analytics"))]


PLUGIN = """
import sys
HELP = "say hello, 100 % politely"

def add_arguments(parser):
    parser.epilog = "powerd hello --times 2"
    parser.add_argument("--times", type="number", default=1.0, metavar="N", help="how often")

def run(arguments):
    print("hello " * int(arguments.times))
    return 7
"""


@pytest.fixture
def plugged(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`powerd` beside a package that brings a command, and one whose command cannot be loaded."""
    for name, code in (("hello_plugin", PLUGIN), ("broken_plugin", "import no_such_module")):
        (tmp_path / f"{name}.py").write_text(code)
        about = tmp_path / f"{name}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[powerd.commands]\n{name.partition('_')[0]} = {name}\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "powerd_daemon", *words],
            capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    return call


def test_another_package_brings_a_command_with_its_options(
    plugged: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    listed = plugged("--help")
    assert listed.returncode == 0, listed.stderr
    assert "of other packages:\n" in listed.stdout
    assert "\n  hello       say hello, 100 % politely\n" in listed.stdout
    assert "powerd broken cannot be loaded: No module named 'no_such_module'" in listed.stdout
    helped = plugged("hello", "--help").stdout
    assert "--times N" in helped
    assert helped.endswith("For example: powerd hello --times 2\n")
    done = plugged("hello", "--times", "2")
    assert (done.returncode, done.stdout.split()) == (7, ["hello", "hello"])
    for words, why in (
        (("hello", "--times", "x"), "powerd hello: argument --times: 'x' is no number"),
        (("hello", "--time", "2"), "powerd hello: unknown option --time: did you mean '--times'?"),
        (("broken",), "powerd: powerd broken cannot be loaded: No module named 'no_such_module'"),
    ):
        done = plugged(*words)
        assert (done.returncode, done.stderr.splitlines()[0]) == (2, why)
    assert "--times" in plugged("completion", "bash").stdout


def test_help_loads_no_command(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom powerd_daemon.cli import main\ntry: main(['--help'])\n"
        "except SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stderr.split())
    assert "powerd_daemon.commands" in loaded
    assert not loaded & {f"powerd_daemon.{name}" for name in ("calibrate", "diagnostics", "keygen", "plan", "scan")}
    assert not loaded & {"powerd_client.commands", "powerd_analytics.gpu_calibration.commands"}


def test_bad_input_of_run(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    taken = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    for arguments, name in (
        (["--config", tmp_path / "none"], "none"),
        (["--config", file, "--listen", "here"], "--listen"),
        (["--config", file, "--ring-mib", -1], "ring_mib"),
        (["--config", file, "--rate-hz", 5], "rate_hz"),
        (["--sim", "--rate-hz", -1], "rate_hz"),
        (["--config", file, "--parent-pid", 99_999_999], "99999999"),
        (["--sim", "--spool", tmp_path / "no" / "spool"], "no/spool"),
        (["--config", file, "--listen", taken], taken),
    ):
        assert name in bad(capsys, "run", *arguments)
    listener.close()


def test_describe_and_stats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(steady_config(tmp_path)) as powerd:
        url = until_it_serves(powerd)
        assert main(["describe", url]) == 0
        assert "a  (simulated power of dev)" in capsys.readouterr().out
        assert main(["describe", url, "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["streams"][0]["source"] == "steady"
        assert main(["stats", url]) == 0
        assert "ring_bytes: " in capsys.readouterr().out
        assert main(["stats", url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["streams"][0]["number"] == 0


def test_without_sensors_it_measures_nothing_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a board is just after the installation."""
    file, url = tmp_path / "powerd.toml", f"ipc://{tmp_path}/s"
    file.write_text((Path(__file__).parents[2] / "powerd/deploy/powerd.toml").read_text())
    with command("run", "--config", file, "--listen", url) as process:
        until_it_listens(process)
        assert process.stderr is not None
        assert "nothing is measured" in process.stderr.readline()
        for asked in ("describe", "stats"):
            assert main([asked, url]) == 0
            assert "nothing is measured" in capsys.readouterr().out
    assert main(["check", str(file), "--file-only"]) == 1
    assert "nothing is measured" in folded(capsys.readouterr().out)


def test_a_board_is_rehearsed_on_a_simulated_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What docs/howto/board.md does on a real one: scan, plan, calibrate, check, run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("powerd_daemon.calibrate.SystemClock", VirtualClock)
    assert main(["scan", "--sim"]) == 0
    assert capsys.readouterr().out.count("INA219") == 8
    assert main(["scan", "--sim", "--format", "toml"]) == 0
    board = Path("board.toml")
    board.write_text(f'[server]\nlisten = "ipc://{tmp_path}/s"\n' + capsys.readouterr().out)
    assert main(["plan", "board.toml", "--load", "gpu0=250"]) == 0
    at = ["--seconds", "2", "--temperature-c", "23", "--out", "calibration.toml"]
    assert main(["calibrate", "board.toml", "--zero", *at]) == 0
    assert (
        main(
            ["calibrate", "board.toml", "--line", "gpu0.at_40_1", "--reference-w", "50", "--reference-u", "0.001", *at]
        )
        == 0
    )
    board.write_text(board.read_text().replace('kind = "sim"', 'kind = "sim"\ncalibration = "calibration.toml"'))
    capsys.readouterr()
    main(["check", "board.toml"])
    assert capsys.readouterr().out.count("INA219, not set up by powerd yet") == 8
    options = make_parser().parse_args(["run", "--config", "board.toml"])
    with running(run_config(options)) as powerd:
        assert main(["describe", until_it_serves(powerd), "--format", "json"]) == 0
    lines = json.loads(capsys.readouterr().out)["streams"][0]["lines"]
    u_gain = {line["name"]: line["accuracy"]["u_gain"] for line in lines}
    assert u_gain["gpu0.at_40_1"] < u_gain["gpu0.at_42_1"] / 4


def test_it_ends_with_its_parent(file: Path) -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent,
        command("run", "--config", file, "--parent-pid", str(parent.pid)) as process,
    ):
        until_it_listens(process)
        parent.kill()
        # Not waited for: a process that has ended but still has its number counts as gone.
        assert "powerd ran for" in process.communicate(timeout=PATIENCE_S)[1]
        assert process.returncode == 0


def is_running(pid: int) -> bool:
    """A zombie that nobody waits for no longer runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_killed_powerd_leaves_no_sampler_and_the_next_one_starts(file: Path) -> None:
    url = f"ipc://{file.parent}/s"
    with command("run", "--config", file) as process:
        until_it_listens(process)
        with Client(url) as client:
            pid = client.stats()["streams"][0]["sampler"]["pid"]
        process.kill()
    wait_for(lambda: not is_running(pid))
    assert (file.parent / "s").is_socket(), "a stale socket"
    with command("run", "--config", file) as process:
        until_it_listens(process)


SIMULATED = '[[source]]\nkind = "sim"\n'


@pytest.mark.parametrize(
    ("server", "rest"),
    [
        ('listen = "ipc://{0}/none/s"', SIMULATED),
        ('listen = "tcp://10.255.255.1:7999"\ninsecure = true', SIMULATED),
        ('listen = "ipc://{0}/s"\ndata = "ipc://{0}/s"', SIMULATED),
        ('listen = "tcp://127.0.0.1:7999"\nkeys = "{0}/none"', SIMULATED),
        ('listen = "ipc://{0}/s"\nspool = "{0}/none/spool"', SIMULATED),
        ('listen = "ipc://{0}/s"\nspool = "{0}/c.toml"', SIMULATED),
        ('listen = "ipc://{0}/s"', f'{SIMULATED}name = "a"\n{SIMULATED}name = "b"\n'),
        ('listen = "ipc://{0}/s"', f'{SIMULATED}[[device]]\nname = "gpu0"\nfeeds = ["gpu0.none"]\n'),
        ('listen = "ipc://{0}/s"', f'{SIMULATED}[[device]]\nname = "gpu1"\n'),
    ],
    ids=["no folder", "foreign address", "taken", "no keys", "no parent", "spool is a file", "one name twice",
         "unknown line", "unknown device"],
)  # fmt: skip
def test_what_run_refuses_check_does_not_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], server: str, rest: str
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f"[server]\n{server.format(tmp_path)}\n{rest}")
    assert main(["run", "--config", str(path)]) == 2
    refusal = folded(capsys.readouterr().err)
    assert main(["check", str(path), "--directory", str(tmp_path)]) != 0
    said = capsys.readouterr()
    found = folded(said.err + said.out)
    assert refusal.removeprefix("powerd: ")[:30] in found
    assert {p.name for p in tmp_path.iterdir()} == {"c.toml"}, "to check makes nothing"


@pytest.mark.parametrize("limit", [6, 24])
def test_too_few_files_are_one_line_at_the_start(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f'[server]\nlisten = "ipc://{tmp_path}/s"\n{SIMULATED}')
    limited = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", sys.executable, "-P", "-m", "powerd_daemon"]
    done = subprocess.run([*limited, "run", "--config", path], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"may open {limit} files, and powerd needs" in line
    assert "ulimit -n" in line


def test_a_limit_that_may_be_raised_is(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f'[server]\nlisten = "ipc://{tmp_path}/s"\n{SIMULATED}')
    limited = ["sh", "-c", 'ulimit -S -n 24; exec "$@"', "sh", sys.executable, "-P", "-m", "powerd_daemon"]
    with subprocess.Popen([*limited, "run", "--config", path], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "listens on" in process.stderr.readline()
        process.terminate()


@pytest.mark.parametrize("command", ["run", "check", "plan"])
def test_what_is_no_file_is_no_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """A device never ends, and a pipe without a writer never begins."""
    os.mkfifo(tmp_path / "pipe")
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (5 << 20))
    for path, why in ((Path("/dev/zero"), "no file"), (tmp_path / "pipe", "no file"), (large, "longer than 4 MiB")):
        assert main([command, *(["--config"] if command == "run" else []), str(path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert why in line
    source = f'[[source]]\nkind = "sim"\ncalibration = "{tmp_path}/pipe"\n'
    (tmp_path / "c.toml").write_text(f'[server]\nlisten = "ipc://{tmp_path}/s"\n{source}')
    assert main(["check", "--file-only", str(tmp_path / "c.toml")]) == 2
    assert "no file" in capsys.readouterr().err


def test_an_error_does_not_repeat_a_whole_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f'[server]\nlisten = "{"x" * 3_000_000}"\n{SIMULATED}')
    assert main(["check", "--file-only", str(path)]) == 2
    assert 1000 < len(capsys.readouterr().err) < 4000
