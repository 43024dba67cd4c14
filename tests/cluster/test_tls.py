"""TLS between our processes: answers as without it, certificates that change under a running stream, and what each refusal says."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import unittest
import urllib.request

from harness import BATON, TINY, Cluster, events, not_reading, run

PROMPT = "the quick brown fox jumps over the lazy dog " * 12


def ask(cluster, **fields):
    return cluster.post("/v1/completions",
                        {"model": "tiny-llama", "prompt": PROMPT, "max_tokens": 16, "temperature": 0, "ignore_eos": True, **fields})


class Certs:
    """What `baton certs` makes."""

    def __init__(self, hosts=(), days=365):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-certs-"))
        self.ca = self.dir / "ca.crt"
        self.make(hosts, days)

    def make(self, hosts=(), days=365):
        done = run(["certs", self.dir, "--days", days] + [a for h in hosts for a in ("--host", h)])
        assert done.returncode == 0, done.stderr
        self.said = done.stdout

    def flags(self, cert="server", ca=None):
        return ["--tls-cert", self.dir / f"{cert}.crt", "--tls-key", self.dir / f"{cert}.key", "--tls-ca", (ca or self).dir / "ca.crt"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.dir, ignore_errors=True)


class Process:
    """One `baton` process with its log."""

    def __init__(self, *args):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-tls-"))
        self.log = self.dir / "log"
        self.ready = self.dir / "ready"
        self.command = [str(BATON), *map(str, args), "--ready-file", str(self.ready)]

    def __enter__(self):
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        return self

    def __exit__(self, kind, *_):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if kind is not None:
            print(self.log.read_text()[-4000:])
        shutil.rmtree(self.dir, ignore_errors=True)

    def until(self, condition, what, seconds=30):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{self.log.read_text()[-3000:]}"
            assert self.process.poll() is None, f"ended: {self.log.read_text()[-3000:]}"
            time.sleep(0.02)

    def until_logged(self, *texts, seconds=30):
        self.until(lambda: all(t in self.log.read_text() for t in texts), " and ".join(texts), seconds)

    def value(self, name):
        self.until(self.ready.exists, "ready")
        return dict(line.split("=", 1) for line in self.ready.read_text().split())[name].strip("'")


def worker(*args, host="127.0.0.1"):
    return Process("worker", "--model", TINY, "--load-format", "dummy", "--host", host, *args)


def router(address, *args):
    return Process("router", "--model", TINY, "--worker", address, "--port", 0, "--grpc-port", 0, "--admin-port", 0, *args)


def port_of(process):
    """Where a worker listens, known before it is ready."""
    process.until_logged("gRPC at ")
    return process.log.read_text().split("gRPC at ", 1)[1].split()[0]


class Answers(unittest.TestCase):
    def test_a_cluster_with_tls_answers_as_one_without(self):
        with Cluster(args=["--prefill", 1, "--decode", 1]) as plain:
            want = ask(plain).json()["choices"]
        with Certs() as certs, Cluster(args=["--prefill", 1, "--decode", 1, *certs.flags()], ca=certs.ca) as c:
            self.assertEqual(ask(c).json()["choices"], want)
            self.assertGreater(c.metric("baton_tls_certificate_seconds_left"), 360 * 24 * 3600)

    def test_the_grpc_port_is_tls_for_clients_too(self):
        with Certs() as certs, Certs() as other, Cluster(args=["--both", 1, *certs.flags()], ca=certs.ca) as c:
            chat = ["chat", "--grpc", c.grpc, "-m", "hello", "--max-tokens", 4]
            self.assertEqual(run(["chat", "--grpc", "grpcs://" + c.grpc, *chat[3:], "--tls-ca", certs.ca]).returncode, 0)
            self.assertEqual(run(chat + ["--tls-ca", certs.dir / "ca.crt"]).returncode, 0)
            refused = run(chat + ["--tls-ca", other.dir / "ca.crt"])
            self.assertEqual(refused.returncode, 6)
            self.assertIn("issued by \"Baton trial CA", refused.stderr + refused.stdout)
            plain = run(chat)
            self.assertEqual(plain.returncode, 6)
            c.wait_until(lambda: 'port="grpc",reason="plaintext"' in c.get("/metrics").body, "counted")

    def test_new_files_are_taken_under_a_running_stream(self):
        with Certs(days=30) as certs, Cluster(args=["--prefill", 1, "--decode", 1, *certs.flags()], ca=certs.ca) as c:
            # More text than all buffers hold: the stream goes on until the client reads, which it does at the end.
            with not_reading(c, {"model": "tiny-llama", "prompt": "the quick brown fox", "max_tokens": 1500, "temperature": 0, "n": 8,
                                 "ignore_eos": True, "stream": True}) as client:
                client.settimeout(60)
                head = client.recv(2000)
                self.assertTrue(head.startswith(b"HTTP/1.1 200"), head)
                before = c.metric("baton_tls_certificate_seconds_left")
                certs.make(days=60)
                c.wait_until(lambda: c.metric("baton_tls_certificate_seconds_left") > before + 20 * 24 * 3600, "the new one is in use")
                c.wait_until(lambda: c.log.read_text().count("new connections take the changed files") == 3, "all processes took it")
                self.assertEqual(c.sequences(), 8, "the stream still runs")
                tail = b""
                while not tail.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
                    more = client.recv(1 << 20)
                    self.assertTrue(more, "the stream ended as it should")
                    tail = (tail + more)[-100:]
            # A router that starts now, and so shakes hands with the new files, finds its workers.
            os.kill(c.pid_of("router"), 9)
            c.wait_until(lambda: ask(c).status == 200, "a new router serves")

    def test_a_broken_file_changes_nothing(self):
        with Certs() as certs, Cluster(args=["--both", 1, *certs.flags()], ca=certs.ca) as c:
            (certs.dir / "server.crt").write_text("nonsense")
            c.wait_until(lambda: c.log.read_text().count("the changed files cannot be used") == 2, "router and worker say so")
            self.assertIn("server.crt has no certificate", c.log.read_text())
            self.assertEqual(ask(c).status, 200)
            certs.make()
            c.wait_until(lambda: c.log.read_text().count("new connections take the changed files") == 2, "it is well again")
            self.assertEqual(c.log.read_text().count("the changed files cannot be used"), 2, "said once")


def exchange(port, data):
    """What a port says to `data` until it closes, in plain text."""
    with socket.create_connection(("127.0.0.1", int(port)), timeout=20) as s:
        s.sendall(data)
        answer = b""
        while more := s.recv(65536):
            answer += more
    return answer


def curl(*args):
    return subprocess.run(["curl", "-sS", "--max-time", "30", *map(str, args)], capture_output=True, text=True, timeout=60)


class Http(unittest.TestCase):
    """HTTP and admin, with the certificate alone: workers on loopback speak plain text then."""

    @classmethod
    def setUpClass(cls):
        cls.certs, cls.other = Certs(), Certs()
        cls.cluster = Cluster(args=["--both", 1, *cls.certs.flags()[:4]], ca=cls.certs.ca)
        cls.cluster.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__(None, None, None)
        cls.certs.__exit__()
        cls.other.__exit__()

    def refusals(self, port, reason):
        for line in self.cluster.get("/metrics").body.splitlines():
            if line.startswith("baton_tls_refused_total") and f'port="{port}",reason="{reason}"' in line:
                return int(float(line.rsplit(" ", 1)[1]))
        return 0

    def counts_one(self, port, reason, call):
        before = self.refusals(port, reason)
        result = call()
        self.cluster.wait_until(lambda: self.refusals(port, reason) == before + 1, f"{port} {reason} counted")
        return result

    def test_public_clients_are_answered(self):
        c = self.cluster
        self.assertTrue(c.url.startswith("https://") and c.admin.startswith("https://"))
        done = curl("--cacert", self.certs.ca, "-w", "%{http_version} %{ssl_verify_result}", c.url + "/version")
        self.assertIn('{"version":', done.stdout, done.stderr)
        self.assertTrue(done.stdout.endswith("1.1 0"), done.stdout)
        done = curl("--cacert", self.certs.ca, c.admin + "/workers")
        self.assertIn('"state":"ready"', done.stdout, done.stderr)
        with socket.create_connection((c.host, int(c.port)), timeout=10) as s, c.tls.wrap_socket(s, server_hostname="localhost") as t:
            self.assertIn(t.version(), ("TLSv1.2", "TLSv1.3"))

    def test_a_body_of_220_kb_and_its_stream_arrive_whole(self):
        c = self.cluster
        text = "".join(chr(97 + (i * 7 + i // 251) % 26) for i in range(220_000))
        counted = c.post("/tokenize", {"model": "tiny-llama", "prompt": text}).json()
        back = c.post("/detokenize", {"model": "tiny-llama", "tokens": counted["tokens"]}).json()
        self.assertEqual(back["prompt"].strip(), text)
        want = ask(c).json()["choices"][0]["text"]
        body = json.dumps({"model": "tiny-llama", "prompt": PROMPT, "max_tokens": 16, "temperature": 0, "ignore_eos": True, "stream": True})
        got = curl("--cacert", self.certs.ca, "-N", "-H", "Content-Type: application/json", "-d", body, c.url + "/v1/completions")
        chunks = events(got.stdout)
        self.assertEqual(chunks[-1], "[DONE]")
        self.assertEqual("".join(json.loads(e)["choices"][0]["text"] for e in chunks[:-1]), want)

    def test_chat_and_doctor_speak_https(self):
        c = self.cluster
        chat = ["chat", "--url", c.url, "-m", "hello", "--max-tokens", 4]
        self.assertEqual(run(chat + ["--tls-ca", self.certs.ca]).returncode, 0)
        self.assertIn("/ready: 200", run(["doctor", "--url", c.url, "--tls-ca", self.certs.ca]).stdout)
        refused = self.counts_one("http", "handshake", lambda: run(chat + ["--tls-ca", self.other.ca]))
        self.assertEqual(refused.returncode, 6)
        self.assertIn('was issued by "Baton trial CA', refused.stderr + refused.stdout)
        plain = self.counts_one("http", "plaintext", lambda: run(["chat", "--url", c.url.replace("https", "http"), *chat[3:]]))
        self.assertIn("This port speaks TLS", plain.stderr + plain.stdout)
        needless = run(["chat", "--url", "http://127.0.0.1:1", *chat[3:], "--tls-ca", self.certs.ca])
        self.assertIn("are for https://", needless.stderr)

    def test_https_to_a_plain_port_says_so(self):
        with Cluster(args=["--both", 1]) as plain:
            done = run(["chat", "--url", f"https://127.0.0.1:{plain.port}", "-m", "x", "--tls-ca", self.certs.ca])
            self.assertEqual(done.returncode, 6)
            self.assertIn("the peer answers in plain text, not TLS", done.stderr + done.stdout)

    def test_plain_text_is_told_what_the_port_speaks(self):
        for name, url in (("http", self.cluster.url), ("admin", self.cluster.admin)):
            port = url.rsplit(":", 1)[1]
            answer = self.counts_one(name, "plaintext", lambda p=port: exchange(p, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            head, body = answer.split(b"\r\n\r\n", 1)
            self.assertTrue(head.startswith(b"HTTP/1.1 400 "), head)
            self.assertIn("This port speaks TLS", json.loads(body)["error"]["message"])

    def test_slow_handshakes_hurt_nobody(self):
        c = self.cluster
        with contextlib.ExitStack() as stack:
            for i in range(400):
                s = stack.enter_context(socket.create_connection((c.host, int(c.port)), timeout=20))
                if i % 2:
                    s.sendall(b"\x16\x03\x01\x02\x00\x01")
            begin = time.monotonic()
            for _ in range(20):
                self.assertEqual(c.get("/version").status, 200)
            self.assertLess(time.monotonic() - begin, 5)

    def test_a_client_of_another_protocol_is_refused(self):
        context = ssl.create_default_context(cafile=self.certs.ca)
        context.set_alpn_protocols(["h2"])

        def dial():
            with socket.create_connection((self.cluster.host, int(self.cluster.port)), timeout=20) as s, self.assertRaises(ssl.SSLError):
                context.wrap_socket(s, server_hostname="localhost")
        self.counts_one("http", "handshake", dial)


class ClientCertificates(unittest.TestCase):
    def test_clients_show_one_where_they_are_asked(self):
        with Certs() as certs, Certs() as clients, Certs() as strangers:
            context = ssl.create_default_context(cafile=certs.ca)
            context.load_cert_chain(clients.dir / "client.crt", clients.dir / "client.key")
            flags = [*certs.flags(), "--tls-client-ca", clients.ca]
            with Cluster(args=["--both", 1, *flags], ca=certs.ca) as c:
                c.tls = context
                self.assertEqual(ask(c).status, 200)
                for target in (["--url", c.url], ["--grpc", "grpcs://" + c.grpc]):
                    chat = ["chat", *target, "-m", "hello", "--max-tokens", 4, "--tls-ca", certs.ca]
                    ours = [*chat, "--tls-cert", clients.dir / "client.crt", "--tls-key", clients.dir / "client.key"]
                    theirs = [*chat, "--tls-cert", strangers.dir / "client.crt", "--tls-key", strangers.dir / "client.key"]
                    self.assertEqual(run(ours).returncode, 0, target)
                    self.assertEqual(run(chat).returncode, 6, target)
                    self.assertEqual(run(theirs).returncode, 6, target)
                for port, reason in (("http", "no-certificate"), ("http", "unknown-ca"), ("grpc", "no-certificate"), ("grpc", "unknown-ca")):
                    c.wait_until(lambda p=port, r=reason: f'port="{p}",reason="{r}"' in c.get("/metrics").body, f"{port} {reason} counted")
                bench = ["bench", "--base-url", c.url, "--tls-ca", certs.ca, "--num-prompts", 2, "--random-input-len", 4,
                         "--random-output-len", 2, "--disable-tqdm"]
                self.assertIn("Successful requests:                     2", run([*bench, "--tls-cert", clients.dir / "client.crt", "--tls-key",
                                                                                  clients.dir / "client.key"]).stdout)
                self.assertIn("--tls-key x", run([*bench, "--tls-cert", clients.dir / "client.crt", "--tls-key", "x"]).stderr)
                with self.assertRaises(OSError):
                    self.without(certs, c.admin + "/live")

    def test_admin_asks_for_none_where_it_is_told_so_and_the_others_still_do(self):
        with Certs() as certs, Certs() as clients:
            flags = [*certs.flags(), "--tls-client-ca", clients.ca, "--admin-without-client-cert"]
            with Cluster(args=["--both", 1, *flags], ca=certs.ca) as c:
                self.assertEqual(self.without(certs, c.admin + "/ready"), 200, "a probe has no certificate")
                with self.assertRaises(OSError):
                    self.without(certs, c.url + "/ready")
                self.assertEqual(run(["chat", "--grpc", "grpcs://" + c.grpc, "-m", "hello", "--tls-ca", certs.ca]).returncode, 6)

    def without(self, certs, url):
        """The status for somebody who shows no certificate."""
        with urllib.request.urlopen(url, timeout=20, context=ssl.create_default_context(cafile=certs.ca)) as answer:
            return answer.status


class OwnCertificate(unittest.TestCase):
    def test_clients_and_workers_are_shown_different_certificates(self):
        with Certs() as inner, Certs(days=30) as public:
            flags = [*inner.flags(), "--http-tls-cert", public.dir / "server.crt", "--http-tls-key", public.dir / "server.key"]
            with Cluster(args=["--prefill", 1, "--decode", 1, *flags], ca=public.ca) as c:
                self.assertEqual(ask(c).status, 200)
                for target in (["--url", c.url], ["--grpc", "grpcs://" + c.grpc]):
                    chat = ["chat", *target, "-m", "hello", "--max-tokens", 4, "--tls-ca"]
                    self.assertEqual(run([*chat, public.ca]).returncode, 0, target)
                    self.assertEqual(run([*chat, inner.ca]).returncode, 6, target)
                left = {flag: int(float(value)) // 86400 for flag, value in
                        re.findall(r'^baton_tls_certificate_seconds_left{.*flag="([a-z-]+)".*} (\S+)$', c.get("/metrics").body, re.M)}
                self.assertEqual({flag: days > 100 for flag, days in left.items()}, {"tls-cert": True, "http-tls-cert": False})
                name = ["chat", "--url", c.url, "-m", "hello", "--max-tokens", 4, "--tls-ca", public.ca, "--tls-server-name"]
                self.assertEqual([run([*name, n]).returncode for n in ("baton-worker", "llm.example.com")], [0, 6])
                public.make(days=60)
                c.wait_until(lambda: "new connections take the changed files" in c.log.read_text(), "the renewed one is taken")


class Refusals(unittest.TestCase):
    def test_a_router_of_another_authority_is_refused_with_both_names(self):
        with Certs() as ours, Certs() as theirs, worker(*ours.flags()) as w:
            with router(port_of(w), *theirs.flags()) as r:  # it does not believe the worker
                r.until_logged("issued by \"Baton trial CA", f"{theirs.dir}/ca.crt has \"Baton trial CA")
            with router(port_of(w), *theirs.flags(ca=ours)) as r:  # the worker does not believe it
                w.until_logged("TLS: worker port", "refused (unknown-ca)", f"{ours.dir}/ca.crt has \"Baton trial CA")
                r.until_logged("whether it refused our certificate")

    def test_a_wrong_name_is_refused_with_both(self):
        with Certs() as certs, worker(*certs.flags(), host="127.0.0.2") as w:
            where = port_of(w)
            with router(where, *certs.flags(), "--tls-server-name", "decode-9") as r:
                r.until_logged("valid for baton-worker, localhost, 127.0.0.1, ::1, not for decode-9 or 127.0.0.2")
            with router(where, *certs.flags()) as r:
                r.value("BATON_HTTP")
            self.assertNotIn("No match found for server name", w.log.read_text(), "the address is in no certificate, and need not be")

    def test_kv_in_tls_and_kv_in_plain_text_do_not_meet_and_both_sides_say_why(self):
        with Certs() as certs:
            tls, by_tcp = certs.flags(), ["--transport", "tcp"]
            sides = [([], "--kv-tls", "the peer speaks TLS, this process plain text", "plain text came to a TLS port"),
                     (["--kv-tls"], "--no-kv-tls", "the peer answers in plain text, not TLS", "the peer speaks TLS, this process plain text")]
            for prefill_flags, decode_flag, dialled, was_dialled in sides:
                with worker("--role", "prefill", *by_tcp, *tls, *prefill_flags) as p, worker("--role", "decode", *by_tcp, *tls, decode_flag) as d, \
                     router(port_of(p), "--worker", port_of(d), *tls):
                    p.until_logged(f"no way to the decode worker works: tcp:{port_of(d).split(':')[0]}:", dialled)
                    d.until_logged(was_dialled)

    def test_a_worker_says_who_encrypts_its_kv(self):
        with Certs() as certs:
            for flags, says in ([["--kv-tls"], ""], [["--kv-tls", "--no-kv-kernel-tls"], "this process encrypts, not the kernel: --no-kv-kernel-tls"]):
                with worker("--role", "decode", *certs.flags(), *flags) as d:
                    d.until_logged("worker: KV in TLS: ", says)

    def test_a_clients_certificate_is_no_servers(self):
        with Certs() as certs, worker(*certs.flags("client")) as w, router(port_of(w), *certs.flags()) as r:
            r.until_logged("the certificate of \"baton-client\"", "purpose")

    def test_plain_text_to_tls_and_tls_to_plain_text(self):
        with Certs() as certs:
            with worker(*certs.flags()) as w:
                where = port_of(w)
                with router(where) as r:
                    r.until_logged("does that port speak TLS")
                w.until_logged("refused (plaintext)")
                w.until(lambda: w.ready.exists(), "it serves")
                with router(where, *certs.flags()) as r:
                    r.value("BATON_HTTP")
            with worker() as w, router(port_of(w), *certs.flags()) as r:
                r.until_logged("that port speaks plain text")

    def test_who_shows_no_certificate_is_refused(self):
        with Certs() as certs, worker(*certs.flags()) as w:
            host, port = port_of(w).rsplit(":", 1)
            context = ssl.create_default_context(cafile=certs.dir / "ca.crt")
            context.set_alpn_protocols(["h2"])
            with socket.create_connection((host, int(port)), timeout=10) as s, \
                    self.assertRaises((ssl.SSLError, ConnectionError)):
                with context.wrap_socket(s, server_hostname="baton-worker") as t:
                    t.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                    while t.recv(4096):
                        pass
                    raise ConnectionResetError("closed without an answer")
            w.until_logged("refused (no-certificate)")


class Flags(unittest.TestCase):
    def fails(self, *args):
        done = run(args)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        return done.stderr + done.stdout

    def test_files_that_do_not_fit_stop_the_start(self):
        with Certs() as certs, Certs() as other:
            base = ["worker", "--model", TINY, "--load-format", "dummy"]
            self.assertIn("needs --tls-key", self.fails(*base, "--tls-cert", certs.dir / "server.crt"))
            self.assertIn("does not belong to the key", self.fails(
                *base, "--tls-cert", certs.dir / "server.crt", "--tls-key", other.dir / "server.key", "--tls-ca", certs.dir / "ca.crt"))

    def test_a_router_off_loopback_needs_tls_or_a_proxy(self):
        base = ["router", "--model", TINY, "--worker", "127.0.0.1:1", "--host", "0.0.0.0", "--port", 0, "--grpc-port", 0, "--admin-port", 0,
                "--api-key", "k"]
        self.assertIn("TLS: --tls-cert and --tls-key, or a proxy in front", self.fails(*base))
        self.assertIn("--tls-client-ca x needs --tls-cert", self.fails(*base, "--tls-client-ca", "x"))
        with Certs() as certs, Process(*base, *certs.flags()[:4]) as r:
            r.until_logged("OpenAI API at https://0.0.0.0:")
        with Certs() as certs, Process(*base, *certs.flags(), "--insecure-no-tls") as r:
            r.until_logged("OpenAI API at http://0.0.0.0:")

    def test_certs_keeps_the_authority_and_hides_keys(self):
        with Certs(hosts=["decode-0.example", "10.1.2.3"]) as certs:
            authority, server = (certs.dir / "ca.crt").read_bytes(), (certs.dir / "server.crt").read_bytes()
            self.assertIn("decode-0.example, 10.1.2.3", certs.said)
            self.assertIn(f"--tls-cert {certs.dir}/server.crt", certs.said)
            secret = (certs.dir / "cluster-secret").read_bytes()
            self.assertEqual(len(secret), 64)
            self.assertIn(f"--cluster-secret-file {certs.dir}/cluster-secret", certs.said)
            for key in ("ca.key", "server.key", "client.key", "cluster-secret"):
                self.assertEqual((certs.dir / key).stat().st_mode & 0o777, 0o600, key)
            certs.make()
            self.assertEqual((certs.dir / "ca.crt").read_bytes(), authority)
            self.assertEqual((certs.dir / "cluster-secret").read_bytes(), secret)
            self.assertNotEqual((certs.dir / "server.crt").read_bytes(), server)
            self.assertIn("--host", self.fails("certs", certs.dir, "--host", "two words"))
            self.assertIn("--days 0", self.fails("certs", certs.dir, "--days", 0))


if __name__ == "__main__":
    unittest.main(verbosity=2)
