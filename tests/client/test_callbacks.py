"""The callbacks against the documented order of their libraries' events."""

import importlib
import os
import sys
import types

import pytest
import torch
from torch import nn

from powerd_core.errors import ConfigError
from support.tape import TapedMeter


@pytest.fixture
def meter():
    with TapedMeter() as meter:
        yield meter


X = torch.randn(4, 3)


@pytest.fixture
def stand_in(monkeypatch):
    """Makes a module with one class that callbacks derive from."""

    def make(name, base, callback):
        *packages, _ = name.split(".")
        for depth in range(1, len(packages) + 1):
            monkeypatch.setitem(sys.modules, ".".join(packages[:depth]), types.ModuleType(".".join(packages[:depth])))
        module = types.ModuleType(name)
        setattr(module, base, type(base, (), {}))
        monkeypatch.setitem(sys.modules, name, module)
        if packages:
            setattr(sys.modules[".".join(packages)], name.rpartition(".")[2], module)
        monkeypatch.setitem(sys.modules, callback, None)  # so that what is imported now is forgotten again
        del sys.modules[callback]

    return make


class Profiler:
    def start(self, action_name):
        pass

    def stop(self, action_name):
        pass


@pytest.fixture
def lightning(stand_in, meter):
    stand_in("lightning.pytorch", "Callback", "powerd_client.callbacks.lightning")
    from powerd_client.callbacks.lightning import PowerdCallback

    model = nn.Linear(3, 2)
    model.automatic_optimization = True
    trainer = types.SimpleNamespace(
        profiler=Profiler(),
        optimizers=[torch.optim.SGD(model.parameters(), lr=0.1)],
        strategy=types.SimpleNamespace(model=model),
    )
    return PowerdCallback(meter), trainer, model


def fetch(trainer, batches):
    trainer.profiler.start("[_TrainingEpochLoop].train_dataloader_next")
    try:
        return next(batches, None) or next(iter(()))
    finally:
        trainer.profiler.stop("[_TrainingEpochLoop].train_dataloader_next")


def test_lightnings_order_of_events(lightning, meter):
    callback, trainer, model = lightning
    (optimizer,) = trainer.optimizers
    callback.setup(trainer, model, "fit")
    callback.on_train_start(trainer, model)
    batches = iter([1, 2])
    for batch, index in ((fetch(trainer, batches), i) for i in range(2)):
        callback.on_train_batch_start(trainer, model, batch, index)

        def closure():
            loss = model(X).sum()
            callback.on_before_zero_grad(trainer, model, optimizer)
            optimizer.zero_grad()
            callback.on_before_backward(trainer, model, loss)
            loss.backward()
            return loss

        optimizer.step(closure)
        callback.on_train_batch_end(trainer, model, None, batch, index)
    with pytest.raises(StopIteration):
        fetch(trainer, batches)
    callback.on_validation_batch_start(trainer, model, 1, 0)
    callback.on_validation_batch_end(trainer, model, None, 1, 0)
    callback.on_train_end(trainer, model)
    callback.teardown(trainer, model, "fit")
    step = "data forward backward update"
    assert meter.tree() == f"{step} {step} data! evaluation"
    assert meter.tape.notes == []
    assert trainer.profiler.start.__func__ is Profiler.start
    assert not optimizer._optimizer_step_pre_hooks


def attributes_of(meter, name):
    return [dict(key[1]) for key in meter.tape.kinds if key[0] == name]


def test_an_evaluation_is_in_the_group_of_its_model(lightning, meter):
    """No iteration is around it that would say which model it evaluates."""
    callback, trainer, model = lightning
    callback.setup(trainer, model, "fit")
    callback.on_train_start(trainer, model)
    callback.on_validation_batch_start(trainer, model, 1, 0)
    callback.on_validation_batch_end(trainer, model, None, 1, 0)
    callback.on_train_end(trainer, model)
    assert attributes_of(meter, "evaluation") == attributes_of(meter, "update") == [{"model_by_class": "Linear-8"}]


def results(meter):
    return [{n: float(v) for n, v in values.items()} for name, values in meter.tape.events if name == "result"]


def test_lightnings_metrics_are_results_behind_each_evaluation(lightning, meter):
    callback, trainer, model = lightning
    trainer.sanity_checking, trainer.callback_metrics, trainer.current_epoch = True, {"val_acc": torch.tensor(0.1)}, 0
    callback.on_validation_end(trainer, model)
    trainer.sanity_checking, trainer.callback_metrics = False, {}
    callback.on_validation_end(trainer, model)
    assert results(meter) == []
    trainer.callback_metrics = {"val_acc": torch.tensor(0.5), "val_loss": torch.tensor(0.75)}
    callback.on_validation_end(trainer, model)
    trainer.callback_metrics, trainer.current_epoch = {"test_acc": torch.tensor(0.25)}, 1
    callback.on_test_end(trainer, model)
    assert results(meter) == [{"epoch": 0, "val_acc": 0.5, "val_loss": 0.75}, {"epoch": 1, "test_acc": 0.25}]


class Adversaries(nn.Module):
    """A module for manual optimization, with two networks and a loss."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.generator, self.critic, self.loss = nn.Linear(3, 3), nn.Linear(3, 1), nn.MSELoss()

    def forward(self, x):
        return self.generator(x)


def test_manual_optimization_has_forward_of_each_network(lightning, meter):
    callback, trainer, _ = lightning
    model = trainer.strategy.model = Adversaries()
    first, second = trainer.optimizers = [
        torch.optim.SGD(m.parameters(), lr=0.1) for m in model.children() if [*m.parameters()]
    ]
    callback.setup(trainer, model, "fit")
    callback.on_train_start(trainer, model)
    for index in range(2):
        callback.on_train_batch_start(trainer, model, 1, index)
        fake = model(X)
        model.critic(fake.detach()).sum().backward()
        second.step()
        model.loss(model.critic(fake), torch.ones(4, 1)).backward()
        first.step()
        callback.on_train_batch_end(trainer, model, None, 1, index)
    callback.on_validation_batch_start(trainer, model, 1, 0)
    with torch.no_grad():
        model(X)
    callback.on_validation_batch_end(trainer, model, None, 1, 0)
    callback.on_train_end(trainer, model)
    callback.teardown(trainer, model, "fit")
    one = "forward forward:critic backward update:1 forward:critic backward:critic update:0"
    assert meter.tree() == f"iteration[{one}] iteration[{one}] evaluation"
    assert not model.critic._forward_hooks


def test_an_exception_under_lightning_cuts_what_is_open(lightning, meter):
    callback, trainer, model = lightning
    callback.setup(trainer, model, "fit")
    callback.on_train_start(trainer, model)
    callback.on_train_batch_start(trainer, model, 1, 0)
    callback.on_exception(trainer, model, ValueError())
    callback.teardown(trainer, model, "fit")
    assert meter.tree() == "forward!"


def hugging_face(stand_in):
    """A module with a Trainer that trains as its ``fit`` does."""

    class Trainer:
        def __init__(self, fit, callbacks):
            self.fit, self.callback_handler = fit, types.SimpleNamespace(callbacks=callbacks)

        def train(self):
            model = nn.Linear(3, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for callback in self.callback_handler.callbacks:
                callback.on_train_begin(None, None, None, model=model, optimizer=optimizer)
            return self.fit()

    stand_in("transformers", "TrainerCallback", "powerd_client.callbacks.transformers")
    sys.modules["transformers"].Trainer = Trainer
    return Trainer


@pytest.fixture
def transformers(stand_in, meter):
    hugging_face(stand_in)
    from powerd_client.callbacks.transformers import PowerdCallback

    return PowerdCallback(meter, batch_size=4)


class Loader:
    """As Accelerate's: says that it is of another class."""

    @property
    def __class__(self):
        return list

    def __iter__(self):
        return iter([1, 2, 3])

    def __len__(self):
        return 3


def test_trainers_order_of_events(transformers, meter):
    callback, model, loader = transformers, nn.Linear(3, 2), Loader()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callback.on_train_begin(None, None, None, model=model, optimizer=optimizer, train_dataloader=loader)
    for _ in loader:
        model(X).sum().backward()
        optimizer.step()
    callback.on_train_end(None, None, None)
    assert meter.tree() == " ".join(["data:4 forward:4 backward:4 update:4"] * 3)
    assert type(loader) is Loader
    assert list(loader) == [1, 2, 3]
    assert not model._forward_hooks


@pytest.mark.parametrize(("found", "stated", "expected"), [(None, {}, 16), (8, {}, 8), (None, {"batch_size": 4}, 4)])
def test_the_batch_size_is_that_of_the_trainers_arguments(stand_in, meter, found, stated, expected):
    """Unless the search for one that fits the memory has found another, or the user states it."""
    hugging_face(stand_in)
    from powerd_client.callbacks.transformers import PowerdCallback

    callback, model, loader = PowerdCallback(meter, **stated), nn.Linear(3, 2), Loader()
    arguments, state = types.SimpleNamespace(train_batch_size=16), types.SimpleNamespace(train_batch_size=found)
    callback.on_train_begin(arguments, state, None, model=model, train_dataloader=loader)
    list(loader)
    callback.on_train_end(None, None, None)
    for name in ("data", "forward"):
        assert [own["batch_size"] for own in attributes_of(meter, name)] == [expected]


def test_a_trainers_evaluation_is_a_result(transformers, meter):
    metrics = {"eval_loss": 0.5, "eval_accuracy": 0.75, "eval_runtime": 3.2, "eval_samples_per_second": 100.0,
               "eval_steps_per_second": 1.0, "eval_model_preparation_time": 0.1, "epoch": 2.0}  # fmt: skip
    transformers.on_evaluate(None, None, None, metrics=metrics)
    transformers.on_evaluate(None, None, None)
    assert results(meter) == [{"loss": 0.5, "accuracy": 0.75, "epoch": 2.0}]


@pytest.mark.parametrize("way", ["torch.compile", "in place"])
def test_a_model_that_the_trainer_compiles_is_marked(transformers, meter, way):
    """``TrainingArguments(torch_compile=True)``: Accelerate compiles the model that the callback is given."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    called = torch.compile(model, backend="eager")
    transformers.on_train_begin(None, None, None, model=model, optimizer=optimizer)
    if way == "in place":
        model.compile(backend="eager")
        called = model
    for _ in range(2):
        called(X).sum().backward()
        optimizer.step()
    transformers.on_train_end(None, None, None)
    assert meter.tree() == " ".join(["forward:4 backward:4 update:4"] * 2)
    assert meter.tape.notes == []


class Chooser:
    """Stands for the chooser of a cap."""

    def __init__(self):
        self.steps, self.ended = 0, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended += 1

    def step(self):
        self.steps += 1


@pytest.mark.parametrize("wish", ["edp", {"metric": "e", "max_slowdown": 0.1}])
def test_a_trainer_chooses_its_cap_by_its_updates(stand_in, meter, monkeypatch, wish):
    hugging_face(stand_in)
    from powerd_client.callbacks.transformers import PowerdCallback

    chooser, asked = Chooser(), []
    monkeypatch.setattr(meter, "optimise_power", lambda **options: asked.append(options) or chooser)
    callback, model = PowerdCallback(meter, optimise_power=wish), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callback.on_train_begin(None, None, None, model=model, optimizer=optimizer)
    for _ in range(5):
        model(X).sum().backward()
        optimizer.step()
    assert (chooser.steps, chooser.ended) == (5, 0)
    callback.on_train_end(None, None, None)
    assert chooser.ended == 1
    assert asked == [{"metric": "edp"} if wish == "edp" else wish] * 2, "once when it was made, to look at the wish"
    model(X).sum().backward()
    optimizer.step()
    assert chooser.steps == 5


def test_a_trainer_lets_go_when_its_training_raises(stand_in, meter, monkeypatch):
    trainer = hugging_face(stand_in)
    from powerd_client.callbacks.transformers import PowerdCallback

    chooser = Chooser()
    monkeypatch.setattr(meter, "optimise_power", lambda **options: chooser)
    callback = PowerdCallback(meter, optimise_power="edp")
    with pytest.raises(ZeroDivisionError):
        trainer(lambda: 1 / 0, [callback]).train()
    assert chooser.ended == 1
    assert trainer(lambda: "trained", [callback]).train() == "trained"
    assert chooser.ended == 2


@pytest.mark.parametrize("module", ["transformers", "lightning"])
def test_a_wish_that_nobody_can_fulfil_is_refused_when_the_callback_is_made(stand_in, meter, module):
    if module == "transformers":
        hugging_face(stand_in)
    else:
        stand_in("lightning.pytorch", "Callback", "powerd_client.callbacks.lightning")
    callbacks = importlib.import_module(f"powerd_client.callbacks.{module}")
    with pytest.raises(ConfigError, match="no metric to choose a cap by"):
        callbacks.PowerdCallback(meter, optimise_power="watts")
    with pytest.raises(ConfigError, match="give a share"):
        callbacks.PowerdCallback(meter, optimise_power={"metric": "e", "max_slowdown": 5})


def test_lightning_chooses_its_cap_and_lets_go_at_an_exception(lightning, meter, monkeypatch):
    _, trainer, model = lightning
    from powerd_client.callbacks.lightning import PowerdCallback

    chooser = Chooser()
    monkeypatch.setattr(meter, "optimise_power", lambda **options: chooser)
    callback = PowerdCallback(meter, optimise_power="edp")
    callback.setup(trainer, model, "fit")
    callback.on_train_start(trainer, model)
    (optimizer,) = trainer.optimizers
    for _ in range(3):
        callback.on_train_batch_start(trainer, model, X, 0)
        optimizer.step(lambda: model(X).sum().backward())
        callback.on_train_batch_end()
    assert chooser.steps == 3
    callback.on_exception(trainer, model, RuntimeError())
    assert chooser.ended == 1


def test_a_watched_script_chooses_as_joules_record_was_asked_to(monkeypatch, capfd):
    chooser, asked = Chooser(), []
    monkeypatch.setattr(TapedMeter, "optimise_power", lambda self, **options: asked.append(options) or chooser)
    monkeypatch.setenv("POWERD_OPTIMISE", '{"metric": "edp", "max_slowdown": 0.2}')
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other)]
    with TapedMeter() as meter:
        meter.watch(model, *optimizers)
        for _ in range(4):
            model(X).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
        assert chooser.steps == 4, "of two optimizers the first one's steps are iterations"
    assert chooser.ended == 1
    assert asked == [{"metric": "edp", "max_slowdown": 0.2}]
    assert "POWERD_OPTIMISE" not in os.environ, "a program that this one starts would choose, too"
    monkeypatch.setenv("POWERD_OPTIMISE", "no JSON")
    with TapedMeter() as meter:
        meter.watch(model, optimizers[0])
    assert "no power cap is chosen" in capfd.readouterr().err


def test_of_a_script_that_marks_by_hand_phases_are_the_iterations(monkeypatch):
    chooser = Chooser()
    monkeypatch.setattr(TapedMeter, "optimise_power", lambda self, **options: chooser)
    monkeypatch.setenv("POWERD_OPTIMISE", '{"metric": "e"}')
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with TapedMeter() as meter:
        for step in range(3):
            with meter.phase("iteration", batch_size=4), meter.phase("forward"):
                assert chooser.steps == step
        meter.watch(model, optimizer)
        with meter.phase("iteration", batch_size=8):
            model(X).sum().backward()
            optimizer.step()
        assert chooser.steps == 4, "updates do not count, too"


def test_a_choice_goes_on_with_a_training_that_is_watched_anew(monkeypatch):
    chooser = Chooser()
    monkeypatch.setattr(TapedMeter, "optimise_power", lambda self, **options: chooser)
    monkeypatch.setenv("POWERD_OPTIMISE", '{"metric": "edp"}')
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with TapedMeter() as meter:
        for batch_size, steps in ((4, 5), (8, 60)):
            meter.watch(model, optimizer, batch_size=batch_size)
            for _ in range(steps):
                model(X).sum().backward()
                optimizer.step()
        assert chooser.steps > 5 + 30, "else a cap on trial would stay to the end"
