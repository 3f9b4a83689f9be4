"""pynvml on simulated GPUs, for programs of any environment: the standard library and their own nvidia-ml-py alone.

Where this folder is on the path it stands before the installed pynvml. Its functions are answered by the
`powerd sim-gpu` at the socket that $POWERD_SIM_GPU names; constants, exceptions and what asks no driver are those of
the installed one. Nothing of powerd is imported here, which the program's environment does not have.
"""

from __future__ import annotations

import inspect
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType, SimpleNamespace
from typing import Any

ENVIRONMENT = "POWERD_SIM_GPU"
DRIVER_NOT_LOADED = 9
_REAL = "powerd_installed_pynvml"
_OF_THE_DRIVER = (
    "nvmlDevice", "nvmlEventSet", "nvmlGpuInstance", "nvmlGpm", "nvmlInit", "nvmlShutdown", "nvmlSystem", "nvmlUnit",
    "nvmlVgpu",
)  # fmt: skip
"""How functions begin that ask the driver. Others are the binding's own, as `nvmlExceptionClass`."""
_SYMBOLS = ("GetMemoryInfo", "GetComputeRunningProcesses", "GetGraphicsRunningProcesses", "GetTemperature")
"""Functions of ``nvmlDevice`` that programs call by a pointer, past those of Python."""
_NOT_SUPPORTED, _INSUFFICIENT_SIZE, _FUNCTION_NOT_FOUND = 3, 7, 13
_NOT_KNOWN = 0xFFFFFFFF
Call = Callable[[str, list[Any]], Any]
"""From a function's name and its arguments to its value. Raises `Refusal`."""


class Refusal(Exception):
    """What the driver answers instead: a return value of NVML."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML error {code}")
        self.code = code


class _Connection(socket.socket):
    """One that is closed with the thread it belongs to."""

    def __del__(self) -> None:
        self.close()


class Wire:
    """Questions to a `powerd sim-gpu`, a JSON object a line, and its answers. Each thread has a connection."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._here = threading.local()
        self._pid = os.getpid()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Raises `OSError` where nobody answers."""
        if self._pid != os.getpid():  # forked: the connection is the parent's
            self._here, self._pid = threading.local(), os.getpid()
        try:
            if not hasattr(self._here, "socket"):
                made = _Connection(socket.AF_UNIX, socket.SOCK_STREAM)
                made.connect(self.path)
                self._here.socket = made
            self._here.socket.sendall(json.dumps(request).encode() + b"\n")
            received = b""
            while not received.endswith(b"\n"):
                part = self._here.socket.recv(1 << 16)
                if not part:
                    raise ConnectionResetError("it has ended")
                received += part
        except OSError:
            if hasattr(self._here, "socket"):
                del self._here.socket
            raise
        answer: dict[str, Any] = json.loads(received)
        return answer


_wires: dict[str, Wire] = {}


def call_of_environment(name: str, arguments: list[Any]) -> Any:
    """A function of NVML, of the simulated GPU that $POWERD_SIM_GPU names. Raises `Refusal` with the driver's return
    value; for a process that is gone, that the driver is not loaded."""
    path = os.environ.get(ENVIRONMENT, "")
    try:
        answer = _wires.setdefault(path, Wire(path)).ask({"call": name, "arguments": arguments})
    except OSError:
        raise Refusal(DRIVER_NOT_LOADED) from None
    if "value" not in answer:
        raise Refusal(int(answer.get("nvml_error", 2)))
    return answer["value"]


def fill(names: dict[str, Any], call: Call, functions: Iterable[str] = ()) -> None:
    """Make a name space one with pynvml's names that answers by ``call``. ``functions`` are there though the installed
    one may not know them. Raises `ImportError` where none is installed."""
    real = _installed()
    own = {name: value for name, value in vars(real).items() if not name.startswith("__")}

    def answer(name: str) -> Callable[..., Any]:
        def function(*arguments: Any, **named: Any) -> Any:
            order = _parameters(own.get(name)) if named else []
            if unknown := named.keys() - set(order):
                raise TypeError(f"{name}() got an unexpected keyword argument {min(unknown)!r}")
            given = [*arguments, *(named[key] for key in order if key in named)]
            try:
                return _structured(call(name, [_plain(argument) for argument in given]))
            except Refusal as refusal:
                raise real.NVMLError(refusal.code) from None

        function.__name__ = name
        return function

    def pointer(name: str) -> Callable[..., int]:
        function = name.partition("_v")[0]
        if name == "nvmlDeviceGetTemperatureV":  # programs take the older one then
            raise real.NVMLError(_FUNCTION_NOT_FOUND)
        if function.removeprefix("nvmlDevice") not in _SYMBOLS:
            return lambda *_: _NOT_SUPPORTED
        return lambda *arguments: _call_by_pointer(call, function, arguments)

    asked = [name for name in own if name.startswith(_OF_THE_DRIVER) and callable(own[name])]
    names.update(own)
    names.update({name: answer(name) for name in {*asked, *functions}})
    names["nvmlInitWithFlags"] = lambda flags=0: names["nvmlInit"]()
    names["nvmlErrorString"] = lambda code: str(real.NVMLError(code))
    names["_nvmlGetFunctionPointer"] = pointer
    names["SIMULATED"] = True


def _call_by_pointer(call: Call, name: str, arguments: tuple[Any, ...]) -> int:
    """A function as the driver's library has it: its answer is put behind the pointers that are handed over. Its
    return value."""
    behind = [argument._obj for argument in arguments if hasattr(argument, "_obj")]  # of ctypes.byref
    given = [a for a in arguments if isinstance(a, int) or hasattr(a, "value")]
    try:
        value = call(name, [_plain(argument) for argument in given])
    except Refusal as refusal:
        return refusal.code
    if isinstance(value, list):
        behind[0].value, array = len(value), arguments[-1]
        if value and array is None:
            return _INSUFFICIENT_SIZE
        for structure, of in zip(array or (), value, strict=False):
            _fill(structure, of)
    elif isinstance(value, dict):
        _fill(behind[-1], value)
    else:
        behind[-1].value = value
    return 0


def _fill(structure: Any, value: dict[str, Any]) -> None:
    for name, member in value.items():
        if hasattr(structure, name) and name != "version":
            setattr(structure, name, _NOT_KNOWN if member is None else member)


def _parameters(function: Any) -> list[str]:
    """The names of a function's parameters, in order: those that are given by name are sent in their places."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _installed() -> ModuleType:
    """The installed pynvml, though this one stands before it under that name."""
    if _REAL in sys.modules:
        return sys.modules[_REAL]
    ours = os.path.dirname(os.path.abspath(__file__))
    found = PathFinder.find_spec("pynvml", [path for path in sys.path if os.path.abspath(path) != ours])
    if found is None or not found.origin:
        raise ImportError("a simulated GPU needs the package nvidia-ml-py: pip install nvidia-ml-py")
    # Under a name of its own: while it loads it looks itself up by its name.
    folders = found.submodule_search_locations
    spec = spec_from_file_location(_REAL, found.origin, submodule_search_locations=list(folders) if folders else None)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[_REAL] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _plain(argument: Any) -> Any:
    if isinstance(argument, bytes):
        return argument.decode()
    value = getattr(argument, "value", argument)
    return list(value) if isinstance(value, tuple) else value


def _structured(value: Any) -> Any:
    """Dicts as structures with members, as pynvml has them."""
    if isinstance(value, dict):
        return SimpleNamespace(**{key: _structured(v) for key, v in value.items()})
    return [_structured(v) for v in value] if isinstance(value, list) else value


if __name__ == "pynvml":
    fill(globals(), call_of_environment)
