"""From a journal to a run file, whole or damaged."""

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_client import open_run
from powerd_client.journals import journal
from powerd_client.journals.journal import MarkTail
from powerd_client.journals.marks import MarkWriter
from powerd_client.runs import build
from powerd_core.errors import RunFileError
from powerd_core.serde import to_document
from powerd_core.wire import Message, encode
from support import small_run
from support.fake_daemon import PERIOD_NS, make_block, make_description
from support.small_run import EPOCH, OFFSET_NS, STREAM, description, exchange, head, stop


def frames(blocks=10, scans=20, epoch=EPOCH, start_ns=0):
    return [description(epoch), *small_run.frames(blocks, scans, epoch, start_ns)]


def make_journal(out, pieces):
    return small_run.make_journal(out, pieces, marks=False)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run.h5"


def texts(file):
    return [json.loads(m)["text"] for m in file["messages"].asstr()]


def open_incomplete(out, why):
    """The run file of a journal of which something is left out: that is said once, and the journal stays."""
    with pytest.raises(RunFileError, match=why):
        open_run(out)
    assert (journal.journal_path(out) / "journal.bin").exists()
    assert not journal.packed_path(out).exists()
    return open_run(out)


def test_a_short_run_is_not_mostly_structure(out):
    """No dataset has room for more than it holds: each that may grow for ever took three kilobytes."""
    small_run.make_run_file(out)
    stored = []
    with open_run(out) as file:
        file.visititems(lambda name, item: stored.append(item) if isinstance(item, h5py.Dataset) else None)
        assert {name for d in stored for name, most in [(d.name, d.maxshape[0])] if most != max(len(d), 1)} == set()
    assert out.stat().st_size < 50_000  # 73,437 where chunks were as long as those of a long run


def test_a_board_that_restarts_has_room_for_the_readings_of_both_its_lives(out):
    pieces = [*head(), *frames(), *frames(7, 20, EPOCH + 1, 300 * PERIOD_NS), *stop(600 * PERIOD_NS)]
    build.build_run(make_journal(out, pieces), out)
    with open_run(out) as file:
        assert file["lines/gpu0.rail_1/t_board_ns"].shape == (340,)


def test_every_reading_and_setting_is_in_the_run_file(out):
    directory = make_journal(out, head() + frames() + stop(200 * PERIOD_NS))
    build.build_run(directory, out)
    assert not directory.exists()
    with open_run(out) as file:
        line = file["lines/gpu0.rail_1"]
        assert line["power_mw"][:].tolist() == [1000 + k for k in range(10) for _ in range(20)]
        t = np.arange(200) * PERIOD_NS + 10_000
        assert line["t_board_ns"][:].tolist() == t.tolist()
        assert line["t_ns"][:].tolist() == (t + OFFSET_NS).tolist()
        assert line["flags"][:].sum() == 0
        assert line["t_ns"].attrs["units"] == "ns"
        assert line.attrs["provenance"] == "simulated"
        assert line.attrs["quantity"] == "power_w"
        assert json.loads(line.attrs["conversion"]) == {"kind": "scaled", "column": "power_mw", "w_per_code": 1e-3}
        assert json.loads(line.attrs["accuracy"])["u_gain"] == 0.01
        assert list(file["devices/gpu0"].attrs["feeds"]) == ["gpu0.rail_0", "gpu0.rail_1"]
        assert file.attrs["complete"] == 1
        assert file.attrs["rebuilt"] == 0
        assert file.attrs["t_stop_ns"] == 200 * PERIOD_NS + OFFSET_NS
        clock = file["clocks"][line.attrs["clock"]]
        assert clock["exchanges"].shape == (10, 4)
        assert clock["map"].shape == (10, 3)
        assert len(file["gaps/begin_ns"]) == 0
        assert texts(file) == []


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_a_journal_cut_off_anywhere_opens_with_everything_before_the_cut(tmp_path_factory, data):
    out = tmp_path_factory.mktemp("cut") / "run.h5"
    pieces = head() + frames(4, 5)
    whole = b"".join(pieces)
    least = len(pieces[0])
    cut = data.draw(st.integers(least, len(whole)))
    make_journal(out, [whole[:cut]])
    sizes = np.cumsum([len(p) for p in pieces])
    kept = int(np.searchsorted(sizes, cut, side="right"))
    blocks = sum(1 for i in range(3, kept) if (i - 3) % 2 == 0)
    exchanges = sum(1 for i in range(3, kept) if (i - 3) % 2 == 1)
    with open_incomplete(out, "1 of 1 blocks") if blocks and not exchanges else open_run(out) as file:
        found = len(file["lines/gpu0.rail_0/t_ns"]) if "gpu0.rail_0" in file["lines"] else 0
        assert found == (5 * blocks if exchanges else 0)


def test_damage_in_the_middle_loses_that_block_and_says_so(out):
    pieces = head() + frames(4, 5)
    damaged = bytearray(pieces[5])
    damaged[70] ^= 1
    pieces[5] = bytes(damaged)
    make_journal(out, pieces + stop(20 * PERIOD_NS))
    with open_incomplete(out, "bytes of the journal at") as file:
        line = file["lines/gpu0.rail_0"]
        assert len(line["t_ns"]) == 15
        assert file["gaps/cause"].asstr()[:].tolist() == ["1 blocks were not received"]
        begin, end = file["gaps/begin_ns"][0], file["gaps/end_ns"][0]
        assert begin == OFFSET_NS + 4 * PERIOD_NS + 10_000
        assert end == OFFSET_NS + 10 * PERIOD_NS
        assert any("could not be read (checksum" in t for t in texts(file))


def test_a_powerd_that_was_started_anew_leaves_a_gap_between_its_lives(out):
    later = 10**9
    pieces = head() + frames(2, 5) + frames(2, 5, epoch=6, start_ns=later)
    make_journal(out, pieces + stop(later + 10 * PERIOD_NS))
    with open_run(out) as file:
        line = file["lines/gpu0.rail_0"]
        assert len(line["t_ns"]) == 20
        assert np.all(np.diff(line["t_ns"][:]) > 0)
        assert len(line.attrs["clocks"]) == 2
        assert line.attrs["clock_first"].tolist() == [0, 10]
        assert file["gaps/cause"].asstr()[0] == "powerd was started anew"
        assert file["gaps/end_ns"][0] == OFFSET_NS + later


def second_board(epoch, lines, name="other board"):
    stream = replace(STREAM, lines=tuple(replace(line, name=n) for line, n in zip(STREAM.lines, lines, strict=True)))
    described = replace(make_description(stream, epoch), board=name)
    pieces = [encode(Message("description", to_document(described), epoch))]
    for k in range(4):
        pieces.append(encode(make_block(stream, epoch, k, k * 10 * PERIOD_NS, [2000] * 10)))
        pieces.append(encode(exchange(k * 10 * PERIOD_NS, epoch)))
    return pieces


def test_two_boards_that_call_their_lines_alike_do_not_mix(out):
    pieces = head() + frames(4, 10) + second_board(6, ["gpu0.rail_0", "gpu0.rail_1"]) + stop(40 * PERIOD_NS)
    make_journal(out, pieces)
    with open_run(out) as file:
        assert len(file["lines"]) == 4
        assert np.all(file["lines/gpu0.rail_0/power_mw"][:] < 2000)
        assert np.all(file["lines/gpu0.rail_0@0000000000000006/power_mw"][:] == 2000)
        assert any("gpu0.rail_0 is there twice at a time" in text for text in texts(file))


def test_a_file_that_appears_meanwhile_is_not_replaced(out):
    directory = make_journal(out, head() + frames())
    out.write_text("precious")
    with pytest.raises(RunFileError):
        build.build_run(directory, out)
    assert out.read_text() == "precious"
    assert directory.exists()
    assert list(out.parent.glob("*.partial")) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "there is no run file"),
        (lambda p: p.mkdir(), "is a directory"),
        (lambda p: p.write_text("hello"), "it is not HDF5"),
        (lambda p: p.write_bytes(b""), "is empty"),
        (lambda p: h5py.File(p, "w").close(), "an HDF5 file, but no powerd run"),
        (lambda p: (small_run.claim_journal(p) / "x").touch(), "holds nothing of a run"),
        (lambda p: make_journal(p, frames()), "does not say which run it is"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(out, make, message):
    make(out)
    with pytest.raises(RunFileError, match=message) as caught:
        open_run(out)
    assert "\n" not in str(caught.value)


def marked(out, *, events=()):
    """A journal whose training gave events; its recorder had copied the first two of them when it ended."""
    directory = make_journal(out, [])
    writer = MarkWriter(directory)
    for name, values in events:
        writer.event(name, values)
    writer.mark(writer.kind("forward", {}, "host"))
    writer.close()
    documents = MarkTail(directory, consume=False).read()[0]
    copied = [encode(Message("phase-names", document)) for document in documents[:3]]
    (directory / "journal.bin").write_bytes(b"".join([*head(), *frames(), *copied, *stop(200 * PERIOD_NS)]))
    return directory


def test_every_event_is_in_the_run_file_once(out, monkeypatch):
    monkeypatch.setattr("powerd_client.journals.marks.now_ns", iter(range(OFFSET_NS, OFFSET_NS + 99)).__next__)
    events = [("lease", {"cap_w": 200}), ("décision\0", {"why": "y" * 3000}), ("result", {"top1": 0.71})]
    build.build_run(marked(out, events=events), out)
    assert not journal.journal_path(out).exists()
    with open_run(out) as file:
        table = file["events"]
        assert table["t_ns"][:].tolist() == [OFFSET_NS, OFFSET_NS + 1, OFFSET_NS + 2]
        assert table["t_ns"].attrs["units"] == "ns"
        assert table["process"][:].tolist() == [0, 0, 0]
        assert table["name"].asstr()[:].tolist() == ["lease", "décision\N{REPLACEMENT CHARACTER}", "result"]
        assert [json.loads(values) for values in table["values"].asstr()] == [values for _, values in events]
        assert all(column.fletcher32 for column in table.values())


def test_a_journal_stays_where_the_run_file_lacks_its_events(out):
    """As one that release 0.1.0 has built."""
    directory = marked(out, events=[("lease", {}), ("result", {"top1": 0.71})])
    contents = build.read_contents(directory)
    for names in contents.names.values():
        names.events = {}
    build.write_file(out, contents, directory, overwrite=False, progress=lambda share: None)
    assert build.keep_journal(directory, out) == ["2 events are left out"]
    assert directory.exists()


@pytest.mark.parametrize(
    "event", [{"t_ns": 1 << 62, "values": {}}, {"t_ns": 1, "values": 3}, {"t_ns": 1}, {"t_ns": "1"}]
)
def test_an_event_that_makes_no_sense_is_told(out, event):
    forged = encode(Message("phase-names", {"event": "lease", "process": 3, **event}))
    make_journal(out, [*head(), *frames(), forged, *stop(200 * PERIOD_NS)])
    with open_incomplete(out, "makes no sense") as file:
        assert len(file["events/t_ns"]) == 0


def test_many_short_events_and_long_ones_make_a_file_that_opens(out):
    """A name and values of the greatest width, in a table whose rows would take 4 GiB if each were as wide."""
    events = dict.fromkeys((OFFSET_NS + i, "e", "{}") for i in range(70_000))
    events[OFFSET_NS, "n" * 200, json.dumps({"why": "y" * 65_000})] = None
    directory = marked(out)
    contents = build.read_contents(directory)
    next(iter(contents.names.values())).events = events
    build.write_file(out, contents, directory, overwrite=False, progress=lambda share: None)
    with open_run(out) as file:
        assert len(file["events/t_ns"]) == len(events)
        assert max(map(len, file["events/values"].asstr()[:10])) > 65_000


@pytest.mark.parametrize("has_readings", [False, True])
def test_a_board_that_is_started_again_and_again_makes_no_run_file_grow_quadratically(tmp_path, has_readings):
    """Twice as many lives of a board take twice the room, whether readings of them came or not."""

    def bytes_of(lives):
        pieces = head() + frames()
        for life in range(1, lives + 1):
            pieces.append(description(EPOCH + life))
            if has_readings:
                start_ns = life * 10**9
                pieces += [encode(exchange(start_ns + k * 10**7, EPOCH + life)) for k in range(3)]
                pieces += small_run.frames(1, 1, EPOCH + life, start_ns)
        out = tmp_path / f"{lives}.h5"
        build.build_run(make_journal(out, pieces + stop((lives + 2) * 10**9)), out)
        return out.stat().st_size

    few, more, most = (bytes_of(lives) for lives in (10, 20, 40))
    assert most - more < 2.1 * (more - few) + 4_000
