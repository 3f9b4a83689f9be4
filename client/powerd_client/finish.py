"""The recorder's last task: the run file out of the journal."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from powerd_client.job import Job, say

_ALIVE_S = 1.0


def build(job: Job) -> None:
    """Write the run file and say so; meanwhile say now and then that it goes on. Raises `RunFileError`."""
    # numpy and h5py: half a second that the start of a run need not wait for
    from powerd_client.build import build_run
    from powerd_client.wholefile import remove_partials

    done = threading.Event()
    alive = threading.Thread(target=_say_alive, args=(done,), daemon=True)
    alive.start()
    try:
        remove_partials(job.out)
        build_run(job.journal, job.out, overwrite=job.overwrite, progress=lambda share: say(progress=share))
    finally:
        done.set()
        alive.join()
    say(done=True)


def _say_alive(done: threading.Event) -> None:
    while not done.wait(_ALIVE_S):
        say(alive=True)


def is_built(out: Path, run_id: str) -> bool:
    """Whether the run file was written by a worker that died before it could say so."""
    if not out.is_file():
        return False
    import h5py

    try:
        with h5py.File(out, "r") as file:
            return bool(file.attrs.get("run_id") == run_id)
    except OSError:
        return False


def clear_away(job: Job) -> None:
    """Remove what such a worker left beside the run file."""
    from powerd_client.wholefile import remove_partials

    remove_partials(job.out)
    shutil.rmtree(job.journal, ignore_errors=True)
