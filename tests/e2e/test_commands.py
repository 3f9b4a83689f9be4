"""The commands as a user types them: bad input gives one clear line, status 2, and overwrites nothing."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
import zmq

from powerd_client import Meter, open_run
from support.fake_daemon import FakeDaemon

POWERD = [sys.executable, "-P", "-m", "powerd_daemon"]
JOULES = [sys.executable, "-P", "-m", "powerd_analytics"]
SIM = '[server]\nlisten = "{url}"\n[[source]]\nkind = "sim"\nname = "rails"\nrate_hz = 200.0\n'


def call(*command, cwd, timeout=60):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a good run, and the things that are not one."""
    path = tmp_path_factory.mktemp("place")
    with Meter(out=path / "run.h5") as meter, meter.phase("training", batch_size=2):
        for _ in range(3):
            with meter.phase("forward"):
                time.sleep(0.05)
    (path / "precious.csv").write_text("precious\n")
    (path / "syntax.toml").write_text("[server\n")
    (path / "option.toml").write_text('[[source]]\nkind = "sim"\nname = "a"\nrate = 5\n')
    (path / "source.toml").write_text('[[source]]\nkind = "simm"\nname = "a"\n')
    line = SIM.format(url=f"ipc://{path}/x") + '[[device]]\nname = "gpu0"\nfeeds = ["gpu0.nothing"]\n'
    (path / "line.toml").write_text(line)
    return path


CASES = [
    ([*JOULES, "tables", "run.h5", "--output", "precious.csv"], r"precious\.csv exists"),
    ([*JOULES, "record", "--out", "run.h5", "--", "true"], r"run\.h5 exists"),
    ([*JOULES, "record", "--out", "new.h5", "--url", "tcp://127.0.0.1:9", "--", "true"], r"no powerd answers at tcp"),
    ([*JOULES, "record", "--out", "new.h5", "--url", "http://x", "--", "true"], r"no address of a powerd"),
    ([*JOULES, "record", "--out", "new.h5", "--", "no-such-command"], r"cannot run 'no-such-command'"),
    ([*POWERD, "run", "--config", "nothing.toml"], r"nothing\.toml"),
    ([*POWERD, "run", "--config", "syntax.toml"], r"syntax\.toml.*line 1"),
    ([*POWERD, "run", "--config", "option.toml"], r"unknown option 'rate': did you mean 'rate_hz'"),
    ([*POWERD, "run", "--config", "source.toml"], r"simm.*did you mean 'sim'"),
    ([*POWERD, "run", "--config", "line.toml"], r"gpu0\.nothing"),
    ([*POWERD, "run", "--sim", "--speed", "3"], r"speed"),
    ([*POWERD, "describe", "tcp://127.0.0.1:9"], r"no powerd answers at tcp://127\.0\.0\.1:9"),
]


@pytest.mark.parametrize(("command", "message"), CASES, ids=[" ".join(c[4:7]) for c, _ in CASES])
def test_bad_input_gives_one_line_and_status_2(place, command, message):
    before = {p.name: p.read_bytes() for p in place.iterdir() if p.is_file()}
    done = call(*command, cwd=place)
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if not line.strip().startswith("usage:")]
    assert re.search(message, line)
    assert {p.name: p.read_bytes() for p in place.iterdir() if p.is_file()} == before


def test_a_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        done = call(*POWERD, "run", "--sim", "--listen", url, cwd=tmp_path)
    assert done.returncode == 2
    assert re.search(rf"{url}.*in use", done.stderr.strip().splitlines()[-1])


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


def test_a_command_is_recorded_with_the_best_source_of_this_machine(tmp_path):
    script = (
        "import time\nfrom powerd_client import Meter\n"
        "with Meter() as m, m.phase('forward'):\n    time.sleep(0.3)\nraise SystemExit(7)"
    )
    (tmp_path / "train.py").write_text(script)
    done = call(*JOULES, "record", "--out", "run.h5", "--", sys.executable, "train.py", cwd=tmp_path)
    assert done.returncode == 7, done.stderr
    tables = call(*JOULES, "tables", "run.h5", "--format", "csv", cwd=tmp_path)
    assert tables.returncode == 0, tables.stderr
    assert "forward" in tables.stdout
    assert re.search(r"modelled|measured", tables.stdout)


def test_ctrl_c_ends_a_daemon_in_order(tmp_path):
    config = tmp_path / "powerd.toml"
    config.write_text(SIM.format(url=f"ipc://{tmp_path}/powerd"))
    daemon = subprocess.Popen(
        [*POWERD, "run", "--config", str(config)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    out = tmp_path / "run.h5"
    with Meter(f"ipc://{tmp_path}/powerd", out):
        time.sleep(0.3)
    os.killpg(daemon.pid, signal.SIGINT)
    _, stderr = daemon.communicate(timeout=15)
    assert daemon.returncode == 0
    assert "Traceback" not in stderr
    assert "0 gaps" in stderr
    with open_run(out) as file:
        assert len(file["lines"]) == 8
