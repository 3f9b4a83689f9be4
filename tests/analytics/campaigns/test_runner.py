"""The engine of campaigns: what is made again, what is left out, when it stops, and that a killed one goes on."""

import itertools
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from make_campaign import result

from powerd_analytics.campaign_views.campaign_figures import Campaign, run_notes
from powerd_analytics.campaigns.campaign_file import design_of
from powerd_analytics.campaigns.design import Design, Item
from powerd_analytics.campaigns.executors import submit_blocks
from powerd_analytics.campaigns.journal import NAME, Discard, History, Journal, Result, read_history
from powerd_analytics.campaigns.runner import Blocks, Runner, begin
from powerd_analytics.campaigns.simulated import Simulated
from powerd_core.errors import ConfigError, PeerError, RunFileError
from powerd_core.lease import Range

LEVELS = [1, 2, 3]


def design(**tables) -> Design:
    document = {
        "campaign": {"name": "c", "command": ["train", "{n}"]}, "factors": {"n": LEVELS}, "repeats": {"min": 4},
    }  # fmt: skip
    return design_of(document | tables)


@dataclass
class Clock:
    t_s: float = 0.0
    slept: list[float] = field(default_factory=list)

    def now_s(self) -> float:
        return self.t_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.t_s += seconds


@dataclass
class Thermometer:
    """A card that cools by a degree a second."""

    clock: Clock
    start_c: float = 30.0
    heated_c: float = 0.0
    read: int = 0

    def read_c(self) -> float:
        self.read += 1
        return max(30.0, self.start_c + self.heated_c - self.clock.t_s)


@dataclass
class Lab:
    """Answers by a script: of the n-th attempt at an item, else a result."""

    answers: dict[tuple[str, int], Discard | Exception] = field(default_factory=dict)
    made: list[tuple[Item, int]] = field(default_factory=list)

    def ranges(self) -> dict[str, Range]:
        return {}

    def run(self, item: Item, attempt: int, file: Path) -> Result | Discard:
        self.made.append((item, attempt))
        file.write_bytes(b"run")
        found = self.answers.get((item.key, attempt))
        if isinstance(found, Exception):
            del self.answers[item.key, attempt]
            raise found
        return found or result(100.0 * item.cell.levels["n"] + item.block, 1.0)


def run(folder: Path, of: Design, lab, **more) -> Journal:
    with Journal(folder) as journal:
        resolved = begin(of, lab, journal)
        Runner(resolved, Blocks(resolved), lab, journal, **more).run()
        return journal


def events(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / NAME).read_text().splitlines()]


def test_every_cell_in_every_block(tmp_path):
    lab = Lab()
    run(tmp_path, design(), lab)
    assert len(lab.made) == 3 * 4
    figures = Campaign(design(), read_history(tmp_path)).cells
    assert [f.row["runs"] for f in figures] == [4, 4, 4]
    assert [f.energy_j.value for f in figures] == [101.5, 201.5, 301.5]


@pytest.mark.parametrize("reason", ["thermal", "overridden", "clock-missed", "lease-lost", "failed"])
def test_what_does_not_count_is_made_again_and_kept_aside(tmp_path, reason):
    item = design().block(1, design().cells())[0]
    lab = Lab({(item.key, 1): Discard(reason, "why"), (item.key, 2): Discard(reason, "why")})
    run(tmp_path, design(), lab)
    assert [attempt for made, attempt in lab.made if made == item] == [1, 2, 3]
    record = read_history(tmp_path).records[item.key]
    assert record.result is not None
    assert [d.reason for d in record.discards] == [reason, reason]
    assert sorted(p.name for p in (tmp_path / "discarded").iterdir()) == [f"{item.key}-1.h5", f"{item.key}-2.h5"]
    assert {p.name for p in (tmp_path / "runs").iterdir()} & {f"{item.key}-1.h5", f"{item.key}-2.h5"} == set()


def test_a_cell_without_memory_is_left_out_at_once(tmp_path):
    item = design().block(0, design().cells())[1]
    lab = Lab({(item.key, 1): Discard("out-of-memory", "CUDA out of memory")})
    run(tmp_path, design(), lab)
    assert sum(made.cell == item.cell for made, _ in lab.made) == 1
    history = read_history(tmp_path)
    assert history.left[item.cell.id].reason == "out-of-memory"
    assert len(Campaign(design(), history).cells) == 2


def test_a_run_that_never_counts_is_given_up_and_the_rest_goes_on(tmp_path):
    item = design().block(0, design().cells())[0]
    lab = Lab({(item.key, n): Discard("thermal") for n in range(1, 9)})
    run(tmp_path, design(), lab)
    assert [attempt for made, attempt in lab.made if made == item] == [1, 2, 3]
    assert read_history(tmp_path).records[item.key].is_given_up
    assert len(lab.made) == 3 * 4 + 2


def test_a_run_that_fails_every_time_is_given_up_and_its_cell_stays(tmp_path):
    item = design().block(1, design().cells())[0]
    lab = Lab({(item.key, n): Discard("failed", "status 1: cosmic ray") for n in range(1, 4)})
    run(tmp_path, design(), lab)
    history = read_history(tmp_path)
    assert history.left == {}
    assert {f.cell: f.row["runs"] for f in Campaign(design(), history).cells} == {
        cell: 4 - (cell == item.cell) for cell in design().cells()
    }
    lab = Lab()
    with Journal(tmp_path) as journal:
        journal.write("retried")
        Runner(design(), Blocks(design()), lab, journal).run()
    assert [made for made, _ in lab.made] == [item]
    assert [f.row["runs"] for f in Campaign(design(), read_history(tmp_path)).cells] == [4, 4, 4]


@pytest.mark.parametrize("reason", ["failed", "contradicted"])
def test_a_cell_whose_first_runs_were_all_given_up_is_left(tmp_path, reason):
    cell = design().cells()[1]
    keys = [f"{cell.id}-{block}" for block in range(4)]
    lab = Lab({(key, n): Discard(reason, "why") for key in keys for n in range(1, 4)})
    run(tmp_path, design(), lab)
    assert sum(made.cell == cell for made, _ in lab.made) == 3 * 3
    assert read_history(tmp_path).left[cell.id] == Discard(reason, "why")


def test_a_cell_that_has_runs_is_not_left_out_of_memory(tmp_path):
    item = design().block(1, design().cells())[1]
    lab = Lab({(item.key, 1): Discard("out-of-memory", "CUDA out of memory")})
    run(tmp_path, design(), lab)
    assert [f.row["runs"] for f in Campaign(design(), read_history(tmp_path)).cells] == [4, 4, 4]


def test_a_run_without_iterations_beside_runs_with_some_did_no_work(tmp_path):
    class Resuming(Lab):
        """Its first run marks nothing, and those of the last cell find what the one before them left."""

        def run(self, item, attempt, file):
            super().run(item, attempt, file)
            did = len(self.made) > 1 and not (item.cell.levels["n"] == 3 and item.block)
            return result(300.0 if did else 7.0, 1.0, iterations=20 * did)

    lab = Resuming()
    run(tmp_path, design(), lab)
    history, first = read_history(tmp_path), lab.made[0][0]
    figures = {f.cell.levels["n"]: f for f in Campaign(design(), history).cells}
    assert {f.energy_j.value for f in figures.values()} == {300.0}
    assert figures.get(3) is None or figures[3].row["runs"] == 1
    assert len(history.given_up()) == 3
    notes = " ".join(run_notes(design(), history))
    assert f"{first.cell}, block 1: it had no iteration" in notes
    assert "no-work: it had no iteration, and others had" in notes


def test_a_command_that_fails_every_time_ends_the_campaign(tmp_path):
    keys = [i.key for n in range(4) for i in design().block(n, design().cells())]
    lab = Lab({(key, n): Discard("failed", "status 1: no such file") for key in keys for n in range(1, 4)})
    with pytest.raises(ConfigError, match="6 attempts at 2 runs failed, and none went well: status 1: no such file"):
        run(tmp_path, design(), lab)


@pytest.mark.parametrize("error", [PeerError("no powerd answers"), RunFileError("no space is left")])
def test_what_is_not_the_commands_fault_stops_it_and_is_not_booked_against_the_run(tmp_path, error):
    item = design().block(2, design().cells())[1]
    lab = Lab({(item.key, 1): error})
    with pytest.raises(type(error), match=str(error)):
        run(tmp_path, design(), lab)
    assert (item.key, 1) not in lab.answers  # it happened
    done = len(lab.made)
    run(tmp_path, design(), lab)
    assert len(lab.made) == 3 * 4 + 1
    assert lab.made[done] == (item, 1)
    assert read_history(tmp_path).records[item.key].discards == []
    assert (tmp_path / "runs" / f"{item.key}-2.h5").exists()
    assert (tmp_path / "discarded" / f"{item.key}-1.h5").exists()


def test_a_full_disk_stops_it_with_one_line_and_it_goes_on_later(tmp_path, monkeypatch):
    write, calls = os.write, itertools.count()

    def full(descriptor, data):
        if next(calls) >= 7:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:11])  # in pieces, as a disk that is nearly full takes them

    lab = Lab()
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(RunFileError, match=r"No space left on device.*resume"):
            run(tmp_path, design(), lab)
    assert next(calls) > 7  # the disk was full
    assert all(line["event"] for line in events(tmp_path))  # and no half line is left
    run(tmp_path, design(), lab)
    assert [f.row["runs"] for f in Campaign(design(), read_history(tmp_path)).cells] == [4, 4, 4]


def test_a_half_line_of_a_killed_runner_is_none(tmp_path):
    run(tmp_path, design(), Lab())
    whole = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(whole[:-20])
    lab = Lab()
    run(tmp_path, design(), lab)
    assert len(lab.made) == 1
    assert [f.row["runs"] for f in Campaign(design(), read_history(tmp_path)).cells] == [4, 4, 4]


@pytest.mark.parametrize(
    "change",
    [
        {"result": 5}, {"result": {"energy_j": "x", "time_s": 1.0}}, {"result": {"energy_j": 0.0, "time_s": 1.0}},
        {"result": {"energy_j": 1.0, "time_s": 1.0, "phases": ["forward"]}}, {"item": 3}, {"item": "x-y"},
        {"result": {"energy_j": 1.0, "time_s": 1.0, "verdict": "honest"}}, {"took_s": "long"}, {"event": ["a"]},
        {"result": {"energy_j": 1.0, "time_s": float("inf")}},
    ],
)  # fmt: skip
def test_a_damaged_line_is_named_in_one_line(tmp_path, change):
    run(tmp_path, design(), Lab())
    lines = events(tmp_path)
    assert lines[2]["event"] == "verified"
    lines[2] |= change
    (tmp_path / NAME).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(RunFileError, match=r"campaign\.jsonl: line 3 is damaged: .{3,}$"):
        read_history(tmp_path)


def test_only_verified_files_as_they_were_are_trusted(tmp_path):
    run(tmp_path, design(), Lab())
    files = sorted((tmp_path / "runs").iterdir())
    files[0].unlink()
    files[1].write_bytes(b"another size")
    lab = Lab()
    run(tmp_path, design(), lab)
    assert len(lab.made) == 2


def test_one_runner_at_a_time(tmp_path):
    with Journal(tmp_path), pytest.raises(RunFileError, match="a runner is at work"):
        Journal(tmp_path)


def test_another_design_does_not_go_on_in_the_same_folder(tmp_path):
    run(tmp_path, design(), Lab())
    with pytest.raises(ConfigError, match="another design"):
        run(tmp_path, design(factors={"n": [1, 2]}), Lab())
    lab = Lab()
    run(tmp_path, design(repeats={"min": 5}), lab)
    assert len(lab.made) == 3


@pytest.mark.parametrize("metric", ["e", "energy_j", "ed2p"])
def test_cells_go_on_until_their_interval_is_narrow_with_their_reference(tmp_path, metric):
    class Noisy(Lab):
        def run(self, item, attempt, file):
            self.made.append((item, attempt))
            spread = 0.2 if item.cell.levels["n"] == 3 else 1e-6
            return result(100.0 * (1 + spread * (-1) ** item.block), 1.0)

    of = design(
        repeats={"min": 3, "max": 9, "until": {"metric": metric, "half_width": 0.01}},
        order={"reference": {"n": 1}},
    )
    lab = Noisy()
    run(tmp_path, of, lab)
    assert [f.row["runs"] for f in Campaign(of, read_history(tmp_path)).cells] == [9, 3, 9]


class Counted:
    """A plan of one run at a time, of which what is said to be to do is compared with what is."""

    def __init__(self, plan: Blocks) -> None:
        self.plan = plan
        self.seen: list[tuple[int, int]] = []
        """Runs that were to do as it said, and those of the block that came."""

    def planned(self, history):
        return self.plan.planned(history)

    def next_block(self, history):
        block = self.plan.next_block(history)
        self.seen.append((self.planned(history) - history.done, len(block)))
        return block[:1]


def test_runs_are_to_do_as_long_as_there_is_one(tmp_path):
    @dataclass
    class Spread(Lab):
        def run(self, item, attempt, file):
            file.write_bytes(b"run")
            spread = 0.1 if item.cell.levels["n"] == 2 else 1e-6
            return result(100 * (1 + spread * (-1) ** item.block / (1 + item.block)), 1.0)

    of = design(repeats={"min": 3, "max": 9, "until": {"metric": "energy_j", "half_width": 0.02}})
    with Journal(tmp_path, is_synced=False) as journal:
        plan = Counted(Blocks(of))
        Runner(begin(of, Spread(), journal), plan, Spread(), journal).run()
    assert len(plan.seen) - 1 > 9  # it went on behind the least number of repeats
    assert all(to_do >= in_block > 0 for to_do, in_block in plan.seen[:-1])
    assert plan.seen[-1] == (0, 0)


def test_runs_wait_until_the_card_is_cool_but_not_for_ever(tmp_path):
    clock = Clock()
    thermometer = Thermometer(clock)

    class Heating(Lab):
        def run(self, item, attempt, file):
            thermometer.heated_c = 30 + clock.t_s - thermometer.start_c + 20  # each run leaves it at 50 degrees
            return super().run(item, attempt, file)

    of = design(guard={"start_within_c": 5, "cool_down_max_s": 8, "idle_gap_s": 2}, repeats={"min": 1})
    run(tmp_path, of, Heating(), clock=clock, thermometer=thermometer)
    assert clock.slept.count(2.0) == 3
    notes = [r.result.note for r in read_history(tmp_path).records.values()]
    assert notes.count("") == 1  # the first one
    assert sum("above the first run" in note for note in notes) == 2
    clock.slept.clear()
    of = design(guard={"start_within_c": 5, "cool_down_max_s": 60}, repeats={"min": 2})
    run(tmp_path, of, Heating(), clock=clock, thermometer=thermometer)
    assert sum(clock.slept) >= 3 * 10
    assert all("above" not in r.result.note for k, r in read_history(tmp_path).records.items() if k.endswith("-1"))


def test_planted_heat_is_thrown_away_and_made_again(tmp_path):
    of = design_of({
        "campaign": {"name": "c", "command": ["train"]}, "factors": {"power_cap_w": [120, 180, "default"]},
        "order": {"reference": {"power_cap_w": "default"}}, "repeats": {"min": 20},
        "simulation": {"network": "vgg19", "iterations": 100, "noise": 0.0, "throttled": 0.2},
    })  # fmt: skip
    executor = Simulated.named(of, "sim:rtx6000")
    with Journal(tmp_path) as journal:
        resolved = begin(of, executor, journal)
        Runner(resolved, Blocks(resolved), Simulated(resolved, executor.card), journal).run()
    history = read_history(tmp_path)
    discards = [d.reason for r in history.records.values() for d in r.discards]
    assert set(discards) == {"thermal"}
    assert 5 <= len(discards) <= 30
    for figures in Campaign(resolved, history).cells:
        assert figures.energy_j.u95 == pytest.approx(0.0, abs=1e-6)  # no slowed run is among them


def test_a_runner_that_is_killed_at_fifty_moments_ends_with_the_same_result(tmp_path):
    script = Path(__file__).parents[2] / "support" / "kill_campaign.py"
    command = [sys.executable, "-P", script, tmp_path, "50"]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=110)
    kills = json.loads(told.stdout)
    assert kills["killed"] == 50
    assert kills["at different states"] > 15  # of the journal: the moments were spread
    results = []
    for name in ("killed", "whole"):
        records = read_history(tmp_path / name).records
        # A run that was begun twice has another name; all else is the same.
        results.append({key: replace(record.result, file="") for key, record in records.items() if record.result})
    assert results[0] == results[1]


def test_blocks_as_jobs_side_by_side_leave_each_others_runs_alone(tmp_path):
    """Each has a journal of its own; together they are the campaign."""
    of = design()
    with Journal(tmp_path) as journal:
        begin(of, Lab(), journal)

    class SideBySide(Lab):
        def run(self, item, attempt, file):
            result = super().run(item, attempt, file)
            if item.block == 0 and len(self.made) == 1:  # while it goes on, another job does its whole block
                with Journal(tmp_path, part=1) as other:
                    Runner(of, Blocks(of, 1), Lab(), other).run()
                assert file.exists()
            return result

    for block in (0, 2, 3):
        with Journal(tmp_path, part=block) as journal:
            Runner(of, Blocks(of, block), SideBySide(), journal).run()
    assert [f.row["runs"] for f in Campaign(of, read_history(tmp_path)).cells] == [4, 4, 4]
    assert not (tmp_path / "discarded").exists()


def test_slurm_gets_a_job_a_block(tmp_path, monkeypatch):
    made = []

    class AutoExecutor:
        def __init__(self, folder):
            made.append(folder)

        def update_parameters(self, **parameters):
            made.append(parameters)

        def map_array(self, function, commands):
            made.append([command[3:] for command in commands])
            return [SimpleNamespace(job_id=100 + n) for n in range(len(commands))]

    monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(AutoExecutor=AutoExecutor))
    of = design(executor={"kind": "submitit", "partition": "gpu", "gpus": 2, "time_min": 30})
    assert submit_blocks(of, tmp_path / "c.toml", tmp_path, ["--url", "board"]) == ["100", "101", "102", "103"]
    folder, parameters, commands = made
    assert folder == str(tmp_path / "slurm")
    assert (parameters["slurm_partition"], parameters["gpus_per_node"], parameters["timeout_min"]) == ("gpu", 2, 30)
    assert commands[2] == [
        "powerd_analytics", "campaign", "run", str(tmp_path / "c.toml"), "--block", "2", "--url", "board",
    ]  # fmt: skip


def test_without_submitit_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match="submitit is not installed.*pip install"):
        submit_blocks(design(executor={"kind": "submitit"}), tmp_path / "c.toml", tmp_path, [])


def test_a_block_behind_another_plans_no_less_than_what_is_done():
    """A job of Slurm runs one block: its progress counts what the blocks before it did."""
    of, history = design(repeats={"min": 2}), History()
    for item in Blocks(of, only=0).next_block(history):
        history.take({"event": "verified", "item": item.key, "result": result(1.0, 1.0).document(), "took_s": 1.0})
    cells = len(of.cells())
    assert history.done == cells
    assert Blocks(of, only=1).planned(history) == 2 * cells
