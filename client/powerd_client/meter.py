"""`Meter`: a recording with phases, as a training script sees it."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar

from powerd_client.hostclock import now_ns
from powerd_client.journal import RUN_ENVIRONMENT
from powerd_client.markwriter import MarkWriter
from powerd_client.recording import Recording
from powerd_core.errors import ConfigError, PowerdError, RunFileError

P = ParamSpec("P")
R = TypeVar("R")

Attribute = str | int | float | bool | None


class Phase:
    """A kind of phase: enter and leave it with ``with``, or decorate a function with it.

    It holds no state, so it may nest in itself.
    """

    __slots__ = ("_begin", "_end", "_mark")

    def __init__(self, mark: Callable[[int], None], kind: int) -> None:
        self._mark = mark
        self._begin = kind
        self._end = ~kind

    def __enter__(self) -> None:
        self._mark(self._begin)

    def __exit__(self, *_: object) -> None:
        self._mark(self._end)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def marked(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return marked


class Meter:
    """Records the energy of whatever runs between its construction and `close`, with the phases that are marked.

    ``url``          the powerd to listen to (``tcp://board:7360``), or several; None starts one on this machine, with
                     its best source (the NVIDIA driver's readings, else a model from CPU time), and stops it at the end
    ``out``          the run file; it must not exist unless ``overwrite``
    ``synchronize``  called before every mark, such as ``torch.cuda.synchronize``: for work that runs asynchronously
    ``required``     with False, a powerd that is not there is a warning, and the training goes on unrecorded
    ``keys``         directory of keys, for boards that want them (default: $POWERD_KEYS, else ~/.config/powerd)

    Under ``joules record`` the run already exists: then only marks are added to it, and these arguments do not count.

    Raises `PeerError`, `ConfigError` or `RunFileError` when recording cannot begin. After that it never raises into the
    training: what goes wrong is kept, reported when the run closes, and stands in the run file.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        out: str | os.PathLike[str] = "run.h5",
        *,
        overwrite: bool = False,
        synchronize: Callable[[], object] | None = None,
        required: bool = True,
        keys: str | os.PathLike[str] | None = None,
    ) -> None:
        self.out = Path(out)
        self._writer: MarkWriter | None = None
        self._recording: Recording | None = None
        self._kinds: dict[object, Phase] = {}
        self._timing = "host" if synchronize is None else "host-synchronised"
        self._pid = os.getpid()
        self._synchronize = synchronize
        self._mark: Callable[[int], None] = _ignore
        urls = [url] if isinstance(url, str) else list(url or ())
        try:
            self._open(urls, overwrite, keys)
        except PowerdError as error:
            if required or isinstance(error, ConfigError | RunFileError):
                raise
            warnings.warn(f"powerd: this training is not recorded: {error}", stacklevel=2)
        atexit.register(self.close)

    def _open(self, urls: list[str], overwrite: bool, keys: str | os.PathLike[str] | None) -> None:
        joined = os.environ.get(RUN_ENVIRONMENT)
        if joined:
            directory = Path(joined)
            self.out = directory.with_name(directory.name.removesuffix(".journal"))
        else:
            self._recording = Recording(self.out, urls, overwrite=overwrite, trainer_pid=self._pid, keys=keys)
            directory = self._recording.journal
        try:
            self._writer = MarkWriter(directory)
        except OSError as error:
            if self._recording is not None:
                self._recording.abandon()
            raise RunFileError(f"marks cannot be written under {directory}: {error.strerror}") from error
        self._mark = self._writer.mark
        if self._synchronize is not None:
            self._mark = _Synchronized(self._synchronize, self._writer)

    def phase(self, name: str, **attributes: Attribute) -> Phase:
        """A phase called ``name``, for ``with`` or as a decorator.

        Attributes (``batch_size=64``, ``model="resnet34"``, ``operations_per_sample=3.6e9``) hold for everything inside
        the phase too; tables group by them.
        """
        key = (name, *attributes.items()) if attributes else name
        phase = self._kinds.get(key)
        if phase is None:
            phase = self._kinds[key] = Phase(self._mark, self._number(name, attributes))
        return phase

    def _number(self, name: str, attributes: Mapping[str, Attribute]) -> int:
        return 0 if self._writer is None else self._writer.kind(name, attributes, self._timing)

    def begin(self, name: str, **attributes: Attribute) -> None:
        """Begin a phase that `end` will end."""
        self.phase(name, **attributes).__enter__()

    def end(self, name: str, **attributes: Attribute) -> None:
        """End the innermost open phase of this name (and these attributes)."""
        self.phase(name, **attributes).__exit__()

    def close(self) -> None:
        """End the recording and wait until the run file is complete. Further calls and marks do nothing."""
        atexit.unregister(self.close)
        writer, recording = self._writer, self._recording
        if writer is None or os.getpid() != self._pid:
            return
        self._writer = self._recording = None
        stop_ns = now_ns()
        writer.close()
        if recording is not None:
            dropped = f" ({writer.dropped} marks)" if writer.dropped else ""
            recording.finish(stop_ns, f"{writer.failure}{dropped}" if writer.failure else None, told=writer.told)
        elif writer.failure and not writer.told:
            print(f"powerd: {writer.failure}", file=sys.stderr)

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.close()
        return False


class _Synchronized:
    """Waits for the device before each mark, and keeps a failure of that from the training."""

    def __init__(self, synchronize: Callable[[], Any], writer: MarkWriter) -> None:
        self._synchronize = synchronize
        self._writer = writer

    def __call__(self, code: int) -> None:
        try:
            self._synchronize()
        except Exception as error:  # noqa: BLE001  (the training's next call will raise it too)
            self._writer.disable(f"synchronize() failed: {error}")
        self._writer.mark(code)


def _ignore(code: int) -> None:
    pass
