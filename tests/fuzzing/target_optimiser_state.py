"""The state of an optimiser of any contents: the next trial, or one line that says what is wrong."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

from fuzzing.picker import Picker, expect, spoiled
from powerd_analytics.optimise.policy import Job, Outcome, Target, TrainingSettings
from powerd_analytics.optimise.recurrences import Recurrences
from powerd_core.errors import ConfigError

_PATH = Path(tempfile.gettempdir()) / f"fuzz-state-{os.getpid()}.sqlite"
_JOB = Job("job", (16, 32, 64), (150.0, 200.0), TrainingSettings(32, 200.0), Target(0.9), 20, 200.0)
_TEXTS = (("policies", "state"), ("trials", "trial"), ("trials", "outcome"), ("steps", "told"), ("steps", "answer"))
_CELLS = (("policies", "recurrences"), ("policies", "job"), ("trials", "number"), ("trials", "pid"),
          ("trials", "began"), ("steps", "what"),
          ("steps", "number"))  # fmt: skip


def one(data: bytes) -> None:
    picker = Picker(data)
    _PATH.write_bytes(_good("ours" if picker.flip() else "zeus"))
    try:
        if picker.rarely():
            _PATH.write_bytes(picker.rest())
        elif picker.rarely():
            whole = bytearray(_PATH.read_bytes())
            for _ in range(1 + picker.below(8)):
                whole[picker.below(len(whole))] = picker.below(256)
            _PATH.write_bytes(whole)
        else:
            _spoil(picker)
        known = Recurrences(_PATH, _JOB, "ours")
        known.begin(known.new_recurrence())
    except ConfigError as error:
        expect(len(str(error)) < 1000 and "\n" not in str(error), error)
    finally:
        for left in _PATH.parent.glob(f"{_PATH.name}*"):
            left.unlink()


def _spoil(picker: Picker) -> None:
    with closing(sqlite3.connect(_PATH, isolation_level=None)) as rows:
        for _ in range(1 + picker.below(2)):
            table, column = picker.one_of(_TEXTS)
            found = rows.execute(f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL").fetchall()
            if not found:
                return
            row, text = found[picker.below(len(found))]
            if not (isinstance(text, str) and text.startswith(("{", "[{"))):
                continue  # it is spoiled already
            if picker.rarely():
                table, column = picker.one_of(_CELLS)
                value: object = picker.one_of((None, -1, 2**62, "x", b"\xff", 1e308, ""))
            elif picker.rarely():
                value = picker.one_of(("", "[" * 5000, b"\xff\xfe", "null", "1e999"))
            else:
                value = json.dumps(spoiled(json.loads(text), picker)).encode("utf-8", "replace").decode()
            try:
                rows.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, row))
            except (sqlite3.IntegrityError, OverflowError):
                continue


@cache
def _good(policy: str) -> bytes:
    """Three recurrences."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "state.sqlite"
        known = Recurrences(path, _JOB, policy)
        for recurrence in range(3):
            trial = known.begin(known.new_recurrence())
            known.end(trial, Outcome("reached", 9 + recurrence, 900.0, 90.0, trial.settings))
        return path.read_bytes()
