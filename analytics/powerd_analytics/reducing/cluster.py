"""Run files reduced by the workers of a Dask cluster that is already there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from powerd_analytics.energy.devices import Progress
from powerd_analytics.reducing.reduce import Reduced, Reducer, naming, progress_text, reduced
from powerd_core.errors import ConfigError, PeerError, PeerTimeout

ANSWER_S = 5.0
"""How long a scheduler may take to answer."""


def on_cluster(paths: Sequence[Path], function: Reducer[Any], scheduler: str, progress: Progress) -> list[Reduced[Any]]:
    """Results in the order of ``paths``, a task a file. Raises as `reduce_runs`."""
    with _client(scheduler, ANSWER_S) as client:
        distributed = _distributed()
        _check(client, scheduler)
        progress(0.0, progress_text(0, len(paths)))
        # Not pure: a file under a known name may hold something else than before.
        futures = client.map(reduced, [function] * len(paths), paths, pure=False, key="powerd-reduce")
        try:
            for done, future in enumerate(distributed.as_completed(futures, loop=client.loop), 1):
                if future.status == "cancelled" or client.status not in ("running", "connecting"):
                    raise PeerError(f"the Dask cluster at {scheduler} went away after {done - 1} of {len(paths)} files")
                progress(done / len(paths), progress_text(done, len(paths)))
            found = [_result(path, future) for path, future in zip(paths, futures, strict=True)]
        finally:
            client.cancel(futures)
    if found and all(f.error and "No module named" in f.error for f in found):
        raise PeerError(f"{scheduler}: its workers lack what is needed: {found[0].error}; install powerd there as here")
    return found


def _distributed() -> Any:
    try:
        return import_module("distributed")
    except ImportError as error:
        raise ConfigError("a Dask cluster needs its client here: pip install 'powerd[campaign]'") from error


@contextmanager
def _client(scheduler: str, answer_s: float) -> Iterator[Any]:
    distributed = _distributed()
    _ask_who(scheduler, answer_s)
    with distributed.Client(scheduler, timeout=answer_s, set_as_default=False) as client:
        yield client


def _ask_who(scheduler: str, answer_s: float) -> None:
    """Raises where no scheduler is. Asked before a client is made: one that finds none takes half a minute to go."""
    if scheduler.startswith("inproc://"):
        return  # of this process: it is there

    async def ask() -> Any:
        async with _distributed().rpc(scheduler, timeout=answer_s) as peer:
            return await asyncio.wait_for(peer.identity(), answer_s)

    try:
        # In a thread of its own: the caller may have a loop that runs, as notebooks do.
        with ThreadPoolExecutor(1) as thread:
            who = thread.submit(asyncio.run, ask()).result()
    except ValueError as error:
        raise ConfigError(f"{scheduler} is no address of a Dask scheduler, as tcp://host:8786 is ({error})") from error
    except TimeoutError as error:
        raise PeerTimeout(f"no Dask scheduler answers at {scheduler} within {answer_s:g} s: is it running?") from error
    except OSError as error:
        raise PeerError(f"no Dask scheduler answers at {scheduler}: {error}") from error
    if who.get("type") != "Scheduler":
        raise ConfigError(f"{scheduler} is a Dask {str(who.get('type')).lower()}: give the address of its scheduler")


def _check(client: Any, scheduler: str) -> None:
    if not client.scheduler_info().get("workers"):
        raise PeerError(f"the Dask cluster at {scheduler} has no workers: start some with `dask worker {scheduler}`")


def _result(path: Path, future: Any) -> Reduced[Any]:
    error = future.exception()
    if error is None:
        result: Reduced[Any] = future.result()
        return result
    said = str(error) or type(error).__name__
    if type(error).__name__ == "KilledWorker":
        said = "the workers that read it were killed (out of memory?)"
    return Reduced(path, None, naming(path, said))
