"""The fault matrix: who is struck, how, when; what may be lost, and what must be said about it.

Each victim meets each kind of fault once; some cells came on top.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

VICTIMS = ("recorder", "trainer", "powerd", "node", "network", "disk", "sensor bus")
KINDS = ("kill", "stop", "restart", "slow", "garbage", "full")
MOMENTS = ("start", "middle", "end")


@dataclass(frozen=True, slots=True)
class Bound:
    """How much may be lost: so many seconds, a share of the fault's duration, perhaps all that is left of the run."""

    base_s: float = 0.0
    share: float = 0.0
    rest: bool = False

    def seconds(self, fault_s: float, rest_s: float) -> float:
        return self.base_s + self.share * fault_s + self.rest * rest_s

    def __str__(self) -> str:
        if not (self.base_s or self.share or self.rest):
            return "nothing"
        parts = [f"{self.base_s:g} s"] if self.base_s else []
        if self.share:
            parts.append("the fault's duration" if self.share == 1 else f"{self.share:g} times the fault's duration")
        if self.rest:
            parts.append("the rest of the run")
        return " and ".join(parts)


@dataclass(frozen=True, slots=True)
class Cell:
    """One victim and one kind of fault; ``made`` says how, and for what makes no sense, why not."""

    victim: str
    kind: str
    made: str
    loses: Bound = Bound()
    loses_at_end: Bound | None = None
    """Where the run ends in the middle of the fault; None: the same."""
    says: str = ""
    """Must be found, as a regular expression, among messages, causes of gaps, and standard error."""
    is_silent_at_end: bool = False
    """Whether it may pass unnoticed where the run ends in the middle of the fault: nothing was lost then."""
    stage: Mapping[str, object] = field(default_factory=dict)
    full_length_s: float = 0.0
    """Duration in the soak, where that is not the same as for all."""
    is_brief: bool = False
    """Done in a moment, with no duration."""
    quick: tuple[str, ...] = ()
    """Moments at which `make test` runs it."""
    makes_sense: bool = True
    fits: bool = True
    """Whether it is part of {victims} x {kinds}; the others came on top."""

    @property
    def name(self) -> str:
        return f"{self.victim}-{self.kind}".replace(" ", "-")

    def bound(self, moment: str) -> Bound:
        return self.loses_at_end if moment == "end" and self.loses_at_end is not None else self.loses


_NETWORK = {"network": True}
_CUT_OFF = Bound(1.5)
"""A run that ends while nothing comes: what was not sent by then."""
_NODE = {"source": "node"}
_REPLUGGED = Bound(7.0, 2.0)
"""Opening is tried again after pauses that double up to five seconds."""
_BUS = {"source": "sim"}

CELLS = (
    Cell(
        "recorder",
        "kill",
        "`kill -9` of the process that receives; its guardian starts another one",
        says="the recorder died .*SIGKILL.* started again",
        is_brief=True,
        quick=("end",),
    ),
    Cell("recorder", "stop", "SIGSTOP, later SIGCONT, of the process that receives", quick=("middle",)),
    Cell(
        "recorder",
        "restart",
        "`kill -9` three times, each as soon as the next one is there",
        says="the recorder died .*SIGKILL.* started again",
        is_brief=True,
    ),
    Cell("recorder", "slow", "it runs for a seventh of the time"),
    Cell(
        "recorder",
        "garbage",
        "a fifth of all that it is sent is damaged on the way",
        stage=_NETWORK,
        loses_at_end=_CUT_OFF,
        quick=("middle",),
    ),
    Cell(
        "recorder",
        "full",
        "no memory: its address space is limited to what it has (RLIMIT_AS)",
        says="the recorder (died|failed)",
        is_brief=True,
        quick=("middle",),
    ),
    Cell(
        "trainer",
        "kill",
        "`kill -9`; the recorder ends the run",
        says="the training process ended without closing the run",
        is_brief=True,
    ),
    Cell("trainer", "stop", "SIGSTOP, later SIGCONT"),
    Cell(
        "trainer",
        "restart",
        "`kill -9`, and at once another training with a run of its own",
        says="the training process ended without closing the run",
        is_brief=True,
        quick=("start",),
    ),
    Cell("trainer", "slow", "it runs for a seventh of the time"),
    Cell("trainer", "garbage", "torn lines and random bytes in its files of marks", is_brief=True),
    Cell(
        "trainer",
        "full",
        "no room for marks: its disk is full, and it makes 150000 phases",
        stage={"small_disk": True},
        loses_at_end=Bound(0, 1),
        says="phases could not be written any more",
    ),
    Cell(
        "powerd",
        "kill",
        "`kill -9`; started again after the fault's duration",
        Bound(3.0, 1.0),
        loses_at_end=Bound(3.0),
        says="powerd ended; its ring is lost|started anew|powerd sent nothing more",
        quick=("middle",),
    ),
    Cell("powerd", "stop", "SIGSTOP, later SIGCONT, of the serving process", loses_at_end=_CUT_OFF, quick=("middle",)),
    Cell(
        "powerd",
        "restart",
        "SIGTERM, and started again at once",
        Bound(3.0, 1.0),
        says="started anew|powerd sent nothing more|powerd ended",
        is_brief=True,
    ),
    Cell("powerd", "slow", "the serving process runs for a seventh of the time"),
    Cell(
        "powerd",
        "garbage",
        "strangers send noise, broken frames and a megabyte at a time to all its ports",
        says="no frame of powerd|garbage|not a",
        quick=("middle",),
    ),
    Cell(
        "powerd",
        "full",
        "its ring holds less than the time for which the recorder is cut off",
        Bound(1.0, 1.0),
        loses_at_end=_CUT_OFF,
        says="no longer in powerd's ring|powerd sent nothing more",
        is_silent_at_end=True,
        stage={**_NETWORK, "ring_share": 0.2},
        quick=("middle",),
    ),
    Cell(
        "node",
        "kill",
        "unplugged: the firmware's process is killed, and plugged in again later",
        _REPLUGGED,
        says="unplugged|no such port|answers|silent|no readings|powerd sent nothing more",
        stage=_NODE,
        quick=("middle",),
    ),
    Cell(
        "node",
        "stop",
        "SIGSTOP, later SIGCONT, of the firmware's process",
        _REPLUGGED,
        says="the node sent no readings|does not answer|no answer|missed deadlines|powerd sent nothing more",
        stage=_NODE,
    ),
    Cell(
        "node",
        "restart",
        "the firmware's process is killed and started again at once",
        _REPLUGGED,
        says="unplugged|reset|no such port|answer|no readings|powerd sent nothing more",
        stage=_NODE,
        is_brief=True,
    ),
    Cell(
        "node",
        "slow",
        "the firmware runs for a seventh of the time",
        _REPLUGGED,
        says="missed deadlines|clock was not known|clock is",
        stage=_NODE,
    ),
    Cell(
        "node",
        "garbage",
        "noise between its frames on the serial line",
        _REPLUGGED,
        stage=_NODE,
        quick=("middle",),
    ),
    Cell(
        "node",
        "full",
        "nobody takes what it sends: the sampler is stopped until the node's buffer overflows",
        _REPLUGGED,
        # Stopped at the very end, it has not come so far as to see that its buffer is full.
        says="its buffer was full|silent for|sent nothing of the last",
        stage={**_NODE, "node_rate_hz": 500.0},
    ),
    Cell(
        "network",
        "kill",
        "cut: connections are reset, new ones refused, and later it works again",
        stage=_NETWORK,
        loses_at_end=_CUT_OFF,
        quick=("end",),
    ),
    Cell(
        "network",
        "stop",
        "stalled: connections stay and nothing goes through",
        stage=_NETWORK,
        loses_at_end=_CUT_OFF,
        quick=("middle",),
    ),
    Cell("network", "restart", "all connections are reset once", stage=_NETWORK, is_brief=True),
    Cell(
        "network",
        "slow",
        "0.2 s delay each way, 200 kB/s",
        stage=_NETWORK,
        quick=("start",),
    ),
    Cell(
        "network",
        "garbage",
        "a tenth of all pieces is damaged, both ways",
        stage=_NETWORK,
        loses_at_end=_CUT_OFF,
    ),
    Cell(
        "network",
        "full",
        "a third of the bandwidth that the readings need",
        stage=_NETWORK,
        loses_at_end=_CUT_OFF,
    ),
    Cell(
        "disk",
        "kill",
        "every write of the recorder fails (EIO), until the run is over",
        Bound(1.0, rest=True),
        says="the journal cannot be written .Input/output error",
        quick=("middle",),
    ),
    Cell("disk", "stop", "writes of the recorder hang", quick=("middle",)),
    Cell(
        "disk",
        "restart",
        "every write fails (EIO) for the fault's duration",
        says="the journal cannot be written .Input/output error",
        loses_at_end=Bound(1.0, 1.0),
    ),
    Cell("disk", "slow", "every write of the recorder takes 0.3 s"),
    Cell(
        "disk",
        "garbage",
        "4 kB in the middle of the journal are overwritten",
        Bound(2.0),
        says="could not be read|were not received",
        is_brief=True,
        quick=("middle",),
    ),
    Cell(
        "disk",
        "full",
        "another file takes all room, and goes away later",
        says="No space left",
        is_silent_at_end=True,
        stage={"small_disk": True},
        loses_at_end=Bound(1.0, 1.0),
        quick=("middle", "end"),
    ),
    Cell(
        "sensor bus",
        "kill",
        "a chip is gone, and comes back later",
        Bound(2.0, 1.0),
        stage=_BUS,
        quick=("middle",),
    ),
    Cell("sensor bus", "stop", "the bus is held low", Bound(6.0, 2.0), stage=_BUS),
    Cell("sensor bus", "restart", "all chips are reset (brown-out)", Bound(2.0, 1.0), stage=_BUS, is_brief=True),
    Cell("sensor bus", "slow", "every transfer begins 8 ms late", Bound(2.0, 1.0), stage=_BUS),
    Cell("sensor bus", "garbage", "another chip answers in the place of one", Bound(2.0, 1.0), stage=_BUS),
    Cell("sensor bus", "full", "a bus keeps nothing, so nothing of it can be full", makes_sense=False),
    Cell(
        "network",
        "five-minute cut",
        "cut for five minutes, with a ring that lasts ten (in `make test`: 2 s, with one that lasts 4 s)",
        stage={**_NETWORK, "ring_share": 2.0},
        loses_at_end=_CUT_OFF,
        full_length_s=300.0,
        quick=("start",),
        fits=False,
    ),
    Cell(
        "recorder and guardian",
        "kill",
        "`kill -9` of both; the training process starts others",
        says="the recorder died .*SIGKILL.* with its guardian and is started again",
        is_brief=True,
        quick=("middle",),
        fits=False,
    ),
    Cell(
        "powerd with a spool",
        "kill",
        "`kill -9`; started again after the fault's duration",
        Bound(3.0, 1.0),
        loses_at_end=Bound(3.0),
        says="started anew|powerd ended|powerd sent nothing more",
        stage={"spool": True},
        quick=("middle",),
        fits=False,
    ),
    Cell(
        "powerd's spool",
        "full",
        "its disk is full for the fault's duration; then powerd ends with `kill -9` and is started again",
        Bound(3.0, 2.0),
        says="the spool .*cannot be written .*No space left",
        stage={"spool": True},
        fits=False,
    ),
)


def cells(moments: str = "all") -> Iterator[tuple[Cell, str]]:
    """Each cell that makes sense at each moment; ``quick`` only those of `make test`."""
    for cell in CELLS:
        if cell.makes_sense:
            for moment in cell.quick if moments == "quick" else MOMENTS:
                yield cell, moment


def to_csv() -> str:
    """docs/results/faults.csv; `tests/faults/rows.py` prints it."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["struck", "how", "how it is made", "what may be lost", "at the end of a run", "in make test"])
    for cell in CELLS:
        if not cell.makes_sense:
            table.writerow([cell.victim, cell.kind, f"makes no sense: {cell.made}", "", "", ""])
            continue
        at_end = "" if cell.loses_at_end in (None, cell.loses) else cell.loses_at_end
        table.writerow([cell.victim, cell.kind, cell.made, cell.loses, at_end, " ".join(cell.quick)])
    return text.getvalue()


if __name__ == "__main__":
    print(to_csv(), end="")
