"""Power meters on serial lines and USBTMC: the way to them, what a Yokogawa WT310E understands, and a simulated one."""
