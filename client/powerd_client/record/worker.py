"""The recorder's worker: receives, tails the marks, journals, and at the end writes the run file.

Its guardian (`powerd_client.record.recorder`) forks it, and forks another one when it dies; that one goes on from what
the journal holds. When the run ends, what the daemons' rings hold is fetched until every fast stream has reached the
end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from powerd_client.host.hostclock import now_ns
from powerd_client.journals import journal as journals
from powerd_client.journals.gpu_processes import GpuWatch, own_processes
from powerd_client.journals.job import Inherited, Job, Orders, log, say
from powerd_client.journals.journal_writer import JournalWriter, Past, read_past
from powerd_client.journals.link import BoardLink, LinkMemory
from powerd_core.errors import PeerTimeout, PowerdError, RunFileError
from powerd_core.model import Block, Gap
from powerd_core.protocol import StreamReceiver
from powerd_core.wire import Message

_NAMED_S, _LOCAL_S = 3.0, 300.0
"""So long the start waits for a powerd that somebody named, and for the run's own, which lives: this machine is slow.
A local one that dies ends the start at once (`powerd_client.record.recorder`)."""
_ALIVE_S = 1.0
"""The parent hears so often that a run is being ended or written."""
_BEGIN_NS = 2_000_000_000
"""So long the start waits for a stream that sends nothing."""
_DRAIN_NS = 3_000_000_000
"""When the run has ended and nothing more comes for so long, nothing more will come."""
_STEP_NS = 100_000_000
"""No pass of the loop counts for more: a process that was stopped has not waited."""
_FAST_EXCHANGES = 100
_EXCHANGE_FAST_NS, _EXCHANGE_SLOW_NS = 20_000_000, 100_000_000
_FAST_PERIOD_NS = 1_000_000_000
"""A slower stream is not waited for; its last reading is as old as it is."""
_WAIT_MS = 10
_AGES = 100_000
"""So many frames, the newest ones, tell the usual age of a reading on arrival."""


class Reception:
    """How well readings came in: frames, bytes, and the age of the newest frames on arrival."""

    def __init__(self) -> None:
        self._frames = self._bytes = self._oldest_ns = 0
        self._ages: deque[float] = deque(maxlen=_AGES)
        self._begun, self._cpu = time.monotonic(), time.process_time()

    def add(self, size: int, age_ns: float) -> None:
        """A frame of ``size`` bytes whose oldest reading was taken ``age_ns`` before it arrived."""
        self._frames += 1
        self._bytes += size
        self._ages.append(age_ns)
        self._oldest_ns = max(self._oldest_ns, int(age_ns))

    def summary(self, links: Sequence[BoardLink]) -> dict[str, float]:
        """What goes into the run file as ``reception``: ``refused`` frames were damaged or out of turn, ``replayed``
        ones came late, out of the daemon's ring.
        """
        elapsed = time.monotonic() - self._begun
        ages = sorted(self._ages) or [0.0]
        return {
            "frames": self._frames,
            "bytes": self._bytes,
            "refused": sum(link.refused for link in links),
            "replayed": sum(link.replayed for link in links),
            "age_p50_ms": round(ages[len(ages) // 2] * 1e-6, 3),
            "age_p99_ms": round(ages[len(ages) * 99 // 100] * 1e-6, 3),
            "age_max_ms": round(self._oldest_ns * 1e-6, 3),
            "elapsed_s": round(elapsed, 3),
            "recorder_cpu_share": round((time.process_time() - self._cpu) / max(elapsed, 1e-9), 4),
        }


class Boards:
    """The links to every powerd of a run: what comes from them goes into the journal."""

    def __init__(self, journal: JournalWriter) -> None:
        self.links: list[BoardLink] = []
        self.reception = Reception()
        self._journal = journal
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._exchanges = self._exchange_ns = 0

    def add(self, url: str, memory: LinkMemory | None) -> None:
        """Raises `ConfigError`."""
        self.links.append(BoardLink(self._context, url, client=f"recorder {os.getpid()}", memory=memory))

    def describe(self, timeout_s: float, give_up: Callable[[], bool]) -> None:
        """Ask those who have not been described before. Raises what `BoardLink.describe` does."""
        for link in self.links:
            if link.description is None:
                link.describe(timeout_s, give_up)
            self._keep_notes(link)

    def wait(self, descriptor: int | None) -> None:
        """Ask for what is missing, and wait until something comes, there or on ``descriptor``, but not for long."""
        poller = zmq.Poller()
        if descriptor is not None:
            poller.register(descriptor, zmq.POLLIN)
        for link in self.links:
            link.ask()
            for socket in (link.control, link.data, link.clock):
                if socket is not None:
                    poller.register(socket, zmq.POLLIN)
        poller.poll(_WAIT_MS)

    def receive(self, stop_ns: int | None) -> bool:
        """Whether anything came that was taken before ``stop_ns``. Takes nothing while the journal is full: it stays in
        the daemons' rings. What was taken behind the end of the run is none of its own.
        """
        needed = False
        for link in self.links:
            if self._journal.is_full:
                break
            for event, frame in link.receive():
                if _is_behind(event, link, stop_ns):
                    continue
                self._journal.add(event, frame)
                needed = needed or _is_needed(event, link, stop_ns)
                if isinstance(event, Block) and (offset := link.offset_ns) is not None:
                    self.reception.add(len(frame), now_ns() - event.t_first_ns - offset)
            try:
                if link.control.poll(0):
                    link.receive_control()
            except PowerdError as error:
                self._journal.warn(str(error))
            for exchange in link.late_exchanges():
                self._journal.add(exchange)
            self._keep_notes(link)
        return needed

    def exchange_clocks(self) -> None:
        """Compare the clocks when it is time to: fast at first, then slowly."""
        now = now_ns()
        if now < self._exchange_ns:
            return
        self._exchanges += 1
        self._exchange_ns = now + (_EXCHANGE_FAST_NS if self._exchanges < _FAST_EXCHANGES else _EXCHANGE_SLOW_NS)
        for link in self.links:
            # The first of a pair finds both processes asleep, and its way there takes longer than the way back: half of
            # the difference would be an error of the offset. The quicker one is kept.
            pair = [exchange for _ in range(2) if (exchange := link.exchange()) is not None]
            if pair:
                self._journal.add(min(pair, key=lambda e: e.delay_ns))

    def flow(self) -> bool:
        """Whether every fast stream has sent something and the clocks are roughly known."""
        return self._exchanges >= 10 and all(s.t_last_board_ns for link in self.links for s in _fast(link))

    def have_reached(self, stop_ns: int) -> bool:
        """Whether everything up to ``stop_ns`` was received."""
        return all(
            link.least_offset_ns is not None and not link.earlier.open and _reached_ns(link, stop_ns) >= stop_ns
            for link in self.links
        )

    def give_up(self, begin_ns: int, stop_ns: int) -> None:
        """The run ends: say which board sent nothing of its end; what has not come of earlier epochs is a gap."""
        for link in self.links:
            reached_ns = _reached_ns(link, stop_ns)
            if reached_ns < stop_ns:
                # What came last may be of any time before the run, or nothing came and it is 0.
                of = (
                    f"the last {(stop_ns - reached_ns) * 1e-9:.3g} s of the run" if reached_ns > begin_ns else "the run"
                )
                if parts := _silent_parts(link, stop_ns):
                    who = f"{', '.join(parts)} of the powerd at {link.url}"
                    self._journal.warn(f"{who} sent nothing of {of}: see powerd check --running {link.url}")
                else:
                    self._journal.warn(f"powerd at {link.url} sent nothing of {of}: is it running?")
            if link.description is not None and link.offset_ns is None:
                port = link.description.clock_endpoint.rpartition(":")[2]
                self._journal.warn(
                    f"powerd at {link.url} answered no clock exchange, and without one nobody knows when its readings "
                    f"were taken: is its port {port} open to this machine?"
                )
            link.earlier.give_up()
            self._keep_notes(link)

    def _keep_notes(self, link: BoardLink) -> None:
        for event in link.take_notes():
            self._journal.add(event)

    def close(self) -> None:
        for link in self.links:
            link.close()
        self._context.destroy(linger=0)


def _fast(link: BoardLink) -> list[StreamReceiver]:
    return [s for s in link.streams.values() if s.stream.period_ns < _FAST_PERIOD_NS]


def _reached_ns(link: BoardLink, stop_ns: int) -> float:
    """How far every fast stream was received for certain, on the host's clock; ``stop_ns`` where nothing tells.

    By the least that the clocks can differ: an estimate may be off by more than the distance of two readings, and the
    last ones of the run would be missing without a word.
    """
    offset = link.least_offset_ns
    return min([s.t_last_board_ns + offset for s in _fast(link)] if offset is not None else [], default=stop_ns)


def _silent_parts(link: BoardLink, stop_ns: int) -> list[str]:
    """The sources, or lines of a source, that did not reach the end of the run while others did; none where all stopped
    or powerd itself."""
    fast, offset_ns = _fast(link), link.least_offset_ns or 0.0
    reached = [s.stream for s in fast if s.t_last_board_ns + offset_ns >= stop_ns]
    if not reached:
        return []
    lacking = [s.stream for s in fast if s.t_last_board_ns + offset_ns < stop_ns]
    shared = {stream.source for stream in reached}
    return sorted(
        {
            f"line {line.name}" if stream.source in shared else f"source {stream.source}"
            for stream in lacking
            for line in stream.lines
        }
    )


def _is_needed(event: Block | Gap, link: BoardLink, stop_ns: int | None) -> bool:
    """Whether it was worth waiting for: taken before the end of the run, as far as the clocks tell."""
    is_live = link.description is not None and link.description.epoch == event.epoch
    if stop_ns is None or not is_live:
        return True
    return link.least_offset_ns is not None and event.t_last_ns + link.least_offset_ns < stop_ns


def _is_behind(event: Block | Gap, link: BoardLink, stop_ns: int | None) -> bool:
    """Whether all of it was taken behind the end of the run, and behind the reading that follows the end."""
    is_live = link.description is not None and link.description.epoch == event.epoch
    if stop_ns is None or link.least_offset_ns is None or not is_live or not isinstance(event, Block):
        return False
    return event.t_first_ns + link.least_offset_ns > stop_ns + 2 * link.streams[event.stream].stream.period_ns


class Worker:
    """Receives from every board and tails every process's marks until it is told to stop."""

    def __init__(self, inherited: Inherited, past: Past) -> None:
        """``past``: what earlier workers have written, where there were any. Raises `OSError`."""
        self.orders = Orders(inherited.terminations, inherited.trainer)
        self._inherited = inherited
        self._past = past
        self._journal = JournalWriter(inherited.job.journal, past if inherited.death else None)
        self._is_ready = past.has_start
        self._begin_ns = past.t_start_ns
        """Of the run, once it is ready."""
        self._boards = Boards(self._journal)
        self._own = own_processes(inherited.job.parent_pid, inherited.job.trainer_pid)
        self._gpus: GpuWatch | None = None
        self._inherited_pid = os.getppid()
        self._has_adopted = False
        # Both without the time in which this process was stopped.
        self._ran_ns = 0
        self._waited_ns = 0
        """How long nothing has come that the run needs."""

    def open(self) -> None:
        """Connect, describe, and put what the run is into the journal. Raises `PowerdError`."""
        job, daemon, death = self._inherited.job, self._inherited.daemon, self._inherited.death
        if not self._past.has_run:
            self._journal.add(Message("run", job.message))
        if death:
            self._journal.note(f"the recorder {death} and was started again")
        for url in [daemon.url] if daemon else job.urls:
            self._boards.add(url, self._past.memory(url))
        try:
            self._boards.describe(_LOCAL_S if daemon else _NAMED_S, self._look)
        except PeerTimeout as error:
            if not self.orders.is_ending and daemon:
                raise PeerTimeout(f"the local powerd of this run did not answer within {_LOCAL_S:g} s") from error
            if not self.orders.is_ending:
                raise
        else:
            self._tell_sources()
            descriptions = [link.description for link in self._boards.links if link.description is not None]
            self._gpus = GpuWatch(self._own, [device for d in descriptions for device in d.devices])
            self._gpus.start()
        self._journal.flush()
        if self._is_ready:
            self._say_ready()

    def _tell_sources(self) -> None:
        """Say which powerd measures nothing, and of a local one what of this machine it does not record."""
        opened, notes = set(), list(self._inherited.notes)
        for link in self._boards.links:
            streams = link.description.streams if link.description is not None else ()
            opened |= {stream.source for stream in streams}
            if not streams:
                notes.append(f"powerd at {link.url} measures nothing: its configuration has no [[source]]")
        if self._inherited.daemon is not None:
            notes += self._inherited.daemon.left_out(opened)
        for text in notes:
            self._journal.warn(text)

    def _look(self) -> bool:
        """Whether the recording is to end."""
        was_ending = self.orders.is_ending
        for text in self.orders.look():
            self._journal.note_once(text)
        if self.orders.is_ending and not was_ending:
            self._waited_ns = 0
            if not self.orders.is_complete:
                self._inherited.user.let_go()
        return self.orders.is_ending

    def run(self) -> None:
        """Record until told to stop, and then until every stream has reached that moment or nothing more comes.

        Raises `RunFileError` when the journal cannot take even the end of the run.
        """
        last_ns = alive_ns = now_ns()
        while not self.orders.is_abandoned:
            self._boards.wait(0 if not self.orders.input_ended else None)
            self._look()
            step_ns, last_ns = min(now_ns() - last_ns, _STEP_NS), now_ns()
            self._ran_ns += step_ns
            self._waited_ns += step_ns
            if self._boards.receive(self.orders.stop_ns):
                self._waited_ns = 0
            self._boards.exchange_clocks()
            self._journal.tail_marks()
            self._tell_others()
            self._journal.flush()
            self._mind_daemon()
            if not self._is_ready and (self._boards.flow() or self._ran_ns > _BEGIN_NS or self.orders.is_ending):
                self._is_ready = True
                self._begin_ns = min(now_ns(), self.orders.stop_ns or now_ns())
                self._journal.add(Message("start", {"t_start_ns": self._begin_ns}))
                self._journal.flush()
                self._say_ready()
            stop_ns = self.orders.stop_ns
            if stop_ns is not None:
                if last_ns >= alive_ns:
                    alive_ns = last_ns + int(_ALIVE_S * 1e9)
                    say(alive=True)
                has_all = self._boards.have_reached(stop_ns) and not self._journal.failure
                if has_all or self._waited_ns > _DRAIN_NS:
                    self._end(stop_ns)
                    return

    def _end(self, stop_ns: int) -> None:
        self._journal.tail_marks(final=True)
        self._tell_others()
        self._boards.give_up(self._begin_ns, stop_ns)
        reception = self._boards.reception.summary(self._boards.links)
        body = {"t_stop_ns": stop_ns, "complete": self.orders.is_complete, "reception": reception}
        self._journal.end(Message("stop", body))

    def _tell_others(self) -> None:
        """Put into the run which programs beside it the driver lists: as said by the first process that marks."""
        for pid in self._journal.marking:
            self._own.add(pid)
        if self._gpus is not None and self._journal.first_process is not None:
            for document in self._gpus.take():
                self._journal.add(Message("phase-names", document | {"process": self._journal.first_process}))

    def _say_ready(self) -> None:
        self._inherited.ready[0] = 1
        say(ready=True, pid=os.getpid())

    def _mind_daemon(self) -> None:
        """With the guardian dead, its powerd ends too: then this process takes its place."""
        daemon = self._inherited.daemon
        if daemon is None or self.orders.is_ending or os.getppid() == self._inherited_pid:
            return
        if not self._has_adopted:
            self._has_adopted = True
            daemon.adopt()
        if (text := daemon.tend()) is not None:
            self._journal.warn(text)

    def close(self) -> None:
        """Let go of sockets, of a powerd that was taken over, and of the journal's file (not of its lock)."""
        if self._gpus is not None:
            self._gpus.close()
        self._boards.close()
        if self._has_adopted and self._inherited.daemon is not None:
            self._inherited.daemon.stop()
        self._journal.close()


def work(inherited: Inherited) -> int:
    """Record and build. The worker's exit status: 0 or 2 when all is done that can be; anything else, or an exception,
    when another worker should go on.
    """
    try:
        if _record(inherited):
            _build(inherited)
        else:  # nobody wants it; the parent removes it too, if nothing interrupts that
            journals.remove(inherited.job.journal)
    except (PowerdError, OSError) as error:
        may_pass = inherited.ready[0] or getattr(error, "errno", None) == errno.ENOMEM
        if may_pass and not isinstance(error, RunFileError):
            raise
        say(error=str(error))
        return 2
    return 0


def _record(inherited: Inherited) -> bool:
    """Whether there is something to build a run file from."""
    past = read_past(inherited.job.journal) if inherited.death else Past()
    if past.has_stop or (inherited.death and _is_built(inherited.job)):
        return True
    worker = Worker(inherited, past)
    try:
        worker.open()
        worker.run()
    finally:
        with contextlib.suppress(OSError):
            worker.close()
    return not worker.orders.is_abandoned


def _build(inherited: Inherited) -> None:
    """Write the run file and say so; meanwhile say now and then how far it is. Raises `RunFileError`.

    The training that was killed prints no result: that is done here, on its error stream, if it is still there.
    """
    # numpy and h5py: half a second that the start of a run need not wait for
    from powerd_client.runs.build import build_run, keep_journal
    from powerd_client.runs.recover import incomplete

    job = inherited.job
    journals.remove_partials(job.out)
    finish = keep_journal if _is_built(job) else build_run
    missing = finish(job.journal, job.out, overwrite=job.overwrite, progress=lambda share: say(alive=share))
    if missing:
        log.warning(incomplete(job.out, missing))
    elif job.journal.exists():
        log.warning(
            f"{job.journal} could not be packed and stays; all of it is in {job.out.name}: `joules journal tidy`"
        )
    if inherited.trainer.is_gone() and not job.quiet:
        from powerd_client.record.recording import Closing

        inherited.user.show("\n".join(Closing(job.out).result()))
    say(done=True)


def _is_built(job: Job) -> bool:
    """Whether the run file was written by a worker that died before it could say so."""
    if not job.out.exists():
        return False
    import h5py

    try:
        with h5py.File(job.out, "r") as file:
            return bool(file.attrs.get("run_id") == job.message["run_id"])
    except OSError:
        return False
