"""Which phases are iterations, and in whose group phases are: by nesting."""

import io
import json
import re
from collections import Counter

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from make_run import MS, LineSpec, PhaseSpec, make_run
from rich.console import Console

from powerd_analytics import phase_table, read_run
from powerd_analytics.frame.figures import frame_of
from powerd_analytics.frame.figures import rows_of as rows_of_frame
from powerd_analytics.output.text import digits
from powerd_analytics.run_tables.closing_lines import result_lines
from powerd_analytics.run_tables.iterations import iteration_rows
from powerd_analytics.run_tables.layers import layer_energies
from powerd_analytics.run_tables.table import group_key, labels_of, parts_among
from powerd_analytics.run_tables.terminal_table import print_tree
from powerd_client.signals.pairing import Kinds, PhaseSpans, add_iterations, name_models

A = {"model": "A", "batch_size": 64}
D, G = {"model": "D", "batch_size": 64}, {"model": "G", "batch_size": 64}
FORWARD_D, BACKWARD_D, UPDATE_D = ("forward", D), ("backward", D), ("update", D)
FORWARD_G, BACKWARD, UPDATE_G = ("forward", G), ("backward", {"batch_size": 64}), ("update", G)
EDGE, PASS = 2 * MS, 10 * MS
"""What a phase lasts before, between and behind those inside, and one without phases inside."""


def spans_of(trees, kinds):
    """The phases of a nesting, ``(name, attributes, [those inside])`` each, as the client pairs them."""
    spans, t = PhaseSpans(), 20 * MS

    def add(name, attributes, inside=(), *, parent):
        nonlocal t
        i, begin = len(spans.kind), t
        values = {"begin_ns": begin, "end_ns": begin, "kind": kinds.number(
            {"name": name, "attributes": attributes, "timing": "host"}
        ), "parent": parent, "process": 0, "thread": 0, "cut": 0, "begin_bound_ns": 0, "end_bound_ns": 0}  # fmt: skip
        for column, value in values.items():
            getattr(spans, column).append(value)
        for one in inside:
            t += EDGE
            add(*one, parent=i)
        t += EDGE if inside else PASS
        spans.end_ns[i] = t

    for tree in trees:
        add(*tree, parent=-1)
        t += EDGE
    return spans


def phases_of(trees, kinds, first=0, process=0):
    """The phases of a nesting with the iterations that the client adds; ``first`` is the number of the first."""
    spans = spans_of(trees, kinds)
    add_iterations(spans, kinds)
    name_models(spans, kinds)
    return [
        PhaseSpec(
            kinds.entries[k]["name"], b, e, kinds.entries[k]["attributes"], up if up < 0 else first + up, bool(cut),
            process=process,
        )
        for k, b, e, up, cut in zip(spans.kind, spans.begin_ns, spans.end_ns, spans.parent, spans.cut, strict=True)
    ]  # fmt: skip


def written(path, phases, devices=("gpu0",), **more):
    end_ns = max((phase.end_ns for phase in phases), default=0) + 20 * MS

    def power(t):
        watts = np.random.default_rng(1).uniform(50, 300, end_ns // (3 * MS) + 2)
        return watts[t // (3 * MS)]

    lines = [
        LineSpec(f"{name}.a", power, device=name, period_ns=MS // 2, detail={"uuid": uuid(k)})
        for k, name in enumerate(devices)
    ]
    return make_run(path, lines, phases, end_ns=end_ns, **more)


def uuid(number):
    return f"GPU-0000000{number}-0000-0000-0000-000000000000"


def recorded(path, trees, unused=()):
    """A run of these phases, with the iterations that the client adds."""
    kinds = Kinds()
    for name in unused:
        kinds.number({"name": name, "attributes": {}, "timing": "host"})
    made = written(path, phases_of(trees, kinds))
    if unused:
        with h5py.File(made, "r+") as file:
            texts = [*file["phases/kinds"].asstr()[:], *(json.dumps(kinds.entries[k]) for k in range(len(unused)))]
            del file["phases/kinds"]
            file.create_dataset("phases/kinds", data=texts, dtype=h5py.string_dtype())
    return read_run(made)


def check_parts(rows, total):
    """What a group consists of and its rest are all of it, and so it is with every phase that has others inside."""
    parts = parts_among(rows)
    for row in rows:
        if row.rest_j is not None and row.j_per_batch and not row.holds_others:
            inner = [r for r in rows if r.place[:-1] == row.place and r is not row]
            inner_j = sum((r.j_per_batch or 0.0) * r.iterations for r in inner)
            assert inner_j + row.rest_j * row.iterations == pytest.approx(row.j_per_batch * row.iterations, rel=1e-6)
            assert row.rest_u95_j > 0 or row.rest_j == 0
            assert row.rest_j >= -row.rest_u95_j
    joules = sum((row.j_per_batch or 0.0) * row.iterations for row in parts)
    assert joules + (total.rest_j or 0.0) == pytest.approx(total.energy_j, rel=1e-6, abs=1e-9)
    assert total.rest_j is None or total.rest_j >= -total.rest_u95_j


def is_ambiguous(p, key_of):
    """Whether a phase is in one of another group whose path is in its own group too: rows know no more than paths."""
    paths = {(key, kind.shown) for key, kind in zip(key_of, p.classes, strict=True)}
    for own, up in enumerate(p.parent.tolist()):
        key = key_of[p.label[own]]
        while up >= 0:
            kind, key_up = p.classes[p.label[up]], key_of[p.label[up]]
            if key_up != key and (key, kind.shown) in paths:
                return True
            up = p.parent[up]
    return False


def check(run):
    """Every joule is in one part, or in the rest, of one group, or outside."""
    p, table = run.phases, phase_table(run)
    assert len(table.runs) == 1
    exclusive = p.end_ns - p.begin_ns
    inner = p.parent >= 0
    np.subtract.at(exclusive, p.parent[inner], (p.end_ns - p.begin_ns)[inner])
    key_of = [group_key(dict(kind.group)) for kind in p.classes]
    for total in table.totals:
        own = [i for i, key in enumerate(key_of) if key == group_key(total.group)]
        assert total.time_s == pytest.approx(exclusive[p.of(own)].sum() * 1e-9, rel=1e-9)
        rows = [row for row in table.phases if group_key(row.group) == group_key(total.group)]
        of_rows = np.concatenate([np.flatnonzero(p.of(labels_of(run, row))) for row in rows])
        assert len(of_rows) == len(set(of_rows))
        if not is_ambiguous(p, key_of):
            check_parts(rows, total)
    (whole,) = table.runs
    assert sum(total.energy_j for total in table.totals) + whole.rest_j == pytest.approx(whole.energy_j, rel=1e-9)
    iterations = p.of([i for i, kind in enumerate(p.classes) if kind.is_iteration])
    up = np.where(inner, p.parent, -1)
    while (up >= 0).any():
        inside = np.flatnonzero((up >= 0) & iterations[up])
        assert not iterations[inside].any()  # none is in another one
        for i in inside.tolist():
            assert key_of[p.label[i]] == key_of[p.label[up[i]]]
        up = np.where(up >= 0, p.parent[up], -1)
    return table


names = st.sampled_from(
    ["forward", "backward", "update", "data", "evaluation", "gradient", "iteration", "train_step", "epoch", "augment"]
)
attributes = st.sampled_from([{}, D, G, {"optimizer": 0}, {"optimizer": 1}, {"batch_size": 64}, {"batch_size": 16}])
trees = st.recursive(
    st.tuples(names, attributes), lambda inner: st.tuples(names, attributes, st.lists(inner, max_size=4)), max_leaves=12
)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(trees, min_size=1, max_size=8))
@example([FORWARD_D, ("forward", {}, [FORWARD_D])])
def test_any_nesting_of_phases_adds_up(tmp_path_factory, nesting):
    check(recorded(tmp_path_factory.mktemp("r") / "r.h5", nesting))


@st.composite
def trainings(draw):
    """Loops as trainings have them: models that take turns, accumulated gradients, closures, evaluation, epochs."""

    def step(model, optimizers):
        own = {"model": model, "batch_size": 64}
        passes = [("forward", own), ("backward", own)]
        updates = [("update", own | {"optimizer": k} if optimizers > 1 else own) for k in range(optimizers)]
        if draw(st.booleans()):
            return [("update", own, passes * draw(st.integers(1, 3)))]
        return passes * draw(st.integers(1, 3)) + updates

    models = draw(st.sampled_from(["D", "DG", "DGE"]))
    body = [phase for model in models for phase in step(model, draw(st.integers(1, 2)))]
    body = [("data", {})] * draw(st.integers(0, 1)) + body
    name, count = draw(st.sampled_from([None, None, "train_step", "iteration", "of mine"])), draw(st.integers(2, 4))
    loop = body * count if name is None else [(name, {}, body)] * count
    loop = loop + [("evaluation", {"model": "D", "batch_size": 64})] * draw(st.integers(0, 2))
    return [("epoch", {}, loop)] * 2 if draw(st.booleans()) else loop


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trainings())
def test_any_training_adds_up(tmp_path_factory, nesting):
    run = recorded(tmp_path_factory.mktemp("r") / "r.h5", nesting)
    table, classes = check(run), run.phases.classes
    of_passes = [t for t in table.totals if t.group.get("batch_size") == 64 and "passes" not in t.group]
    assert len(of_passes) == 1
    assert {group_key(dict(c.group)) for c in classes if c.name in ("forward", "backward", "update")} == {
        group_key(of_passes[0].group)
    }
    assert of_passes[0].samples_per_s == pytest.approx(64 * of_passes[0].iterations / of_passes[0].time_s)


@pytest.mark.slow
@settings(
    max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=[HealthCheck.too_slow]
)
@given(
    st.lists(trees, min_size=1, max_size=4),
    st.lists(trees, max_size=4),
    st.sampled_from(["a device each", "one device", "no ranks"]),
    st.booleans(),
)
@example([("iteration", A, [FORWARD_D])] * 3, [("iteration", A, [FORWARD_D, BACKWARD_D])] * 3, "no ranks", True)
@example([("iteration", A, [FORWARD_D])] * 3, [("iteration", A, [FORWARD_D, BACKWARD_D])] * 3, "one device", True)
@example([("iteration", A, [FORWARD_D, BACKWARD_D])] * 3, [], "a device each", True)
def test_no_rest_of_two_processes_is_below_zero(tmp_path_factory, first, second, how, has_stretch):
    """Two ranks of one program, or of what seems to be two."""
    kinds, phases = Kinds(), []
    for rank, nesting in enumerate((first, second or first)):
        phases += phases_of([("stretch", {}, nesting)] if has_stretch else nesting, kinds, len(phases), rank)
    processes = [{"pid": 1 + rank, "rank": rank, "world_size": 2, "devices": [
        {"index": 0, "uuid": uuid(rank if how == "a device each" else 0)}
    ]} for rank in (0, 1)]  # fmt: skip
    if how == "no ranks":
        processes = [{"pid": 1}, {"pid": 2}]
    devices = ("gpu0", "gpu1") if how == "a device each" else ("gpu0",)
    run = read_run(written(tmp_path_factory.mktemp("r") / "r.h5", phases, devices, processes=processes))
    for device in devices:
        table = phase_table(run, device)
        for row in [*table.phases, *table.totals]:
            assert row.rest_j is None or row.rest_j >= -(row.rest_u95_j or 0.0)
        for total in table.totals if how == "a device each" and not second else ():
            rows = [row for row in table.phases if group_key(row.group) == group_key(total.group)]
            if not is_ambiguous(run.phases, [group_key(dict(kind.group)) for kind in run.phases.classes]):
                check_parts(rows, total)
        console = Console(file=io.StringIO(), width=100)
        print_tree(table, console, run.path.name, is_chosen=True)
        rests = [line for line in console.file.getvalue().splitlines() if "(rest" in line]
        assert not [line for line in rests if re.search(r" -\d", line)]


layer_trees = st.lists(
    st.recursive(
        st.sampled_from(["conv", "relu", "norm"]).map(lambda name: ("layer", A | {"layer": name})),
        lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda some: ("recompute", A, some)),
        max_leaves=4,
    ),
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(layer_trees, layer_trees)
@example([("layer", A | {"layer": "conv"})] * 2, [("recompute", A, [("layer", A | {"layer": "conv"})])])
def test_layers_and_the_rest_of_a_pass_are_all_of_it(tmp_path_factory, forward, backward):
    body = [("forward", A, forward), ("backward", A, backward), ("update", A)]
    run = recorded(tmp_path_factory.mktemp("r") / "r.h5", [("iteration", {}, body)] * 3)
    if not forward + backward:
        return
    table = phase_table(run)
    rows, n = layer_energies(table), 0
    for name, inside in (("forward", forward), ("backward", backward)):
        if not inside:
            continue
        (whole,) = (r for r in rows if (r.level, r.passes) == ("phase", name))
        (rest,) = (r for r in rows if (r.level, r.passes) == ("rest", name))
        (of_pass,) = (r for r in table.phases if r.path == f"iteration/{name}")
        inner = [r for r in table.phases if r.path.startswith(f"iteration/{name}/") and "layer" in r.group]
        layers_j = sum(r.j_per_batch * r.iterations / of_pass.iterations for r in inner)
        assert layers_j + rest.j_per_batch == pytest.approx(whole.j_per_batch, rel=1e-9)
        assert rest.j_per_batch == pytest.approx(of_pass.layer_rest.energy_j, rel=1e-6)  # that of the time in no layer
        assert rest.j_per_batch > 0
        assert 0 < rest.u95_j < whole.j_per_batch
        n += 1
    assert n


# -- the loops of public training programs -----------------------------------------------------------------------------

N = 12
"""Turns of each loop."""
GAN = [FORWARD_D, BACKWARD_D, FORWARD_G, FORWARD_D, BACKWARD_D, UPDATE_D, FORWARD_D, BACKWARD, UPDATE_G]
GAN_ROWS = {
    "iteration": N, "iteration/forward D": 3 * N, "iteration/forward G": N, "iteration/backward D": 2 * N,
    "iteration/backward": N, "iteration/update D": N, "iteration/update G": N,
}  # fmt: skip
PASSES = [("forward", A), ("backward", A)]
STEP = [*PASSES, ("update", A)]
LBFGS = ("update", A, PASSES * 5)


def rows_of(table, **group):
    """How many phases each row of a group is about, by path."""
    return {row.path: row.iterations for row in table.phases if dict(row.group) == group}


def loop_of(*body):
    return [*body] * N


LOOPS = {
    "a GAN": (loop_of(*GAN), {"batch_size": 64}, N, GAN_ROWS),
    "a GAN, iterations marked": (
        loop_of(("iteration", {"batch_size": 64}, [("data", {}), *GAN])), {"batch_size": 64}, N,
        GAN_ROWS | {"iteration/data": N},
    ),
    "one trained, one frozen": (
        loop_of(FORWARD_G, FORWARD_D, FORWARD_D, BACKWARD, UPDATE_G), {"batch_size": 64}, N,
        {"iteration": N, "iteration/forward G": N, "iteration/forward D": 2 * N, "iteration/backward": N,
         "iteration/update": N},
    ),
    "G is trained every third batch": (
        loop_of(FORWARD_D, BACKWARD_D, UPDATE_D, FORWARD_D, BACKWARD_D, UPDATE_D, *GAN[2:]), {"batch_size": 64}, 3 * N,
        {"iteration": 3 * N, "iteration/forward D": 4 * N, "iteration/forward G": N, "iteration/backward D": 3 * N,
         "iteration/backward": N,"iteration/update D": 3 * N, "iteration/update G": N},
    ),
    "two optimizers": (
        loop_of(*PASSES, ("update", A | {"optimizer": 0}), ("update", A | {"optimizer": 1})), A, N,
        {"iteration": N, "iteration/forward": N, "iteration/backward": N, "iteration/update optimizer 0": N,
         "iteration/update optimizer 1": N},
    ),
    "a closure": (
        loop_of(("data", {}), LBFGS), A, N,
        {"iteration": N, "iteration/data": N, "iteration/update": N, "iteration/update/forward": 5 * N,
         "iteration/update/backward": 5 * N},
    ),
    "a step that is a closure": (
        loop_of(("train_step", {}, [LBFGS])), A, N,
        {"train_step": N, "train_step/update": N, "train_step/update/forward": 5 * N,
         "train_step/update/backward": 5 * N},
    ),
    "accumulated gradients": (
        loop_of(*PASSES, *PASSES, *STEP), A, 3 * N,
        {"iteration": 3 * N, "iteration/forward": 3 * N, "iteration/backward": 3 * N, "iteration/update": N},
    ),
    "steps in epochs": (
        [("epoch", {}, loop_of(*STEP))] * 2, A, 2 * N,
        {f"epoch/iteration{name}": 2 * N for name in ("", "/forward", "/backward", "/update")},
    ),
    "steps in steps": (
        [("warm_up_steps", {}, loop_of(("step", {}, STEP)))] * 2, A, 2 * N,
        {f"warm_up_steps/step{name}": 2 * N for name in ("", "/forward", "/backward", "/update")},
    ),
    "a smaller last batch": (
        [("iteration", {}, STEP)] * N
        + [("iteration", {}, [(name, own | {"batch_size": 16}) for name, own in STEP])], A, N,
        {"iteration": N, "iteration/forward": N, "iteration/backward": N, "iteration/update": N},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_loops_of_training_programs(name, tmp_path):
    nesting, group, iterations, rows = LOOPS[name]
    table = check(recorded(tmp_path / "r.h5", nesting))
    (total,) = (total for total in table.totals if dict(total.group) == group)
    assert total.iterations == iterations
    assert total.samples_per_s == pytest.approx(64 * iterations / total.time_s)
    assert rows_of(table, **group) == rows


@pytest.mark.parametrize("name", ["train_step", "step", "batch", "training_iter", "of_mine"])
def test_a_phase_of_ones_own_around_each_step_is_the_iteration(name, tmp_path):
    """Two forward passes a step, as of pairs of images."""
    own = {"batch_size": 64}
    step = (name, own, [("forward", own), ("forward", own), ("backward", own)])
    run = recorded(tmp_path / "r.h5", loop_of(step))
    table = check(run)
    assert rows_of(table, **own) == {name: N, f"{name}/forward": 2 * N, f"{name}/backward": N}
    (total,) = table.totals
    assert (total.iterations, total.samples_per_s) == (N, pytest.approx(64 * N / total.time_s))
    assert Counter(row["phase_path"] for rows in iteration_rows(run) for row in rows) == {name: N}
    said = result_lines(run.path)[1]
    assert f"J in {name}: " in said
    assert "forward" in said
    assert "backward" in said


def test_passes_are_no_batches_where_the_optimizer_is_never_stepped(tmp_path):
    """As where a sharpness-aware method wraps the optimizer that is watched."""
    run = recorded(tmp_path / "r.h5", loop_of(*PASSES, *PASSES), unused=["update"])
    (total,) = check(run).totals
    assert (total.samples_per_s, total.is_mixed) == (None, True)
    assert "never stepped" in total.note
    assert not any(kind.is_iteration for kind in run.phases.classes)


def test_accumulated_gradients_have_joules_a_step_of_the_optimizer(tmp_path):
    run = recorded(tmp_path / "r.h5", loop_of(*PASSES, *PASSES, *PASSES, *STEP))
    (total,) = phase_table(run).totals
    assert total.batches_per_optimizer_step == 4
    frame = frame_of(run, phase_table(run))
    (row,) = rows_of_frame(frame[frame["kind"] == "total"])
    assert row["j_per_optimizer_step"] == pytest.approx(total.energy_j / N)
    assert f"{digits(total.energy_j / N, 3)} J/optimizer step" in printed(run)
    ordinary = recorded(tmp_path / "o.h5", loop_of(*STEP))
    assert phase_table(ordinary).totals[0].batches_per_optimizer_step is None
    assert "optimizer step" not in printed(ordinary)


def printed(run):
    console = Console(file=io.StringIO(), width=100)
    print_tree(phase_table(run), console, run.path.name)
    return console.file.getvalue()


def test_the_tree_of_a_gan_has_every_pass_once(tmp_path):
    text = printed(recorded(tmp_path / "r.h5", loop_of(*GAN)))
    for name in ("forward D", "forward G", "backward D", "backward", "update D", "update G"):
        assert len(re.findall(rf"[├└] {name}  ", text)) == 1
    assert text.count("total ") == 1
    assert text.count("samples/s\n") == 2  # the heading's and the total's


def test_an_outer_phase_of_another_group_has_what_the_inner_ones_leave(tmp_path):
    """An epoch's own joules are those outside its iterations: no joule is in two totals."""
    run = recorded(tmp_path / "r.h5", [("epoch", {}, loop_of(*STEP))] * 2)
    table = check(run)
    epochs, training = sorted(table.totals, key=lambda total: len(total.group))
    assert (dict(epochs.group), epochs.iterations) == ({}, 2)
    assert epochs.energy_j == pytest.approx(epochs.rest_j)
    assert epochs.energy_j + training.energy_j == pytest.approx(table.runs[0].phases_j)
