"""Phases of a run file as columns, whatever their number is divided into."""

import json

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_analytics.runs import phases as module
from powerd_analytics.runs.phases import PhaseClass, as_range, crowded_classes, read_phases, select_phases

KINDS = [
    {"name": "training", "attributes": {"batch_size": 8}, "timing": "host"},
    {"name": "forward", "attributes": {}, "timing": "host"},
    {"name": "forward", "attributes": {"layer": "a"}, "timing": "host"},
    {"name": "forward", "attributes": {"layer": "a"}, "timing": "cuda"},
]


@st.composite
def nests(draw):
    """Kinds and parents of phases, each parent before its phase."""
    m = draw(st.integers(0, 25))
    kind = draw(st.lists(st.integers(0, len(KINDS) - 1), min_size=m, max_size=m))
    return kind, [draw(st.integers(-1, i - 1)) for i in range(m)]


def group_of(kind, parent, **columns):
    file = h5py.File("phases.h5", "w", driver="core", backing_store=False)
    group, m = file.create_group("phases"), len(kind)
    made = {"begin_ns": np.arange(m), "end_ns": np.arange(m) + 1, "process": np.zeros(m, int), "cut": np.zeros(m, int)}
    for name, values in (made | {"kind": kind, "parent": parent} | columns).items():
        group[name] = np.array(values, np.int64)
    group.create_dataset("kinds", data=[json.dumps(k) for k in KINDS], dtype=h5py.string_dtype())
    return group


@settings(max_examples=60, deadline=None)
@given(nests(), st.integers(1, 30))
def test_every_phase_has_the_path_and_attributes_of_those_around_it(nest, size):
    kind, parent = nest
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "AT_A_TIME", size)
        found = read_phases(group_of(kind, parent))
        of_some = found.of([i for i, c in enumerate(found.classes) if c.name == "forward"])
    above: list[list[int]] = []
    for i, p in enumerate(parent):
        above.append([*(above[p] if p >= 0 else []), kind[i]])
    for i, kinds in enumerate(above):
        assert found.depth[i] == len(kinds) - 1
        seen = found.classes[found.label[i]]
        assert seen.path == tuple(KINDS[k]["name"] for k in kinds)
        assert seen.attributes == {n: v for k in kinds for n, v in KINDS[k]["attributes"].items()}
        assert seen.timing == KINDS[kinds[-1]]["timing"]
        assert of_some[i] == (seen.name == "forward")
    assert len({(c.path, c.group, c.timing) for c in found.classes}) == len(found.classes)


@settings(max_examples=40, deadline=None)
@given(nests(), st.data())
def test_what_is_kept_stays_inside_what_is_kept(nest, data):
    kind, parent = nest
    which = np.array(data.draw(st.lists(st.booleans(), min_size=len(kind), max_size=len(kind))), bool)
    left = np.flatnonzero(which)
    found = select_phases(read_phases(group_of(kind, parent)), which)
    assert found.begin_ns.tolist() == left.tolist()
    for new, old in zip(found.parent.tolist(), left, strict=True):
        assert new == (left.tolist().index(parent[old]) if parent[old] >= 0 and which[parent[old]] else -1)
    assert np.arange(len(which))[as_range(which)].tolist() == left.tolist()


def test_bounds_beyond_two_seconds_stay_what_they_are():
    bounds = [7, 3_000_000_000]
    found = read_phases(group_of([0, 1], [-1, 0], begin_bound_ns=bounds, end_bound_ns=[-1, 5]))
    assert found.begin_bound_ns.tolist() == bounds
    assert found.end_bound_ns.tolist() == [-1, 5]


def test_very_many_values_are_told_of_the_outermost_phase_that_has_them():
    classes = [PhaseClass(("epoch",), {"model": "a", "i": i}, "host") for i in range(1000)]
    classes += [PhaseClass(("epoch", "forward"), {"model": "a", "i": i}, "host") for i in range(1000)]
    classes += [PhaseClass(("epoch", "forward", "layer"), {"i": 1, "layer": f"conv{k}"}, "host") for k in range(1000)]
    (told,) = crowded_classes(classes)
    assert told.startswith("phase 'epoch' has 1,000 values of its attribute 'i': ")
    assert crowded_classes(classes[1:]) == []
