"""Runs when the Pico starts. With GP22 connected to ground it leaves the board to mpremote."""

import machine

if machine.Pin(22, machine.Pin.IN, machine.Pin.PULL_UP).value():
    from powernode.hardware import Pico
    from powernode.node import Node

    Node(Pico()).run()
