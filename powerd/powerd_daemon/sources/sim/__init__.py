"""Simulated hardware: chips and their bus at the register, loads whose joules are known exactly, and the source."""
