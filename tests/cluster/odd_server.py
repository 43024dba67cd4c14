"""A server that takes connections and does not answer as servers do."""
import contextlib
import socket
import threading


class OddServer:
    """Takes every connection, and says `pieces` on it, one every 50 ms, whatever it is asked; then is silent, or `closes`."""

    def __init__(self, pieces=(), closes=False):
        self.pieces, self.closes, self.taken = pieces, closes, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve)
        self.changed = threading.Condition()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                with self.changed:
                    self.taken += 1
                    self.changed.notify_all()
                threading.Thread(target=self.talk, args=(client,)).start()

    def talk(self, client):
        with client, contextlib.suppress(OSError):
            client.recv(65536)
            client.settimeout(0.05)
            for piece in self.pieces:
                client.sendall(piece)
                with contextlib.suppress(TimeoutError):
                    if not client.recv(65536):
                        return
            client.settimeout(None)
            while not self.closes and client.recv(65536):
                pass

    def wait_taken(self):
        """Until somebody is there."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.taken > 0, 30), "nobody came"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()
