"""Real-time priority and locked memory: done, or said why not."""

from powerd_daemon.realtime import make_realtime


def test_what_is_asked_for_is_done():
    done = []
    assert make_realtime(40, True, set_priority=done.append, lock=lambda: done.append("locked")) == []
    assert done == [40, "locked"]


def test_nothing_is_done_unasked():
    def never(*_):
        raise AssertionError

    assert make_realtime(0, False, set_priority=never, lock=never) == []


def test_a_refusal_says_what_would_permit_it():
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    said = make_realtime(40, True, set_priority=refuse, lock=refuse)
    assert len(said) == 2
    assert "LimitRTPRIO=40" in said[0]
    assert "LimitMEMLOCK" in said[1]
