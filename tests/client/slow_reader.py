"""A reader of many streams that looks too rarely: in a process of its own, which libzmq may abort (test_link.py)."""

import threading
import time

import zmq

from powerd_client.journals.link import Connection
from powerd_core.protocol import WINDOW

STREAMS, ROUNDS, PAUSE_S = 16, 3, 1.5


def main() -> None:
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger, router.sndhwm = 0, 0
    port = router.bind_to_random_port("tcp://127.0.0.1")
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            while router.poll(5):
                peer, _ = router.recv_multipart()
                for _ in range(STREAMS * WINDOW):  # all that a reader of so many streams has asked for
                    router.send_multipart([peer, b"x" * 2000])
        router.close()

    thread = threading.Thread(target=serve)
    thread.start()
    connection, received = Connection(context, f"tcp://127.0.0.1:{port}", None, 8), 0
    for _ in range(ROUNDS):
        connection.socket.send(b"more")
        time.sleep(PAUSE_S)  # longer than the patience of heartbeats
        while connection.socket.poll(200):
            connection.socket.recv()
            received += 1
    is_over.set()
    thread.join()
    connection.close()
    context.destroy(linger=0)
    print(received)


if __name__ == "__main__":
    main()
