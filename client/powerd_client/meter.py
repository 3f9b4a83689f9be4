"""`Meter`: a recording with phases, as a training script sees it."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from powerd_client.baseline import BASELINE, check_seconds
from powerd_client.device import DeviceTimer
from powerd_client.devicetimes import DEVICE
from powerd_client.framefile import FrameFile
from powerd_client.hostclock import now_ns
from powerd_client.journal import RUN_ENVIRONMENT
from powerd_client.markwriter import MarkWriter
from powerd_client.recording import Recording
from powerd_client.watchdata import Loader
from powerd_core.errors import ConfigError, PowerdError, RunFileError

if TYPE_CHECKING:
    from torch.nn import Module

    from powerd_client.watch import Watch
    from powerd_client.watchmarks import Marker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

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
    ``device``       how phases are timed: ``cuda`` by events on the GPU's own timeline, without waiting for it,
                     ``host`` by the host's clock, ``auto`` by events where torch was imported and has a GPU
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
        device: Literal["auto", "cuda", "host"] = "auto",
        synchronize: Callable[[], object] | None = None,
        required: bool = True,
        keys: str | os.PathLike[str] | None = None,
    ) -> None:
        self.out = Path(out)
        self._writer: MarkWriter | None = None
        self._recording: Recording | None = None
        self._kinds: dict[object, Phase] = {}
        self._timing = "host" if synchronize is None else "host-synchronised"
        self._torch = None if synchronize is not None else _cuda(device)
        self._timer: DeviceTimer | None = None
        self._pid = os.getpid()
        self._synchronize = synchronize
        self._mark: Callable[..., None] = _ignore
        self._watches: list[Watch] = []
        self._marker: Marker | None = None
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
        elif self._torch is not None:
            try:
                self._timer = DeviceTimer(self._writer, FrameFile(directory, self._writer.token), self._torch)
            except OSError as error:
                self._writer.note(f"phases are timed by the host: {error}", "warning")
            else:
                self._mark, self._timing = self._timer.mark, DEVICE

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

    def watch(
        self,
        model: Module,
        /,
        *optimizers: Any,
        layers: bool = False,
        loader: Iterable[Any] | None = None,
        communication: bool = True,
        **attributes: Attribute,
    ) -> Watch:
        """Mark ``forward`` (or ``evaluation``), ``backward`` and each optimizer's ``update`` from now on, by PyTorch's
        own hooks; docs/training.md says what each phase holds and what cannot be marked.

        ``model``          the module that the training calls: the outermost, as DDP's or `torch.compile`'s wrapper
        ``layers``         mark every layer too, in forward and backward
        ``loader``         mark the waits for its batches as ``data``: iterate over the returned watch's ``loader``
        ``communication``  mark what DDP reduces while backward goes on (by a communication hook)
        ``attributes``     of all these phases but ``backward``, which knows no model

        A model that this meter watches already is watched anew, not twice. Raises `ConfigError` for arguments of the
        wrong type; after that, nothing.
        """
        from powerd_client.watch import watch

        return watch(
            self,
            model,
            *optimizers,
            layers=layers,
            loader=loader,
            communication=communication,
            attributes=attributes,
        )

    def data(self, loader: Iterable[T], **attributes: Attribute) -> Loader[T]:
        """``loader`` with each wait for its next batch marked as ``data``, the first one's included."""
        return Loader(loader, self.phase("data", **attributes), self._cut, None)

    def iterations(self, loader: Iterable[T], **attributes: Attribute) -> Loader[T]:
        """``loader`` for a plain loop: each turn is a phase ``iteration``, and begins with the wait ``data``."""
        return Loader(loader, self.phase("data"), self._cut, self.phase("iteration", **attributes))

    def _cut(self, phase: Phase) -> None:
        """End a phase as one that was cut off."""
        if self._writer is not None:
            self._mark(self._writer.cut(phase._begin))

    def baseline(self, seconds: float = 5.0) -> None:
        """Wait that long while nothing runs, in a phase called ``baseline``: before the training and after it.

        Tables can then show the energy above idle (`joules tables --above-idle`). Raises `ConfigError` for what is
        no length.
        """
        check_seconds(seconds)
        with self.phase(BASELINE):
            time.sleep(seconds)

    def close(self) -> None:
        """End the recording and wait until the run file is complete. Further calls and marks do nothing."""
        atexit.unregister(self.close)
        writer, recording = self._writer, self._recording
        if writer is None or os.getpid() != self._pid:
            return
        while self._watches:
            self._watches.pop().remove()
        self._marker = None
        self._writer = self._recording = None
        if self._timer is not None:
            self._timer.close()
            if self._timer.failure:
                writer.note(self._timer.failure, "warning")
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


def _cuda(device: str) -> Any:
    """The torch module where CUDA times the phases, else None. Raises `ConfigError`."""
    if device not in ("auto", "cuda", "host"):
        raise ConfigError(f"device={device!r}: phases are timed by 'cuda', 'host' or 'auto'")
    # A script that trains on a GPU has imported torch; importing it here would cost seconds and tell nothing.
    torch = sys.modules.get("torch")
    if device == "host":
        return None
    if torch is not None and torch.cuda.is_available():
        return torch
    if device == "cuda":
        raise ConfigError("device='cuda': torch has no GPU here, or was not imported before the Meter was made")
    return None


class _Synchronized:
    """Waits for the device before each mark, and keeps a failure of that from the training."""

    def __init__(self, synchronize: Callable[[], Any], writer: MarkWriter) -> None:
        self._synchronize = synchronize
        self._writer = writer

    def __call__(self, code: int, thread: int | None = None) -> None:
        try:
            self._synchronize()
        except Exception as error:  # noqa: BLE001  (the training's next call will raise it too)
            self._writer.disable(f"synchronize() failed: {error}")
        self._writer.mark(code, thread)


def _ignore(code: int, thread: int | None = None) -> None:
    pass
