"""The colour of a phase: one function for pictures, the report and the terminal, the same in every run.

Names that trainings often have beside each other have colours of their own, most of them Okabe and Ito's, which people
with any colour vision tell apart on light and on dark paper. Any other name has the colour that a checksum of it
chooses, so that two of these may share one. A picture always has the names too.
"""

from __future__ import annotations

import re
from zlib import crc32

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Okabe and Ito's eight colours."""
REST = "#A0A09C"
"""Of what is in no phase."""
_KNOWN = {
    "#56B4E9": ("forward", "fit", "train", "prefill", "model"),
    "#E69F00": ("backward", "decode", "predict", "test"),
    "#009E73": ("update", "optimizer", "optimiser", "score", "sample"),
    "#CC79A7": ("data", "load", "input", "preprocess", "read"),
    "#F0E442": ("communication", "allreduce", "loss", "write"),
    "#D55E00": ("evaluation", "validation", "eval", "valid", "inference", "predictions"),
    "#999933": ("warmup", "setup", "init", "compile"),
    "#88A0C8": ("iteration", "step", "training", "epoch", "run", "batch"),
    "#CCC4B0": ("baseline", "idle", "wait", "sleep"),
    "#AA4499": ("checkpoint", "save", "recomputation", "recompute"),
}
_COLOUR_OF = {name: colour for colour, names in _KNOWN.items() for name in names}
_OTHERS = ("#44AA99", "#6699CC", "#CC6677", "#DDCC77", "#9988DD", "#66BB55", "#5577CC")


def phase_colour(name: str) -> str:
    """The colour of phases of a name, as ``#rrggbb``; dark letters on it can be read."""
    word = re.sub(r"[\W_\d]+", "", name.rpartition("/")[2]).lower()
    return _COLOUR_OF.get(word) or _OTHERS[crc32(name.encode()) % len(_OTHERS)]
