"""Settings of every test."""

import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

from support.bare_machine import (  # noqa: F401 -- fixtures of every test
    _drivers_are_hidden,
    _no_gpu,
    pytest_make_collect_report,
    pytest_runtest_makereport,
)
from support.tiers import (  # noqa: F401 -- hooks of every test
    pytest_addoption,
    pytest_collection_finish,
    pytest_configure,
    pytest_ignore_collect,
    pytest_runtest_protocol,
    pytest_runtest_teardown,
)
from support.tiers import pytest_collection_modifyitems as _mark_slow

# How long an example takes says how busy the machine is. What else is set (on CI: the same examples every time) stays.
# `--hypothesis-profile=thorough` draws as many examples as hypothesis does by itself where a test says no number.
settings.register_profile("thorough", parent=settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("powerd", parent=settings.get_profile("thorough"), max_examples=30)
settings.load_profile("powerd")

# The suite starts hundreds of interpreters. Where no bytecode may be written, each compiles all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Threads of linear algebra wait by turning: beside other tests that takes more of the processors than the sums.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# What one test kept of a run would be another's answer: a test that wants a cache names a folder. Pictures keep theirs.
os.environ.setdefault("MPLCONFIGDIR", os.path.expanduser("~/.cache/matplotlib"))
os.environ["XDG_CACHE_HOME"] = "/dev/null/none"

# The result of a recording takes a process of its own: only the tests that are about it want one.
os.environ["POWERD_QUIET"] = "1"

# No processor's counters, on any machine, unless a test brings a tree of its own.
os.environ["POWERD_SYSFS"] = "/nonexistent"

# A shell's background job ignores Ctrl-C, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


FIRST = ("tests/e2e/", "tests/faults/", "tests/firmware/", "tests/fuzzing/")


def pytest_collection_modifyitems(items):
    """The folders with the longest files come first: a long test that begins last runs alone."""
    _mark_slow(items)
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


@pytest.fixture(autouse=True)
def _interrupts_stay_as_they_were():
    """A test that leaves Ctrl-C to nobody would make another one fail, far away."""
    before = signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    assert (signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, [])) == before
