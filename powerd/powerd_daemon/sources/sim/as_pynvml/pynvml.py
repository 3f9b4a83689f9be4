"""Stands before the installed pynvml where this folder is on the path: its functions are answered by `powerd sim-gpu`.

``$POWERD_SIM_GPU`` is the socket of that process.
"""

from powerd_daemon.sources.sim.gpu_socket import SimGpu
from powerd_daemon.sources.sim.nvml_face import make_module

make_module(SimGpu.of_environment, globals())
