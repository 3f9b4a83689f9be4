"""How sure a run is of the times of one board's clock."""

from __future__ import annotations

from dataclasses import dataclass

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_client.fileshape import check_times


@dataclass(frozen=True, slots=True)
class RunClock:
    """Guaranteed half-width of the mapping of one board's clock at host times ``t_ns`` (both [x])."""

    board: str
    drift_ppm: float
    t_ns: NDArray[np.float64]
    half_width_ns: NDArray[np.float64]
    steps: int
    """Clock steps seen: pieces of the mapping less one."""

    def bound_ns(self, t_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Guaranteed bound at host times: the nearer knots' half-widths, widened by the drift since them."""
        if not len(self.t_ns):
            return np.zeros(len(t_ns))
        after = np.searchsorted(self.t_ns, t_ns)
        bounds = [
            self.half_width_ns[near] + np.abs(t_ns - self.t_ns[near]) * self.drift_ppm * 1e-6
            for near in (np.clip(after - 1, 0, None), np.clip(after, None, len(self.t_ns) - 1))
        ]
        return np.minimum(*bounds)


def read_clock(group: h5py.Group) -> RunClock:
    """The mapping of one clock of a run file. Raises KeyError, TypeError or ValueError for numbers that are none."""
    offsets, t_board = group["map"][:].reshape(-1, 3), group["map_t_board_ns"][:]
    pieces, drift_ppm = group["map_piece"][:], float(group.attrs.get("drift_ppm", 100.0))
    if not np.isfinite(offsets).all() or not 0 <= drift_ppm < 1e6:
        raise ValueError(f"the mapping of clock {group.name!r} holds numbers that are none")
    check_times(t_board, "a clock exchange")
    t_host = t_board + offsets[:, 0]
    order = np.argsort(t_host, kind="stable")
    # The estimate need not lie in the middle of its bound: the farther end counts.
    half = np.maximum(offsets[:, 2] - offsets[:, 0], offsets[:, 0] - offsets[:, 1])
    board = group.attrs.get("board", "")
    return RunClock(
        board=board.decode() if isinstance(board, bytes) else str(board),
        drift_ppm=drift_ppm,
        t_ns=t_host[order],
        half_width_ns=half[order],
        steps=max(0, len(np.unique(pieces)) - 1),
    )
