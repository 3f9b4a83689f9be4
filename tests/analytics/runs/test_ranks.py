"""Every joule once: ranks mapped to devices, and their shares of devices."""

import json
from dataclasses import replace

import h5py
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_run import MS, LineSpec, make_run, training

from powerd_analytics.cli.info import describe_run, run_document
from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.phases import select_phases
from powerd_analytics.runs.ranks import device_identity, ranks_of
from powerd_analytics.runs.run import read_run

U = [f"{c * 8}-1111-2222-3333-{c * 12}" for c in "0123"]
TRAINED = training(batches=(64,), iterations=12, update_ms=22.9)


def phases_of(ranks, phases=TRAINED.phases, shift_ns=0):
    """The same phases in every rank, each rank ``shift_ns`` behind the one before."""
    found = []
    for rank in range(ranks):
        base, later = len(found), rank * shift_ns
        for p in phases:
            parent = p.parent + base if p.parent >= 0 else -1
            found.append(replace(p, begin_ns=p.begin_ns + later, end_ns=p.end_ns + later, parent=parent, process=rank))
    return found


def gpu(index, uuid=True, pci=True):
    return {
        "index": 0,
        "uuid": f"GPU-{U[index]}" if uuid else "",
        "pci": f"0000:0{index}:00.0" if pci else "",
    }


def rank(number, world, *devices):
    about = {"pid": 100 + number, "rank": number, "local_rank": number, "world_size": world}
    return about | ({"devices": list(devices)} if devices else {})


def gpu_line(index, *, uuid=True, pci=True, **more):
    detail = ({"uuid": f"GPU-{U[index]}"} if uuid else {}) | ({"pci_bus_id": f"00000000:0{index}:00.0"} if pci else {})
    return LineSpec(f"gpu{index}.nvml", TRAINED.power(1 + index), f"gpu{index}", "measured", detail=detail, **more)


def run_of(tmp_path, lines, processes, phases=None, attributes=None, **more):
    path = tmp_path / "run.h5"
    path.unlink(missing_ok=True)
    ranks = len([p for p in processes if "rank" in p])
    make_run(path, lines, phases_of(ranks) if phases is None else phases, end_ns=TRAINED.end_ns, **more)
    with h5py.File(path, "r+") as file:
        del file["processes"]
        file.create_dataset("processes", data=[json.dumps(p) for p in processes], dtype=h5py.string_dtype())
        for device, values in (attributes or {}).items():
            file[f"devices/{device}"].attrs.update(values)
    return read_run(path)


def devices(run):
    return {r.rank: set(r.devices) for r in ranks_of(run).ranks}


GPUS = [gpu_line(0), gpu_line(1)]
WALL = LineSpec("wall", TRAINED.power(5), "node", "measured")


ODD = gpu(1) | {"pci": gpu(0)["pci"]}
RAILS = LineSpec("rails.12v", TRAINED.power(), "rails")
CARDS = [LineSpec("card.12v", TRAINED.power(), "card"), LineSpec("other.12v", TRAINED.power(), "other")]
FEEDS = [LineSpec(f"gpu{i}.12v", TRAINED.power(), f"gpu{i}") for i in (0, 1)]
BY_PLACE = {"card": {"uuid": U[1].upper()}, "other": {"pci": "00:00.0"}}
BY_RAILS = {"gpu0": ["gpu0.12v"], "gpu1": ["gpu1.12v"]}
EVERY = {"gpu0", "gpu1", "node"}


class TestMapping:
    @pytest.mark.parametrize(
        ("lines", "first", "second", "more", "found"),
        [
            (GPUS, [gpu(1, pci=False)], [gpu(0, pci=False)], {}, ({"gpu1"}, {"gpu0"})),
            (GPUS, [ODD], [gpu(0)], {}, ({"gpu1"}, {"gpu0"})),  # the UUID counts before the address
            (CARDS, [gpu(0)], [gpu(1)], {"attributes": BY_PLACE}, ({"other"}, {"card"})),
            # Rails beside the driver are the GPU that the driver names.
            ([*FEEDS, *GPUS], [gpu(1)], [gpu(0)], {"devices": BY_RAILS}, ({"gpu1"}, {"gpu0"})),
            ([*GPUS, WALL], [], [], {}, (EVERY, EVERY)),  # a training on the processor
            # A rank that names no GPU takes from those that nobody has.
            ([*GPUS, WALL], [gpu(0)], [], {}, ({"gpu0"}, {"gpu1", "node"})),
            # A GPU that no device is may be one that nobody names.
            ([*GPUS, RAILS], [gpu(0)], [gpu(2)], {}, ({"gpu0"}, {"rails"})),
        ],
    )
    def test_who_takes_from_what(self, tmp_path, lines, first, second, more, found):
        run = run_of(tmp_path, lines, [rank(0, 2, *first), rank(1, 2, *second)], **more)
        assert devices(run) == dict(enumerate(found))
        if "attributes" in more:
            assert device_identity(run, "card").uuids == {U[1]}

    def test_a_wall_meter_belongs_to_all_and_an_idle_gpu_to_nobody(self, tmp_path):
        run = run_of(tmp_path, [*GPUS, gpu_line(2), WALL], [rank(0, 2, gpu(0)), rank(1, 2, gpu(1))])
        assert devices(run) == {0: {"gpu0", "node"}, 1: {"gpu1", "node"}}
        table = phase_table(run)
        assert [r.note for r in table.runs if r.device == "gpu2"] == ["used by no rank"]
        assert not [r for r in (*table.phases, *table.totals) if r.device == "gpu2"]
        assert "  used by no rank: gpu2" in list(describe_run(run_document(run)))


@pytest.fixture(scope="module", params=[2, 4])
def runs(request, tmp_path_factory):
    """The same readings with one rank and with several that share the device."""
    ranks, tmp_path = request.param, tmp_path_factory.mktemp("shares")
    line = LineSpec("cpu0.model", TRAINED.power(), "cpu0", "modelled")
    one = phase_table(run_of(tmp_path, [line], [rank(0, 1)]))
    several = phase_table(run_of(tmp_path, [line], [rank(i, ranks) for i in range(ranks)]))
    return one, several, ranks


class TestShares:
    def test_the_joules_of_a_run_are_the_same_whatever_its_ranks(self, runs):
        one, several, _ = runs
        for name in ("energy_j", "phases_j", "rest_j", "power_w", "u95_j"):
            a, b = (getattr(t.runs[0], name) for t in (one, several))
            assert b == pytest.approx(a, rel=1e-9), name
        for name in ("energy_j", "rest_j", "power_w", "edp_js", "time_s", "u95_j"):
            a, b = (getattr(t.totals[0], name) for t in (one, several))
            assert b == pytest.approx(a, rel=1e-9), name

    def test_a_phase_of_a_rank_has_its_share(self, runs):
        one, several, ranks = runs
        assert [r.phase for r in one.phases] == [r.phase for r in several.phases]
        for alone, shared in zip(one.phases, several.phases, strict=True):
            assert shared.ranks == ranks
            assert shared.iterations == ranks * alone.iterations
            assert shared.j_per_batch == pytest.approx(alone.j_per_batch / ranks, rel=1e-9)
            assert shared.s_per_batch == pytest.approx(alone.s_per_batch)
            assert shared.u_systematic_j == pytest.approx(alone.u_systematic_j / ranks, rel=1e-6)
            # They saw the same readings: more ranks are no more repeats.
            assert shared.u_statistical_j == pytest.approx(alone.u_statistical_j / ranks, rel=0.1)
            assert shared.note.startswith(f"mean per rank: each of {ranks} has 1/{ranks} of the device's power")
        assert several.totals[0].samples_per_s == pytest.approx(ranks * one.totals[0].samples_per_s)
        assert several.totals[0].gflops_per_w_paper is None or one.totals[0].gflops_per_w_paper is not None


def test_communication_is_in_no_sum(tmp_path):
    line = LineSpec("cpu0.model", TRAINED.power(), "cpu0", "modelled")
    plain = phases_of(2)
    beside = [
        replace(p, name="communication", parent=-1, attributes={"overlaps": True}, begin_ns=p.begin_ns + MS,
                end_ns=TRAINED.end_ns - MS)
        for p in plain if p.name == "backward"
    ]  # fmt: skip
    with_it = phase_table(run_of(tmp_path, [line], [rank(0, 2), rank(1, 2)], [*plain, *beside]))
    without = phase_table(run_of(tmp_path, [line], [rank(0, 2), rank(1, 2)], plain))
    totals = [next(t for t in table.totals if "overlaps" not in t.group) for table in (with_it, without)]
    assert totals[0].energy_j == pytest.approx(totals[1].energy_j, rel=1e-6)
    assert totals[0].rest_j == pytest.approx(totals[1].rest_j, abs=1e-4 * totals[1].energy_j)


CHOICE = st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=2, max_size=5)


@settings(max_examples=5, deadline=None)
@given(CHOICE, st.booleans())
def test_whoever_uses_what_every_joule_is_counted_once(five_ranks, choice, with_wall):
    processes = [rank(i, len(choice), *([] if c is None else [gpu(c, pci=False)])) for i, c in enumerate(choice)]
    run = replace(
        five_ranks,
        processes=tuple(processes),
        devices={n: d for n, d in five_ranks.devices.items() if with_wall or n != "node"},
        phases=select_phases(five_ranks.phases, five_ranks.phases.process < len(choice)),
    )
    ranks, table = ranks_of(run), phase_table(run)
    for whole in table.runs:
        users = ranks.users(whole.device)
        assert (whole.note == "used by no rank") is not bool(users)
        if users:
            # What the ranks' phases take and the rest are the device's total, whoever shares it.
            (total,) = [t for t in table.totals if t.device == whole.device]
            names = ("forward", "backward", "update")
            inner = [r for r in table.phases if r.device == whole.device and r.phase in names]
            assert {r.ranks for r in inner} == {len(users)}
            if all(r.is_resolvable for r in inner):
                taken = sum(r.j_per_batch * r.iterations for r in inner)
                assert taken + total.rest_j == pytest.approx(total.energy_j, rel=1e-6)


@pytest.fixture(scope="module")
def five_ranks(tmp_path_factory):
    """Five ranks that are not in step, three GPUs and a wall meter."""
    brief = training(batches=(8,), iterations=3)
    lines = [LineSpec(f"gpu{i}.nvml", brief.power(1 + i), f"gpu{i}", detail={"uuid": U[i]}) for i in range(3)]
    lines.append(LineSpec("wall", brief.power(9), "node"))
    phases = phases_of(5, brief.phases, 7 * MS)
    return run_of(tmp_path_factory.mktemp("five"), lines, [rank(i, 5) for i in range(5)], phases)
