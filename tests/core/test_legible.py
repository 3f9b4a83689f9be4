"""Output in any encoding: what is printed is legible, and never an error."""

import io

from hypothesis import given
from hypothesis import strategies as st

from powerd_core.text import LEGIBLE, register_legible

register_legible()


@given(st.text() | st.text(st.characters(categories=["Cs", "Ll"])), st.sampled_from(["ascii", "latin-1", "utf-8"]))
def test_every_text_can_be_printed(text, encoding):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    out.reconfigure(errors=LEGIBLE)
    print(text, end="", file=out, flush=True)
    assert (out.buffer.getvalue().decode(encoding) == text) == is_known(text, encoding)


def is_known(text, encoding):
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def test_our_signs_are_spelt_in_ascii():
    text = "forward ≥ 1.2 ± 0.3 J, a value every 5 µs – 2² × 3"
    assert text.encode("ascii", LEGIBLE).decode() == "forward >= 1.2 +- 0.3 J, a value every 5 us - 2^2 x 3"
    assert "übel\udcff.h5".encode("ascii", LEGIBLE) == b"\\xfcbel\\udcff.h5"
    assert "± ü".encode("latin-1", LEGIBLE).decode("latin-1") == "± ü"
