"""One way through a model: forward and backward on ``meta``, and what was counted on it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from powerd_analytics.operations.causal import without_asking
from powerd_analytics.operations.counts import OperationCount
from powerd_analytics.operations.executed import BACKWARD, ExecutedMode, Told
from powerd_analytics.operations.models import in_evaluation_for_one, shadow_of, without_lazies
from powerd_analytics.operations.no_compiler import run_backward
from powerd_analytics.operations.on_meta import MetaDevice
from powerd_analytics.operations.outputs import NO_TENSOR, let_go, tensors_of
from powerd_analytics.operations.paper import PaperHook, has_equation
from powerd_analytics.operations.recurrent import Recurrent
from powerd_analytics.operations.recurrent_calls import RECURRENT
from powerd_analytics.operations.refusals import why
from powerd_analytics.operations.releases import without_compiled
from powerd_analytics.operations.repeated import CELLS, Repeated
from powerd_analytics.operations.shapes_layout import on_meta
from powerd_analytics.operations.stand_in import StandIn
from powerd_analytics.operations.valued import ValuedMode

NO_BACKWARD = "no output needs a gradient: torch runs no backward pass"
FUSED = (
    "attention counted as its products, two in forward and four in backward; a fused kernel computes the first again"
    " in backward: {:,} operations more in all"
)
AUTOCAST = "autocast does nothing on meta: operations are right, types and so bytes are those without it"


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be counted."""

    model: nn.Module | Callable[[], nn.Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    said: str
    """What messages call the arguments."""
    batch_size: int
    backward: bool
    name: str
    progress: Callable[[float, str], None] | None


class Attempt:
    """A model run once on ``meta``, with values where a `StandIn` is given, else by shapes alone."""

    def __init__(self, job: Job, stand_in: StandIn | None, *, all_steps: bool) -> None:
        self.job, self.stand_in = job, stand_in
        self.paper = PaperHook(_samples(job))
        self.executed = ExecutedMode() if stand_in is None else ValuedMode(stand_in, self.paper)
        self.device = MetaDevice({} if all_steps else _short(self.executed), stand_in)
        self.notes: list[str] = []
        self._shadow: nn.Module | None = None
        self._modules: dict[str, nn.Module] = {}
        self._has_roots = False

    @property
    def is_backward(self) -> bool:
        """Whether forward is over."""
        return self.executed.current_pass == BACKWARD

    def go(self) -> Exception | None:
        """Make the model and run it, forward and backward. Gives what it raised."""
        try:
            self._make()
            self._run()
        except Exception as error:  # noqa: BLE001 - whatever a model raises
            return error
        return None

    @property
    def is_made(self) -> bool:
        """Whether there is a model, of which something may be counted."""
        return self._shadow is not None

    def stopped_by(self, error: Exception) -> str:
        """Where the count ended, and why."""
        at = self.executed.failed_in
        where = f" in {self._named(at)}" if at is not None else ""
        return f"{self.executed.current_pass}{where}: {why(error)}"

    def _make(self) -> None:
        """Raises `AnalysisError` when the model cannot be made."""
        job = self.job
        if self.stand_in is not None:
            self.stand_in.begin()
        self._shadow, self.notes = shadow_of(job.model, self.stand_in)
        without_compiled(self._shadow)
        self.notes += in_evaluation_for_one(self._shadow) if job.batch_size == 1 else []

    def _run(self) -> None:
        shadow, executed, device, job = self._shadow, self.executed, self.device, self.job
        assert shadow is not None
        if job.progress is not None:
            executed.tick = Told(executed, job.progress)
        args, kwargs = self._arguments()
        without_asking(shadow, self.notes)
        without_lazies(shadow, args, kwargs, self.stand_in)
        self._modules = dict(shadow.named_modules())
        for path, module in self._modules.items():
            if _takes_no_hooks(module):
                continue  # its kernels are of the module around it, and it is listed
            if next(module.children(), None) is None or has_equation(module):
                module.register_forward_hook(self.paper.hook(self._label(path)))
            executed.watch(path, module)
        with device, torch.enable_grad(), _eager(), executed:
            outputs = shadow(*args, **kwargs)
            found = list(tensors_of(outputs))
            roots = [t for t in found if t.requires_grad]
            self._has_roots = bool(roots)
            executed.current_pass, device.in_backward = BACKWARD, True
            self.paper.is_open = False  # a checkpoint calls modules again
            if roots and job.backward:
                run_backward(roots, [t.detach().new_empty(t.shape) for t in roots])
        if job.backward and not roots:
            self.notes.append(NO_BACKWARD if found else NO_TENSOR.format(type(outputs).__name__))
        held: list[Any] = [outputs, *found]
        del outputs, found, roots
        let_go(held)

    def count(self, stopped: str = "") -> OperationCount:
        """All that has been counted; ``stopped`` says why that is not all of the model."""
        shadow, executed, paper = self._shadow, self.executed, self.paper
        assert shadow is not None
        notes = list(self.notes)
        notes += self.stand_in.sure if self.stand_in is not None else []
        notes += [AUTOCAST] if executed.saw_autocast else []
        again = self.device.again if self.job.backward and self._has_roots else 0
        notes += [FUSED.format(again)] if again else []
        for path, module in self._modules.items():
            if self._label(path) in paper.seen:
                continue
            if executed.kernels.get(path) or any(True for _ in module.parameters(recurse=False)):
                paper.not_counted.setdefault(self._named(path))
        assumed = self.stand_in.assumed if self.stand_in is not None else {}
        return OperationCount(
            tuple(paper.layers),
            tuple(paper.not_counted),
            batch_size=self.job.batch_size,
            executed=executed.counts(self._modules, self._label),
            executed_not_counted=tuple(self._listed(executed.unknown)),
            assumed=tuple(self._listed(assumed)),
            stopped=stopped,
            notes=tuple(notes),
            model=self.job.name or type(shadow).__name__,
        )

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the model is called with, on ``meta``."""

        def one(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            made = on_meta(value)
            real = self.stand_in.values.of(value) if self.stand_in is not None else None
            if real is not None and self.stand_in is not None:
                self.stand_in.values.put(made, real)
            return made

        return tuple(one(v) for v in self.job.args), {k: one(v) for k, v in self.job.kwargs.items()}

    def _label(self, path: str) -> str:
        return path or type(self._shadow).__name__

    def _named(self, path: str) -> str:
        module = self._modules.get(path, self._shadow)
        return f"{self._label(path)} ({type(module).__name__})"

    def _listed(self, found: dict[tuple[str, str], int]) -> list[str]:
        return [f"{self._named(path)}: {text}" + (f", {n} times" if n > 1 else "") for (path, text), n in found.items()]


def _samples(job: Job) -> int:
    """Samples in the first dimension of what the model is given."""
    tensors = [a for a in (*job.args, *job.kwargs.values()) if isinstance(a, torch.Tensor) and a.dim()]
    return job.batch_size if job.batch_size > 1 or not tensors else tensors[0].shape[0]


def _short(executed: ExecutedMode) -> dict[Any, Callable[..., Any]]:
    """What runs for functions that run the same kernels over and over."""
    return {**dict.fromkeys(RECURRENT, Recurrent(executed)), **dict.fromkeys(CELLS, Repeated(executed))}


def _takes_no_hooks(module: nn.Module) -> bool:
    """Whether it is scripted, or inside one that is traced."""
    traced: Any = torch.jit._trace.TopLevelTracedModule
    return isinstance(module, torch.jit.ScriptModule) and not isinstance(module, traced)


def _eager() -> AbstractContextManager[Any]:
    """Run compiled modules without torch's compiler, which is imported where there are any."""
    stance: Any = getattr(torch.compiler, "set_stance", None)
    return stance("force_eager") if stance is not None and "torch._dynamo" in sys.modules else nullcontext()
