"""A counter that begins again at some odd value, made into one that never does."""

from __future__ import annotations

from powerd_core.errors import SensorError

SEGMENT = 1 << 52
"""A counter that was set back goes on in the segment below, so that it falls, whatever it had counted: 2**52 uJ are
142 years at 1 kW."""


class Unwrap:
    """64-bit cumulative microjoules of one counter.

    Between two good readings the counter may begin again once; ``most_w`` says how fast it can count at most, and so
    whether it could have begun again more often. Where that cannot be told, or where it fell by more than its beginning
    again explains, the energy in between is unknown: the codes then go on at a lower value, which every reader of a
    64-bit counter takes for "was set back, unknown". Raises `SensorError` when that happened a thousand times.
    """

    def __init__(self, range_uj: int, most_w: float) -> None:
        # The largest value is the last step before 0; what a step is (15 to 61 uJ) is not told and is nothing here.
        self.range_uj = range_uj + 1
        self.most_w = most_w
        self.began_again = 0
        """How often the counter reached its largest value and went on at 0, which costs nothing."""
        self.unknown = 0
        """How often the energy between two readings could not be told."""
        self._base = 1023 * SEGMENT
        self._total = 0
        self._last_uj: int | None = None
        self._last_ns = 0

    def __call__(self, raw_uj: int, t_ns: int) -> tuple[int, bool]:
        """The cumulative code, and whether the energy since the reading before is known."""
        last_uj, elapsed_ns = self._last_uj, t_ns - self._last_ns
        self._last_uj, self._last_ns = raw_uj, t_ns
        if last_uj is None:
            return self._base, True
        # Counters move in lumps of a millisecond or so: a little more than the time allows is no fall.
        most_uj = self.most_w * (elapsed_ns + 5_000_000) * 1e-3
        step_uj = (raw_uj - last_uj) % self.range_uj
        if most_uj >= self.range_uj or step_uj > most_uj:
            self.unknown += 1
            if not self._base:
                raise SensorError(
                    f"an energy counter jumped {self.unknown} times by more than {self.most_w:g} W explain: "
                    "raise most_w"
                )
            self._base -= SEGMENT
            self._total = 0
            return self._base, False
        self.began_again += raw_uj < last_uj
        self._total += step_uj
        return self._base + self._total, True
