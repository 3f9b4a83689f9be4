"""The sampler processes: started, listened to, restarted when they die."""

from __future__ import annotations

import os
import shutil

import zmq

from powerd_core.errors import SensorError
from powerd_core.wire import HEADER_BYTES, MAX_PAYLOAD
from powerd_daemon.clock import Clock
from powerd_daemon.config import Config
from powerd_daemon.log import Log
from powerd_daemon.sampler import Spec
from powerd_daemon.sampler_process import STOP_NS, Sampler
from powerd_daemon.sampling import Resume
from powerd_daemon.spawn import private_directory, spawn
from powerd_daemon.store import Store

OUTBOX_BYTES = 16 << 20
OPEN_TIMEOUT_NS = 60_000_000_000
SILENT_NS = 30_000_000_000
"""A sampler sends its statistics every second: one that is silent for so long hangs in its sensor's driver."""
LATE_MS = 200
"""So long a silent sampler's last words are waited for: if powerd itself was stopped for a while, they are late."""
STABLE_NS = 30_000_000_000
"""A sampler that ran for so long has earned a quick restart."""


class Supervisor:
    """Runs one `Sampler` for each source of ``config`` and puts what they send into ``store``."""

    def __init__(
        self, config: Config, store: Store, context: zmq.Context[zmq.Socket[bytes]], clock: Clock, log: Log
    ) -> None:
        self.samplers = tuple(Sampler(source, i, store, clock, log) for i, source in enumerate(config.sources))
        self._config = config
        self._store = store
        self._context = context
        self._clock = clock
        self._log = log
        self._poller: zmq.Poller | None = None
        self._stopped = False
        self._directory = private_directory()

    def start(self, poller: zmq.Poller) -> None:
        """Start all samplers; their sockets are watched by ``poller``."""
        self._poller = poller
        for sampler in self.samplers:
            self._start(sampler)

    @property
    def garbage(self) -> int:
        """Frames of samplers that were dropped."""
        return sum(s.garbage for s in self.samplers)

    @property
    def is_ready(self) -> bool:
        """Whether every source has said what it measures."""
        return all(s.streams is not None for s in self.samplers)

    def check_start(self) -> None:
        """Raise what keeps a source from starting, if anything does."""
        for s in self.samplers:
            if s.streams is None and s.failure:
                raise SensorError(f"{s.config.where}: {s.failure}" if s.config.where not in s.failure else s.failure)
            if s.streams is None and self._clock.now_ns() - s.started_ns > OPEN_TIMEOUT_NS:
                seconds = OPEN_TIMEOUT_NS // 1_000_000_000
                raise SensorError(f"{s.config.where}: the sensor did not open within {seconds} s: is it stuck?")

    def receive(self) -> bool:
        """Take one slice of what samplers sent. True when there may be more."""
        more = False
        for sampler in self.samplers:
            more |= sampler.receive()
        return more

    def mind(self) -> None:
        """Notice samplers that ended, and start again those whose pause is over."""
        if self._stopped:
            return
        now_ns = self._clock.now_ns()
        for s in self.samplers:
            # Asked in any case: a process that ended is not laid to rest before.
            status = None if s.process is None else s.process.poll()
            if s.failure or s.process is None:
                continue
            if s.restart_ns is None:
                if status is not None:
                    s.ended(status, now_ns, was_stable=now_ns - s.started_ns > STABLE_NS)
                elif now_ns - s.heard_ns > (SILENT_NS if s.has_spoken else OPEN_TIMEOUT_NS):
                    s.kill_silent(LATE_MS)
            elif now_ns >= s.restart_ns:
                while s.receive():
                    pass
                if s.streams is None and not s.failure:
                    s.failure = f"its sampler ended with status {s.process.returncode} before it opened the sensor"
                if not s.failure:
                    s.restarts += 1
                    self._start_again(s, now_ns)

    def stop(self) -> None:
        """End all samplers, taking what they still send; kill those that do not end in time."""
        self._stopped = True
        for s in self.samplers:
            if s.process is not None and s.process.poll() is None:
                s.process.terminate()
        give_up_ns = self._clock.now_ns() + STOP_NS
        alive = [s for s in self.samplers if s.process is not None]
        while alive and self._clock.now_ns() < give_up_ns:
            self.receive()
            alive = [s for s in alive if s.process is not None and s.process.poll() is None]
            self._clock.sleep_until(self._clock.now_ns() + 2_000_000)
        for s in alive:
            s.kill()
        while self.receive():
            pass

    def close(self) -> None:
        """Kill what still runs and remove the private directory."""
        for s in self.samplers:
            s.kill()
            self._close_pull(s)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self, s: Sampler) -> None:
        # Each process has a socket of its own: whatever its predecessor left on the way cannot be mistaken for its own.
        self._close_pull(s)
        endpoint = f"ipc://{self._directory / f'{s.index}.{s.restarts}'}"
        s.pull = self._context.socket(zmq.PULL)
        s.pull.set(zmq.LINGER, 0)
        s.pull.set(zmq.MAXMSGSIZE, MAX_PAYLOAD + HEADER_BYTES)
        s.pull.bind(endpoint)
        assert self._poller is not None
        self._poller.register(s.pull, zmq.POLLIN)
        intakes = [self._store.intakes[stream.number] for stream in s.streams or ()]
        spec = Spec(
            kind=s.config.kind,
            name=s.config.name,
            where=s.config.where,
            options=s.config.options,
            epoch=self._store.epoch,
            first_stream=s.first_stream,
            endpoint=endpoint,
            block_ns=self._config.server.block_ns,
            outbox_bytes=min(OUTBOX_BYTES, self._config.server.ring_bytes),
            parent_pid=os.getpid(),
            resume=tuple(Resume(i.stream.number, i.ring.next, i.t_last_ns) for i in intakes),
            priority=s.config.sampler.priority,
            lock_memory=s.config.sampler.lock_memory,
        )
        s.began(spawn(spec))

    def _start_again(self, s: Sampler, now_ns: int) -> None:
        try:
            self._start(s)
        except (OSError, zmq.ZMQError) as error:
            # Out of processes or file descriptors, which strangers that connect can bring about: that may pass.
            s.put_off(now_ns)
            self._log.complain(f"the sampler of source {s.config.name!r} cannot be started now: {error}")

    def _close_pull(self, s: Sampler) -> None:
        if s.pull is not None:
            if self._poller is not None and s.pull in self._poller:
                self._poller.unregister(s.pull)
            s.pull.close()
            s.pull = None
