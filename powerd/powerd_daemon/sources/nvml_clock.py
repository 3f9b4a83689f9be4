"""How well the times of a GPU's power samples are known, and how the wall clock goes against the board's."""

from __future__ import annotations

from powerd_core.model import Accuracy, Column, Line, Provenance, QuantityConversion, Stream
from powerd_daemon.sources.nvml_quantity import Quantity
from powerd_daemon.sources.nvml_samples import SampleBuffer


class SampleClock(Quantity):
    """One stream of two lines beside the samples, about once a second: the bound of the tie that the samples are timed
    by, and the wall clock's offset itself, in which somebody setting the clock shows as a jump."""

    suffix = "clock_bound"
    column = Column("ns", "q")
    INTERVAL_NS = 1_000_000_000

    def __init__(self, samples: SampleBuffer) -> None:
        super().__init__(samples.nvml, samples.clock, samples.gpu, self.INTERVAL_NS)
        self._samples = samples

    @property
    def description(self) -> str:
        return "within what the samples' stamps are tied to the board's clock: the most since the reading before"

    @property
    def accuracy(self) -> Accuracy:
        return Accuracy(
            origin="guaranteed for both clocks' reading; the driver's 0.3 ms were seen on one H200, driver 580"
        )

    def describe(self, number: int, source: str) -> Stream:
        gpu = self.gpu.name
        bound = QuantityConversion(self.column.name, "clock_bound_s", 1e-9)
        offset = QuantityConversion(self.column.name, "clock_offset_s", 1e-9)
        exact = Accuracy(origin="read between two looks at the board's clock")
        lines = (
            Line(self.name, gpu, bound, Provenance.MEASURED, self.accuracy, self.description),
            Line(f"{gpu}.wall_offset", gpu, offset, Provenance.MEASURED, exact, "wall clock minus the board's clock"),
        )
        return Stream(number, source, (self.column,), lines, self.period_ns, self.gpu.detail)

    def poll(self) -> None:
        tie = self._samples.stamps.tie
        if tie.t_ns > self._last_ns and self._builder is not None:
            self._last_ns = tie.t_ns
            self._builder.append(tie.t_ns, (0, 0), (0, 0), ((self._samples.take_bound_ns(), tie.wall_ahead_ns),))
