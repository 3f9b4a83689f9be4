"""What is asked of the helper: what the client says is understood as it was meant, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_control.requests import plain, read_request
from powerd_core.errors import WireError
from powerd_core.lease import MAX_REQUEST, UNITS, Request, Wish, to_line

DEVICES = st.sampled_from(["gpu0", "GPU-1", "cpu", ""])
WISHES = st.builds(Wish, DEVICES, st.sampled_from(sorted(UNITS)), st.floats(-1e9, 1e9) | st.just("unlocked"))
REQUESTS = st.builds(
    Request,
    st.sampled_from(["describe", "status", "acquire", "set", "renew", "release", "steal", "check"]),
    st.lists(WISHES, max_size=9).map(tuple),
    st.sampled_from(["", "0123456789abcdef"]),
    st.sampled_from(["", "train.py", "zw\N{EN DASH}ei"]),
    st.floats(1, 1e7),
    st.sampled_from(["", "trainer"]),
)


@given(REQUESTS)
def test_what_the_client_says_is_understood(request):
    line = to_line(request)
    assert line.count(b"\n") == 1
    read = read_request(line)
    assert [(w.device, w.knob, w.value) for w in read.wishes] == [(w.device, w.knob, w.level) for w in request.wishes]
    for name in ("verb", "lease", "name", "ttl_s", "claim"):
        assert getattr(read, name) == getattr(request, name)


@given(st.binary(max_size=200))
def test_garbage_is_refused(line):
    with pytest.raises(WireError):
        read_request(line)


WISH = b'{"device":"gpu0","knob":"power_cap","level":%s}'


@pytest.mark.parametrize(
    "line",
    [
        b'{"verb":"acquire","wishes":[{"device":"gpu0","knob":"fan","level":1}]}',
        b'{"verb":"acquire","wishes":[{"device":"gpu0","knob":"power_cap"}]}',
        b'{"verb":"acquire","wishes":[{"device":5,"knob":"power_cap","level":1}]}',
        b'{"verb":"acquire","wishes":[{"device":"gpu0","knob":[],"level":1}]}',
        b'{"verb":"acquire","wishes":{}}',
        b'{"verb":"acquire","wishes":[1]}',
        *(
            b'{"verb":"set","wishes":[%s]}' % (WISH % level)
            for level in (b"true", b"null", b"[]", b"NaN", b"Infinity", b"1e999", b"1" * 400, b"1" * 3900)
        ),
        b'{"verb":"renew","ttl_s":0}',
        b'{"verb":"renew","ttl_s":1e9}',
        b'{"verb":"renew","ttl_s":NaN}',
        b'{"verb":"renew","ttl_s":true}',
        b'{"verb":"renew","lease":5}',
        b'{"verb":["renew"]}',
        b'{"verb":"eat"}',
        b'{"verb":"status","more":1}',
        b'{"lease":""}',
        b"[]",
        b"1",
        b"[" * 5000,
        b'{"verb":"status","name":"' + b"x" * MAX_REQUEST + b'"}',
    ],
)
def test_what_is_no_request_is_refused(line):
    with pytest.raises(WireError):
        read_request(line)


def test_a_name_moves_no_cursor():
    assert plain("a\x1b[2J\nb\ud800", 60) == "a?[2J?b?"
    assert read_request(to_line(Request("acquire", name="n" * 99))).name == "n" * 60
