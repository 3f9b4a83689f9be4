"""Which recording a process marks its phases in, and what of it is its own.

It began the recording itself; or it is a rank beside the one that did; or `joules record` began it around the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from powerd_client.journal import joined_journal, run_of
from powerd_client.ranks import rank_here
from powerd_client.recording import Recording
from powerd_client.together import Together


@dataclass(frozen=True, slots=True)
class Membership:
    """A process in a recording."""

    out: Path
    """The run file to be."""
    journal: Path
    recording: Recording | None = None
    """What this process began, and has to end."""
    together: Together | None = None
    """The ranks that share it."""
    about: Mapping[str, object] = field(default_factory=dict)
    """What the run says of the process."""

    @property
    def speaks(self) -> bool:
        """Whether this process says what every rank could say."""
        return self.together is None or self.together.is_first

    def abandon(self) -> None:
        """End what this process began, as if it had never been."""
        if self.recording is not None:
            self.recording.abandon()


def take_part(
    out: Path,
    urls: list[str],
    *,
    overwrite: bool,
    keys: str | os.PathLike[str] | None,
    end_earlier: Callable[[], None],
) -> Membership:
    """Join the recording that is meant for this process, or begin one. ``end_earlier`` is called before one of its own.

    Raises what `Recording` and `Together.join` do, and `ConfigError` for ranks that cannot be.
    """
    rank, joined = rank_here(), joined_journal()
    about = rank.about if rank is not None else {}
    if joined is not None:
        return Membership(run_of(joined), joined, about=about)
    if rank is None:
        end_earlier()
        recording = Recording(out, urls, overwrite=overwrite, trainer_pid=os.getpid(), keys=keys)
        return Membership(out, recording.journal, recording)
    together = Together(out, rank)
    if not together.is_first:
        together.join(overwrite=overwrite)
        return Membership(together.out, together.journal, None, together, about)
    # A model of CPU time that follows one rank would know nothing of the others.
    pid = None if rank.local_world_size > 1 else os.getpid()
    recording = Recording(together.out, urls, overwrite=overwrite, trainer_pid=pid, keys=keys, together=together)
    return Membership(together.out, together.journal, recording, together, about)
