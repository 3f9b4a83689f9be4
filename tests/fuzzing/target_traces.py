"""A table of trainings of any contents: what can be said of it, or one line that names the row."""

from __future__ import annotations

import os
import tempfile
from math import isfinite
from pathlib import Path

from fuzzing.picker import Picker, expect
from powerd_analytics.optimise import advice
from powerd_analytics.optimise.traces import read_runs
from powerd_core.errors import AnalysisError, ConfigError

_HEAD = "job,batch_size,power_cap_w,epochs,energy_j,time_s,reached"
_VALUES = ("", "0", "-1", "nan", "inf", "-inf", "1e308", "1e-320", "9" * 400, "x", "true", '"', ",", "\xff", "\0",
           "3.5", "ja", "max", "1", "64", "250")  # fmt: skip
_PATH = Path(tempfile.gettempdir()) / f"fuzz-traces-{os.getpid()}.csv"


def one(data: bytes) -> None:
    picker = Picker(data)
    _PATH.write_bytes(_file(picker) if picker.flip() else picker.rest())
    try:
        traces = read_runs(_PATH)
        tables = advice.suggestion_tables(traces)
    except (AnalysisError, ConfigError) as error:
        expect(len(str(error)) < 1000 and "\n" not in str(error), error)
        return
    finally:
        _PATH.unlink()
    numbers = [cell for table in tables for row in table.rows for cell in row if isinstance(cell, float)]
    assert all(map(isfinite, numbers)), "a suggestion that is no number"


def _file(picker: Picker) -> bytes:
    rows = [_HEAD]
    for n in range(picker.below(8)):
        cells = ["cnn", str(32 << n % 3), str(150 + 50 * (n % 2)), str(10 + n), str(9000 - 100 * n), "80", "true"]
        if picker.flip():
            cells[picker.below(7)] = picker.one_of(_VALUES)
        rows.append(",".join(cells[: picker.below(7)] if picker.rarely() else cells))
    if picker.rarely():
        rows[0] = picker.one_of(("", _HEAD.replace("job", "JOB"), "\xff" + _HEAD, _HEAD + ",job"))
    return "\n".join(rows).encode("latin-1", "replace")
