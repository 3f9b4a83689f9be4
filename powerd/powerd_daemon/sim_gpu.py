"""`powerd sim-gpu`: GPUs that obey caps and clocks, on a machine that has none.

For programs it looks like the NVIDIA driver: it prints what to put into the environment, or runs a command in it.
"""

from __future__ import annotations

import argparse
import getpass
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from powerd_core.card_file import card_named
from powerd_core.errors import ConfigError
from powerd_core.gpu_physics import CARDS
from powerd_daemon.ownership import delete_socket, replace
from powerd_daemon.sources.sim.as_pynvml.pynvml import ENVIRONMENT
from powerd_daemon.sources.sim.gpu import FAULTS, OF_A_KNOB, SimulatedGpu, SimulatedNode, check_faults
from powerd_daemon.sources.sim.gpu_socket import GpuServer, now_s

SHIM = Path(__file__).parent / "sources" / "sim" / "as_pynvml"
_CONTROL = "POWERD_CONTROL"
_IDLE = """powerd sim-gpu: the simulated GPU was given no work: its joules are those of an idle
card. A training on torch does not run on it; see docs/howto/simulated-gpu.md"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Simulates NVIDIA GPUs whose power and speed obey power caps and clocks. Programs that use pynvml, and the "
        "source nvml, see them in the environment that it prints; a command behind -- runs in it."
    )
    parser.epilog = "powerd sim-gpu --control -- python examples/sim_training.py"
    known = ", ".join(sorted(CARDS))
    parser.add_argument("--card", default="rtx6000", metavar="CARD", help=f"{known}, or a fitted CARD.toml")
    parser.add_argument("--cards", type=int, default=1, metavar="N", help="how many of them, 1 to 8")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the noise of readings")
    parser.add_argument("--noise", type="number", default=0.0, metavar="X", help="relative noise of readings, as 0.005")
    parser.add_argument("--socket", type=Path, metavar="PATH", help="where it answers (default: a folder of its own)")
    parser.add_argument("--control", action="store_true", help="start a control helper for them, which allows you all")
    known = f"{', '.join(FAULTS)}; {', '.join(OF_A_KNOB)} also of one knob, as not-supported:sm-clock"
    parser.add_argument("--fault", action="append", default=[], metavar="NAME", help=f"what goes wrong: {known}")
    parser.add_argument("then", nargs="*", metavar="COMMAND", help="run it in that environment, and end with it")


def run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.cards <= 8:
        raise ConfigError("--cards: a machine has 1 to 8")
    faults = check_faults(set(arguments.fault))
    card = card_named(arguments.card, lambda name: Path(name).read_text(encoding="utf-8")).card
    begin_s = now_s()
    gpus = [SimulatedGpu(card, i, seed=arguments.seed, now_s=begin_s) for i in range(arguments.cards)]
    for gpu in gpus:
        gpu.faults, gpu.noise = set(faults), arguments.noise
    with tempfile.TemporaryDirectory(prefix="powerd-sim-gpu-") as made:
        folder = Path(made)
        path = arguments.socket or folder / "gpu"
        server = GpuServer(SimulatedNode(gpus), _listen(path))
        bound = path.lstat()
        environment = {ENVIRONMENT: str(path), "PYTHONPATH": _path_with(str(SHIM), "PYTHONPATH")}
        environment["PATH"] = _path_with(_make_nvidia_smi(folder / "bin"), "PATH")
        if arguments.control:
            environment[_CONTROL] = str(folder / "control")
        try:
            return _serve(server, environment, folder, arguments)
        finally:
            delete_socket(path, bound)


def _serve(server: GpuServer, environment: dict[str, str], folder: Path, arguments: argparse.Namespace) -> int:
    def stop(*_: object) -> None:
        server.is_stopping = True

    thread = threading.Thread(target=server.serve, name="sim-gpu")
    thread.start()
    helper: subprocess.Popen[bytes] | None = None
    try:
        if arguments.control:
            helper = _start_helper(folder, environment)
        if arguments.then:
            status = _run_command(arguments.then, environment)
            if status == 0 and server.was_measured and not any(gpu.truth.busy_s for gpu in server.node.gpus):
                sys.stdout.flush()
                print(_IDLE, file=sys.stderr)
            return status
        shown = f"{arguments.cards} x {server.node.gpus[0].card.name}"
        print(f"# {shown}, simulated, until Ctrl-C. In another terminal:")
        for name, value in environment.items():
            print(f"export {name}={shlex.quote(value)}")
        print("# Then, for instance: joules record -- python examples/sim_training.py")
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, stop)
        try:
            while thread.is_alive() and (helper is None or helper.poll() is None):
                thread.join(0.2)
        except KeyboardInterrupt:
            print()
        return 0
    finally:
        if helper is not None:
            helper.terminate()
            helper.wait()
        server.is_stopping = True
        thread.join()


def _run_command(command: list[str], environment: dict[str, str]) -> int:
    """Run it; its status, 128 + n for signal n. Ctrl-C is the command's."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        status = subprocess.Popen(command, env={**os.environ, **environment}).wait()
    except OSError as error:
        raise ConfigError(f"cannot run {command[0]!r}: {error.strerror}") from error
    finally:
        signal.signal(signal.SIGINT, before)
    return 128 - status if status < 0 else status


def _start_helper(folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """The control helper, for the user who runs this. It is spoken to by message alone, and so it is a process."""
    found = 'sm_clock_found = "unlocked"\nmem_clock_found = "unlocked"\n'
    rule = f'{found}[[allow]]\nuser = "{getpass.getuser()}"\ndevices = ["*"]\nsteal = true\n'
    policy = folder / "control.toml"
    replace(policy, rule + 'knobs = ["power_cap_w", "sm_clock_mhz", "mem_clock_mhz"]\n', 0o600)
    command = [sys.executable, "-P", "-m", "powerd_control", "--simulated", "--socket", environment[_CONTROL]]
    log = (folder / "control.log").open("wb")
    with log:
        helper = subprocess.Popen(
            [*command, "--policy", str(policy), "--sysfs", str(folder / "no-sysfs")],
            env={**os.environ, **environment},
            stderr=log,
        )
    for _ in range(200):
        if Path(environment[_CONTROL]).exists():
            return helper
        if helper.poll() is not None:
            break
        threading.Event().wait(0.05)
    helper.kill()
    raise ConfigError(f"the control helper does not start: {(folder / 'control.log').read_text()[-500:]}")


def _make_nvidia_smi(folder: Path) -> str:
    """A folder with an `nvidia-smi` that asks the simulated GPU."""
    folder.mkdir()
    lines = [f"#!{sys.executable}", "import sys", "from powerd_daemon.sources.sim.nvidia_smi import main"]
    replace(folder / "nvidia-smi", "\n".join([*lines, "sys.exit(main())", ""]), 0o700)
    return str(folder)


def _path_with(first: str, name: str) -> str:
    parts = [first, *os.environ.get(name, "").split(os.pathsep)]
    return os.pathsep.join(part for part in dict.fromkeys(parts) if part)


def _listen(path: Path) -> socket.socket:
    """A socket for this user alone. Raises `ConfigError`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise ConfigError(f"--socket {path}: {error.strerror}") from error
    finally:
        os.umask(before)
    listener.listen(64)
    listener.setblocking(False)
    return listener
