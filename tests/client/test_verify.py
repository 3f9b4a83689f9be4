"""What `verify` finds in run files that are good, and in those of which one thing is not."""

import h5py
import pytest

from powerd_client.runs.runfile import DIGEST, seal
from powerd_client.runs.verify import verify_file, wrong_at_first_sight
from powerd_core.model import Gap
from powerd_core.wire import encode
from support.fake_daemon import PERIOD_NS
from support.small_run import EPOCH, description, frames, head, make_run_file, stop, wrong

CHECKS = {
    "structure", "checksums", "metadata", "gaps", "counts", "times",
}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    return make_run_file(tmp_path / "run.h5")


def test_a_good_file_is_good_in_every_respect(run):
    findings = list(verify_file(run))
    assert {f.check for f in findings} == CHECKS
    assert [f for f in findings if f.state != "ok"] == []
    said = {f.check: f.text for f in findings}
    assert said["counts"] == "30 numbers given = 30 received + 0 declared lost"
    assert said["times"] == "the times of 2400 readings increase"


def test_what_is_lost_is_declared_and_the_numbers_agree(tmp_path):
    made = frames()
    del made[20:26]  # three blocks and their exchanges
    made[10] = encode(Gap(0, EPOCH, 5, 5 * 40 * PERIOD_NS, 6 * 40 * PERIOD_NS, 1, 40, "bus hung"))
    later = frames(10, 40, epoch=6, start_ns=3 * 10**9)
    pieces = [*head(), description(), *made, description(6), *later[:8], *later[10:], *stop(4 * 10**9)]
    path = make_run_file(tmp_path / "gaps.h5", pieces)
    assert wrong(path) == {}
    said = {f.check: f.text for f in verify_file(path)}
    assert said["counts"] == "40 numbers given = 35 received + 5 declared lost"
    with h5py.File(path) as file:
        causes = file["gaps/cause"].asstr()[:].tolist()
        assert causes == [
            "bus hung", "3 blocks were not received", "powerd was started anew", "1 blocks were not received",
            "powerd sent nothing more",
        ]  # fmt: skip
        assert file["gaps/numbers"][:].tolist() == [1, 3, 0, 1, 0]


def change(path, where, row, value):
    """A value changed by a program that knows about HDF5, so that checksums are right again."""
    with h5py.File(path, "r+") as file:
        file[where][row] = value
        seal(file)


@pytest.mark.parametrize(
    ("where", "row", "value", "check", "text"),
    [
        ("lines/gpu0.rail_0/t_ns", 7, 10**12, "times", "reading 7 of 'gpu0.rail_0' is not later than the one before"),
        ("lines/gpu0.rail_0/t_board_ns", 7, 0, "times", "the board's times of 'gpu0.rail_0' go back 1 times"),
    ],
)  # fmt: skip
def test_one_wrong_value_is_found_and_said(run, where, row, value, check, text):
    change(run, where, row, value)
    assert text in wrong(run)[check]


def test_a_number_that_nobody_declared_is_found(tmp_path):
    made = frames()
    del made[20:22]
    path = make_run_file(tmp_path / "r.h5", [*head(), description(), *made, *stop(1200 * PERIOD_NS)])
    change(path, "gaps/numbers", 0, 0)
    assert "gaps declare 0 numbers lost, 1 are" in wrong(path)["counts"]
    with h5py.File(path) as file:
        assert any("gaps declare 0 numbers lost, 1 are" in text for text in wrong_at_first_sight(file))


def test_a_byte_in_a_chunk_is_found(run):
    with h5py.File(run) as file:
        at = file["lines/gpu0.rail_1/t_ns"].id.get_chunk_info(0).byte_offset
    data = bytearray(run.read_bytes())
    data[at + 20] ^= 1
    run.write_bytes(data)
    found = wrong(run)
    assert "/lines/gpu0.rail_1/t_ns, rows 0 to 1199" in found["checksums"]
    assert "cannot be read" in found["times"]


def test_a_changed_attribute_and_a_changed_text_are_found(run):
    data = run.read_bytes()
    assert b'"w_per_code": 0.001' in data
    run.write_bytes(data.replace(b'"w_per_code": 0.001', b'"w_per_code": 0.002', 1))
    assert set(wrong(run)) == {"metadata"}


def test_what_an_older_release_did_not_store_is_neither_right_nor_wrong(run):
    with h5py.File(run, "r+") as file:
        del file["parts"], file.attrs[DIGEST], file["gaps/numbers"]
        clock = next(iter(file["clocks"].values()))
        del clock["piece_rates"]
        values = file["phases/cut"][:]
        del file["phases/cut"]
        file["phases/cut"] = values
        file["phases/cut"].attrs["units"] = "1"
    states = {f.check: f.state for f in verify_file(run)}
    assert {check for check, state in states.items() if state == "unknown"} == {
        "checksums", "metadata", "counts",
    }  # fmt: skip
    assert "wrong" not in states.values()
