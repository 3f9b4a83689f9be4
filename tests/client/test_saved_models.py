"""Nothing of powerd is in what a user copies, pickles, saves or sends to a process, while it is watched."""

import copy
import io
import os
import pickle
import subprocess
import sys
import warnings
from multiprocessing import resource_sharer

import pytest
import torch
from torch import multiprocessing, nn
from torch.optim.swa_utils import AveragedModel

from powerd_client.training.torch_hooks import Hook
from support.tape import TapedMeter

X = torch.randn(4, 3)
MODES = pytest.mark.parametrize("layers", [False, True])


class Recurrent(nn.Module):
    """As the word_language_model of pytorch/examples: `nn.LSTM` and this class say themselves what is pickled of them.
    It has hooks of its own."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4), nn.Linear(4, 2)
        self.head.register_forward_pre_hook(doubled)

    def __getstate__(self):
        return self.__dict__.copy()

    def forward(self, x):
        return self.head(self.lstm(x)[0])


class Twin(nn.Sequential):
    """Says itself how it is copied."""

    def __deepcopy__(self, memo):
        twin = self.__class__.__new__(self.__class__)
        twin.__dict__ = copy.deepcopy(self.__dict__, memo)
        return twin


class Wholesale(torch.optim.SGD):
    """Pickles all that it has."""

    def __getstate__(self):
        return self.__dict__.copy()


def doubled(_module, args):
    return (args[0] * 2,)


def compiled():
    return torch.compile(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), backend="eager")


def traced():
    return torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))


MODELS = [Recurrent, lambda: Twin(nn.Linear(3, 2), nn.ReLU()), compiled, traced]


@pytest.fixture
def meter():
    with TapedMeter() as meter:
        yield meter
    torch._dynamo.reset()


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


def hooks_in(model):
    dictionaries = (getattr(m, name) for m in model.modules() for name in dir(m) if name.endswith("hooks"))
    return [hook for hooks in dictionaries if isinstance(hooks, dict) for hook in hooks.values()]


def is_watched(model):
    return any(isinstance(hook, Hook) for hook in hooks_in(model))


@MODES
@pytest.mark.parametrize("make", MODELS)
def test_a_watched_model_is_pickled_byte_for_byte_as_before(meter, make, layers):
    model = make()
    optimizer = Wholesale(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    del optimizer.step  # the scheduler's, which cannot be pickled in an optimizer that pickles all
    things = [model, model.state_dict(), optimizer, optimizer.state_dict(), scheduler, [model, optimizer]]
    written = [(saved, *map(saved, things))] + [
        (dumps, *map(dumps, things))
        for dumps in (lambda thing, n=n: pickle.dumps(thing, n) for n in range(2, pickle.HIGHEST_PROTOCOL + 1))
    ]
    with meter.watch(model, optimizer, layers=layers):
        assert is_watched(model)
        for dumps, *before in written:
            assert [dumps(thing) for thing in things] == before
        assert b"powerd" not in saved(things)
        assert is_watched(model)
    for dumps, *before in written:
        assert [dumps(thing) for thing in things] == before


@MODES
@pytest.mark.parametrize("make", MODELS)
def test_copies_are_not_watched_and_keep_the_users_hooks(meter, make, layers):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = len(hooks_in(model))
    meter.watch(model, optimizer, layers=layers)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), AveragedModel(model).module]
    assert all(torch.equal(copied(X), copies[0](X)) for copied in copies)
    assert meter.tape.marks == []
    for copied in copies:
        assert not is_watched(copied)
        assert len(hooks_in(copied)) == own
        assert not any(m._forward_hooks_always_called for m in copied.modules())
    stepped = copy.deepcopy(optimizer)
    assert not stepped._optimizer_step_pre_hooks
    model(X)
    assert meter.tree().startswith("forward")


def test_a_model_that_was_compiled_in_place_is_copied_and_pickled_as_without_a_watch(meter):
    plain, twin = nn.Sequential(nn.Linear(3, 2)), Twin(nn.Linear(3, 2))
    for model in (plain, twin):
        model.compile(backend="eager")
    compiled = twin._compiled_call_impl
    before = saved(plain)
    for model in (plain, twin):
        meter.watch(model)
    assert saved(plain) == before
    assert copy.deepcopy(plain)._compiled_call_impl is None
    assert copy.deepcopy(twin)._compiled_call_impl is compiled
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickle.dumps(twin.__dict__)  # nor can what PyTorch has there be pickled
    plain(X)
    twin(X)
    assert meter.tree() == "forward forward"


@MODES
def test_a_whole_model_is_loaded_as_weights_only(meter, layers):
    model = Recurrent()
    meter.watch(model, layers=layers)
    with torch.serialization.safe_globals([Recurrent, nn.LSTM, nn.Linear, doubled]):
        loaded = torch.load(io.BytesIO(saved(model)))
    assert torch.equal(loaded(X), model(X))


LOADING = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("powerd"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocked())
try:
    import powerd_client
except ImportError:
    print("blocked")
import torch
for file in sys.argv[1:]:
    print(tuple(torch.load(file, weights_only=False)(torch.zeros(4, 3)).shape))
"""


def watched_in_both_modes(meter):
    models = [nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)) for _ in range(2)]
    for model, layers in zip(models, [False, True], strict=True):
        meter.watch(model, layers=layers)
    assert all(is_watched(model) for model in models)
    return models


def test_a_saved_model_is_loaded_where_there_is_no_powerd(meter, tmp_path):
    files = [tmp_path / "plain.pt", tmp_path / "layers.pt"]
    for model, file in zip(watched_in_both_modes(meter), files, strict=True):
        torch.save(model, file)
    command = [sys.executable, "-c", LOADING, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout.split("\n")[:3] == ["blocked", "(4, 2)", "(4, 2)"], done.stderr


def test_a_model_that_is_sent_to_a_process_is_not_watched(meter):
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    try:
        queue.put(watched_in_both_modes(meter))
        sent = queue.get()  # pickled by what PyTorch brings for processes, in whichever of them it is taken out
    finally:
        resource_sharer.stop(100)
    meter.tape.marks.clear()
    assert [(is_watched(model), tuple(model(torch.zeros(4, 3)).shape)) for model in sent] == [(False, (4, 2))] * 2
    assert meter.tape.marks == []


@MODES
def test_a_watched_model_can_be_scripted(meter, layers, tmp_path):
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    meter.watch(model, layers=layers)
    before = [list(m._forward_hooks.items()) + list(m._forward_pre_hooks.items()) for m in model.modules()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PyTorch says of scripts
        torch.jit.script(model).save(tmp_path / "script.pt")
        torch.jit.trace(model, X).save(tmp_path / "trace.pt")
        meter.tape.marks.clear()
        for name in ("script.pt", "trace.pt"):
            assert torch.equal(torch.jit.load(tmp_path / name)(X), model(X))
    assert before == [list(m._forward_hooks.items()) + list(m._forward_pre_hooks.items()) for m in model.modules()]
    inside = "[layer:0 layer:1 layer:2]" if layers else ""
    assert meter.tree() == " ".join([f"forward{inside}"] * 2)
    for file in os.listdir(tmp_path):
        assert b"powerd" not in (tmp_path / file).read_bytes()


def test_other_ordered_dictionaries_are_pickled_as_ever(meter):
    from collections import OrderedDict

    class Named(OrderedDict):
        pass

    state = OrderedDict(b=1, a=[2])
    state._metadata = OrderedDict(version=1)  # as a state_dict has
    meter.watch(nn.Linear(3, 2))
    for copied in (copy.deepcopy(state), pickle.loads(pickle.dumps(state)), copy.copy(state)):
        assert list(copied.items()) == list(state.items())
        assert copied._metadata == {"version": 1}
    assert type(copy.deepcopy(Named(a=1))) is Named
