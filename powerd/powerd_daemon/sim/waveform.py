"""The load of a simulated graphics card: one waveform, shared over its eight supply lines.

A stream's ``detail`` holds what `waveform_from_detail` needs to make a deterministic load again elsewhere, so that a
benchmark can compare measured joules with the exact ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from powerd_core.errors import ConfigError
from powerd_daemon.sim.shapes import Constant, Square, Training, Waveform
from powerd_daemon.sim.telegraph import Telegraph

SHARES = {"pcie_12v": 0.20, "pcie_3v3": 0.02} | {f"ext_12v_{i}": 0.13 for i in range(1, 7)}
"""Each line's fixed share of the card's power: slot, slot auxiliary, and the six wires of the power connector."""

NOMINAL_V = {name: 3.3 if name == "pcie_3v3" else 12.0 for name in SHARES}
"""The lines' voltages at the load; a simulated supply does not sag."""

DETERMINISTIC: dict[str, Callable[..., Waveform]] = {c.kind: c for c in (Constant, Square, Training, Telegraph)}
"""Waveforms that are fully determined by their parameters and their anchor."""


@dataclass(frozen=True, slots=True)
class CardLoad:
    """A card's power and how much of it each line carries (``shares`` add up to one)."""

    waveform: Waveform
    shares: Mapping[str, float]

    def power_w(self, t_ns: int, line: str | None = None) -> float:
        """Power of one line at a board time, or of the card."""
        return self._share(line) * self.waveform.power_w(t_ns)

    def energy_j(self, t0_ns: int, t1_ns: int, line: str | None = None) -> float:
        """Exact joules of one line between two board times, or of the card."""
        return self._share(line) * self.waveform.energy_j(t0_ns, t1_ns)

    def detail(self, t0_ns: int) -> dict[str, Any]:
        """What `waveform_from_detail` reads, for a stream's ``detail``."""
        w = self.waveform
        return {
            "waveform": {"kind": w.kind, "t0_ns": t0_ns, "parameters": w.parameters()},
            "shares": dict(self.shares),
        }

    def _share(self, line: str | None) -> float:
        return 1.0 if line is None else self.shares[line]


def waveform_from_detail(detail: Mapping[str, Any]) -> CardLoad:
    """The load that a simulated source ran with, from the ``detail`` of its stream.

    Raises `ConfigError` when the detail is of no simulated source, or when its waveform followed a host and so
    cannot be known afterwards.
    """
    try:
        found, shares = detail["waveform"], {str(k): float(v) for k, v in detail["shares"].items()}
        kind, t0_ns, parameters = found["kind"], int(found["t0_ns"]), dict(found["parameters"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError("this stream's detail describes no simulated load: it is not of the source 'sim'") from error
    if kind not in DETERMINISTIC:
        raise ConfigError(f"a {kind!r} waveform cannot be made again: its exact joules were known only while it ran")
    return CardLoad(DETERMINISTIC[kind](t0_ns, **parameters), shares)
