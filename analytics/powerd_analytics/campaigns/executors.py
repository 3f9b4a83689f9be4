"""Who runs the runs of a campaign: this machine, or Slurm by submitit (`simulated` has a card that is computed)."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from powerd_analytics.campaigns.design import GPUS, KNOBS, Design, Item
from powerd_analytics.campaigns.guard import discard_of
from powerd_analytics.campaigns.journal import Discard, Result
from powerd_analytics.campaigns.results import result_of
from powerd_analytics.output.text import is_number_cell
from powerd_client.host.log import install_hint
from powerd_client.host.ownership import make_folder, open_own
from powerd_client.record.recording import CAMPAIGN_ENVIRONMENT
from powerd_core.errors import ConfigError, ControlError, PeerError, PowerdError, RunFileError
from powerd_core.lease import KNOB_OF_OPTION, Range, Request
from powerd_core.text import printable

FAILED, OUT_OF_MEMORY, UNMEASURED, NO_WORK = "failed", "out-of-memory", "unmeasured", "no-work"
"""Why a run has no result: its command failed; it needs more memory than there is; there are no joules of it; it had
no iteration, beside runs that had some."""
_OUT_OF_MEMORY = re.compile(
    r"out of (shared )?memory|outofmemory|(can't|cannot|unable to|failed to|could not) allocate|not enough memory"
    r"|bad_alloc|alloc_failed|memoryerror|memoryallocation|resource_?exhausted|oom[ _-]?kill|\boom when\b"
    r"|dataloader worker .* killed by signal: (killed|bus error)|unable to write to file </torch_",
    re.IGNORECASE,
)
"""How CUDA, cuBLAS, cuDNN, HIP, torch (also of the shared memory of its data loaders), XLA, TensorFlow, numpy, Python,
C++ and Slurm say it."""
_AN_ERROR = re.compile(r"(Error|Exception|Interrupt)\b|\b(error|ERROR|fatal|FATAL|Fatal|Killed|Aborted)\b")
_REPEATS_ANOTHER = re.compile(
    r"DataLoader worker .* exited unexpectedly|ChildFailedError|CalledProcessError|srun: error: .*[Ee]xited with"
)
"""An error that tells of another one, which stands before it."""
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
_LEAST_FREE = 8 << 20
"""With fewer bytes left no run can be recorded."""
_OURS = re.compile(
    r"(joules|powerd)\b[^:]{0,30}: |  next: joules |  no phases are marked in it|  of \S+ J in "
    r"|\S+\.h5: .*( W over .* s\b|no device was recorded|: no joules)|\S+ is recorded; its joules: "
)
"""Lines of `joules record` and of the recorder."""
_TAIL = 8192


class Executor(Protocol):
    """Runs one item and says what it took, or why that does not count."""

    def ranges(self) -> Mapping[str, Range]:
        """What the knobs take that can be turned, by option. Raises `PowerdError` where none can be."""

    def run(self, item: Item, attempt: int, file: Path) -> Result | Discard:
        """``file`` is where its run file goes. Raises `PowerdError` for what ends the campaign."""

    def pilot(self, number: int, file: Path) -> float:
        """What one pilot finds. Raises `ConfigError` where it finds nothing."""


@dataclass(frozen=True, slots=True)
class Local:
    """This machine: each run is a `joules record` of its own."""

    design: Design
    url: tuple[str, ...] = ()
    keys: Path | None = None
    lock: int = -1
    """A descriptor that the run inherits: while it lives, though its runner was killed, no other runner begins."""

    def ranges(self) -> Mapping[str, Range]:
        if not any(name in KNOBS for name in self.design.factors):
            return {}
        return knob_ranges(self.design.control.devices)

    def run(self, item: Item, attempt: int, file: Path) -> Result | Discard:
        log = file.with_suffix(".log")
        try:
            process = self._start(item, file, log)
        except OSError as error:
            raise RunFileError(f"{log} cannot be written: {error.strerror}; {_GO_ON}") from error
        return self.outcome(item, _wait(process), file, log)

    def outcome(self, item: Item, status: int, file: Path, log: Path) -> Result | Discard:
        """What a command that has ended is worth. Raises `RunFileError` where the disk was full, and `PeerError` where
        nothing could be recorded: these are no failures of the command."""
        if status < 0:
            status = 128 - status
        if status or not file.is_file():
            _check_disk(file, log)
        if not file.is_file():
            if (said := last_words(log)).startswith(("joules: ", "joules record: ")):
                cause = printable(said.partition(": ")[2])
                raise PeerError(f"the run could not be recorded: {cause}; {_GO_ON}")
            return Discard(UNMEASURED, said)
        if status:
            return failure(status, log)
        try:
            result = result_of(file, self.design, item.cell.levels)
        except PowerdError as error:
            return Discard(UNMEASURED, " ".join(str(error).split()))
        if not (result.energy_j > 0 and result.time_s > 0):
            return Discard(UNMEASURED, f"{result.energy_j:g} J in {result.time_s:g} s")
        return discard_of(result, self.design.guard) or result

    def pilot(self, number: int, file: Path) -> float:
        from powerd_analytics.runs.run import read_run

        of = self.design.pilot
        assert of is not None
        log = file.with_suffix(".log")
        status = _wait(self._started(self.design.pilot_argv(number), os.environ | {}, ["--output", str(file)], log))
        value = read_run(file).result.get(of.result) if not status and file.is_file() else None
        if not is_number_cell(value):
            why = last_words(log) if status or not file.is_file() else f"it says no {of.result}; call meter.result"
            raise ConfigError(f"the pilot failed: {why}")
        return float(value)

    def warm_up(self, item: Item, seconds: float, file: Path) -> None:
        """Run the command for so long; what is recorded of it counts for nothing."""
        process = self._start(item, file, file.with_suffix(".log"))
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            _end(process)

    def _environment(self, item: Item) -> dict[str, str]:
        environment = os.environ | self.design.environment_of(item)
        count = item.cell.levels.get(GPUS)
        if isinstance(count, int):
            visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join((visible or [str(i) for i in range(count)])[:count])
        return environment

    def _start(self, item: Item, file: Path, log: Path) -> subprocess.Popen[bytes]:
        options = ["--output", str(file)]
        knobs = self.design.knobs(item)
        for name, level in knobs.items():
            options += [f"--{KNOB_OF_OPTION[name].replace('_', '-')}", str(level)]
        options += ["--devices", self.design.control.devices] if knobs and self.design.control.devices else []
        environment = self._environment(item) | {CAMPAIGN_ENVIRONMENT: json.dumps(self.design.about(item))}
        return self._started(self.design.argv(item), environment, options, log)

    def _started(
        self, command: Sequence[str], environment: Mapping[str, str], options: Sequence[str], log: Path
    ) -> subprocess.Popen[bytes]:
        record = [sys.executable, "-P", "-m", "powerd_analytics", "record", "--quiet", *options]
        for address in self.url:
            record += ["--url", address]
        record += ["--keys", str(self.keys)] if self.keys else []
        try:
            descriptor = open_own(log, os.O_WRONLY | os.O_EXCL, 0o644)
        except OSError as error:
            raise RunFileError(f"{log} cannot be made: {error.strerror or error}") from error
        with os.fdopen(descriptor, "wb") as out:
            return subprocess.Popen(
                [*record, "--", *command], env=environment, stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
                pass_fds=(self.lock,) if self.lock >= 0 else (),
            )  # fmt: skip


def _wait(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait()
    except BaseException:
        _end(process)
        raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """By SIGTERM, and by SIGKILL after ten seconds."""
    process.terminate()
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


_GO_ON = "`joules campaign resume` goes on from here"


def _check_disk(file: Path, log: Path) -> None:
    """Raises `RunFileError` where a run came to nothing because there was no space: by the words of whoever met it, or
    by the space that is left, as a log on a full disk has no words."""
    ours = (line for line in tail(log).splitlines() if _OURS.match(line))
    words = [*ours, error] if not _OUT_OF_MEMORY.search(error := last_error(log)) else [*ours]
    said = next((line.strip() for line in words if any(text in line for text in _FULL)), "")
    if said or shutil.disk_usage(file.parent).free < _LEAST_FREE:
        raise RunFileError(f"no space is left for the runs: {printable(said, limit=300) or file.parent}; {_GO_ON}")


def last_words(log: Path) -> str:
    """The last line of a log that says something: of the command, where it said anything."""
    lines = [line for line in tail(log).splitlines() if line.strip()]
    own = [line for line in lines if not _OURS.match(line)]
    return (own or lines)[-1].strip()[:300] if lines else ""


def last_error(log: Path) -> str:
    """The last line of the command that tells of an error, or its last one."""
    for line in reversed(tail(log).splitlines()):
        told = _AN_ERROR.search(line) or _OUT_OF_MEMORY.search(line)
        if told and not _OURS.match(line) and not _REPEATS_ANOTHER.search(line):
            return line.strip()[:300]
    return last_words(log)


def tail(log: Path) -> str:
    """The end of a log; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def failure(status: int, log: Path) -> Discard:
    """Why a command ended with a status that is not 0. One that was killed said nothing of that itself: what it said
    before may be of an error that it recovered from."""
    number = status - 128
    error = last_words(log) if number == signal.SIGKILL else last_error(log)
    if _OUT_OF_MEMORY.search(error):
        return Discard(OUT_OF_MEMORY, error)
    how = f"killed (signal {number})" if number in set(signal.Signals) else f"status {status}"
    words = last_words(log)
    return Discard(FAILED, f"{how}: {words}" if words else how)


def knob_ranges(devices: str = "") -> dict[str, Range]:
    """What the control helper says of the knobs, by option. Raises `ControlError` where there is no helper."""
    from powerd_client.knobs.control import connect

    wanted = devices.split(",") if devices else None
    try:
        peer = connect()
    except ControlError as error:
        raise ControlError(f"{error}; without a GPU, --on sim:rtx6000 computes the runs") from error
    try:
        knobs = peer.ask(Request("describe")).knobs
    finally:
        peer.close()
    ranges: dict[str, Range] = {}
    for option in KNOBS:
        mine = [k for k in knobs if k.knob == KNOB_OF_OPTION[option] and (wanted is None or k.device in wanted)]
        usable = [k for k in mine if not k.problem]
        if mine and not usable:
            raise ControlError(f"{option} cannot be set: {mine[0].problem}")
        if usable:
            ranges[option] = usable[0].range
    return ranges


# -- Slurm -------------------------------------------------------------------------------------------------------------


def submit_blocks(design: Design, file: Path, folder: Path, options: Sequence[str]) -> list[str]:
    """Hand each block that is to do to Slurm as a job, which runs ``joules campaign run FILE --block N`` on its node.
    The jobs' numbers. Raises `ConfigError` where submitit is not installed."""
    try:
        import submitit
    except ImportError as error:
        raise ConfigError(f"the executor submitit is not installed: {install_hint('slurm')}") from error
    of = design.executor
    make_folder(folder / "slurm")
    executor = submitit.AutoExecutor(folder=str(folder / "slurm"))
    more = {"slurm_partition": of.partition} if of.partition else {}
    executor.update_parameters(
        name=design.name, timeout_min=of.time_min, gpus_per_node=of.gpus, slurm_exclusive=True,
        slurm_array_parallelism=of.array_parallelism, **more,
    )  # fmt: skip
    commands = [
        [sys.executable, "-P", "-m", "powerd_analytics", "campaign", "run", str(file), "--block", str(block), *options]
        for block in range(design.repeats.max)
    ]
    jobs = executor.map_array(subprocess.check_call, commands)
    return [str(job.job_id) for job in jobs]
