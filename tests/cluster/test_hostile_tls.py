"""Handshakes of TLS that mean harm, at every port that speaks it: HTTP, gRPC, admin, a worker's RPC, KV, ranks. At the last two the
attacker has stolen the cluster's secret. Each connection is closed within its bound and answered nothing, it is counted, few lines are
logged, and others are served all the while."""
import contextlib
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import unittest

import greeting
from harness import Beside, Cluster
from test_nodes import TP, Group
from test_tls import Certs, ask, port_of, router, worker

CLOSED_WITHIN = 120  # seconds: for machines ten times slower; a handshake has 2 to 10
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
SECRET = b"s" * 64


class Forged:
    """Certificates of the cluster's own authority that no honest process would show."""

    def __init__(self, certs):
        self.certs, self.dir = certs, pathlib.Path(tempfile.mkdtemp(prefix="baton-forged-"))
        (self.dir / "index").write_text("")
        (self.dir / "config").write_text(f"""[ca]
default_ca = d
[d]
database = {self.dir}/index
new_certs_dir = {self.dir}
rand_serial = yes
default_md = sha256
policy = p
unique_subject = no
[p]
commonName = supplied
[e]
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = DNS:baton-worker, DNS:localhost, IP:127.0.0.1
""")
        self.key = self.dir / "key"
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", self.key, "-out", self.dir / "csr",
                     "-subj", "/CN=baton-client")

    def openssl(self, *args):
        done = subprocess.run(["openssl", *map(str, args)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    def valid(self, begin, end):
        out = self.dir / f"{begin}.crt"
        self.openssl("ca", "-batch", "-notext", "-config", self.dir / "config", "-extensions", "e", "-in", self.dir / "csr", "-out", out,
                     "-cert", self.certs.ca, "-keyfile", self.certs.dir / "ca.key", "-startdate", begin, "-enddate", end)
        return out

    def context(self, certificate=None, chain=b""):
        context = ssl.create_default_context(cafile=self.certs.ca)
        if certificate:
            whole = self.dir / "shown.pem"
            whole.write_bytes(certificate.read_bytes() + chain)
            context.load_cert_chain(whole, self.key if certificate.parent == self.dir else self.certs.dir / "client.key")
        return context

    def close(self):
        shutil.rmtree(self.dir, ignore_errors=True)


class Port:
    """A port that speaks TLS, behind a greeting where it has a purpose."""

    def __init__(self, name, address, alpn=None, purpose=None):
        self.name, self.alpn, self.purpose = name, alpn, purpose
        self.host, port = address.rsplit(":", 1)
        self.number = int(port)

    def dial(self):
        if self.purpose:
            return greeting.greeted(self.host, self.number, SECRET, self.purpose)
        return greeting.dial(self.host, self.number, CLOSED_WITHIN)

    def ours(self, context):
        if self.alpn:
            context.set_alpn_protocols([self.alpn])
        return context


def hello(context):
    """The first message of a client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


def until_closed(s):
    """What comes until the other end closes; fails when it does not."""
    s.settimeout(CLOSED_WITHIN)
    got = b""
    with contextlib.suppress(ConnectionError):
        while more := s.recv(1 << 16):
            got += more
    return got


def record(kind, body, length=None):
    return bytes([kind, 3, 3]) + (len(body) if length is None else length).to_bytes(2, "big") + body


# ---- what is sent in a handshake's place, each given the port's client hello

def stalls(first):
    return first[:len(first) // 2]


def sends_a_record_longer_than_any(first):
    return first + record(22, b"x" * 100, 0xffff)


def sends_plain_text_after_its_hello(first):
    return first + GET


def sends_data_before_the_handshake_is_done(first):
    return first + record(23, GET)


def sends_its_hello_twice(first):
    return first + first


def claims_a_hello_of_16_mb(first):
    return first[:5] + b"\x01\xff\xff\xff" + first[9:]


def changes_the_cipher_for_ever(first):
    return first + record(20, b"\x01") * 5000


def sends_alerts_for_ever(first):
    return first + record(21, b"\x01\x5a") * 5000


WORDS = [sends_a_record_longer_than_any, sends_plain_text_after_its_hello, sends_data_before_the_handshake_is_done, sends_its_hello_twice,
         claims_a_hello_of_16_mb, changes_the_cipher_for_ever, sends_alerts_for_ever]


class Attacked(unittest.TestCase):
    def words(self, port, forged):
        """Attacks that need no certificate."""
        first = hello(port.ours(forged.context()))
        for attack in WORDS:
            with self.subTest(port=port.name, attack=attack.__name__), port.dial() as s:
                with contextlib.suppress(ConnectionError):
                    s.sendall(attack(first))
                self.nothing_told(until_closed(s))

    def leaves_within_a_record(self, port, forged):
        first = hello(port.ours(forged.context()))
        with self.subTest(port=port.name), port.dial() as s:
            s.sendall(first[:-7])
            s.shutdown(socket.SHUT_WR)
            self.nothing_told(until_closed(s))

    def nothing_told(self, got):
        self.assertNotIn(b"HTTP/1.1 2", got)
        self.assertNotIn(b"baton", got.replace(b"baton-worker", b"").lower(), "the certificate's name is all that is told")

    def certificates(self, port, forged):
        ca = forged.certs.ca.read_bytes()
        shown = [("not yet valid", forged.context(forged.valid("20990101000000Z", "21000101000000Z"))),
                 ("long over", forged.context(forged.valid("20010101000000Z", "20020101000000Z"))),
                 ("a chain of 2,000", forged.context(forged.certs.dir / "client.crt", ca * 2000))]
        for what, context in shown:
            with self.subTest(port=port.name, certificate=what):
                self.refused(port, context)

    def refused(self, port, context):
        """Its handshake ends in an alert, or with the connection: the side that speaks first may learn it with its first answer."""
        with port.dial() as s:
            s.settimeout(CLOSED_WITHIN)
            with self.assertRaises((ssl.SSLError, ConnectionError)) as caught:
                with port.ours(context).wrap_socket(s, server_hostname="localhost") as t:
                    t.settimeout(CLOSED_WITHIN)
                    if port.alpn == "http/1.1":
                        t.sendall(GET)
                    if t.recv(100) == b"":
                        raise ConnectionResetError("closed")
                    self.fail("it was answered")
            self.assertNotIsInstance(caught.exception, TimeoutError)

    def plain_text_after_the_handshake(self, port, forged):
        with self.subTest(port=port.name), port.dial() as s:
            t = port.ours(forged.context(forged.certs.dir / "client.crt")).wrap_socket(s, server_hostname="localhost")
            with socket.socket(fileno=t.detach()) as plain:
                plain.settimeout(CLOSED_WITHIN)
                plain.sendall(GET + b"\0" * 64)
                self.nothing_told(until_closed(plain))

    def begin_renegotiation(self, port, certs):
        """A client of TLS 1.2 that has asked for another handshake."""
        client = subprocess.Popen(["openssl", "s_client", "-connect", f"{port.host}:{port.number}", "-CAfile", str(certs.ca), "-tls1_2",
                                   "-alpn", port.alpn, "-cert", str(certs.dir / "client.crt"), "-key", str(certs.dir / "client.key")],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(client.wait)
        self.addCleanup(client.kill)
        said = b""
        while b"Verify return code" not in said:  # the first one is done
            line = client.stdout.readline()
            self.assertTrue(line, said.decode(errors="replace"))
            said += line
        client.stdin.write(b"R\n")
        client.stdin.flush()
        return client

    def end_renegotiation(self, port, client):
        with self.subTest(port=port.name, attack="renegotiation"):
            rest = client.communicate(timeout=CLOSED_WITHIN)[0]
            self.assertIn(b"RENEGOTIATING", rest)
            self.assertNotEqual(client.returncode, 0, rest)


class Others(Beside):
    """Asks without pause while the attacks run."""

    def __init__(self, cluster):
        self.cluster, self.answers, self.failures = cluster, 0, []

    def go_on(self):
        while not self.over.is_set():
            try:
                answer = self.cluster.post("/v1/completions", {"model": "tiny-llama", "prompt": "the quick brown fox " * 8, "max_tokens": 4})
                self.answers += 1
                if answer.status != 200:
                    self.failures.append((answer.status, answer.body))
            except OSError as e:
                self.failures.append(e)


class Front(Cluster):
    """A router that stands alone, asked as the harness asks."""

    def __init__(self, process, tls=None):
        self.process, self.tls, self.log = process.process, tls, process.log
        self.url, self.grpc, self.admin = (process.value(f"BATON_{name}") for name in ("HTTP", "GRPC", "ADMIN"))
        self.host, self.port = self.url.split("://")[1].rsplit(":", 1)


class AllPorts(Attacked):
    def test_handshakes_that_mean_harm(self):
        with Certs() as certs, contextlib.ExitStack() as stack:
            forged = Forged(certs)
            stack.callback(forged.close)
            secret = certs.dir / "stolen"
            secret.write_bytes(SECRET)
            secret.chmod(0o600)
            flags = [*certs.flags(), "--cluster-secret-file", secret]
            by_tcp = ["--transport", "tcp", "--kv-tls"]
            p = stack.enter_context(worker("--role", "prefill", *by_tcp, *flags))
            d = stack.enter_context(worker("--role", "decode", *by_tcp, *flags))
            r = stack.enter_context(router(port_of(p), "--worker", port_of(d), *flags, "--tls-client-ca", certs.ca))
            tls = forged.context(certs.dir / "client.crt")
            front = Front(r, tls)
            landing = re.search(r"takes KV at \S*tcp:([0-9.]+:\d+)", d.log.read_text())[1]
            ports = [Port("http", front.url.split("://")[1], "http/1.1"), Port("grpc", front.grpc, "h2"),
                     Port("admin", front.admin.split("://")[1], "http/1.1"), Port("worker", port_of(p), "h2"),
                     Port("landing", landing, purpose=greeting.LANDING)]
            stalled = []
            with Others(front) as others:
                for port in ports:
                    s = stack.enter_context(port.dial())
                    s.sendall(stalls(hello(port.ours(forged.context()))))
                    stalled.append((port, s))
                again = [(port, self.begin_renegotiation(port, certs)) for port in ports if not port.purpose]
                for port in ports:
                    self.words(port, forged)
                    self.leaves_within_a_record(port, forged)
                    self.certificates(port, forged)
                    self.plain_text_after_the_handshake(port, forged)
                for port, s in stalled:
                    with self.subTest(port=port.name, attack="stalls"):
                        self.nothing_told(until_closed(s))
                for port, client in again:
                    self.end_renegotiation(port, client)
                before = others.answers
                front.wait_until(lambda: others.answers > before + 2, "others are answered", 60)
            self.assertEqual(others.failures, [])
            self.counted(front)
            self.few_lines(p, d, r)

    def counted(self, front):
        for counter, port, least in [("tls", "http", 9), ("tls", "grpc", 9), ("tls", "admin", 9), ("worker", "worker", 9), ("worker", "landing", 9)]:
            def count(counter=counter, port=port):
                found = re.findall(rf'^baton_{counter}_refused_total{{[^}}]*port="{port}"[^}}]*}} (\S+)$', front.get("/metrics").body, re.M)
                return sum(float(value) for value in found)
            with self.subTest(counted=port):
                front.wait_until(lambda c=count, n=least: c() >= n, f"{port}: {least} counted, not {count()}")

    def few_lines(self, *processes):
        for process in processes:
            lines = [line for line in process.log.read_text().splitlines() if "refused" in line]
            self.assertTrue(lines, "somebody is told")
            self.assertLess(len(lines), 100)
            self.assertFalse([line for line in lines if len(line) > 1000], "no line is long")


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


class GrpcPorts(Attacked):
    """Handshakes that come to nothing at the ports where gRPC makes them. Each is counted by its reason and as a try in vain, and there is a line."""

    def dial(self, port, source):
        return socket.create_connection((port.host, port.number), timeout=CLOSED_WITHIN, source_address=(source, 0))

    def kinds(self, certs, forged, others):
        def truncated(port, s):
            s.sendall(stalls(hello(port.ours(forged.context()))))
            s.shutdown(socket.SHUT_WR)

        def leaves_at_once(port, s):
            s.sendall(stalls(hello(port.ours(forged.context()))))
            s.close()

        def shows(context):
            def act(port, s):
                with contextlib.suppress(OSError), port.ours(context()).wrap_socket(s, server_hostname="localhost") as t:
                    t.sendall(PREFACE)
                    while t.recv(4096):
                        pass
            return act

        def of_others():
            context = forged.context()
            context.load_cert_chain(others.dir / "client.crt", others.dir / "client.key")
            return context

        over = forged.valid("20010101000000Z", "20020101000000Z")
        return [("plaintext", lambda port, s: s.sendall(PREFACE)), ("handshake", truncated), ("handshake", leaves_at_once),
                ("no-certificate", shows(forged.context)), ("expired", shows(lambda: forged.context(over))), ("unknown-ca", shows(of_others))]

    def one(self, port, source, act):
        with contextlib.suppress(OSError), self.dial(port, source) as s:
            act(port, s)
            if s.fileno() >= 0:
                until_closed(s)

    def test_each_that_breaks_is_counted_and_is_a_try_in_vain(self):
        with Certs() as certs, Certs() as others, contextlib.ExitStack() as stack:
            forged = Forged(certs)
            stack.callback(forged.close)
            w = stack.enter_context(worker(*certs.flags()))
            r = stack.enter_context(router(port_of(w), *certs.flags(), "--tls-client-ca", certs.ca, "--read-timeout-ms", 5000))
            front = Front(r, forged.context(certs.dir / "client.crt"))

            def count(series):
                return sum(float(line.rsplit(" ", 1)[1]) for line in front.get("/metrics").body.splitlines() if re.match(series, line))

            ports = [(Port("grpc", front.grpc, "h2"), r, lambda why: count(rf'baton_tls_refused_total{{.*port="grpc".*reason="{why}"')),
                     (Port("worker", port_of(w), "h2"), w, lambda why: count(r'baton_worker_refused_total{.*port="worker"'))]
            front.wait_until(lambda: ask(front).status == 200, "it serves")
            silent = []
            for at, (port, process, counted) in enumerate(ports):
                s = stack.enter_context(self.dial(port, "127.0.0.2"))
                s.sendall(stalls(hello(port.ours(forged.context()))))
                silent.append(s)
                for n, (why, act) in enumerate(self.kinds(certs, forged, others)):
                    with self.subTest(port=port.name, why=why, n=n):
                        source, before = f"127.0.0.{10 + 10 * at + n}", counted(why)
                        for _ in range(3):
                            self.one(port, source, act)
                        front.wait_until(lambda c=counted, y=why, b=before: c(y) >= b + 3, f"{why} is counted at {port.name}, not {counted(why) - before}")
                        self.until_logged(process, f"TLS: {port.name} port: a connection refused ({why})", 1, lambda p=port, f=source, a=act: self.one(p, f, a))
                        self.until_logged(process, f"{port.name} port: a connection of {source} is refused (vain-tries-per-address)", 0,
                                          lambda p=port, f=source, a=act: self.one(p, f, a))
            for s in silent:
                self.nothing_told(until_closed(s))
            self.assertEqual(ask(front).status, 200)
            for port, process, _ in ports:
                with self.dial(port, "127.0.0.3") as s:
                    with port.ours(forged.context(certs.dir / "client.crt")).wrap_socket(s, server_hostname="localhost") as t:
                        t.sendall(PREFACE)
                        self.assertTrue(t.recv(100), "who shows a certificate is let in")
                self.assertLess(process.log.read_text().count(" refused ("), 150, "few lines")

    def until_logged(self, process, line, pause_s, again):
        """Tries `again` until there is the line; there is one a second at most for connections whose address gRPC does not say."""
        deadline = time.monotonic() + CLOSED_WITHIN
        while line not in process.log.read_text():
            self.assertLess(time.monotonic(), deadline, line)
            again()
            time.sleep(pause_s)


class RankMesh(Attacked):
    def test_handshakes_that_mean_harm_do_not_keep_a_group_from_meeting(self):
        with Certs(hosts=["127.0.0.2"]) as certs, Group(2, TP, 2, *certs.flags()) as group:
            forged = Forged(certs)
            self.addCleanup(forged.close)
            group.secret.write_bytes(SECRET)
            zero = group.start(0)
            zero.await_text("meet at")
            port = Port("ranks", f"{group.host_of(0)}:{group.port}", purpose=greeting.RANKS)
            with port.dial() as stalled:
                stalled.sendall(stalls(hello(forged.context())))
                self.words(port, forged)
                self.leaves_within_a_record(port, forged)
                self.certificates(port, forged)
                self.plain_text_after_the_handshake(port, forged)
                self.nothing_told(until_closed(stalled))
            lines = [line for line in zero.said().splitlines() if "is refused" in line]
            self.assertTrue(lines)
            self.assertLess(len(lines), 60)
            group.start(1)
            for node in group.nodes:
                node.await_ready()


if __name__ == "__main__":
    unittest.main(verbosity=2)
