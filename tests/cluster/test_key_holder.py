"""What one who has shown a right key floods: calls that are given up at once, over gRPC and HTTP. Memory has a bound, and others are answered
as before. And what needs no key: connections of this machine that say nothing."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import select
import signal
import socket
import tempfile
import unittest

import grpc_call
from harness import TINY, Beside, Cluster, HeldStream
from test_tls import Process
from test_trust import PREFACE, frame, literal, resident

RIGHT, OTHER = "sk-right", "sk-other"
SENT, MOST_GROWN = 7 << 20, 192 << 20  # bytes; they took 540 MB, and take 20 to 103 now
BODY = {"model": "tiny-llama", "prompt": "one two three", "max_tokens": 8, "temperature": 0}


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


class Others(Beside):
    """A client of another key and another address, who asks without pause."""

    def __init__(self, cluster):
        self.cluster, self.done, self.wrong = cluster, 0, []

    def go_on(self):
        while not self.over.is_set():
            reply = self.cluster.post("/v1/completions", BODY, headers={"Authorization": f"Bearer {OTHER}"})
            self.done += 1
            if reply.status != 200:
                self.wrong.append((reply.status, reply.body))


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


class SilentConnections(Beside):
    """Of 127.0.0.1, 500 new ones a second; each stays until the server ends it."""

    def __init__(self, host, port, first):
        self.address, self.first, self.opened = (host, int(port)), first, 0

    def go_on(self):
        held = {}
        while not self.over.wait(0.02):
            for _ in range(10):
                with contextlib.suppress(OSError):
                    s = socket.create_connection(self.address, timeout=20)
                    held[s.fileno()] = s
                    self.opened += 1
                    s.sendall(self.first)
            poll = select.poll()
            for fd in held:
                poll.register(fd, select.POLLRDHUP)
            for fd, _ in poll.poll(0):
                held.pop(fd).close()
        for s in held.values():
            s.close()


class Silence(unittest.TestCase):
    """A port that they fill takes others in their place, and takes it from nobody who asks or is answered."""
    MOST = 700
    COMPLETION = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"

    def setUp(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

    def status(self, port, path, source, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30, source_address=(source, 0))
        with contextlib.closing(connection):
            connection.request("GET" if body is None else "POST", path, body, {"Authorization": f"Bearer {RIGHT}", "Content-Type": "application/json"})
            return connection.getresponse().status

    def served(self, c, port, first, ask):
        with self.subTest(port=port, first=first), SilentConnections("127.0.0.1", port, first) as silent:
            c.wait_until(lambda: silent.opened > self.MOST + 200, "connections", seconds=120)
            for _ in range(10):
                for source in "127.0.0.2", "127.0.0.1":
                    ask(source)

    def test_leaves_the_ports_of_a_router_to_others(self):
        with Cluster(args=["--api-key", RIGHT, "--threads", 1, "--max-connections", self.MOST]) as c:
            def answered(source):
                self.assertEqual(self.status(c.port, "/health", source), 200)
                self.assertEqual(self.status(c.port, "/v1/completions", source, json.dumps(BODY)), 200)

            def called(source):
                self.assertEqual(grpc_call.call(c.grpc, "/baton.v1.Generation/GetModel", b"", source=source, key=RIGHT)[0], "OK")
            admin, grpc = (address.rsplit(":", 1)[1] for address in (c.admin, c.grpc))
            for first in b"", b"GET /v1/mod":
                self.served(c, c.port, first, answered)
            self.served(c, admin, b"", lambda source: self.assertEqual(self.status(admin, "/health", source), 200))
            for first in b"", PREFACE:
                self.served(c, grpc, first, called)
            counted = c.get("/metrics", headers={"Authorization": f"Bearer {RIGHT}"}).body.splitlines()
            for port in "http", "admin", "grpc":
                self.assertTrue(any(f'port="{port}",reason="for-another"' in line for line in counted), port)
            self.assertIn("http port: a connection of 127.0.0.1 is ended (for-another)", c.log.read_text())

    def test_throws_nobody_out_who_asks_or_is_answered_and_last_who_comes_again(self):
        with Cluster(args=["--threads", 1, "--max-connections", self.MOST]) as c, HeldStream(c) as held, contextlib.ExitStack() as there:
            again = there.enter_context(contextlib.closing(http.client.HTTPConnection(c.host, int(c.port), timeout=30)))
            sends = there.enter_context(socket.create_connection((c.host, int(c.port)), timeout=30))

            def asks_again():
                again.request("POST", "/v1/completions", json.dumps(BODY), {"Content-Type": "application/json"})
                reply = again.getresponse()
                self.assertEqual((reply.status, len(reply.read()) > 0, again.sock is not None), (200, True, True))
            asks_again()
            own = again.sock
            body = json.dumps(BODY).encode() + b" " * 200_000
            sends.sendall((self.COMPLETION % (RIGHT, len(body))).encode())
            with SilentConnections(c.host, c.port, b"") as silent:
                for part in range(0, len(body), 20_000):  # 10 pieces, each while half of all connections are made anew
                    sends.sendall(body[part:part + 20_000])
                    opened = silent.opened
                    c.wait_until(lambda: silent.opened > opened + self.MOST // 2, "connections", seconds=60)
                self.assertIn(b" 200 OK", sends.recv(64))
                asks_again()
                self.assertIs(again.sock, own, "it is the same connection")
                self.assertEqual(held.rest()[-1], "[DONE]")
            self.assertGreater(c.metric("baton_http_connections_closed_total"), self.MOST)

    def test_each_port_has_its_share_of_the_files_that_a_process_may_open(self):
        files, of_a_port = 1900, (1900 - 1900 // 4) // 3
        with Cluster(args=["--threads", 1], preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))) as c, contextlib.ExitStack() as floods:
            self.assertTrue(f"a port has {of_a_port} connections at most, not 16384: the limit of open files is {files}" in c.log.read_text())
            admin, grpc = (address.rsplit(":", 1)[1] for address in (c.admin, c.grpc))
            silent = [floods.enter_context(SilentConnections("127.0.0.1", port, b"")) for port in (c.port, admin, grpc)]
            c.wait_until(lambda: min(one.opened for one in silent) > of_a_port + 200, "connections", seconds=120)
            for _ in range(10):
                self.assertEqual([self.status(port, "/health", "127.0.0.1") for port in (c.port, admin)], [200, 200])
                self.assertEqual(grpc_call.call(c.grpc, "/baton.v1.Generation/GetModel", b"")[0], "OK")

    def test_where_no_file_can_be_opened_any_more_some_give_way(self):
        with Cluster(args=["--threads", 1]) as c:
            router = next(pid for pid, name in c.children().items() if name == "router")
            admin, grpc = (address.rsplit(":", 1)[1] for address in (c.admin, c.grpc))
            for port, ask in ((c.port, lambda: self.status(c.port, "/health", "127.0.0.1")), (admin, lambda: self.status(admin, "/health", "127.0.0.1")),
                              (grpc, lambda: grpc_call.call(c.grpc, "/baton.v1.Generation/GetModel", b"")[0])):
                with self.subTest(port=port):
                    most = len(os.listdir(f"/proc/{router}/fd")) + 100
                    resource.prlimit(router, resource.RLIMIT_NOFILE, (most, resource.prlimit(router, resource.RLIMIT_NOFILE)[1]))
                    with SilentConnections("127.0.0.1", port, b"") as silent:
                        c.wait_until(lambda: silent.opened > 300, "connections", seconds=120)
                        for _ in range(10):
                            self.assertIn(ask(), (200, "OK"))

    def test_leaves_the_status_port_of_a_worker_to_others(self):
        with Process("worker", "--model", TINY, "--load-format", "dummy", "--threads", 1, "--port", 0, "--status-port", 0) as worker:
            worker.until_logged("/live, /ready and /metrics at")
            port = re.search(r"/metrics at http://[0-9.]+:(\d+)", worker.log.read_text())[1]
            with SilentConnections("127.0.0.1", port, b"") as silent:
                worker.until(lambda: silent.opened > 600, "connections", 120)
                for _ in range(10):
                    for source in "127.0.0.2", "127.0.0.1":
                        self.assertEqual(self.status(port, "/live", source), 200)
            worker.until_logged("status port: a connection of 127.0.0.1 is ended (for-another)")


if __name__ == "__main__":
    unittest.main()
