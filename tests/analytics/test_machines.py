"""A training over several machines: its files are found, told from repeats, and every joule is counted once."""

import json
from itertools import count

import h5py
import pytest
from command import joules
from hypothesis import given, settings
from hypothesis import strategies as st
from make_job import LAUNCH, TRAINED, machine
from make_run import S

from powerd_analytics.frame.figures import concat_frames, frame_from, rows_of, run_frame
from powerd_analytics.frame.machines import Member, jobs_of, merge_machines
from powerd_analytics.frame.repeats import average_repeats
from powerd_analytics.frame.trainings import read_runs
from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.run import read_run
from powerd_analytics.views.layouts import without_violated
from powerd_core.errors import AnalysisError

LENGTH_S = TRAINED.end_ns / S


def of_kind(frame, kind, **values):
    return [r for r in rows_of(frame) if r["kind"] == kind and all(r[k] == v for k, v in values.items())]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    path = tmp_path_factory.mktemp("pair")
    return [machine(path / "run.h5", 0), machine(path / "run.node1.h5", 1, begin_s=0.4)]


@pytest.fixture(scope="module")
def tables(pair):
    return [phase_table(read_run(path)) for path in pair]


@pytest.fixture(scope="module")
def merged(pair):
    return read_runs(pair)


@pytest.fixture(scope="module")
def frames(pair):
    return [run_frame(path) for path in pair]


def as_others(frames, about):
    """The frames of a pair's machines with other cells, as further runs: (number of the machine, cells) of each."""
    found = [
        frames[number].assign(run=f"{i}", path=f"{i}.h5", run_id=f"{i}", **own) for i, (number, own) in enumerate(about)
    ]
    return concat_frames(found)


class TestSums:
    def test_the_total_is_the_sum_of_both_files_devices(self, merged, tables):
        frame = merged
        (total,) = of_kind(frame, "total")
        assert len([row for table in tables for row in table.runs]) == 4
        expected = sum(row.energy_j for table in tables for row in table.totals)
        assert total["energy_j"] == pytest.approx(expected, rel=1e-12)
        assert (total["device"], total["ranks"], total["machines"]) == ("gpu0+gpu1 of 2 machines", 4, 2)
        assert total["note"] == ""
        # Whole recordings stay machine by machine.
        runs = of_kind(frame, "run")
        assert [(r["host"], r["device"]) for r in runs] == [(f"host{m}", f"gpu{k}") for m in (0, 1) for k in (0, 1)]
        ranks = of_kind(frame, "rank", phase="forward")
        assert [r["rank"] for r in ranks] == [0, 1, 2, 3]
        assert {r["iterations"] for r in ranks} == {6}

    def test_phases_are_joules_of_all_ranks_and_seconds_of_one(self, merged, tables):
        records = merged
        for name in ("forward", "backward", "update", "iteration"):
            (row,) = of_kind(records, "phase", phase=name)
            parts = [p for t in tables for p in t.phases if p.phase == name]
            assert row["j_per_batch"] == pytest.approx(sum(p.j_per_batch for p in parts), rel=1e-12)
            assert row["s_per_batch"] == pytest.approx(parts[0].s_per_batch)
            assert row["power_w"] == pytest.approx(sum(p.power_w for p in parts))
            assert row["u_systematic_j"] == pytest.approx(sum(p.u_systematic_j**2 for p in parts) ** 0.5)
            assert (row["iterations"], row["ranks"], row["gpus"]) == (6, 4, 4)
        (total,) = of_kind(records, "total")
        parts = [t for table in tables for t in table.totals]
        assert total["energy_j"] == pytest.approx(sum(p.energy_j for p in parts), rel=1e-12)
        assert total["time_s"] == pytest.approx(parts[0].time_s)
        assert total["samples_per_s"] == pytest.approx(4 * 64 * 6 / total["time_s"])
        # Every rank did the operations: the figure is that of all operations over all joules.
        both = sum(of_kind(records, "phase", phase=n)[0]["j_per_batch"] for n in ("forward", "backward"))
        assert total["gflops_per_w"] == pytest.approx(4 * 2 * 726.4e6 * 64 / both / 1e9)

    def test_a_board_that_both_recorders_read_counts_once(self, tmp_path):
        paths = [machine(tmp_path / "a.h5", 0, shared=True, with_gpus=False),
                 machine(tmp_path / "b.h5", 1, shared=True, with_gpus=False, longer_ns=S)]  # fmt: skip
        records = read_runs(paths)
        longest = phase_table(read_run(paths[1]))
        (total,) = of_kind(records, "total")
        assert total["energy_j"] == pytest.approx(longest.totals[0].energy_j, rel=1e-3)
        (run,) = of_kind(records, "run")
        assert (run["run"], run["note"]) == ("b", "a recorded it as well: it counts once")
        assert run["energy_j"] == pytest.approx(longest.runs[0].energy_j, rel=1e-12)
        # Both machines did the same at once: a phase of all four ranks is the whole device for its length.
        (forward,) = of_kind(records, "phase", phase="forward")
        assert (forward["note"], of_kind(records, "total")[0]["note"]) == ("", "")
        alone = [p for p in phase_table(read_run(paths[0])).phases if p.phase == "forward"]
        assert forward["j_per_batch"] == pytest.approx(2 * alone[0].j_per_batch, rel=1e-3)

    @pytest.mark.quick("several machines of one training")
    def test_a_machine_without_readings_leaves_no_sum(self, tmp_path, frames):
        path = machine(tmp_path / "1.h5", 1)
        with h5py.File(path, "r+") as file:
            file["lines/gpu0.nvml/flags"][:] = 1
        records = merge_machines(concat_frames([frames[0], run_frame(path)]))
        assert of_kind(records, "total")[0]["energy_j"] is None
        (forward,) = of_kind(records, "phase", phase="forward")
        assert forward["j_per_batch"] is None
        assert "no joules of gpu0 of 1" in forward["note"]

    @settings(max_examples=10, deadline=None)
    @given(
        st.lists(
            st.lists(st.tuples(st.integers(1, 4), st.floats(1.0, 1e5), st.floats(0, 1)), min_size=1, max_size=3),
            min_size=2,
            max_size=4,
        )
    )
    def test_the_sum_is_that_of_the_devices_whatever_their_numbers(self, machines):
        records, world = [], sum(n for m in machines for n, _, _ in m)
        first = 0
        for i, devices in enumerate(machines):
            numbers = list(range(first, first + sum(n for n, _, _ in devices)))
            first += len(numbers)
            common = {
                "path": f"{i}.h5", "run": f"{i}", "run_id": f"{i}", "host": f"h{i}", "gpus": 1, "job": "slurm 7.0",
                "world_size": world, "rank_numbers": " ".join(map(str, numbers)), "provenance": "measured",
                "ranks": len(numbers), "is_lower_bound": False, "runs": 1, "time_s": 9.0, "iterations": 3,
            }  # fmt: skip
            for d, (n, energy_j, u_j) in enumerate(devices):
                own = {"device": f"gpu{d}", "device_ids": f"line:{i}/gpu{d} gpu:{i}{d}", "sharing": n}
                own |= {"energy_j": energy_j, "u_statistical_j": 0.0, "u_systematic_j": u_j}
                records += [common | own | {"kind": kind} for kind in ("total", "run")]
            records += [common | {"kind": "rank", "rank": number, "s_per_batch": 3.0} for number in numbers]
        (total,) = of_kind(merge_machines(frame_from(records)), "total")
        every = [d for m in machines for d in m]
        assert total["energy_j"] == pytest.approx(sum(energy for _, energy, _ in every), rel=1e-9)
        assert total["u_systematic_j"] == pytest.approx(sum(u**2 for _, _, u in every) ** 0.5, rel=1e-9, abs=1e-12)
        assert (total["ranks"], total["machines"], total["iterations"]) == (world, len(machines), 3)

    def test_every_column_of_a_sum_follows_its_rule(self):
        records = []
        for m in range(2):
            common = {
                "path": f"{m}.h5", "run": f"{m}", "run_id": f"{m}", "host": f"h{m}", "gpus": 2, "job": "slurm 7.0",
                "world_size": 4, "rank_numbers": f"{2 * m} {2 * m + 1}", "provenance": "measured", "ranks": 2,
                "cores": 8 + m, "iterations": 3, "time_s": 9.0,
            }  # fmt: skip
            for d in range(2):
                own = {"device": f"gpu{d}", "device_ids": f"gpu:{m}{d}", "sharing": 1, "energy_j": 100.0}
                own |= {"power_cap_w": 200.0 + m, "off_by_j": 1.0 + m, "missing_s": 0.5, "sd_j": 2.0}
                own |= {"verdict": ("honoured, slack", "overridden")[m], "is_held": m == 1, "driver_version": f"v{m}"}
                records += [common | own | {"kind": kind} for kind in ("total", "run")]
                records.append(common | {"kind": "rank", "rank": 2 * m + d, "s_per_batch": 3.0})
        (total,) = of_kind(merge_machines(frame_from(records)), "total")
        assert {name: total[name] for name in ("energy_j", "power_cap_w", "off_by_j", "missing_s", "cores")} == {
            "energy_j": 400.0, "power_cap_w": 200.5, "off_by_j": 6.0, "missing_s": 2.0, "cores": 17,
        }  # fmt: skip
        assert (total["verdict"], total["driver_version"]) == ("honoured, slack; overridden", "v0; v1")
        assert (total["is_held"], total["sd_j"]) == (True, None)
        with pytest.raises(AnalysisError, match="nothing is left of these runs.*overridden"):
            without_violated(frame_from([total]))

    @pytest.mark.parametrize("iterations", [3, None])
    def test_a_phase_that_no_rank_counts_has_no_joules_instead_of_0(self, iterations):
        records = []
        for m in range(2):
            common = {
                "path": f"{m}.h5", "run": f"{m}", "run_id": f"{m}", "host": f"h{m}", "gpus": 1, "job": "slurm 7.0",
                "world_size": 2, "rank_numbers": f"{m}", "provenance": "measured", "ranks": 1, "phase": "eval",
                "s_per_batch": 3.0,
            }  # fmt: skip
            own = {"device": "gpu0", "device_ids": f"gpu:{m}", "sharing": 1, "j_per_batch": 50.0, "iterations": 3}
            records += [common | own | {"kind": "phase"}, common | own | {"kind": "run", "energy_j": 150.0}]
            records.append(common | {"kind": "rank", "rank": m, "iterations": iterations})
        (phase,) = of_kind(merge_machines(frame_from(records)), "phase")
        assert phase["j_per_batch"] == (100.0 if iterations else None)
        assert ("not resolvable: no rank says" in str(phase["note"])) == (iterations is None)


class TestRecognition:
    def test_repeats_of_one_command_with_the_same_address_are_jobs_of_their_own(self, frames):
        # One after the other; machine 1's clock is 0.3 s behind.
        begins_s = [(number, repeat * (LENGTH_S + 0.1) - 0.3 * number) for number in range(2) for repeat in range(3)]
        records = merge_machines(as_others(frames, [(number, {"begin_unix_s": s}) for number, s in begins_s]))
        assert [r["run"] for r in of_kind(records, "total")] == [f"{i}; {i + 3}" for i in range(3)]
        (total,) = of_kind(average_repeats(records), "total")
        assert total["runs"] == 3
        assert total["energy_j"] == pytest.approx(of_kind(records, "total")[0]["energy_j"], rel=1e-6)

    @pytest.mark.parametrize(("job", "machines"), [("slurm 7.0", [2]), (LAUNCH, [None] * 4)])
    def test_a_slurm_step_is_one_job_whatever_its_clocks_say(self, frames, job, machines):
        about = [(number, {"job": job, "begin_unix_s": 1e5 * number}) for number in range(2)]
        records = merge_machines(as_others(frames, about))
        assert [r["machines"] for r in of_kind(records, "total")] == machines

    @given(st.data())
    def test_no_rank_is_in_a_job_twice(self, data):
        names = count()
        members = []
        for _ in range(data.draw(st.integers(1, 12))):
            begin = data.draw(st.floats(0, 100))
            ranks = data.draw(st.frozensets(st.integers(0, 7), min_size=1, max_size=4))
            job = data.draw(st.sampled_from(["slurm 1.0", "torchrun none at h:1", "ranks at h:2"]))
            members.append(Member(f"{next(names)}", job, 8, ranks, begin, begin + data.draw(st.floats(0, 50)), None))
        jobs = jobs_of(members)
        assert sorted(m.path for job in jobs for m in job) == sorted(m.path for m in members)
        for job in jobs:
            assert len({m.job for m in job}) == 1
            assert sum(len(m.ranks) for m in job) == len(frozenset().union(*(m.ranks for m in job)))


class TestByHand:
    def test_files_that_do_not_say_of_which_launch_they_are(self, tmp_path, capsys):
        paths = [machine(tmp_path / f"{i}.h5", i, job=None) for i in range(2)]
        code, out, err = joules(capsys, "tables", *paths)
        assert (code, out) == (2, "")
        assert "do not say of which launch they are" in err
        assert "--job" in err
        code, out, _ = joules(capsys, "tables", *paths, "--job", "--table", "totals", "--format", "json")
        (row,) = json.loads(out)
        expected = sum(t.energy_j for p in paths for t in phase_table(read_run(p)).totals)
        assert row["energy_j"] == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("number", "world_size", "text"),
        [
            (0, 4, "rank 0 is in .* they are not of one job"),
            (1, 6, "of a training of 4 ranks, .* of one of 6"),
            (0, 2, "not a part of a training over several machines"),
        ],
    )
    def test_what_cannot_be_one_job(self, frames, number, world_size, text):
        both = as_others(frames, [(0, {}), (number, {"world_size": world_size})])
        with pytest.raises(AnalysisError, match=text):
            merge_machines(both, by_hand=True)


class TestCommands:
    def test_an_index_holds_the_job_once(self, tmp_path, capsys):
        paths = [machine(tmp_path / f"{i}.h5", i) for i in range(2)]
        assert joules(capsys, "query", tmp_path, "--jobs", "1")[0] == 0
        ask = "select count(*) n, sum(energy_j) j from totals"

        def answer(sql):
            code, out, err = joules(capsys, "query", tmp_path, sql, "--format", "json")
            assert code == 0, err
            return json.loads(out)

        (total,) = of_kind(read_runs(paths), "total")
        (row,) = answer(ask)
        assert row["n"] == 1
        assert row["j"] == pytest.approx(total["energy_j"])
        assert rows_of(read_runs([tmp_path / "index.parquet"])) == rows_of(read_runs([tmp_path]))
        paths[1].unlink()
        assert joules(capsys, "query", tmp_path, "--jobs", "1")[0] == 0
        assert answer(ask)[0]["n"] == 2  # a part of which no other is there has a total for each GPU
