"""`joules info --check` and `joules journal recover`, and what tables say of what is missing."""

import gc
import json
from array import array
from dataclasses import replace

import h5py
import pytest
from command import joules

from powerd_analytics.cli.info import describe_run, run_document
from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.run import read_run
from powerd_core.model import Block
from powerd_core.wire import decode, encode
from support.small_run import description, frames, head, make_journal, make_run_file, stop, whole


@pytest.fixture
def run(tmp_path):
    return make_run_file(tmp_path / "run.h5")


def test_a_good_run_is_said_to_be_good(run, capsys):
    code, out, err = joules(capsys, "info", "--check", run)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == str(run)
    assert all(line.startswith("  OK     ") for line in lines[1:8])
    assert lines[8].startswith("clock of ")
    said = "gpu0 SIMULATED 2.435 ± 0.033 J over 1.2 s; 2 lines, phases + rest and 1000 pieces agree"
    assert f"  OK     energy of gpu0 (simulated): {said}" in lines


def test_one_bad_run_of_several_is_enough_for_status_1(run, tmp_path, capsys):
    bad = tmp_path / "bad.h5"
    bad.write_bytes(run.read_bytes())
    with h5py.File(bad, "r+") as file:
        file["phases/end_ns"][3] = 0
    code, out, _ = joules(capsys, "info", "--check", run, bad, "--format", "json")
    documents = json.loads(out)
    assert code == 1
    assert [(d["run"], d["good"]) for d in documents] == [(str(run), True), (str(bad), False)]
    wrong = {c["check"] for c in documents[1]["checks"] if c["state"] == "wrong"}
    assert wrong == {"energy"}
    assert joules(capsys, "info", "--check", bad, run)[0] == 1


def test_a_journal_is_recovered_and_kept(tmp_path, capsys):
    directory = make_journal(tmp_path / "run.h5", whole())
    code, out, _ = joules(capsys, "journal", "recover", directory, "-o", tmp_path / "saved.h5")
    assert code == 0
    assert "2400 readings" in out
    assert "nothing is lost" in out
    assert directory.is_dir()
    assert joules(capsys, "info", "--check", tmp_path / "saved.h5")[0] == 0
    (device,) = json.loads(joules(capsys, "info", tmp_path / "saved.h5", "--format", "json")[1])["devices"]
    assert device["lines_j"] == pytest.approx(sum(line["energy_j"] for line in device["lines"] if line["is_feed"]))
    assert device["lines_j"] > 0
    again = "journal", "recover", directory, "-o", tmp_path / "saved.h5"
    assert [joules(capsys, *again, *options)[0] for options in ((), ("--overwrite",))] == [2, 0]


def test_tables_and_info_carry_every_gap_with_its_cause(tmp_path):
    first, later = frames(), frames(10, 40, epoch=6, start_ns=2 * 10**9)
    del first[20:24]
    pieces = [*head(), description(), *first, description(6), *later[:8], *later[10:], *stop(2 * 10**9 + 400 * 10**6)]
    run = read_run(make_run_file(tmp_path / "run.h5", pieces))
    (row,) = phase_table(run).runs
    assert row.missing_s == pytest.approx(0.08 + 0.8 + 0.04, abs=0.01)
    for text in (
        "scans lost once over 80.0 ms: 2 blocks were not received",
        "scans lost once over 801 ms: powerd was started anew",
        "scans lost once over 40.0 ms: 1 blocks were not received",
    ):
        assert text.split(": ")[1] in row.note
    said = "\n".join(describe_run(run_document(run)))
    for cause in ("2 blocks were not received", "powerd was started anew", "1 blocks were not received"):
        assert cause in said


def test_journals_that_nobody_needs_are_listed_and_deleted_when_told(run, tmp_path, capsys):
    (tmp_path / "cut").mkdir()
    cut = make_run_file(tmp_path / "cut" / "cut.h5")
    cut.write_bytes(cut.read_bytes()[:-1000])
    other = tmp_path / "other.h5.journal.gz"
    other.write_bytes((tmp_path / "run.h5.journal.gz").read_bytes())
    code, out, _ = joules(capsys, "journal", "tidy", tmp_path)
    said = dict(line.split("  ", 1) for line in out.splitlines())
    assert code == 1
    assert said[f"{run}.journal.gz"].endswith("not needed: --yes deletes it")
    assert "no run file, or was cut off" in said[f"{cut}.journal.gz"]
    assert said[str(other)].endswith("stays: there is no other.h5")
    assert joules(capsys, "journal", "tidy", run)[0] == 0
    (listed,) = json.loads(joules(capsys, "journal", "tidy", run, "--format", "json")[1])
    assert (listed["journal"], listed["needed_for"], listed["is_deleted"]) == (f"{run}.journal.gz", None, False)
    code, out, _ = joules(capsys, "journal", "tidy", tmp_path, "--yes")
    assert code == 1
    assert sorted(p.name for p in tmp_path.rglob("*.gz")) == ["cut.h5.journal.gz", "other.h5.journal.gz"]
    assert joules(capsys, "journal", "tidy", tmp_path / "absent.h5")[0] == 2


def test_nothing_recovered_is_status_1(tmp_path, capsys):
    make_journal(tmp_path / "run.h5", [*head(), *frames(), *stop(10**9)])
    code, out, _ = joules(capsys, "journal", "recover", tmp_path / "run.h5")
    assert code == 1
    assert "kept: 0 readings of 0 lines" in out
    assert "their description is lost" in out


@pytest.mark.parametrize("is_good", [True, False])
def test_recover_ends_with_1_where_verify_calls_its_file_wrong(tmp_path, capsys, monkeypatch, is_good):
    """A sensor whose times go back: they are kept, and wrong."""
    pieces = whole()
    if not is_good:
        at = next(
            i for i, piece in enumerate(pieces) if isinstance(decode(piece), Block) and decode(piece).sequence == 20
        )
        block = decode(pieces[at])
        backwards = array("q", block.payload[: 8 * block.count])[::-1].tobytes()
        pieces[at] = encode(replace(block, payload=backwards + block.payload[8 * block.count :]))
    make_journal(tmp_path / "run.h5", pieces)
    saved = tmp_path / "saved.h5"
    code, out, _ = joules(capsys, "journal", "recover", tmp_path / "run.h5", "-o", saved)
    of_verify = joules(capsys, "info", "--check", saved)[0]
    assert (code, of_verify) == ((0, 0) if is_good else (1, 1))
    assert ("  wrong: " in out) != is_good


@pytest.mark.parametrize(
    ("kind", "text"), [(MemoryError, ""), (OSError, "Can't read data (memory allocation failed for raw data chunk)")]
)
@pytest.mark.parametrize("command", ["info --check", "tables"])
def test_a_machine_without_memory_is_no_damaged_file(run, capsys, monkeypatch, kind, text, command):
    refusals = []

    def refuse(*_):
        refusals.append(1)
        raise kind(text)

    monkeypatch.setattr(h5py.Dataset, "__getitem__", refuse)
    code, out, err = joules(capsys, *command.split(), run)
    assert refusals
    assert code == 2
    assert "memory" in err
    assert "damaged" not in out + err
    assert "WRONG" not in out
    # The frames of the error hold a generator of h5py, and with it h5py's lock: all other threads would wait for it.
    gc.collect()
