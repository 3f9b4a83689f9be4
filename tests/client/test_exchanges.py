"""Clock exchanges whose answers take their time, come twice, or are none."""

import pytest
import zmq

from powerd_client.exchanges import Exchanges
from powerd_client.hostclock import now_ns
from powerd_core.model import UNKNOWN_TIME_NS, ClockExchange
from powerd_core.wire import decode, encode

EPOCH = 5
AHEAD_NS = 7_000_000_000
"""So much the board's clock is ahead of ours."""


class Board:
    """The other end of the clock socket, which answers when the test wants it to."""

    def __init__(self, context):
        self.router = context.socket(zmq.ROUTER)
        self.router.bind("inproc://clock")
        self.clock = context.socket(zmq.DEALER)
        self.clock.connect("inproc://clock")
        self.peer = b""

    def question(self):
        self.peer, frame = self.router.recv_multipart()
        return decode(frame)

    def answer(self, question):
        t_ns = now_ns() + AHEAD_NS
        self.say(encode(ClockExchange(EPOCH, question.t1_host_ns, t_ns, t_ns)))

    def say(self, frame):
        self.router.send_multipart([self.peer, frame])


@pytest.fixture
def board():
    context = zmq.Context()
    yield Board(context)
    context.destroy(linger=0)


def test_an_answer_that_comes_late_is_kept_and_brackets_the_truth(board):
    exchanges = Exchanges()
    assert exchanges.make(board.clock, 1) is None
    assert exchanges.offset_ns(EPOCH) is None
    assert exchanges.board_now_ns(EPOCH) == UNKNOWN_TIME_NS
    board.answer(board.question())
    (late,) = exchanges.late(board.clock)
    assert abs(late.offset_ns + AHEAD_NS) <= late.delay_ns / 2 + 1
    assert exchanges.offset_ns(EPOCH) == pytest.approx(-AHEAD_NS, abs=late.delay_ns)
    assert exchanges.board_now_ns(EPOCH) >= now_ns() + AHEAD_NS - 2 * late.delay_ns
    assert exchanges.late(board.clock) == []


def test_one_that_is_late_does_not_stand_for_the_next(board):
    exchanges = Exchanges()
    assert exchanges.make(board.clock, 1) is None
    board.answer(board.question())
    assert exchanges.make(board.clock, 1) is None
    assert len(exchanges.late(board.clock)) == 1


def test_what_was_not_asked_or_was_answered_counts_for_nothing(board):
    exchanges = Exchanges()
    assert exchanges.make(board.clock, 1) is None
    question = board.question()
    board.say(encode(ClockExchange(EPOCH, question.t1_host_ns + 1, 1, 1)))
    board.say(b"nonsense")
    board.answer(question)
    board.answer(question)
    assert len(exchanges.late(board.clock)) == 1
    assert exchanges.refused == 1
    assert exchanges.heard_ns > 0


def test_questions_that_wait_are_bounded(board):
    exchanges = Exchanges()
    for _ in range(70):
        assert exchanges.make(board.clock, 0) is None
    questions = [board.question() for _ in range(70)]
    for question in questions:
        board.answer(question)
    found = [e for _ in range(3) for e in exchanges.late(board.clock)]
    assert [e.t1_host_ns for e in found] == [q.t1_host_ns for q in questions[-64:]]
