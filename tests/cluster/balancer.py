"""A TCP balancer, as a Service of Kubernetes with an address of its own is one: knows connections, and nothing of what they carry."""
import contextlib
import socket
import threading

BUFFER = 4096  # little stays on the way: who does not read is one who does not read


class Balancer:
    """`choose(number)`: the ports to which the connection of this number goes, since the start or the latest cut: the first that takes it.
    Use as a context manager."""

    def __init__(self, choose):
        self.choose, self.count, self.pairs = choose, 0, set()
        self.door = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self.door.getsockname()

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.door.shutdown(socket.SHUT_RDWR)
        self.door.close()
        self.cut()

    def cut(self):
        """Every connection ends."""
        self.count = 0
        for pair in list(self.pairs):
            self.end(pair)

    def accept(self):
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self.door.accept()
                near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
                number, self.count = self.count, self.count + 1
                far = self.dial(self.choose(number))
                if far is None:
                    near.close()
                    continue
                self.pairs.add((near, far))
                threading.Thread(target=self.serve, args=(near, far), daemon=True).start()

    def serve(self, near, far):
        with near, far:
            back = threading.Thread(target=self.pump, args=(far, near), daemon=True)
            back.start()
            self.pump(near, far)
            back.join()
            self.pairs.discard((near, far))

    @staticmethod
    def end(pair):
        for one in pair:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def dial(ports):
        for port in ports:
            far = socket.socket()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            with contextlib.suppress(ConnectionError):
                far.connect(("127.0.0.1", int(port)))
                return far
            far.close()
        return None

    def pump(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        self.end((source, sink))
