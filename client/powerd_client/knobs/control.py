"""Caps and clocks under lease, as a training holds them: `Meter.hold`, and what `powerd control` asks.

The one with the right to set them is the helper, `powerd-control`: it is asked on its Unix socket, or by a powerd with
a helper beside it for a GPU elsewhere. While a `Hold` lasts, a thread gives the helper a sign of life now and then.
The helper knows numbers alone: what a level means, the wait for a knob that somebody else holds, and the counters by
which a setting is judged are here. A helper that was killed or answers no more ends the lease, and the run says so.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Protocol

from powerd_client.host.hostclock import now_ns
from powerd_client.host.log import tell
from powerd_client.host.readiness import is_readable
from powerd_client.host.visible_gpus import usable_gpus
from powerd_client.knobs.limit_counters import LimitCounters
from powerd_core.errors import ConfigError, ControlDenied, ControlError, LeaseHeld, PeerError, PeerTimeout, WireError
from powerd_core.keys import control_url
from powerd_core.lease import (
    DEFAULT_SOCKET,
    DEFAULT_TTL_S,
    KNOB_OF_OPTION,
    MAX_ANSWER,
    Answer,
    Holding,
    KnobInfo,
    LeaseInfo,
    Request,
    State,
    Value,
    Wish,
    check_answer,
    option_of,
    read_answer,
    resolve,
    text_of,
    to_line,
)
from powerd_core.serde import from_document, to_document
from powerd_core.settings import SETTING, UNITS
from powerd_core.text import did_you_mean
from powerd_core.verdict import Verdict, judge, worst
from powerd_core.wire import Message, decode

ENVIRONMENT = "POWERD_CONTROL"
"""Where the helper is: the path of its socket, or the address of a powerd."""
SETTLE_S = 1.0
"""How long a device takes to follow a setting: nobody has documented it, so it is generous."""
_KEEP_S, _LOOK_S = 10.0, 2.0
"""How often a sign of life is given, and where a clock is held how it is seen."""
_ANSWER_S = 20.0
"""A driver may take seconds for one setting, and there may be many."""
_HURRY_S = 5.0
"""How long a training stands still at most, where the helper does not answer."""
_AGAIN_S = 0.5
"""How often it is asked again for a knob that somebody else holds."""
_HOW = "see docs/howto/control.md"
SIMULATED = "POWERD_SIM_GPU"
"""Set for what runs behind `powerd sim-gpu`."""

Emit = Callable[..., None]
"""``emit(name, values, t_ns)`` puts an event into a run."""


class Peer(Protocol):
    """Whoever answers requests: the helper, or a powerd before it."""

    is_here: bool
    """Whether it is on this machine, so that its clock is ours."""

    def ask(self, request: Request, timeout_s: float = _ANSWER_S) -> Answer:
        """Raises `ControlDenied`, `ConfigError` or `ControlError` for a refusal, `PeerError` where nobody answers."""

    def wait(self, timeout_s: float) -> None:
        """Wait so long, or until it may have gone."""

    def close(self) -> None: ...


class HelperSocket:
    """A connection to the helper on this machine. One question at a time."""

    is_here = True

    def __init__(self, path: Path) -> None:
        """Raises `ControlError`, which says what to install or start, and `ControlDenied`."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_ANSWER_S)
        self._received = b""
        try:
            self._socket.connect(str(path))
        except PermissionError as error:
            self._socket.close()
            raise ControlDenied(f"you may not connect to {path}: ask to be added to its group; {_HOW}") from error
        except OSError as error:
            self._socket.close()
            if os.environ.get(SIMULATED):
                raise ControlError(
                    "the simulated GPU has no control helper: start it as `powerd sim-gpu --control -- ...`"
                ) from error
            raise ControlError(
                f"no control helper answers at {path}: start `powerd-control` (or `powerd sim-gpu --control` for a "
                f"simulated GPU), or say with ${ENVIRONMENT} where it is; {_HOW}"
            ) from error

    def ask(self, request: Request, timeout_s: float = _ANSWER_S) -> Answer:
        """Raises `ControlDenied`, `ConfigError` or `ControlError` for a refusal, `PeerError` for a helper that is gone
        or does not answer in time. It is never asked again then: a late answer would be taken for that to another
        question."""
        deadline_s = time.monotonic() + timeout_s
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(to_line(request))
            while b"\n" not in self._received:
                self._socket.settimeout(max(deadline_s - time.monotonic(), 0.001))
                part = self._socket.recv(MAX_ANSWER)
                if not part:
                    break
                self._received += part
        except TimeoutError as error:
            self.close()
            raise PeerTimeout(f"the control helper has not answered for {timeout_s:g} s") from error
        except OSError as error:
            raise PeerError(f"the control helper has ended: {error}") from error
        if b"\n" not in self._received:
            raise PeerError("the control helper has ended: its log says why")
        line, _, self._received = self._received.partition(b"\n")
        return read_answer(line)

    def wait(self, timeout_s: float) -> None:
        # The helper says nothing unasked: what can be read is its end, or an answer to another thread.
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            is_readable(self._socket.fileno(), timeout_s)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
        self._socket.close()


class PowerdSocket:
    """A connection to a powerd that hands requests on to the helper beside it (its role for our key is *control*)."""

    is_here = False

    def __init__(self, url: str) -> None:
        """Raises `ConfigError`."""
        import zmq

        from powerd_client.journals.link import Connection, credentials_for

        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._url = control_url(url)
        self._connection = Connection(self._context, self._url, credentials_for(url), 16)

    def ask(self, request: Request, timeout_s: float = _ANSWER_S) -> Answer:
        message = Message("control", to_document(request))
        deadline_ns = now_ns() + round(timeout_s * 1e9)
        self._connection.send(message)
        while (left_ns := deadline_ns - now_ns()) > 0:
            if (refusal := self._connection.refusal()) is not None:
                raise ControlDenied(refusal)
            if not self._connection.socket.poll(min(left_ns // 1_000_000 + 1, 100)):
                continue
            answer = decode(self._connection.socket.recv())
            if isinstance(answer, Message) and answer.subject == "error":
                raise ControlError(f"the powerd at {self._url} says: {answer.body.get('message')}")
            if isinstance(answer, Message) and answer.subject == "control":
                return check_answer(from_document(Answer, answer.body))
        raise PeerTimeout(f"no powerd answers at {self._url}")

    def wait(self, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def close(self) -> None:
        self._connection.close()
        self._context.destroy(linger=0)


def connect(where: str | None = None) -> Peer:
    """The helper at a path, or behind the powerd at an address; by default what $POWERD_CONTROL says, else the
    machine's own. Raises `ControlError`, `ConfigError`."""
    place = where or os.environ.get(ENVIRONMENT) or DEFAULT_SOCKET
    if "://" in place and not place.startswith("ipc://"):
        return PowerdSocket(place)
    return HelperSocket(Path(place.removeprefix("ipc://")))


def wishes(levels: Mapping[str, Value | int], devices: Iterable[str], knobs: Iterable[KnobInfo]) -> tuple[Wish, ...]:
    """One for each device and option, such as ``power_cap_w="60%"``, in numbers of the ``knobs`` that the helper has
    described. Raises `ConfigError` for an unknown option, a level or a device that there is not."""
    for option in levels:
        if option not in KNOB_OF_OPTION:
            raise ConfigError(f"there is nothing to hold called {option!r}{did_you_mean(option, KNOB_OF_OPTION)}")
    of_option = {KNOB_OF_OPTION[option]: level for option, level in levels.items() if level is not None}
    if not of_option:
        raise ConfigError(f"say what to hold: {', '.join(KNOB_OF_OPTION)}")
    described = {(name, k.knob): k for k in knobs for name in (k.device, k.uuid)}
    kinds = {(k.device.rstrip("0123456789"), k.knob) for k in described.values()}
    # A GPU has no package, and a processor no memory clock: of several kinds of devices each takes what is its own.
    every = [(device, device.rstrip("0123456789")) for device in devices]
    pairs = [(device, knob) for device, kind in every for knob in of_option if (kind, knob) in kinds]
    if {knob for _, knob in pairs} != set(of_option) or {device for device, _ in pairs} != {
        device for device, _ in every
    }:
        pairs = [(device, knob) for device, _ in every for knob in of_option]  # one of these says what is wrong
    return tuple(Wish(device, knob, _value_of(of_option[knob], device, knob, described)) for device, knob in pairs)


def _value_of(level: Value | int, device: str, knob: str, described: Mapping[tuple[str, str], KnobInfo]) -> Value:
    """The number that a level of a knob means."""
    known = described.get((device, knob))
    if known is not None and not (known.range.greatest or known.range.words):
        raise ConfigError(f"{device} {option_of(knob)}: {known.problem}")
    if known is not None:
        return resolve(level if isinstance(level, str) else float(level), known.range, knob)
    devices = {name for name, _ in described}
    if device not in devices:
        raise ConfigError(f"there is no device {device!r} here{did_you_mean(device, devices)}")
    has = ", ".join(sorted(option_of(name) for of, name in described if of == device))
    raise ConfigError(f"{device} has no {option_of(knob)}: it has {has}")


def own_devices(knobs: Iterable[KnobInfo], levels: Iterable[str]) -> list[str]:
    """The devices that this process may use and that have what is to be held: its GPUs, by CUDA_VISIBLE_DEVICES, or
    the processors. Raises `ControlError` where there is none."""
    wanted = {KNOB_OF_OPTION[option] for option in levels if option in KNOB_OF_OPTION}
    having = [k for k in knobs if k.knob in wanted and k.device != k.uuid]  # a lost card has no name but its UUID
    gpus = {knob.uuid: knob.device for knob in having if knob.device.startswith("gpu")}
    usable, _ = usable_gpus([{"name": "", "uuid": uuid, "pci": ""} for uuid in gpus])
    found = [list(gpus.values())[at] for at in usable]
    found += sorted({knob.device for knob in having if not knob.device.startswith("gpu")})
    if not found:
        raise ControlError(
            f"no device here has {', '.join(sorted(wanted)) or 'anything to hold'}: `powerd control status`"
        )
    return found


class Hold:
    """Knobs that are held: from ``with``, or `acquire`, to the end of it.

    A hold is acquired or the script hears why (`ControlError`, `ControlDenied`, `ConfigError`). After that nothing is
    raised: a lease that ended too early is told, and stands in the run.
    """

    def __init__(
        self,
        levels: Mapping[str, Value | int],
        devices: Sequence[str] | None = None,
        *,
        emit: Emit = lambda *_: None,
        name: str = "",
        ttl_s: float = DEFAULT_TTL_S,
        settle_s: float = SETTLE_S,
        wait_s: float = 0.0,
        where: str | None = None,
    ) -> None:
        """``levels`` are numbers, ``"min"``, ``"default"``, ``"max"`` or ``"60%"`` by option (``power_cap_w``).

        ``devices``   such as ``["gpu0"]``; by default those that this process may use; empty to hold nothing
        ``emit``      puts events into a run
        ``name``      how the holder is called where others are refused
        ``ttl_s``     how long it may be silent before the knobs go back
        ``settle_s``  how long to wait behind each change before its readings count
        ``wait_s``    how long to ask again for a knob that somebody else holds
        """
        self._levels, self._devices, self._emit = dict(levels), devices, emit
        self._name = name or Path(os.path.realpath("/proc/self/exe")).name
        self._ttl_s, self.settle_s, self._wait_s, self._where = ttl_s, settle_s, wait_s, where
        self._peer: Peer | None = None
        self._knobs: tuple[KnobInfo, ...] = ()
        self._counters = LimitCounters()
        self._keeper: threading.Thread | None = None
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._told: dict[tuple[str, str], Holding] = {}
        self.lease: LeaseInfo | None = None
        """As the helper told it last; None before it is acquired."""
        self._last_verdicts: dict[str, tuple[Verdict, str]] | None = None
        self._is_lost = False
        self.problem = ""
        """Why the knobs are not held any more, though nobody released them."""

    def into(self, emit: Emit) -> Hold:
        """The same, with its events in a run."""
        self._emit = emit
        return self

    def acquire(self) -> Hold:
        if self._devices is not None and not self._devices:
            return self
        peer = connect(self._where)
        try:
            self._knobs = peer.ask(Request("describe")).knobs
            devices = self._devices or own_devices(self._knobs, self._levels)
            wanted = wishes(self._levels, devices, self._knobs)
            self._peer = peer
            self._take(*self._ask_in_turn(Request("acquire", wanted, name=self._name, ttl_s=self._ttl_s)))
        except BaseException:
            self._peer = None
            peer.close()
            raise
        self._keeper = threading.Thread(target=self._keep, name="powerd-control", daemon=True)
        self._keeper.start()
        return self

    def _ask_in_turn(self, request: Request) -> tuple[LeaseInfo, int, int]:
        """Ask again and again while somebody else holds it, for ``wait_s``."""
        deadline_s = time.monotonic() + self._wait_s
        while True:
            try:
                return self._ask(request, _ANSWER_S)
            except LeaseHeld:
                if time.monotonic() >= deadline_s:
                    raise
            time.sleep(min(_AGAIN_S, max(0.0, deadline_s - time.monotonic())))

    def _ask(self, request: Request, timeout_s: float | None = None) -> tuple[LeaseInfo, int, int]:
        """The lease that an answer tells, and from when to when the helper has worked on it."""
        assert self._peer is not None
        asked_ns = now_ns()
        answer = self._peer.ask(request, _HURRY_S if timeout_s is None else timeout_s)
        if answer.lease is None:
            raise ControlError("the control helper said nothing of the lease")
        return answer.lease, asked_ns, now_ns()

    def _take(self, lease: LeaseInfo, asked_ns: int, answered_ns: int) -> None:
        """Put what is new of each hold into the run, as events."""
        self.lease = lease
        for holding in sorted(lease.holds, key=lambda h: h.changed_ns):
            key = (holding.uuid, holding.knob)
            before = self._told.get(key)
            self._told[key] = holding
            if before is not None and before.changed_ns == holding.changed_ns:
                continue
            # On this machine the helper's clock is ours; from elsewhere the time lies between question and answer.
            is_here = self._peer is not None and self._peer.is_here
            self._emit_setting(holding, holding.changed_ns if is_here else (asked_ns + answered_ns) // 2)
            if holding.state is State.HELD and is_here:
                self._counters.begin(*key)
            if holding.state in (State.YIELDED, State.LOST):
                self._tell(f"{holding.device} {option_of(holding.knob)} is not held any more: {holding.why}")

    def _emit_setting(self, holding: Holding, t_ns: int, *, is_known: bool = True) -> None:
        """Put into the run what a knob is set to; where the helper is gone, that nobody knows it."""
        values = {
            "device": holding.device,
            "uuid": holding.uuid,
            "knob": holding.knob,
            "unit": UNITS[holding.knob],
            "asked": holding.setting.asked if is_known and holding.state is State.HELD else None,
            "requested": holding.setting.requested if is_known else None,
            "enforced": _enforced(holding) if is_known else None,
            "state": holding.state.value if is_known else State.LOST.value,
            "why": holding.why if is_known else self.problem,
            "lease": self.lease.lease if self.lease else "",
            "settle_s": self.settle_s,
        }
        self._emit(SETTING, values, t_ns)

    def _tell(self, problem: str) -> None:
        self.problem = problem
        tell(problem)

    def _keep(self) -> None:
        """Signs of life, until the end."""
        has_clock = any(knob.endswith("_clock") for _, knob in self._told)
        while not self._is_lost and self._peer is not None:
            self._peer.wait(min(self._ttl_s / 3, _LOOK_S if has_clock else _KEEP_S))
            with self._lock:
                if self._ended.is_set() or self._is_lost:
                    return
                self._look()
                self._renew_or_lose()

    def _look(self) -> None:
        for holding in self._told.values():
            self._counters.look(holding.uuid, holding.knob, holding.setting.asked)

    def _renew_or_lose(self) -> None:
        """Nothing is raised. A helper elsewhere may be out of reach for a while: the lease lasts for its ``ttl_s``."""
        try:
            self._renew()
        except PeerError as error:
            if self._peer is not None and self._peer.is_here:
                self._lose(str(error))
        except (ControlError, ConfigError, WireError) as error:
            self._lose(str(error))

    def _renew(self) -> None:
        if self.lease is not None:
            self._take(*self._ask(Request("renew", lease=self.lease.lease)))

    def _lose(self, why: str) -> None:
        self._is_lost = True
        self._tell(f"the lease has ended: {why}")
        for holding in self._told.values():
            self._emit_setting(holding, now_ns(), is_known=False)

    def set(self, **levels: Value | int) -> bool:
        """Other levels for what is held: ``hold.set(power_cap_w=150)``. False where they could not be set; the lease
        may have ended then. Raises `ConfigError` for a level that there is not."""
        devices = sorted({holding.device for holding in self._told.values()})
        wanted = wishes(levels, devices, self._knobs)
        with self._lock:
            if self._peer is None or self.lease is None or self.problem:
                return False
            try:
                self._take(*self._ask(Request("set", wanted, lease=self.lease.lease)))
            except PeerError as error:
                self._lose(str(error))
            except (ControlError, ConfigError, WireError) as error:
                tell(f"{', '.join(levels)} could not be set: {error}")
                self._renew_or_lose()
            else:
                return True
        return False

    def settled(self) -> Hold:
        """Wait until the devices follow what was set last."""
        newest_ns = max((h.changed_ns for h in self._told.values()), default=0)
        left_s = self.settle_s - (now_ns() - newest_ns) / 1e9
        time.sleep(min(max(left_s, 0.0), self.settle_s))
        return self

    @property
    def verdict(self) -> Verdict:
        """Whether the settings were honoured since they were set last (until the release, behind it): the worst of what
        is held. The table of the run judges by all its readings."""
        return worst(self.verdicts.values())[0]

    @property
    def verdicts(self) -> dict[str, tuple[Verdict, str]]:
        """By device and knob (``gpu0 power_cap_w``), each with a few words why."""
        with self._lock:
            return self._judge() if self._last_verdicts is None else self._last_verdicts

    def _judge(self) -> dict[str, tuple[Verdict, str]]:
        if not self.problem:
            self._renew_or_lose()
        self._look()
        return {f"{h.device} {option_of(h.knob)}": self._verdict_of(h) for h in self._told.values()}

    def _verdict_of(self, holding: Holding) -> tuple[Verdict, str]:
        if holding.state is not State.HELD or self.problem:
            return Verdict.OVERRIDDEN, holding.why or self.problem
        of = holding.setting
        evidence = self._counters.evidence(holding.uuid, holding.knob)
        return judge(holding.knob, of.asked, of.requested, of.enforced, evidence)

    def release(self) -> None:
        """Put everything back to what was found. Raises nothing: what fails is told, and the helper ends the lease
        anyhow when this process is gone."""
        if self._ended.is_set():
            return
        with self._lock:
            self._ended.set()
            if self._peer is None:
                return
            self._last_verdicts = self._judge()
            try:
                if self.lease is not None and not self.problem:
                    self._take(*self._ask(Request("release", lease=self.lease.lease)))
            except (ControlError, ConfigError, PeerError, WireError) as error:
                self._tell(f"the lease could not be released: {error}")
            finally:
                self._peer.close()
        if self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join(1.0)

    def text(self) -> str:
        """``gpu0 power_cap_w 200 W (found 260 W)``, of everything that is held."""
        return ", ".join(
            f"{h.device} {option_of(h.knob)} {text_of(h.setting.asked, h.knob)} (found {text_of(h.found, h.knob)})"
            for h in self._told.values()
        )

    def __enter__(self) -> Hold:
        return self.acquire().settled()

    def __exit__(self, *_: Any) -> None:
        self.release()


class Sweep:
    """The settings that lists of levels name, each with each: ``{"power_cap_w": "150,200", "sm_clock_mhz": "max"}``."""

    def __init__(self, levels: Mapping[str, str], devices: str = "") -> None:
        """Empty levels hold nothing. ``devices`` is such as ``gpu0,gpu1``."""
        self._levels = {option: text.split(",") for option, text in levels.items() if text}
        self._devices = devices.split(",") if devices else None

    def holds(self, out: Path | None, **more: Any) -> Iterator[tuple[Hold | None, Path | None]]:
        """What to hold for each run, and its run file: ``caps.h5`` becomes ``caps-150W.h5`` where there are several.
        One without anything to hold where no level is given."""
        if not self._levels:
            yield None, out
            return
        settings = [dict(zip(self._levels, levels, strict=True)) for levels in product(*self._levels.values())]
        for setting in settings:
            yield Hold(setting, self._devices, name="joules record", **more), _named(out, setting, len(settings))


def _named(out: Path | None, setting: Mapping[str, str], count: int) -> Path | None:
    if count == 1:
        return out
    units = {option: UNITS[KNOB_OF_OPTION[option]] for option in setting}
    texts = [f"{level}{units[o] if level[-1:].isdigit() else ''}".replace("%", "pc") for o, level in setting.items()]
    out = out or Path("run.h5")
    return out.with_stem("-".join([out.stem, *texts]))


def _enforced(holding: Holding) -> Value | None:
    """What counts as enforced: what the driver says; of a knob that it does not tell, what is held or was put back."""
    if holding.setting.enforced is not None:
        return holding.setting.enforced
    if holding.state is State.HELD:
        return holding.setting.asked
    return holding.found if holding.state is State.ENDED else None
