"""Output in any encoding: what is printed is legible, and never an error."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_core.text import LEGIBLE, register_legible, with_u95

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


@pytest.mark.parametrize(
    ("value", "u95", "text"),
    [
        (6389.4, 281.0, "6390 ± 280 J"),
        (15.93, 0.98, "15.9 ± 1.0 J"),
        (1.163, 0.0912, "1.16 ± 0.09 J"),
        (4.1923, 0.231, "4.19 ± 0.23 J"),
        (8.63, 0.57, "8.6 ± 0.6 J"),
        (864.1, 548.0, "860 ± 550 J"),
        (0.5, 12.0, "0.5 ± 12 J"),  # no zero that looks like a reading
        (-3.2, 9.7, "-3 ± 10 J"),
        (12.3456, None, "12.35 J"),
        (12.3456, 0.0, "12.35 J"),
    ],
)
def test_a_figure_is_rounded_by_its_uncertainty(value, u95, text):
    assert with_u95(value, u95, "J") == text


def test_a_lower_bound_shows_its_sign_and_no_uncertainty():
    assert with_u95(4.2, 0.2, "J", is_lower_bound=True) == "≥ 4.200 J"
