"""What fuzzing and reading for it turned up outside the targets, each as a test of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing.frames import description_document, sealed
from powerd_client.journals.journal import MarkTail
from powerd_client.journals.journal_writer import JournalWriter
from powerd_client.journals.marks import MarkWriter
from powerd_core.errors import WireError
from powerd_core.serde import read_description
from powerd_core.text import printable
from powerd_core.wire import MESSAGE, Message, decode, encode
from powerd_daemon.cli import _tree
from powerd_daemon.sources.port import LineReader


class TestText:
    @given(st.text(max_size=80))
    def test_nothing_that_a_terminal_obeys_is_left_and_nothing_readable_is_touched(self, text):
        shown = printable(text)
        assert all(c.isprintable() or c in "\u00a0\u202f" for c in shown)
        if text.isprintable():
            assert shown == text

    def test_statistics_of_a_strange_powerd_cannot_move_the_cursor(self):
        shown = _tree({"a\x1b[1A": {"b": "\x1b[2J", "c": ["\r\n"]}, "d\x07": []})
        assert all(line.isprintable() for line in shown)


class TestNumbers:
    def test_a_message_that_json_cannot_say_is_our_error(self):
        with pytest.raises(WireError):
            encode(Message("x", {"a": float("inf")}))

    @pytest.mark.parametrize("body", ['{"a": 1e999}', '{"a": NaN}', '{"a": ' + "[" * 40 + "]" * 40 + "}"])
    def test_a_message_that_could_not_be_written_again_is_garbage(self, body):
        text = f'{{"subject":"x","body":{body}}}'.encode()
        with pytest.raises(WireError):
            decode(sealed(MESSAGE, text))

    @pytest.mark.parametrize(
        ("value", "text"), [(float("nan"), "NaN"), (float("inf"), "Infinity"), (-float("inf"), "-Infinity")]
    )
    def test_an_attribute_that_is_no_number_does_not_end_the_recording(self, tmp_path, value, text):
        writer = MarkWriter(tmp_path)
        writer.kind("forward", {"loss": value, "batch": 4}, "host")
        writer.close()
        names, _ = MarkTail(tmp_path, consume=False).read()
        (kind,) = [n for n in names if "kind" in n]
        found = decode(encode(Message("phase-names", kind)))
        assert isinstance(found, Message)
        assert found.body["attributes"] == {
            "loss": {"nan": "NaN", "inf": "Infinity"}.get(str(value), "-Infinity"),
            "batch": 4,
        }


class TestLineReader:
    @given(st.lists(st.binary(max_size=3000) | st.sampled_from([b"\n", b"1 W\n", b"x" * 2000]), max_size=20))
    def test_no_line_and_no_memory_beyond_the_limit_however_it_is_cut(self, pieces):
        reader = LineReader(1000)
        lines = [line for i, p in enumerate(pieces) for _, line in reader.feed(p, i * 10, i * 10 + 10)]
        assert all(len(line) <= LineReader.MAX_LINE for line in lines)
        whole = [line for _, line in LineReader(1000).feed(b"".join(pieces), 0, 10)]
        ended = b"".join(pieces).count(b"\n")
        assert len([*lines]) >= ended
        assert lines[:ended] == whole[:ended]

    def test_what_follows_a_line_that_is_too_long_is_not_taken_for_a_line(self):
        reader = LineReader(0)
        found = [line for p in (b"x" * 3000, b"y" * 3000, b"12 W\n", b"13 W\n") for _, line in reader.feed(p, 0, 0)]
        assert found == [b"x" * LineReader.MAX_LINE, b"13 W"]


def test_an_error_never_repeats_more_of_a_message_than_a_person_reads():
    document = description_document()
    document["board"] = ["\x1b[2J" * 100_000]
    with pytest.raises(WireError) as caught:
        read_description(document)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def test_names_of_phases_that_make_no_sense_are_passed_over(tmp_path: Path):
    damaged = b'{"kind": 0}\n[1]\n"x"\n' + b"[" * 5000 + b'\n{"kind": 1, "x": 1e999}\n{'
    (tmp_path / "marks-0000000000000001.names").write_bytes(damaged)
    names, marks = MarkTail(tmp_path, consume=False).read()
    assert [n["kind"] for n in names] == [0]
    assert marks == []


def test_a_powerd_that_never_runs_out_of_errors_fills_neither_journal_nor_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said: list[str] = []
    monkeypatch.setattr("powerd_client.journals.journal_writer.log.warning", said.append)
    log = JournalWriter(tmp_path)
    try:
        for i in range(5000):
            log.warn(f"{i}\x1b[2J" + "x" * 10_000)
        log.flush()
    finally:
        log.close()
    assert len(said) == 1000
    assert all(text.isprintable() and len(text) < 600 for text in said)
    assert (tmp_path / "journal.bin").stat().st_size < 2 << 20
