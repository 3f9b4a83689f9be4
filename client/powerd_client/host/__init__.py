"""What the machine of a training has: its clock, its disk, its GPUs, and a powerd of its own."""
