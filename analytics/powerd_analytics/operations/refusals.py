"""Why a model does not run by shapes, in one line that says what can be done."""

from __future__ import annotations

VALUES = "it asks for values, and there are only shapes"
_VALUES = ("item()", "nonzero", "data-dependent", "to numpy", "_unique", "masked_select", "local_scalar_dense",
           "to a bool", "aten::equal")  # fmt: skip
_NO_VALUES = ("out of meta tensor", "a meta tensor", "on meta tensor", "meta device type tensor")
_NO_SHAPES = ("no fake impl", "fake impl for this operator", "Meta' backend", "storage_device.is_cpu()")
_ADVICE = (" This could be because ", " You may have run into this message ", " If you are ", " CUDA kernel errors ")
"""With which torch goes on after it has said what is wrong."""
LONGEST = 300


class LackError(RuntimeError):
    """There are no shapes for a kernel, or no values, nor can any be assumed."""


def why(error: BaseException) -> str:
    """What torch says, its first sentences alone, after what it means."""
    said = " ".join(str(error).split()) or type(error).__name__
    for advice in _ADVICE:
        said = said.partition(advice)[0].rstrip()
    if any(text in said for text in (*_VALUES, *_NO_VALUES)):
        said = f"{VALUES} ({said})"
    elif any(text in said for text in _NO_SHAPES):
        said = f"torch has no shapes for a kernel of it ({said})"
    return said if len(said) <= LONGEST else said[: LONGEST - 4] + " ..."


def is_lack(error: BaseException) -> bool:
    """Whether it is values or shapes that there are none of, and not a mistake of the model."""
    said = str(error)
    return (
        isinstance(error, LackError)
        or VALUES in said
        or any(text in said for text in (*_VALUES, *_NO_VALUES, *_NO_SHAPES))
    )
