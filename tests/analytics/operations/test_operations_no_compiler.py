"""Counting does not import torch's compiler, and leaves torch as it was."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from powerd_analytics.operations import count_operations  # noqa: E402
from powerd_analytics.operations.causal import AS_GIVEN  # noqa: E402

FRESH = """
import sys, threading
from functools import partial
import torch
from torch import _compile, nn
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import checkpoint
from powerd_analytics.operations import count_operations
from powerd_analytics.operations.no_compiler import ASKED, without_compiler
from powerd_core.errors import AnalysisError

class Checkpointed(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.first, self.inner, self.options = nn.Linear(4, 4), nn.Linear(4, 4), options
    def forward(self, x):
        return checkpoint(self.inner, self.first(x), **self.options)

class Asked(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
    def forward(self, x):
        assert "getattr" in vars(_compile)
        return torch.block_diag(self.first(x), x)

class Wrong(nn.Module):
    def forward(self, x):
        raise ValueError("not today")

def is_as_before():
    return "getattr" not in vars(_compile) and not hasattr(checkpoint.__wrapped__, ASKED)

ways = [{"use_reentrant": True}, {"use_reentrant": False}]
if hasattr(checkpoints, "create_selective_checkpoint_contexts"):
    selective = partial(checkpoints.create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    ways.append({"use_reentrant": False, "context_fn": selective})
for options in ways:
    found = count_operations(partial(Checkpointed, **options), (4,), batch_size=2)
    # Twice in backward, and again in forward's way unless that stops before the last product.
    inner = next(e for e in found.executed if e.name == "inner")
    assert inner.backward.operations == (3 if options["use_reentrant"] else 2) * inner.forward.operations, options
    assert is_as_before()
count_operations(Asked, (4,), batch_size=2)
assert is_as_before()
try:
    count_operations(Wrong, (4,))
except AnalysisError:
    assert is_as_before()
else:
    raise SystemExit("no error")
assert "torch._dynamo" not in sys.modules, "imported"

found = {}
def other():
    found["asked"] = _compile.getattr(checkpoint.__wrapped__, ASKED, None)
with without_compiler(), without_compiler():
    assert _compile.getattr(other, ASKED, None) is other
    assert _compile.getattr(other, "__name__") == "other"
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
assert found == {"asked": None} and is_as_before()
x = torch.ones(2, 4, requires_grad=True)
checkpoint(nn.Linear(4, 4), x, use_reentrant=False).sum().backward()
assert "torch._dynamo" in sys.modules, "torch's own way is gone"
count_operations(partial(Checkpointed, use_reentrant=False), (4,), batch_size=2)
"""


def test_in_a_fresh_process():
    done = subprocess.run([sys.executable, "-c", FRESH], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_causal_mask_of_a_transformer_needs_no_values():
    class Model(nn.Module):
        def __init__(self, **options):
            super().__init__()
            self.body, self.options = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True), options

        def forward(self, x):
            return self.body(x, x, tgt_mask=nn.Transformer.generate_square_subsequent_mask(5), **self.options)

    asked = count_operations(Model, (5, 8), batch_size=2)
    told = count_operations(lambda: Model(tgt_is_causal=False), (5, 8), batch_size=2)
    assert AS_GIVEN in asked.notes
    assert AS_GIVEN not in told.notes
    assert (asked.forward.operations, asked.backward) == (told.forward.operations, told.backward)
    # To ask is to make the causal mask and to compare: that runs, the answer alone is not there.
    assert asked.forward.elementwise > told.forward.elementwise
    causal = count_operations(lambda: Model(tgt_is_causal=True), (5, 8), batch_size=2)
    assert (causal.forward.operations, causal.backward.operations) == (
        asked.forward.operations,
        asked.backward.operations,
    )


DEEP = """
import sys, threading
from torch import nn
from powerd_analytics.operations import count_operations

class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(2, 2)
    def forward(self, x):
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0]

threading.stack_size(2**20)
done = []
thread = threading.Thread(target=lambda: done.append(count_operations(Loop, (2500, 2), batch_size=2)))
thread.start()
thread.join()
assert done[0].backward.operations > done[0].forward.operations
"""


def test_a_deep_graph_needs_no_deep_stack():
    """On a stack of 1 MiB 2500 steps are what 20,000 are on the usual 8 MiB."""
    done = subprocess.run([sys.executable, "-c", DEEP], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
