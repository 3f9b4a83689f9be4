"""The powerd that a recorder starts for itself, where one of them dies: what is missing is said."""

import os
import signal
from pathlib import Path

from powerd_client import open_run
from powerd_client.host.hostclock import now_ns
from powerd_client.journals.journal import journal_path
from powerd_client.record.recording import Recording
from support.small_run import wrong
from support.steady import wait_for

SOURCE = {"kind": "sim", "name": "rails", "rate_hz": 500.0}


def local_powerd(meter):
    """Process id of the powerd that the recorder has started for itself."""
    guardian = meter.guardian_pid

    def found():
        children = Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()
        return [int(p) for p in children if b"powerd_daemon" in Path(f"/proc/{p}/cmdline").read_bytes()]

    return wait_for(found)[0]


def journal_of(out):
    return (journal_path(out) / "journal.bin").read_bytes()


def journal_has(out, text):
    return text in journal_of(out)


def await_readings(out):
    """Until the journal has grown by what some hundred scans of eight lines take."""
    size = len(journal_of(out))
    wait_for(lambda: len(journal_of(out)) > size + 40_000)


def epochs_in(out):
    with open_run(out) as file:
        line = next(iter(file["lines"].values()))
        causes = set(file["gaps/cause"].asstr()[:])
        return len(file["clocks"]), len(line["t_ns"]), causes


def test_a_local_powerd_that_dies_is_started_again(tmp_path, capfd):
    out = tmp_path / "run.h5"
    recording = Recording(out, [], source=SOURCE)
    os.kill(local_powerd(recording), signal.SIGKILL)
    wait_for(lambda: journal_has(out, b'"state":"settled"'))
    await_readings(out)
    recording.finish(now_ns())
    told = capfd.readouterr().err
    assert told.count("\n") == 1
    assert "the local powerd died (SIGKILL)" in told
    assert "it is started again" in told
    clocks, readings, causes = epochs_in(out)
    assert clocks == 2
    assert readings > 200
    assert "powerd ended; its ring is lost" in causes


def test_without_the_guardian_the_worker_takes_over_the_local_powerd(tmp_path):
    out = tmp_path / "run.h5"
    recording = Recording(out, [], source=SOURCE)
    old = local_powerd(recording)
    os.kill(recording.guardian_pid, signal.SIGKILL)
    wait_for(lambda: journal_has(out, b'"state":"settled"'))
    await_readings(out)
    recording.finish(now_ns())
    clocks, readings, _ = epochs_in(out)
    assert clocks == 2
    assert readings > 200
    assert not Path(f"/proc/{old}").exists()


def test_a_local_powerd_outlives_the_worker(tmp_path, capfd):
    out = tmp_path / "run.h5"
    recording = Recording(out, [], source=SOURCE)
    powerd = local_powerd(recording)
    os.kill(recording.pid, signal.SIGKILL)
    old = recording.pid
    wait_for(lambda: recording.listen() is not None and recording.pid != old)
    assert local_powerd(recording) == powerd
    await_readings(out)
    recording.finish(now_ns())
    assert epochs_in(out)[0] == 1
    assert epochs_in(out)[2] == set()
    wait_for(lambda: not Path(f"/proc/{powerd}").exists())


def test_a_local_powerd_that_died_with_the_recorder_is_started_again_with_it(tmp_path):
    out = tmp_path / "run.h5"
    recording = Recording(out, [], source=SOURCE)
    os.killpg(recording.guardian_pid, signal.SIGKILL)
    wait_for(lambda: journal_of(out).count(b'"state":"live"') == 2)
    await_readings(out)
    recording.finish(now_ns())
    clocks, readings, causes = epochs_in(out)
    assert clocks == 2
    assert readings > 200
    assert causes
    assert wrong(out) == {}
