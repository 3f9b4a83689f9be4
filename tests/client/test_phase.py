"""A phase around a function."""

import pytest

from powerd_core.errors import ConfigError
from support.tape import TapedMeter


def batches():
    yield 1


async def step():
    pass


async def stream():
    yield 1


@pytest.mark.parametrize(
    ("function", "kind"),
    [(batches, "a generator"), (step, "a coroutine function"), (stream, "an asynchronous generator")],
)
def test_what_runs_after_its_call_has_returned_is_refused(function, kind):
    with (
        TapedMeter() as meter,
        pytest.raises(ConfigError, match=f"is {kind}: a phase around its call would end before it has run"),
    ):
        meter.phase("x")(function)


def test_a_function_keeps_its_arguments_result_and_exceptions():
    with TapedMeter() as meter:
        half = meter.phase("half")(lambda x, *, by=2: x / by)
        assert half(3, by=6) == 0.5
        with pytest.raises(ZeroDivisionError):
            half(1, by=0)
        assert meter.tree() == "half half"
