"""A powerd that goes away in the middle and never returns: the training goes on; run, table and error stream say it."""

import json
import os
import subprocess
import sys
import time

import pytest

from powerd_analytics import cli
from powerd_client import Meter, open_run

CONFIG = '[server]\nlisten = "{url}"\n[[source]]\nkind = "sim"\nname = "rails"\nrate_hz = 500.0\n'


@pytest.fixture(scope="module")
def vanished(tmp_path_factory):
    """The run, where its powerd was, how many steps the training made without it, and what it was told."""
    directory = tmp_path_factory.mktemp("vanished")
    (directory / "powerd.toml").write_text(CONFIG.format(url=f"ipc://{directory}/powerd"))
    kept = os.dup(2)  # the recorder's processes write there too
    with (directory / "stderr").open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        steps = train(directory, f"ipc://{directory}/powerd")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    return directory / "run.h5", f"ipc://{directory}/powerd", steps, (directory / "stderr").read_text()


def train(directory, url):
    config = str(directory / "powerd.toml")
    command = [sys.executable, "-P", "-m", "powerd_daemon", "run", "--config", config, "--quiet"]
    daemon = subprocess.Popen(command, start_new_session=True)
    try:
        deadline = time.monotonic() + 20
        while not (directory / "powerd").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        meter = Meter(url, directory / "run.h5")
        with meter.phase("forward"):
            time.sleep(0.15)
    finally:
        daemon.kill()
        daemon.wait()
    steps = 0
    for _ in range(3):
        with meter.phase("forward"):
            time.sleep(0.05)
        steps += 1
    meter.close()
    return steps


def test_the_run_says_when_readings_ended(vanished):
    out, url, steps, said = vanished
    assert steps == 3
    assert said.startswith(f"powerd: powerd at {url} sent nothing of the last 0.")
    with open_run(out) as file:
        texts = [json.loads(m)["text"] for m in file["messages"].asstr()]
        assert [t for t in texts if t.startswith(f"powerd at {url} sent nothing of the last 0.")]
        assert file["gaps/cause"].asstr()[:].tolist() == ["powerd sent nothing more"]
        assert len(file["phases/kind"]) == 4
        assert file.attrs["complete"] == 1


def test_the_table_has_no_joules_for_what_was_not_measured(vanished, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["tables", str(vanished[0])])
    said = " ".join(capsys.readouterr().out.split())
    assert "powerd sent nothing more" in said
    assert "n.r., no readings in" in said
