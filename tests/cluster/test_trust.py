"""The cluster secret: answers as without it, and who does not know it is refused with a line where it dialled and one where it was dialled."""
import contextlib
import json
import pathlib
import re
import resource
import shutil
import socket
import struct
import tempfile
import time
import unittest
import urllib.request

import grpc_call
from harness import TINY, Cluster, run
from test_tls import Certs, Process, ask, port_of, router, worker


class Secrets(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-secret-"))
        self.addCleanup(shutil.rmtree, self.dir, True)

    def secret(self, name, text=None, mode=0o600):
        path = self.dir / name
        path.write_text(text or name * 40)
        path.chmod(mode)
        return ["--cluster-secret-file", path]


class Answers(Secrets):
    def test_serve_makes_a_secret_that_nobody_sees(self):
        with Cluster(args=["--prefill", 1, "--decode", 1]) as c:
            self.assertEqual(ask(c).status, 200)
            lines = [pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in c.children()]
            given = [line for line in lines if "--cluster-secret-file=/proc/self/fd/" in line]
            self.assertEqual(len(given), 3, "router, prefill and decode have one")

    def test_processes_with_one_secret_answer_and_a_router_that_restarts_greets_again(self):
        secret = self.secret("a")
        with worker("--port", 0, *secret) as w:
            address = port_of(w)
            for _ in range(2):
                with router(address, *secret) as r:
                    self.assertIn("127.0.0.1", r.value("BATON_HTTP"))


class Refusals(Secrets):
    def test_a_router_with_another_secret_or_none(self):
        with worker("--port", 0, *self.secret("a")) as w:
            address = port_of(w)
            with router(address, *self.secret("b")) as r:
                r.until_logged("mismatch: the peer has another cluster secret")
                w.until_logged("127.0.0.1 is refused: it has seen our proof and shown none")
            with router(address) as r:
                r.until_logged("the router does not greet: it is started without --cluster-secret-file")
                w.until_logged("127.0.0.1 is refused: the router does not greet")

    def test_strangers_that_fill_a_workers_port_shut_no_router_out(self):
        secret = self.secret("a")
        begins = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
        places = 4096
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
        with worker("--port", 0, *secret) as w:
            address = port_of(w)
            host, port = address.rsplit(":", 1)
            with router(address, *secret) as first, contextlib.ExitStack() as held:
                http = first.value("BATON_HTTP")
                for _ in range(places + 50):
                    s = held.enter_context(socket.create_connection((host, int(port))))
                    s.sendall(begins)
                with router(address, *secret) as second:
                    self.answers(second.value("BATON_HTTP"))
                self.answers(http)

    def test_routers_that_come_again_and_again_are_let_in_without_a_secret(self):
        with worker("--port", 0) as w:
            protocol = grpc_call.field(1, grpc_call.field(1, 1) + grpc_call.field(2, 1 << 20))
            for i in range(70):  # of 50 connections of an address that may come to nothing
                code, said = grpc_call.call(port_of(w), "/baton.v1.Worker/Handshake", protocol, source="127.0.0.2")
                self.assertEqual(code, "OK", f"{i}: {said}")

    def answers(self, http):
        body = json.dumps({"prompt": "hello", "max_tokens": 4}).encode()
        request = urllib.request.Request(http + "/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            self.assertEqual(reply.status, 200)

    def test_a_worker_without_one(self):
        with worker("--port", 0) as w, router(port_of(w), *self.secret("a")) as r:
            r.until_logged("mismatch: the worker does not greet: it is started without --cluster-secret-file")

    def test_files_that_are_no_secret(self):
        base = ["worker", "--model", TINY, "--load-format", "dummy", "--port", 0]
        for name, text, mode, says in [("short", "x", 0o600, "1 bytes, it must have 32 to 4096"),
                                       ("open", "x" * 32, 0o644, "may be read by everybody on this machine"),
                                       ("given", "x" * 32, 0o602, "may be written by everybody on this machine")]:
            done = run(base + self.secret(name, text, mode))
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(says, done.stderr + done.stdout)
        done = run(base + ["--cluster-secret-file", self.dir / "nothing"])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("nothing: ", done.stderr + done.stdout)


class OffLoopback(unittest.TestCase):
    def refused(self, *args):
        done = run(args)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        return done.stderr + done.stdout

    def test_a_worker_needs_tls_and_the_cluster_secret(self):
        base = ["worker", "--model", TINY, "--load-format", "dummy"]
        away = [*base, "--host", "0.0.0.0"]
        ranks = [*base, "--nnodes", 2, "--tensor-parallel-size", 2, "--master-addr", "192.0.2.1"]
        with Certs() as certs:
            tls, secret = certs.flags(), ["--cluster-secret-file", certs.dir / "cluster-secret"]
            for given, lacks in [([], "--tls-cert, --tls-key, --tls-ca and --cluster-secret-file ("), (tls, "--cluster-secret-file ("),
                                 (secret, "--tls-cert, --tls-key and --tls-ca (")]:
                said = self.refused(*away, *given)
                self.assertIn("--host 0.0.0.0 can be reached from other machines: that needs " + lacks, said)
                self.assertEqual(said.count("\n"), 1, said)
            self.assertIn("--master-addr 192.0.2.1 can be reached from other machines: that needs --tls-cert, --tls-key and --tls-ca (", self.refused(*ranks, *secret))
            for given, trusts in [([], "whoever reaches it is trusted, and all is plain text"), (tls, "whoever reaches its KV port is trusted"), (secret, "all is plain text")]:
                with Process(*away, *given, "--insecure") as w:
                    w.until_logged(f"worker: --insecure at 0.0.0.0: {trusts}\n", "gRPC at ")
            with Process(*away, *tls, *secret) as w:
                w.until_logged("TLS with the certificate of \"baton-worker\"")

    def test_what_neither_asks_who_comes_nor_encrypts_needs_a_trusted_network(self):
        base = ["worker", "--role", "decode", "--model", TINY, "--load-format", "dummy"]
        with Certs() as certs:
            proven = [*certs.flags(), "--cluster-secret-file", certs.dir / "cluster-secret"]
            away = [*base, *proven, "--host", "0.0.0.0", "--advertise-host", "127.0.0.1"]
            gpus = [*base, *proven, "--device", "cuda:0", "--nnodes", 2, "--tensor-parallel-size", 2, "--master-addr", "192.0.2.1"]
            for given, port in [([*away, "--transport", "ucx-tcp"], "--transport ucx-tcp: UCX"), ([*away, "--transport", "ucx"], "--transport ucx: UCX"),
                                ([*away, "--require-rdma"], "--require-rdma: UCX"), (gpus, "--nnodes 2 of GPUs: NCCL")]:
                said = self.refused(*given)
                self.assertIn(f"{port} has ports of its own, which neither ask for the cluster secret nor encrypt: --kv-trusted-network", said)
                self.assertEqual(said.count("\n"), 1, said)
            for given in (["--transport", "ucx-tcp", "--kv-trusted-network"], ["--transport", "tcp"], []):
                with Process(*away, *given) as w:
                    w.until_logged("gRPC at ")


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def literal(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def resident(pid):
    """Bytes, at most, since the process began."""
    line = next(line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


# POST, http, :path /a, :authority a, te, content-type; and given up at once
HEADERS = b"\x83\x86\x04\x02/a\x01\x01a\0\x02te\x08trailers\x0f\x10\x10application/grpc"
RESETS = b"".join(frame(1, 5, n, HEADERS) + frame(3, 0, n, b"\0\0\0\x08") for n in range(1, 240, 2))


def indexed(name, value):
    return b"\x40" + bytes([len(name)]) + name + bytes([len(value)]) + value


class UnfinishedCalls(Secrets):
    """Of one who knows neither secret nor key: headers of calls, 15 bytes each, for which gRPC keeps 16 KiB, and messages that do not come."""
    CALLS, MOST_GROWN = 40_000, 320 << 20
    WATCH = frame(1, 4, 1, b"\x83\x86" + literal(b":path", b"/grpc.health.v1.Health/Watch") + literal(b":authority", b"a") + literal(b"te", b"trailers")
                  + literal(b"content-type", b"application/grpc")) + frame(0, 1, 1, b"\0\0\0\0\0")

    def begun(self, method, first, count):
        """Headers of calls; the first ones of a connection name what the others repeat."""
        names = b"\x83\x86" + indexed(b":path", method) + indexed(b":authority", b"a") + indexed(b"te", b"trailers") + indexed(b"content-type", b"application/grpc")
        return b"".join(frame(1, 4, 2 * n + 1, names if n == 1 else b"\x83\x86\xc1\xc0\xbf\xbe") for n in range(first, first + count))

    @staticmethod
    def until_ended(client):
        """Reads on, and answers PINGs."""
        data = b""
        while more := client.recv(65536):
            data += more
            while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
                size = 9 + int.from_bytes(data[:3], "big")
                if data[3] == 6 and data[4] == 0:
                    client.sendall(frame(6, 1, 0, data[9:size]))
                data = data[size:]

    def floods(self, address, source, method, log):
        """Connections on which calls begin, until there were so many of them."""
        host, port = address.rsplit(":", 1)
        sent, ended = 0, 0
        deadline = time.monotonic() + 120
        while sent < self.CALLS and (source == "127.0.0.1" or f"{source} is refused (open-calls)" not in log.read_text()):
            self.assertLess(time.monotonic(), deadline, f"{sent} calls, {ended} connections ended")
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=10, source_address=(source, 0)) as s:
                s.sendall(PREFACE)
                for first in range(1, 2001, 50):
                    s.sendall(self.begun(method, first, 50))
                    sent += 50
                s.settimeout(1)
                while s.recv(65536):
                    pass
            ended += 1

    def test_cost_a_worker_little_and_do_not_stay(self):
        secret = self.secret("a")
        with worker("--port", 0, "--threads", 1, *secret) as w, router(port_of(w), *secret) as r:
            http = r.value("BATON_HTTP")
            before = resident(w.process.pid)
            for source in "127.0.0.1", "127.0.0.2":
                self.floods(port_of(w), source, b"/baton.v1.Worker/Handshake", w.log)
            self.assertLess(resident(w.process.pid) - before, self.MOST_GROWN)
            w.until_logged("worker port: a connection of 127.0.0.1 is refused (open-calls)", "worker port: a connection of 127.0.0.2 is refused (open-calls)")
            host, port = port_of(w).rsplit(":", 1)
            with socket.create_connection((host, int(port)), timeout=60) as s:  # eight megabytes, a byte of them
                s.sendall(PREFACE + self.WATCH + self.begun(b"/baton.v1.Worker/Handshake", 1, 1) + frame(0, 0, 3, b"\0\0\x7a\x12\0x"))
                self.until_ended(s)
            w.until_logged("worker port: a connection of 127.0.0.1 is refused (unfinished-call)")
            Refusals.answers(self, http)

    def test_cost_a_router_little(self):
        with Cluster(args=["--api-key", "sk-right", "--threads", 1]) as c:
            router = c.pid_of("router")
            before = resident(router)
            self.floods(c.grpc, "127.0.0.1", b"/baton.v1.Generation/GetModel", c.log)
            self.assertLess(resident(router) - before, self.MOST_GROWN)
            self.assertIn("grpc port: a connection of 127.0.0.1 is refused (open-calls)", c.log.read_text())
            self.assertEqual(grpc_call.call(c.grpc, "/baton.v1.Generation/GetModel", b"", key="sk-right")[0], "OK")


def cpu_seconds(pid):
    return time.clock_gettime(~pid << 3 | 2)  # of all of its threads


class GrpcFront(unittest.TestCase):
    def test_whoever_floods_without_a_key_is_refused_and_a_right_key_may_send_large_messages(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = pathlib.Path(folder, "keys")
            keys.write_text("sk-right\n")
            with Cluster(args=["--api-key-file", keys]) as c:
                calls = b"".join(frame(1, 5, n, HEADERS) for n in range(1, 240, 2))
                for source, data in ("127.0.0.2", calls), ("127.0.0.3", frame(4, 0, 0, b"") * 2000):
                    line, deadline = f"grpc port: a connection of {source} is refused (vain-tries-per-address)", time.monotonic() + 120
                    with contextlib.ExitStack() as held:
                        for _ in range(30):  # 30 of 50 tries by themselves
                            s = held.enter_context(self.connected(c, source))
                            with contextlib.suppress(OSError):  # it is refused by now
                                s.sendall(PREFACE)
                                s.recv(1)
                                s.sendall(data)
                        while line not in c.log.read_text():
                            self.assertLess(time.monotonic(), deadline, f"{source} is never refused")
                            time.sleep(0.02)
                # Nearly the largest; and it comes slowly enough to be seen while it does.
                large = grpc_call.field(99, b"x" * 8_000_000)
                for i in range(3):
                    code, said = grpc_call.call(c.grpc, "/baton.v1.Generation/GetModel", large, source="127.0.0.4", key="sk-right", rate=8_000_000)
                    self.assertEqual(code, "OK", f"{i}: {said}")

    def test_resets_and_useless_connections_of_one_address_are_counted_and_others_are_answered(self):
        with Cluster() as c:
            for source, data in ("127.0.0.2", PREFACE + RESETS), ("127.0.0.3", PREFACE), ("127.0.0.5", b"noise" * 100):
                line, deadline = f"grpc port: a connection of {source} is refused (vain-tries-per-address)", time.monotonic() + 120
                while line not in c.log.read_text():
                    self.assertLess(time.monotonic(), deadline, f"{source} is never refused")
                    for _ in range(20):
                        self.one(c, source, data)
            counted = [line for line in c.get("/metrics").body.splitlines() if 'port="grpc",reason="vain-tries-per-address"' in line]
            self.assertGreaterEqual(float(counted[0].rsplit(" ", 1)[1]), 3)
            for i in range(60):  # each a connection, of 50 that may come to nothing
                code, said = grpc_call.call(c.grpc, "/baton.v1.Generation/GetModel", b"", source="127.0.0.4")
                self.assertEqual(code, "OK", f"{i}: {said}")

    def test_strangers_of_the_clients_own_address_cost_little_and_clients_there_are_answered(self):
        """gRPC took as long for silence and for noise as for any connection, and ten times as long for the first of these."""
        with Cluster() as c:
            router = c.pid_of("router")

            def cost_of(one):
                before = cpu_seconds(router)
                for _ in range(200):
                    one()
                self.assertEqual(grpc_call.call(c.grpc, "/baton.v1.Generation/GetModel", b"")[0], "OK")
                return cpu_seconds(router) - before

            heard_of = cost_of(lambda: self.one(c, "127.0.0.1", PREFACE))
            for data, why in (PREFACE + RESETS, "vain-frames"), (PREFACE + frame(6, 0, 0, b"12345678") * 500, "vain-frames"), (b"noise" * 100, "not-http2"):
                self.assertLess(cost_of(lambda d=data: self.one(c, "127.0.0.1", d)), heard_of / 2, why)
                counted = re.search(rf'port="grpc",reason="{why}"[^}}]*}} (\d+)', c.get("/metrics").body)
                self.assertGreaterEqual(int(counted[1]), 200, why)
            self.assertIn("grpc port: a connection of 127.0.0.1 is refused (vain-frames)", c.log.read_text())
            with contextlib.ExitStack() as held:
                self.assertLess(cost_of(lambda: held.enter_context(self.connected(c, "127.0.0.1"))), heard_of / 2, "silent ones")

    def test_a_dense_burst_of_calls_costs_the_router_no_worker(self):
        """gRPC reads what workers report after what clients ask: they lay unread for seconds, and the workers counted as silent."""
        path = b"/baton.v1.Generation/GetModel"
        head = b"\x83\x86\x04" + bytes([len(path)]) + path + HEADERS[6:]
        calls = b"".join(frame(1, 4, n, head) + frame(0, 1, n, b"\0" * 5) for n in range(1, 2000, 2))
        with Cluster(args=["--heartbeat-timeout-ms", 500]) as c, contextlib.ExitStack() as held:
            router = c.pid_of("router")
            before = cpu_seconds(router)
            sockets = [held.enter_context(self.connected(c, "127.0.0.1")) for _ in range(60)]
            for s in sockets:
                s.sendall(PREFACE)
                s.recv(1)
            for s in sockets:
                with contextlib.suppress(OSError):  # it has too many calls open
                    s.sendall(calls)
            c.wait_until(lambda: cpu_seconds(router) - before > 0.5, "it has enough to do")
            spent = 0
            while (used := cpu_seconds(router) - before) > spent + 0.02:  # until it is idle
                spent = used
                time.sleep(0.2)
            self.assertNotIn("no report for", c.log.read_text())
            self.assertEqual(c.post("/v1/completions", {"model": "tiny-llama", "prompt": "one", "max_tokens": 2}).status, 200)

    @staticmethod
    def connected(cluster, source):
        host, port = cluster.grpc.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=10, source_address=(source, 0))

    def one(self, cluster, source, data):
        with contextlib.suppress(OSError), self.connected(cluster, source) as s:
            s.sendall(data)
            s.recv(4096)


if __name__ == "__main__":
    unittest.main()
