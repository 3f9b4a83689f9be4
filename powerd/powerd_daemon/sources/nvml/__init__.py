"""Power, energy and auxiliary channels of NVIDIA GPUs through NVML."""
