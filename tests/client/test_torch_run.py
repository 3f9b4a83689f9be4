"""A watched training in a run file, from a real meter and its recorder."""

import os

import pytest
import torch
from torch import nn

from powerd_analytics.runs.run import read_run
from powerd_client import Meter


def names(run, **where):
    p = run.phases
    shown = [i for i in range(len(p)) if all(getattr(p, k)[i] == v for k, v in where.items())]
    return ["/".join(p.classes[p.label[i]].path) for i in shown]


def test_a_watched_training(tmp_path):
    out = tmp_path / "run.h5"
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Meter(out=out) as meter:
        watch = meter.watch(model, optimizer, layers=True, loader=[torch.randn(4, 3) for _ in range(3)])
        for x in watch.loader:
            model(x).sum().backward()
            optimizer.step()
        with pytest.raises(RuntimeError):
            model(torch.randn(4, 5))
        child = os.fork()
        if child == 0:
            del model  # a data loader's worker has a copy of everything
            os._exit(0)
        os.waitpid(child, 0)
        watch.remove()
        scaler = torch.amp.GradScaler("cpu")
        last = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(last.parameters(), lr=0.1)
        meter.watch(last, optimizer)
        scaler.scale(last(torch.randn(3, 2)).sum() * float("nan")).backward()
        scaler.step(optimizer)
    run = read_run(out)
    steps = [f"iteration/{name}" for name in ("data", "forward", "backward", "update")]
    assert names(run, depth=0) == ["iteration"] * 5
    assert names(run, depth=1) == [*steps * 3, steps[1], *steps[1:]]
    assert names(run, depth=2)[:6] == ["iteration/forward/layer"] * 3 + ["iteration/backward/layer"] * 3
    assert names(run, cut=True) == ["iteration", "iteration/forward", "iteration/forward/layer"]
    models = [run.phases.classes[i].attributes["model"] for i in run.phases.label[run.phases.depth == 0]]
    assert models == ["Sequential-50"] * 4 + ["Linear-3"]
    texts = [m["text"] for m in run.messages]
    assert len([t for t in texts if "skipped" in t]) == 1
    assert not any("fork" in t or "without being begun" in t for t in texts)
