"""Against fakes of what the three trackers document: wandb.Api().run(path).summary, MlflowClient, SummaryWriter."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from command import joules
from make_run import LineSpec, make_run, training

from powerd_analytics.cli import tags
from powerd_analytics.cli.tags import tag_active, tag_afterwards, totals
from powerd_analytics.runs.run import read_run
from powerd_core.errors import ConfigError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    tr = training((64, 128), 4)
    lines = [LineSpec("gpu0.a", tr.power()), LineSpec("cpu0.m", tr.power(0.3), "cpu0", "modelled", 20_000_000)]
    return make_run(tmp_path_factory.mktemp("tags") / "run.h5", lines, tr.phases, end_ns=tr.end_ns)


@pytest.fixture(scope="module")
def values(run):
    return totals(read_run(run))


class Trackers:
    """What reached each of the three."""

    def __init__(self):
        self.wandb, self.mlflow, self.tensorboard, self.closed = {}, {}, {}, 0
        self.fails = None

    def summary(self, path):
        if self.fails:
            raise self.fails
        return SimpleNamespace(update=lambda values: self.wandb.setdefault(path, {}).update(values))


@pytest.fixture
def trackers(monkeypatch):
    found = Trackers()
    wandb, mlflow, boards = ModuleType("wandb"), ModuleType("mlflow"), ModuleType("tensorboardX")
    wandb.run = None
    wandb.Api = lambda: SimpleNamespace(run=lambda path: SimpleNamespace(summary=found.summary(path)))

    class MlflowClient:
        def get_run(self, run_id):
            if run_id != "r1":
                raise LookupError(f"Run '{run_id}' not found")

        def log_metric(self, run_id, key, value):
            assert not set(key) & set("=,")
            found.mlflow.setdefault(run_id, {})[key] = value

    mlflow.MlflowClient = MlflowClient
    mlflow.active_run = lambda: None

    class SummaryWriter:
        def __init__(self, directory):
            self.directory = directory

        def add_scalar(self, tag, value, step):
            found.tensorboard.setdefault(self.directory, {})[tag, step] = value

        def close(self):
            found.closed += 1

    boards.SummaryWriter = SummaryWriter
    for module in (wandb, mlflow, boards):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(tags, "_is_installed", lambda name: name in sys.modules and name != "tensorboard")
    return found


def test_names_say_device_provenance_group_and_unit(values):
    assert all(isinstance(v, float) for v in values.values())
    whole = values["powerd/gpu0.simulated/energy_j"]
    for name in ("time_s", "power_w", "energy_u95_j"):
        assert f"powerd/gpu0.simulated/{name}" in values
    assert values["powerd/gpu0.simulated/edp_js"] == pytest.approx(whole * values["powerd/gpu0.simulated/time_s"])
    assert "powerd/cpu0.modelled/energy_j" in values
    assert values["powerd/gpu0.simulated/batch_size=64,model=AlexNet/energy_j"] < whole
    assert "powerd/gpu0.simulated/batch_size=64,model=AlexNet/forward/j_per_batch" in values
    assert "powerd/gpu0.simulated/batch_size=64,model=AlexNet/update/s_per_batch" in values


def test_the_command_writes_to_all_three(run, values, trackers, capsys, tmp_path):
    arguments = ("--wandb", "me/p/r", "--mlflow", "r1", "--tensorboard", tmp_path)
    code, out, err = joules(capsys, "tag", run, *arguments)
    assert (code, err) == (0, "")
    assert f"{len(values)} values written to W&B run me/p/r, MLflow run r1" in out
    assert trackers.wandb == {"me/p/r": values}
    assert {k[0]: v for k, v in trackers.tensorboard[str(tmp_path)].items()} == values
    assert sorted(trackers.mlflow["r1"].values()) == sorted(values.values())
    assert trackers.closed == 1


def test_recording_tags_afterwards_and_keeps_the_commands_status(run, trackers, monkeypatch, capsys):
    def record_command(command, *, out, afterwards, **_):
        afterwards(out)
        return 3

    monkeypatch.setattr("powerd_client.recording.record_command", record_command)
    arguments = ("record", "--out", run, "--tag-wandb", "me/p/r", "--", "train")
    code, _, err = joules(capsys, *arguments)
    assert (code, len(trackers.wandb)) == (3, 1)
    assert "written to W&B run me/p/r" in err
    trackers.fails = ConnectionError("offline")
    code, _, err = joules(capsys, *arguments)
    assert code == 3
    assert "offline" in err
    assert "try again" in err
    tag_afterwards(run, {})


def test_the_active_runs_of_a_script(run, trackers):
    with pytest.raises(ConfigError):
        tag_active(run)
    sys.modules["wandb"].run = SimpleNamespace(summary=trackers.summary("active"))
    sys.modules["mlflow"].active_run = lambda: "r1"
    sys.modules["mlflow"].log_metrics = trackers.mlflow.update
    assert tag_active(run, device="gpu0") == ("wandb", "mlflow")
    assert len(trackers.wandb["active"]) == len(trackers.mlflow) > 5
    assert all("gpu0" in name for name in trackers.wandb["active"])
