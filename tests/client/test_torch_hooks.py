"""What `Meter.watch` marks, on small real models: passes, updates and layers, in one thread and in several."""

import gc
import os
import pickle
import threading
import weakref
from multiprocessing.context import set_spawning_popen

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from powerd_client import Meter, open_run
from powerd_client.runs.runfile import read_objects
from powerd_client.training import torch_hooks
from powerd_core.errors import ConfigError
from support.steady import steady_daemon
from support.tape import TapedMeter

X, Y = torch.randn(4, 3), torch.randn(4, 2)
WAIT_S = 30


@pytest.fixture
def meter():
    with TapedMeter() as meter:
        yield meter
    meter.tree()
    assert not torch_hooks._meters


def short(meter):
    return meter.tree().replace("layer:", "")


def network():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def step(model, optimizer, x=X):
    nn.functional.mse_loss(model(x), Y).backward()
    optimizer.step()
    optimizer.zero_grad()


class Net(nn.Module):
    """A model of some layers, and a function that says how they are called."""

    def __init__(self, call, **layers):
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x, *more):
        return self.call(self, x, *more)


# ---- passes and updates


def test_a_step_is_forward_backward_update(meter):
    model = network()
    optimizer = sgd(model)
    meter.watch(model, optimizer)
    for _ in range(2):
        step(model, optimizer)
    assert meter.tree() == "forward backward update forward backward update"
    assert meter.tape.notes == []


def test_accumulation_and_several_optimizers(meter):
    model = network()
    first, second = sgd(model[0]), sgd(model[2])
    meter.watch(model, first, second)
    for _ in range(2):
        model(X).sum().backward()
    first.step()
    second.step()
    assert meter.tree() == "forward backward forward backward update:0 update:1"


def test_without_gradients_or_in_eval_mode_it_is_evaluation(meter):
    model = network()
    meter.watch(model)
    with torch.no_grad():
        model(X)
    model.eval()(X)
    model.train()(X)
    assert meter.tree() == "evaluation evaluation forward"


def test_backward_has_the_attributes_of_the_models_that_ran_forward(meter):
    model, other, third = network(), network(), network()
    optimizer = sgd(model)
    meter.watch(model, optimizer, model="x", layers=True)
    step(model, optimizer)
    assert meter.tree(drop=("layer:0:x", "layer:1:x", "layer:2:x")) == "forward:x backward:x update:x"
    meter.tape.marks.clear()
    with meter.watch(other, model="x"):
        other(X).sum().backward()
        with meter.watch(third, model="y"):
            other(X).sum().backward()
            (other(X).sum() + third(X).sum()).backward()
        other(X).sum().backward()
    both = "forward:x forward:y backward"
    assert meter.tree() == f"forward:x backward:x forward:x backward:x {both} forward:x backward:x"


def test_autograd_grad_is_a_phase_of_its_own(meter):
    model, x = network(), X.clone().requires_grad_()
    meter.watch(model)
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    slope.pow(2).sum().backward()
    assert meter.tree() == "forward gradient backward"


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_recomputes_inside_backward(meter, reentrant):
    model = Net(
        lambda net, x: net.head(checkpoint(net.inner, x, use_reentrant=reentrant)),
        inner=network(),
        head=nn.Linear(2, 2),
    )
    optimizer = sgd(model)
    meter.watch(model, optimizer)
    step(model, optimizer, X.clone().requires_grad_())
    assert meter.tree() == "forward backward[recompute] update"


def test_a_closure_is_no_part_of_update(meter):
    model = network()
    optimizer = sgd(model)
    meter.watch(model, optimizer)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(X), Y)
        loss.backward()
        return loss

    optimizer.step(closure)
    optimizer.step(closure=closure)
    assert meter.tree() == "forward backward update forward backward update"


@pytest.mark.parametrize("factor", [1.0, float("inf")])
@pytest.mark.parametrize("clips", [False, True])
def test_gradient_scaling_and_clipping_are_one_update(meter, factor, clips):
    model = network()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    meter.watch(model, optimizer)
    for _ in range(2):
        scaler.scale(model(X).sum() * factor).backward()
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert meter.tree() == "forward backward update forward backward update"
    assert ["skipped" in note for note in meter.tape.notes] == [True] * (factor != 1.0)


def test_unscale_without_step_is_cut(meter):
    model = network()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    meter.watch(model, optimizer)
    scaler.scale(model(X).sum()).backward()
    scaler.unscale_(optimizer)
    model(X)
    assert meter.tree() == "forward backward update! forward"
    assert len(meter.tape.notes) == 1


def failing(error):
    """A call that raises once."""
    errors = [error]

    def fail(*_):
        if errors:
            raise errors.pop()

    return fail


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["forward", "backward", "update"])
def test_an_exception_cuts_what_it_ended(meter, error, where):
    fail = failing(error)

    def call(net, x):
        if where == "forward":
            fail()
        y = net.inner(x)
        if where == "backward":
            y.register_hook(fail)
        return y

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            if where == "update":
                fail()
            return super().step(closure)

    model = Net(call, inner=nn.Linear(3, 2))
    optimizer = Optimizer(model.parameters(), lr=0.1)
    meter.watch(model, optimizer, layers=where == "backward")
    with pytest.raises(error):
        step(model, optimizer)
    optimizer.zero_grad()
    step(model, optimizer)
    tree = short(meter).replace("[inner!]", "").replace("[inner]", "")
    begun = {"forward": "forward!", "backward": "forward backward!", "update": "forward backward update!"}[where]
    assert tree == f"{begun} forward backward update"


def test_a_model_that_calls_itself_is_one_forward(meter):
    model = Net(lambda net, x, again=True: net(x, False) if again else x * 2)
    meter.watch(model)
    model(X)
    model(X)
    assert meter.tree() == "forward forward"


def test_an_optimizer_inside_another_object(meter):
    class Wrapped:
        def __init__(self, optimizer):
            self.optimizer, self.param_groups, self.step = optimizer, optimizer.param_groups, optimizer.step

    model = network()
    optimizer = Wrapped(sgd(model))
    meter.watch(model, optimizer)
    model(X).sum().backward()
    optimizer.step()
    assert meter.tree() == "forward backward update"


# ---- the life of a watch


def test_watched_again_it_is_marked_once_with_what_was_given_last(meter):
    model = network()
    optimizer = sgd(model)
    meter.watch(model, optimizer)
    meter.watch(model, optimizer, model="b")
    step(model, optimizer)
    assert meter.tree() == "forward:b backward:b update:b"


def test_removed_it_leaves_nothing_behind(meter):
    model = network()
    optimizer = sgd(model)
    with meter.watch(model, optimizer, layers=True) as watch:
        step(model, optimizer)
    marks = len(meter.tape.marks)
    watch.remove()
    step(model, optimizer)
    assert len(meter.tape.marks) == marks
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_closing_the_meter_ends_its_watches():
    model = network()
    optimizer = sgd(model)
    with TapedMeter() as meter:
        meter.watch(model, optimizer)
    step(model, optimizer)
    assert meter.tree() == ""
    meter.watch(model, optimizer)
    assert not model._forward_hooks
    assert not optimizer._optimizer_step_pre_hooks


def test_a_watched_model_can_be_garbage_collected(meter):
    model = network()
    reference = weakref.ref(model)
    meter.watch(model, layers=True)
    del model
    gc.collect()
    assert reference() is None
    assert len(meter.tape.notes) == 1


def test_wrong_arguments_are_refused_before_anything_is_hooked(meter):
    model = network()
    for arguments in ([[model]], [model, torch.optim.lr_scheduler.StepLR(sgd(model), 1)]):
        with pytest.raises(ConfigError):
            meter.watch(*arguments)
    assert not model._forward_hooks


def test_a_hook_that_fails_is_told_and_not_raised(meter, monkeypatch):
    model = nn.Linear(3, 2)
    meter.watch(model)
    monkeypatch.setattr(torch_hooks, "graph_task", failing(RuntimeError("of another release")))
    model(X).sum()
    assert any("of another release" in text for text in meter.tape.notes)


# ---- layers


BRANCHES = Net(
    lambda net, x: net.lstm(net.body(x) + net.shortcut(x))[0],
    body=nn.Linear(3, 3),
    shortcut=nn.Linear(3, 3),
    lstm=nn.LSTM(3, 4),
)
IN_PLACE = nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.BatchNorm1d(8), nn.Linear(8, 2))


@pytest.mark.parametrize(
    ("model", "tree"),
    [
        (IN_PLACE, "forward[0 1 2 3] backward[3 2 1 0]"),
        (BRANCHES, "forward[body shortcut lstm] backward[lstm shortcut body]"),
        # A layer that hands its input on takes no backward of another.
        (nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.Linear(3, 2)), "forward[0 1 2] backward[2 0]"),
    ],
)
def test_every_layer_forward_and_backward_with_the_same_gradients(meter, model, tree):
    model(X).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    meter.watch(model, layers=True)
    model(X).sum().backward()
    assert short(meter) == tree
    assert all(torch.allclose(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_of_a_checkpoint_are_marked_again_inside_its_recomputation(meter, reentrant):
    layers = {"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "head": nn.Linear(3, 2)}
    inner = lambda y: layers["b"](layers["a"](y))  # noqa: E731
    model = Net(lambda net, x: net.head(checkpoint(inner, x, use_reentrant=reentrant)), **layers)
    meter.watch(model, layers=True)
    model(X.clone().requires_grad_()).sum().backward()
    # The layer in whose span the recomputation comes is in two pieces: the one before the checkpoint's own node, or the
    # one whose input is missing. The latter needs no more than that input, so b is not recomputed to its end.
    asked = "head recompute[a b] head b a" if reentrant else "head b recompute[a b!] b a"
    assert short(meter) == f"forward[a b head] backward[{asked}]"


# ---- threads


def beside(work):
    """Run ``work`` in another thread while this one waits."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_marks_of_the_engines_own_threads_belong_to_the_thread_that_called_backward(meter, monkeypatch):
    model = network()
    meter.watch(model)
    marks = meter._torch_marks
    layer = marks.codes("layer", {"layer": "a"})
    assert marks.begin_backward(accumulates=True)
    monkeypatch.setattr(torch_hooks, "graph_task", lambda: 7)  # as inside a backward pass on a GPU

    def engine():
        marks.begin_layer(layer)
        assert marks.begin_recompute()
        assert not marks.begin_recompute()
        marks.mark(layer.begin, marks.caller())
        marks.mark(layer.end, marks.caller())
        marks.end_recompute()
        assert not marks.begin_backward(accumulates=True)

    beside(engine)
    marks.end_backward(failed=False)
    assert short(meter) == "backward[a recompute[a] a]"
    assert len({mark.thread for mark in meter.tape.marks}) == 1


def test_a_pass_in_another_thread_does_not_end_an_update(meter):
    class Interrupted(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            beside(lambda: model.eval()(X))
            return super().step(closure)

    model = nn.Linear(3, 2)
    optimizer = Interrupted(model.parameters(), lr=0.01)
    meter.watch(model, optimizer)
    for _ in range(2):
        model.train()(X).sum().backward()
        optimizer.step()
    assert sorted(meter.tree().split()) == sorted(["forward", "backward", "update", "evaluation"] * 2)
    assert meter.tape.problems == meter.tape.notes == []


class Meeting(torch.autograd.Function):
    """Hands its input on; in backward it calls a function."""

    @staticmethod
    def forward(ctx, x, meet):
        ctx.meet = meet
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.meet()
        return gradient, None


def test_layers_of_two_backward_passes_lie_each_in_their_own(meter):
    def layered(meet):
        return nn.Sequential(nn.Linear(3, 3), Net(lambda _, x: Meeting.apply(x, meet)), nn.Linear(3, 2))

    inner = layered(lambda: None)
    outer = layered(lambda: beside(lambda: inner(X).sum().backward()))
    meter.watch(inner, layers=True)
    meter.watch(outer, layers=True)
    outer(X).sum().backward()
    phases, names = meter.tape.phases()
    inside = {}
    for kind, parent in zip(phases.kind, phases.parent, strict=True):
        if parent >= 0:
            inside.setdefault(parent, []).append(names[kind])
    backward = ["layer:2", "layer:1", "layer:0"]
    assert sorted(inside.values()) == sorted([backward, backward, backward[::-1], backward[::-1]])
    assert meter.tape.problems == []
    assert not any(phases.cut)


# ---- closures, and optimizers that are not stepped


def test_a_step_that_calls_its_closure_twenty_times_is_one_update(meter):
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4)
    meter.watch(model, optimizer)
    calls = []

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(X), Y)
        loss.backward()
        return loss

    optimizer.step(closure)
    first = len(calls)
    optimizer.step(closure)
    inside = [" ".join(["forward backward"] * (count - 1)) for count in (first, len(calls) - first)]
    assert first > 1
    assert meter.tree() == " ".join(f"forward backward update[{text}]" for text in inside)
    assert meter.tape.problems == meter.tape.notes == []


class SharpnessAware(torch.optim.Optimizer):
    """As the widely used one: `step` wants a closure, and what is called without one are `first_step` and the other."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.base_optimizer = torch.optim.SGD(self.param_groups, lr=0.01)

    @torch.no_grad()
    def second_step(self):
        self.base_optimizer.step()

    @torch.no_grad()
    def step(self, closure=None):
        torch.enable_grad()(closure)()
        self.second_step()


def test_an_optimizer_that_is_never_stepped_is_told(meter):
    model = network()
    optimizer = SharpnessAware(model.parameters())
    meter.watch(model, optimizer)
    for _ in range(2):
        model(X).sum().backward()
        model(X).sum().backward()
        optimizer.second_step()
    assert meter.tree() == " ".join(["forward backward"] * 4)
    meter.close()
    (note,) = meter.tape.notes
    assert note.startswith("watch: backward ran 4 times, and the step of the watched SharpnessAware was never called")


def test_a_closure_after_backward_lies_in_the_update(meter):
    model = network()
    optimizer = SharpnessAware(model.parameters())
    meter.watch(model, optimizer)

    def closure():
        model(X).sum().backward()

    for _ in range(2):
        closure()
        optimizer.step(closure)
    assert meter.tree() == " ".join(["forward backward update[forward backward]"] * 2)
    meter.close()
    assert meter.tape.notes == []


def test_an_exception_in_a_closure_cuts_the_update_around_it(meter):
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4)
    meter.watch(model, optimizer)
    calls = []

    def closure():
        calls.append(1)
        if len(calls) == 2:
            raise KeyError
        loss = nn.functional.mse_loss(model(X), Y)
        loss.backward()
        return loss

    with pytest.raises(KeyError):
        optimizer.step(closure)
    model(X)
    assert meter.tree() == "forward backward update! forward"


# ---- what was watched is replaced


def test_an_optimizer_that_replaces_the_watched_one_is_marked_from_its_first_step(meter):
    model = network()
    first, second = sgd(model[2]), sgd(model)
    meter.watch(model, first)
    step(model, first)
    step(model, second)
    step(model, second)
    assert meter.tree() == " ".join(["forward backward update"] * 3)
    meter.close()
    assert meter.tape.notes == []


def test_an_optimizer_that_steps_beside_the_watched_one_is_another(meter):
    model = network()
    first, second = sgd(model[0]), sgd(model[2])
    meter.watch(model, first)
    for _ in range(2):
        model(X).sum().backward()
        first.step()
        second.step()
    assert meter.tree() == " ".join(["forward backward update update:1"] * 2)


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "dropped"])
def test_training_of_a_model_that_is_not_watched_is_told_and_in_no_phase(meter, is_kept):
    model = network()
    optimizer = sgd(model)
    meter.watch(model, optimizer)
    step(model, optimizer)
    kept = (model, optimizer) if is_kept else ()
    for _ in range(3):  # a fold each
        model = network()
        optimizer = sgd(model)
        gc.collect()
        step(model, optimizer)
        step(model, optimizer)
    assert meter.tree() == "forward backward update"
    assert len(kept) in (0, 2)
    meter.close()
    note = meter.tape.notes[-1]
    assert note.startswith("watch: backward ran 6 times for models that are not watched (SGD stepped 6 times)")


def test_steps_without_a_watched_optimizer_are_told_unless_the_training_marks_them(meter):
    model = network()
    optimizer = sgd(model)
    meter.watch(model)
    step(model, optimizer)
    assert meter.tree() == "forward backward"
    meter.close()
    assert "SGD stepped a watched model once, and its watch was given no optimizer" in meter.tape.notes[-1]
    with TapedMeter() as other:
        other.watch(model)
        model(X).sum().backward()
        with other.phase("update"):
            optimizer.step()
    assert other.tape.notes == []


# ---- labels


def models_of(meter):
    """The label of each model whose forward was marked, in order."""
    names = {number: key for key, number in meter.tape.kinds.items()}
    begun = [names[mark.kind] for mark in meter.tape.marks if mark.is_begin]
    return [dict(attributes).get("model_by_class") for name, attributes in begun if name == "forward"]


def test_models_alike_that_are_watched_beside_each_other_have_labels_of_their_own(meter):
    first, second, third = network(), network(), network()
    meter.watch(first)
    with meter.watch(second):
        meter.watch(first)
        second(X)
        first(X)
    with meter.watch(third):
        third(X)
    one, two = "Sequential-50", "Sequential-50 #2"
    assert models_of(meter) == [two, one, two]


# ---- passes of another size


def sized(meter):
    """Each pass as text: its name, the batch size that it states, and its samples where these are others."""
    names = {number: key for key, number in meter.tape.kinds.items()}
    begun = [names[mark.kind] for mark in meter.tape.marks if mark.is_begin]
    texts = []
    for name, attributes in begun:
        own = dict(attributes)
        batch, samples = own.get("batch_size"), own.get("samples_in_pass")
        texts.append(f"{name}:{batch}" + f"={samples}" * (samples is not None))
    return " ".join(texts)


def tokens_of(meter):
    """The tokens that each pass says, by its name."""
    names = {number: key for key, number in meter.tape.kinds.items()}
    begun = [names[mark.kind] for mark in meter.tape.marks if mark.is_begin]
    return [(name, own["tokens"]) for name, attributes in begun if "tokens" in (own := dict(attributes))]


def test_tokens_of_a_pass_are_counted_by_a_function_of_its_input(meter):
    model = network()
    optimizer = sgd(model)
    meter.watch(model, optimizer, batch_size=4, tokens=lambda x: x.numel())
    for n in (4, 2):
        model(torch.randn(n, 3)).sum().backward()
        optimizer.step()
    with torch.no_grad():
        model(torch.randn(7, 3))
    assert tokens_of(meter) == [("forward", 12), ("backward", 12), ("forward", 6), ("backward", 6), ("evaluation", 21)]
    assert sized(meter) == "forward:4 backward:4 update:4 forward:4=2 backward:4=2 update:4 evaluation:7"


def test_tokens_may_be_a_number_and_a_count_that_fails_is_said_once(meter, capsys):
    model = network()
    meter.watch(model, tokens=512)
    model(X)
    assert tokens_of(meter) == [("forward", 512)]
    meter.watch(model, tokens=lambda x: x.no_such)
    model(X)
    model(X)
    assert tokens_of(meter) == [("forward", 512)]
    assert sum("tokens are not counted any more" in note for note in meter.tape.notes) == 1
    with pytest.raises(ConfigError, match="tokens as a number or a function"):
        meter.watch(model, tokens="many")


def test_passes_of_another_size_say_how_many_samples_they_have(meter):
    model = network()
    optimizer = sgd(model)
    meter.watch(model, optimizer, batch_size=4)
    for n in (4, 2):
        model(torch.randn(n, 3)).sum().backward()
        optimizer.step()
    with torch.no_grad():
        for n in (7, 7, 5):
            model(torch.randn(n, 3))
    assert sized(meter) == (
        "forward:4 backward:4 update:4 forward:4=2 backward:4=2 update:4 evaluation:7 evaluation:7 evaluation:7=5"
    )
    meter.close()
    assert meter.tape.notes == []


@pytest.mark.parametrize(
    "given",
    [
        lambda n: ((torch.randn(9, n, 3),), {}),  # the batch comes second
        lambda n: ((), {"scale": 2.0, "ids": torch.zeros(n, 5)}),
        lambda n: (({"ids": torch.zeros(n, 5)},), {}),
        lambda n: (([torch.randn(3, 5)] * n,), {}),  # as of pictures of many sizes
    ],
)
def test_the_dimension_of_the_batch_is_found_wherever_it_stands(meter, given):
    class Any(nn.Module):
        def forward(self, *args, **kwargs):
            return None

    model = Any()
    meter.watch(model, batch_size=4)
    for n in (4, 2, 4):
        args, kwargs = given(n)
        model(*args, **kwargs)
    assert sized(meter) == "forward:4 forward:4=2 forward:4"


def test_where_no_input_has_the_stated_size_evaluations_have_none_and_it_is_told(meter):
    model = network()
    meter.watch(model, batch_size=64)
    model(X).sum().backward()
    model.eval()(X)
    assert sized(meter) == "forward:64 backward:64 evaluation:None"
    meter.close()
    (note,) = meter.tape.notes
    assert "batch_size=64 is stated, and no input of Sequential has such a dimension (the first had 4 x 3)" in note


# ---- what is trained elsewhere


def test_a_watched_model_that_is_never_called_is_told(meter):
    model = network()
    meter.watch(model)
    meter.close()
    (note,) = meter.tape.notes
    assert note.startswith("watch: the watched Sequential was never called here, and backward never ran")


def test_what_is_sent_to_child_processes_that_begin_anew_is_told_once(meter):
    model = network()
    meter.watch(model)
    set_spawning_popen(object())  # as `Process.start` does while it pickles what it sends
    try:
        for _ in range(2):
            pickle.dumps(model)
    finally:
        set_spawning_popen(None)
    model.eval()(X)
    meter.close()
    assert meter.tree() == "evaluation"
    (note,) = meter.tape.notes
    assert "was sent to child" in note


def test_what_forked_child_processes_train_is_told_once(tmp_path):
    out, model = tmp_path / "run.h5", nn.Linear(3, 2)
    with steady_daemon() as daemon, Meter(daemon.url, out, quiet=True) as meter:
        meter.watch(model)
        for _ in range(2):
            if (child := os.fork()) == 0:
                try:
                    model(X)
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
        model.eval()(X)
    with open_run(out) as file:
        told = [m["text"] for m in read_objects(file["messages"]) if m["text"].startswith("watch: ")]
        kinds = [kind["name"] for kind in read_objects(file["phases/kinds"])]
        names = [kinds[k] for k in file["phases/kind"][:]]
    assert names == ["evaluation"]
    assert len(told) == 1
    assert "a forked child process ran" in told[0]


def test_a_model_in_eval_mode_that_is_trained_is_no_news(meter):
    model = network().eval()
    meter.watch(model)
    model(X).sum().backward()
    assert meter.tree() == "evaluation backward"
    meter.close()
    assert meter.tape.notes == []
