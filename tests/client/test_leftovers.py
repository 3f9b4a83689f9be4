"""What interrupts and kills leave behind, and what becomes of it."""

import errno
import os
import tomllib
from pathlib import Path

import pytest

from powerd_client import Meter, journal, open_run
from powerd_client.finish import clear_away
from powerd_client.job import Job
from powerd_client.journal import prepare
from powerd_client.local import LocalDaemon
from powerd_client.recording import Recording
from powerd_client.recover import recover
from powerd_client.runfile import rebuild
from powerd_core.errors import RunFileError
from support import small_run
from support.steady import steady_daemon


@pytest.fixture
def daemon():
    with steady_daemon() as made:
        yield made


class Impatient:
    """A timer at whose end the user presses Ctrl-C."""

    failure = None

    def close(self):
        raise KeyboardInterrupt


def test_an_interrupt_anywhere_in_close_does_not_cost_the_run_its_end(daemon, tmp_path):
    meter = Meter(daemon.url, tmp_path / "run.h5")
    with meter.phase("step"):
        pass
    meter._timer = Impatient()
    with pytest.raises(KeyboardInterrupt):
        meter.close()
    with open_run(tmp_path / "run.h5") as file:
        assert file.attrs["complete"] == 1
        assert len(file["phases/kind"]) == 1


def test_an_interrupt_while_the_run_is_written_leaves_that_to_the_recorder(daemon, tmp_path, monkeypatch, capfd):
    out = tmp_path / "run.h5"
    meter = Meter(daemon.url, out)
    process, pid = meter._recording._process, meter._recording.pid

    def impatient(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Recording, "_await_end", impatient)
    with pytest.raises(KeyboardInterrupt):
        meter.close()
    assert capfd.readouterr().err == f"powerd: the recorder (process {pid}) goes on by itself, and writes {out}\n"
    process.wait(20)
    with open_run(out) as file:
        assert file.attrs["complete"] == 1


def test_a_recording_that_is_abandoned_leaves_nothing_even_where_nobody_waits(daemon, tmp_path):
    recording = Recording(tmp_path / "run.h5", [daemon.url])
    recording._process.tell({"abandon": True})
    recording._process.wait(20)
    recording._process.close_pipes()
    assert list(tmp_path.iterdir()) == []


def killed_while_overwriting(run):
    """The journal of a recording that was to replace ``run``, and of which nothing is left but the journal."""
    directory = journal.prepare(run, overwrite=True)
    (directory / "journal.bin").write_bytes(b"".join(small_run.whole()))
    return directory


class TestOverwriting:
    @pytest.fixture
    def run(self, tmp_path):
        """An earlier run, of another id."""
        pieces = [small_run.encode(small_run.Message("run", small_run.RUN | {"run_id": "earlier"})), *small_run.whole()]
        small_run.make_journal(tmp_path / "run.h5", pieces, marks=False)
        rebuild(tmp_path / "run.h5")
        assert self.run_id(tmp_path / "run.h5") == "earlier"
        return tmp_path / "run.h5"

    def run_id(self, run):
        with open_run(run) as file:
            return file.attrs["run_id"]

    def test_the_later_run_is_built_and_the_earlier_one_not_taken_for_it(self, run):
        killed_while_overwriting(run)
        assert self.run_id(run) == "ab"
        assert [p.name for p in run.parent.iterdir()] == ["run.h5"]

    def test_while_it_is_recorded_the_earlier_one_is_there(self, run):
        held = journal.lock(killed_while_overwriting(run))
        try:
            assert self.run_id(run) == "earlier"
        finally:
            os.close(held)

    def test_another_file_that_came_meanwhile_is_not_overwritten(self, run):
        killed_while_overwriting(run)
        os.utime(run, ns=(1, 1))
        assert self.run_id(run) == "earlier"

    def test_a_full_disk_at_the_beginning_leaves_no_journal(self, run, monkeypatch):
        def full(*_, **__):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "replaces")

        monkeypatch.setattr(Path, "write_text", full)
        with pytest.raises(RunFileError, match="cannot record into .*: No space left on device"):
            journal.prepare(run, overwrite=True)
        assert [p.name for p in run.parent.iterdir()] == ["run.h5"]

    def test_a_recording_that_never_began_costs_nothing(self, run):
        directory = killed_while_overwriting(run)
        (directory / "journal.bin").write_bytes(b"")
        assert self.run_id(run) == "earlier"


@pytest.mark.parametrize("killed", ["before journal.bin", "before its first frame"])
def test_a_journal_without_contents_is_told_from_an_unfinished_run(tmp_path, killed):
    directory = journal.prepare(tmp_path / "run.h5")
    if killed == "before its first frame":
        (directory / "journal.bin").touch()
    with pytest.raises(RunFileError, match=r"run\.h5\.journal holds nothing of a run: .* can be deleted"):
        open_run(tmp_path / "run.h5")
    with pytest.raises(RunFileError, match=r"run\.h5\.journal holds nothing of a run: .* delete it, or overwrite it"):
        journal.prepare(tmp_path / "run.h5")
    assert journal.prepare(tmp_path / "run.h5", overwrite=True).is_dir()


def test_a_journal_that_cannot_be_locked_is_one_line(tmp_path):
    directory = small_run.make_journal(tmp_path / "run.h5", small_run.whole())
    (directory / "lock").mkdir()
    with pytest.raises(RunFileError, match=r"which cannot be written \(Is a directory\)"):
        open_run(tmp_path / "run.h5")


def test_a_worker_killed_behind_the_last_step_leaves_no_second_name_of_the_file(tmp_path):
    out = tmp_path / "run.h5"
    directory = small_run.make_journal(out, small_run.whole())
    out.write_bytes(b"whole")
    os.link(out, tmp_path / "run.h5.4711.partial")
    clear_away(Job(out, directory, [], 1, None, {}))
    assert [p.name for p in tmp_path.iterdir()] == ["run.h5"]


def test_the_local_powerds_socket_has_a_path_that_fits_wherever_temporary_files_go(tmp_path, monkeypatch):
    long = tmp_path / ("d" * 90)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    daemon = LocalDaemon({"kind": "cpu-model"}, tmp_path / "log")
    try:
        assert len(f"{daemon.url.removeprefix('ipc://')}.clock") <= 107
        assert Path(daemon.url.removeprefix("ipc://")).parent.is_dir()
        assert list(long.iterdir()) == []
    finally:
        daemon.stop()


@pytest.mark.parametrize("name", ["gpu", "Grafikkarte ä", "\N{SLIGHTLY SMILING FACE}", 'a"b\\c', "\x7f\t"])
def test_the_local_powerds_source_may_have_any_name(tmp_path, name):
    daemon = LocalDaemon({"kind": "sim", "name": name, "pid": 1}, tmp_path / "log")
    try:
        written = Path(daemon.url.removeprefix("ipc://")).with_name("powerd.toml").read_bytes()
    finally:
        daemon.stop()
    assert tomllib.loads(written.decode())["source"] == [{"kind": "sim", "name": name, "pid": 1}]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_pipe_is_not_replaced_by_a_run(tmp_path, overwrite):
    pipe = tmp_path / "run.h5"
    os.mkfifo(pipe)
    with pytest.raises(RunFileError, match="is a device or a pipe"):
        prepare(pipe, overwrite=overwrite)
    journal.journal_path(tmp_path / "other.h5").mkdir()
    with pytest.raises(RunFileError, match="is a device or a pipe"):
        recover(tmp_path / "other.h5", pipe, overwrite=overwrite)
    assert pipe.is_fifo()
