"""A certificate whose time is over while it serves: what is open goes on, new handshakes are refused with a line on both sides that says why, at
each port, and a good one heals all without a restart."""
import contextlib
import json
import pathlib
import re
import socket
import ssl
import tempfile
import time
import unittest

from harness import TINY, HeldStream
from test_hostile_tls import Forged, Front
from test_tls import Certs, Process, ask, port_of, router, worker

LIVES = (9, 45, 240)  # seconds that the certificate is good for, from before the processes start; more for slow machines
BODY = {"model": "tiny-llama", "prompt": "the quick brown fox " * 8, "max_tokens": 4, "temperature": 0}
OVER = r"the certificate of \S+ expired at "
BY_TCP = ["--transport", "tcp", "--kv-tls"]


class Kept:
    """A connection to a router's HTTP port that stays open."""

    def __init__(self, front):
        self.connection = front.connection(timeout=60)
        self.connection.connect()

    def post(self, body):
        self.connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = self.connection.getresponse()
        return reply.status, json.loads(reply.read())

    def metrics(self):
        self.connection.request("GET", "/metrics")
        return self.connection.getresponse().read().decode()

    def count(self, series):
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.metrics().splitlines() if re.match(series, line))


class Expiry(unittest.TestCase):
    def setUp(self):
        self.certs = Certs()
        self.addCleanup(self.certs.__exit__)
        self.forged = Forged(self.certs)
        self.addCleanup(self.forged.close)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        (self.dir / "hash-key").write_text("0" * 64)
        self.key = ["--hash-key-file", self.dir / "hash-key"]
        self.workers = self.dir / "workers"
        self.flags = [*self.key, "--tls-cert", self.dir / "server.crt", "--tls-key", self.dir / "server.key", "--tls-ca", self.certs.ca]

    def make(self, seconds):
        """The certificate of the three processes; its end."""
        end = int(time.time()) + seconds
        crt = self.forged.valid(*(time.strftime("%Y%m%d%H%M%SZ", time.gmtime(at)) for at in (time.time() - 3600, end)))
        (self.dir / "server.key").write_bytes(self.forged.key.read_bytes())
        (self.dir / "server.key").chmod(0o600)
        crt.rename(self.dir / "server.crt")
        return end

    def start(self, stack, seconds):
        """All is open before the end: prefill and decode worker, their router, a connection and a stream to it. None: it came too soon."""
        end = self.make(seconds)
        self.prefill = stack.enter_context(worker("--role", "prefill", *BY_TCP, *self.flags))
        self.decode = stack.enter_context(worker("--role", "decode", *BY_TCP, *self.flags))
        self.workers.write_text(f"{port_of(self.prefill)}\n{port_of(self.decode)}\n")
        try:
            self.router = stack.enter_context(Process("router", "--model", TINY, "--workers-file", self.workers, "--port", 0, "--grpc-port", 0,
                                                      "--admin-port", 0, "--local-prefill-max-tokens", 8, "--write-timeout-ms", 600_000, *self.flags))
            front = Front(self.router, ssl.create_default_context(cafile=self.certs.ca))
            front.wait_until(lambda: ask(front).status == 200, "it serves", seconds)
            kept = Kept(front)
            want = kept.post(BODY)[1]["choices"]
            stream = stack.enter_context(HeldStream(front))
        except (AssertionError, ssl.SSLError):
            if time.time() < end:
                raise
            return None
        return (front, kept, want, stream) if time.time() < end else None

    def test_a_certificate_that_ends_while_it_serves(self):
        for seconds in LIVES:
            with contextlib.ExitStack() as stack:
                opened = self.start(stack, seconds)
                if opened is not None:
                    return self.over(stack, *opened)
        self.fail("nothing serves before the certificate is over")

    def over(self, stack, front, kept, want, stream):
        left = re.compile(r"^baton_tls_certificate_seconds_left\{[^}]*\} (\S+)$", re.M)
        self.router.until(lambda: float(left.search(kept.metrics())[1]) < 0, "its time is over", LIVES[-1])
        # What is open goes on: a connection of a client, those to workers, and the one that KV takes.
        status, got = kept.post({**BODY, "prompt": "another quick brown fox " * 8})
        self.assertEqual(status, 200, got)
        self.assertEqual(kept.post(BODY)[1]["choices"], want)
        self.assertIn('path="tcp in TLS', kept.metrics())
        for process in (self.prefill, self.decode, self.router):
            process.until_logged("has been expired for 0 days: new connections are refused")
        # Who dials now does not believe, and is not believed.
        landing = re.search(r"takes KV at \S*tcp:([0-9.]+):(\d+)", self.decode.log.read_text())
        for host, port in ((front.host, front.port), landing.groups()):
            with self.assertRaises(ssl.SSLCertVerificationError) as caught, socket.create_connection((host, int(port)), timeout=30) as s:
                self.forged.context(self.certs.dir / "client.crt").wrap_socket(s, server_hostname="localhost")
            self.assertIn("expired", str(caught.exception))
        late = stack.enter_context(router(port_of(self.prefill), "--worker", port_of(self.decode), *self.key, *self.certs.flags()))
        good = stack.enter_context(worker(*self.key, *self.certs.flags()))
        self.workers.write_text(self.workers.read_text() + port_of(good) + "\n")
        for process in (self.prefill, self.decode):
            self.until_line(late, rf"worker {port_of(process)}: .*{OVER}")
        good.until_logged("TLS: worker port: a connection refused (expired)")
        self.until_line(self.router, rf"worker {port_of(good)}: .*its log says whether it refused our certificate")
        self.router.until(lambda: kept.count(r'baton_tls_refused_total\{.*port="http"') >= 1, "counted")
        self.router.until(lambda: kept.count(r'baton_worker_refused_total\{.*port="landing"') >= 1, "counted")
        self.assertEqual(stream.rest()[-1], "[DONE]")
        # Whoever is dialled again and again does not say it again and again.
        for process in (self.router, late):
            lines = re.findall(rf"worker \S+: .*(?:{OVER}|refused our certificate)", process.log.read_text())
            self.assertLess(len(lines), 8, lines)
        self.make(3600)
        for process in (self.prefill, self.decode, self.router):
            process.until_logged("new connections take the changed files")
        front.wait_until(lambda: front.get("/health").status == 200, "clients come again")
        self.router.until(lambda: kept.count(r'baton_worker_refused_total\{.*port="worker"') >= 1, "counted by the worker that is reached now", 60)
        other = Front(late, front.tls)
        other.wait_until(lambda: ask(other).status == 200, "the router that came late serves", 60)
        self.assertEqual(kept.post(BODY)[1]["choices"], want)
        kept.connection.close()

    def until_line(self, process, line):
        process.until(lambda: re.search(line, process.log.read_text()), line)


if __name__ == "__main__":
    unittest.main(verbosity=2)
