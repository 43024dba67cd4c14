"""Workers that come, go and move while requests run: by a file, by DNS and by Kubernetes EndpointSlices; and every port over
IPv6."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

from api_server import ApiServer, endpoint
from dns_server import AAAA, SRV, A, DnsServer
from harness import BATON, TINY, Cluster, HeldStream, run

LONG = "the quick brown fox jumps over the lazy dog " * 8
BODIES = [{"model": "tiny-llama", "prompt": f"{i} {LONG}", "max_tokens": 24, "seed": i, "temperature": 0.8, "logprobs": 2}
          for i in range(6)]


class Worker(contextlib.ExitStack):
    """`baton worker` at `host`, on a free port unless one is given. `build`: another `baton`, and its environment."""

    def __init__(self, folder, name, role="both", host="127.0.0.1", port=0, args=(), build=(BATON, {})):
        super().__init__()
        self.env = {**os.environ, **build[1]}
        self.ready, self.log, self.name = pathlib.Path(folder, f"{name}.ready"), pathlib.Path(folder, f"{name}.log"), name
        with contextlib.suppress(FileNotFoundError):
            self.ready.unlink()
        self.command = [str(build[0]), "worker", "--role", role, "--model", str(TINY), "--load-format", "dummy", "--threads", "1", "--host",
                        host, "--port", str(port), "--worker-id", name, "--ready-file", str(self.ready), "--hash-key-file", str(pathlib.Path(folder, "hash-key")), *args]

    def __enter__(self):
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self.env)
        self.callback(self.stop)
        deadline = time.monotonic() + 60
        while not self.ready.exists():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        self.address = self.ready.read_text().split("'")[1]
        self.port = int(self.address.rsplit(":", 1)[1])
        return self

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


class Router(Cluster):
    """`baton router` that finds its workers by `args`. `build`: as of a Worker."""

    def __init__(self, folder, args, host=None, build=(BATON, {})):
        super().__init__(env=build[1])
        self.command = [str(build[0]), "router", "--model", str(TINY), "--port", "0", "--grpc-port", "0", "--admin-port", "0", "--ready-file",
                        str(self.ready), "--hash-key-file", str(pathlib.Path(folder, "hash-key")), "--log-requests=false",
                        *(["--host", host] if host else []), *map(str, args)]

    def __enter__(self):
        super().__enter__()
        self.host = self.host.strip("[]")
        values = dict(line.split("=", 1) for line in self.ready.read_text().split())
        self.admin = values["BATON_ADMIN"].strip("'")
        return self

    def kill(self, children=None):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def workers(self, role=None):
        """name -> state."""
        with urllib.request.urlopen(self.admin + "/workers", timeout=10) as reply:
            return {w["name"]: w["state"] for w in json.load(reply)["workers"]}

    def wait_for(self, expected, seconds=30):
        try:
            self.wait_until(lambda: self.workers() == expected, "", seconds)
        except AssertionError as e:
            raise AssertionError(f"workers are {self.workers()}, not {expected}: {e}") from None


def answer(router, body):
    """What the answer says, without what depends on the moment."""
    reply = router.post("/v1/completions", body)
    assert reply.status == 200, f"{reply.status}: {reply.body}"
    whole = reply.json()
    return [whole["choices"], whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]]


class Load:
    """Clients that ask the same requests over and over; `failed` and `other` are what was wrong."""

    def __init__(self, router, clients=3):
        self.router, self.over, self.done, self.failed, self.other = router, threading.Event(), 0, [], []
        self.alone = [answer(router, body) for body in BODIES]
        self.threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(clients)]

    def ask(self, i):
        while not self.over.is_set():
            try:
                got = answer(self.router, BODIES[i % len(BODIES)])
                if got != self.alone[i % len(BODIES)]:
                    self.other.append((i % len(BODIES), got))
                self.done += 1
            except Exception as e:  # noqa: BLE001 - counted
                self.failed.append(repr(e))
            i += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind, value, trace):
        self.over.set()
        for thread in self.threads:
            thread.join(60)
        if kind is None:
            assert not self.failed, f"{len(self.failed)} of {self.done} failed: {self.failed[:3]}\n{self.router.log.read_text()[-3000:]}"
            assert not self.other, f"{len(self.other)} answers are others: {self.other[:2]}"

    def more(self, count=6):
        """Waits until so many more requests were answered."""
        wanted = self.done + count
        self.router.wait_until(lambda: self.done >= wanted or self.failed, f"{wanted} requests")


class Discovery(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="baton-test-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.path("hash-key").write_text(os.urandom(32).hex() + "\n")
        self.path("hash-key").chmod(0o600)

    def router(self, *args, **kw):
        return Router(self.folder, args, **kw)

    def worker(self, name, *args, **kw):
        worker = Worker(self.folder, name, *args, **kw).__enter__()
        self.addCleanup(worker.close)
        return worker

    def path(self, name):
        return pathlib.Path(self.folder, name)

    def write(self, name, text):
        """As operators' tools do: a new file takes the old one's place."""
        self.path(name + ".new").write_text(text)
        os.replace(self.path(name + ".new"), self.path(name))


class File(Discovery):
    def list(self, *lines):
        self.write("workers", "".join(f"{line}\n" for line in ("# a worker a line", *lines)))

    def test_workers_come_go_and_move_under_load(self):
        a, b = self.worker("a"), self.worker("b")
        self.list(a.address)
        with self.router("--workers-file", self.path("workers")) as router, Load(router) as load:
            router.wait_for({"a": "ready"})
            self.list(a.address, b.address)
            router.wait_for({"a": "ready", "b": "ready"})
            load.more()
            self.list(f"{a.address} draining", b.address)
            router.wait_for({"a": "draining", "b": "ready"})
            load.more()
            self.list(b.address)
            router.wait_for({"b": "ready"})
            a.close()
            load.more()
            moved = self.worker("a")
            self.assertNotEqual(moved.address, a.address)
            self.list(b.address, moved.address)
            router.wait_for({"b": "ready", "a": "ready"})
            load.more()
            for i in range(8):  # one that flaps disturbs nobody and is not dialled again
                self.list(b.address, *([moved.address] if i % 2 else []))
                router.wait_for({"b": "ready", "a": "ready" if i % 2 else "draining"})
                load.more(2)
            self.assertEqual(router.log.read_text().count(f"worker {moved.address}: joins"), 1)

    def test_a_pair_moves_under_load(self):
        p, d, again = self.worker("p", "prefill"), self.worker("d", "decode"), self.worker("d2", "decode")
        self.list(p.address, d.address)
        with self.router("--workers-file", self.path("workers"), "--local-prefill-max-tokens", 8) as router, Load(router) as load:
            self.list(p.address, again.address)
            router.wait_for({"p": "ready", "d2": "ready"})
            d.close()
            load.more()
            p2 = self.worker("p2", "prefill")
            self.list(p2.address, again.address)
            router.wait_for({"p2": "ready", "d2": "ready"})
            p.close()
            load.more()

    def test_a_worker_that_is_not_there_yet_leaves_the_router_ready(self):
        p, d = self.worker("p", "prefill"), self.worker("d", "decode")
        self.list(p.address, d.address)
        with self.router("--workers-file", self.path("workers")) as router:
            self.list(p.address, d.address, "127.0.0.1:1")
            router.wait_until(lambda: "127.0.0.1:1" in router.get("/ready").body, "the router knows of the third")
            self.assertEqual(router.get("/ready").status, 200)

    def test_a_broken_file_changes_nothing_and_is_named_once(self):
        a = self.worker("a")
        router = self.router("--workers-file", self.path("workers"))
        self.list(a.address)
        with router:
            for broken, why in [(f"{a.address}\nnonsense\n", "workers:2: \"nonsense\" is no address"), ("", "workers:1: is empty"),
                                ("dns:///a:1\n", "workers:1: "), (None, "workers cannot be opened")]:
                self.path("workers").unlink() if broken is None else self.write("workers", broken)
                router.wait_until(lambda: why in router.log.read_text(), why)
                answer(router, BODIES[0])
                self.assertEqual(router.workers(), {"a": "ready"})
            self.list(a.address)
            router.wait_until(lambda: "it can be read again" in router.log.read_text(), "the file is well again")
            self.assertEqual(router.log.read_text().count("nonsense"), 1)

    def test_one_process_under_two_addresses_is_one_worker(self):
        a = self.worker("a")
        self.list(a.address, f"localhost:{a.port}")
        with self.router("--workers-file", self.path("workers")) as router:
            router.wait_until(lambda: "which serves at" in router.log.read_text(), "the second address is refused")
            answer(router, BODIES[0])
            self.assertEqual(router.get("/ready").status, 200)

    def test_three_workers_of_one_name_all_serve_and_orders_need_an_address(self):
        both = {self.worker(name, args=("--worker-id", "twin")).address: ("twin", "ready") for name in ("a", "b", "c")}
        self.list(*both)
        with self.router("--workers-file", self.path("workers")) as router:
            def states():
                with urllib.request.urlopen(router.admin + "/workers", timeout=10) as reply:
                    return {w["address"]: (w["name"], w["state"]) for w in json.load(reply)["workers"]}
            router.wait_until(lambda: states() == both, "all serve")
            self.assertEqual(router.log.read_text().count("3 workers have this name"), 1, "said once, when the third came")
            self.assertEqual(len(set(re.findall(r'^vllm:num_requests_running{.*engine="(\d+)".*worker="twin"', router.get("/metrics").body, re.M))), 3, "series of its own each")
            refused, (first, *_) = run(["drain", "twin", "--url", router.admin]), both
            self.assertTrue(refused.returncode != 0 and "3 workers have the name twin" in refused.stderr and all(at in refused.stderr for at in both), refused.stderr)
            with Load(router) as load:
                run(["drain", first, "--url", router.admin])
                router.wait_until(lambda: [states().get(at) == both[at] for at in both] == [False, True, True], "the first is drained")
                load.more()

    def test_a_worker_that_moves_is_asked_at_its_new_address_while_a_stream_ends_at_the_old(self):
        a = self.worker("a")
        old, new = a.address, f"localhost:{a.port}"
        self.list(old)
        with self.router("--workers-file", self.path("workers")) as router:
            def at(address, state):
                with urllib.request.urlopen(router.admin + "/workers", timeout=10) as reply:
                    return state in [w["state"] for w in json.load(reply)["workers"] if w["address"] == address]
            router.wait_until(lambda: at(old, "ready"), "it serves")
            alone = answer(router, BODIES[0])
            with HeldStream(router) as stream:
                self.list(new)
                router.wait_until(lambda: at(new, "ready"), "it serves at its new address")
                self.assertTrue(at(old, "draining"), "the stream runs there")
                self.assertEqual(answer(router, BODIES[0]), alone)
                self.list(old, new)  # now it has two
                router.wait_until(lambda: f"is listed at {old} again, and serves at {new}" in router.log.read_text(), "one counts")
                self.assertTrue(at(old, "draining") and at(new, "ready"))
                self.list(old)
                router.wait_until(lambda: at(old, "ready") and not at(new, "ready"), "it moves back")
                self.assertEqual(answer(router, BODIES[0]), alone)
                self.assertEqual(stream.rest()[-1], "[DONE]")

    def test_workers_may_come_after_the_router(self):
        self.list()
        router = self.router("--workers-file", self.path("workers"))
        late = threading.Timer(1.0, lambda: self.list(self.worker("a").address))
        late.start()
        with router:
            late.join()
            answer(router, BODIES[0])


class Dns(Discovery):
    def test_addresses_and_targets_change_and_stay_when_nobody_answers(self):
        a, b = self.worker("a", host="127.0.0.2"), self.worker("b", host="127.0.0.3")
        c = self.worker("c", host="127.0.0.2", port=b.port)
        with DnsServer() as dns:
            dns.records = {("_grpc._tcp.w.test", SRV): [(a.port, "h2.test"), (b.port, "h3.test")],
                           ("h2.test", A): ["127.0.0.2"], ("h3.test", A): ["127.0.0.3"]}
            flags = ["--dns-server", dns.address, "--workers-dns-interval-ms", 200]
            with self.router("--workers-dns", "_grpc._tcp.w.test", *flags) as router, Load(router) as load:
                router.wait_for({"a": "ready", "b": "ready"})
                dns.records[("_grpc._tcp.w.test", SRV)] = [(b.port, "h3.test")]
                router.wait_for({"b": "ready"})
                dns.records[("h3.test", A)] = ["127.0.0.2"]  # the host moves
                router.wait_for({"c": "ready"})
                load.more()
            dns.records = {("w.test", A): ["127.0.0.3"], ("w.test", AAAA): []}
            with self.router("--workers-dns", f"w.test:{b.port}", *flags) as router, Load(router) as load:
                router.wait_for({"b": "ready"})
                dns.records[("w.test", A)] = ["127.0.0.2", "127.0.0.3"]
                router.wait_for({"b": "ready", "c": "ready"})
                for trouble, why in [({}, "Domain name not found"), (None, "Timeout")]:
                    kept = dns.records
                    dns.silent, dns.records = trouble is None, trouble or {}
                    router.wait_until(lambda: why in router.log.read_text(), why)
                    self.assertIn("what was known stays, workers: 2", router.log.read_text())
                    self.assertEqual(router.workers(), {"b": "ready", "c": "ready"})
                    load.more()
                    dns.silent, dns.records = False, kept
                dns.records[("w.test", A)] = ["127.0.0.2"]
                router.wait_for({"c": "ready"})


class Kubernetes(Discovery):
    def certificate(self):
        cert, key = self.path("cert.pem"), self.path("key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-keyout",
                        key, "-out", cert, "-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        return cert, key

    def test_lists_watches_drops_410_rotated_tokens_and_a_server_that_is_gone(self):
        a, b = self.worker("a", host="127.0.0.2"), self.worker("b", host="127.0.0.3")
        c = self.worker("c", host="127.0.0.3", port=a.port)
        certificate, token = self.certificate(), self.path("token")
        token.write_text("one\n")
        with contextlib.ExitStack() as stack:
            api = stack.enter_context(ApiServer(certificate, "one"))
            api.put("s1", [endpoint("127.0.0.2", ready=True, serving=True, terminating=False)], a.port)
            api.put("s2", [endpoint("127.0.0.3", ready=True)], b.port)
            router = stack.enter_context(self.router("--workers-kubernetes", "ns/svc", "--kubernetes-api", api.url,
                                                     "--kubernetes-token-file", token, "--kubernetes-ca-file", certificate[0]))
            router.wait_for({"a": "ready", "b": "ready"})
            self.assertEqual([q.get("continue") for _, q, _ in api.asked[:2]], [None, "102-1"], "a list comes in pages")
            with Load(router) as load:
                api.put("s2", [endpoint("127.0.0.3", ready=False, serving=True, terminating=True)], b.port)
                router.wait_for({"a": "ready", "b": "draining"})
                load.more()
                api.put("s2", [], b.port)
                router.wait_for({"a": "ready"})
                api.put("s3", [endpoint("127.0.0.3", ready=False, serving=False)], a.port)
                api.bookmark()
                api.drop()
                api.put("s3", [endpoint("127.0.0.3", ready=True)], a.port)  # while nobody watched, or just again
                router.wait_for({"a": "ready", "c": "ready"})
                lists = self.lists(api)
                api.forget()
                api.drop()
                router.wait_until(lambda: self.lists(api) > lists, "410 lists again")
                api.delete("s1")
                router.wait_for({"c": "ready"})
                api.token = "two"
                token.write_text("two\n")
                api.drop()
                api.put("s1", [endpoint("127.0.0.2", ready=True)], a.port)
                router.wait_for({"a": "ready", "c": "ready"})
                load.more()
                api.__exit__(None, None, None)
                router.wait_until(lambda: "connecting: Connection refused" in router.log.read_text(), "the server is gone")
                self.assertIn("what was known stays, workers: 2", router.log.read_text())
                load.more()
                self.assertEqual(router.workers(), {"a": "ready", "c": "ready"})
                token.write_text("three\n")  # nobody heard of the second one's end
                back = ApiServer(certificate, "three", port=api.port)  # another one, which knows nothing of the old
                back.put("s9", [endpoint("127.0.0.2", ready=True)], a.port)
                with back:
                    router.wait_for({"a": "ready"}, 60)
                    self.assertEqual([("watch" in query, who) for _, query, who in back.asked[:2]], [(False, "Bearer three"), (True, "Bearer three")])
                    load.more()
            stack.pop_all()
            router.__exit__(None, None, None)

    @staticmethod
    def lists(api):
        return sum("watch" not in query for _, query, _ in api.asked)

    def test_a_stranger_s_certificate_and_a_wrong_token_are_named(self):
        certificate = self.certificate()
        self.path("token").write_text("another")
        for flags, why in [(["--kubernetes-ca-file", "/etc/hostname"], "no certificates can be read"), (["--kubernetes-ca-file", ""], "TLS: certificate verify failed"),
                           (["--kubernetes-ca-file", certificate[0]], "answers 401"),
                           (["--kubernetes-ca-file", certificate[0], "--kubernetes-token-file", "/nowhere"], "no token can be read from /nowhere")]:
            with ApiServer(certificate, "one") as api, open(self.path("log"), "w") as log:
                command = [BATON, "router", "--model", TINY, "--port", "0", "--grpc-port", "0", "--admin-port", "0", "--workers-kubernetes",
                           "ns/svc", "--kubernetes-api", api.url, "--kubernetes-token-file", self.path("token"), *flags]
                process = subprocess.Popen(command, stdout=log, stderr=log)
                try:
                    deadline = time.monotonic() + 20
                    while why not in self.path("log").read_text():
                        self.assertLess(time.monotonic(), deadline, f"{why}\n{self.path('log').read_text()}")
                        time.sleep(0.02)
                finally:
                    process.terminate()
                    self.assertEqual(process.wait(20), 0)

    def test_flags_that_cannot_be_meant(self):
        for flags, why in [(["--workers-kubernetes", "svc"], "NAMESPACE/SERVICE"), (["--workers-kubernetes", "a/b"], "this is no pod"),
                           (["--workers-dns", "a:b"], "--workers-dns a:b"), (["--workers-dns", "w", "--dns-server", "x"], "--dns-server x"),
                           (["--worker", "dns:///w:1"], "without a scheme")]:
            out = run(["router", "--model", TINY, *flags])
            self.assertEqual(out.returncode, 2, out.stderr)
            self.assertIn(why, out.stderr)


class Advertised(Discovery):
    def test_routers_and_prefill_workers_dial_what_they_are_told(self):
        tcp = ["--transport", "tcp"]
        p = self.worker("p", "prefill", args=tcp)
        d = self.worker("d", "decode", args=[*tcp, "--advertise-host", "localhost"])
        self.assertTrue(d.address.startswith("localhost:"), d.address)
        with self.router("--worker", p.address, "--worker", d.address, "--local-prefill-max-tokens", 8) as router:
            router.wait_until(lambda: 'transport="tcp"' in router.get("/metrics").body, "the prefill worker has reached it by its name")
            for body in BODIES:
                answer(router, body)

    def test_an_address_that_nobody_can_dial_is_refused(self):
        for told, why in [("0.0.0.0", "nobody can dial it"), ("a b", "host name"), ("host:80", "colons")]:
            out = run(["worker", "--model", TINY, "--load-format", "dummy", "--advertise-host", told])
            self.assertNotEqual(out.returncode, 0)
            self.assertIn(why, out.stderr + out.stdout)


class Ipv6(Discovery):
    def test_every_port_over_ipv6(self):
        try:
            with socket.create_server(("::1", 0), family=socket.AF_INET6):
                pass
        except OSError as e:
            self.skipTest(f"no IPv6 here: {e}")
        tcp = ["--transport", "tcp"]
        p, d = self.worker("p", "prefill", host="::1", args=tcp), self.worker("d", "decode", host="::1", args=tcp)
        self.assertTrue(p.address.startswith("[::1]:"), p.address)
        with self.router("--worker", p.address, "--worker", d.address, "--local-prefill-max-tokens", 8, host="::1") as router:
            self.assertTrue(router.url.startswith("http://[::1]:") and router.grpc.startswith("[::1]:") and router.admin.startswith("http://[::1]:"))
            for body in BODIES:
                answer(router, body)
            self.assertEqual(router.workers(), {"p": "ready", "d": "ready"})
            self.assertIn('transport="tcp"', router.get("/metrics").body, "KV came over TCP, and that over ::1")
            self.assertIn("::1", d.log.read_text())
            socket.create_connection(("::1", int(router.grpc.rsplit(":", 1)[1]))).close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
