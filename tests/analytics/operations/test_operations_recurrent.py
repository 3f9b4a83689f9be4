"""Recurrent layers counted from a few steps: the same to the last digit as all steps one by one."""

from fractions import Fraction
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
nn = torch.nn

from torch.utils import checkpoint as checkpoints  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from powerd_analytics.operations import count_operations, recurrent, recurrent_calls, repeated, watched  # noqa: E402
from powerd_analytics.operations.did import Did  # noqa: E402
from powerd_analytics.operations.executed import ExecutedMode  # noqa: E402
from powerd_analytics.operations.record import Record, combination, extended  # noqa: E402
from powerd_analytics.operations.recurrent_calls import Extent, longer  # noqa: E402
from powerd_analytics.operations.shapes_joining import packed  # noqa: E402
from powerd_core.errors import AnalysisError  # noqa: E402

WIDTH, HIDDEN, BATCH = 5, 6, 3


class Model(nn.Module):
    """A recurrent layer, behind others or not, of whose results some are used."""

    def __init__(self, kind, options, *, use="all", first=False, states=False, frozen=False, call=None):
        super().__init__()
        dtype = options.get("dtype", torch.float32)
        self.rnn, self.use, self.call = kind(WIDTH, HIDDEN, **options), use, call or (lambda rnn, *args: rnn(*args))
        self.first = nn.Linear(WIDTH, WIDTH, dtype=dtype) if first else nn.Identity()
        if states:
            n = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
            widths = [options.get("proj_size", 0) or HIDDEN, HIDDEN]
            made = [nn.Parameter(torch.zeros(n, states, width, dtype=dtype)) for width in widths]
            self.states = nn.ParameterList(made if kind is nn.LSTM else made[1:])
        for p in list(self.rnn.parameters())[:: 2 if frozen else 10**9][: None if frozen else 0]:
            p.requires_grad_(False)

    def forward(self, x):
        states = tuple(self.states) if hasattr(self, "states") else None
        if states is not None and not isinstance(self.rnn, nn.LSTM):
            states = states[0]
        y, last = self.call(self.rnn, self.first(x), states)
        last = last if isinstance(last, tuple) else (last,)
        return {"all": (y, *last), "output": y, "state": last[-1], "end": y[-1], "mean": (y.mean(), last[0])}[self.use]


def counted(monkeypatch, model, x, shortest, **options):
    """The count, and by module the kernels and those of unknown effort."""
    seen = {}

    def counts(mode, *args):
        seen.update(kernels={k: sorted(v) for k, v in mode.kernels.items()}, unknown=mode.unknown)
        return original(mode, *args)

    original = ExecutedMode.counts
    with monkeypatch.context() as patch:
        patch.setattr(ExecutedMode, "counts", counts)
        patch.setattr(recurrent_calls, "SHORTEST", shortest)
        return count_operations(model, inputs=[x], **options), seen


def both(model, x, *, is_short=True, may_refuse=False, **options):
    """The count from a few steps, if they were used, which is that from all."""
    used = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("forward", "backward"):
            original = getattr(recurrent.Recurrent, name)
            patch.setattr(
                recurrent.Recurrent,
                name,
                lambda *args, original=original: used.append(original(*args)) or used[-1],
            )
        few = counted(patch, model, x, 8, **options)
        assert bool(used) is (is_short and watched.CAN_ASK)
        assert may_refuse or None not in used
        every = counted(patch, model, x, 10**9, **options)
    assert few == every
    return few[0]


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "num_layers": st.sampled_from([2, 3]),
        "bidirectional": st.just(True),
        "bias": st.just(False),
        "dtype": st.sampled_from([torch.bfloat16, torch.float64]),
    },
)
USES = st.sampled_from(["all", "output", "state", "end", "mean"])


@st.composite
def kinds(draw):
    kind, options = draw(st.sampled_from([nn.LSTM, nn.GRU, nn.RNN])), draw(OPTIONS)
    if kind is nn.LSTM and draw(st.booleans()):
        options["proj_size"] = draw(st.sampled_from([1, 3]))
    if kind is nn.RNN:
        options["nonlinearity"] = draw(st.sampled_from(["tanh", "relu"]))
    if options.get("num_layers") and draw(st.booleans()):
        options["dropout"] = 0.3
    return kind, options


@settings(max_examples=12, deadline=None)
@given(kinds(), USES, st.integers(8, 25), st.tuples(*[st.booleans()] * 7))
def test_all_steps_follow_from_a_few(kind, use, steps, flags):
    (module, options), (batch_first, first, states, frozen, training, needs, turned) = kind, flags
    shape = (BATCH, steps, WIDTH) if batch_first else (steps, BATCH, WIDTH)
    x = torch.empty(shape, dtype=options.get("dtype"), device="meta")
    x = torch.empty(shape[::-1], dtype=x.dtype, device="meta").permute(2, 1, 0) if turned else x
    made = Model(
        module,
        options | {"batch_first": batch_first},
        use=use,
        first=first,
        states=BATCH if states else 0,
        frozen=frozen,
    )
    both(made.train(training), x.requires_grad_(needs))


LENGTHS = st.lists(st.integers(1, 28), min_size=1, max_size=7)
PACKED = st.sampled_from([{}, {"bidirectional": True}, {"bias": False}, {"num_layers": 2}])


@settings(max_examples=6, deadline=None)
@given(
    st.tuples(st.sampled_from([nn.LSTM, nn.GRU, nn.RNN]), PACKED),
    USES,
    st.lists(st.integers(1, 28), min_size=1, max_size=7),
    *[st.booleans()] * 2,
)
def test_packed_sequences_too(kind, use, lengths, first, states):
    lengths = sorted([*lengths, 30], reverse=True)

    def call(rnn, x, given):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        y, last = rnn(packed, given)
        return nn.utils.rnn.pad_packed_sequence(y)[0], last

    module, options = kind
    x = torch.empty(30, len(lengths), WIDTH, dtype=options.get("dtype"), device="meta")
    made = Model(module, options, use=use, first=first, states=len(lengths) if states else 0, call=call)
    both(made, x, may_refuse=True)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.booleans())
def test_steps_of_packed_sequences_are_torchs(lengths, batch_first):
    lengths = torch.tensor(sorted(lengths, reverse=True))
    shape = (len(lengths), 9, 2) if batch_first else (9, len(lengths), 2)
    theirs = torch._VF._pack_padded_sequence(torch.ones(shape), lengths, batch_first)
    ours = packed((torch.empty(shape, device="meta"), lengths, batch_first))
    assert ours[0].shape == theirs[0].shape
    assert torch.equal(ours[1], theirs[1])


@pytest.mark.skipif(not watched.CAN_ASK, reason="this release of torch runs all steps")
def test_a_long_one_by_hand():
    steps = 100_000
    count = count_operations(nn.LSTM(8, 16, 2, bidirectional=True), inputs=[torch.empty(steps, 2, 8, device="meta")])
    by_hand = 2 * steps * 2 * 2 * 4 * 16 * ((8 + 16) + (32 + 16))
    assert count.forward.operations == by_hand


def test_a_layer_twice_with_states_handed_on():
    def twice(rnn, x, states):
        y, states = rnn(x, states)
        return rnn(y[..., :WIDTH], states)

    both(Model(nn.GRU, {}, first=True, call=twice), torch.empty(30, BATCH, WIDTH, device="meta"))


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_checkpoints(is_reentrant):
    def call(rnn, x, states):
        return checkpoint(rnn, x, states, use_reentrant=is_reentrant)

    both(Model(nn.LSTM, {}, first=True, call=call), torch.empty(12, BATCH, WIDTH, device="meta"))


def again(rnn, x, states, *, after, nested, options):
    """In a checkpoint, maybe in another one, with something before the layer and after it."""

    def run(x, states):
        def inside(x, states):
            y, last = rnn(x * 2, states)
            if after == "kept":
                return y.sigmoid().square(), last
            return (y.reshape(-1, y.shape[-1]) + 1, last) if after == "not kept" else (y, last)

        return checkpoint(inside, x, states, use_reentrant=False, **options) if nested else inside(x, states)

    return checkpoint(run, x, states, use_reentrant=False, **options)


@settings(max_examples=12, deadline=None)
@given(
    kinds(), USES, st.integers(8, 20), st.sampled_from(["kept", "not kept", "nothing"]), st.tuples(*[st.booleans()] * 5)
)
def test_checkpoints_compute_again_until_the_last_tensor_that_is_kept(kind, use, steps, after, flags):
    (module, options), (first, states, frozen, nested, batch_first) = kind, flags
    call = partial(again, after=after, nested=nested, options={})
    x = torch.empty((BATCH, steps, WIDTH) if batch_first else (steps, BATCH, WIDTH), dtype=options.get("dtype"))
    made = Model(
        module,
        options | {"batch_first": batch_first},
        use=use, first=first, states=BATCH if states else 0, frozen=frozen, call=call,
    )  # fmt: skip
    both(made, x)


def test_a_checkpoint_that_computes_all_again():
    from torch.utils.checkpoint import set_checkpoint_early_stop

    call = partial(again, after="not kept", nested=False, options={})
    x = torch.empty(12, BATCH, WIDTH, device="meta")
    early = both(Model(nn.GRU, {}, first=True, call=call), x)
    with set_checkpoint_early_stop(False):
        late = both(Model(nn.GRU, {}, first=True, call=call), x)
    assert late.backward.elementwise > early.backward.elementwise
    assert late.backward.operations == early.backward.operations


def test_packed_sequences_in_a_checkpoint():
    lengths = [30, 30, 22, 9]

    def call(rnn, x, given):
        def run(x, given):
            y, last = rnn(nn.utils.rnn.pack_padded_sequence(x, lengths), given)
            return nn.utils.rnn.pad_packed_sequence(y)[0], last

        return checkpoint(run, x, given, use_reentrant=False)

    x = torch.empty(30, len(lengths), WIDTH, device="meta")
    both(Model(nn.LSTM, {"bidirectional": True}, first=True, call=call), x)


def test_the_same_weight_twice_in_a_checkpoint():
    def call(rnn, x, states):
        rnn.weight_hh_l1, rnn.bias_hh_l0 = rnn.weight_hh_l0, rnn.bias_ih_l0
        return checkpoint(rnn, x, states, use_reentrant=False)

    both(Model(nn.RNN, {"num_layers": 2}, first=True, call=call), torch.empty(12, BATCH, WIDTH, device="meta"))


class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("what", ["hooks", "mode", "selective"])
def test_who_follows_single_kernels_or_tensors_sees_all_of_them(what):
    if what == "selective" and not hasattr(checkpoints, "create_selective_checkpoint_contexts"):
        pytest.skip("this release of torch has none")

    def call(rnn, x, states):
        if what == "selective":
            context = partial(checkpoints.create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
            return checkpoint(rnn, x, states, use_reentrant=False, context_fn=context)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t) if what == "hooks" else Seen():
            return rnn(x, states)

    both(Model(nn.GRU, {}, first=True, call=call), torch.empty(12, BATCH, WIDTH, device="meta"), is_short=False)


@pytest.mark.parametrize("catches", [False, True])
def test_a_derivative_of_a_derivative_runs_every_step(monkeypatch, catches):
    class Penalty(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(WIDTH, HIDDEN)

        def forward(self, x):
            x = x.detach().requires_grad_()
            y = self.rnn(x)[0]
            try:
                [slope] = torch.autograd.grad(y, [x], torch.ones_like(y), create_graph=True)
            except Exception:
                if not catches:
                    raise
                slope = x
            return y.sum() + slope.square().sum()

    x = torch.empty(12, BATCH, WIDTH, device="meta")
    few, every = (counted(monkeypatch, Penalty(), x, shortest) for shortest in (8, 10**9))
    assert few == every


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {"batch_first": True, "num_layers": 2}),
        (nn.LSTM, {"proj_size": 3}),
        (nn.GRU, {"batch_first": True}),
        (nn.RNN, {"bidirectional": True}),
    ],
)
def test_what_follows_sees_whole_results_and_gradients(monkeypatch, kind, options):
    seen = {8: [], 10**9: []}
    for shortest, found in seen.items():
        made = Model(kind, options, first=True).to("meta")

        def keep(_rnn, _args, results, found=found):
            y, states = results
            states = states if isinstance(states, tuple) else (states,)
            found.extend((t.shape, t.stride(), t.dtype, t.is_contiguous(), t._is_view()) for t in (y, *states))

        made.rnn.register_forward_hook(keep)
        for name, p in made.named_parameters():
            p.register_post_accumulate_grad_hook(
                lambda p, name=name, found=found: found.append((name, p.grad.shape, p.grad.stride()))
            )
        counted(monkeypatch, lambda made=made: made, torch.empty(12, 12, WIDTH, device="meta"), shortest)
    few, every = (sorted(map(str, found)) for found in seen.values())
    assert few == every
    assert len(few) == len(list(made.parameters())) + (3 if kind is nn.LSTM else 2)


@pytest.mark.parametrize("batch_first", [False, True])
def test_results_that_are_written_into(batch_first):
    def call(rnn, x, states):
        y, last = rnn(x, states)
        y[1] = 0.0
        return y.mul_(2.0), last[-1].add_(1.0)

    both(Model(nn.LSTM, {"batch_first": batch_first}, call=call), torch.empty(12, 12, WIDTH, device="meta"))


def test_a_function_of_torch_is_a_layer_as_well():
    class Direct(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(WIDTH, HIDDEN)

        def forward(self, x):
            h = x.new_zeros(1, BATCH, HIDDEN)
            return torch.lstm(x, (h, h), self.rnn._flat_weights, True, 1, 0.0, True, False, False)

    both(Direct(), torch.empty(12, BATCH, WIDTH, device="meta"))


def test_a_wrong_call_is_worded_for_the_whole_call(monkeypatch):
    def wrong(rnn, x, _states):
        return torch.lstm(x[..., 1:], (x[:1], x[:1]), rnn._flat_weights, True, 1, 0.0, True, False, False)[:2]

    said = []
    for shortest in (8, 10**9):
        with pytest.raises(AnalysisError) as error, monkeypatch.context() as patch:
            counted(patch, Model(nn.LSTM, {}, call=wrong), torch.empty(12, BATCH, WIDTH, device="meta"), shortest)
        said.append(str(error.value))
    assert said[0] == said[1]


def recorded(extents, sums):
    """Records of one kernel whose bytes are a function of the extent."""
    found = []
    for extent in extents:
        found.append(Record())
        found[-1].add(Did("mm", extent.steps, 0, sums(extent), is_shown=True))
    return found


def test_what_is_no_line_is_not_extended():
    extents = Extent(100).samples()
    features = [e.features for e in extents]
    whole = extended(recorded(extents, lambda e: 3 * e.steps + 5), features, Extent(100).features)
    assert whole is not None
    assert whole.sums == {("mm", True, ""): [1, 100, 0, 305]}
    for crooked in (lambda e: e.steps**2, lambda e: max(4, e.steps)):
        assert extended(recorded(extents, crooked), features, Extent(100).features) is None
    # Two points give a line; without a third nothing says that it is one.
    two = recorded(extents[:2], lambda e: e.steps)
    assert extended(two, features[:2], Extent(100).features) is None
    other = recorded(extents, lambda e: e.steps)
    other[1].add(Did("add", 0, 1, 1, is_shown=True))
    assert extended(other, features, Extent(100).features) is None


sizes = st.lists(st.integers(1, 70), min_size=9, max_size=60).map(lambda x: tuple(sorted(x, reverse=True)))


@settings(max_examples=15, deadline=None)
@given(sizes)
def test_samples_of_packed_sequences_span_all_lengths(batch_sizes):
    extent = Extent(len(batch_sizes), batch_sizes)
    samples = extent.samples()
    ends = sum(b < a for a, b in pairwise(batch_sizes))
    whole = extended(
        recorded(samples, lambda e: 2 * e.steps * sum(e.batch_sizes) + e.batch_sizes[0]),
        [s.features for s in samples],
        extent.features,
    )
    assert whole is not None
    assert whole.sums["mm", True, ""][3] == 2 * extent.steps * sum(batch_sizes) + batch_sizes[0]
    assert all(s.batch_sizes[0] <= batch_sizes[0] for s in samples)
    crooked = recorded(samples, lambda e: e.steps**2 * sum(e.batch_sizes))
    assert ends <= 4 or extended(crooked, [s.features for s in samples], extent.features) is None


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=2), st.lists(st.integers(-9, 9), min_size=2, max_size=2))
def test_weights_add_up(a, wanted):
    weights = combination([[1, 0], [0, 1]], wanted)
    assert weights == [Fraction(w) for w in wanted]
    if any(a):
        found = combination([a], wanted)
        is_multiple = a[0] * wanted[1] == a[1] * wanted[0]
        assert (found is not None) is is_multiple
        assert found is None or [found[0] * x for x in a] == wanted


def test_results_that_do_not_follow_are_refused():
    few = [Extent(n) for n in (3, 4, 6)]
    f32 = torch.float32
    plain = [((n, 2, 5), (10, 5, 1), f32) for n in (3, 4, 6)]
    assert longer(plain, few, Extent(9)) == ((9, 2, 5), (10, 5, 1), f32)
    turned = [((2, n, 5), (5, 10, 1), f32) for n in (3, 4, 6)]
    assert longer(turned, few, Extent(9)) == ((2, 9, 5), (5, 10, 1), f32)
    assert longer([None, None, None], few, Extent(9)) is None
    for wrong in (
        [plain[0], None, plain[2]],
        [((2 * n, 2), (2, 1), f32) for n in (3, 4, 6)],
        [((n, 2), (3, 1), f32) for n in (3, 4, 6)],
    ):
        with pytest.raises(ValueError, match="same tensor|length of its own|not packed"):
            longer(wrong, few, Extent(9))


CELLS = st.sampled_from([
    (nn.LSTMCell, {}), (nn.GRUCell, {}), (nn.RNNCell, {}), (nn.RNNCell, {"nonlinearity": "relu"}),
    (nn.LSTMCell, {"dtype": torch.bfloat16}), (nn.GRUCell, {"bias": False}),
])  # fmt: skip


class Loop(nn.Module):
    """A cell called step by step, now and then without gradients, in a checkpoint or on its own state."""

    def __init__(self, kind, options, plan, use):
        super().__init__()
        dtype = options.get("dtype", torch.float32)
        self.cell, self.plan, self.use = kind(WIDTH, WIDTH, **options), plan, use
        self.first = nn.Linear(WIDTH, WIDTH, dtype=dtype)

    def step(self, x, state):
        made = self.cell(x, state)
        return made if isinstance(made, tuple) else (made,)

    def forward(self, x):
        state, kept = None, []
        for i, what in enumerate(self.plan):
            now = self.first(x[i % len(x)]) if what != "given" else x[i % len(x)]
            given = state if state is None or len(state) > 1 else state[0]
            if what == "checkpoint":
                state = checkpoint(self.step, now, given, use_reentrant=False)
            elif what == "no gradient":
                with torch.no_grad():
                    state = self.step(now, given)
            elif what == "itself" and state is not None:
                state = self.step(state[0], given)
            else:
                state = self.step(now, given)
            kept.append(state[0])
        return {"all": torch.stack(kept), "end": state[0], "last": state[-1]}[self.use]


PLAN = st.lists(
    st.sampled_from(["plain", "plain", "plain", "given", "checkpoint", "no gradient", "itself"]),
    min_size=4,
    max_size=14,
)


@settings(max_examples=12, deadline=None)
@given(CELLS, PLAN, st.sampled_from(["all", "end", "last"]), st.booleans(), st.booleans())
def test_cells_called_again_and_again(kind, plan, use, needs, turned):
    module, options = kind
    x = torch.empty(4, BATCH, WIDTH, dtype=options.get("dtype"), device="meta")
    x = torch.empty(4, WIDTH, BATCH, dtype=x.dtype, device="meta").transpose(1, 2) if turned else x
    model = Loop(module, options, plan, use)
    with pytest.MonkeyPatch.context() as patch:
        few = counted(patch, model, x.requires_grad_(needs), 8)
        patch.setattr(repeated, "OFTEN", 10**9)
        every = counted(patch, model, x, 8)
    assert few == every


@pytest.mark.skipif(not watched.CAN_ASK, reason="this release of torch runs all steps")
def test_kernels_of_a_cell_run_for_a_few_calls_only():
    x = torch.empty(4, BATCH, WIDTH, device="meta")

    def ran(steps):
        mode = []
        with pytest.MonkeyPatch.context() as patch:
            original = ExecutedMode.counts
            patch.setattr(ExecutedMode, "counts", lambda self, *args: mode.append(self.ran) or original(self, *args))
            count_operations(Loop(nn.LSTMCell, {}, ["given"] * steps, "end"), inputs=[x])
        return mode[0]

    # Gradients of the four weights are added up, a step is picked from the input: of some 56, 13 are left.
    assert (ran(40) - ran(20)) / 20 < 20
