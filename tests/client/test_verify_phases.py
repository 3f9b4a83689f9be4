"""The checks of phases say the same whatever number of rows they look at together."""

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_client import verify_phases

KINDS = ['{"name": "a", "attributes": {}}', '{"name": "b", "attributes": {}}']


def said(columns, rows, monkeypatch):
    monkeypatch.setattr(verify_phases, "_ROWS", rows)
    with h5py.File("phases.h5", "w", driver="core", backing_store=False) as file:
        group = file.create_group("phases")
        for name, values in columns.items():
            group[name] = values
        group.create_dataset("kinds", data=KINDS, dtype=h5py.string_dtype())
        file.create_dataset("processes", data=['{"pid": 1}', '{"pid": 2}'], dtype=h5py.string_dtype())
        check, wrong = verify_phases.phases(file), []
        while True:
            try:
                wrong.append(next(check))
            except StopIteration as end:
                return wrong, end.value


def good(m):
    begin = np.arange(m, dtype=np.int64) * 10
    end, parent = begin + 9, np.full(m, -1, np.int64)
    end[0], parent[1 : m // 2] = 10 * m, 0
    kind, process, cut = np.arange(m, dtype=np.int32) % 2, np.zeros(m, np.int32), np.zeros(m, np.uint8)
    return {"begin_ns": begin, "end_ns": end, "kind": kind, "parent": parent, "process": process, "cut": cut,
            "begin_bound_ns": np.zeros(m, np.int64), "end_bound_ns": np.zeros(m, np.int64)}  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    damage=st.lists(st.tuples(st.sampled_from(sorted(good(1))), st.integers(0, 29), st.integers(-3, 400)), max_size=6),
    rows=st.integers(1, 29),
)
def test_rows_are_looked_at_in_parts(damage, rows):
    columns = good(30)
    for name, at, value in damage:
        columns[name][at] = max(value, 0) % 256 if name == "cut" else value
    with pytest.MonkeyPatch.context() as patch:
        assert said(columns, rows, patch) == said(columns, 30, patch)


def test_each_fault_is_named_with_its_first_phase_and_their_number(monkeypatch):
    columns = good(30)
    assert said(columns, 7, monkeypatch)[0] == []
    columns["end_ns"][[9, 20]] = -5
    columns["process"][[3, 12]] = 1
    wrong, text = said(columns, 7, monkeypatch)
    assert wrong == [
        "phase 9 ends before it begins, and 1 more",
        "phase 3 lies in another process's phase, and 1 more",
    ]
    assert text == "30 phases of 2 kinds in 2 processes"
