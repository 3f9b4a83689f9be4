"""The two tiers of the suite: which tests are slow, and what keeps the quick ones quick.

`make test` runs the quick tier, `make test-all` everything. A test is slow when it takes more than `LIMIT_S` of CPU
time (its processes' too), or starts a process. ``tests/slow.txt`` lists the slow ones as they were measured; a test
may also carry the mark `slow` itself. The mark ``quick("why")`` keeps a test in the quick tier that breaks the rule:
the few that show that recording, serving, leases and campaigns work at all.

Torch is imported once by each worker, as its tests are collected: 357 of them take 13 s together.

In a run of the whole quick tier any other test that breaks the rule fails, so that the tier stays quick by itself. The
failure says what to do: make the test quicker, or list it (`--list-slow FILE` appends what breaks the rule to a file).
"""

import resource
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import strategies

LIMIT_S = 0.2
"""CPU seconds of a quick test on the machine that the list was measured on."""
TOLERANCE = 10
"""A test fails from so many times `LIMIT_S`: a busy or slower machine counts the same work as more, and whoever is the
first to use a part of a library pays for all."""

QUICK = "not slow and not soak"
"""What `make test` chooses."""
_MOST_OF_IT = 1000
"""Where fewer tests were collected, the first of them pays for what all would load."""
ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "slow.txt"

_processes = 0


def _count_processes(event, _arguments):
    global _processes  # noqa: PLW0603 -- an audit hook has no other place, and can never be taken away
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"):
        _processes += 1


sys.addaudithook(_count_processes)


@cache
def slow_tests():
    """The lines of ``tests/slow.txt``: folders, files, classes, functions or single cases."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def is_listed(nodeid):
    """Whether the list has this test, or something that it is part of."""
    path, *names = nodeid.partition("[")[0].split("::")
    parts = path.split("/")
    folders = ["/".join(parts[:depth]) + "/" for depth in range(1, len(parts))]
    inside = ["::".join([path, *names[:depth]]) for depth in range(len(names) + 1)]
    return not slow_tests().isdisjoint([nodeid, *folders, *inside])


def cpu_s():
    """CPU seconds of this process and of its children that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def pytest_addoption(parser):
    parser.addoption(
        "--list-slow", metavar="FILE", help="append the tests that are too slow for the quick tier to FILE"
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: not in the quick tier (`make test`), but in `make test-all`")
    config.addinivalue_line("markers", "real_gpu: needs an NVIDIA GPU and its driver; skipped where there is none")
    config.addinivalue_line("markers", "quick(why): in the quick tier although it starts a process or takes longer")


def pytest_ignore_collect(collection_path, config):
    """Files that are slow as a whole are not even imported for the quick tier."""
    if config.option.markexpr == QUICK and str(collection_path.relative_to(ROOT)) in slow_tests():
        return True
    return None


def pytest_collection_modifyitems(items):
    for item in items:
        slow = is_listed(item.nodeid) or item.get_closest_marker("real_gpu")
        if slow and not item.get_closest_marker("quick"):
            item.add_marker(pytest.mark.slow)


_LIBRARIES = (
    "h5py", "numpy.testing", "pandas", "scipy.optimize", "scipy.stats", "cyclopts", "matplotlib.pyplot", "duckdb",
    "pyarrow.dataset", "powerd_analytics.cli.tables", "powerd_analytics.cli.campaign", "powerd_analytics.cli.plots",
)  # fmt: skip


def pytest_collection_finish(session):
    """What most tests need is loaded before the first of them, whose time it would count as otherwise.

    That is what most of the product imports, and hypothesis' tables of characters: 3 s in a fresh clone.
    """
    if not _is_whole(session):
        return
    for name in (
        "h5py",
        "numpy.testing",
        "pandas",
        "scipy.optimize",
        "scipy.stats",
        "cyclopts",
        "matplotlib.pyplot",
        "duckdb",
    ):
        try:
            __import__(name)
        except ImportError:  # the tests that need it are skipped
            continue
    strategies.characters(codec="utf-8").validate()


def _is_whole(session):
    """Whether the whole quick tier is run, whose tests have to keep the rule."""
    return session.config.option.markexpr == QUICK and len(session.items) > _MOST_OF_IT


def broken_rule(took_s, processes):
    """Why a test that took so much is none of the quick tier; None where it may be."""
    if processes:
        return f"it started {processes} processes"
    if took_s > TOLERANCE * LIMIT_S:
        return f"it took {took_s:.2f} s of CPU time, and {LIMIT_S} s are meant"
    return None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    item.stash[_BEFORE] = cpu_s(), _processes
    return (yield)


_BEFORE = pytest.StashKey[tuple[float, int]]()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item):
    yield
    if not _is_whole(item.session) or item.get_closest_marker("quick"):
        return
    began_s, processes = item.stash[_BEFORE]
    took_s = cpu_s() - began_s
    reason = broken_rule(took_s, _processes - processes)
    if to := item.config.getoption("--list-slow"):
        if reason or took_s > LIMIT_S:
            with open(to, "a", encoding="utf-8") as out:
                out.write(f"{item.nodeid}\n")
    elif reason:
        pytest.fail(f"{item.nodeid} is too slow for the quick tier: {reason}. List it in tests/slow.txt, or mend it")
