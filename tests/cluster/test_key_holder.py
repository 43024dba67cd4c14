"""What one who has shown a right key floods: calls that are given up at once, over gRPC and HTTP. Memory has a bound, and others are answered
as before."""
import contextlib
import json
import pathlib
import socket
import tempfile
import threading
import unittest

import grpc_call
from harness import Cluster
from test_trust import PREFACE, frame

RIGHT, OTHER = "sk-right", "sk-other"
SENT, MOST_GROWN = 7 << 20, 192 << 20  # bytes; they took 540 MB, and take 20 to 103 now
BODY = {"model": "tiny-llama", "prompt": "one two three", "max_tokens": 8, "temperature": 0}


def resident(pid):
    """Bytes, at most, since the process began."""
    line = next(line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def literal(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


HEADERS = (b"\x83\x86" + literal(b":path", b"/baton.v1.Generation/Generate") + literal(b":authority", b"a") + literal(b"te", b"trailers")
           + literal(b"content-type", b"application/grpc") + literal(b"authorization", b"Bearer " + RIGHT.encode()))
REQUEST = grpc_call.field(2, "a b c d " * 8)


def call(stream):
    """A call, given up at once."""
    message = b"\0" + len(REQUEST).to_bytes(4, "big") + REQUEST
    return frame(1, 4, stream, HEADERS) + frame(0, 1, stream, message) + frame(3, 0, stream, b"\0\0\0\x08")


class Others:
    """A client of another key and another address, who asks without pause."""

    def __init__(self, cluster):
        self.cluster, self.over, self.done, self.wrong = cluster, threading.Event(), 0, []
        self.thread = threading.Thread(target=self.ask)

    def ask(self):
        while not self.over.is_set():
            reply = self.cluster.post("/v1/completions", BODY, headers={"Authorization": f"Bearer {OTHER}"})
            self.done += 1
            if reply.status != 200:
                self.wrong.append((reply.status, reply.body))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


class KeyHolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        keys = pathlib.Path(folder.name, "keys")
        keys.write_text(f"{RIGHT}\n{OTHER}\n")
        self.args = ["--api-key-file", keys, "--threads", 1]

    def flooded(self, send):
        """`send(cluster, address)` from this machine's own address and from another."""
        for source in ("127.0.0.1", "127.0.0.2"):
            with self.subTest(source=source), Cluster(args=self.args) as c, Others(c) as others:
                c.wait_until(lambda: others.done > 5, "answers")
                before = resident(c.pid_of("router"))
                send(c, source)
                grown, done = resident(c.pid_of("router")) - before, others.done
                print(f"{self._testMethodName}, {source}: {grown >> 20} MiB more")
                self.assertLess(grown, MOST_GROWN)
                c.wait_until(lambda: others.done > done + 5, "answers afterwards")
                self.assertEqual(others.wrong, [])

    def test_calls_given_up_without_end_over_grpc(self):
        def send(c, source):
            host, port = c.grpc.rsplit(":", 1)
            sent, ended = 0, 0
            while sent < SENT and ended < 50:
                with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=20, source_address=(source, 0)) as s:
                    s.sendall(PREFACE)
                    for stream in range(1, 1 << 20, 128):
                        data = b"".join(call(n) for n in range(stream, stream + 128, 2))
                        s.sendall(data)
                        sent += len(data)
                        if sent >= SENT:
                            return
                ended += 1  # and comes again
        self.flooded(send)

    def test_requests_of_clients_that_leave_at_once_over_http(self):
        body = json.dumps({**BODY, "max_tokens": 100, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {RIGHT}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        data = head.encode() + body

        def send(c, source):
            sent = 0
            while sent < SENT // 4:
                with contextlib.suppress(OSError), socket.create_connection((c.host, int(c.port)), timeout=20, source_address=(source, 0)) as s:
                    s.sendall(data)
                sent += len(data)
        self.flooded(send)


if __name__ == "__main__":
    unittest.main()
