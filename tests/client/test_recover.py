"""What is saved of journals and run files that are damaged."""

import json
import os

import h5py
import numpy as np
import pytest

from powerd_client.journal import lock
from powerd_client.recover import recover
from powerd_client.runfile import open_run
from powerd_client.verify import verify_file
from powerd_core.errors import RunFileError
from support.fake_daemon import PERIOD_NS
from support.small_run import OFFSET_NS, description, frames, head, make_journal, make_run_file, stop, whole

LINE = "lines/gpu0.rail_0"
CLOCK = "clocks/fake board-0000000000000005"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run.h5"


def wrong(path):
    return {f.check: f.text for f in verify_file(path) if f.state == "wrong"}


def causes(file):
    return file["gaps/cause"].asstr()[:].tolist()


def damage(path, *datasets, chunk=0):
    """Change a byte in the middle of a chunk of each dataset; its checksum stays."""
    with h5py.File(path) as file:
        infos = [file[name].id.get_chunk_info(chunk) for name in datasets]
    data = bytearray(path.read_bytes())
    for info in infos:
        data[info.byte_offset + info.size // 2] ^= 0x55
    path.write_bytes(data)


def test_a_journal_is_recovered_beside_itself_and_left_as_it_was(out):
    directory = make_journal(out, whole()[:-1])
    before = {p.name: p.read_bytes() for p in directory.iterdir()}
    report = recover(out)
    assert report.source == directory
    assert report.out == out.with_name("run.recovered.h5")
    assert {p.name: p.read_bytes() for p in directory.iterdir()} == before
    assert not out.exists()
    assert report.recovered[0] == "2400 readings (0 of them no values) of 2 lines over 1.199 s"
    assert report.recovered[1] == "11 phases of 2 kinds"
    assert "the recorder ended before the run did" in report.lost[0]
    assert wrong(report.out) == {}
    assert recover(directory, out.with_name("b.h5")).recovered == report.recovered


def test_a_journal_damaged_in_the_middle_gives_everything_around_the_damage(out):
    data = bytearray(b"".join(whole()))
    data[len(data) // 2 : len(data) // 2 + 5000] = bytes(5000)
    directory = make_journal(out, [bytes(data)])
    report = recover(directory)
    assert any("bytes of the journal" in text for text in report.lost)
    with open_run(report.out) as file:
        assert "were not received" in causes(file)[0]
        lost = sum(file["gaps/numbers"][:]) * 40
        assert lost > 0
        assert len(file[LINE]["t_ns"]) == 1200 - lost
        assert file.attrs["complete"] == 1
    assert wrong(report.out) == {}


@pytest.mark.parametrize("cut", [0.3, 0.999])
def test_a_torn_tail_costs_only_what_was_in_it(out, cut):
    data = b"".join(whole())
    report = recover(make_journal(out, [data[: int(cut * len(data))]]))
    assert wrong(report.out) == {}
    with open_run(report.out) as file:
        assert len(file[LINE]["t_ns"]) >= 1200 * cut - 41


def test_a_journal_without_its_beginning_is_recovered_with_a_warning(out):
    make_journal(out, [*frames()[:20], description(), *frames()[20:]])
    with pytest.raises(RunFileError, match="does not say which run it is.*joules recover"):
        open_run(out)
    report = recover(out)
    assert any("nobody knows which run this is" in text for text in report.lost)
    assert report.recovered[0].startswith("2400 readings")
    with open_run(report.out) as file:
        assert file.attrs["run_id"] == "unknown"
        assert file.attrs["t_start_ns"] == OFFSET_NS + 50 * PERIOD_NS
    assert wrong(report.out) == {}


def test_a_lost_description_is_replaced_by_another_ones_of_the_same_layout(out):
    later = frames(10, 40, epoch=6, start_ns=10**10)
    report = recover(make_journal(out, [*head(), description(), *frames(), *later]))
    assert report.recovered[0].startswith("3200 readings")
    assert any("stands for it" in text for text in report.lost)
    assert wrong(report.out) == {}


def test_readings_that_nothing_describes_are_counted(out):
    report = recover(make_journal(out, [*head(), *frames()]))
    assert report.recovered[0].startswith("0 readings")
    assert any("30 blocks (1200 scans) of stream 0 in epoch 0000000000000005 are left out" in t for t in report.lost)


def test_readings_without_any_clock_exchange_are_declared(out):
    only_blocks = frames()[::2]
    report = recover(make_journal(out, [*head(), description(), *only_blocks, *stop(1200 * PERIOD_NS)]))
    with open_run(report.out) as file:
        assert file["gaps/lost"][:].tolist() == [1200]
        assert "nobody knows when these were read" in causes(file)[0]
    assert wrong(report.out) == {}


def test_a_good_file_loses_nothing(out):
    make_run_file(out)
    report = recover(out)
    assert report.lost == []
    with open_run(out) as a, open_run(report.out) as b:
        for name in (f"{LINE}/t_ns", f"{LINE}/power_mw", "phases/begin_ns", f"{CLOCK}/map"):
            assert np.array_equal(a[name][:], b[name][:])
        assert {k: v for k, v in a.attrs.items() if "sha" not in k} == {
            k: v for k, v in b.attrs.items() if "sha" not in k
        }
    assert wrong(report.out) == {}


@pytest.fixture
def chunked(out, monkeypatch):
    """A run file whose lines are stored in chunks of 100 readings."""
    monkeypatch.setattr("powerd_client.datasets.LINE_ROWS", 100)
    return make_run_file(out)


def test_a_chunk_of_codes_that_is_gone_becomes_flagged_readings(chunked):
    damage(chunked, f"{LINE}/power_mw", chunk=3)
    before = chunked.read_bytes()
    report = recover(chunked)
    assert chunked.read_bytes() == before
    assert "line 'gpu0.rail_0': 100 readings have lost a column: they are flagged, and no values" in report.lost
    with open_run(report.out) as file:
        flags = file[LINE]["flags"][:]
        assert np.flatnonzero(flags).tolist() == list(range(300, 400))
        assert set(flags[300:400].tolist()) == {32}
        assert np.all(file["lines/gpu0.rail_1/flags"][:] == 0)
        assert file.attrs["complete"] == 0
    assert wrong(report.out) == {}


@pytest.mark.parametrize("column", ["t_ns", "t_board_ns"])
def test_one_time_is_found_again_from_the_other(chunked, column):
    with h5py.File(chunked) as file:
        expected = file[LINE][column][:]
    damage(chunked, f"{LINE}/{column}", chunk=3)
    report = recover(chunked)
    with open_run(report.out) as file:
        assert np.abs(file[LINE][column][:] - expected).max() <= 1
    assert any("100 readings have been given times anew" in text for text in report.lost)
    assert wrong(report.out) == {}


def test_readings_without_any_time_become_a_gap(chunked):
    damage(chunked, f"{LINE}/t_ns", f"{LINE}/t_board_ns", chunk=3)
    report = recover(chunked)
    with open_run(report.out) as file:
        assert len(file[LINE]["t_ns"]) == 1100
        assert causes(file) == ["damaged in the file"]
        assert file["gaps/lost"][:].tolist() == [100]
        assert json.loads(file["gaps/lines"].asstr()[0]) == ["gpu0.rail_0"]
        t_ns = file[LINE]["t_ns"][:]
        assert (file["gaps/begin_ns"][0], file["gaps/end_ns"][0]) == (t_ns[299], t_ns[300])
    assert wrong(report.out) == {}


def test_a_mapping_is_made_anew_from_the_exchanges(out):
    make_run_file(out)
    damage(out, f"{CLOCK}/map")
    report = recover(out)
    assert any("made anew from 30 exchanges" in text for text in report.lost)
    assert wrong(report.out) == {}
    with open_run(out) as a, open_run(report.out) as b:
        assert np.array_equal(a[f"{LINE}/t_ns"][:], b[f"{LINE}/t_ns"][:])


def test_a_clock_that_is_gone_leaves_the_times_as_they_were(out):
    make_run_file(out)
    damage(out, f"{CLOCK}/map", f"{CLOCK}/exchanges")
    report = recover(out)
    assert any("cannot be given times anew" in text for text in report.lost)
    assert report.recovered[0].startswith("2400 readings (0 of them no values)")
    assert wrong(report.out) == {}


def test_phases_with_damage_are_left_out_and_counted(out, monkeypatch):
    monkeypatch.setattr("powerd_client.datasets.TABLE_ROWS", 4)
    make_run_file(out)
    damage(out, "phases/end_ns", chunk=0)
    report = recover(out)
    assert "4 of 11 phases" in report.lost
    with open_run(report.out) as file:
        assert file["phases/parent"][:].tolist() == [-1] * 7
    assert wrong(report.out) == {}


def test_names_that_are_gone_are_said_to_be(out):
    make_run_file(out)
    damage(out, "phases/kinds")
    report = recover(out)
    with open_run(report.out) as file:
        assert len(file["phases/begin_ns"]) == 11
        assert {json.loads(k)["name"] for k in file["phases/kinds"].asstr()} == {"phase whose name is lost"}
    assert wrong(report.out) == {}


def test_gaps_that_are_gone_are_not_made_up_for(out):
    make_run_file(out, [*head(), description(), *frames()[4:], *stop(10**10)])
    damage(out, "gaps/begin_ns")
    report = recover(out)
    assert "1 of 1 gaps: what they told is not told any more" in report.lost
    assert {f.check: f.state for f in verify_file(report.out)}["counts"] == "unknown"
    assert wrong(report.out) == {}


def test_a_device_whose_line_is_gone_does_not_keep_its_name(out):
    make_run_file(out)
    with h5py.File(out, "r+") as file:
        del file[f"{LINE}/power_mw"]
    report = recover(out)
    assert any("nothing says any more what its readings mean" in text for text in report.lost)
    with open_run(report.out) as file:
        assert list(file["devices"]) == ["gpu0 without gpu0.rail_0"]
        assert file["devices/gpu0 without gpu0.rail_0"].attrs["feeds"].tolist() == ["gpu0.rail_1"]
    assert wrong(report.out) == {}


def test_attributes_are_taken_from_their_copy(out):
    make_run_file(out)
    data = out.read_bytes()
    out.write_bytes(data.replace(b'"w_per_code": 0.001', b'"w_per_code": 0.002'))
    assert "metadata" in wrong(out)
    report = recover(out)
    with open_run(report.out) as file:
        assert json.loads(file[LINE].attrs["conversion"])["w_per_code"] == 0.001
    assert wrong(report.out) == {}


def test_zeros_over_a_heap_of_texts_do_not_hang_anything(out):
    make_run_file(out)
    data = bytearray(out.read_bytes())
    at = data.find(b"GCOL")
    while at >= 0:
        data[at + 16 : at + 4096] = bytes(4096 - 16)
        at = data.find(b"GCOL", at + 1)
    out.write_bytes(data)
    with pytest.raises(RunFileError, match="has no end.*joules recover"):
        open_run(out)
    report = recover(out)
    assert report.recovered[0].startswith("2400 readings (0 of them no values) of 2 lines")
    with open_run(report.out) as file:
        assert file.attrs["run_id"] == "ab"
    assert wrong(report.out) == {}


@pytest.mark.parametrize("share", [0.5, 0.75, 0.9, 0.99])
def test_a_file_that_was_cut_off_gives_what_is_in_front_of_the_cut(out, share):
    make_run_file(out)
    data = out.read_bytes()
    out.write_bytes(data[: int(share * len(data))])
    report = recover(out)
    assert report.lost[0] == f"the last {len(data) - int(share * len(data))} bytes of the file, which was cut off"
    assert wrong(report.out) == {}


def test_what_cannot_be_recovered_is_refused_in_one_line(out, tmp_path):
    with pytest.raises(RunFileError, match="no run file .* and no journal"):
        recover(out)
    with pytest.raises(RunFileError, match="is a directory, but no journal"):
        recover(tmp_path)
    out.write_text("hello")
    with pytest.raises(RunFileError, match="nothing in it can be found") as caught:
        recover(out)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [out]
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = [1]
    with pytest.raises(RunFileError, match="no powerd run"):
        recover(tmp_path / "other.h5")


def test_neither_the_original_nor_another_file_is_overwritten(out):
    make_run_file(out)
    with pytest.raises(RunFileError, match="is the run that is to be recovered"):
        recover(out, out, overwrite=True)
    other = out.with_name("other.h5")
    other.write_text("precious")
    with pytest.raises(RunFileError, match="exists"):
        recover(out, other)
    assert other.read_text() == "precious"
    recover(out, other, overwrite=True)
    assert wrong(other) == {}


def test_a_run_that_is_being_recorded_is_left_alone(out):
    held = lock(make_journal(out, whole()))
    try:
        with pytest.raises(RunFileError, match="still being recorded"):
            recover(out)
    finally:
        os.close(held)
