"""`Meter`: a recording with phases, as a training script sees it.

A process marks its phases in one of three recordings: one that it began itself; one that local rank 0 of the same
training began (docs/howto/ranks.md); or one that `joules record` began around the process.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from powerd_client.energies.phase import BASELINE, RESULT, Attribute, Loader, Phase, check_seconds
from powerd_client.host.hostclock import now_ns
from powerd_client.host.log import tell
from powerd_client.host.visible_gpus import devices_here
from powerd_client.journals.device_timing import DeviceTimer, begin_timing, choose_timing
from powerd_client.journals.journal import OPTIMISE_ENVIRONMENT
from powerd_client.journals.marks import MarkWriter
from powerd_client.journals.ranks import Rendezvous
from powerd_client.record.recording import Recording, take_part
from powerd_core.errors import ConfigError, PeerError, PowerdError, RunFileError
from powerd_core.marks import ITERATION

if TYPE_CHECKING:
    from torch.nn import Module

    from powerd_client.energies.live_energy import Energy, LiveRun
    from powerd_client.knobs.control import Hold
    from powerd_client.knobs.power_choice import PowerChooser
    from powerd_client.training.torch_hooks import TorchMarks, Watch

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


MOST_OTHER_TURNS = 20
"""So many updates of other optimizers in a row, and the one whose updates were iterations is thought to have ended."""


class Meter:
    """Records the energy of whatever runs between its construction and `close`, with the phases that are marked.

    ``url``          the powerd to listen to (``board`` or ``tcp://board:7360``), or several; None starts one on this
                     machine, with all that it has (the GPUs that this process may use, processors and memory by RAPL;
                     where there is neither, a model from CPU time), and stops it at the end
    ``out``          the run file, which must not exist unless ``overwrite``; without it the first of run.h5, run-2.h5,
                     ... that is free, or with ``overwrite`` run.h5
    ``device``       how phases are timed: ``cuda`` by events on the GPU's own timeline, without waiting for it,
                     ``accelerator`` by the host's clock after waiting for what else torch has (MPS, XPU, …),
                     ``host`` by the host's clock; ``auto`` is the first of these that an imported torch can do
    ``synchronize``  called before every mark, such as ``torch.cuda.synchronize``: for work that runs asynchronously
    ``required``     with False, a powerd that is not there is a warning, and the training goes on unrecorded; so it
                     does where no ``url`` names one and the local one cannot begin
    ``keys``         directory of keys, for boards that want them (default: $POWERD_KEYS, else ~/.config/powerd)
    ``quiet``        with True, closing prints no result; neither does it where $POWERD_QUIET is set
    ``attributes``   what else the run shall say of itself, as ``{"project": "p7"}``: columns of tables and index. Which
                     job of Slurm, PBS, LSF or Kubernetes it is, it says unasked

    Where a launcher such as torchrun has said which rank this process is, local rank 0 records and the others add their
    marks to its run (docs/howto/ranks.md): make one Meter in every rank, with the same arguments.

    Under ``joules record`` the run already exists: then only marks are added to it, and these arguments do not count.

    Raises `PeerError`, `ConfigError` or `RunFileError` when recording cannot begin. After that it never raises into the
    training: what goes wrong is kept, reported when the run closes, and stands in the run file.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        out: str | os.PathLike[str] | None = None,
        *,
        overwrite: bool = False,
        device: Literal["auto", "cuda", "accelerator", "host"] = "auto",
        synchronize: Callable[[], object] | None = None,
        required: bool = True,
        keys: str | os.PathLike[str] | None = None,
        quiet: bool = False,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> None:
        self.out = self._asked = Path(out or "run.h5")
        self._pid = os.getpid()
        self._writer: MarkWriter | None = None
        self._recording: Recording | None = None
        self._rendezvous: Rendezvous | None = None
        self._timer: DeviceTimer | None = None
        self._timing = choose_timing(device, synchronize)
        self._timing_name = self._timing.name
        self._mark: Callable[..., int | None] = lambda code, thread=None: None
        self._event: Callable[[str, Mapping[str, object]], None] = lambda name, values: None
        self._quiet = quiet
        self._live: Callable[[], LiveRun] | None = None
        """What of the recording has come so far; None where nothing is recorded."""
        self._phases: dict[str | tuple[str, str], Phase] = {}
        self._devices: list[dict[str, object]] = []
        self._torch_marks: TorchMarks | None = None
        self._choice: PowerChooser | None = None
        """What chooses a cap by the updates of a watched training, or by phases ``iteration``."""
        self._counts_marks = False
        """Whether phases are its iterations."""
        self._choice_code: int | None = None
        self._other_turns = 0
        """Updates since the last one that counted."""
        try:
            self._open(url, overwrite, keys, is_numbered=out is None, attributes=attributes)
        except PowerdError as error:
            if isinstance(error, PeerError) and url is None:
                tell(f"this training is not recorded: {error}")  # nobody named a powerd: it is no fault of theirs
            elif required or isinstance(error, ConfigError | RunFileError):
                raise error.with_traceback(None) from None  # what is wrong stands where the Meter is made, not in it
            else:
                warnings.warn(f"powerd: this training is not recorded: {error}", stacklevel=2)
        atexit.register(self.close)

    def _open(
        self,
        url: str | Sequence[str] | None,
        overwrite: bool,
        keys: str | os.PathLike[str] | None,
        *,
        is_numbered: bool,
        attributes: Mapping[str, Attribute] | None,
    ) -> None:
        part = take_part(
            self.out,
            url,
            overwrite=overwrite,
            is_numbered=is_numbered,
            keys=keys,
            quiet=self._quiet,
            end_earlier=lambda: self._end_earlier(overwrite=overwrite),
            attributes=attributes,
        )
        try:
            writer = MarkWriter(part.journal, about=part.about)
        except OSError as error:
            part.abandon()
            raise RunFileError(f"marks cannot be written under {part.journal}: {error.strerror}") from error
        self._mark, self._timer, self._timing_name = begin_timing(self._timing, writer, part.journal, tells=part.speaks)
        self._writer, self.out, self._recording, self._rendezvous = writer, part.out, part.recording, part.rendezvous
        self._event = writer.event
        self._live = cache(partial(_live_run, part.journal, part.out, writer.token))
        if part.recording is not None and part.rendezvous is None:
            _recording.add(self)

    def _end_earlier(self, *, overwrite: bool) -> None:
        """A notebook's cell that is run again makes a Meter while its first one still records."""
        for meter in [m for m in _recording if m._asked.absolute() == self._asked.absolute() and m._pid == self._pid]:
            if not overwrite:
                raise RunFileError(f"{meter.out} is being recorded by a Meter of this process: close() that first")
            meter.close()
            tell(f"the Meter that still recorded {meter.out} was closed")

    def phase(self, name: str, **attributes: Attribute) -> Phase:
        """A phase called ``name``, for ``with`` or as a decorator.

        Attributes (``batch_size=64``, ``model="resnet34"``, ``operations_per_sample=3.6e9``) hold for everything inside
        the phase too; tables group by them. ``tokens=4096`` says how many the phase works through: it may be another
        number each time, and tables tell the joules of one.
        """
        key: str | tuple[str, str] = (name, repr(attributes)) if attributes else name
        phase = self._phases.get(key)
        if phase is None:
            kind = 0
            if self._writer is not None:
                if not self._devices:
                    self._identify(self._writer)
                kind = self._writer.kind(name, attributes, self._timing_name)
                if name == ITERATION and self._has_taken_wish():
                    self._counts_marks = True
            mark = self._mark_of_iteration if name == ITERATION and self._counts_marks else self._mark
            phase = self._phases[key] = Phase(mark, kind, partial(_energy_of, self._live, name))
        return phase

    def _taken(self, name: str, **attributes: Attribute) -> Phase:
        """A phase for hooks and loaders, which may have nothing to mark."""
        return self.phase(name, **attributes).taken()

    def energy(
        self, phase: str, device: str | None = None, *, last_s: float | None = 60.0, wait_s: float = 0.0
    ) -> Energy:
        """The mean energy of the phases of a name, as `joules tables` would tell it of the last ``last_s`` seconds;
        of the whole recording for None, or where none lies in these seconds, or when the meter is closed.

        ``wait_s`` waits at most so long for the last readings of the latest phase. Without ``device`` the energy is
        that of the device that is known best: measured rather than modelled. It works in this thread, for about a
        second the first time. Raises nothing: what has no number says why.
        """
        return self._ask(phase, device, last_s, wait_s)[0]

    def energies(self, device: str | None = None, *, last_s: float | None = 60.0) -> list[Energy]:
        """As `energy`, of every kind of phase; of one kind on several devices the one that is known best first."""
        return self._ask("", device, last_s, 0.0)

    def _ask(self, name: str, device: str | None, last_s: float | None, wait_s: float) -> list[Energy]:
        if self._live is None:
            return [_unrecorded(name)]
        return self._live().ask(name, device, last_s=last_s, wait_s=wait_s)

    @overload
    def measure(self, function: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def measure(
        self, name: str | None = None, /, **attributes: Attribute
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def measure(self, what: Any = None, /, **attributes: Attribute) -> Any:
        """A decorator that makes each call of a function a phase, called as the function unless a name is given:
        ``@meter.measure`` or ``@meter.measure("epoch", batch_size=32)``."""
        if callable(what):
            return self.phase(what.__name__)(what)
        return lambda function: self.phase(what or function.__name__, **attributes)(function)

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
        communication: bool | None = None,
        tokens: int | Callable[..., int] | None = None,
        **attributes: Attribute,
    ) -> Watch:
        """Mark ``forward`` (or ``evaluation``), ``backward`` and each optimizer's ``update`` from now on, by PyTorch's
        own hooks; docs/howto/training.md says what each phase holds and what cannot be marked.

        ``model``          the module that the training calls, or the one inside it that `torch.compile` wrapped
        ``layers``         mark every layer too, in forward and backward
        ``loader``         mark the waits for its batches as ``data``: iterate over the returned watch's ``loader``
        ``communication``  mark what DDP reduces while backward goes on, by a communication hook, which slows GPUs that
                           wait for the host; None: on processors alone, and on GPUs what DDP's own timers say
        ``tokens``         of a pass: a number, or a function that is called with the input of each and counts them
        ``attributes``     of all these phases. Passes of another size than ``batch_size`` count the samples that their
                           input has. ``backward``, which knows no model, has those of the models that ran forward
                           before it

        A model that this meter watches already is watched anew, not twice. Raises `ConfigError` for arguments of the
        wrong type; after that, nothing.
        """
        from powerd_client.training.torch_hooks import watch

        if tokens is not None and not isinstance(tokens, int) and not callable(tokens):
            raise ConfigError(f"watch() wants tokens as a number or a function, not {type(tokens).__name__}")
        counts = (lambda *_, **__: tokens) if isinstance(tokens, int) else tokens
        return watch(
            self._marks_of_torch(),
            model,
            *optimizers,
            layers=layers,
            loader=None if loader is None else self.data(loader, **attributes),
            communication=communication,
            attributes=attributes,
            tokens=counts,
        )

    def _marks_of_torch(self) -> TorchMarks | None:
        """Where PyTorch's hooks mark, None where nothing is recorded."""
        if self._torch_marks is None and self._writer is not None:
            from powerd_client.training.torch_hooks import TorchMarks

            self._torch_marks = TorchMarks(self._mark, self._taken, self._writer, self._turn)
            self._has_taken_wish()
        return self._torch_marks

    def _has_taken_wish(self) -> bool:
        """Choose as `joules record` was asked to; whether it was, and nobody has taken that yet."""
        # Taken out: a program that this one starts is another training, or none.
        wish = os.environ.pop(OPTIMISE_ENVIRONMENT, "")
        if wish:
            try:
                self._begin_choice(json.loads(wish))
            except (ConfigError, TypeError, ValueError) as error:
                tell(f"no power cap is chosen: ${OPTIMISE_ENVIRONMENT}: {error}")
        return bool(wish)

    def _mark_of_iteration(self, code: int, thread: int | None = None) -> int | None:
        """A mark of iterations that are phases, by which a cap is chosen."""
        number = self._mark(code, thread)
        if code < 0 and self._choice is not None:
            self._choice.step()
        return number

    def _turn(self, code: int) -> None:
        """The mark ``code``, just made, has ended an update of a watched training. Of several optimizers the first
        one's updates are the iterations; where these have ended, as of a model that is watched anew, another's are."""
        if self._timer is not None:
            self._timer.turn(code)
        if self._choice is not None and not self._counts_marks:
            self._other_turns += 1
            if self._choice_code is None or self._other_turns > MOST_OTHER_TURNS:
                self._choice_code = code
            if code == self._choice_code:
                self._other_turns = 0
                self._choice.step()

    def _chooser_of(self, wish: str | Mapping[str, Any]) -> PowerChooser:
        """What `optimise_power` gives for a metric, or its arguments, and its errors."""
        return self.optimise_power(**({"metric": wish} if isinstance(wish, str) else wish))

    def _begin_choice(self, wish: str | Mapping[str, Any]) -> None:
        """Choose by the updates of a watched training."""
        self._end_choice()
        self._choice = self._chooser_of(wish).__enter__()

    def _end_choice(self) -> None:
        """Put back what was found."""
        choice, self._choice, self._choice_code = self._choice, None, None
        if choice is not None:
            choice.__exit__()

    def data(self, loader: Iterable[T], **attributes: Attribute) -> Loader[T]:
        """``loader`` with each wait for its next batch marked as ``data``, the first one's included."""
        return Loader(loader, [self._taken("data", **attributes)], self._cut)

    def iterations(self, loader: Iterable[T], **attributes: Attribute) -> Loader[T]:
        """``loader`` for a plain loop: each turn is a phase ``iteration``, and begins with the wait ``data``."""
        return Loader(loader, [self._taken(ITERATION, **attributes), self._taken("data")], self._cut)

    def _cut(self, phase: Phase) -> None:
        """End a phase as one that was cut off."""
        if self._writer is not None:
            self._mark(self._writer.cut(phase._begin))

    def event(self, name: str, /, **values: Any) -> None:
        """Put what happened just now into the run: ``meter.event("lr", value=1e-4)``.

        ``values`` are what JSON knows, nested as you like; a number of numpy or torch becomes a plain one, anything
        else its text. The name and the values of an event have 64 KiB as JSON at most, all events of a process 32 MiB.
        It costs about 10 us, with 3 kB of values 100 us. It is kept when the process is killed, as marks are. It raises
        nothing: that an event could not be kept is told, and stands in the run's messages.
        """
        self._event(name, values)

    def result(self, **values: Any) -> None:
        """How good what was trained is, ``meter.result(top1=0.71)``: an `event` called ``result``.

        Call it before `close`. Of several, the last value of each name counts, and of several ranks those of the first.
        """
        self.event(RESULT, **values)

    def hold(
        self,
        devices: Sequence[str] | None = None,
        *,
        settle_s: float | None = None,
        ttl_s: float | None = None,
        wait_s: float = 0.0,
        **levels: float | str,
    ) -> Hold:
        """Hold power caps and clocks for the time of a ``with``, whose beginning waits until they have settled::

            with meter.hold(power_cap_w=200, sm_clock_mhz=1200) as held:
                train()
            print(held.verdict)

        ``levels``    what to hold: numbers, or ``"min"``, ``"default"``, ``"max"``, ``"60%"``
        ``devices``   such as ``["gpu0"]``; by default the GPUs that this process may use (or the processors)
        ``settle_s``  how long to wait behind a change (1 s)
        ``ttl_s``     how long this process may be silent before what was found stands again (30 s)
        ``wait_s``    how long to ask again for what somebody else holds

        The helper `powerd-control` sets them and puts them back, whatever becomes of this process; what was asked and
        what was enforced stand in the run. Of several local ranks the first holds for all, unless each names its own
        ``devices``. Raises `ControlError`, `ControlDenied` or `ConfigError` where they cannot be held; after that,
        nothing: a lease that ends too early is told, and stands in the run.
        """
        from powerd_client.knobs.control import SETTLE_S, Hold
        from powerd_core.lease import DEFAULT_TTL_S

        if devices is None and not self._is_first_rank():
            devices = []
        return Hold(
            levels,
            devices,
            emit=self._emit,
            name=Path(sys.argv[0] or "python").name,
            settle_s=SETTLE_S if settle_s is None else settle_s,
            ttl_s=DEFAULT_TTL_S if ttl_s is None else ttl_s,
            wait_s=wait_s,
        )

    def optimise_power(
        self,
        metric: str = "edp",
        max_slowdown: float = 0.05,
        *,
        knob: str = "power_cap_w",
        iterations: int | None = None,
        window_s: float = 1.4,
        settle_s: float | None = None,
    ) -> PowerChooser:
        """Choose the power cap while the training goes on, and hold it to the end of the ``with``::

            with meter.optimise_power(metric="edp", max_slowdown=0.05) as chooser:
                for batch in loader:
                    with chooser.iteration():
                        train(batch)

        ``metric``        of an iteration, to be least: ``e``, ``edp`` or ``ed2p`` (joules times seconds)
        ``max_slowdown``  how much longer than at the default cap an iteration may take, a share
        ``knob``          what is chosen: ``power_cap_w`` or ``sm_clock_mhz``
        ``iterations``    how many the training has: where the rest of it cannot repay the search, that ends
        ``window_s``      the least length of a window, which has five iterations at least
        ``settle_s``      how long to wait behind a change (0.3 s)

        At most 14 windows are measured, every fourth at least at the default cap. Every window and the decision stand
        in the run as events ``power-choice``. The caps are a lease of the helper `powerd-control`, as those of `hold`:
        whatever becomes of this process, what was found stands again. Without a helper one line says what is missing,
        and the training goes on unchanged. Of several ranks the first decides, by its own iterations, for the GPUs of
        all, on all machines: call this in every rank. Each rank's own helper holds its GPUs, all or none; they agree by
        the store of `torch.distributed`, without waiting for one another, and ``decision`` is known to the first alone.
        Raises `ConfigError` for what is no metric, slowdown or knob; after that, nothing.
        """
        from powerd_client.knobs.cap_search import CapSearch
        from powerd_client.knobs.control import Hold
        from powerd_client.knobs.power_choice import KNOBS, SETTLE_S, PowerChooser
        from powerd_core.lease import UNITS, option_of

        CapSearch(1.0, 2.0, metric, max_slowdown)  # what is wrong is said at once
        option = option_of(knob) if knob in UNITS else knob  # what it was called in 0.1.0
        if option not in KNOBS:
            raise ConfigError(f"{knob!r} is nothing to choose: there are {', '.join(KNOBS)}")
        settle_s = SETTLE_S if settle_s is None else settle_s
        name, live = Path(sys.argv[0] or "python").name, self._live
        return PowerChooser(
            lambda least_w, default_w: CapSearch(least_w, default_w, metric, max_slowdown),
            lambda devices: Hold({option: "default"}, devices, emit=self._emit, name=name, settle_s=settle_s),
            None if live is None else lambda *window: live().between(*window),
            self._emit,
            window_s=window_s,
            knob=option,
            iterations=iterations,
        )

    @staticmethod
    def _is_first_rank() -> bool:
        return os.environ.get("LOCAL_RANK", "0") in ("", "0")

    def _emit(self, name: str, values: Mapping[str, object], t_ns: int) -> None:
        if self._writer is not None:
            self._writer.event(name, values, t_ns)

    def baseline(self, seconds: float = 5.0) -> None:
        """Wait that long while nothing runs, in a phase called ``baseline``: before the training and after it, for
        the energy above idle (`joules tables --above-idle`). Raises `ConfigError` for what is no length."""
        check_seconds(seconds)
        with self.phase(BASELINE):
            time.sleep(seconds)

    def magnify(self, model: Module, /, *optimizers: Any, loss: Callable[[], Any], seconds: float = 1.0) -> None:
        """Repeat forward, backward and update alone, each for about ``seconds``, so that a sensor too slow to tell the
        phases of an iteration apart sees the power of each. Call it between two iterations, a time or two a run::

            if step in (100, 500):
                meter.magnify(model, optimizer, loss=lambda: loss_of(model(images), labels))

        ``model``       all modules that ``loss`` changes: several as ``nn.ModuleList([generator, discriminator])``
        ``optimizers``  whose steps are ``update``; without any, only forward and backward are repeated
        ``loss``        runs forward on one batch, as the training does, and returns what has ``backward``

        The training goes on as if nothing had been: parameters, buffers, gradients, optimizers and random generators
        are put back to the last bit. `joules tables` then shows what follows for the ordinary phases ``forward``,
        ``backward`` and ``update``, or why nothing does. Nothing is repeated where nothing is recorded, and in a
        training of several processes. Raises `ConfigError` for arguments of the wrong type; what fails after that is
        told and stands in the run.
        """
        from powerd_client.training import repeated_phases

        repeated_phases.check_magnify(model, optimizers, loss, seconds)
        if self._writer is None or os.getpid() != self._pid:
            return
        failure = repeated_phases.reason_against()
        if not failure:
            marks = self._torch_marks
            try:
                with marks.muted() if marks is not None else nullcontext():
                    repeated_phases.magnify(self.phase, model, optimizers, loss, seconds)
            except Exception as error:  # noqa: BLE001  (memory, a loss without backward: the training goes on)
                failure = f"{type(error).__name__}: {error}"
        if failure:
            self._writer.note(f"phases could not be magnified: {failure}")
            tell(f"phases could not be magnified: {failure}")

    def record_kernels(self, step: Callable[[], object], /, iterations: int = 10) -> None:
        """Put the names of the kernels that a training runs into the run, as an event ``kernels``::

            meter.record_kernels(lambda: train_step(images, labels))

        ``step`` trains one batch. It is called ``iterations`` times, also where nothing is recorded, so that the
        training is the same. Call it before the iterations that shall be measured: torch's profiler slows these down,
        and they are marked as nothing. Raises what ``step`` raises, and `ConfigError` for arguments of the wrong type;
        what else fails is told and stands in the run.
        """
        from powerd_client.training import kernels

        kernels.check_record(step, iterations)
        if self._writer is None or os.getpid() != self._pid:
            for _ in range(iterations):
                step()
            return
        marks = self._torch_marks
        with marks.muted() if marks is not None else nullcontext():
            values, failure = kernels.profiled(step, iterations)
        if failure:
            self._writer.note(f"the kernels could not be recorded: {failure}")
            tell(f"the kernels could not be recorded: {failure}")
        else:
            self.event(kernels.KERNELS, **values)

    def close(self) -> None:
        """End the recording and wait until the run file is complete. Further calls and marks do nothing.

        Raises nothing but a `KeyboardInterrupt`: what fails is in the run's messages or on the error stream.
        """
        atexit.unregister(self.close)
        writer, recording = self._writer, self._recording
        if writer is None or os.getpid() != self._pid:
            return
        self._writer = self._recording = None
        _recording.discard(self)
        try:
            for step in (
                self._close_choice,
                self._close_hooks,
                self._close_timer,
                self._identify,
                self._tell_untaken,
                self._tell_crowded,
                self._await_others,
            ):
                try:
                    step(writer)
                except Exception as error:  # noqa: BLE001  (torch's, CUDA's, a file system's: none may stop a training)
                    text = f"a part of the run's end failed ({type(error).__name__}: {error})"
                    writer.note(text)
                    tell(text)
        finally:  # an impatient Ctrl-C ends the waiting, not the run
            stop_ns = now_ns()
            writer.close()
            if recording is not None:
                failure = writer.failure and f"{writer.failure} ({writer.dropped} marks)"
                recording.finish(stop_ns, failure, told=writer.told)
            elif writer.failure and not writer.told:
                tell(writer.failure)

    def _close_choice(self, _: MarkWriter) -> None:
        self._end_choice()

    def _close_hooks(self, _: MarkWriter) -> None:
        marks, self._torch_marks = self._torch_marks, None
        if marks is not None:
            marks.close()

    def _close_timer(self, writer: MarkWriter) -> None:
        if self._timer is not None:
            self._timer.close()
            if self._timer.failure:
                writer.note(self._timer.failure)

    def _tell_untaken(self, writer: MarkWriter) -> None:
        untaken = [
            key[0] if isinstance(key, tuple) else key for key, phase in self._phases.items() if not phase.is_taken
        ]
        for name in dict.fromkeys(untaken):
            text = f"the phase {name!r} was never begun: write `with meter.phase({name!r}):` around what it is of"
            writer.note(text)
            tell(text)

    def _tell_crowded(self, writer: MarkWriter) -> None:
        if self._rendezvous is None or self._rendezvous.is_first:  # all ranks mark alike
            for text in writer.crowded():
                writer.note(text)
                tell(text)

    def _await_others(self, writer: MarkWriter) -> None:
        for text in self._rendezvous.await_others() if self._rendezvous is not None else ():
            writer.note(text)

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def recording_here() -> Meter | None:
    """A meter of this process that records, the only one where it is so."""
    return next((meter for meter in _recording if meter._pid == os.getpid()), None)


def _live_run(journal: Path, out: Path, token: int) -> LiveRun:
    from powerd_client.energies.live_energy import LiveRun  # numpy and h5py, which marking does not need

    return LiveRun(journal, out, token)


def _energy_of(
    live: Callable[[], LiveRun] | None, name: str, number: int | None, device: str | None, wait_s: float
) -> Energy:
    """The energy of the phase that a mark has begun; the marks of a failed writer have no numbers."""
    if live is None or number is None or number < 0:
        return _unrecorded(name)
    return live().ask(name, device, number=number, wait_s=wait_s)[0]


def _unrecorded(phase: str) -> Energy:
    from powerd_client.energies.live_energy import Energy

    return Energy(phase, note="nothing is recorded")


_recording: weakref.WeakSet[Meter] = weakref.WeakSet()
"""Those that record by themselves, and are not closed."""
