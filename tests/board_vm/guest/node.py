"""The node's firmware behind the kernel's USB serial gadget, with simulated sensors. It ends when it is unplugged.

Arguments: the gadget's terminal and the number of sensors. Standard input has to stay open.
"""

import os
import sys
import tty
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "firmware/support"))

from node_process import Node, ProcessPico


class GadgetPico(ProcessPico):
    def read(self) -> bytes:
        try:
            return os.read(self.master, 64) or sys.exit("unplugged")
        except BlockingIOError:
            return b""
        except OSError as error:
            sys.exit(f"unplugged: {error}")


def main() -> None:
    terminal = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
    tty.setraw(terminal)
    os.set_blocking(terminal, False)
    Node(GadgetPico(terminal, int(sys.argv[2]))).run()


if __name__ == "__main__":
    main()
