"""What is told on the error stream, whatever that is."""

import io
import os
import sys

import pytest

from powerd_client.job import MAX_TEXT, Voice
from powerd_client.telling import end_progress, show_progress, tell


class Terminal(io.StringIO):
    def isatty(self):
        return True


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


class Broken(Terminal):
    def write(self, _):
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [None, closed(), Broken()], ids=["none", "closed", "broken"])
def test_a_stream_that_takes_nothing_raises_nothing(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    assert not tell("anything")
    assert not show_progress("anything")
    end_progress()


def test_a_line_is_one_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    assert tell("run\n\x1b[2J.h5")
    assert stream.getvalue() == "powerd: run\\n\\x1b[2J.h5\n"


def test_progress_is_for_terminals(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    assert show_progress("10 %")
    end_progress()
    assert stream.getvalue() == "\rpowerd: 10 %\n"
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    assert not show_progress("10 %")
    assert stream.getvalue() == ""


def test_the_recorder_tells_the_user_one_bounded_line(capfd):
    reading, writing = os.pipe()
    voice = Voice(writing)
    voice.warn("last words\x1b[2J\n" + "x" * 10_000)
    voice.close()
    with open(reading) as file:
        text = file.read()
    assert text.startswith("powerd: last words\\x1b[2J\\nxxx")
    assert text.count("\n") == 1
    assert len(text) < MAX_TEXT + 40
    capfd.readouterr()
