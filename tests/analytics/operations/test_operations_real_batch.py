"""Models that ask for values are counted on one real batch on the CPU, and the count says so."""

import pytest

from powerd_analytics.operations import count_operations
from powerd_core.errors import AnalysisError

torch = pytest.importorskip("torch")
nn = torch.nn

LINEAR = 2 * 2 * 8 * 8  # of Linear(8, 8) for a batch of 2


class Asks(nn.Module):
    """A layer that runs once more where the mean of its input is positive."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        return self.layer(y) if x.mean().item() > 0 else y


@pytest.mark.parametrize("model", [Asks, Asks()])
def test_a_model_that_asks_is_counted_with_values(model):
    count = count_operations(model, (8,), batch_size=2)
    # Random inputs lie between 0 and 1.
    assert (count.forward.operations, count.backward.operations) == (2 * LINEAR, 3 * LINEAR)
    assert any("one real batch" in note for note in count.notes)


def test_given_values_decide():
    for value, times in ((1.0, 2), (-1.0, 1)):
        count = count_operations(Asks, inputs=[torch.full((2, 8), value)])
        assert count.forward.operations == times * LINEAR


def test_a_model_without_values_that_asks_for_some_is_refused():
    with torch.device("meta"):
        model = Asks()
    with pytest.raises(AnalysisError, match="give the function that makes it"):
        count_operations(model, (8,))


def test_a_model_that_is_too_large_to_run_is_refused(monkeypatch):
    monkeypatch.setattr("powerd_analytics.operations.count.LARGEST_REAL_BYTES", 100)
    with pytest.raises(AnalysisError, match="too large"):
        count_operations(Asks, (8,))
