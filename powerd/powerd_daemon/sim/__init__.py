"""Simulated hardware: INA219 chips and their bus at the register, and loads whose joules are known exactly."""
