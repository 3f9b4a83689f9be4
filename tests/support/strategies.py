"""Hypothesis strategies for everything that travels on the wire."""

from hypothesis import strategies as st

from powerd_core.marks import RECORD, Marks
from powerd_core.model import Block, ClockExchange, Gap
from powerd_core.wire import Message, Want

u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
span32 = st.integers(1, 2**32 - 1)
numbers = st.integers(0, 2**62 - 2**32)
"""Sequence numbers that a stream may have, whatever gap begins there."""
i64 = st.integers(-(2**63), 2**63 - 1)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)

blocks = st.builds(Block, u16, u64, numbers, i64, i64, u32, u16, st.binary(max_size=200))
gaps = st.builds(Gap, u16, u64, numbers, i64, i64, span32, st.integers(-1, 2**63 - 1), st.text(max_size=20))
exchanges = st.builds(ClockExchange, u64, i64, i64, i64, i64)
marks = st.builds(
    Marks, u64, u64, st.integers(0, 5).flatmap(lambda n: st.binary(min_size=n * RECORD.size, max_size=n * RECORD.size))
)
wants = st.builds(Want, u16, u64, u64, u32, st.booleans())
messages = st.builds(Message, st.text(max_size=8), st.dictionaries(st.text(max_size=5), json_values, max_size=3), u64)
events = blocks | gaps | exchanges | marks | wants | messages
