"""Phases that are left of a damaged file: whole rows, each in the nearest one left that it lies in."""

import json

import h5py
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_client import recover_phases as module
from powerd_client.recover_phases import recover_phases

KINDS = [{"name": "a", "attributes": {}, "timing": "host"}, {"name": "b", "attributes": {}, "timing": "cuda"}]
LOST = 7
"""A kind that is not listed: such a row is none."""


@st.composite
def rows(draw):
    found = []
    for i in range(draw(st.integers(0, 20))):
        begin = draw(st.integers(0, 9))
        row = {"begin_ns": begin, "end_ns": begin + draw(st.integers(-1, 9)), "parent": draw(st.integers(-1, i))}
        row |= {"kind": draw(st.sampled_from([0, 1, 0, 1, LOST])), "process": draw(st.sampled_from([0, 0, 0, 1, 3]))}
        found.append(row | {"cut": draw(st.integers(0, 1)), "begin_bound_ns": i, "end_bound_ns": -1})
    return found


def group_of(rows):
    file = h5py.File("phases.h5", "w", driver="core", backing_store=False)
    dtypes = {"kind": np.int32, "process": np.int32, "cut": np.uint8}
    names = ("begin_ns", "end_ns", "parent", "kind", "process", "cut", "begin_bound_ns", "end_bound_ns")
    for name in names:
        file.create_dataset(name, data=np.array([r[name] for r in rows], dtypes.get(name, np.int64)))
    return dict(file)


def expected(rows):
    """Row by row: what is left, whom it lies in, and in which order."""
    left = [i for i, r in enumerate(rows) if r["kind"] < 2 and r["process"] < 2 and r["begin_ns"] <= r["end_ns"]]
    parents = {}
    for i in left:
        at = i
        while at >= 0 and (at == i or at not in left):
            at = rows[at]["parent"] if rows[at]["parent"] < at else -1
        inner, outer = rows[i], rows[at]
        fits = at >= 0 and outer["process"] == inner["process"]
        fits = fits and outer["begin_ns"] <= inner["begin_ns"] and inner["end_ns"] <= outer["end_ns"]
        parents[i] = at if fits else -1
    order = sorted(left, key=lambda i: (rows[i]["begin_ns"], -rows[i]["end_ns"], i))
    return [rows[i] | {"parent": order.index(parents[i]) if parents[i] >= 0 else -1} for i in order]


@settings(max_examples=80, deadline=None)
@given(rows(), st.integers(1, 25))
def test_what_is_left_is_what_each_row_says(made, size):
    lost = []
    module.AT_A_TIME, before = size, module.AT_A_TIME
    try:
        found = recover_phases(group_of(made), KINDS, 2, lost)
    finally:
        module.AT_A_TIME = before
    wanted = expected(made)
    for name, column in found.columns.items():
        assert column.tolist() == [r[name] for r in wanted], name
    assert lost == ([f"{len(made) - len(wanted)} of {len(made)} phases"] if len(wanted) < len(made) else [])
    reach = (min(r["begin_ns"] for r in wanted), max(r["end_ns"] for r in wanted)) if wanted else None
    assert found.reach_ns == reach


def test_they_are_written_as_a_run_file_has_them(tmp_path):
    edges = {"begin_ns": 5, "end_ns": 9, "begin_bound_ns": 3, "end_bound_ns": -1}
    made = [edges | {"parent": -1, "kind": 1, "process": 0, "cut": 1}]
    with h5py.File(tmp_path / "out.h5", "w") as file:
        recover_phases(group_of(made), KINDS, 1, []).write(file, KINDS)
        group = file["phases"]
        assert {n: group[n][:].tolist() for n in made[0]} == {n: [v] for n, v in made[0].items()}
        dtypes = [group[n].dtype.str for n in ("begin_ns", "kind", "parent", "process", "cut")]
        assert dtypes == ["<i8", "<i4", "<i8", "<i4", "|u1"]
        assert [json.loads(k) for k in group["kinds"].asstr()[:]] == KINDS


def test_columns_that_are_no_whole_numbers_are_no_phases():
    group = group_of([])
    file = h5py.File("other.h5", "w", driver="core", backing_store=False)
    group["kind"] = file.create_dataset("kind", data=np.array([0.5, 1.0]))
    lost = []
    assert recover_phases(group, KINDS, 1, lost).reach_ns is None
    assert lost == ["2 of 2 phases"]
