"""What one who has shown a right key floods: calls that are given up at once, over gRPC and HTTP. Memory has a bound, and others are answered
as before."""
import contextlib
import json
import os
import pathlib
import signal
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


def asked(stream, headers=HEADERS):
    message = b"\0" + len(REQUEST).to_bytes(4, "big") + REQUEST
    return frame(1, 4, stream, headers) + frame(0, 1, stream, message)


def call(stream):
    """A call, given up at once."""
    return asked(stream) + frame(3, 0, stream, b"\0\0\0\x08")


def frames(client):
    """(kind, flags, stream) of each that comes, until the connection ends."""
    data = b""
    while more := client.recv(1 << 16):
        data += more
        while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
            yield data[3], data[4], int.from_bytes(data[5:9], "big")
            data = data[9 + int.from_bytes(data[:3], "big"):]


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

    def give_up(self, c, source):
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

    def test_calls_given_up_without_end_over_grpc(self):
        self.flooded(self.give_up)

    def test_whoever_waits_until_his_deadline_may_do_so_without_end(self):
        """More calls than may be given up at once, a hundred at a time, while the worker is stopped."""
        headers, batch = HEADERS + literal(b"grpc-timeout", b"150m"), 100
        with Cluster(args=self.args) as c:
            host, port = c.grpc.rsplit(":", 1)
            with socket.create_connection((host, int(port)), timeout=20) as s:
                s.sendall(PREFACE)
                os.kill(c.workers("both")[0], signal.SIGSTOP)
                come = frames(s)
                for first in range(1, 6000, 2 * batch):
                    open_ = set(range(first, first + 2 * batch, 2))
                    s.sendall(b"".join(asked(n, headers) for n in sorted(open_)))
                    while open_:
                        kind, flags, stream = next(come, (None, 0, 0))
                        self.assertIsNotNone(kind, f"ended at call {first // 2}: {c.log.read_text()[-500:]}")
                        if kind == 3 or kind == 1 and flags & 1:  # RST_STREAM, or trailers
                            open_.discard(stream)
            os.kill(c.workers("both")[0], signal.SIGCONT)
            self.assertNotIn('reason="calls-given-up-per-key"', c.get("/metrics", headers={"Authorization": f"Bearer {RIGHT}"}).body)

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
