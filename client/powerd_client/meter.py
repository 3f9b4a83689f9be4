"""`Meter`: a recording with phases, as a training script sees it."""

from __future__ import annotations

import atexit
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from powerd_client.accelerator import begin_timing, choose_timing
from powerd_client.baseline import BASELINE, check_seconds
from powerd_client.device import DeviceTimer
from powerd_client.gpus import devices_here
from powerd_client.hostclock import now_ns
from powerd_client.markwriter import MarkWriter
from powerd_client.membership import Membership, take_part
from powerd_client.phase import Attribute, Phase
from powerd_client.recording import Recording
from powerd_client.telling import tell
from powerd_client.together import Together
from powerd_client.watchdata import Loader
from powerd_core.errors import ConfigError, PeerError, PowerdError, RunFileError

if TYPE_CHECKING:
    from torch.nn import Module

    from powerd_client.watch import Watch
    from powerd_client.watchmarks import Marker

T = TypeVar("T")


class Meter:
    """Records the energy of whatever runs between its construction and `close`, with the phases that are marked.

    ``url``          the powerd to listen to (``tcp://board:7360``), or several; None starts one on this machine, with
                     its best source (the NVIDIA driver's readings, else a model from CPU time), and stops it at the end
    ``out``          the run file; it must not exist unless ``overwrite``
    ``device``       how phases are timed: ``cuda`` by events on the GPU's own timeline, without waiting for it,
                     ``accelerator`` by the host's clock after waiting for what else torch has (MPS, XPU, …),
                     ``host`` by the host's clock; ``auto`` is the first of these that an imported torch can do
    ``synchronize``  called before every mark, such as ``torch.cuda.synchronize``: for work that runs asynchronously
    ``required``     with False, a powerd that is not there is a warning, and the training goes on unrecorded
    ``keys``         directory of keys, for boards that want them (default: $POWERD_KEYS, else ~/.config/powerd)

    Where a launcher such as torchrun has said which rank this process is, local rank 0 records and the others add their
    marks to its run (docs/ranks.md): make one Meter in every rank, with the same arguments.

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
        device: Literal["auto", "cuda", "accelerator", "host"] = "auto",
        synchronize: Callable[[], object] | None = None,
        required: bool = True,
        keys: str | os.PathLike[str] | None = None,
    ) -> None:
        self.out = Path(out)
        self._writer: MarkWriter | None = None
        self._recording: Recording | None = None
        self._kinds: dict[object, Phase] = {}
        self._choice = choice = choose_timing(device, synchronize)
        self._timing = choice.name
        self._timer: DeviceTimer | None = None
        self._pid = os.getpid()
        self._mark: Callable[..., None] = _ignore
        self._together: Together | None = None
        self._devices: list[dict[str, object]] = []
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
        part = take_part(
            self.out, urls, overwrite=overwrite, keys=keys, end_earlier=lambda: self._end_earlier(overwrite=overwrite)
        )
        try:
            self._begin(part)
        except BaseException:
            part.abandon()
            raise
        self.out, self._recording, self._together = part.out, part.recording, part.together
        if part.recording is not None and part.together is None:
            _recording.add(self)

    def _begin(self, part: Membership) -> None:
        try:
            writer = MarkWriter(part.journal, about=part.about)
        except OSError as error:
            has_gone = part.together is not None and part.recording is None
            kind = PeerError if has_gone else RunFileError  # a recording that rank 0 has ended meanwhile
            raise kind(f"marks cannot be written under {part.journal}: {error.strerror}") from error
        self._mark, self._timer, self._timing = begin_timing(self._choice, writer, part.journal, speaks=part.speaks)
        self._writer = writer

    def _end_earlier(self, *, overwrite: bool) -> None:
        """A notebook's cell that is run again makes a Meter while its first one still records."""
        for meter in [m for m in _recording if m.out.absolute() == self.out.absolute() and m._pid == self._pid]:
            if not overwrite:
                raise RunFileError(f"{self.out} is being recorded by a Meter of this process: close() that first")
            meter.close()
            tell(f"the Meter that still recorded {self.out} was closed")

    def phase(self, name: str, **attributes: Attribute) -> Phase:
        """A phase called ``name``, for ``with`` or as a decorator.

        Attributes (``batch_size=64``, ``model="resnet34"``, ``operations_per_sample=3.6e9``) hold for everything inside
        the phase too; tables group by them.
        """
        # With types: 1, 1.0 and True are one key to a dict.
        key = (name, *attributes.items(), *map(type, attributes.values())) if attributes else name
        try:
            phase = self._kinds.get(key)
        except TypeError:  # a list is no key
            key = (name, repr(attributes))
            phase = self._kinds.get(key)
        if phase is None:
            phase = self._kinds[key] = Phase(self._mark, self._number(name, attributes))
        return phase

    def _number(self, name: str, attributes: Mapping[str, Attribute]) -> int:
        if self._writer is None:
            return 0
        if not self._devices:
            self._identify(self._writer)
        return self._writer.kind(name, attributes, self._timing)

    def _identify(self, writer: MarkWriter) -> None:
        """Say on which GPU this process works now, where that is news."""
        devices = devices_here()
        if devices and devices != self._devices:
            self._devices = devices
            writer.identify(devices)

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
        ``attributes``     of all these phases; of ``backward``, which knows no model, only if all watches have the same

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
        self._writer = self._recording = None
        _recording.discard(self)
        try:
            while self._watches:
                self._watches.pop().remove()
            self._marker = None
            if self._timer is not None:
                self._timer.close()
                if self._timer.failure:
                    writer.note(self._timer.failure, "warning")
            self._identify(writer)
            for text in self._together.await_others() if self._together is not None else ():
                writer.note(text)
        finally:  # an impatient Ctrl-C ends the waiting, not the run
            _finish(writer, recording)

    def __enter__(self) -> Meter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.close()
        return False


_recording: weakref.WeakSet[Meter] = weakref.WeakSet()
"""Those that record by themselves, and are not closed."""


def _finish(writer: MarkWriter, recording: Recording | None) -> None:
    stop_ns = now_ns()
    writer.close()
    if recording is not None:
        dropped = f" ({writer.dropped} marks)" if writer.dropped else ""
        recording.finish(stop_ns, f"{writer.failure}{dropped}" if writer.failure else None, told=writer.told)
    elif writer.failure and not writer.told:
        tell(writer.failure)


def _ignore(code: int, thread: int | None = None) -> None:
    pass
