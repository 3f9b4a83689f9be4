"""The engine's own threads, and gradient scaling, on a GPU."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from support.tape import TapedMeter

pytestmark = pytest.mark.real_gpu


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(checkpoint(lambda y: self.b(self.a(y)), x, use_reentrant=False))


@pytest.fixture
def meter():
    with TapedMeter() as meter:
        yield meter


def test_what_runs_on_the_engines_threads_lies_inside_backward(meter):
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    meter.watch(model, optimizer, layers=True)
    for _ in range(2):
        model(torch.randn(4, 3, device="cuda")).sum().backward()
        optimizer.step()
    assert len({mark.thread for mark in meter.tape.marks}) == 1
    tree = meter.tree().replace("layer:", "")
    assert tree.count("recompute[a b") == 2
    assert [word.split("[")[0] for word in meter.tree(drop=["layer:a", "layer:b", "layer:head"]).split()] == (
        ["forward", "backward", "update"] * 2
    )


def test_a_skipped_step_under_autocast(meter):
    model = Net().cuda()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    meter.watch(model, optimizer)
    for factor in (1.0, float("inf")):
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.randn(4, 3, device="cuda")).sum() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert meter.tree() == " ".join(["forward backward[recompute] update"] * 2)
    assert any("skipped" in note for note in meter.tape.notes)
