"""Why a model does not run by shapes, in one line that says what can be done."""

from __future__ import annotations

VALUES = "it asks for values, and there are only shapes"
_VALUES = ("item()", "nonzero", "data-dependent", "to numpy", "_unique", "masked_select", "local_scalar_dense",
           "to a bool", "aten::equal")  # fmt: skip
_NO_SHAPES = ("no fake impl", "fake impl for this operator", "Meta' backend")
LONGEST = 300


def why(error: BaseException) -> str:
    """What torch says, its first sentences alone, after what it means."""
    said = " ".join(str(error).split()) or type(error).__name__
    if any(text in said for text in _VALUES):
        said = f"{VALUES} ({said})"
    elif any(text in said for text in _NO_SHAPES):
        said = f"torch has no shapes for a kernel of it ({said})"
    return said if len(said) <= LONGEST else said[: LONGEST - 4] + " ..."
