"""What `Meter.watch` marks, on small real models."""

import copy
import functools
import gc
import io
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from powerd_client import watchmarks, watchpatches
from powerd_core.errors import ConfigError
from support.tape import TapedMeter

X, Y = torch.randn(4, 3), torch.randn(4, 2)


@pytest.fixture
def meter():
    originals = (torch.autograd.backward, torch.autograd.grad, torch.amp.GradScaler.step, torch.amp.GradScaler.unscale_)
    with TapedMeter() as meter:
        yield meter
    meter.tree()
    assert originals == (
        torch.autograd.backward, torch.autograd.grad, torch.amp.GradScaler.step, torch.amp.GradScaler.unscale_
    )  # fmt: skip
    assert "apply" not in vars(torch.utils.checkpoint.CheckpointFunction)
    assert not watchpatches._uses


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


def test_it_nests_in_the_phases_of_the_script(meter):
    model = network()
    optimizer = sgd(model)
    with meter.phase("training", batch_size=4), meter.watch(model, optimizer):
        step(model, optimizer)
    step(model, optimizer)
    assert meter.tree() == "training:4[forward backward update]"


def test_gradient_accumulation(meter):
    model = network()
    optimizer = sgd(model)
    meter.watch(model, optimizer)
    for _ in range(3):
        model(X).sum().backward()
    optimizer.step()
    assert meter.tree() == "forward backward forward backward forward backward update"


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


def test_several_optimizers_are_told_apart(meter):
    model = network()
    first, second = sgd(model[0]), sgd(model[2])
    meter.watch(model, first, second)
    model(X).sum().backward()
    first.step()
    second.step()
    assert meter.tree() == "forward backward update:0 update:1"
    assert meter.tape.notes == []


def test_two_models_of_one_training_have_attributes(meter):
    one, two = network(), network()
    optimizer = sgd(one)
    meter.watch(one, optimizer, model="generator")
    meter.watch(two, model="critic")
    (one(X) + two(X)).sum().backward()
    optimizer.step()
    assert meter.tree() == "forward:generator forward:critic backward update:generator"


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


def test_gradient_and_recomputation_have_them_too(meter):
    model = network()
    meter.watch(model, model="x")
    x = X.clone().requires_grad_()
    loss = checkpoint(model, x, use_reentrant=False).sum()
    torch.autograd.grad(loss, x)
    assert meter.tree() == "forward:x gradient:x[recompute:x]"


def test_a_watch_that_comes_during_backward_changes_nothing_of_it(meter):
    model, other = network(), network()
    meter.watch(model, model="x")
    loss = model(X).sum()
    loss.register_hook(lambda _: meter.watch(other, model="y") and None)
    loss.backward()
    other(X).sum().backward()
    assert meter.tree() == "forward:x backward:x forward:y backward"


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


def test_a_whole_model_that_is_checkpointed(meter):
    model = network()
    meter.watch(model)
    checkpoint(model, X, use_reentrant=False).sum().backward()
    assert meter.tree() == "forward backward[recompute]"


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


def test_lbfgs_evaluates_many_times(meter):
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    meter.watch(model, optimizer)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(X), Y)
        loss.backward()
        return loss

    optimizer.step(closure)
    times = meter.tree().count("forward")
    assert times > 1
    assert meter.tree() == " ".join(["forward backward update"] * times)


def test_a_scheduler_made_after_watch_still_works(meter):
    model = network()
    optimizer = sgd(model)
    meter.watch(model, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    step(model, optimizer)
    scheduler.step()
    assert meter.tree() == "forward backward update"


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
    watch = meter.watch(model, optimizer)
    for _ in range(2):
        scaler.scale(model(X).sum() * float("inf")).backward()
        scaler.step(optimizer)
        scaler.update()
    assert meter.tree() == "forward backward update forward backward update"
    watch.remove()
    assert [n for n in meter.tape.notes if "skipped" in n] == [
        "GradScaler skipped a step of SGD (gradients not finite): its update is only the check",
        "GradScaler skipped 2 of 2 steps of SGD",
    ]


def test_two_optimizers_unscaled_first_and_stepped_later(meter):
    model = network()
    first, second, scaler = sgd(model[0]), sgd(model[2]), torch.amp.GradScaler("cpu")
    meter.watch(model, first, second)
    scaler.scale(model(X).sum()).backward()
    for optimizer in (first, second):
        scaler.unscale_(optimizer)
    for optimizer in (first, second):
        scaler.step(optimizer)
    assert meter.tree() == "forward backward update:0 update:1 update:0 update:1"


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


def test_an_exception_that_leaves_the_iteration_cuts_what_is_open(meter):
    model = Failing(KeyboardInterrupt)
    meter.watch(model)
    with pytest.raises(KeyboardInterrupt), meter.phase("iteration"):
        model(X)
    with meter.phase("iteration"):
        model(X)
    assert meter.tree() == "iteration[forward!] iteration[forward]"
    assert meter.tape.problems == ["a phase inside 'iteration' was not ended before it"]


def test_a_model_that_returns_none_while_an_exception_is_handled(meter):
    class Silent(nn.Module):
        def forward(self, x):
            return x

    model = Silent()
    meter.watch(model)
    try:
        raise ValueError
    except ValueError:
        model(X)
    assert meter.tree() == "forward"


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
    assert not watchpatches.optimizers.get(optimizer)


def test_closing_the_meter_ends_its_watches():
    model = network()
    optimizer = sgd(model)
    with TapedMeter() as meter:
        meter.watch(model, optimizer)
    step(model, optimizer)
    assert meter.tree() == ""
    assert not model._forward_hooks
    assert not meter.watch(model, optimizer).is_active


def test_two_meters_each_have_their_marks(meter):
    model = network()
    optimizer = sgd(model)
    meter.watch(model, optimizer)
    with TapedMeter() as other:
        other.watch(model, optimizer)
        step(model, optimizer)
    step(model, optimizer)
    assert other.tree() == "forward backward update"
    assert meter.tree() == "forward backward update forward backward update"


def test_a_watched_model_can_be_garbage_collected(meter):
    model = network()
    watch = meter.watch(model, layers=True)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    assert not watch.is_active
    assert meter.tape.notes == ["the watched Sequential was garbage-collected: its phases end there"]


def test_the_meter_goes_with_its_last_reference():
    meter = TapedMeter()
    model = network()
    meter.watch(model)
    meter.close()
    reference = weakref.ref(meter)
    del meter
    gc.collect()
    assert reference() is None


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


def test_models_that_are_trained_in_threads_do_not_mix(meter):
    model = network()
    optimizer = sgd(model)
    meter.watch(model, optimizer)
    barrier = threading.Barrier(3)

    def work():
        barrier.wait()
        for _ in range(20):
            model(X).sum().backward()
        barrier.wait()  # an ended thread's number would be given to the next

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = meter.tree().split()
    assert sorted(found) == ["backward"] * 60 + ["forward"] * 60


def test_marks_of_the_engines_own_threads_belong_to_the_thread_that_called_backward(meter, monkeypatch):
    model = network()
    meter.watch(model)
    marker = meter._marker
    layer = marker.kind("layer", {"layer": "a"})
    assert marker.begin_backward(accumulates=True)
    monkeypatch.setattr(watchmarks, "graph_task", lambda: 7)  # as inside a backward pass on a GPU

    def engine():
        marker.begin_layer(layer)
        assert marker.begin_recompute()
        assert not marker.begin_recompute()
        marker.at(layer.begin, marker.place())
        marker.at(layer.end, marker.place())
        marker.end_recompute()
        assert not marker.begin_backward(accumulates=True)

    thread = threading.Thread(target=engine)
    thread.start()
    thread.join()
    marker.end_backward(failed=False)
    assert meter.tree() == "backward[layer:a recompute[layer:a] layer:a]"
    assert len({mark.thread for mark in meter.tape.marks}) == 1


def test_work_that_hooks_do_not_see_is_said(meter):
    model = network()
    optimizer = sgd(model)
    meter.watch(model, optimizer)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert "no backward pass" in meter.tape.notes[0]
    model.forward(X).sum().backward()
    optimizer.step()
    assert "no forward pass" in meter.tape.notes[1]


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
    with pytest.raises(ConfigError, match=r"torch\.nn\.Module first, not list"):
        meter.watch([model])
    with pytest.raises(ConfigError, match="optimizers after the model, not StepLR"):
        meter.watch(model, torch.optim.lr_scheduler.StepLR(sgd(model), 1))
    assert not model._forward_hooks


def test_another_patch_on_top_of_ours_survives(meter):
    original = torch.autograd.backward
    model = network()
    watch = meter.watch(model)
    ours = torch.autograd.backward
    torch.autograd.backward = functools.partial(ours)
    theirs = torch.autograd.backward
    watch.remove()
    assert torch.autograd.backward is theirs
    model(X).sum().backward()
    torch.autograd.backward = original
    assert meter.tree() == ""


def test_a_model_that_is_collected_while_patches_are_changed_does_not_stop_everything(meter):
    """The garbage collector runs wherever it likes, also in the middle of `use` and `release`."""
    model = network()
    watch = meter.watch(model)

    def collect():
        nonlocal model
        with watchpatches._lock:
            del model
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()
    assert not watch.is_active
