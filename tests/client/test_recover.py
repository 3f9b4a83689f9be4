"""What is saved of journals that are damaged."""

import pytest

from powerd_client.journals.journal import packed_path
from powerd_client.runs.recover import open_run, recover
from powerd_core.errors import RunFileError
from support.fake_daemon import PERIOD_NS
from support.small_run import OFFSET_NS, description, frames, head, make_journal, make_run_file, stop, whole, wrong

LINE = "lines/gpu0.rail_0"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run.h5"


def causes(file):
    return file["gaps/cause"].asstr()[:].tolist()


def test_a_journal_is_recovered_beside_itself_and_left_as_it_was(out):
    directory = make_journal(out, whole()[:-1])
    before = {p.name: p.read_bytes() for p in directory.iterdir()}
    report = recover(out)
    assert report.source == directory
    assert report.out == out.with_name("run.recovered.h5")
    assert {p.name: p.read_bytes() for p in directory.iterdir()} == before
    assert not out.exists()
    assert report.recovered[0] == "2400 readings of 2 lines"
    assert report.recovered[1] == "11 phases of 2 kinds"
    assert "the recorder ended before the run did" in report.lost[0]
    assert wrong(report.out) == {}
    assert recover(directory, out.with_name("b.h5")).recovered == report.recovered


def test_a_journal_without_its_beginning_is_recovered_with_a_warning(out):
    make_journal(out, [*frames()[:20], description(), *frames()[20:]])
    with pytest.raises(RunFileError, match="joules journal recover"):
        open_run(out)
    report = recover(out)
    assert any("nobody knows which run this is" in text for text in report.lost)
    assert report.recovered[0].startswith("2400 readings")
    with open_run(report.out) as file:
        assert file.attrs["run_id"] == "unknown"
        assert file.attrs["t_start_ns"] == OFFSET_NS + 50 * PERIOD_NS
    assert wrong(report.out) == {}


def test_readings_without_any_clock_exchange_are_declared(out):
    only_blocks = frames()[::2]
    report = recover(make_journal(out, [*head(), description(), *only_blocks, *stop(1200 * PERIOD_NS)]))
    with open_run(report.out) as file:
        assert file["gaps/lost"][:].tolist() == [1200]
        assert "nobody knows when these were read" in causes(file)[0]
    assert wrong(report.out) == {}


def test_a_run_file_without_a_journal_is_refused_in_one_line(out):
    make_run_file(out)
    packed_path(out).unlink()
    before = out.read_bytes()
    with pytest.raises(RunFileError) as caught:
        recover(out)
    assert "\n" not in str(caught.value)
    assert out.read_bytes() == before
    assert [p.name for p in out.parent.iterdir()] == [out.name]


def test_zeros_over_a_heap_of_texts_do_not_hang_anything(out):
    make_run_file(out)
    data = bytearray(out.read_bytes())
    at = data.find(b"GCOL")
    while at >= 0:
        data[at + 16 : at + 4096] = bytes(4096 - 16)
        at = data.find(b"GCOL", at + 1)
    out.write_bytes(data)
    with pytest.raises(RunFileError):
        open_run(out)


def test_neither_the_original_nor_another_file_is_overwritten(out):
    make_journal(out, whole())
    with pytest.raises(RunFileError):
        recover(out, out, overwrite=True)
    other = out.with_name("other.h5")
    other.write_text("precious")
    with pytest.raises(RunFileError):
        recover(out, other)
    assert other.read_text() == "precious"
    recover(out, other, overwrite=True)
    assert wrong(other) == {}
