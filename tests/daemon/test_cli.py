"""The `powerd` command: what it prints, how it ends, and one clear line for bad input."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from daemon_harness import PATIENCE_S, Client, FakeClock, running, steady_config
from steady_source import steady_stream

from powerd_core import Message, encode
from powerd_daemon import asking
from powerd_daemon.arguments import parse
from powerd_daemon.cli import main, run_config
from powerd_daemon.log import Log
from powerd_daemon.reports import duration
from powerd_daemon.sizing import ring_seconds
from powerd_daemon.watch import ProcessWatch

CALIBRATE = ["calibrate", "x", "--temperature-c", "20", "--out", "y"]
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


def bad(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a command that cannot do what it is asked."""
    assert main([str(a) for a in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("powerd: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "powerd: which command? (there are: run, sources, describe, stats, config-check, plan, "),
        (["rum"], "powerd: unknown command 'rum': did you mean 'run'?"),
        (["--sim"], "powerd: unknown option --sim (there are: --help, --version)"),
        (["run"], "powerd: run: give either --config FILE or --sim"),
        (["run", "--sim", "--config", "x"], "powerd: run: give either --config FILE or --sim"),
        (["run", "--sim", "--speed", "5"], "powerd run: unknown option --speed: did you mean '--seed'?"),
        (["run", "--sim", "--ring-mib", "big"], "powerd run: argument --ring-mib: invalid float value: 'big'"),
        (["run", "--sim", "--rate-hz", "nan"], "powerd run: argument --rate-hz: 'nan' is no number"),
        (["run", "--sim", "--rate-hz", "fast"], "powerd run: argument --rate-hz: 'fast' is no number"),
        (["run", "--sim", "--spool", ""], "powerd run: argument --spool: an empty name is no directory"),
        (["run", "--config", "x", "--rate-hz", "5"], "powerd: run: --rate-hz goes with --sim"),
        (["config-check"], "powerd config-check: the following arguments are required: FILE"),
        (["plan", "x", "--load", "5"], "powerd plan: argument --load: '5' is not NAME=WATTS"),
        (["scan", "two"], "powerd scan: argument BUS: invalid int value: 'two'"),
        (["calibrate", "x"], "powerd calibrate: the following arguments are required: --temperature-c"),
        ([*CALIBRATE, "--zero", "--seconds", "nan"], "powerd calibrate: argument --seconds: 'nan' is no number"),
        ([*CALIBRATE, "--zero", "--seconds", "0"], "powerd calibrate: argument --seconds: 0 s is not between 0 and"),
        ([*CALIBRATE, "--zero", "--temperature-c", "inf"], "powerd calibrate: argument --temperature-c: 'inf' is no"),
        ([*CALIBRATE, "--reference-a", "5"], "powerd: calibrate: a reference is of one line: give one --line NAME"),
        ([*CALIBRATE, "--reference-a", "5", "--line", "a"], "powerd: calibrate: give --reference-u"),
        ([*CALIBRATE, "--zero", "--reference-u", "0.1"], "powerd: calibrate: --reference-u goes with --reference-a"),
        ([*CALIBRATE, "--zero", "--url", "ipc:///x"], "powerd: calibrate: give either the configuration's FILE or "),
        ([*CALIBRATE[:-2], "--zero"], "powerd: calibrate: give --out FILE"),
        (["keys"], "powerd keys: the following arguments are required: ACTION"),
        (["keys", "allow", "a"], "powerd keys allow: the following arguments are required: KEY"),
        (["keys", "allow", "a", "k", "--role", "root"], "powerd keys allow: argument --role: invalid choice: 'root'"),
        (["configure"], "powerd configure: the following arguments are required: URL"),
    ],
)
def test_bad_command_lines(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith(message)
    assert second.startswith("usage: powerd")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("powerd ")


def test_options_of_run() -> None:
    simulated = run_config(parse(["run", "--sim", "--rate-hz", "100", "--seed", "3", "--ring-mib", "2"]))
    assert simulated.sources[0].options == {"rate_hz": 100.0, "seed": 3}
    assert simulated.server.ring_bytes == 2 << 20
    assert simulated.server.data == "tcp://127.0.0.1:7361"


def test_listen_overrides_the_file(file: Path) -> None:
    config = run_config(parse(["run", "--config", str(file), "--listen", "tcp://127.0.0.1:9000"]))
    assert (config.server.listen, config.server.data) == ("tcp://127.0.0.1:9000", "tcp://127.0.0.1:9001")


def test_bad_input_of_run(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no such configuration file" in bad(capsys, "run", "--config", tmp_path / "none")
    assert "--listen: cannot use 'here'" in bad(capsys, "run", "--config", file, "--listen", "here")
    assert "--ring-mib: option 'ring_mib': -1.0 MiB is not" in bad(capsys, "run", "--config", file, "--ring-mib", -1)
    assert "powerd: --sim: rate_hz, " in bad(capsys, "run", "--sim", "--rate-hz", -1)
    assert "--parent-pid: there is no process 99999999" in bad(
        capsys, "run", "--config", file, "--parent-pid", 99_999_999
    )
    file.write_text(file.read_text() + "rate = 1\n")
    assert "unknown option 'rate': did you mean 'rate_hz'?" in bad(capsys, "run", "--config", file)


def test_a_sensor_that_is_not_there(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "script").write_text("open")
    file.write_text(file.read_text() + f'script = "{tmp_path}/script"\n')
    said = bad(capsys, "run", "--config", file)
    assert said == f"powerd: {file}: [[source]] 1 (steady_source:SteadySource): the sensor does not answer\n"


def test_an_endpoint_in_use(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(steady_config(tmp_path)) as powerd, powerd.control() as control:
        control.stats()
        said = bad(capsys, "run", "--config", file)
        assert f"cannot listen on ipc://{tmp_path}/s: it is in use, perhaps by another powerd: stop" in said
    with zmq.Context() as context, context.socket(zmq.ROUTER) as taken:
        port = taken.bind_to_random_port("tcp://127.0.0.1")
        said = bad(capsys, "run", "--config", file, "--listen", f"tcp://127.0.0.1:{port}")
        assert f"cannot listen on tcp://127.0.0.1:{port}: it is in use" in said


def test_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sources"]) == 0
    said = capsys.readouterr().out
    for kind in ("cpu-model", "nvml", "replay", "sim"):
        assert f"\n{kind}\n" in "\n" + said
    assert "rate_hz = a number (default 500.0)" in said


def test_config_check(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config-check", str(file)]) == 0
    said = capsys.readouterr().out
    assert f"{file} is good: listens on ipc://" in said
    assert "source steady of kind steady_source:SteadySource" in said
    file.write_text("x")
    assert "not valid TOML" in bad(capsys, "config-check", file)


def test_describe_and_stats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(steady_config(tmp_path)) as powerd:
        url = powerd.daemon.listen
        assert main(["describe", url]) == 0
        assert "a  (simulated power of dev)" in capsys.readouterr().out
        assert main(["describe", url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["streams"][0]["source"] == "steady"
        assert main(["stats", url]) == 0
        assert "ring_bytes: " in capsys.readouterr().out
        assert main(["stats", url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["streams"][0]["number"] == 0
        assert "has no configuration to show or replace: start it with powerd run --config" in bad(
            capsys, "configure", url
        )


def test_a_description_of_another_release_is_said_to_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(steady_config(tmp_path)) as powerd:
        url = powerd.daemon.listen
        body = asking.ask(url, "describe").body
        body["streams"][0]["lines"][0]["accuracy"]["drift"] = 1
        monkeypatch.setattr("powerd_daemon.cli.ask", lambda *_, **__: Message("description", body))
        assert "unknown key 'drift'): use the same release there and here" in bad(capsys, "describe", url)


def test_asking_where_nobody_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(asking, "TIMEOUT_MS", 50)
    url = f"ipc://{tmp_path}/none"
    said = bad(capsys, "describe", url)
    assert said == f"powerd: no powerd answers at {url}: is it running there? start it with `powerd run ...`\n"
    assert "URL: cannot use 'somewhere': write tcp://" in bad(capsys, "stats", "somewhere")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"hello", "a frame of 5 bytes is shorter than its header"),
        (b"pwrd\x02" + bytes(60), "speaks version 2 of the wire format, this one version 1"),
        (encode(Message("error", {"message": "busy"})), "says: busy"),
    ],
)
def test_asking_something_else(tmp_path: Path, answer: bytes, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"ipc://{tmp_path}/other"
    code = (
        "import sys, zmq; r = zmq.Context().socket(zmq.ROUTER); r.bind(sys.argv[1]); "
        "r.send_multipart([r.recv_multipart()[0], bytes.fromhex(sys.argv[2])]); r.recv()"
    )
    with subprocess.Popen([sys.executable, "-c", code, url, answer.hex()]) as other:
        try:
            assert message in bad(capsys, "describe", url)
        finally:
            other.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(file: Path, tmp_path: Path, number: signal.Signals) -> None:
    with command("run", "--config", file) as process:
        until_it_listens(process)
        process.send_signal(number)
        said = process.communicate(timeout=PATIENCE_S)[1]
        assert process.returncode == 0
    assert "powerd ran for" in said
    assert "Traceback" not in said
    assert not (tmp_path / "s").exists()


def test_quiet(file: Path) -> None:
    with command("run", "--config", file, "--quiet") as process:
        url = f"ipc://{file.parent}/s"
        with Client(url) as client:
            assert client.ask(Message("describe")).subject == "description"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE_S)[1] == ""


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


def test_killed_powerd_leaves_no_sampler_and_the_next_one_starts(file: Path, tmp_path: Path) -> None:
    url = f"ipc://{file.parent}/s"
    scratch = tmp_path / "t"
    scratch.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(scratch))
        with command("run", "--config", file) as process:
            until_it_listens(process)
            with Client(url) as client:
                pid = client.stats()["streams"][0]["sampler"]["pid"]
            assert len(list(scratch.iterdir())) == 1
            process.kill()
    end = time.monotonic() + PATIENCE_S
    while (is_running(pid) or list(scratch.iterdir())) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_running(pid)
    assert list(scratch.iterdir()) == [], "the sampler has swept up"
    assert (file.parent / "s").is_socket(), "a stale socket"
    with command("run", "--config", file) as process:
        until_it_listens(process)


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_process_watch(has_pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.ENOSYS, "not in this kernel")

    if not has_pidfd:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        watch = ProcessWatch(child.pid)
        assert not watch.is_gone()
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        # Without a descriptor a process counts until someone has waited for it.
        assert watch.is_gone() == has_pidfd
        child.wait()
        assert watch.is_gone()
        watch.close()


def test_durations_and_ring() -> None:
    assert [duration(s) for s in (0.1234, 12.34, 600, 36_000)] == ["0.123 s", "12.3 s", "10 min", "10 h"]
    # 20 scans of 16 bytes in a frame of 56 bytes, and 200 for its keeping: 576 bytes each 20 ms.
    assert ring_seconds(steady_stream(), 576_000, 20_000_000) == pytest.approx(20.0)


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        log = Log(stream, FakeClock())
    log.note("into the void")
    log.complain("too")
    assert (tmp_path / "log").read_text() == ""


def test_a_log_without_a_stream() -> None:
    """Where stderr was closed before powerd began, Python has none."""
    log = Log(None, FakeClock())
    log.note("into the void")
    log.complain("too")
    log.status("and this")
    assert not log.is_terminal


@pytest.mark.parametrize("command", ["plan", "config-check"])
def test_names_of_a_file_cannot_move_the_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    file = tmp_path / "powerd.toml"
    file.write_text('[[source]]\nkind = "sim"\nname = "\\u001b[2Jcard"\ndevice = "\\u001b[2Jgpu"\n')
    assert main([command, str(file)]) == 0
    said = capsys.readouterr().out
    assert "\\x1b[2J" in said
    assert "\x1b" not in said


@pytest.mark.parametrize("command", [["plan"], ["config-check"], ["run", "--config"]])
def test_a_configuration_that_never_ends_is_refused(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert "longer than 4 MiB" in bad(capsys, *command, "/dev/zero")


def test_without_a_standard_output() -> None:
    command = f"{sys.executable} -m powerd_daemon sources >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_finds_no_room_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "powerd_daemon", "sources"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, "powerd: the output cannot be written: No space left on device\n")
