"""`powerd-accounting`: the loop that listens to a powerd, counts its joules by second, and says whose they were.

A session is what a start of the program is: it reads from the store how far it has come, and asks powerd to go on from
there. Whatever cannot be kept (a full disk) ends the session, and the next one counts the same frames again as long as
powerd holds them.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from powerd_client.accounting.jobs import NOBODY, CpuTimes, JobBook, began_utc_ns, is_processor
from powerd_client.accounting.seconds import SECOND_NS, LineSeconds, Reported, SecondsIntegral
from powerd_client.accounting.store import ALONE, SHARE, WHOLE, Part, State, Store
from powerd_client.host.hostclock import take_anchor
from powerd_client.host.job_identity import JobIdentity, job_of_process
from powerd_client.host.log import tell
from powerd_client.host.ownership import make_folder, own_folder
from powerd_client.journals.gpu_processes import DriverLists
from powerd_client.journals.link import BoardLink, LinkMemory
from powerd_client.knobs.control import connect
from powerd_core.errors import ConfigError, PeerError, PowerdError
from powerd_core.keys import PORT, control_url
from powerd_core.lease import Request
from powerd_core.model import Description, Provenance, QuantityConversion
from powerd_core.protocol import PastEpoch, StreamReceiver
from powerd_core.wire import CURRENT

SETTLE_S = 5.0
"""How often what came is counted and kept."""
LOOK_S = 0.5
"""How often frames are taken; they wait in the socket meanwhile."""
_SHARE_OF = {Provenance.SIMULATED.value: Provenance.SIMULATED.value}
"""The provenance of a modelled share; that of what is simulated stays so."""
MODELLED_SHARE = "modelled share"
_LIMIT, _EVENTS, _IDLE = "power_limit_w", "clock_events_bits", "gpu_idle"
_SPOOLED_NS = 8 * 86400 * SECOND_NS
"""Events of older jobs are in the spool folder no more."""
_AGAIN_S = 5.0
_PUBLISH_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command was told."""

    url: str
    folder: Path
    spool: Path
    node: str
    keys: Path | None = None
    publish_s: float = 900.0
    retention_days: int = 400
    quota_mb: float = 2000.0


def wanted_lines(description: Description) -> set[str]:
    """The lines that feed devices, and what tells the limit in force and whether a GPU is idle."""
    feeds = {name for device in description.devices for name in device.feeds}
    sides = {
        line.name
        for stream in description.streams
        for line in stream.lines
        if isinstance(line.conversion, QuantityConversion)
        and line.quantity in (_LIMIT, _EVENTS)
        and not line.name.endswith("_requested")
    }
    return feeds | sides


class Session:
    """From a start to a stop, or to what cannot be kept. Raises `sqlite3.Error` and `PowerdError` from everything."""

    def __init__(self, settings: Settings, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._settings = settings
        self._store = Store(settings.folder)
        self._integral = SecondsIntegral(wanted_lines)
        self._store.load(self._integral)
        self._book, self._cpu = JobBook(), CpuTimes()
        self._book.add(self._store.jobs(time.time_ns() - _SPOOLED_NS))
        self._cpu.used(self._book.running())
        self._states: dict[str, State] = {}
        self._leases: dict[str, str] = {}
        self._driver: DriverLists | None = None
        self._trouble = ""
        self.link = BoardLink(
            context, settings.url, client="powerd-accounting", memory=self._memory(), keys=settings.keys
        )

    def _memory(self) -> LinkMemory | None:
        """How far the store says that each stream was counted."""
        epochs = list(self._integral.epochs.items())
        if not epochs:
            return None
        receivers = {
            epoch: {
                number: StreamReceiver(stream.stream, epoch, CURRENT if stream.next is None else stream.next)
                for number, stream in own.streams.items()
                if stream.lines
            }
            for epoch, own in epochs
        }
        *earlier, (latest, own) = epochs
        past = {epoch: PastEpoch(old.description, receivers[epoch]) for epoch, old in earlier}
        return LinkMemory(own.description, receivers[latest], past, set(receivers))

    def close(self) -> None:
        self.link.close()
        self._store.close()

    # -- listening -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Ask powerd what it measures. Raises `PeerError` where it does not answer."""
        self._take(self.link.describe())
        with contextlib.suppress(ImportError):
            import pynvml

            with contextlib.suppress(pynvml.NVMLError):
                if not self._settings.spool.is_dir():
                    assert self.link.description is not None
                    self._driver = DriverLists(self.link.description.devices, pynvml)

    def _take(self, description: Description) -> None:
        self._integral.begin(description)
        own = self._integral.epochs[description.epoch]
        for number in [n for n, stream in own.streams.items() if not stream.lines]:
            self.link.streams.pop(number, None)  # nobody asks for it

    def listen(self) -> None:
        """Take what has come, and ask for more."""
        link = self.link
        while frames := list(link.receive()):
            for event, _ in frames:
                self._integral.take(event)
        link.ask()
        link.take_notes()  # of what is lost, which the next frames show
        try:
            while link.control.poll(0):
                if (description := link.receive_control()) is not None:
                    self._take(description)
            link.exchange()
            self._trouble = ""
        except PeerError as error:
            if str(error) != self._trouble:
                tell(str(error))
            self._trouble = str(error)

    # -- counting ------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Count what has come, and keep it."""
        now_utc_ns = time.time_ns()
        self._look_at_jobs(now_utc_ns)
        description, offset_ns = self.link.description, self.link.offset_ns
        offsets = {}
        if description is not None and offset_ns is not None:
            anchor = take_anchor()
            offsets[description.epoch] = round(offset_ns) + anchor.t_unix_ns - anchor.t_host_ns
        counted, reported = self._integral.settle(offsets, self._book.cuts)
        parts = [part for rows in counted for part in parts_of(rows, self._book)]
        states = list(self._changed(reported))
        self._store.commit(self._integral, parts, states, self._book.take_changed(), now_utc_ns * 1e-9)
        self._book.forget(now_utc_ns)

    def _look_at_jobs(self, now_utc_ns: int) -> None:
        if self._settings.spool.is_dir():
            self._book.read_spool(self._settings.spool)
        elif self._driver is not None:
            on: dict[str, list[JobIdentity]] = {}
            began_ns: dict[str, int] = {}
            for device, processes in self._driver.look().items():
                for process in processes:
                    job = job_of_process(process.pid)
                    if job is not None:
                        on.setdefault(device, []).append(job)
                        began_ns[job.key] = min(began_ns.get(job.key, now_utc_ns), began_utc_ns(process.pid))
                        self._cpu.see(job.key, process.pid)
            self._book.see(on, now_utc_ns, began_ns)
        description = self.link.description
        if description is not None and any(is_processor(device.name) for device in description.devices):
            used = self._cpu.used(self._book.running())
            if used is not None:
                self._book.share(*used, now_utc_ns)

    def _changed(self, reported: Sequence[Reported]) -> Iterator[tuple[str, int, State]]:
        """States of devices by the auxiliary channels and the leases, with the second from which each holds."""
        yield from told_states(reported, self._states)
        leases = self._held()
        for device in leases.keys() | self._leases.keys():
            if leases.get(device) != self._leases.get(device):
                state = replace(self._states.get(device, State()), lease=leases.get(device))
                self._states[device] = state
                yield device, int(time.time()), state
        self._leases = leases

    def _held(self) -> dict[str, str]:
        """Who holds a knob of which device, by the control helper of this machine; nothing where there is none."""
        with contextlib.suppress(PowerdError):
            peer = connect()
            try:
                leases = peer.ask(Request("status"), 2.0).leases
            finally:
                peer.close()
            return {hold.device: lease.holder for lease in leases for hold in lease.holds}
        return {}

    # -- leaving -------------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Whole days and sums of jobs become Parquet files, in a process of its own: what it needs is not kept."""
        s = self._settings
        command = [
            sys.executable, "-P", "-m", "powerd_client.accounting.days", str(s.folder), s.node,
            str(s.retention_days), str(s.quota_mb),
        ]  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, timeout=_PUBLISH_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)

    def end(self) -> None:
        """The last frames, and all files."""
        self.listen()
        self.settle()
        self._store.fold_all()
        self.publish()


def parts_of(rows: LineSeconds, book: JobBook) -> Iterator[Part]:
    """What counts for whom: a GPU's joules for who holds it, a processor's by CPU time."""
    line = rows.line
    columns = zip(
        rows.second.tolist(), rows.begin_ns.tolist(), rows.energy_j.tolist(), rows.shared_j.tolist(),
        rows.random_j2.tolist(), rows.time_s.tolist(), rows.missing_s.tolist(), strict=True,
    )  # fmt: skip
    for second, begin_ns, energy_j, shared_j, random_j2, time_s, missing_s in columns:
        holders, shares = book.holders(line.device, begin_ns), book.shares(line.device, begin_ns)
        kind = line.provenance.value
        if not shares and len(holders) <= 1:
            job = holders[0] if holders else NOBODY
            sums = (energy_j, shared_j, random_j2, time_s, missing_s)
            yield Part(second, line.name, line.device, kind, job, WHOLE, *sums)
            continue
        sums = (energy_j, shared_j, random_j2, time_s, missing_s)
        yield Part(second, line.name, line.device, kind, NOBODY, ALONE, *sums)
        weights = dict(shares) or {job: 1 / len(holders) for job in holders}
        if (rest := 1 - sum(weights.values())) > 1e-9:
            weights[NOBODY] = rest
        for job, weight in weights.items():
            sums = (weight * energy_j, weight * shared_j, weight**2 * random_j2, time_s, missing_s)
            yield Part(second, line.name, line.device, _SHARE_OF.get(kind, MODELLED_SHARE), job, SHARE, *sums)


def told_states(reported: Sequence[Reported], states: dict[str, State]) -> Iterator[tuple[str, int, State]]:
    """What auxiliary channels say of devices, with the second from which it holds, in order; ``states`` are those until
    then, and then."""
    told = [(second, own.line.device, change) for own in reported for second, change in _changes(own)]
    for second, device, change in sorted(told, key=lambda entry: entry[:2]):
        state = states[device] = replace(states.get(device, State()), **change)
        yield device, second, state


def _changes(reported: Reported) -> Iterator[tuple[int, dict[str, Any]]]:
    """The second from which each other value holds."""
    is_new = np.concatenate([[True], np.diff(reported.value) != 0])[: len(reported.value)]
    bits: Mapping[str, Mapping[str, int]] = reported.line.detail.get("bits", {})
    idle = bits.get(reported.line.name, {}).get(_IDLE, 1)
    seconds = (reported.t_ns[is_new] // SECOND_NS).tolist()
    for second, value in zip(seconds, reported.value[is_new].tolist(), strict=True):
        yield second, {"cap_w": value} if reported.line.quantity == _LIMIT else {"is_idle": bool(int(value) & idle)}


# -- the command -------------------------------------------------------------------------------------------------------


def run(settings: Settings, is_over: threading.Event) -> None:
    """Session after session, until it ``is_over``. Raises `ConfigError`."""
    make_folder(settings.folder)
    said = ""
    with zmq.Context() as context, _alone(settings.folder):
        tell(_what_it_does(settings))
        while not is_over.is_set():
            try:
                _session(settings, context, is_over)
                said = ""
            except (PeerError, sqlite3.Error) as error:
                text = f"the accounting waits: {error}"
                if text != said:
                    tell(text)
                said = text
                is_over.wait(_AGAIN_S)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two would count the same joules into one file."""
    with own_folder(folder) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{folder} is that of another powerd-accounting: name one of its own") from None
        yield


def _session(settings: Settings, context: zmq.Context[zmq.Socket[bytes]], is_over: threading.Event) -> None:
    session = Session(settings, context)
    try:
        session.begin()
        settle_s = publish_s = time.monotonic()
        while not is_over.wait(LOOK_S):
            session.listen()
            now_s = time.monotonic()
            if now_s - settle_s >= SETTLE_S:
                settle_s = now_s
                session.settle()
            if now_s - publish_s >= settings.publish_s:
                publish_s = now_s
                session.publish()
        session.end()
    finally:
        session.close()


def _what_it_does(settings: Settings) -> str:
    jobs = f"jobs by {settings.spool}"
    if not settings.spool.is_dir():
        jobs = f"{settings.spool} is not there, so that jobs are found by their programs on GPUs"
    return f"accounting of {settings.url} into {settings.folder}; {jobs}"


def arguments(words: Sequence[str] | None = None) -> Settings:
    """The settings on a command line."""
    parser = argparse.ArgumentParser(
        prog="powerd-accounting",
        description="Keeps the joules of each device and second, and of each job, for months. An ordinary reader of a "
        "powerd: it needs no root. `joules jobs` makes tables of its folder.",
        epilog="For example: powerd-accounting --folder /var/lib/powerd/accounting",
    )
    here = f"tcp://127.0.0.1:{PORT}"
    parser.add_argument("url", nargs="?", default=here, metavar="URL", help=f"the powerd (default {here})")
    parser.add_argument(
        "--folder", type=Path, default=Path(os.environ.get("STATE_DIRECTORY", "accounting")), metavar="DIR",
        help="where it keeps what it counts (default $STATE_DIRECTORY, else accounting)",
    )  # fmt: skip
    parser.add_argument(
        "--spool", type=Path, default=Path("/var/spool/powerd"), metavar="DIR",
        help="where prolog and epilog say what jobs do (default /var/spool/powerd); without that folder jobs are found "
        "by their programs on GPUs",
    )  # fmt: skip
    parser.add_argument("--node", default=os.uname().nodename, metavar="NAME", help="default: the host's name")
    parser.add_argument("--keys", type=Path, metavar="DIR", help="directory of keys, for a powerd that wants them")
    parser.add_argument(
        "--publish-s",
        type=float,
        default=900.0,
        metavar="S",
        help="the files of jobs are renewed so often (default 900)",
    )
    parser.add_argument(
        "--retention-days", type=int, default=400, metavar="N", help="older days are deleted (default 400)"
    )
    parser.add_argument(
        "--quota-mb", type=float, default=2000.0, metavar="MB", help="beyond it the oldest days go (default 2000)"
    )
    given = parser.parse_args(words)
    return Settings(
        control_url(given.url), given.folder.absolute(), given.spool, given.node, given.keys, given.publish_s,
        given.retention_days, given.quota_mb,
    )  # fmt: skip


def main() -> None:
    """Run until Ctrl-C or SIGTERM."""
    is_over = threading.Event()
    try:
        settings = arguments()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: is_over.set())
        run(settings, is_over)
    except PowerdError as error:
        sys.stderr.write(f"powerd-accounting: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
