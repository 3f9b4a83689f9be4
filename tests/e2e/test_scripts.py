"""The ways in which a training is recorded all end with totals, iterations and phases + rest = total: loops with marks
by hand and by hooks, trainers of other libraries, a command without marks, two ranks, and a training that is killed."""

import os
import subprocess
import sys
import time
import types

import pytest
import torch
from torch import nn

from powerd_analytics.runs.run import read_run
from powerd_analytics.table import phase_table
from powerd_client import Meter

STEPS = 12
CONFIG = '[server]\nlisten = "{url}"\n[[source]]\nkind = "sim"\nname = "rails"\nrate_hz = 200.0\n'


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("powerd")
    config, address = folder / "powerd.toml", f"ipc://{folder}/powerd"
    config.write_text(CONFIG.format(url=address))
    command = [sys.executable, "-P", "-m", "powerd_daemon", "run", "--config", config]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as powerd:
        try:
            assert "listens" in powerd.stderr.readline()
            yield address
        finally:
            powerd.terminate()
            powerd.communicate(timeout=60)


class Net(nn.Linear):
    """Takes a while."""

    def forward(self, x):
        time.sleep(0.006)
        return super().forward(x)


def parts():
    model = Net(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), [torch.randn(8, 4)] * STEPS


def plain_loop(meter, _):
    model, optimizer, batches = parts()
    for x in meter.iterations(batches, batch_size=8):
        with meter.phase("forward"):
            loss = model(x).sum()
        with meter.phase("backward"):
            loss.backward()
        with meter.phase("update"):
            optimizer.step()


def short_phases_far_apart(meter, _):
    for _ in range(STEPS):
        with meter.phase("query", batch_size=8):
            time.sleep(0.001)
        time.sleep(0.008)


def watched(meter, _):
    model, optimizer, batches = parts()
    watch = meter.watch(model, optimizer, loader=batches, batch_size=8)
    for x in watch.loader:
        model(x).sum().backward()
        optimizer.step()
    model.eval()(x)


def stand_in(patch, name, base, callback):
    """Instead of a library, a module with the class that the module ``callback`` derives from."""
    *packages, leaf = name.split(".")
    module = types.ModuleType(name)
    setattr(module, base, type(base, (), {}))
    patch.setitem(sys.modules, name, module)
    for package in packages:
        patch.setitem(sys.modules, package, types.SimpleNamespace(**{leaf: module}))
    patch.setitem(sys.modules, callback, None)  # so that what is imported now is forgotten again
    del sys.modules[callback]


def trainer(meter, patch):
    stand_in(patch, "transformers", "TrainerCallback", "powerd_client.callbacks.transformers")
    from powerd_client.callbacks.transformers import PowerdCallback

    callback, (model, optimizer, batches) = PowerdCallback(meter, batch_size=8), parts()
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    callback.on_train_begin(None, None, None, model=model, optimizer=optimizer, train_dataloader=loader)
    for x in loader:
        model(x).sum().backward()
        optimizer.step()
    callback.on_train_end(None, None, None)


def lightning(meter, patch):
    stand_in(patch, "lightning.pytorch", "Callback", "powerd_client.callbacks.lightning")
    from powerd_client.callbacks.lightning import PowerdCallback

    callback, (model, optimizer, batches) = PowerdCallback(meter, batch_size=8), parts()
    model.automatic_optimization = True
    profiler = types.SimpleNamespace(start=lambda name: None, stop=lambda name: None)
    strategy = types.SimpleNamespace(model=model)
    fitting = types.SimpleNamespace(profiler=profiler, optimizers=[optimizer], strategy=strategy)
    callback.setup(fitting, model, "fit")
    callback.on_train_start(fitting, model)
    for i, x in enumerate(batches):
        fitting.profiler.start("[_TrainingEpochLoop].train_dataloader_next")
        fitting.profiler.stop("[_TrainingEpochLoop].train_dataloader_next")
        callback.on_train_batch_start(fitting, model, x, i)

        def closure(x=x):
            loss = model(x).sum()
            callback.on_before_zero_grad(fitting, model, optimizer)
            loss.backward()
            return loss

        optimizer.step(closure)
        callback.on_train_batch_end(fitting, model, None, x, i)
    callback.teardown(fitting, model, "fit")


def in_this_process(train, url, out):
    with pytest.MonkeyPatch.context() as patch, Meter(url, out) as meter:
        train(meter, patch)


MARKED = """
import os, signal, sys, time
from powerd_client import Meter
with Meter(sys.argv[1], sys.argv[2]) as meter:
    for i in range({steps}):
        for name in ("forward", "backward", "update"):
            with meter.phase(name, batch_size=8):
                time.sleep(0.003)
    if len(sys.argv) > 3:
        meter.begin("forward", batch_size=8)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def start(*words, **environment):
    return subprocess.Popen([sys.executable, "-P", *map(str, words)], env=os.environ | environment)


def two_ranks(url, out):
    told = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(os.getpid())}
    script = MARKED.format(steps=STEPS)
    ranks = [start("-c", script, url, out, RANK=str(r), LOCAL_RANK=str(r), **told) for r in range(2)]
    assert [rank.wait(timeout=60) for rank in ranks] == [0, 0]


def killed(url, out):
    assert start("-c", MARKED.format(steps=STEPS), url, out, "dies").wait(timeout=60) == -9
    deadline = time.monotonic() + 60
    while not out.exists() and time.monotonic() < deadline:  # the recorder ends by itself
        time.sleep(0.02)


def command_without_marks(url, out):
    code = "import numpy, time; time.sleep(0.2); numpy.ones(9) @ numpy.ones(9)"
    record = ("-m", "powerd_analytics", "record", "--url", url, "--out", out)
    assert start(*record, "--", sys.executable, "-c", code).wait(timeout=60) == 0


HERE = (plain_loop, short_phases_far_apart, watched, trainer, lightning)
ALONE = {two_ranks: 2 * STEPS, killed: STEPS, command_without_marks: None, short_phases_far_apart: None}
"""How many iterations a run has: none, or another number than steps."""


@pytest.mark.parametrize("training", [*HERE, two_ranks, killed, command_without_marks], ids=lambda f: f.__name__)
def test_every_way_of_recording_ends_with_totals_that_agree(training, url, tmp_path):
    out = tmp_path / "run.h5"
    if training in HERE:
        in_this_process(training, url, out)
    else:
        training(url, out)
    table = phase_table(read_run(out), "gpu0")
    (whole,) = table.runs
    assert abs(whole.energy_j - (whole.phases_j or 0.0) - (whole.rest_j or whole.energy_j)) <= whole.u95_j
    for total in table.totals:
        assert total.energy_j > 0
        assert total.u95_j > 0
        assert total.power_w == pytest.approx(total.energy_j / total.time_s)
    if training is not command_without_marks:
        of_phases = sum(total.energy_j for total in table.totals)
        assert abs(of_phases - whole.phases_j) <= sum(total.u95_j for total in table.totals)
    counts = [row.iterations for row in table.phases if row.phase == "iteration"]
    expected = ALONE.get(training, STEPS)
    assert counts == ([] if expected is None else [expected])
    if training in (watched, trainer, lightning):
        assert {row.group.get("model") for row in table.phases} == {"Net-10"}
