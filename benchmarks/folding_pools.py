"""How often intervals of folded phases hold: shares over cells and pools, and how far they may be off by chance."""

from __future__ import annotations

from math import sqrt

import numpy as np
from folding_waveforms import STATED

LOW, HIGH = 0.93, 0.97
"""The target of shares that should be 95 %."""
DRAWN, KNOWN = 0, 2
"""Columns of a row where error and U95 begin, in % of the exact joules: with what was drawn, and as if the gain were
known."""
END_SHAPES = (STATED, "steps")


def scatter(share: float, n: int) -> float:
    """How far a share over ``n`` runs may be off, 95 %; with the target's scatter at least, so that it is never 0."""
    return 1.96 * sqrt(max(share * (1 - share), LOW * (1 - LOW)) / max(n, 1))


class Pools:
    """Errors and intervals of all kinds of phases, by what they are pooled over."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str, float], list[np.ndarray]] = {}
        self.runs = 0

    def add(self, waveform: str, rate_hz: float, lengths, runs) -> None:
        for k, length in enumerate(lengths):
            rows = np.array([[*r[k], self.runs + i] for i, r in enumerate(runs)])
            self.of.setdefault((waveform, f"{rate_hz:g}/s", length), []).append(rows)
        self.runs += len(runs)

    def select(self, keep) -> np.ndarray:
        found = [rows for key, group in self.of.items() if keep(*key) for rows in group]
        return np.concatenate(found) if found else np.zeros((0, 5))

    @staticmethod
    def share(rows: np.ndarray, first: int = DRAWN) -> tuple[int, float]:
        there = ~np.isnan(rows[:, 0])
        within = np.abs(rows[there, first]) <= rows[there, first + 1]
        return int(there.sum()), float(within.mean()) if there.any() else float("nan")


def print_pools(pools: Pools, waveforms) -> bool:
    """Pooled shares by rate and length; whether those of ``as stated`` are all in 93 to 97 %, both ways."""
    rates = list(dict.fromkeys(key[1] for key in pools.of))
    lengths = sorted({key[2] for key in pools.of})
    is_good = True
    groups = [("all waveforms", lambda w: True)]
    if STATED in waveforms:
        groups = [(STATED, lambda w: w == STATED), ("single shapes", lambda w: w != STATED)]
    for title, belongs in groups:
        if not any(belongs(key[0]) for key in pools.of):
            continue
        print(f"\npooled, {title}: numbers of phases | share within U95 | the same, gain known")
        print(f"{'phases (ms)':14s}" + "".join(f"{r:>26s}" for r in (*rates, "all rates")))
        for length in (*lengths, None):
            cells = []
            for rate in (*rates, None):
                rows = pools.select(
                    lambda w, r, x, rate=rate, length=length, belongs=belongs: (
                        belongs(w) and rate in (None, r) and length in (None, x)
                    )
                )
                (n, share), (_, known) = Pools.share(rows), Pools.share(rows, KNOWN)
                cells.append(f"{f'{n} of {len(rows)}':>12s}{share:7.1%}{known:7.1%}")
                if title == STATED and (rate is None or length is None):
                    runs = len(np.unique(rows[~np.isnan(rows[:, 0]), 4])) if n else 0
                    for x in (share, known) if n else ():
                        is_good &= LOW - scatter(x, runs) <= x <= HIGH + scatter(x, runs)
            print(f"{'all' if length is None else f'{length:g}':14s}" + "".join(cells))
    return is_good


def cell_text(runs) -> str:
    rows = np.concatenate(runs)
    there = ~np.isnan(rows[:, 0])
    if not there.any():
        return f"{'0 %':>9s}{'-':>18s}"
    _, share = Pools.share(rows)
    seen = sum(not np.isnan(r[:, 0]).all() for r in runs)
    mark = "!" if share < LOW - scatter(share, seen) else ""
    error, u95 = np.abs(rows[there, 0]).mean(), rows[there, 1].mean()
    return f"{there.mean():9.0%}{error:6.2f}{u95:6.2f}{f'{share:.0%}{mark}':>6s}"


def end_text(runs) -> tuple[str, bool]:
    """Numbers of one end, the shares that hold with the gain drawn and known; whether both are 93 % at least."""
    rows = np.concatenate(runs)
    (n, share), (_, known) = Pools.share(rows), Pools.share(rows, KNOWN)
    if not n:
        return f"{f'0 of {len(rows)}':>12s}{'-':>14s} ", True
    seen = sum(not np.isnan(r[:, 0]).all() for r in runs)
    is_good = all(x >= LOW - scatter(x, seen) for x in (share, known))
    return f"{f'{n} of {len(rows)}':>12s}{share:7.1%}{known:7.1%}{' ' if is_good else '!'}", is_good
