"""The host's clock: the same one for marks and for clock exchanges, or their difference would be nobody's."""

from __future__ import annotations

import time
from functools import partial

now_ns = partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC_RAW)
"""Nanoseconds of CLOCK_MONOTONIC_RAW, see `powerd_core.model.CLOCK_NAME`."""
