"""The commands as a user types them: bad input gives one clear line, status 2, and overwrites nothing; and where a
terminal, an encoding, a directory or a name is not what one is used to."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest
import zmq

from powerd_client import Meter, open_run
from powerd_core.errors import ConfigError
from powerd_daemon.sockets import bind_sockets
from support.fake_daemon import FakeDaemon

POWERD = [sys.executable, "-P", "-m", "powerd_daemon"]
JOULES = [sys.executable, "-P", "-m", "powerd_analytics"]
TABLE = "model,target,energy_j,time_s\nm ± ü,default,10,2\nm ± ü,low,8,2.5\n"
SIM = '[server]\nlisten = "{url}"\n[[source]]\nkind = "sim"\nname = "rails"\nrate_hz = 200.0\n'


def call(*command, cwd, **environment):
    variables = os.environ | environment
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=110, check=False)


def pick(name, *options):
    return [*JOULES, "published", "pick", name, "--reference", "target=default", "--metric", "e", *options]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (pick("t.csv", "-o", "precious.csv"), r"precious\.csv exists"),
        ([*JOULES, "record", "--output", "new.h5", "--", "no-such-command"], r"cannot run 'no-such-command'"),
        ([*JOULES, "info", "a.h5", "--devise", "x"], r"--devise\W+Did you mean \W?--device"),
        ([*POWERD, "run", "--config", "line.toml"], r"gpu0\.nothing"),
        ([*POWERD, "describe", "tcp://127.0.0.1:9"], r"no powerd answers at tcp://127\.0\.0\.1:9"),
    ],
)
def test_bad_input_gives_one_line_and_status_2(tmp_path, command, message):
    (tmp_path / "precious.csv").write_text("precious\n")
    (tmp_path / "t.csv").write_text(TABLE, encoding="utf-8")
    wrong = SIM.format(url=f"ipc://{tmp_path}/x") + '[[device]]\nname = "gpu0"\nfeeds = ["gpu0.nothing"]\n'
    (tmp_path / "line.toml").write_text(wrong)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    done = call(*command, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if not line.strip().startswith("usage:")]
    assert re.search(message, line)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        done = call(*POWERD, "run", "--sim", "--listen", url, cwd=tmp_path)
    assert done.returncode == 2
    assert re.search(rf"{url}.*in use", done.stderr.strip().splitlines()[-1])


def test_the_second_of_its_ports_in_use(tmp_path):
    with zmq.Context() as context, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        addresses = [f"tcp://127.0.0.1:{p}" for p in ("*", port, "*")]
        with pytest.raises(ConfigError, match=rf"{port}, where readings are served .*PORT\+1.*: it is in use"):
            bind_sockets(context, *addresses)


def test_a_powerd_of_another_version(tmp_path):
    context = zmq.Context()
    daemon = FakeDaemon(context)
    daemon.version = 3
    try:
        for command in ([*JOULES, "record", "--url", daemon.url, "--", "true"], [*POWERD, "describe", daemon.url]):
            done = call(*command, cwd=tmp_path)
            assert done.returncode == 2
            assert re.search(rf"{daemon.url}.*version 3.*version 1", done.stderr)
            assert len(done.stderr.splitlines()) == 1
    finally:
        daemon.close()
        context.destroy(linger=0)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_a_daemon_in_order(tmp_path):
    config = tmp_path / "powerd.toml"
    config.write_text(SIM.format(url=f"ipc://{tmp_path}/powerd"))
    daemon = subprocess.Popen(
        [*POWERD, "run", "--config", str(config)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    out = tmp_path / "run.h5"
    with Meter(f"ipc://{tmp_path}/powerd", out):
        pass
    os.killpg(daemon.pid, signal.SIGINT)
    _, stderr = daemon.communicate(timeout=60)
    assert daemon.returncode == 0
    assert "Traceback" not in stderr
    assert "no scan lost" in stderr
    with open_run(out) as file:
        assert len(file["lines"]) == 8


@pytest.mark.parametrize(("command", "shown"), [(pick("t.csv"), "m +- \\xfc,low"), ([*POWERD, "sources"], "+-")])
def test_an_encoding_without_our_signs(tmp_path, command, shown):
    (tmp_path / "t.csv").write_text(TABLE, encoding="utf-8")
    done = call(*command, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout


@pytest.mark.parametrize("command", [[*JOULES, "--help"], [*POWERD, "sources"]])
def test_a_reader_that_has_gone(tmp_path, command):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        done = subprocess.run(command, cwd=tmp_path, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")


def test_names_of_any_bytes_in_the_c_locale_without_a_home_and_a_directory_for_temporary_files(tmp_path):
    name = b"-a\nb \xff.csv".decode(errors="surrogateescape")
    (tmp_path / name).write_text(TABLE, encoding="utf-8")
    nothing = {"HOME": "/nonexistent", "TMPDIR": "/nonexistent"}
    bare = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"} | nothing
    done = call(*pick(f"./{name}", "-o", f"./{name}.out.csv"), cwd=tmp_path, **bare)
    assert (done.returncode, done.stderr) == (0, "")
    assert "m ± ü,low" in (tmp_path / f"{name}.out.csv").read_text(encoding="utf-8")
    missing = call(*pick(f"./no{name}"), cwd=tmp_path, **bare)
    assert missing.returncode == 2
    assert len(missing.stderr.splitlines()) == 1
