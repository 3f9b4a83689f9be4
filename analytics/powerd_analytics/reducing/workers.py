"""Processes of this machine that reduce run files, each one file at a time, so that a death names its file."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from pickle import PicklingError
from typing import Any

from powerd_analytics.energy.devices import Progress
from powerd_analytics.reducing.reduce import Reduced, Reducer, naming, progress_text, reduced
from powerd_core.errors import AnalysisError, ConfigError

_READY = "ready"


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    connection: Connection
    at: int | None = None
    """Number of the file that it reads; None before it said that it is ready."""


def on_workers(paths: Sequence[Path], function: Reducer[Any], count: int, progress: Progress) -> list[Reduced[Any]]:
    """Results in the order of ``paths``. However this ends, the processes have ended."""
    found: dict[int, Reduced[Any]] = {}
    todo, again = deque(range(len(paths))), set[int]()
    busy: list[_Worker] = []
    idle: list[_Worker] = []
    try:
        for _ in range(count):
            _start(busy, function)
        while len(found) < len(paths):
            progress(len(found) / len(paths), progress_text(len(found), len(paths)))
            for ready in wait([w.connection for w in busy], timeout=1.0):
                worker = next(w for w in busy if w.connection is ready)
                answer = _answer(worker)
                if isinstance(answer, Reduced):
                    found[_number(worker)] = answer
                elif answer is None and _number(worker) not in again:
                    # Once more: it may have died for want of memory while others read large files as well.
                    again.add(_number(worker))
                    todo.append(_number(worker))
                elif answer is None:
                    path = paths[_number(worker)]
                    found[_number(worker)] = Reduced(path, None, naming(path, _death(worker.process.exitcode)))
                if answer is None:
                    busy.remove(worker)
                    _end([worker])
                    if todo:
                        _start(busy, function)
                elif not _give(worker, paths, todo):
                    busy.remove(worker)
                    idle.append(worker)
            if todo and not busy:
                busy.append(idle.pop())
                _give(busy[-1], paths, todo)
    finally:
        _end([*busy, *idle])
    return [found[i] for i in range(len(paths))]


def _start(workers: list[_Worker], function: Reducer[Any]) -> None:
    # Spawned, not forked: HDF5 and numerical libraries hold locks and threads that a fork would copy in any state.
    context = multiprocessing.get_context("spawn")
    with _interrupts_held():
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, function), daemon=True)
        try:
            process.start()
        except (PicklingError, AttributeError, TypeError) as error:
            ours.close()
            raise ConfigError(
                f"{getattr(function, '__qualname__', function)} cannot be sent to another process ({error}): "
                "give a function of a module, or one job"
            ) from error
        finally:
            theirs.close()
        workers.append(_Worker(process, ours))


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started here never see Ctrl-C, which goes to the whole group: the parent, which does, ends them.

    For them the signal is blocked. That is not enough for the parent, which it must not stop in the middle of a start:
    threads of libraries may take the signal, and Python then raises in the main thread.
    """
    resource_tracker.ensure_running()  # else the first start does, and lets interrupts through again
    came: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, frame: came.append(number)) if is_main else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if is_main:
            signal.signal(signal.SIGINT, handler if handler is not None else signal.SIG_DFL)
    if came and callable(handler):
        handler(came[0], None)


def _number(worker: _Worker) -> int:
    assert worker.at is not None, "a process answers for a file before it got one"
    return worker.at


def _answer(worker: _Worker) -> Reduced[Any] | str | None:
    """A result, or a text where it only said that it is ready; None of one that died over its file."""
    try:
        answer: Reduced[Any] | str = worker.connection.recv()
    except (EOFError, OSError):
        worker.process.join()
        if worker.at is None:
            raise AnalysisError(
                "a process for the work could not be started (what it said is above); a script that reduces runs does "
                'so below `if __name__ == "__main__":`, or with one job'
            ) from None
        return None
    return answer


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        memory = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"the process that read it was killed by {name}{memory}"
    return f"the process that read it ended with status {code}"


def _give(worker: _Worker, paths: Sequence[Path], todo: deque[int]) -> bool:
    """Send it the next file; False where there is none."""
    if not todo:
        return False
    worker.at = todo.popleft()
    # A process that died meanwhile is found by its closed pipe.
    with contextlib.suppress(OSError):
        worker.connection.send(paths[worker.at])
    return True


def _end(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.connection.close()
        worker.process.kill()  # it only reads
    for worker in workers:
        worker.process.join()
        worker.process.close()


def _work(connection: Connection, function: Reducer[Any]) -> None:
    """What a process does: results for paths, until the parent has gone."""
    with contextlib.suppress(EOFError, OSError):
        connection.send(_READY)
        while True:
            path = connection.recv()
            result = reduced(function, path)
            try:
                connection.send(result)
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - a value that cannot be sent is this file's error
                text = f"its result cannot be sent between processes: {error}"
                connection.send(Reduced(path, None, naming(path, text)))
