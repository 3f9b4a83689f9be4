"""The sensor node: INA219 readings over USB serial. All but `hardware` runs under CPython and MicroPython alike."""
