"""Figures of a run that are kept in the user's cache: found again, and never trusted where they cannot be."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command import joules
from hypothesis import given, settings
from hypothesis import strategies as st
from make_campaign import one_run
from make_run import MS, LineSpec, make_run, training

from powerd_analytics import phase_table, read_run
from powerd_analytics.run_tables import table as tables
from powerd_analytics.run_tables.table import RunRow, kept_table
from powerd_analytics.runs import kept
from powerd_analytics.runs.kept import keep, key_of_file, key_of_run, recall

SOME = {"joules": (1.5, None, 3), "note": "≥ 2 J", "each": [True, {"a": -0.0}], "run": 1e300}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache" / "powerd" / "figures"


@pytest.fixture
def run(cache, tmp_path):
    return one_run(tmp_path / "run.h5", 1.0, (64,), 6)


def files(cache):
    return sorted(cache.glob("*.figures"))


def worked_out(monkeypatch):
    """A list that grows with every table that is worked out."""
    times = []
    monkeypatch.setattr(tables, "table_of", lambda *a, of=tables.table_of, **more: times.append(1) or of(*a, **more))
    return times


def refuse(*_, **__):
    raise AssertionError("it was worked out again")


COMMANDS = {
    "tables": ("tables", "run.h5"),
    "tables --wide": ("tables", "run.h5", "--wide"),
    "tables of a device": ("tables", "run.h5", "--device", "gpu0", "--format", "csv"),
    "tables of several": ("tables", "run.h5", "more.h5", "--format", "json"),
    "info": ("info", "run.h5", "--format", "json"),
    "compare": ("compare", "run.h5", "more.h5"),
    "uncertainty": ("tables", "--table", "uncertainty", "run.h5"),
    "uncertainty of a phase": (
        "tables",
        "--table",
        "uncertainty",
        "run.h5",
        "--where",
        "phase=forward",
        "--format",
        "json",
    ),
    "report": ("report", "run.h5", "-o", "page.html", "--overwrite"),
    "plot": ("plot", "run.h5", "-o", "picture.png", "--overwrite"),
    "index": ("query", ".", "--index", "of.parquet"),
    "verify": ("info", "--check", "run.h5"),
    "top": ("top", "--run", "run.h5"),
}


def made(folder):
    return [path for path in folder.iterdir() if path.suffix in (".html", ".png", ".parquet")]


def without_time(page):
    """A page says when it was made; a picture, too."""
    return re.sub(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?", b"", page)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_the_same_whether_its_figures_were_kept(name, run, tmp_path, capsys):
    one_run(tmp_path / "more.h5", 1.1, (64,), 6)
    cold = joules(capsys, *COMMANDS[name])
    assert cold[0] == 0, cold
    written = {path: without_time(path.read_bytes()) for path in made(tmp_path)}
    for path in written:
        path.unlink()
    assert joules(capsys, *COMMANDS[name]) == cold
    assert {path: without_time(path.read_bytes()) for path in made(tmp_path)} == written


@pytest.mark.slow
def test_what_one_command_worked_out_the_others_read(run, cache, capsys, monkeypatch):
    times = worked_out(monkeypatch)
    for command in (("tables", run), ("info", run), ("tables", run, run.with_name("more.h5"))):
        if command[-1] != run:
            one_run(command[-1], 1.1, (64,), 6)
        assert joules(capsys, *command)[0] == 0
    assert len(times) == 2  # one a run


@pytest.mark.slow
def test_rows_of_many_runs_are_read_without_opening_them(run, cache, capsys, monkeypatch):
    one_run(run.with_name("more.h5"), 1.1, (64,), 6)
    cold = joules(capsys, "tables", run.parent)
    monkeypatch.setattr("powerd_analytics.frame.figures.read_run", refuse)
    assert joules(capsys, "tables", run.parent) == cold


def test_a_kept_table_is_the_table_to_the_last_bit(cache, tmp_path):
    """Two devices, phases too short for their sensor, attributes that are lists. Compared as texts: some are NaN."""
    tr = training((64, 128), 4, 0.8, 1.6, 0.2)
    phases = [replace(p, attributes={**p.attributes, "shape": [1, 2.5, "x"]}) for p in tr.phases]
    slow = LineSpec("cpu0.a", tr.power(0.3), "cpu0", period_ns=40 * MS)
    path = make_run(tmp_path / "two.h5", [LineSpec("gpu0.a", tr.power()), slow], phases, end_ns=tr.end_ns)
    run = read_run(path)
    worked_out = repr(phase_table(run))
    assert [repr(kept_table(run)) for _ in range(2)] == [worked_out] * 2
    assert repr(recall(key_of_run(run), "table", tables._KINDS)) == worked_out
    assert repr(kept_table(run, "cpu0")) == repr(phase_table(run, "cpu0"))
    assert {type(row) for row in kept_table(run).runs} == {RunRow}


def test_other_bytes_another_calibration_and_another_programs_version_have_figures_of_their_own(
    run, cache, tmp_path, monkeypatch
):
    key = key_of_file(run)
    keep(key, "x", SOME)
    assert key == key_of_run(read_run(run))
    assert recall(key_of_file(run), "x", ()) == SOME
    (tmp_path / "calibration.toml").write_text("")
    assert recall(key_of_file(run, tmp_path / "calibration.toml"), "x", ()) is None
    copy = tmp_path / "copy.h5"
    copy.write_bytes(run.read_bytes())
    assert recall(key_of_file(copy), "x", ()) == SOME
    of_before = read_run(run)
    copy.write_bytes(run.read_bytes() + b"\0")
    assert recall(key_of_file(copy), "x", ()) is None
    copy.replace(run)
    assert key_of_run(of_before) is None
    monkeypatch.setattr(kept, "_programs", lambda: "another release")
    copy.write_bytes(run.read_bytes()[:-1])
    assert recall(key_of_file(copy), "x", ()) is None


def test_a_run_that_is_to_be_made_of_its_journal_is_opened(run, cache):
    run.with_name("run.h5.journal").mkdir()
    assert key_of_file(run) is None


@settings(max_examples=20)
@given(data=st.data())
def test_no_damaged_cache_is_believed(data, tmp_path_factory):
    """Cut anywhere, or any bit of it another."""
    home = tmp_path_factory.getbasetemp() / "damaged"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        keep("key", "x", SOME)
        (place,) = files(home / "powerd" / "figures")
        assert recall("key", "x", ()) == SOME
        whole = place.read_bytes()
        at = data.draw(st.integers(0, len(whole) - 1))
        flipped = bytes([whole[at] ^ 1 << data.draw(st.integers(0, 7))])
        place.write_bytes(data.draw(st.sampled_from([whole[:at], whole[:at] + flipped + whole[at + 1 :]])))
        assert recall("key", "x", ()) is None


def another_users(place, monkeypatch):
    monkeypatch.setattr("powerd_client.host.ownership.own_uids", lambda folder: {1})
    monkeypatch.setattr("powerd_client.host.ownership.os.geteuid", lambda: 1)


def linked(place, monkeypatch):
    place.rename(place.with_name("elsewhere"))
    place.symlink_to("elsewhere")


def of_another_run(place, monkeypatch):
    keep("another", "table", SOME)
    (other,) = set(files(place.parent)) - {place}
    other.replace(place)


FOREIGN = {
    "cut": lambda place, _: place.write_bytes(place.read_bytes()[:-9]),
    "empty": lambda place, _: place.write_bytes(b""),
    "open to others": lambda place, _: place.chmod(0o622),
    "in a folder that is open to others": lambda place, _: place.parent.chmod(0o777),
    "another user's": another_users,
    "a link": linked,
    "a folder": lambda place, _: (place.unlink(), place.mkdir()),
    "of another run": of_another_run,
}


@pytest.mark.parametrize("how", FOREIGN)
def test_a_cache_that_cannot_be_trusted_is_worked_out_again_in_silence(how, run, cache, capsys, monkeypatch):
    cold = joules(capsys, "info", run)
    (place,) = files(cache)
    FOREIGN[how](place, monkeypatch)
    times = worked_out(monkeypatch)
    assert joules(capsys, "info", run) == cold
    assert times == [1]


def test_a_cache_that_cannot_be_written_is_none(run, tmp_path, monkeypatch, capsys):
    cold = joules(capsys, "info", run)
    monkeypatch.setenv("XDG_CACHE_HOME", str(run))  # a file
    assert joules(capsys, "info", run) == cold


def test_the_cache_is_bounded_and_what_is_oldest_goes(cache, monkeypatch):
    monkeypatch.setattr(kept, "MOST_FILES", 3)
    monkeypatch.setattr(kept, "_LOOK_EVERY", 1)
    for i in range(6):
        keep(str(i), "x", SOME)
        os.utime(max(files(cache), key=lambda path: path.stat().st_mtime_ns), ns=(i, i))
    assert [recall(str(i), "x", ()) is not None for i in range(6)] == [False] * 3 + [True] * 3
    monkeypatch.setattr(kept, "MOST_KEPT", 1)
    keep("7", "x", SOME)
    assert len(files(cache)) == 1
    keep("8", "x", np.zeros(kept.MOST_BYTES // 3))
    assert recall("8", "x", ()) is None


def test_verify_works_out_again_and_tells_what_was_kept_wrongly(run, cache, capsys):
    cold = joules(capsys, "info", run)
    key, table = key_of_file(run), kept_table(read_run(run))
    wrong = replace(table, runs=tuple(replace(row, energy_j=row.energy_j * 1.001) for row in table.runs))
    keep(key, "table", wrong)
    assert joules(capsys, "info", run) != cold
    status, out, _ = joules(capsys, "info", "--check", run)
    assert status == 1
    assert "J was kept" in out
    assert joules(capsys, "info", run) == cold
    assert joules(capsys, "info", "--check", run)[0] == 0


def test_figures_are_not_run():
    """Of kinds that the reader does not name nothing is made."""
    assert kept._value(["tuple", 1, ["list"]], {}) == (1, [])
    with pytest.raises(LookupError):
        kept._value(["Path", "/"], {"RunRow": RunRow})
    with pytest.raises(TypeError, match="no figure"):
        kept._plain({"a": Path()})
