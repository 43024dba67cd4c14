"""Hosts that are not as one expects: a clock that is years behind, every address of both families at once, no address that others reach; and a
worker of another model that comes to a cluster that serves."""
import contextlib
import json
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import unittest
import urllib.request

from harness import BATON, TINY, Cluster, run
from hosts import Hosts, ip, why_not
from test_discovery import Discovery, Load, Worker
from test_flip import answers
from test_hostile_tls import Forged, Front
from test_tls import Certs, Process, port_of, router, worker

SKIP = why_not()
NO_SIX = not pathlib.Path("/proc/net/if_inet6").exists() or not pathlib.Path("/proc/net/if_inet6").read_text()
BODY = {"model": "tiny-llama", "prompt": "the quick brown fox jumps over the lazy dog " * 8, "max_tokens": 6, "temperature": 0}


class Clock(unittest.TestCase):
    """To a clock that is years behind, a certificate of today is one of the future."""

    def test_a_certificate_of_the_future_is_named_with_both_times(self):
        with Certs() as certs, contextlib.ExitStack() as stack:
            forged = Forged(certs)
            stack.callback(forged.close)
            shown = forged.valid("20990101000000Z", "21000101000000Z")
            flags = ["--tls-cert", shown, "--tls-key", forged.key, "--tls-ca", certs.ca]
            line = r"is valid from 2099-01-01[^\n]* on, it is 20\d\d-"
            w = stack.enter_context(worker(*certs.flags()))
            done = run(["router", "--model", TINY, "--worker", port_of(w), "--port", 0, "--grpc-port", 0, "--admin-port", 0, *flags], timeout=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr + done.stdout, line)
            done = run(["worker", "--model", TINY, "--load-format", "dummy", *flags], timeout=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr + done.stdout, line)
            # Whoever shows it nevertheless is refused, and the worker says when it will be good.
            host, port = port_of(w).rsplit(":", 1)
            context = forged.context(shown)
            context.set_alpn_protocols(["h2"])
            with socket.create_connection((host, int(port)), timeout=30) as s, self.assertRaises((ssl.SSLError, ConnectionError)):
                with context.wrap_socket(s, server_hostname="localhost") as t:
                    t.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                    while t.recv(4096):
                        pass
                    raise ConnectionResetError
            w.until_logged("a connection refused (not-yet-valid)")
            w.until(w.ready.exists, "it serves")


class OddClocks(Discovery):
    """Workers whose clocks, and theirs alone, are ten years ahead and behind, beside two that are right."""

    YEARS = 10

    def build(self, years):
        return BATON, {"LD_PRELOAD": str(self.path("other_clock.so")), "CLOCK_YEARS": str(years)}

    @staticmethod
    def year_of(worker):
        return int(re.search(r"^\[(\d{4})-", worker.log.read_text(), re.M)[1])

    def test_clocks_that_are_years_off_change_no_answer_and_end_no_request(self):
        source = pathlib.Path(__file__).with_name("other_clock.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self.path("other_clock.so"), source, "-ldl"], check=True)
        self.path("secret").write_text("a secret that every process of this cluster knows\n")
        self.path("secret").chmod(0o600)
        secret = ("--cluster-secret-file", str(self.path("secret")))
        p = self.worker("p", "prefill", args=secret, build=self.build(-self.YEARS))
        d = self.worker("d", "decode", args=secret, build=self.build(self.YEARS))
        self.assertIn(self.year_of(d) - self.year_of(p), (2 * self.YEARS, 2 * self.YEARS + 1), "their clocks are that far apart")
        right = [self.worker(name, role, args=secret) for name, role in (("p2", "prefill"), ("d2", "decode"))]
        self.write("workers", "".join(f"{w.address}\n" for w in right))
        with self.router("--workers-file", self.path("workers"), "--local-prefill-max-tokens", 8, *secret) as router, Load(router) as load:
            self.write("workers", "".join(f"{w.address}\n" for w in (p, d, *right)))
            router.wait_for({name: "ready" for name in ("p", "d", "p2", "d2")})
            load.more()
            self.write("workers", f"{p.address}\n{d.address}\n")
            router.wait_for({"p": "ready", "d": "ready"})
            load.more()
            self.assertEqual(router.metric("baton_kv_digest_mismatches_total"), 0)
            self.assertGreater(router.metric("baton_kv_transfer_bytes_total"), 0)


class EveryAddress(unittest.TestCase):
    @unittest.skipIf(NO_SIX, "no IPv6 here")
    def test_every_port_at_all_addresses_answers_both_families(self):
        with Certs(["::1"]) as certs, contextlib.ExitStack() as stack:
            trust = [*certs.flags(), "--cluster-secret-file", certs.dir / "cluster-secret", "--host", "::"]
            told = ["--advertise-host", "::1", "--transport", "tcp", "--status-port", 0]
            p = stack.enter_context(worker("--role", "prefill", *told, *trust))
            d = stack.enter_context(worker("--role", "decode", *told, *trust))
            r = stack.enter_context(router(port_of(p), "--worker", port_of(d), "--local-prefill-max-tokens", 8, "--api-key", "k", *trust))
            self.assertTrue(port_of(p).startswith("[::1]:"), port_of(p))
            context = ssl.create_default_context(cafile=certs.ca)
            context.load_cert_chain(certs.dir / "client.crt", certs.dir / "client.key")
            front = Front(r, context)
            head = {"Authorization": "Bearer k"}
            answers = []
            for host in ("127.0.0.1", "::1"):
                front.host = host
                front.wait_until(lambda: front.post("/v1/completions", BODY, headers=head).status == 200, "it serves")
                answers.append(front.post("/v1/completions", BODY, headers=head).json()["choices"])
            self.assertEqual(*answers)
            landing = re.search(r"takes KV at \S*tcp:\S*:(\d+)", d.log.read_text())[1]
            ports = {"http": front.port, "grpc": front.grpc.rsplit(":", 1)[1], "admin": front.admin.rsplit(":", 1)[1], "worker": port_of(p).rsplit(":", 1)[1],
                     "status": d.value("BATON_STATUS").rsplit(":", 1)[1]}
            for host in ("127.0.0.1", "::1"):
                for name, port in ports.items():
                    with self.subTest(port=name, host=host), socket.create_connection((host, int(port)), timeout=30) as s:
                        alpn = ssl.create_default_context(cafile=certs.ca)
                        alpn.load_cert_chain(certs.dir / "client.crt", certs.dir / "client.key")
                        alpn.set_alpn_protocols(["h2"] if name in ("grpc", "worker") else ["http/1.1"])
                        with alpn.wrap_socket(s, server_hostname="localhost") as t:
                            self.assertIn(t.version(), ("TLSv1.2", "TLSv1.3"))
                with self.subTest(port="landing", host=host), socket.create_connection((host, int(landing)), timeout=30) as s:
                    s.sendall(b"no greeting, but as long as one would be")
                    self.assertEqual(s.recv(100), b"", "refused, by one who listens")

    def test_a_worker_that_nobody_could_dial_does_not_start(self):
        """A host without a route and without addresses beside loopback."""
        alone = ["unshare", "-n"] if not subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode else ["unshare", "-rn"]
        if subprocess.run([*alone, "true"], capture_output=True).returncode:
            self.skipTest("no network namespaces here")
        base = ["worker", "--model", TINY, "--load-format", "dummy", "--insecure"]
        for host in ("0.0.0.0", "::"):
            done = subprocess.run([*alone, str(BATON), *map(str, base), "--host", host], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, done.stderr + done.stdout)
            self.assertIn(f"--advertise-host: {host} is every address of this machine, and which of them others reach is not known: there is no default route, and "
                          "no address but loopback", done.stderr)


class SixAlone(unittest.TestCase):
    @unittest.skipIf(SKIP, SKIP)
    def test_a_machine_without_ipv4_serves_with_ranks_that_are_processes(self):
        width = ["--threads", 1, "--reduction-width", 2]
        with Cluster(args=width) as c:
            want = answers(c)
        ranks = ["--decode.tensor-parallel-size", 2, "--decode.distributed-executor-backend", "mp", "--transport", "tcp"]
        with Hosts(["six"], six=True) as hosts:
            ip("-n", hosts.netns("six"), "addr", "del", "127.0.0.1/8", "dev", "lo")
            with hosts.inside("six"), Cluster(args=["--host", "::1", "--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 0, *width, *ranks]) as c:
                c.host = c.host.strip("[]")
                self.assertEqual(answers(c), want)
                self.assertGreater(c.metric("baton_kv_transfer_bytes_total"), 0)
                with self.assertRaises(OSError):
                    socket.create_server(("127.0.0.1", 0))


class OtherModel(Discovery):
    def test_a_worker_of_another_model_is_named_and_not_used_and_the_others_serve(self):
        other = self.path("other-model")
        shutil.copytree(TINY, other)
        config = json.loads((other / "config.json").read_text())
        (other / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
        good, workers = self.worker("a"), self.path("workers")
        workers.write_text(good.address + "\n")
        with self.router("--workers-file", workers) as router:
            router.wait_for({"a": "ready"})
            odd = Worker(self.folder, "b", args=("--served-model-name", "tiny-llama"))
            odd.command[odd.command.index(str(TINY))] = str(other)
            self.addCleanup(odd.close)
            odd.__enter__()
            with Load(router) as load:
                workers.write_text(f"{good.address}\n{odd.address}\n")
                router.wait_until(lambda: sorted(router.workers().values()) == ["mismatch", "ready"], "it is named")
                load.more(24)
            with urllib.request.urlopen(router.admin + "/workers", timeout=10) as reply:
                said = [w for w in json.load(reply)["workers"] if w["address"] == odd.address][0]
            self.assertIn("model", json.dumps(said))
            lines = [line for line in router.log.read_text().splitlines() if "mismatch" in line and odd.address in line]
            self.assertTrue(lines and all("model" in line for line in lines), router.log.read_text()[-2000:])
            self.assertLess(len(lines), 5, lines)
            workers.write_text(good.address + "\n")
            router.wait_for({"a": "ready"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
