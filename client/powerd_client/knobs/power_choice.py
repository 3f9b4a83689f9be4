"""A power cap, or a clock, chosen inside a training: `Meter.optimise_power`.

The chooser is told of every iteration. It sets caps (or clocks) under a lease, lets the device settle, measures windows
of whole iterations, and hears from `cap_search` which cap comes next. Joules are those of the recording, by the plain
integral of its readings; they are worked out in a thread between two windows, never during one. Whatever fails, the
training goes on.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from statistics import median
from typing import Protocol

from powerd_client.energies.live_energy import Energy
from powerd_client.host.hostclock import now_ns
from powerd_client.host.log import tell
from powerd_client.journals.ranks import rank_here
from powerd_client.knobs.cap_search import CapWindow, Decision
from powerd_client.knobs.control import Emit, Hold, connect, own_devices
from powerd_client.knobs.job_hold import JobHold, Reach, job_here, ranks_may_be_here
from powerd_core.errors import ConfigError, ControlError, PeerError, WireError
from powerd_core.lease import KNOB_OF_OPTION, Range, Request, option_of
from powerd_core.settings import KNOB_OF_NAME
from powerd_core.verdict import Verdict

POWER_CHOICE = "power-choice"
"""The name of the events: one for each window, and one for the decision or why there is none."""
WINDOW_S, SETTLE_S = 1.4, 0.3
LEAST_ITERATIONS = 5
PAUSE = 3.0
"""An iteration so many times as long as the median holds something else, as a validation: it is left out."""
MOST_FAILED = 6
"""Windows that did not count, before the search is given up."""
_READINGS_S = 5.0
"""How long to wait for the last readings of a window."""
KNOBS = ("power_cap_w", "sm_clock_mhz")
"""What may be chosen."""


class Search(Protocol):
    """Which level is tried next, and what the windows say in the end, as `powerd_client.knobs.cap_search.CapSearch`."""

    default: float

    def next_cap(self, windows_left: float) -> float | None: ...

    def observe(self, window: CapWindow) -> None: ...

    def refuse(self, cap_w: float) -> None: ...

    def decision(self) -> Decision: ...

    def spent(self, iterations: Mapping[float, int]) -> tuple[float, float]: ...


EnergyBetween = Callable[[int, int, float, Sequence[str]], Sequence[Energy]]
"""The energies between two moments of the host's clock, waiting so many seconds for readings, of devices."""


@dataclass(slots=True)
class _Piece:
    """Iterations without a pause between them."""

    begin_ns: int
    end_ns: int
    iterations: int = 0


class PowerChooser:
    """Chooses the power cap of the training that tells it of its iterations; made by `Meter.optimise_power`."""

    def __init__(
        self,
        make_search: Callable[[float, float], Search],
        make_hold: Callable[[Sequence[str]], Hold],
        energy_between: EnergyBetween | None,
        emit: Emit,
        *,
        window_s: float = WINDOW_S,
        least_iterations: int = LEAST_ITERATIONS,
        knob: str = "power_cap_w",
        iterations: int | None = None,
        find_range: Callable[[str], Reach] | None = None,
        now: Callable[[], int] = now_ns,
        worker: Executor | None = None,
    ) -> None:
        """``make_search`` is given the least and the default level, ``make_hold`` the devices. Without
        ``energy_between`` nothing is recorded, and nothing is chosen. A window lasts ``window_s`` and has
        ``least_iterations`` at least. ``knob`` is one of `KNOBS`, ``iterations`` how many the training has, where that
        is known. ``find_range``, the clock and the worker that works out energies are those of this machine unless
        given."""
        self._make_search, self._make_hold, self._energy_between = make_search, make_hold, energy_between
        self._emit, self._window_ns, self._least_iterations = emit, round(window_s * 1e9), least_iterations
        self._search: Search | None = None
        self._hold: Hold | JobHold | None = None
        self._job: JobHold | None = None
        """Where this process is one of several ranks."""
        self._is_joining = False
        self._speaks = True
        """Whether this is the rank that says what all ranks could."""
        self._knob, self._option, self._count = KNOB_OF_OPTION[knob], knob, iterations
        self._find_range, self._now, self._worker = find_range or range_of, now, worker
        self._devices: list[str] = []
        self._level = 0.0
        self._settled_ns = self._last_ns = 0
        self._is_paused = False
        self._is_late = False
        """Whether ranks have not set yet what was said last."""
        self._pieces: list[_Piece] = []
        self._turns_ns: deque[int] = deque(maxlen=20)
        self._iterations: Counter[float] = Counter()
        self._asked: Future[tuple[float, float, str]] | None = None
        self._verdict = Verdict.UNKNOWN
        self._windows = self._failed = 0
        self.decision: Decision | None = None
        """None until the search is over, and where it was given up."""

    def __enter__(self) -> PowerChooser:
        rank = rank_here()
        self._speaks = rank is None or not (rank.rank if self._energy_between else rank.local_rank)
        if self._energy_between is None:
            self._give_up("nothing is recorded")
            return self
        self._is_joining = ranks_may_be_here()
        if not self._is_joining:
            self._attempt(lambda: self._begin(self._find_range(self._knob)))
        return self

    def _attempt(self, action: Callable[[], None]) -> None:
        """Do it, or give up with the reason."""
        try:
            action()
        except (ControlError, ConfigError, PeerError, WireError) as error:
            self._give_up(str(error))
        except Exception as error:  # noqa: BLE001  (whatever it is: the training goes on)
            self._give_up(f"{type(error).__name__}: {error}")

    def _begin(self, reach: Reach) -> None:
        self._devices, least_w, default_w = reach
        self._search = self._make_search(least_w, default_w)
        self._hold = (self._job or self._make_hold(self._devices)).acquire()
        self._worker = self._worker or ThreadPoolExecutor(1, thread_name_prefix="powerd-power-choice")
        self._last_ns = self._now()
        self._set_next()

    def _join(self) -> None:
        """Behind the first iterations, by when the process group is there: until rank 0 knows what all could hold."""
        if self._job is None:
            self._job = job_here(self._make_hold, self._option)
            if self._job is None:
                self._begin_without_group()
                return
            self._hold, self._speaks = self._job, self._job.rank == 0
            self._job.offer(lambda: self._find_range(self._knob))
            if self._job.rank:
                self._emit(POWER_CHOICE, {"decides": "rank 0"}, self._now())
        reach = None if self._job.rank else self._job.reach()
        self._is_joining = reach is None and self._job.rank == 0
        if reach is not None:
            self._begin(reach)

    def _begin_without_group(self) -> None:
        """The ranks of one machine need none: the first one holds for all."""
        self._is_joining = False
        rank = rank_here()
        if rank is not None and rank.local_world_size < rank.world_size:
            raise ControlError("torch.distributed has no process group, by which the ranks of several machines agree")
        if rank is None or not rank.local_rank:
            self._begin(self._find_range(self._knob))

    def _look_at_job(self, job: JobHold) -> None:
        """On every rank that searches no more, or never did: say once that nothing is held."""
        if job.problem:
            self._job = None
            if job.is_failure:
                self._say(f"the {KNOB_OF_NAME[self._knob].words} is let go on all ranks: {job.problem}")

    def __exit__(self, *_: object) -> None:
        if self._search is not None or self._is_joining:
            self._say(f"the training ended before a {KNOB_OF_NAME[self._knob].words} was chosen")
        self._end()

    @contextlib.contextmanager
    def iteration(self) -> Iterator[None]:
        """One iteration of the training; what lies between two belongs to the latter."""
        yield
        self.step()

    def step(self) -> None:
        """An iteration has ended. Where a window begins or ends, this waits for the GPU or asks the helper."""
        if self._search is not None:
            self._attempt(lambda: self._turn(self._now()))
        elif self._is_joining:
            self._attempt(self._join)
        elif self._job is not None:
            self._look_at_job(self._job)

    def pause(self) -> None:
        """The training does something else, as a validation: the next `step` ends that, no iteration."""
        self._is_paused = True

    def _turn(self, t_ns: int) -> None:
        if self._job is not None and self._job.problem:
            self._give_up(self._job.problem)
            return
        turn_ns, self._last_ns = t_ns - self._last_ns, t_ns
        is_pause, self._is_paused = self._is_paused, False
        self._iterations[self._level] += not is_pause
        is_pause = is_pause or (len(self._turns_ns) >= LEAST_ITERATIONS and turn_ns > PAUSE * median(self._turns_ns))
        if not is_pause:
            self._turns_ns.append(turn_ns)
        if self._asked is not None:
            if self._asked.done():
                self._take(*self._asked.result())
        elif t_ns < self._settled_ns or not self._is_followed(t_ns):
            return
        elif not self._pieces or is_pause:
            begin_ns = self._synchronized_ns()
            self._pieces.append(_Piece(begin_ns, begin_ns))
        else:
            self._measure(t_ns)

    def _is_followed(self, t_ns: int) -> bool:
        """Whether all ranks have set what was said last; where they just have, their devices settle from now on."""
        if not self._is_late:
            return True
        assert self._job is not None
        self._is_late = not self._job.is_set
        if not self._is_late:
            self._settled_ns = t_ns + round(self._job.settle_s * 1e9)
        return False

    def _measure(self, t_ns: int) -> None:
        piece = self._pieces[-1]
        piece.end_ns, piece.iterations = t_ns, piece.iterations + 1
        length_ns = sum(p.end_ns - p.begin_ns for p in self._pieces)
        if length_ns < self._window_ns or sum(p.iterations for p in self._pieces) < self._least_iterations:
            return
        piece.end_ns = self._synchronized_ns()
        assert self._hold is not None
        assert self._worker is not None
        self._verdict = self._hold.verdict
        self._asked = self._worker.submit(self._energy, [p for p in self._pieces if p.iterations])

    def _energy(self, pieces: Sequence[_Piece]) -> tuple[float, float, str]:
        """Joules of the held devices in all pieces, their U95, and why they are not known."""
        assert self._energy_between is not None
        energy_j = u95_j = 0.0
        for piece in pieces:
            every = self._energy_between(piece.begin_ns, piece.end_ns, _READINGS_S, self._devices)
            if {energy.device for energy in every} != {*self._devices}:
                return 0.0, 0.0, (every[0].note if every else "") or "the recording has not all of the held GPUs"
            for energy in every:
                if energy.energy_j is None or energy.is_lower_bound or energy.is_so_far:
                    return 0.0, 0.0, energy.note or "readings are missing"
                energy_j += energy.energy_j
                u95_j += energy.u95_j or 0.0
        return energy_j, u95_j, ""

    def _take(self, energy_j: float, u95_j: float, why: str) -> None:
        """The joules of the window have come."""
        assert self._search is not None
        assert self._hold is not None
        count = sum(p.iterations for p in self._pieces)
        time_s = sum(p.end_ns - p.begin_ns for p in self._pieces if p.iterations) / 1e9
        if self._verdict.is_violated:
            why = self._hold.problem or "the cap was not honoured"
        self._windows += 1
        values = {
            "window": self._windows,
            self._option: self._level,
            "devices": self._devices,
            "energy_j": energy_j if energy_j > 0 else None,
            "u95_j": u95_j if energy_j > 0 else None,
            "time_s": time_s,
            "iterations": count,
            "verdict": self._verdict.value,
            "counts": not why,
            "why": why,
        }
        self._emit(POWER_CHOICE, values, self._pieces[-1].end_ns)
        self._asked, self._pieces = None, []
        if not why:
            self._search.observe(CapWindow(self._level, energy_j / count, u95_j / count, time_s / count))
        else:
            self._failed += 1
        if self._hold.problem or self._failed >= MOST_FAILED:
            self._give_up(self._hold.problem or f"{self._failed} windows did not count, the last one because: {why}")
        else:
            self._set_next()

    def _set_next(self) -> None:
        """Set the cap of the next window; where there is none, decide."""
        assert self._search is not None
        while (cap_w := self._search.next_cap(self._windows_left())) is not None:
            if self._set(cap_w):
                return
            if cap_w == self._search.default:
                self._give_up("the default could not be set")
                return
            self._search.refuse(cap_w)
        self._decide(self._search)

    def _windows_left(self) -> float:
        """How many windows the rest of the training is long; infinite where nobody knows."""
        if self._count is None or not self._windows:
            return math.inf
        done = self._iterations.total()
        return (self._count - done) / (done / self._windows)

    def _set(self, cap_w: float) -> bool:
        assert self._search is not None
        assert self._hold is not None
        if not self._hold.set(**{self._option: "default" if cap_w == self._search.default else cap_w}):
            return False
        self._level, self._is_late = cap_w, self._job is not None
        self._settled_ns = self._now() + round(self._hold.settle_s * 1e9)
        return True

    def _decide(self, search: Search) -> None:
        decision = search.decision()
        if not self._set(decision.level):
            self._give_up(f"the chosen {self._shown(decision.level)} could not be set")
            return
        self._search, self.decision = None, decision
        cost_j, cost_s = search.spent(self._iterations)
        text = f"the default {self._shown(decision.default)} is the best"
        if decision.level != decision.default:
            text = (
                f"a {self._shown(decision.level)} saves {decision.saving_j:.3g} J "
                f"(U95 {decision.saving_u95_j:.2g} J) "
                f"of {decision.default_energy_j:.3g} J an iteration, which takes {100 * decision.slowdown:+.1f} % time"
            )
        text = f"{text}; the search took {cost_j:+.0f} J and {cost_s:+.1f} s against staying there from the beginning"
        values = {
            "decision": asdict(decision),
            "knob": self._knob,
            "cost_j": cost_j,
            "cost_s": cost_s,
            "iterations": self._iterations.total(),
            "text": text,
        }
        self._emit(POWER_CHOICE, values, self._now())
        tell(text)

    def _shown(self, level: float) -> str:
        knob = KNOB_OF_NAME[self._knob]
        return f"{knob.words} of {level:g} {knob.unit}"

    def _give_up(self, why: str) -> None:
        self._is_joining = False
        self._say(f"no {KNOB_OF_NAME[self._knob].words} is chosen: {why}; the training goes on")
        if self._job is not None:
            self._job.release(why)
        self._end()
        self._job = None

    def _say(self, why: str) -> None:
        if self._speaks:
            tell(why)
        self._emit(POWER_CHOICE, {"decision": None, "why": why}, self._now())

    def _synchronized_ns(self) -> int:
        """Now, when the GPU has done what it was given: at the edges of a window, so that its iterations are whole."""
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return self._now()

    def _end(self) -> None:
        """Put back what was found."""
        self._search = None
        if self._hold is not None:
            self._hold.release()
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)


def range_of(knob: str, devices: Sequence[str] | None = None) -> Reach:
    """The devices (by default the GPUs that this process may use), and the least and the default level that all of
    them take; of a clock, which nobody locks by default, the greatest. Raises `ControlError`, which says what is
    missing."""
    peer = connect()
    try:
        knobs = peer.ask(Request("describe")).knobs
    finally:
        peer.close()
    devices = own_devices(knobs, [option_of(knob)]) if devices is None else list(devices)
    ranges: list[Range] = [k.range for k in knobs if k.device in devices and k.knob == knob]
    levels = {(r.least, r.greatest if knob.endswith("_clock") else r.default) for r in ranges}
    if not levels:
        raise ControlError(f"{', '.join(devices)}: nobody controls a {KNOB_OF_NAME[knob].words} of that name here")
    least, default = levels.pop()
    if levels or not isinstance(default, float):
        raise ControlError(f"{', '.join(devices)} have no common range of {KNOB_OF_NAME[knob].words}s")
    return devices, least, default
