"""A cap or a clock that is held on the GPUs of all ranks of a job: rank 0 says which level, each rank's own helper
holds its GPUs, and either all of them are held or none.

The ranks speak by the job's own means, the key-value store of `torch.distributed.init_process_group`: rank 0 writes
orders, the others look for them in a thread, and answer. No collective is called, so that no iteration waits for
another rank, and a rank that answers nothing stops no training.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from powerd_client.journals.ranks import rank_here
from powerd_client.knobs.control import ENVIRONMENT, Hold
from powerd_core.errors import ControlError, PowerdError
from powerd_core.lease import Value
from powerd_core.verdict import Verdict

JOIN_S = 60.0
"""How long rank 0 waits for all ranks to say what they could hold."""
_LOOK_S, _MOST_LOOK_S = 0.05, 1.0
_numbers = itertools.count(1)
"""The n-th choice of one rank is the n-th of the others."""

Reach = tuple[list[str], float, float]
"""Devices, and the least and the default level that all of them take."""


class JobStore(Protocol):
    """What `torch.distributed.Store` has of use here; safe in several threads."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool:
        """Whether all of them are there."""


def ranks_may_be_here() -> bool:
    """Whether this process is, or will be, one of several ranks."""
    rank = rank_here()
    return (rank is not None and rank.world_size > 1) or _distributed() is not None


def _distributed() -> Any:
    """`torch.distributed` where the script has begun a process group of several ranks."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed if distributed.get_world_size() > 1 else None


def job_here(make_hold: Callable[[Sequence[str]], Hold], option: str) -> JobHold | None:
    """The hold of this process' job; None where it has no process group of several ranks."""
    distributed = _distributed()
    if distributed is None:
        return None
    store = distributed.distributed_c10d._get_default_store()
    store = distributed.PrefixStore(f"powerd-hold-{next(_numbers)}", store)
    return JobHold(store, distributed.get_rank(), distributed.get_world_size(), make_hold, option)


class JobHold:
    """One rank's part in the hold. To rank 0 it is what `Hold` is to a training that is alone; the others call `offer`,
    and `release` at the end."""

    def __init__(
        self, store: JobStore, rank: int, world_size: int, make_hold: Callable[[Sequence[str]], Hold], option: str
    ) -> None:
        """``make_hold`` is given devices of this rank, ``option`` is such as ``power_cap_w``."""
        self._store, self.rank, self._ranks = store, rank, range(world_size)
        self._make_hold, self._option, self._hold = make_hold, option, make_hold([])
        self._own: dict[int, list[str]] = {}
        """The devices that each rank holds; of a rank that has none, nothing."""
        self._order, self._changed_s = 0, time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="powerd-job-hold", daemon=True)
        self.problem = ""
        """Why nothing is held any more, on any rank."""
        self.is_failure = False
        """Whether the problem is one, and not the end of the training."""

    # ---- all ranks

    def offer(self, find_reach: Callable[[], Reach]) -> None:
        """Say what this rank could hold, or why it cannot. Another rank than 0 then does what that says."""
        rank = rank_here()
        place = f"{socket.gethostname()} {rank.node if rank else 0} {os.environ.get(ENVIRONMENT, '')}"
        offer: dict[str, Any] = {"place": place}
        try:
            offer["reach"] = find_reach()
        except PowerdError as error:
            offer["why"] = str(error)
        self._say(f"offer/{self.rank}", offer)
        self._thread.start()

    def release(self, why: str = "") -> None:
        """The hold of all ends, without a word on the other ranks: this rank's training has ended, or ``why``. Raises
        nothing."""
        self._end(why or f"the training of rank {self.rank} has ended", is_failure=False)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(1.0)

    def _end(self, why: str, *, is_failure: bool) -> None:
        """Let go, and let all others do so."""
        if not self._over.is_set():
            try:
                self._say("end", {"why": why, "is_failure": is_failure})
            except Exception as error:  # noqa: BLE001  (the store is gone, with all ranks)
                why = f"{why} ({type(error).__name__})"
            self._let_go(why, is_failure=is_failure)

    def _let_go(self, why: str, *, is_failure: bool) -> None:
        self.problem, self.is_failure = self.problem or why, is_failure
        self._over.set()
        self._hold.release()

    def _take(self, devices: Sequence[str]) -> None:
        hold = self._hold = self._make_hold(devices).acquire()
        if self._over.is_set():  # meanwhile
            hold.release()

    def _watch(self) -> None:
        """Follow what the others say, to the end; the more rarely, the longer they have said nothing."""
        while not self._over.wait(min(max((time.monotonic() - self._changed_s) / 20, _LOOK_S), _MOST_LOOK_S)):
            try:
                self._look()
            except Exception as error:  # noqa: BLE001  (a store that is gone raises what it likes)
                self._let_go(f"the other ranks cannot be reached: {type(error).__name__}", is_failure=True)

    def _look(self) -> None:
        if self._hold.problem:
            self._end(f"rank {self.rank}: {self._hold.problem}", is_failure=True)
        elif self._store.check(["end"]):
            end = self._told("end")
            self._let_go(str(end["why"]), is_failure=bool(end["is_failure"]))
        elif self.rank and self._store.check([f"order/{self._order + 1}"]):
            self._obey(self._told(f"order/{self._order + 1}"))

    def _obey(self, order: dict[str, Any]) -> None:
        self._order, self._changed_s = self._order + 1, time.monotonic()
        try:
            if self._order > 1:
                if not self._hold.set(**{self._option: order["level"]}):
                    raise ControlError(self._hold.problem or f"{self._option}={order['level']} could not be set")
            elif own := order["devices"].get(str(self.rank)):
                self._take(own)
            else:  # another rank holds them
                self._over.set()
        except PowerdError as error:
            self._end(f"rank {self.rank}: {error}", is_failure=True)
        else:
            self._say(f"done/{self._order}/{self.rank}", {})

    def _say(self, key: str, values: dict[str, Any]) -> None:
        self._store.set(key, json.dumps(values))

    def _told(self, key: str) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(self._store.get(key))
        return values

    # ---- rank 0

    def reach(self) -> Reach | None:
        """What rank 0 holds, and the range that all devices have in common; None as long as ranks are silent. Raises
        `ControlError` for a rank that cannot hold anything, or takes no part."""
        if not self._store.check([f"offer/{rank}" for rank in self._ranks]):
            if time.monotonic() - self._changed_s < JOIN_S:
                return None
            silent = next((rank for rank in self._ranks if not self._store.check([f"offer/{rank}"])), 0)
            raise ControlError(f"rank {silent} takes no part: choose in every rank, with the same arguments")
        taken: set[tuple[str, str]] = set()
        ranges: set[tuple[float, float]] = set()
        for rank in self._ranks:
            offer = self._told(f"offer/{rank}")
            if "why" in offer:
                raise ControlError(f"rank {rank}: {offer['why']}")
            devices, least, default = offer["reach"]
            own = [(offer["place"], device) for device in devices if (offer["place"], device) not in taken]
            taken.update(own)
            ranges.add((least, default))
            if own:
                self._own[rank] = [device for _, device in own]
        if len(ranges) > 1:
            raise ControlError(f"the GPUs of the {len(self._ranks)} ranks have no common range of levels")
        return (self._own[0], *ranges.pop())

    def acquire(self) -> JobHold:
        """Hold the default level: all devices, or none. Whether the others could, `is_set` and `problem` say."""
        self._take(self._own[0])
        self._give({"devices": self._own})
        return self

    def set(self, **levels: Value | int) -> bool:
        """As `Hold.set`: False where this rank's devices do not take it, and then nobody is asked to."""
        if self.problem or not self._hold.set(**levels):
            return False
        self._give({"level": levels[self._option]})
        return True

    def _give(self, order: dict[str, Any]) -> None:
        self._order, self._changed_s = self._order + 1, time.monotonic()
        self._say(f"order/{self._order}", order)

    @property
    def is_set(self) -> bool:
        """Whether every rank has done what was said last."""
        return self._store.check([f"done/{self._order}/{rank}" for rank in self._own if rank])

    @property
    def settle_s(self) -> float:
        return self._hold.settle_s

    @property
    def verdict(self) -> Verdict:
        """That of rank 0's devices, whose window decides."""
        return self._hold.verdict
