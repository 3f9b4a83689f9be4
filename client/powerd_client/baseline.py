"""The power of a machine that does nothing for us, beside which a training's is seen."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from powerd_client.markwriter import MarkWriter
from powerd_core.errors import ConfigError

BASELINE = "baseline"
"""The name of the phases in which idle power is measured."""

MOST_S = 3600.0


def check_seconds(seconds: float) -> float:
    """``seconds`` when it is a length that a baseline may have, else `ConfigError`."""
    if not (math.isfinite(seconds) and 0 < seconds <= MOST_S):
        raise ConfigError(f"a baseline of {seconds:g} s: give more than 0 and at most {MOST_S:g} seconds")
    return seconds


def mark_baseline(journal: Path, seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Mark a baseline in the recording of that journal, and wait as long. Raises `OSError`."""
    writer = MarkWriter(journal)
    try:
        kind = writer.kind(BASELINE, {}, "host")
        writer.mark(kind)
        try:
            sleep(seconds)
        finally:
            writer.mark(~kind)
    finally:
        writer.close()
