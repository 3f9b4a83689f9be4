"""What `Meter.watch` marks, on small real models: passes, updates and layers."""

import copy
import gc
import io
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from powerd_client import torch_hooks
from powerd_core.errors import ConfigError
from support.tape import TapedMeter

X, Y = torch.randn(4, 3), torch.randn(4, 2)


@pytest.fixture
def meter():
    with TapedMeter() as meter:
        yield meter
    meter.tree()
    assert not torch_hooks._meters


def network():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def step(model, optimizer, x=X):
    loss = nn.functional.mse_loss(model(x), Y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


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
    model.eval()
    model(X)
    model.train()
    model(X)
    assert meter.tree() == "evaluation evaluation forward"


def test_backward_has_the_attributes_that_all_watches_have(meter):
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
        other(X).sum().backward()
    assert meter.tree() == "forward:x backward:x forward:x backward forward:x backward:x"


def test_autograd_grad_is_a_phase_of_its_own(meter):
    model = network()
    meter.watch(model)
    x = X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    slope.pow(2).sum().backward()
    assert meter.tree() == "forward gradient backward"


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_recomputes_inside_backward(meter, reentrant):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = network(), nn.Linear(2, 2)

        def forward(self, x):
            return self.head(checkpoint(self.inner, x, use_reentrant=reentrant))

    model = Net()
    optimizer = sgd(model)
    meter.watch(model, optimizer)
    step(model, optimizer, X.clone().requires_grad_())
    assert meter.tree() == "forward backward[recompute] update"
    assert all(p.grad is None for p in model.parameters())


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


def test_gradient_scaling_and_clipping_are_one_update(meter):
    model = network()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    meter.watch(model, optimizer)
    for clips in (False, True):
        scaler.scale(model(X).sum()).backward()
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert meter.tree() == "forward backward update forward backward update"
    assert meter.tape.notes == []


def test_a_skipped_step_is_said(meter):
    model = network()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    meter.watch(model, optimizer)
    for _ in range(2):
        scaler.scale(model(X).sum() * float("inf")).backward()
        scaler.step(optimizer)
        scaler.update()
    assert meter.tree() == "forward backward update forward backward update"
    assert ["skipped" in note for note in meter.tape.notes] == [True]


def test_unscale_without_step_is_cut(meter):
    model = network()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    meter.watch(model, optimizer)
    scaler.scale(model(X).sum()).backward()
    scaler.unscale_(optimizer)
    model(X)
    assert meter.tree() == "forward backward update! forward"
    assert "did not come to its end" in meter.tape.notes[0]


class Failing(nn.Module):
    """Raises what it is told to, once."""

    def __init__(self, error=None, gradient_error=None):
        super().__init__()
        self.inner, self.error, self.gradient_error = nn.Linear(3, 2), error, gradient_error

    def forward(self, x):
        error, self.error = self.error, None
        if error:
            raise error
        y = self.inner(x)
        if self.gradient_error:
            y.register_hook(self.fail)
        return y

    def fail(self, _):
        error, self.gradient_error = self.gradient_error, None
        if error:
            raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_forward_cuts_it(meter, error):
    model = Failing(error)
    optimizer = sgd(model)
    meter.watch(model, optimizer)
    with pytest.raises(error):
        step(model, optimizer)
    step(model, optimizer)
    assert meter.tree() == "forward! forward backward update"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_backward_cuts_it(meter, error):
    model = Failing(gradient_error=error)
    optimizer = sgd(model)
    meter.watch(model, optimizer, layers=True)
    with pytest.raises(error):
        step(model, optimizer)
    optimizer.zero_grad()
    step(model, optimizer)
    layers = "forward[layer:inner] backward[layer:inner] update"
    assert meter.tree().replace("backward![layer:inner!]", "backward!") == f"forward[layer:inner] backward! {layers}"


def test_an_exception_in_a_step_cuts_the_update(meter):
    class Broken(torch.optim.SGD):
        fails = True

        def step(self, closure=None):
            if self.fails:
                raise ValueError
            return super().step(closure)

    model = network()
    optimizer = Broken(model.parameters(), lr=0.1)
    meter.watch(model, optimizer)
    with pytest.raises(ValueError):  # noqa: PT011
        step(model, optimizer)
    optimizer.fails = False
    step(model, optimizer)
    assert meter.tree() == "forward backward update! forward backward update"


def test_a_model_that_calls_itself_is_one_forward(meter):
    class Twice(nn.Module):
        def forward(self, x, again=True):
            return self(x, again=False) if again else x * 2

    model = Twice()
    meter.watch(model)
    model(X)
    model(X)
    assert meter.tree() == "forward forward"


def test_watched_again_it_is_marked_once_with_what_was_given_last(meter):
    model = network()
    optimizer = sgd(model)
    first = meter.watch(model, optimizer)
    second = meter.watch(model, optimizer, model="b")
    step(model, optimizer)
    assert (first.is_active, second.is_active) == (False, True)
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
    assert not model._forward_hooks
    assert not meter.watch(model, optimizer).is_active


def test_a_watched_model_can_be_garbage_collected(meter):
    model = network()
    watch = meter.watch(model, layers=True)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    assert not watch.is_active
    assert meter.tape.notes == ["the watched Sequential was garbage-collected: its phases end there"]


def test_copies_and_pickles_are_not_watched(meter):
    model = network()
    meter.watch(model, layers=True)
    copied = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    assert b"powerd" not in file.getvalue()
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(copied(X), model(X))
    assert torch.equal(loaded(X), model(X))
    assert meter.tree() == "forward[layer:0 layer:1 layer:2] forward[layer:0 layer:1 layer:2]"


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

    thread = threading.Thread(target=engine)
    thread.start()
    thread.join()
    marks.end_backward(failed=False)
    assert meter.tree() == "backward[layer:a recompute[layer:a] layer:a]"
    assert len({mark.thread for mark in meter.tape.marks}) == 1


def test_an_optimizer_inside_another_object(meter):
    class Wrapped:
        def __init__(self, optimizer):
            self.optimizer, self.param_groups = optimizer, optimizer.param_groups

        def step(self):
            self.optimizer.step()

    model = network()
    optimizer = Wrapped(sgd(model))
    meter.watch(model, optimizer)
    model(X).sum().backward()
    optimizer.step()
    assert meter.tree() == "forward backward update"


def test_wrong_arguments_are_refused_before_anything_is_hooked(meter):
    model = network()
    with pytest.raises(ConfigError, match="not list"):
        meter.watch([model])
    with pytest.raises(ConfigError, match="not StepLR"):
        meter.watch(model, torch.optim.lr_scheduler.StepLR(sgd(model), 1))
    assert not model._forward_hooks


def short(meter):
    return meter.tree().replace("layer:", "")


def test_every_layer_forward_and_backward_with_activations_in_place(meter):
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.BatchNorm1d(8), nn.Linear(8, 2))
    meter.watch(model, layers=True)
    model(X).sum().backward()
    assert short(meter) == "forward[0 1 2 3] backward[3 2 1 0]"


def test_gradients_are_the_same_with_and_without(meter):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.Dropout(0.0), nn.Linear(8, 2))
    model(X).sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    meter.watch(model, layers=True)
    model(X).sum().backward()
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))


def test_a_layer_that_hands_its_input_on_takes_no_backward_of_another(meter):
    model = nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.Linear(3, 2))
    meter.watch(model, layers=True)
    model(X).sum().backward()
    assert short(meter) == "forward[0 1 2] backward[2 0]"


def test_branches_and_layers_with_several_outputs(meter):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.shortcut, self.lstm = nn.Linear(3, 3), nn.Linear(3, 3), nn.LSTM(3, 4)

        def forward(self, x):
            y, _ = self.lstm(self.body(x) + self.shortcut(x))
            return y

    model = Net()
    meter.watch(model, layers=True)
    model(X).sum().backward()
    assert short(meter) == "forward[body shortcut lstm] backward[lstm shortcut body]"


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_of_a_checkpoint_are_marked_again_inside_its_recomputation(meter, reentrant):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.head(checkpoint(lambda y: self.b(self.a(y)), x, use_reentrant=reentrant))

    model = Net()
    meter.watch(model, layers=True)
    model(X.clone().requires_grad_()).sum().backward()
    # The layer in whose span the recomputation comes is in two pieces: the one before the checkpoint's own node, or the
    # one whose input is missing. The latter needs no more than that input, so b is not recomputed to its end.
    asked = "head recompute[a b] head b a" if reentrant else "head b recompute[a b!] b a"
    assert short(meter) == f"forward[a b head] backward[{asked}]"


def test_a_layer_that_raises_is_cut(meter):
    class Bad(nn.Module):
        def forward(self, x):
            raise ValueError(x)

    model = nn.Sequential(nn.Linear(3, 3), Bad())
    meter.watch(model, layers=True)
    with pytest.raises(ValueError):  # noqa: PT011
        model(X)
    assert short(meter) == "forward![0 1!]"


def test_a_hook_that_fails_is_told_and_not_raised(meter, monkeypatch):
    model = nn.Linear(3, 2)
    meter.watch(model)

    def fails():
        raise RuntimeError("of another release")

    monkeypatch.setattr(torch_hooks, "graph_task", fails)
    model(X).sum()
    noted = [text for text in meter._torch_marks._noted if "of another release" in text]
    assert noted == ["a hook failed, and phases may be missing: RuntimeError: of another release"]
