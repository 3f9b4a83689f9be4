"""What a script can do to its Meter: the training goes on, the run says what happened. One recording for all."""

import gc
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import weakref

import pytest
import torch
from torch import nn

from powerd_client import Meter, open_run
from powerd_core.errors import RunFileError
from support.small_run import wrong


def worker(meter, queue):
    """A data loader's worker: it has a copy of everything, marks and closes."""
    with meter.phase("in a worker"), meter.phase("known"):
        meter.watch(nn.Linear(2, 2))
    meter.close()
    queue.put(os.getpid())


def cell(meter):
    """A notebook's cell that the user stops."""
    with meter.phase("cell"), meter.phase("iteration"):
        meter.begin("by hand")
        raise KeyboardInterrupt


def in_processes(meter):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    forked = context.Process(target=worker, args=(meter, queue))
    forked.start()
    assert queue.get() == forked.pid
    spawned = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0,))
    spawned.start()
    for child in (forked, spawned):
        child.join()
        assert child.exitcode == 0


def by_fork(meter):
    """A plain fork, while another thread of the parent holds what new kinds of phases are kept under."""
    with meter._writer._lock:
        child = os.fork()
        if child == 0:
            with meter.phase("never seen by the parent"):
                os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The run, what was said on the error stream at its end and later, and what the script still held."""
    out = tmp_path_factory.mktemp("bad") / "run.h5"
    meter = Meter(out=out)
    with meter.phase("known"):
        pass
    meter.begin("twice")
    meter.end("twice")
    meter.end("twice")
    meter.begin("elsewhere")
    thread = threading.Thread(target=meter.end, args=("elsewhere",))
    thread.start()
    thread.join()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            cell(meter)
    model, other = nn.Linear(3, 3), nn.Linear(3, 3)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    meter.watch(model, optimizer)
    model_is_gone = weakref.ref(model)
    held = weakref.ref(optimizer)
    model(torch.ones(1, 3)).sum().backward()
    del optimizer
    gc.collect()
    is_held = held() is not None
    del model
    gc.collect()
    assert model_is_gone() is None
    other(torch.ones(1, 3)).sum().backward()
    meter.watch(other)
    in_processes(meter)
    by_fork(meter)
    meter.begin("never ended")
    kept = meter.phase("kept")
    meter.close()
    return out, meter, kept, other, is_held


@pytest.fixture(scope="module")
def run(script):
    with open_run(script[0]) as file:
        kinds = [json.loads(k)["name"] for k in file["phases/kinds"].asstr()]
        names = [kinds[k] for k in file["phases/kind"][:]]
        texts = [json.loads(m)["text"] for m in file["messages"].asstr()]
        return names, file["phases/cut"][:].tolist(), texts, len(file["processes"]), int(file.attrs["complete"])


def test_the_run_is_whole(script, run):
    assert run[4] == 1
    assert wrong(script[0]) == {}


def test_the_run_says_once_what_did_not_fit(run):
    for text in (
        "phase 'twice' was ended without being begun in its thread",
        "phase 'elsewhere' was ended without being begun in its thread",
        "phase 'elsewhere' was not ended: it is cut at the end of the run",
        "phase 'never ended' was not ended: it is cut at the end of the run",
        "a phase inside 'iteration' was not ended before it",
        "the watched Linear was garbage-collected: its phases end there",
    ):
        assert run[2].count(text) == 1


def test_what_could_be_known_is_right(run):
    names, cut, *_ = run
    found = dict(zip(names, cut, strict=True))
    assert names.count("twice") == 1
    assert [c for n, c in zip(names, cut, strict=True) if n in ("cell", "iteration")] == [0] * 4
    assert found["by hand"] == found["elsewhere"] == found["never ended"] == 1


def test_a_watch_keeps_neither_model_nor_optimizer(script):
    assert not script[4]


def test_forked_and_spawned_children_mark_nothing_and_that_is_said(run):
    names, _, texts, processes, _ = run
    assert processes == 1
    assert names.count("known") == 1
    assert not {"in a worker", "never seen by the parent", "kept"} & set(names)
    assert any(text.startswith("a forked child process began a phase") for text in texts)


def test_after_close_nothing_is_marked_and_that_is_said_once(script, capfd):
    out, meter, kept, model, _ = script
    before = out.read_bytes()
    with kept, kept:
        pass
    meter.begin("late")
    meter.end("late")
    with meter.watch(model):
        model(torch.ones(1, 3)).sum().backward()
    assert list(meter.data([1, 2])) == [1, 2]
    meter.close()
    assert capfd.readouterr().err == "powerd: a phase was begun after the Meter was closed: such phases are in no run\n"
    assert out.read_bytes() == before


def test_a_phase_without_its_with_is_told(tmp_path, capfd):
    out = tmp_path / "run.h5"
    with Meter(out=out) as meter:
        meter.phase("forgotten", batch_size=4)
        list(meter.data([]))
        meter.measure(len)
        with meter.phase("known"):
            pass
    said = "the phase 'forgotten' was never begun: write `with meter.phase('forgotten'):` around what it is of"
    err = capfd.readouterr().err
    assert f"powerd: {said}\n" in err
    assert err.count("never begun") == 1
    with open_run(out) as file:
        assert said in [json.loads(message)["text"] for message in file["messages"][:]]


def test_a_meter_that_cannot_be_made_is_told_in_few_lines(tmp_path):
    for out, text in (("none/run.h5", "there is no folder"), ("run.csv", "is no name of a run file: end it in .h5")):
        code = f"from powerd_client import Meter\nMeter(out={str(tmp_path / out)!r})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert text in done.stderr.splitlines()[-1]
        assert len(done.stderr.splitlines()) < 8
    assert not list(tmp_path.iterdir())


def test_a_cell_that_makes_its_meter_again(tmp_path, capfd):
    out = tmp_path / "run.h5"
    first = Meter(out=out)
    with pytest.raises(
        RunFileError, match=r"run\.h5 is being recorded by a Meter of this process: close\(\) that first"
    ):
        Meter(out=out)
    first.begin("first")
    second = Meter(out=out, overwrite=True)
    assert f"powerd: the Meter that still recorded {out} was closed" in capfd.readouterr().err
    with second.phase("second"):
        pass
    second.close()
    with open_run(out) as file:
        assert [json.loads(k)["name"] for k in file["phases/kinds"].asstr()] == ["second"]
