"""What is told on the error stream, whatever that is."""

import io
import logging
import os
import sys

import pytest

from powerd_client.job import MAX_TEXT, UserHandler
from powerd_client.log import tell


class Broken(io.StringIO):
    def write(self, _):
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [None, Broken()], ids=["none", "broken"])
def test_a_stream_that_takes_nothing_raises_nothing(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    tell("anything")


def test_a_line_is_one_line(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    tell("run\n\x1b[2J.h5 100 % %s")
    assert stream.getvalue() == "powerd: run\\n\\x1b[2J.h5 100 % %s\n"


def test_the_recorder_tells_the_user_one_bounded_line(capfd):
    reading, writing = os.pipe()
    handler = UserHandler(writing)
    handler.handle(logging.makeLogRecord({"msg": "last words\x1b[2J\n" + "x" * 10_000}))
    handler.close()
    with open(reading) as file:
        text = file.read()
    assert text.startswith("powerd: last words\\x1b[2J\\nxxx")
    assert text.count("\n") == 1
    assert len(text) < MAX_TEXT + 40
    capfd.readouterr()
