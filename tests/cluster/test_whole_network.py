"""A whole cluster on hosts of its own (network namespaces) that trusts nobody: a router, a prefill worker of two ranks on two hosts, two
decode workers and two hosts that ask, over IPv6, with TLS, the cluster secret and API keys, by names that a DNS server of its own
knows. Drains, flips, a host that is cut off and an upgrade to newer protocol versions happen under load, over a good network and one that delays
and loses: no request fails and no answer changes."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import ssl
import subprocess
import tempfile
import threading
import time
import unittest

from dns_server import AAAA, SRV, DnsServer
from harness import BATON, START_SECONDS, TINY, Cluster
from hosts import Hosts, in_netns, why_not
from test_disaggregated import LONG
from test_tls import Certs
from test_versions import NEXT

NAMES = ["a", "b", "b2", "c", "c2", "d", "e"]
KEY = "sk-of-the-clients"
SERVICE = "_grpc._tcp.workers.test"
OURS = (BATON, {})
WIDTH = ["--threads", 1, "--reduction-width", 2]
BODIES = [{"model": "tiny-llama", "prompt": f"{i} {LONG[:300 + 90 * i]}", "max_tokens": 8 + 6 * i, "seed": i, "temperature": 0.8, "logprobs": 2,
           "ignore_eos": True} for i in range(6)]
CUT_SECONDS = 4  # longer than the silence after which a worker is lost
SKIP = why_not()


def choices(reply):
    assert reply.status == 200, f"{reply.status}: {reply.body}"
    return reply.json()["choices"]


class Network(contextlib.ExitStack):
    """The hosts, their names, the certificates and the processes. `list` says which workers the names of the service lead to."""

    def __enter__(self):
        super().__enter__()
        self.hosts = self.enter_context(Hosts(NAMES, six=True))
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-network-"))
        self.callback(shutil.rmtree, self.dir, ignore_errors=True)
        for name in NAMES:  # what `ip netns exec` lays over /etc
            etc = pathlib.Path("/etc/netns", self.hosts.netns(name))
            etc.mkdir(parents=True)
            self.callback(shutil.rmtree, etc, ignore_errors=True)
            (etc / "resolv.conf").write_text(f"nameserver {self.hosts.address('a')}\n")
        with self.hosts.inside("a"):
            self.dns = self.enter_context(DnsServer(self.hosts.address("a"), 53))
        self.dns.records = {(f"{name}.test", AAAA): [self.hosts.address(name)] for name in NAMES}
        self.certs = self.enter_context(Certs([f"{name}.test" for name in NAMES] + [self.hosts.address("a")]))
        for name, text in (("hash-key", os.urandom(32).hex()), ("api-keys", KEY)):
            self.path(name).write_text(text + "\n")
            self.path(name).chmod(0o600)
        self.trust = [*self.certs.flags(), "--cluster-secret-file", self.certs.dir / "cluster-secret", "--hash-key-file", self.path("hash-key")]
        self.processes = {}
        self.callback(self.stop_all)
        return self

    def path(self, name):
        return self.dir / name

    def start(self, name, host, args, build=OURS):
        with open(self.path(f"{name}.log"), "w") as log:
            self.processes[name] = self.hosts.run(host, [build[0], *args, "--ready-file", self.path(f"{name}.ready"), *self.trust], stdout=log, stderr=log,
                                                  env={**os.environ, **build[1]})

    def worker(self, name, host, role, port=7000, args=(), build=OURS):
        self.start(name, host, ["worker", "--role", role, "--model", TINY, "--load-format", "dummy", "--host", f"{host}.test", "--port", port, "--worker-id", name, "--kv-tls",
                                "--transport", "tcp", *WIDTH, *args], build)

    def list(self, *places):
        self.dns.records[SERVICE, SRV] = [(port, f"{host}.test") for host, port in places]

    def log(self, name):
        return self.path(f"{name}.log").read_text()

    def await_ready(self, *names):
        deadline = time.monotonic() + START_SECONDS
        for name in names:
            while not self.path(f"{name}.ready").exists():
                assert self.processes[name].poll() is None and time.monotonic() < deadline, self.log(name)
                time.sleep(0.02)

    def stop(self, *names):
        for name in names:
            self.processes[name].send_signal(signal.SIGTERM)
        for name in names:
            code = self.processes.pop(name).wait(30)
            assert code == 0, f"{name} ends with {code}:\n{self.log(name)[-3000:]}"

    def stop_all(self):
        for process in self.processes.values():
            process.kill()
            process.wait()


class Router(Cluster):
    """`baton router` on host a, asked from the host of the thread that asks."""

    def __init__(self, network, name, port, build=OURS):
        super().__init__(ca=network.certs.ca)
        network.callback(shutil.rmtree, self.dir, ignore_errors=True)
        self.network, self.name, self.log = network, name, network.path(f"{name}.log")
        self.host, self.port = network.hosts.address("a"), port
        self.admin = f"https://a.test:{port + 2}"
        network.start(name, "a", ["router", "--model", TINY, "--host", "a.test", "--port", port, "--workers-dns", SERVICE, "--dns-server", network.dns.address,
                                  "--workers-dns-interval-ms", 200, "--local-prefill-max-tokens", 0, "--api-key-file", network.path("api-keys"), "--public-metrics"], build)
        network.await_ready(name)

    def request(self, *args, headers=None, **kw):
        return super().request(*args, headers={"Authorization": f"Bearer {KEY}", **(headers or {})}, **kw)

    def order(self, *args):
        """A `baton` command for operators, on the router's host."""
        done = self.network.hosts.run("a", [BATON, *args, "--url", self.admin, "--tls-ca", self.network.certs.ca], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                      env={**os.environ, "BATON_API_KEY": KEY})
        said, _ = done.communicate(timeout=120)
        assert done.returncode == 0, f"{args}: {said}\n{self.log.read_text()[-3000:]}"
        return said

    def workers(self):
        with self.network.hosts.inside("a"):
            connection = type(self.connection())(self.host, self.port + 2, timeout=30, context=self.tls)
            try:
                connection.request("GET", "/workers", headers={"Authorization": f"Bearer {KEY}"})
                return {w["name"]: w for w in json.loads(connection.getresponse().read())["workers"]}
            finally:
                connection.close()

    def wait_for(self, **states):
        want = {name.replace("_", "-"): state for name, state in states.items()}
        self.wait_until(lambda: {name: w["state"] for name, w in self.workers().items()} == want, f"workers {want}", 60)


class Load:
    """Clients on hosts d and e that ask without end. What is not the answer of one worker alone is kept."""

    def __init__(self, network, router, want, clients=4):
        self.network, self.router, self.want, self.wrong, self.count, self.over = network, router, want, [], 0, threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(i, "de"[i % 2])) for i in range(clients)]

    def ask(self, i, host):
        with in_netns(self.network.hosts.netns(host)):
            while not self.over.is_set():
                try:
                    if choices(self.router.post("/v1/completions", BODIES[i % len(BODIES)])) != self.want[i % len(BODIES)]:
                        self.wrong.append(f"another answer to {i % len(BODIES)}")
                except (AssertionError, OSError) as e:
                    self.wrong.append(repr(e))
                self.count, i = self.count + 1, i + 1

    def __enter__(self):
        self.since = time.monotonic()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join(120)

    def more(self, what, count=8):
        """So many more were answered, all of them right."""
        wanted = self.count + count
        deadline = time.monotonic() + 120
        while self.count < wanted and not self.wrong:
            assert time.monotonic() < deadline, f"{what}: {self.count} answers, {wanted} wanted\n{self.router.log.read_text()[-3000:]}"
            time.sleep(0.02)
        assert not self.wrong, f"{what}: {len(self.wrong)} of {self.count}: {self.wrong[:3]}\n{self.router.log.read_text()[-3000:]}"
        print(f"    {what}: {self.count} right answers after {time.monotonic() - self.since:.1f} s", flush=True)


@unittest.skipIf(SKIP, SKIP)
class WholeNetwork(unittest.TestCase):
    def test_drains_flips_a_cut_and_an_upgrade_under_load_cost_no_answer(self):
        with Cluster(args=WIDTH) as c:
            want = [choices(c.post("/v1/completions", body)) for body in BODIES]
        with Network() as n:
            for index, host in enumerate(("b", "b2")):
                n.worker(host, host, "prefill", args=["--tensor-parallel-size", 2, "--nnodes", 2, "--node-rank", index, "--master-addr", "b.test"])
            for host in ("c", "c2"):
                n.worker(host, host, "decode")
            n.list(("b", 7000), ("c", 7000), ("c2", 7000))
            router = Router(n, "router", 8000)
            n.await_ready("b", "b2", "c", "c2")
            router.wait_for(b="ready", c="ready", c2="ready")
            with Load(n, router, want) as load:
                load.more("a good network")
                self.changes(router, load)
                with n.hosts.impaired(delay=0.005, loss=0.005):
                    load.more("10 ms there and back, 0.5 % loss")
                    self.changes(router, load)
                self.cut(n, router, load)
                self.upgrade(n, router, load)
            self.assertEqual(load.wrong, [])

    def changes(self, router, load):
        router.order("drain", "c")
        load.more("c is drained")
        router.order("drain", "c", "--undo")
        for role in ("prefill", "decode"):
            router.order("flip", "c2", role)
            self.assertEqual(router.workers()["c2"]["role"], role)
            load.more(f"c2 is {role}")

    def cut(self, n, router, load):
        n.hosts.cut("c")
        router.wait_until(lambda: router.workers()["c"]["state"] != "ready", "the lost worker shows", 30)
        load.more("c is cut off")
        n.hosts.cut()
        router.wait_for(b="ready", c="ready", c2="ready")
        load.more("c is joined again")

    def upgrade(self, n, router, load):
        n.worker("b-new", "b", "prefill", port=7100, build=NEXT)
        n.worker("c-new", "c", "decode", port=7100, build=NEXT)
        n.await_ready("b-new", "c-new")
        n.list(("b", 7000), ("c", 7000), ("c2", 7000), ("b", 7100), ("c", 7100))
        router.wait_for(b="ready", c="ready", c2="ready", b_new="ready", c_new="ready")
        load.more("two releases serve")
        for name in ("b", "c", "c2"):
            router.order("drain", name)
        n.list(("b", 7100), ("c", 7100))
        router.wait_for(b_new="ready", c_new="ready")
        n.stop("b", "b2", "c", "c2")
        load.more("the new release alone")
        load.router = new = Router(n, "new-router", 8100, build=NEXT)
        load.more("and a router of it")
        with n.hosts.inside("d"):
            for one in (router, new):
                self.assertEqual(one.metric("baton_kv_digest_mismatches_total"), 0)
            self.assertLessEqual(router.metric("baton_worker_losses_total"), 1, "the one that was cut off")
        n.stop("router")
        load.more("the old router is gone")


if __name__ == "__main__":
    unittest.main(verbosity=2)
