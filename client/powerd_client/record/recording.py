"""A recording as the processes see it that take part in it: from its start to the run file.

`Recording` owns one recorder (`powerd_client.record.recorder`) and its journal. `take_part` says which recording a
training process marks its phases in: one that it begins itself; that of the rank beside it; or the one that `joules
record`, here `record_command`, began around it.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import json
import os
import platform
import re
import secrets
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from powerd_client.energies.phase import Attribute, check_seconds, mark_baseline, mark_whole
from powerd_client.host.hostclock import now_ns
from powerd_client.host.job_identity import SET
from powerd_client.host.local_powerd import Attempts, manner_of_death
from powerd_client.host.log import is_terminal, last_line, show, shown_path, tell
from powerd_client.host.readiness import is_readable
from powerd_client.journals import journal as journals
from powerd_client.journals.journal import ONE_THREAD, OPTIMISE_ENVIRONMENT, RUN_ENVIRONMENT, joined_journal, run_of
from powerd_client.journals.marks import MarkWriter
from powerd_client.journals.ranks import Rendezvous, rank_here
from powerd_core.errors import ConfigError, PeerError, PeerTimeout, PowerdError
from powerd_core.keys import control_url

if TYPE_CHECKING:
    from powerd_client.knobs.control import Hold

_START_TIMEOUT_S, _LOCAL_TIMEOUT_S = 30.0, 330.0
"""So long a recorder may take to begin; with a powerd of its own, which a full machine starts slowly."""
_SLOW_S = 15.0
"""After so long at the beginning the user is told what is waited for."""
_END_S = 3.0
"""So long a recorder that is abandoned may take to end by itself, and then by SIGTERM."""
_WAITS_S = 10.0
"""After so long at the end the user is told what is waited for."""
_GIVE_UP_S = 60.0
"""So long a recorder may be silent at the end."""
_RESULT_S = 60.0
"""So long the result of a run may take, however busy the machine is."""
_MUTE_S = 1.0
"""After so long at the end the user is shown what is done."""
_QUIET_ENVIRONMENT = "POWERD_QUIET"
"""Environment variable that keeps the results of recordings from being printed."""
CAMPAIGN_ENVIRONMENT = "POWERD_CAMPAIGN"
"""Environment variable by which `joules record` hears which run of a campaign it makes: a JSON object, which becomes
the event `CAMPAIGN` of the run."""
CAMPAIGN = "campaign"
_PR_SET_PDEATHSIG = 1
_TERM_S = 10.0
"""So long a command may take to end by SIGTERM."""


def release() -> str:
    """The installed version of powerd, or ``unknown`` for a copy of the sources that was never installed."""
    from importlib.metadata import PackageNotFoundError, version  # takes longer than to open a run

    try:
        return version("powerd")
    except PackageNotFoundError:
        return "unknown"


def environment(command: Sequence[str] = ()) -> dict[str, str]:
    """What a run's figures depend on, as far as it can be told without importing anything that is not imported yet, and
    without running anything. ``command`` is the training's, by default this process's."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {"host": platform.node(), "python": platform.python_version(), "system": platform.platform()}
    versions |= machine()
    if commit := git_commit(training_folder(command or sys.argv)):
        versions["git_commit"] = commit
    for name in ("torch", "numpy", "pyzmq"):
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def machine(root: Path = Path("/")) -> dict[str, str]:
    """The processor, its logical cores and the memory of this machine, as Linux tells them (proc(5)); what it does not
    tell is left out."""
    found: dict[str, str] = {}
    for name, file, key in (("processor", "proc/cpuinfo", "model name"), ("memory", "proc/meminfo", "MemTotal")):
        with contextlib.suppress(OSError):
            lines = (line.partition(":") for line in (root / file).read_text(errors="replace").splitlines())
            found |= {name: next((value.strip() for before, _, value in lines if before.strip() == key), "")}
    kib, _, unit = found.get("memory", "").partition(" ")
    found["memory"] = f"{int(kib) / (1 << 20):.4g} GiB" if kib.isdigit() and unit == "kB" else ""
    found["cores"] = str(os.cpu_count() or "")
    return {name: text for name, text in found.items() if text}


def training_folder(command: Sequence[str]) -> Path:
    """Where the training's program lies, by the first file that its command names; else where this process works."""
    scripts = (Path(word) for word in command if word.endswith(".py"))
    with contextlib.suppress(OSError):
        return next((script.absolute().parent for script in scripts if script.is_file()), Path.cwd())
    return Path()


def git_commit(folder: Path) -> str | None:
    """The commit that is checked out in or above a folder; None where there is none. Git's files are read
    (gitrepository-layout(5)): git itself would run what a repository configures."""
    try:
        place = next((place for parent in (folder, *folder.parents) if (place := parent / ".git").exists()), None)
        if place is None:
            return None
        if place.is_file():  # of a worktree or a submodule
            place = place.parent / _small(place).removeprefix("gitdir:").strip()
        head = _small(place / "HEAD")
        name = head.removeprefix("ref:").strip()
        if head != name:
            common = place / "commondir"
            shared = place / _small(common) if common.is_file() else place
            refs = (file / name for file in (place, shared))
            head = next((_small(file) for file in refs if file.is_file()), "") or _packed(shared, name)
        return head if re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", head) else None
    except (OSError, ValueError):
        return None


def _packed(folder: Path, name: str) -> str:
    lines = (folder / "packed-refs").read_text(errors="replace").splitlines()
    return next((line.partition(" ")[0] for line in lines if line.partition(" ")[2] == name), "")


def _small(path: Path) -> str:
    with path.open(errors="replace") as file:
        return file.read(4096).strip()


class Recording:
    """Owns one recorder process and its journal directory, from start to run file.

    The child of this process is the recorder's guardian; what is heard comes from its worker. Both inherit the
    journal's lock, which is held here too, so that nobody takes the journal while both are dead. A thread then starts
    them again; until then it sleeps.
    """

    def __init__(
        self,
        out: Path,
        url: str | Sequence[str] | None,
        *,
        overwrite: bool = False,
        is_numbered: bool = False,
        source: dict[str, object] | None = None,
        trainer_pid: int | None = None,
        command: list[str] | None = None,
        keys: str | os.PathLike[str] | None = None,
        rendezvous: Rendezvous | None = None,
        quiet: bool = True,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> None:
        """Start the recorder and wait until readings flow. A local model of CPU time follows ``trainer_pid``, or the
        machine. Other ranks join it by ``rendezvous``. With ``is_numbered`` the run file is the first of RUN.h5,
        RUN-2.h5, ... that is free. Unless ``quiet``, its result is printed at the end, also when this process is
        killed.

        Raises `ConfigError` for what is no address, `RunFileError` when the run file is in the way, `PeerError` when
        there is no powerd to listen to.
        """
        urls = [control_url(text) for text in ([url] if isinstance(url, str) else url or ())]
        self.overwrite = overwrite
        self.warnings: list[str] = []
        """What is yet to be told when the run closes."""
        self.pid = 0
        """Process id of the recorder's worker, as far as it was heard of; see `listen`."""
        self.guardian_pid = 0
        self._unfinished_line = b""
        self._process: subprocess.Popen[bytes] | None = None
        """None where it is dead and is not started any more."""
        self._status = 0
        self._attempts = Attempts()
        self._is_ending = False
        self._mutex = threading.Lock()
        """Held by whoever starts a recorder or ends the recording."""
        self.out = out.absolute()
        if is_numbered and not overwrite:
            self.out, self.journal, self._lock = journals.claim_next(self.out)
        else:
            self.journal, self._lock = journals.claim(self.out, overwrite=overwrite)
        _recordings.add(self)
        self._is_quiet = quiet or bool(os.environ.get(_QUIET_ENVIRONMENT))
        self._own_environment = {journals.KEYS_ENVIRONMENT: os.fspath(Path(keys).absolute())} if keys else {}
        self._job = {
            "out": str(self.out),
            "journal": str(self.journal),
            "urls": urls,
            "parent_pid": os.getpid(),
            "trainer_pid": trainer_pid,
            "overwrite": overwrite,
            "source": source,
            "quiet": self._is_quiet,
            "message": {
                "run_id": secrets.token_hex(8),
                "created_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "powerd_version": release(),
                "command": command or sys.argv,
                "environment": environment(command or ()) | ({SET: dict(attributes)} if attributes else {}),
            },
        }
        try:
            if rendezvous is not None:
                rendezvous.use(self.out)
                rendezvous.announce(ready=False)
            self._start()
            self._await_ready()
            if rendezvous is not None:
                rendezvous.announce(ready=True)
            threading.Thread(target=self._watch, name="powerd recording", daemon=True).start()
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError) and not isinstance(error, PowerdError):
                raise PeerError(f"the recorder cannot be started: {error.strerror or error}") from error
            raise

    def _start(self, death: str | None = None) -> None:
        """Start a recorder: the first, or the next one after a ``death``. Raises `OSError`."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "powerd_client.record.recorder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | self._own_environment | ONE_THREAD,
            start_new_session=True,  # Ctrl-C is for the training; the recorder then ends in order
            pass_fds=(self._lock,),
        )
        self.guardian_pid = self._process.pid
        self._write(self._job | {"death": death})

    def _watch(self) -> None:
        """Start the recorder again whenever it has died."""
        while True:
            with self._mutex:
                if self._is_ending or self._process is None or self._process.stdout is None:
                    return
                ended = select.poll()
                ended.register(self._process.stdout, 0)  # only that nobody holds the other end
            ended.poll()
            with self._mutex:
                if self._is_ending or not self._start_again():
                    return

    def _start_again(self) -> bool:
        """Start another recorder in the place of one that was killed, guardian and worker. Whether that could be done;
        the user is told, and the run says it too.
        """
        assert self._process is not None
        while (messages := self.listen()) is not None:
            self.warnings += [message["error"] for message in messages if "error" in message]
        self._status = self._process.wait()
        self._close_pipes()
        self._process, self._unfinished_line = None, b""
        if self._status >= 0:
            return False  # it gave up, and has said why
        death = f"{manner_of_death(self._status)} with its guardian"
        pause = self._attempts.pause(time.monotonic())
        if pause is None:
            failure = "again and again, and is not started any more"
        else:
            time.sleep(pause)
            try:
                self._start(death)
            except OSError as error:
                failure = f"and cannot be started again: {error.strerror}"
            else:
                tell(f"the recorder {death} and is started again; powerd holds the readings meanwhile")
                return True
        text = f"the recorder {death} {failure}; nothing more is recorded"
        tell(text)
        self._note(text)
        return False

    def _note(self, text: str) -> None:
        """A message in the run of a recorder that is dead."""
        from powerd_client.journals.journal_writer import (  # zmq, which a training does not need
            JournalWriter,
            read_past,
        )

        with contextlib.suppress(PowerdError, OSError):
            journal = JournalWriter(self.journal, read_past(self.journal))
            journal.note(text)
            journal.flush()
            journal.close()

    def _write(self, *documents: dict[str, Any]) -> None:
        """JSON objects on its standard input, one a line. One that died hears nothing; to listen will tell."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(b"".join(json.dumps(document).encode() + b"\n" for document in documents))
            self._process.stdin.flush()

    def listen(self, timeout_s: float = 0.0) -> list[dict[str, Any]] | None:
        """What the recorder said within the time, None when it has said its last; warnings and process ids are noted"""
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        if not is_readable(descriptor, timeout_s):
            return []
        data = os.read(descriptor, 65536)
        if not data:
            return None
        *lines, self._unfinished_line = (self._unfinished_line + data).split(b"\n")
        messages: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for message in messages:
            self.pid = message.get("pid", self.pid)
            if "warning" in message:
                self.warnings.append(message["warning"])
        return messages

    def _await_ready(self) -> None:
        begun_s, log = time.monotonic(), self.journal / "recorder.log"
        most_s = _START_TIMEOUT_S if self._job["urls"] else _LOCAL_TIMEOUT_S
        is_told = False
        while (waited_s := time.monotonic() - begun_s) < most_s:
            if waited_s >= _SLOW_S and not is_told:
                is_told = True
                tell(f"waiting for the recorder (process {self.guardian_pid}) to begin: this machine is slow")
            messages = self.listen((most_s if is_told else _SLOW_S) - waited_s)
            if messages is None:
                raise PeerError(self._early_death(log))
            for message in messages:
                if "error" in message:
                    raise PeerError(message["error"])
                if "ready" in message:
                    return
        raise PeerTimeout(f"the recorder was not ready within {most_s:g} s: {last_line(log)}")

    def _early_death(self, log: Path) -> str:
        """How a recorder ended whose pipe was closed before it was ready."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._process.wait(_END_S)
            if status < 0:
                manner = manner_of_death(status)
                return f"the recorder (process {self._process.pid}) {manner} before it began: nothing is recorded"
        return f"the recorder ended before it began: {last_line(log)}"

    def abandon(self) -> None:
        """Stop the recorder at once and remove the journal: a recording that never began."""
        with self._mutex:
            self._is_ending = True
        if (process := self._process) is not None:
            self._write({"abandon": True})
            for stop in (process.terminate, process.kill):
                try:
                    process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    stop()
            process.wait()
            with contextlib.suppress(OSError):  # its worker does not outlive it
                os.killpg(process.pid, signal.SIGKILL)
            self._close_pipes()
        if journals.is_lock_of(self.journal, self._lock):  # else its worker has removed it
            journals.remove(self.journal)
        self._let_go()

    def _let_go(self) -> None:
        """Give the journal's lock back. Again does nothing."""
        descriptor, self._lock = self._lock, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout) if self._process is not None else ():
            with contextlib.suppress(OSError):  # what could not be flushed is for nobody
                if pipe is not None:
                    pipe.close()

    def finish(self, stop_ns: int, failure: str | None = None, *, told: bool = False) -> bool:
        """End the recording at ``stop_ns`` (host clock) and wait for the run file; problems go to stderr, one line
        each. ``failure`` is noted in the run, and printed unless it was ``told``. Whether the run file is there.

        A recorder that dies meanwhile is started again; where that cannot be, the run file is built here from its
        journal. A recorder that does not answer for a minute is left alone with the journal. Raises nothing but
        `KeyboardInterrupt`.
        """
        with self._mutex:
            self._is_ending = True
        closing = None if self._is_quiet else Closing(self.out)
        last_words: list[dict[str, Any]] = [*([{"note": failure}] if failure else []), {"stop_ns": stop_ns}]
        if failure and not told:
            self.warnings.append(failure)
        try:
            outcome = self._await_end(last_words, closing)
            if outcome == "dead":
                outcome = "done" if self._build() else "failed"
            if outcome == "done" and closing is not None:
                closing.ask()  # while a local powerd ends
            if outcome == "silent":
                self.warnings.append(
                    f"the recorder (process {self.pid}) has not answered for {_GIVE_UP_S:g} s: the run stays in "
                    f"{self.journal}; when that process has ended: joules journal recover {self.out}"
                )
            elif self._process is not None:
                self._process.wait()
        except KeyboardInterrupt:
            if closing is not None:
                closing.end()
            tell(f"the recorder (process {self.pid}) goes on by itself, and writes {self.out}")
            raise
        except Exception as error:  # noqa: BLE001  (whatever a library threw: the training goes on)
            outcome = "failed"
            self.warnings.append(
                f"the end of the run failed ({type(error).__name__}: {error}): see whether {self.out} is there, "
                f"else: joules journal recover {self.out}"
            )
        finally:
            self._close_pipes()
            self._let_go()
        for text in dict.fromkeys(self.warnings):
            tell(text)
        if closing is not None:
            show("\n".join(closing.result())) if outcome == "done" else closing.end()
        return outcome == "done"

    def _await_end(
        self, last_words: list[dict[str, Any]], closing: Closing | None
    ) -> Literal["done", "failed", "dead", "silent"]:
        """How it ended, or that it neither ends nor says anything."""
        started = heard = time.monotonic()
        is_told = False
        if self._process is None:
            return "dead"
        self._write(*last_words)
        while True:
            messages = self.listen(0.2)
            now = time.monotonic()
            if messages is None:
                if not journals.is_lock_of(self.journal, self._lock):
                    return "done"  # it was killed behind its last deed
                if not self._start_again():
                    return "dead"
                self._write(*last_words)
                heard = now
                continue
            if closing is not None:
                closing.show()
            for message in messages:
                heard = now
                if "restarted" in message:
                    self._write(*last_words)  # its predecessor may have taken them with it
                if "error" in message:
                    self.warnings.append(message["error"])
                    return "failed"
                if "done" in message:
                    return "done"
            if now - heard > _GIVE_UP_S:
                return "silent"
            if now - started > _WAITS_S and not is_told:
                is_told = True
                tell(f"waiting for the recorder (process {self.pid}), which writes {self.out.name}")

    def _build(self) -> bool:
        """The recorder's work, from what it left. Whether it could be done."""
        from powerd_client.runs.build import build_run
        from powerd_client.runs.recover import incomplete

        try:
            journals.remove_partials(self.out)
            if missing := build_run(self.journal, self.out, overwrite=self.overwrite):
                self.warnings.append(incomplete(self.out, missing))
        except (PowerdError, OSError) as error:
            self.warnings.append(f"the recorder died, and {error}")
            return False
        self.warnings.append(f"the recorder died (status {self._status}); what it had is in {self.out}")
        return True


class Closing:
    """What a user sees of a recording's end: a line after a second, and the result.

    The result comes from a process of its own (`powerd_client.energies.live_energy`), which starts here, so that it
    imports what it needs while the recorder writes the run file.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._begun_s = time.monotonic()
        self._is_shown = False
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: the interpreter is ending
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "powerd_client.energies.live_energy"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | ONE_THREAD,
                start_new_session=True,
            )

    def show(self) -> None:
        """Say once what is being done, when that has taken a second and somebody may be looking."""
        if not self._is_shown and time.monotonic() - self._begun_s > _MUTE_S and is_terminal():
            self._is_shown = True
            show(f"powerd: writing {shown_path(self._out)} and working out its joules")

    def ask(self) -> None:
        """Have the result worked out: the run file stands."""
        if self._process is not None and (pipe := self._process.stdin) is not None:
            self._process.stdin = None
            with contextlib.suppress(OSError), pipe:
                pipe.write(f"{self._out}\n".encode())

    def result(self) -> list[str]:
        """The result of the run file, which stands: its joules, or where to get them."""
        path = shown_path(self._out)
        lines = [f"{path} is recorded; its joules: joules tables {shlex.quote(path)}"]
        try:
            with contextlib.suppress(Exception):  # the training goes on
                lines = self._result() or lines
        finally:
            self.end()
        return lines

    def _result(self) -> list[str]:
        """What its process answers within the time; nothing where it does not."""
        if self._process is None:
            return []
        self.ask()
        try:
            output = self._process.communicate(timeout=_MUTE_S)[0]
        except subprocess.TimeoutExpired:
            self.show()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=_RESULT_S)
            self._process.kill()
            output = self._process.communicate()[0]
        return [str(line) for line in json.loads(output)] if output else []

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            with self._process as process:
                process.kill()


_recordings: weakref.WeakSet[Recording] = weakref.WeakSet()


def _let_go_all() -> None:
    """A forked child (a data loader's worker) may outlive the run, and owns nothing of it."""
    for recording in list(_recordings):
        recording._let_go()


os.register_at_fork(after_in_child=_let_go_all)


@dataclass(frozen=True, slots=True)
class Membership:
    """A process in a recording."""

    out: Path
    """The run file to be."""
    journal: Path
    recording: Recording | None = None
    """What this process began, and has to end."""
    rendezvous: Rendezvous | None = None
    """The ranks that share it."""
    about: Mapping[str, object] = field(default_factory=dict)
    """What the run says of the process."""

    @property
    def speaks(self) -> bool:
        """Whether this process says what every rank could say."""
        return self.rendezvous is None or self.rendezvous.is_first

    def abandon(self) -> None:
        """End what this process began, as if it had never been."""
        if self.recording is not None:
            self.recording.abandon()


def take_part(
    out: Path,
    url: str | Sequence[str] | None,
    *,
    overwrite: bool,
    is_numbered: bool,
    keys: str | os.PathLike[str] | None,
    quiet: bool,
    end_earlier: Callable[[], None],
    attributes: Mapping[str, Attribute] | None = None,
) -> Membership:
    """Join the recording that is meant for this process, or begin one. ``end_earlier`` is called before one of its own.

    Raises what `Recording` and `Rendezvous.join` do, and `ConfigError` for ranks that cannot be.
    """
    rank, joined = rank_here(), joined_journal()
    begin = partial(
        Recording, url=url, overwrite=overwrite, is_numbered=is_numbered, keys=keys, quiet=quiet, attributes=attributes
    )
    about = rank.about if rank is not None else {}
    if joined is not None:
        return Membership(run_of(joined), joined, about=about)
    if rank is None:
        end_earlier()
        recording = begin(out, trainer_pid=os.getpid())
        return Membership(out.with_name(recording.out.name), recording.journal, recording)
    rendezvous = Rendezvous(out, rank, is_numbered=is_numbered and not overwrite)
    if not rendezvous.is_first:
        rendezvous.join(overwrite=overwrite)
        return Membership(rendezvous.out, rendezvous.journal, None, rendezvous, about)
    # A model of CPU time that follows one rank would know nothing of the others.
    pid = None if rank.local_world_size > 1 else os.getpid()
    recording = begin(rendezvous.out, trainer_pid=pid, rendezvous=rendezvous)
    return Membership(rendezvous.out, rendezvous.journal, recording, rendezvous, about)


class Supervise(Protocol):
    """Who looks after a command that is recorded."""

    def watch(self, process: subprocess.Popen[bytes], journal: Path) -> int:
        """Until the command has ended; its status, as `subprocess` tells it."""

    def conclude(self) -> None:
        """The command has ended, and the recording can still be asked about it."""


def record_command(
    command: Sequence[str],
    *,
    url: str | Sequence[str] | None,
    out: Path | None,
    overwrite: bool,
    quiet: bool,
    keys: Path | None = None,
    baseline_s: float | None = None,
    hold: Hold | None = None,
    supervise: Supervise | None = None,
    optimise: Mapping[str, object] | None = None,
    attributes: Mapping[str, Attribute] | None = None,
) -> int:
    """Run ``command`` under a recording and return its exit status (128 + n for signal n, as a shell does). Without
    ``out`` the run file is the first of run.h5, run-2.h5, ... that is free.

    A script in it that makes a `Meter` adds its phases. Ctrl-C goes to the command, and SIGTERM and SIGHUP are handed
    on to it; the recording ends when it ends. With ``baseline_s`` idle power is measured before and after it; Ctrl-C
    before the command ends everything and leaves no run, after it only the measurement. ``hold`` is what is held while
    the command runs. With ``supervise`` the command is a process group of its own that does not outlive this process,
    and has nothing on its standard input. With ``optimise``, arguments of `Meter.optimise_power`, a watched training in
    it chooses its power cap. ``attributes`` are what else the run shall say of itself. A command that went well has
    status 1 where there is no run file, or not all of its journal is in it. Raises `ControlError` where the hold cannot
    be had, `ConfigError` for a command that cannot be started, and what `Recording` raises.
    """
    if baseline_s is not None:
        check_seconds(baseline_s)
    recording = Recording(
        out or Path("run.h5"),
        url,
        overwrite=overwrite,
        is_numbered=out is None,
        command=list(command),
        keys=keys,
        quiet=quiet,
        attributes=attributes,
    )
    try:
        _note_campaign(recording)
        _measure_baseline(recording, baseline_s)
        with _held(hold, recording):
            own = {} if optimise is None else {OPTIMISE_ENVIRONMENT: json.dumps(optimise)}
            status, end_ns = _run_recorded(command, recording, supervise, own)
    except (KeyboardInterrupt, PowerdError):
        recording.abandon()
        raise
    with contextlib.suppress(KeyboardInterrupt):
        _measure_baseline(recording, baseline_s)
    if baseline_s is not None:
        end_ns = now_ns()
    is_whole = recording.finish(end_ns) and not recording.journal.exists()
    if optimise is not None and is_whole and not _has_chosen(recording.out):
        how = 'it has to call meter.watch(model, optimizer), or to mark each step with meter.phase("iteration")'
        tell(f"no power cap was chosen: the command watches no training; {how}")
    return 128 - status if status < 0 else status or int(not is_whole)


def _has_chosen(out: Path) -> bool:
    """Whether a run says anything of a choice."""
    from powerd_client.knobs.power_choice import POWER_CHOICE
    from powerd_client.runs.recover import open_run

    with open_run(out) as file:
        return "events" in file and POWER_CHOICE in file["events/name"].asstr()[:]


def _note_campaign(recording: Recording) -> None:
    """Put into the run which one of a campaign it is. Raises `ConfigError` for what is no JSON object."""
    text = os.environ.get(CAMPAIGN_ENVIRONMENT)
    if not text:
        return
    # No run goes on unseen when the campaign's runner is gone, however it went.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise ConfigError(f"${CAMPAIGN_ENVIRONMENT} is no JSON object: it is for `joules campaign` to set")
    writer = MarkWriter(recording.journal)
    try:
        writer.event(CAMPAIGN, values)
    finally:
        writer.close()


@contextlib.contextmanager
def _held(hold: Hold | None, recording: Recording) -> Iterator[None]:
    """Hold for the time of the command, and put into the run what happens to it. Raises `ControlError`."""
    if hold is None:
        yield
        return
    writer = MarkWriter(recording.journal)
    try:
        with hold.into(writer.event):
            yield
        for name, (verdict, why) in hold.verdicts.items():
            if not verdict.is_honoured:
                tell(f"{name}: {verdict.value}: {why}" if why else f"{name}: {verdict.value}")
    finally:
        writer.close()


def _run_recorded(
    command: Sequence[str], recording: Recording, supervise: Supervise | None, own: Mapping[str, str]
) -> tuple[int, int]:
    """Run the command, with its ``own`` variables beside this process', and mark the time it took. Its status, as
    `subprocess` tells it, and when it ended. Raises `ConfigError`."""
    begin_ns = now_ns()
    previous: dict[int, Any] = {}

    def on(number: int, handler: Callable[..., object]) -> None:
        previous.setdefault(number, signal.signal(number, handler))

    try:
        # A handler, unlike SIG_IGN, is not inherited by the command.
        on(signal.SIGINT, lambda *_: None)
        environment = {**os.environ, **own, RUN_ENVIRONMENT: str(recording.journal)}
        process = _started(command, environment, is_supervised=supervise is not None)
        handed_on: set[int] = {signal.SIGTERM, signal.SIGHUP}  # with which a batch system ends jobs
        if supervise is not None:
            handed_on.add(signal.SIGINT)  # the terminal knows nothing of its process group
        for number in handed_on:
            if signal.getsignal(number) not in {signal.SIG_IGN, None}:  # SIG_IGN: under nohup
                on(number, lambda number, _: send(process, number))
        status = process.wait() if supervise is None else _supervised(process, recording, supervise)
        end_ns = now_ns()
        if supervise is not None:
            supervise.conclude()
    except OSError as error:
        raise ConfigError(f"cannot run {command[0]!r}: {error.strerror}") from error
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    with contextlib.suppress(OSError, ValueError):  # without it the run's whole is in its table all the same
        mark_whole(recording.journal, begin_ns, end_ns)
    return status, end_ns


def _started(command: Sequence[str], environment: Mapping[str, str], *, is_supervised: bool) -> subprocess.Popen[bytes]:
    """Raises `OSError`."""
    if not is_supervised:
        return subprocess.Popen(command, env=environment)
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)

    # What runs between fork and exec takes no lock that a thread of this process could hold.
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        process_group=0,
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )


def _supervised(process: subprocess.Popen[bytes], recording: Recording, supervise: Supervise) -> int:
    """What ``supervise`` says; a command that it leaves behind is ended."""
    try:
        return supervise.watch(process, recording.journal)
    finally:
        if process.poll() is None:
            end_command(process)


def send(process: subprocess.Popen[bytes], number: int) -> None:
    """A signal to a command; to all of its process group where it has one of its own."""
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)


def end_command(process: subprocess.Popen[bytes]) -> int:
    """End a command by SIGTERM, and by SIGKILL after ten seconds. Its status."""
    send(process, signal.SIGTERM)
    try:
        return process.wait(_TERM_S)
    except subprocess.TimeoutExpired:
        send(process, signal.SIGKILL)
        return process.wait()


def _measure_baseline(recording: Recording, seconds: float | None) -> None:
    """Measure idle power. A recording whose journal takes no marks goes on without."""
    if seconds is None:
        return
    try:
        mark_baseline(recording.journal, seconds)
    except OSError as error:
        tell(f"no baseline was measured: {error.strerror}")
