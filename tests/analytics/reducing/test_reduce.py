"""Many run files: the same records in every way of running, and no file stops another."""

import multiprocessing
import shutil
import socket
from pathlib import Path

import pytest
import reducers
from hypothesis import given
from hypothesis import strategies as st
from make_campaign import one_run

from powerd_analytics.records.flat import run_records
from powerd_analytics.reducing import cluster
from powerd_analytics.reducing.reduce import Reduced, naming, reduce_runs
from powerd_core.errors import ConfigError, PeerError


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Four run files, of which the third is none."""
    folder = tmp_path_factory.mktemp("reduce")
    one_run(folder / "0.h5", iterations=3)
    one_run(folder / "1.h5", 1.2, iterations=4)
    (folder / "2.h5").write_bytes(b"junk")
    shutil.copy(folder / "0.h5", folder / "3.h5")
    return [folder / f"{i}.h5" for i in range(4)]


@pytest.fixture(scope="module")
def dask_cluster():
    """A scheduler and one worker, each reached by TCP."""
    from dask.distributed import LocalCluster

    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "protocol": "tcp://"}
    with LocalCluster(**options, host="127.0.0.1", dashboard_address="127.0.0.1:0") as made:
        yield made


def test_one_process_two_and_dask_give_the_same_in_the_order_of_the_paths(paths, dask_cluster):
    here = reduce_runs(paths, jobs=1)
    assert [r.path for r in here] == paths
    assert [r.value for r in here] == [run_records(p) if p.name != "2.h5" else None for p in paths]
    assert [r.error is None for r in here] == [True, True, False, True]
    assert here[2].error.startswith(f"{paths[2]} is no run file")
    assert reduce_runs(paths, jobs=2) == here
    assert reduce_runs(paths, scheduler=dask_cluster.scheduler_address) == here


def test_a_relative_path_stays_the_callers_name_of_the_file(paths, monkeypatch):
    monkeypatch.chdir(paths[0].parent)
    good, bad = reduce_runs([Path("0.h5"), Path("2.h5")], jobs=1)
    assert good.path == Path("0.h5")
    assert good.value[0]["path"] == str(paths[0])  # wherever a process runs
    assert bad.error.startswith("2.h5 is no run file")


def test_a_file_that_kills_its_process_is_named_and_the_others_are_done(paths):
    told = []
    found = reduce_runs(paths, reducers.dies_of_1, jobs=2, progress=lambda share, text: told.append((share, text)))
    assert [r.value for r in found] == ["0.h5", None, "2.h5", "3.h5"]
    assert found[1].error == f"{paths[1]}: the process that read it was killed by SIGKILL (out of memory?)"
    assert told[0] == (0.0, "0 of 4 run files")
    assert told == sorted(told)
    (alone,) = reduce_runs(paths[1:2], reducers.dies_of_1)
    assert alone == found[1]


def test_an_unexpected_fault_is_one_line_of_its_file(paths, dask_cluster):
    expected = Reduced(paths[1], None, f"{paths[1]}: RuntimeError: a fault of two lines")
    assert reduce_runs(paths, reducers.stumbles_over_1, jobs=1)[1] == expected
    assert reduce_runs(paths, reducers.stumbles_over_1, scheduler=dask_cluster.scheduler_address)[1] == expected


def test_a_result_that_cannot_be_sent_is_an_error_of_its_file(paths):
    found = reduce_runs(paths[:2], reducers.returns_what_cannot_be_sent, jobs=2)
    assert all("cannot be sent between processes" in r.error and str(r.path) in r.error for r in found)


def test_an_interrupt_ends_the_processes(paths):
    def interrupted(share, text):
        raise KeyboardInterrupt

    before = multiprocessing.active_children()
    with pytest.raises(KeyboardInterrupt):
        reduce_runs(paths, reducers.size, jobs=2, progress=interrupted)
    assert multiprocessing.active_children() == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"jobs": 0}, "at least one process"),
        ({"jobs": 2, "scheduler": "tcp://127.0.0.1:8786"}, "either a number of jobs"),
        ({"scheduler": "head"}, "no address of a Dask scheduler"),
        ({"scheduler": "carrier://pigeon"}, "no address of a Dask scheduler"),
    ],
)
def test_options_that_cannot_be(paths, options, said):
    with pytest.raises(ConfigError, match=said):
        reduce_runs(paths, **options)


def test_a_function_that_cannot_be_sent(paths):
    with pytest.raises(ConfigError, match="give a function of a module, or one job"):
        reduce_runs(paths, lambda path: path, jobs=2)


def test_nobody_at_the_address_of_the_scheduler(paths, monkeypatch):
    monkeypatch.setattr(cluster, "ANSWER_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(PeerError, match="no Dask scheduler answers at"):
            reduce_runs(paths, scheduler=f"tcp://127.0.0.1:{silent.getsockname()[1]}")


def test_a_worker_is_no_scheduler(paths, dask_cluster):
    (worker,) = dask_cluster.workers.values()
    with pytest.raises(ConfigError, match="is a Dask worker"):
        reduce_runs(paths, scheduler=worker.address)


@given(st.text())
def test_an_error_is_one_line_that_names_its_file(text):
    line = naming(Path("runs/a.h5"), text)
    assert "runs/a.h5" in line
    assert len(line.splitlines()) == 1
