"""What a command that has ended is worth: its last error, a full disk, another signal, and what its phases say."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from make_campaign import result

from powerd_analytics.campaign_views.all_tables import campaign_tables
from powerd_analytics.campaign_views.campaign_figures import Campaign
from powerd_analytics.campaign_views.campaign_page import describe_campaign
from powerd_analytics.campaigns import executors
from powerd_analytics.campaigns.campaign_file import design_of
from powerd_analytics.campaigns.design import Design, Item
from powerd_analytics.campaigns.executors import Local, failure, last_words
from powerd_analytics.campaigns.journal import Discard, History, Journal, Result, read_history
from powerd_analytics.campaigns.results import contradiction
from powerd_analytics.campaigns.runner import Blocks, Runner, begin, changed_files
from powerd_core.errors import ConfigError, PeerError, RunFileError

CLOSING = """run.h5: cpu0 MODELLED 5 ± 4 J, 26 W over 0.2 s
  no phases are marked in it: see meter.watch and meter.phase
  next: joules tables run.h5
"""
FULL = "OSError: [Errno 28] No space left on device: 'epoch-3.pt'"


def log_of(tmp_path: Path, text: str) -> Path:
    log = tmp_path / "log"
    log.write_text(f"{text}\n{CLOSING}")
    return log


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB.",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 512.00 MiB.",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 37.3 GiB for an array",
        "MemoryError",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:114] . DefaultCPUAllocator: can't allocate memory",
        "RuntimeError: DataLoader worker (pid 17) is killed by signal: Killed.\n"
        "RuntimeError: DataLoader worker (pid(s) 17) exited unexpectedly",
        "RuntimeError: DataLoader worker (pid 17) is killed by signal: Bus error. They may be out of shared memory",
        "RuntimeError: unable to write to file </torch_17_1>: No space left on device (28)",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=9.0.\nsrun: error: n1: task 0: Exited with exit code 1",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "W: CUDA out of memory with 64, going on with 32\ntorch.OutOfMemoryError: CUDA out of memory.",
    ],
)
def test_out_of_memory_by_its_words(tmp_path, text):
    assert failure(1, log_of(tmp_path, text)).reason == "out-of-memory"


@pytest.mark.parametrize(
    ("status", "text", "told"),
    [
        (1, "W: CUDA out of memory, now 32\nAssertionError: loss is nan", "status 1: AssertionError: loss is nan"),
        (1, "FileNotFoundError: without-memory.txt", "status 1: FileNotFoundError: without-memory.txt"),
        (1, "OSError: cannot open labels.h5: no such file", "status 1: OSError: cannot open labels.h5: no such file"),
        (137, "W: CUDA out of memory, going on with 32\nepoch 3", "killed (signal 9): epoch 3"),
        (137, "", "killed (signal 9)"),
        (143, "epoch 3", "killed (signal 15): epoch 3"),
        (2, "usage: train.py [-h]", "status 2: usage: train.py [-h]"),
    ],
)  # fmt: skip
def test_anything_else_is_a_failure_in_the_commands_own_words(tmp_path, status, text, told):
    log = log_of(tmp_path, text)
    if not text:
        log.write_text("")
    assert failure(status, log) == Discard("failed", told)


def test_last_words_are_ours_only_where_the_command_said_nothing(tmp_path):
    (tmp_path / "log").write_text("joules record: no powerd answers\n")
    assert last_words(tmp_path / "log") == "joules record: no powerd answers"
    assert last_words(tmp_path / "no log") == ""


DESIGN = design_of({
    "campaign": {"name": "c", "command": ["train", "{batch_size}"]}, "factors": {"batch_size": [8, 16, 32, 64]},
    "repeats": {"min": 5},
})  # fmt: skip
ITEM = DESIGN.block(0, DESIGN.cells())[0]


@pytest.mark.parametrize(
    "text",
    [
        FULL,
        "powerd_core.errors.RunFileError: marks cannot be written under run.h5.journal: No space left on device",
        "powerd: the journal cannot be written: No space left on device\nStopIteration",
        "joules record: run.h5 cannot be written: Disk quota exceeded",
    ],
)
def test_a_full_disk_is_no_failure_of_the_command(tmp_path, text):
    log = log_of(tmp_path, text)
    with pytest.raises(RunFileError, match=r"no space is left.*resume"):
        Local(DESIGN).outcome(ITEM, 1, tmp_path / "run.h5", log)


def test_a_full_disk_takes_the_words_of_whoever_met_it(tmp_path, monkeypatch):
    log = log_of(tmp_path, "")
    monkeypatch.setattr(executors.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(RunFileError, match="no space is left"):
        Local(DESIGN).outcome(ITEM, 1, tmp_path / "run.h5", log)
    monkeypatch.undo()
    recovered = log_of(tmp_path, "W: No space left on device, no checkpoint\nAssertionError: loss is nan")
    (tmp_path / "run.h5").touch()
    assert Local(DESIGN).outcome(ITEM, 1, tmp_path / "run.h5", recovered).reason == "failed"


def test_what_cannot_be_recorded_stops_the_campaign(tmp_path):
    (tmp_path / "log").write_text("joules record: no powerd answers at tcp://board:7360\n")
    with pytest.raises(PeerError, match=r"no powerd answers at tcp://board:7360; .*resume"):
        Local(DESIGN).outcome(ITEM, 2, tmp_path / "run.h5", tmp_path / "log")


@pytest.mark.parametrize(
    ("asked", "trained", "told"),
    [
        ({"batch_size": 64}, [({"batch_size": 64}, 3)], ""),
        ({"batch_size": 8}, [({"batch_size": 8}, 3), ({"batch_size": 4}, 9)], "batch_size 8 was asked, and 4 trained"),
        ({"batch_size": 64}, [({"batch_size": 64}, 20), ({"batch_size": 5}, 1)], ""),  # the last of an epoch
        ({"batch": 64}, [({"batch_size": 32}, 1)], "batch 64 was asked, and 32 trained"),
        ({"batch_size": 64}, [({}, 20)], ""),
        ({"batch_size": 64}, [], ""),
        ({"model": "resnet50"}, [({"model": "ResNet"}, 20)], ""),  # one model, two names
        ({"width": 4}, [({"width": 2}, 20)], "width 4 was asked, and 2 trained"),
        ({"power_cap_w": 200}, [({"power_cap_w": 150}, 20)], ""),  # the driver's word counts, and has a verdict
    ],
)  # fmt: skip
def test_what_most_iterations_say_is_held_against_the_cell(asked, trained, told):
    assert contradiction(asked, trained) == told


def test_a_batch_may_be_marked_by_a_ranks_share(tmp_path):
    assert contradiction({"batch_size": 64}, [({"batch_size": 16}, 9)], parts=[1.0, 4.0]) == ""
    assert contradiction({"batch_size": 64}, [({"batch_size": 16}, 9)], parts=[1.0, 2.0])


# -- campaigns of a script that does all of it -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unruly(Local):
    """A training that fails in one run of four, is killed in one of ten, halves its batch in one of ten, and meets a
    full disk once. What truly ran is in the ledger."""

    draw: random.Random = field(default_factory=random.Random)
    ledger: dict[str, float] = field(default_factory=dict)
    disk: list[int] = field(default_factory=list)

    def run(self, item: Item, attempt: int, file: Path) -> Result | Discard:
        log, asked = file.with_suffix(".log"), float(item.cell.levels["batch_size"])
        self.disk.append(self.disk[-1] - 1)
        if self.disk[-1] == 0:
            log.write_text(f"{FULL}\n")
            return self.outcome(item, 1, file, log)
        fails, is_killed, halves = (self.draw.random() < share for share in (0.25, 0.1, 0.1))
        file.write_text(str(asked / 2 if halves else asked))
        log.write_text("RuntimeError: cosmic ray\n" if fails else "epoch 3\n")
        if not (fails or is_killed or halves):
            self.ledger[item.key] = 3 * asked
        return self.outcome(item, 1 if fails else -9 if is_killed else 0, file, log)


def trained(file: Path, design: Design, asked: Mapping[str, float]) -> Result:
    batch = float(file.read_text())
    says = contradiction(asked, [({"batch_size": batch}, 20)])
    return result(3 * batch, 1.0, iterations=20, contradiction=says, file_bytes=file.stat().st_size)


@pytest.mark.parametrize("seed", range(20))
def test_campaigns_of_an_unruly_script_lose_no_cell_and_book_nothing_that_did_not_run(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(executors, "result_of", trained)
    lab = Unruly(DESIGN, draw=random.Random(seed), disk=[2 + seed % 15])
    with Journal(tmp_path, is_synced=False) as journal:
        begin(DESIGN, lab, journal)
        with pytest.raises(RunFileError, match="no space is left"):
            Runner(DESIGN, Blocks(DESIGN), lab, journal).run()
    with Journal(tmp_path, is_synced=False) as journal:
        Runner(DESIGN, Blocks(DESIGN), lab, journal).run()
        history = read_history(tmp_path)
        assert history.left == {}
        assert {key: result.energy_j for key, result in history.results().items()} == lab.ledger
        assert {f.cell.levels["batch_size"]: f.energy_j.value for f in Campaign(DESIGN, history).cells} == {
            batch: 3 * batch for batch in (8, 16, 32, 64)
        }  # every cell has its own joules
        given_up = history.given_up()
        assert len(lab.ledger) + len(given_up) == 4 * 5
        assert not any("space" in d.text for record in history.records.values() for d in record.discards)
        _are_named(history, given_up)
        journal.write("retried")
        Runner(DESIGN, Blocks(DESIGN), lab, journal).run()
    again = read_history(tmp_path)
    assert len(again.results()) + len(again.given_up()) == 4 * 5
    assert not given_up or set(again.records) == set(history.records)


def _are_named(history: History, given_up: Mapping[str, object]) -> None:
    (cells,) = campaign_tables(Campaign(DESIGN, history), ["cells"])
    notes = " ".join(cells.notes)
    for key in given_up:
        cell = DESIGN.cells_by_id[key.rpartition("-")[0]]
        assert f"{cell}, block {int(key.rpartition('-')[2]) + 1}: given up after 3 attempts" in notes
    assert ("--retry" in notes) == bool(given_up)
    assert ("given up after" in " ".join(describe_campaign(Campaign(DESIGN, history)))) == bool(given_up)


# -- the files that a command names ------------------------------------------------------------------------------------


def test_a_changed_script_is_said_and_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(executors, "result_of", trained)
    script = Path("train.py")
    script.write_text("work()")
    design = design_of({
        "campaign": {"name": "c", "command": ["python", "train.py", "{batch_size}"]},
        "factors": {"batch_size": [8, 16]}, "repeats": {"min": 3},
    })  # fmt: skip
    lab = Unruly(design, draw=random.Random(4), disk=[0])
    with Journal(tmp_path / "c", is_synced=False) as journal:
        begin(design, lab, journal)
        begin(design, lab, journal)
        assert changed_files(design, journal.history) == ""
        script.write_text("work(); work()")
        assert changed_files(design, journal.history) == "train.py"
        with pytest.raises(ConfigError, match=r"0 runs: train\.py.*--changed-script"):
            begin(design, lab, journal)
        begin(design, lab, journal, changed_script=True)
        begin(design, lab, journal)  # is asked for once
        Runner(design, Blocks(design), lab, journal).run()
    (cells,) = campaign_tables(Campaign(design, read_history(tmp_path / "c")), ["cells"])
    assert "changed after 0 runs: train.py" in cells.notes
