"""The whole way in one recording, for the quick tier: a powerd, a client, the hooks of a small model, a table."""

import json
import subprocess
import sys

import pytest

from powerd_analytics import cli
from powerd_client import Meter
from powerd_core.errors import PowerdError
from powerd_daemon.peer import ask
from support.small_run import wrong
from support.steady import wait_for


@pytest.fixture
def board(tmp_path):
    """The address of a simulated board's powerd, a process of its own."""
    url = f"ipc://{tmp_path}/powerd"
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "powerd_daemon", "run", "--sim", "--listen", url, "--quiet"]
    )

    def answers():
        try:
            return ask(url, "describe", 1000)
        except PowerdError:
            assert process.poll() is None
            return None

    wait_for(answers)
    yield url
    process.terminate()
    assert process.wait() == 0


@pytest.mark.quick("the one recording of the quick tier: a powerd, a recorder and torch")
def test_a_watched_training_beside_a_simulated_board_becomes_a_table(board, tmp_path, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(32, 64)).square().mean().backward()
            optimizer.step()

    with Meter(board, "run.h5") as meter, meter.watch(model, optimizer, batch_size=32):
        wait_for(lambda: train(20) or meter.energies())
    assert not wrong(tmp_path / "run.h5")
    with pytest.raises(SystemExit) as ended:
        cli.main(["tables", "run.h5", "--format", "json"])
    assert ended.value.code == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"forward", "backward", "update"} <= {row["phase"] for row in rows}
    assert {row["provenance"] for row in rows} == {"simulated"}
    assert rows[-1]["energy_j"] > rows[-1]["u95_j"] > 0
