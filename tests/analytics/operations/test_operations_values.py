"""Models that ask for values: exact where values are known, else assumed and said so, and never less than a listing."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
nn = torch.nn
F = nn.functional

from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from powerd_analytics.cli import main  # noqa: E402
from powerd_analytics.operations import count_operations, listing, questions  # noqa: E402
from powerd_analytics.operations.document import from_document, to_document  # noqa: E402
from powerd_analytics.operations.on_meta import MetaDevice  # noqa: E402
from powerd_analytics.operations.paper import PaperHook  # noqa: E402
from powerd_analytics.operations.stand_in import StandIn  # noqa: E402
from powerd_analytics.operations.valued import ValuedMode  # noqa: E402
from powerd_core.errors import AnalysisError  # noqa: E402

LINEAR = 2 * 2 * 8 * 8  # of Linear(8, 8) for a batch of 2


class Call(nn.Module):
    """A function behind one layer and before another."""

    def __init__(self, function, *, last=8):
        super().__init__()
        self.first, self.function, self.last = nn.Linear(8, 8), function, nn.Linear(last, 8)

    def forward(self, x, *others):
        return self.last(self.function(self.first(x), *others))


def count(function, **options):
    return count_operations(Call(function, **options), (8,), batch_size=2)


def products(found):
    return found.forward.operations, found.backward.operations


def by_torch(model, *inputs):
    with FlopCounterMode(display=False) as theirs:
        out = model(*inputs)
        forward = theirs.get_total_flops()
        out.abs().sum().backward()
    return forward, theirs.get_total_flops() - forward


def drawn(x):
    return torch.distributions.MultivariateNormal(x, torch.eye(8)).rsample()


def spectrum(x):
    window = torch.hann_window(4)
    made = torch.stft(x, 4, window=window, return_complex=True)
    return torch.istft(made, 4, window=window, length=8)


def scored(x):
    place = torch.distributions.Normal(x, x.exp(), validate_args=True)  # torch's compiler turns it off for all
    return place.log_prob(place.rsample())


def chosen(x):
    return x[torch.tensor([True, True])] + x[torch.arange(2) >= 0]


def looked_up(x):
    places = torch.nonzero(torch.ones(2, 8).triu(1) + torch.ones(2, 8).tril())
    return x + x[places[:, 0], places[:, 1]].view(2, 8)


def repeated(x):
    return torch.repeat_interleave(x, torch.tensor([1, 1]), 0)


EXACT = {
    "cov": lambda x: torch.cov(x.t()) + x.sum(),
    "corrcoef": lambda x: torch.corrcoef(x.t()) * x.sum(),
    "istft": spectrum,
    "gaussian_nll_loss": lambda x: F.gaussian_nll_loss(x, torch.ones_like(x), x.exp(), reduction="none"),
    "Normal": scored,
    "Bernoulli": lambda x: x * torch.distributions.Bernoulli(logits=x).log_prob(torch.ones_like(x)),
    "MultivariateNormal": drawn,
    "mask of numbers": chosen,
    "nonzero of numbers": looked_up,
    "repeats of numbers": repeated,
    "unique of numbers": lambda x: x * torch.unique(torch.tensor([3, 3, 4])).shape[0],
    "bincount of numbers": lambda x: x * torch.bincount(torch.tensor([7, 0]), minlength=3),
    "item of a number": lambda x: x * torch.tensor([2, 3]).max().item(),
    "equal": lambda x: x * torch.equal(torch.zeros(3), torch.tensor([0.0, 0.0, 0.0])),
    "combinations": lambda x: torch.combinations(x[0])[:8, :1].t() * x.sum(1, keepdim=True),
    "no check fails": lambda x: torch.linalg.inv(x.t() @ x + torch.eye(8)) @ x.t() @ x,
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("is_factory", [True, False])
def test_what_does_not_depend_on_unknown_values_is_exact(name, is_factory):
    def make():
        return Call(EXACT[name])

    found = count_operations(make if is_factory else make(), (8,), batch_size=2)
    assert found.assumed == ()
    assert found.stopped == ""
    assert not any(row.assumed for row in found.rows())
    assert products(found) == by_torch(make(), torch.rand(2, 8))


def test_answers_that_follow_from_the_models_own_errors_are_said():
    notes = count(scored).notes
    said = next(note for note in notes if "truth value" in note and "false ends in ValueError" in note)
    assert said.startswith("test_operations_values.py:")
    assert ": true, since false" in said
    assert any(
        ": false, since true ends in ValueError: var has neg" in n for n in count(EXACT["gaussian_nll_loss"]).notes
    )


@pytest.mark.parametrize("is_cpu", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_sequences_packed_in_any_order(kind, is_cpu):
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = kind(8, 4, batch_first=True)

        def forward(self, x, lengths=None):
            given = torch.tensor([3, 5, 2], device="cpu" if is_cpu else x.device) if lengths is None else lengths
            packed = pack_padded_sequence(x, given.cpu(), batch_first=True, enforce_sorted=False)
            y, lengths = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
            return y[:, : int(lengths.max())]

    gates = 4 if kind is nn.LSTM else 3
    for lengths in ((), (torch.tensor([5, 2, 3]),)):
        found = count_operations(Packed(), inputs=[torch.zeros(3, 5, 8), *lengths])
        assert found.assumed == ()
        assert found.forward.operations == 2 * (3 + 5 + 2) * gates * 4 * (8 + 4)
    # Of lengths that nobody knows there is only a shape.
    unknown = count_operations(
        Packed(), inputs=[torch.zeros(3, 5, 8), torch.empty(3, dtype=torch.int64, device="meta")]
    )
    assert unknown.forward.operations == 2 * 3 * gates * 4 * (8 + 4)
    [said] = unknown.assumed
    assert said.startswith("Packed (Packed): values of shape 3 asked for (test_operations_values.py:")
    assert said.endswith("taken as ones")


def test_an_orthogonal_layer():
    def make():
        return nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)))

    found, expected = count_operations(make(), (8,), batch_size=2), by_torch(make(), torch.rand(2, 8))
    made = count_operations(make, (8,), batch_size=2)
    assert (found.executed, found.layers) == (made.executed, made.layers)
    assert found.assumed == made.assumed == ()
    assert found.forward.operations == expected[0]
    assert found.total == 64


UNKNOWN = {
    "item": (lambda x: x * x.max().item(), "a value asked for", "taken as 1"),
    "truth": (lambda x: x * 2 if x.sum() > 0 else x, "a value asked for", "taken as true"),
    "mask": (lambda x: x[x[:, 0] > 0], "a mask of shape 2 ", "true everywhere: the most that there can be"),
    "nonzero": (lambda x: x[(x[:, 0] > 0).nonzero()[:, 0]], "nonzero", "2 places: the most that there can be"),
    "where": (lambda x: x[torch.where(x[:, 0] > 0)[0]], "nonzero", "2 places: the most that there can be"),
    "masked_select": (lambda x: x.masked_select(x > 0).view(-1, 8), "masked_select", "16 places: the most"),
    "put": (lambda x: x.clone().masked_scatter_(x > 0, x[x > 0]), "a mask of shape 2x8", "true everywhere"),
    "unique": (lambda x: x + torch.unique(x.detach()).view(2, 8), "_unique2", "16 places: the most that there can be"),
    "unique rows": (
        lambda x: x + torch.unique(x.detach(), dim=0),
        "unique_dim",
        "2 places: the most that there can be",
    ),
    "consecutive": (
        lambda x: x + torch.unique_consecutive(x.detach(), dim=0),
        "unique_consecutive",
        "2 places: the most",
    ),
    "numpy": (lambda x: x * float(x.detach().numpy()[0, 0]), "values of shape 2x8 asked for", "taken as ones"),
    "tolist": (lambda x: x * x.tolist()[0][0], "values of shape 2x8 asked for", "taken as ones"),
    "cpu": (lambda x: x * x.detach().cpu().sum().item(), "values of shape 2x8 asked for", "taken as ones"),
    "repeats": (lambda x: x.repeat_interleave(x[:, 0].long(), 0), "repeat_interleave", "taken as it is of ones"),
    "bincount": (lambda x: x * torch.bincount(x[:, 0].long(), minlength=8), "bincount", "taken as it is of ones"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_assumed_is_said_and_marked(name):
    function, what, as_what = UNKNOWN[name]
    found = count(function)
    said = found.assumed[0]
    assert said.startswith(f"Call (Call): {what}")
    assert "(test_operations_values.py:" in said
    assert as_what in said
    rows = {row.name: row.assumed for row in found.rows()}
    assert rows["first"] == ("backward",)  # forward was over
    assert rows["last"] == ("paper", "forward", "backward")
    assert products(found) == (2 * LINEAR, 3 * LINEAR)
    assert found.stopped == ""


def test_every_form_marks_what_is_assumed():
    found = count(UNKNOWN["mask"][0])
    rows = {row["layer"]: row for row in csv.DictReader(io.StringIO(listing.to_csv(found)))}
    assert [rows[n]["assumed"] for n in ("first", "last")] == ["backward", "paper forward backward"]
    assert set(rows["total"]["assumed"].split()) == {"paper", "forward", "backward"}
    assert "assumed: Call (Call): a mask of shape 2" in rows["total"]["note"]
    lines = {line.split(" | ")[0].strip("| "): line for line in listing.to_markdown(found).splitlines()}
    assert lines["first"].count("≈") == 2  # backward, and element-wise work of both passes
    assert lines["last"].count("≈") == 7
    assert "≈: rests on values" in listing.to_markdown(found)
    assert from_document(to_document(found)) == found
    old = to_document(count(lambda x: x))
    del old["assumed"], old["stopped"]
    assert from_document(old).assumed == ()


def test_experts_by_a_mask_have_at_most_all_tokens():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            y, best = torch.zeros_like(x), self.gate(x).argmax(-1)
            for i, expert in enumerate(self.experts):
                mine = best == i
                if mine.any():
                    y[mine] = expert(x[mine])
            return y

    found = count_operations(Experts, (8,), batch_size=5)
    assert found.forward.operations == 2 * 5 * 8 * 4 + 4 * 2 * 5 * 8 * 8
    assert [e.assumed for e in found.executed if e.name == "gate"] == [()]  # argmax has no gradient


def test_a_branch_that_raises_is_not_taken():
    def wrong(x):
        if (x < 0).any():
            raise ValueError("negative")
        return x * 2 if x.sum() > 0 else x

    found = count(wrong)
    [said] = found.assumed
    assert "taken as true" in said
    assert any("false, since true ends in ValueError: negative" in note for note in found.notes)


def test_an_answer_that_changes_nothing_is_none():
    assert count(lambda x: x * 2 if x.sum() > 0 else x * 3).assumed == ()


def test_loops_that_end_by_values_end(monkeypatch):
    monkeypatch.setattr(questions, "IN_ONE_CALL", 10)

    def until(x):
        while x.sum() > 0:
            x = x - 1
        return x

    entered, left = count(until).assumed
    assert entered.endswith("taken as true, 11 times")  # where the loop begins, and where it goes on
    assert left.endswith("taken as false, from the 10th time in one call on, so that a loop ends")

    monkeypatch.setattr(questions, "AT_ONE_PLACE", 50)

    def is_done(x):
        return bool(x.sum() > 0) is None

    def forever(x):
        while not is_done(x):
            x = x - 1
        return x

    found = count(forever)
    assert "asks for values more than 50 times" in found.stopped
    assert products(found) == (LINEAR, 0)


def test_what_cannot_go_on_is_counted_until_there(tmp_path, capsys):
    file, out = tmp_path / "some.py", tmp_path / "out.csv"
    file.write_text(
        "import torch\n"
        "class Table(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.sparse.mm(torch.eye(8).to_sparse(), x.t()).t()\n"
        "def make():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(8, 8), Table(), torch.nn.Linear(8, 8))\n"
    )
    with pytest.raises(SystemExit) as done:
        main(["operations", f"{file}:make", "--input", "8", "--batch", "2", "--format", "csv", "-o", str(out)])
    assert done.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith(f"joules: {file}:make: not counted from here on: forward in 1 (Table): ")
    assert error.count("\n") == 1
    rows = {row["layer"]: row for row in csv.DictReader(io.StringIO(out.read_text()))}
    assert rows["0"]["operations_executed_forward"] == str(LINEAR)
    assert rows["2"]["operations_executed_forward"] == ""
    assert "did not run" in rows["2"]["note"]
    assert rows["total"]["note"].startswith("not counted from here on: forward in 1 (Table): ")
    with pytest.raises(SystemExit):
        main(["operations", f"{file}:make", "--input", "8", "--batch", "2", "--format", "markdown"])
    assert "≥0.0" in capsys.readouterr().out


def test_a_mistake_of_the_model_is_still_one():
    with pytest.raises(AnalysisError, match=r"does not run .* same reduction dim"):
        count_operations(nn.Linear(3, 2), (4,))
    with pytest.raises(AnalysisError, match="the model cannot be made: ValueError: not today"):
        count_operations(lambda: (_ for _ in ()).throw(ValueError("not today")), (4,))


def test_a_model_that_catches_the_error_is_asked_again():
    def guarded(x):
        try:
            n = int(torch.tensor([1, 2]).sum())
        except RuntimeError:
            n = 100
        return torch.cat([x] * n)

    assert count(guarded).forward.operations == LINEAR + 3 * LINEAR


def test_a_value_in_a_message_is_no_assumption():
    def told(x):
        assert f"{x.mean():.3f} {x.argmax():d} {torch.tensor(2):d}".startswith("nan")
        return x

    found = count(told)
    assert found.assumed == ()
    assert found.notes == ()


def test_counting_draws_no_random_numbers():
    model = Call(lambda x: x * torch.bincount(x[:, 0].long(), minlength=8) * torch.rand(8))
    before = torch.get_rng_state()
    assert count_operations(model, (8,), batch_size=2).assumed != ()
    assert torch.equal(before, torch.get_rng_state())


def test_buffers_have_the_values_that_they_have():
    class Warm(nn.Module):
        def __init__(self, steps):
            super().__init__()
            self.register_buffer("steps", torch.tensor(steps))
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            self.steps += 1
            return self.layer(x) if self.steps > 3 else self.layer(self.layer(x))

    for steps, times in ((0, 2), (3, 1)):
        model = Warm(steps)
        found = count_operations(model, (8,), batch_size=2)
        assert found.assumed == ()
        assert found.forward.operations == times * LINEAR
        assert model.steps == steps


STEPS = st.lists(
    st.tuples(
        st.sampled_from([
            "add", "in place", "row", "turn", "fill", "mask", "put", "cat", "cum", "type", "sort", "expand", "unknown",
            "zero", "flat", "scatter",
        ]),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


def program(steps, unknown):
    """Small integer tensors made from others, views and what is written into them among them."""
    made = [torch.arange(12).view(3, 4), torch.tensor([[3, 1], [0, 2]]), torch.full((2, 3), 2), unknown]
    for what, i, j in steps:
        x, y = made[i % len(made)], made[j % len(made)]
        if what == "add":
            made.append(x + 2 * y.sum())
        elif what == "in place":
            x.add_(y.max())
        elif what == "row":
            made.append(x[0:1])
        elif what == "turn":
            made.append(x.t())
        elif what == "fill":
            x[:, 0].fill_(j)
        elif what == "zero":
            x.zero_()
        elif what == "mask":
            made.append(torch.where(x > 1, x, -x))
        elif what == "put":
            x[0, 0] = y.min()
        elif what == "cat":
            made.append(torch.cat([x.flatten()[:2], y.flatten()[:2]]).view(2, 2))
        elif what == "cum":
            made.append(x.cumsum(0))
        elif what == "type":
            made.append((x.float() / 2).long())
        elif what == "sort":
            made.append(x.sort(dim=-1, descending=True)[0])
        elif what == "expand":
            made.append(x[:1].expand(2, -1).clone())
        elif what == "flat":
            made.append(x.reshape(1, -1))
        elif what == "scatter":
            made.append(torch.zeros_like(x).scatter(0, (x * 0), y.sum() + x * 0))
        elif what == "unknown":
            made.append(x + unknown.sum())
    return made


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_values_that_are_known_are_those_that_a_cpu_has(steps):
    expected = program(steps, torch.full((2, 2), 5))
    stand_in = StandIn()
    mode = ValuedMode(stand_in, PaperHook())
    # The one tensor of unknown values, and what is made with it, must stay unknown, unless all of it is overwritten.
    unknown = torch.empty(2, 2, dtype=torch.int64, device="meta")
    with MetaDevice({}, stand_in), mode:
        found = program(steps, unknown)
    free = program(steps, torch.full((2, 2), -7))
    for tensor, value, other in zip(found, expected, free, strict=True):
        assert tensor.is_meta
        assert (tensor.shape, tensor.stride(), tensor.dtype) == (value.shape, value.stride(), value.dtype)
        real = stand_in.values.of(tensor)
        assert real is None or torch.equal(real, value)
        assert real is None or torch.equal(value, other)
    assert stand_in.assumed == {}


def test_numbers_stay_known_through_views_and_what_is_written_into_them():
    stand_in = StandIn()
    mode = ValuedMode(stand_in, PaperHook())
    steps = [("add", 0, 1), ("in place", 0, 2), ("row", 0, 0), ("put", 2, 1), ("turn", 1, 0), ("scatter", 1, 2)]
    with MetaDevice({}, stand_in), mode:
        found = program(steps, torch.tensor(5))
        assert found[0].sum().item() == program(steps, torch.tensor(5))[0].sum().item()
    assert all(stand_in.values.of(t) is not None for t in found)
    stand_in.values.forget(found[0])
    assert stand_in.values.of(found[0]) is None
    assert stand_in.values.of(found[5]) is None  # a view of it
    assert stand_in.values.of(found[1]) is not None


def test_a_loop_that_must_converge_is_not_settled_by_its_error():
    def solved(x):
        for _ in range(20):
            if x.sum() < 1:
                return x
            x = x / 2
        raise RuntimeError("no solution")

    def settled(x):
        steps = 0
        while x.sum() > 1:
            x, steps = x / 2, steps + 1
            if steps > 20:
                raise RuntimeError("no solution")
        return x

    for function in (solved, settled):
        found = count(function)
        assert found.assumed != ()
        assert not any("truth value" in note for note in found.notes)
