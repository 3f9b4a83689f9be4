"""The script of `make board-vm` without its machines: what it says of an act that failed, and how it counts losses."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPTS = str(Path(__file__).parents[1] / "board_vm")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    for name in ("run", "vm"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import run

    yield run
    for name in ("run", "vm"):
        sys.modules.pop(name, None)


@pytest.fixture
def report(script, tmp_path):
    report = script.Report(tmp_path / "transcript.txt")
    yield report
    report.close()


class FakeBoard:
    """Commands are answered from a table; without an answer the machine is gone."""

    def __init__(self, report, answers):
        self.report, self.answers, self.name = report, answers, "machine 1"

    def sh(self, command, **_):
        for word, answer in self.answers.items():
            if word in command:
                self.report.tell(f"# {command}\n{answer}")
                return answer
        raise OSError("the machine has ended")


def smbus(board, _):
    raise RuntimeError(f"systemctl restart powerd: status 1 in {SCRIPTS}/run.py")


def test_an_act_that_failed_prints_the_journal_of_the_units(script, report):
    why = "powerd: 0x40 is no INA219: register 0x00 is 0x8000"
    assert not script.attempt(FakeBoard(report, {"journalctl -u powerd": why, "journalctl -u usb": "-"}), report, smbus)
    told = report.path.read_text()
    assert why in told
    assert report.missed == 1
    assert str(script.REPOSITORY) not in told, "a transcript is published"


def test_an_act_that_failed_with_its_machine_is_reported_all_the_same(script, report):
    assert not script.attempt(FakeBoard(report, {}), report, smbus)
    assert "the journal of powerd cannot be had" in report.path.read_text()


@pytest.mark.parametrize(
    ("kept", "safe", "behind_s", "lost_s", "is_excused"),
    [(100, 90, 0.5, 0.0, True), (60, 50, 0.5, 0.8, True), (0, 0, 0.8, 2.0, False), (0, 0, 1.9, 2.0, True)],
    ids=["nothing", "within the second", "beyond it, and it was not told", "a slow disk, and it was told"],
)
def test_a_loss_is_what_was_served_and_is_not_kept(script, monkeypatch, kept, safe, behind_s, lost_s, is_excused):
    """100 frames of two scans each at 100 Hz are two seconds; a life of which nothing was written is not listed."""
    lives = [{"epoch": 7, "streams": [{"next": kept}]}] if kept else []
    body = {"ready": True, "epochs": lives}
    monkeypatch.setattr(script, "ask", lambda *_: SimpleNamespace(epoch=8, body=body))
    spool = {"behind_s": behind_s, "streams": [{"safe": safe}]}
    loss = script.loss_of(1, {"epoch": 7, "streams": [{"newest": 99, "scans": 200}], "spool": spool})
    assert loss.seconds == pytest.approx(lost_s)
    assert loss.is_excused == is_excused


def test_a_hole_below_what_was_told_to_be_safe_is_a_miss(script, monkeypatch):
    monkeypatch.setattr(script, "ask", lambda *_: SimpleNamespace(epoch=8, body={"ready": True, "epochs": []}))
    spool = {"behind_s": 9.0, "streams": [{"safe": 3}]}
    with pytest.raises(script.Failed, match="had told that 3 are safe"):
        script.loss_of(1, {"epoch": 7, "streams": [{"newest": 99, "scans": 200}], "spool": spool})
