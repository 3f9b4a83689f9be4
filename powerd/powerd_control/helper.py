"""`powerd-control`: the helper with the right to set knobs. It answers one JSON line with one, on a Unix socket.

One loop serves all: connections, the deaths of holders (pidfd), silence, and what is to be looked at again. Setting a
knob takes microseconds to, with some drivers, seconds; everybody waits for it then, and leases are longer than that.
In a round of the loop each connection is answered one request, so that nobody keeps others waiting by many. Who asks is
what the kernel says of the connection; what they may is in the policy, which is read at each request, and again at each
look at what is held. A policy that cannot be used is an empty one.

What a helper that was killed has left is put back before all else, and its leases are over: whoever held one is told
by the end of the connection. A value is a number here; names of levels, queues and counters are the client's business.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib
import json
import logging
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from powerd_control.knobs import Bench, Knob, KnobError, gpu_knobs
from powerd_control.leases import POLL_S, Holder, Lease, Leases, Records, boot_id, start_ticks, user_name
from powerd_control.policy import Caller, Policy, load_policy
from powerd_control.requests import Request, plain, read_request
from powerd_core.errors import ConfigError, ControlDenied, ControlError, LeaseHeld, PowerdError, WireError
from powerd_core.hold import DEFAULT_SOCKET, MAX_ANSWER, MAX_REQUEST, Happening, Range, Setting, State, Value

_log = logging.getLogger("powerd-control")

SIMULATED = "POWERD_SIM_GPU"
"""Set for what runs behind `powerd sim-gpu`."""
Answer = dict[str, Any]
"""As `powerd_core.lease.Answer`."""
MAX_CONNECTIONS, MAX_OF_USER = 64, 16
IDLE_S = 60.0
"""A connection that holds nothing and says nothing for so long is closed."""
_SO_PEERGROUPS, _SO_PEERPIDFD = 59, 77
"""Of include/uapi/asm-generic/socket.h: Python does not name them."""
_KINDS = (
    (LeaseHeld, "held"),
    (ControlDenied, "denied"),
    (ControlError, "failed"),
    (ConfigError, "invalid"),
    (WireError, "invalid"),
)


@dataclass(eq=False)
class Connection:
    """Somebody who is connected."""

    socket: socket.socket
    uid: int
    gids: frozenset[int]
    pid: int
    start: int
    heard_s: float
    pidfd: int | None = None
    received: bytearray = field(default_factory=bytearray)
    """At most one request and the beginning of the next."""
    leases: set[str] = field(default_factory=set)

    def caller(self, claim: str) -> Caller:
        return Caller(self.uid, self.gids, claim)

    def holder(self, request: Request) -> Holder:
        return Holder(self.uid, self.pid, self.start, request.name, request.claim)


class Helper:
    """Serves ``listener``."""

    def __init__(self, listener: socket.socket, bench: Bench, leases: Leases, policy: Path) -> None:
        self._listener, self._bench, self._leases, self._policy_path = listener, bench, leases, policy
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._connections: list[Connection] = []
        self._next_poll_s = self._next_log_s = 0.0
        self._policy_problem = ""
        self.stops: list[int] = []
        """Signals that have come to end it."""

    def serve(self) -> None:
        """Serve until a signal; then put everything back."""
        wake, waker = socket.socketpair()
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno())
        self._selector.register(wake, selectors.EVENT_READ, lambda: wake.recv(64))
        notify("READY=1")
        try:
            while not self.stops:
                self._round(self._patience_s())
                self._mind()
                notify("WATCHDOG=1")
        finally:
            self._leases.end_all()
            signal.set_wakeup_fd(-1)
            wake.close()
            waker.close()

    def _round(self, patience_s: float | None) -> None:
        """Read what has come, and answer one request of each connection."""
        for key, _ in self._selector.select(patience_s):
            key.data()
        for connection in list(self._connections):
            self._take_one(connection)

    def _patience_s(self) -> float | None:
        if any(b"\n" in connection.received for connection in self._connections):
            return 0.0
        is_waiting = not self._leases.is_clean or self._connections
        return POLL_S if is_waiting or "WATCHDOG_USEC" in os.environ else None

    def _mind(self) -> None:
        """What is due without anybody asking."""
        now_s = boottime_s()
        if now_s >= self._next_poll_s:
            self._round(0.0)  # a sign of life that has come while others were served is one
            self._next_poll_s = now_s + POLL_S
            self._look_at_policy()
            self._leases.poll()
        for connection in list(self._connections):
            if not connection.leases and now_s - connection.heard_s > IDLE_S:
                self._close(connection)

    def _look_at_policy(self) -> None:
        """End the leases of those whom the policy does not allow any more what they hold."""
        held = [(c, lease) for c in self._connections for id_ in c.leases if (lease := self._leases.leases.get(id_))]
        policy = self._policy() if held else Policy()
        for connection, lease in held:
            if lease.is_over:
                continue
            wanted = [(hold.knob, hold.asked) for hold in lease.holds if hold.state is State.HELD]
            try:
                held_s = boottime_s() - lease.began_s
                policy.check(connection.caller(lease.holder.claim), wanted, lease.ttl_s, held_s)
            except ControlDenied as error:
                _log.warning(f"lease {lease.id}: {error}")
                self._leases.end(lease, Happening.FORBIDDEN)

    # Connections.

    def _accept(self) -> None:
        accepted, _ = self._listener.accept()
        accepted.setblocking(False)
        pid, uid, _gid = struct.unpack("3i", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        start = start_ticks(pid)
        of_user = sum(c.uid == uid for c in self._connections)
        if start is None or len(self._connections) >= MAX_CONNECTIONS or of_user >= MAX_OF_USER:
            accepted.close()
            return
        connection = Connection(accepted, uid, _groups(accepted, _gid), pid, start, boottime_s())
        self._connections.append(connection)
        self._selector.register(accepted, selectors.EVENT_READ, lambda: self._receive(connection))
        with contextlib.suppress(OSError):
            connection.pidfd = _pidfd(accepted, pid)
            self._selector.register(connection.pidfd, selectors.EVENT_READ, lambda: self._died(connection))

    def _receive(self, connection: Connection) -> None:
        if connection not in self._connections or b"\n" in connection.received:
            return
        try:
            part = connection.socket.recv(MAX_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        connection.heard_s = boottime_s()
        connection.received += part
        if not part or (len(connection.received) > MAX_REQUEST and b"\n" not in connection.received):
            self._close(connection)

    def _take_one(self, connection: Connection) -> None:
        if b"\n" in connection.received and connection in self._connections:
            line, _, rest = bytes(connection.received).partition(b"\n")
            connection.received = bytearray(rest)
            self._take(connection, line)

    def _died(self, connection: Connection) -> None:
        # What it had said before is answered for first: a release that it sent is a release.
        self._receive(connection)
        while b"\n" in connection.received and connection in self._connections:
            self._take_one(connection)
        if connection in self._connections:
            self._close(connection, Happening.DIED)

    def _close(self, connection: Connection, happening: Happening = Happening.RELEASED) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.pidfd is not None:
            self._selector.unregister(connection.pidfd)
            os.close(connection.pidfd)
        for id_ in connection.leases:
            if lease := self._leases.leases.get(id_):
                self._leases.end(lease, happening)

    def _send(self, connection: Connection, answer: Answer) -> None:
        line = _line(answer)
        if len(line) > MAX_ANSWER:
            line = _line({"error": "the answer is too long: ask for less", "kind": "failed"})
        try:
            connection.socket.sendall(line)
        except OSError:  # it reads nothing, or is gone
            self._close(connection)

    # Requests.

    def _take(self, connection: Connection, line: bytes) -> None:
        policy = self._policy()
        is_believed = policy.believes(connection.uid)
        is_served = is_believed or connection.uid in (0, os.geteuid()) or bool(policy.of(connection.caller("")))
        try:
            request = read_request(line)
            if request.claim and not is_believed:
                raise ControlDenied("only powerd may say for whom it asks")
            if not is_served and request.verb != "check":
                raise ControlDenied("no rule of the policy names you, and nobody is allowed anything by default")
            answer = _DOES[request.verb](self, connection, request)
        except PowerdError as error:
            if isinstance(error, ControlDenied) and self._policy_problem:
                error = ControlDenied(self._policy_problem)
            answer = _refusal(error)
            self._log_refusal(connection, answer["error"])
        self._send(connection, answer)
        if not is_served:
            self._close(connection)

    def _log_refusal(self, connection: Connection, why: str) -> None:
        """One a second at most: whoever is refused may ask again as often as he likes."""
        if boottime_s() >= self._next_log_s:
            self._next_log_s = boottime_s() + 1.0
            _log.info(f"{user_name(connection.uid)} (pid {connection.pid}): {why}")

    def _policy(self) -> Policy:
        """An empty one where it cannot be used."""
        problem, policy = "", Policy()
        try:
            policy = load_policy(self._policy_path)
        except ConfigError as error:
            problem = f"the policy cannot be used and allows nobody anything: {error}"
        if problem and problem != self._policy_problem:
            _log.error(problem)
        self._policy_problem = problem
        self._bench.admit(policy.untested)
        return policy

    def _do_describe(self, _connection: Connection, _request: Request) -> Answer:
        return {"knobs": [_described(knob) for knob in self._bench.all()]}

    def _do_status(self, _connection: Connection, _request: Request) -> Answer:
        problems = [*self._leases.problems(), *([self._policy_problem] if self._policy_problem else [])]
        now_s = boottime_s()
        return {"leases": [lease.told(now_s) for lease in self._leases.leases.values()], "problems": problems}

    def _do_check(self, connection: Connection, request: Request) -> Answer:
        policy = self._policy()
        if self._policy_problem:
            raise ControlDenied(self._policy_problem)
        return {"allowed": policy.texts(connection.caller(request.claim))}

    def _wanted(self, request: Request) -> list[tuple[Knob, Value]]:
        wanted = [(self._bench.find(wish.device, wish.knob), wish.value) for wish in request.wishes]
        for knob, value in wanted:
            knob.check(value)
        return wanted

    def _do_acquire(self, connection: Connection, request: Request) -> Answer:
        policy = self._policy()
        wanted = self._wanted(request)
        bounded = policy.check(connection.caller(request.claim), wanted, request.ttl_s)
        lease = self._leases.acquire(connection.holder(request), wanted, request.ttl_s, policy.stated, bounded)
        connection.leases.add(lease.id)
        return self._told(lease)

    def _told(self, lease: Lease) -> Answer:
        return {"lease": lease.told(boottime_s())}

    def _own(self, connection: Connection, request: Request) -> Lease:
        """The lease that a request names and the process behind the connection holds. Raises `ControlError`."""
        lease = self._leases.leases.get(request.lease)
        if lease is None or not lease.holder.is_same_process(connection.holder(request)):
            raise ControlError(f"you hold no lease {request.lease[:40]!r}: it has ended, or is somebody else's")
        return lease

    def _do_set(self, connection: Connection, request: Request) -> Answer:
        lease = self._own(connection, request)
        policy = self._policy()
        wanted = self._wanted(request)
        bounded = policy.check(connection.caller(request.claim), wanted, lease.ttl_s)
        self._leases.change(lease, wanted, bounded)
        return self._told(lease)

    def _do_renew(self, connection: Connection, request: Request) -> Answer:
        lease = self._own(connection, request)
        self._leases.renew(lease)
        return self._told(lease)

    def _do_release(self, connection: Connection, request: Request) -> Answer:
        lease = self._leases.leases.get(request.lease)
        asker = connection.holder(request)
        if lease is None or (lease.holder.uid, lease.holder.claim) != (asker.uid, asker.claim):
            raise ControlError(f"you hold no lease {request.lease[:40]!r}: it has ended, or is somebody else's")
        self._leases.end(lease, Happening.RELEASED)
        return self._told(lease)

    def _do_steal(self, connection: Connection, request: Request) -> Answer:
        if not self._policy().may_steal(connection.caller(request.claim)):
            raise ControlDenied("only whom a rule with steal = true names may end the lease of somebody else")
        lease = self._leases.leases.get(request.lease)
        if lease is None:
            raise ControlError(f"there is no lease {request.lease[:40]!r}")
        self._leases.end(lease, Happening.TAKEN)
        return self._told(lease)


_DOES: Mapping[str, Callable[[Helper, Connection, Request], Answer]] = {
    "describe": Helper._do_describe,
    "status": Helper._do_status,
    "check": Helper._do_check,
    "acquire": Helper._do_acquire,
    "set": Helper._do_set,
    "renew": Helper._do_renew,
    "release": Helper._do_release,
    "steal": Helper._do_steal,
}
"""By the verbs of `requests.VERBS`."""


def _refusal(error: PowerdError) -> Answer:
    kind = next(kind for of, kind in _KINDS if isinstance(error, of))
    return {"error": plain(str(error), 1000), "kind": kind}


def _line(answer: Answer) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode() + b"\n"


def _described(knob: Knob) -> Answer:
    """As `powerd_core.lease.KnobInfo`."""
    problem, range_, setting = "", Range(), Setting()
    try:
        range_, setting = knob.range, knob.read()
        problem = "the GPU is divided (MIG): a knob concerns all who share it" if knob.is_shared else ""
    except KnobError as error:
        problem = str(error)
    names = {"device": knob.device, "uuid": knob.uuid, "knob": knob.name}
    return {**names, "range": asdict(range_), "setting": asdict(setting), "problem": problem}


def _groups(peer: socket.socket, gid: int) -> frozenset[int]:
    """All groups of the process at the other end."""
    try:
        raw = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4096)
    except OSError:
        return frozenset({gid})
    return frozenset({gid, *struct.unpack(f"{len(raw) // 4}I", raw)})


def _pidfd(peer: socket.socket, pid: int) -> int:
    """A descriptor that becomes readable when the process at the other end dies."""
    try:
        descriptor = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:  # before Linux 6.5
        return os.pidfd_open(pid)
    os.set_inheritable(descriptor, False)
    return descriptor


def boottime_s() -> float:
    """CLOCK_BOOTTIME, which goes on while the machine sleeps and which nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def notify(message: str) -> None:
    """To systemd (sd_notify), where it has started this."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer, contextlib.suppress(OSError):
        peer.connect("\0" + address[1:] if address.startswith("@") else address)
        peer.send(message.encode())


def listen(path: Path, group: str) -> socket.socket:
    """A socket at ``path``, for its owner and ``group``. Raises `ConfigError` where another helper answers there, or
    where something else has the name."""
    if path.is_symlink() or (path.exists() and not path.is_socket()):
        raise ConfigError(f"{path} is no socket: choose another name")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if path.exists():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer, contextlib.suppress(OSError):
            peer.connect(str(path))
            raise ConfigError(f"another powerd-control serves {path}")
        path.unlink()
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    finally:
        os.umask(before)
    if group:
        import shutil

        try:
            shutil.chown(path, group=group)
        except (LookupError, OSError) as error:
            raise ConfigError(f"the socket cannot be given to the group {group}: {error}") from error
        path.chmod(0o660)
    listener.listen(MAX_CONNECTIONS)
    listener.setblocking(False)
    return listener


def make_bench(nvml: str, sysfs: Path) -> Bench:
    """The knobs of this machine, as far as their libraries are installed."""

    def of_library(module: str, make: Callable[[Any], Iterable[Knob | KnobError]]) -> Iterable[Knob | KnobError]:
        try:
            library = importlib.import_module(module)
        except ImportError:
            return ()
        except Exception as error:  # a library that is broken breaks nothing else
            raise KnobError(f"{module}: {error!r}") from error
        return make(library)

    def amd() -> Iterable[Knob | KnobError]:
        from powerd_control.untested import amd_knobs

        return of_library("amdsmi", amd_knobs)

    def cpu() -> Iterable[Knob | KnobError]:
        from powerd_control.untested import cpu_knobs

        return cpu_knobs(sysfs)

    return Bench({"nvml": lambda: of_library(nvml, gpu_knobs)}, untested={"amd": amd, "cpu": cpu})


def lock_machine(path: Path) -> int:
    """A descriptor that keeps other helpers away: two would take each other's values for what was found. Raises
    `ConfigError` where there is one."""
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ConfigError(f"another powerd-control serves this machine (it has locked {path})") from None
    return lock


def _lock_path(is_simulated: bool, state: Path) -> Path:
    """One for the machine's own driver, whatever the socket is; simulated GPUs each have one beside the records."""
    return state.with_name("lock") if is_simulated or os.geteuid() else Path(DEFAULT_SOCKET).with_name("lock")


def check_root(arguments: argparse.Namespace, is_isolated: bool) -> bool:
    """Whether the driver is a simulated one. Raises `ConfigError` where root would run what its environment names."""
    is_simulated = arguments.nvml != "pynvml" or SIMULATED in os.environ
    if os.geteuid() == 0 and is_simulated and not arguments.simulated:
        raise ConfigError(f"--nvml or ${SIMULATED} names a simulated driver: root has to say --simulated for it")
    if os.geteuid() == 0 and not is_simulated and not is_isolated:
        raise ConfigError(f"root starts it as `{sys.executable} -I -m powerd_control`: $PYTHONPATH would run as root")
    return is_simulated


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="powerd-control", description="Sets power caps and clocks under lease; see `powerd control --help`."
    )
    parser.add_argument("--socket", type=Path, default=Path(DEFAULT_SOCKET), help="where it answers (%(default)s)")
    parser.add_argument("--group", default="", help="who may connect beside the user who runs it")
    parser.add_argument(
        "--policy", type=Path, default=Path("/etc/powerd/control.toml"), help="who may what (%(default)s)"
    )
    parser.add_argument("--state", type=Path, help="folder of the records (default: leases, beside the socket)")
    parser.add_argument("--nvml", default="pynvml", metavar="MODULE", help="a module with pynvml's names (%(default)s)")
    parser.add_argument("--simulated", action="store_true", help="the driver may be a simulated one, for root too")
    parser.add_argument("--sysfs", type=Path, default=Path("/sys"), help=argparse.SUPPRESS)
    parser.add_argument("--revert-all", action="store_true", help="put back what a helper that was killed has left")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Serve, or with ``--revert-all`` put back what a helper that was killed has left."""
    arguments = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="powerd-control: %(message)s", stream=sys.stderr)
    try:
        return _run(arguments)
    except PowerdError as error:
        print(f"powerd-control: {plain(str(error), 2000)}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    """What was left is put back first: nothing else has to be right for that."""
    stops: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: stops.append(number))
    state = arguments.state or arguments.socket.with_name("leases")
    lock = lock_machine(_lock_path(check_root(arguments, bool(sys.flags.isolated)), state))
    bench = make_bench(arguments.nvml, arguments.sysfs)
    leases = Leases(bench, Records(state), boottime_s, boot_id())
    try:
        leases.restore()
        if not arguments.revert_all:
            _serve(arguments, bench, leases, stops)
    finally:
        leases.end_all()
        os.close(lock)
    if not leases.is_clean:
        _log.error("not everything is at what was found: see above")
    return 0 if leases.is_clean else 1


def _serve(arguments: argparse.Namespace, bench: Bench, leases: Leases, stops: list[int]) -> None:
    with listen(arguments.socket, arguments.group) as listener:
        bound = arguments.socket.lstat()
        helper = Helper(listener, bench, leases, arguments.policy)
        helper.stops = stops
        _log.info(f"serving {arguments.socket}; policy {arguments.policy}")
        helper.serve()
    with contextlib.suppress(FileNotFoundError):
        status = arguments.socket.lstat()
        if os.path.samestat(status, bound) and status.st_ctime_ns == bound.st_ctime_ns:
            arguments.socket.unlink()
