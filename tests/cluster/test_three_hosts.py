"""Router, prefill, decode and the client on hosts of their own: KV over TCP, plain and by UCX, through delay, loss and a cut
network gives the answers of one worker on one machine, or a clear error, and all memory back."""
import threading
import time
import unittest

from harness import Cluster, in_parallel
from hosts import HostCluster, Hosts, why_not
from test_disaggregated import LONG, wait_for_memory
from test_promise_a import answer, bits_of, path_of, requests

HANDOFF = ["--local-prefill-max-tokens", 8]
CUT_SECONDS = 3
CLEAR = (408, 429, 499, 502, 503, 504)  # what may be answered while a host is cut off
SKIP = why_not()


def has_ucx(hosts):
    """Whether workers of this build can use UCX: the decode worker of a probe says otherwise."""
    with HostCluster(hosts, worker_args=["--transport", "ucx-tcp"], router_args=HANDOFF) as c:
        return "no KV by ucx-tcp" not in c.log_of("decode")


@unittest.skipIf(SKIP, SKIP)
class ThreeHosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bodies = requests(10, seed=23) + [{"model": "tiny-llama", "prompt": LONG * 2, "max_tokens": 24, "seed": s,
                                                "temperature": 0.8, "logprobs": 2} for s in range(4)]
        with Cluster(args=["--threads", 1]) as c:
            cls.alone = [answer(c, body) for body in cls.bodies]
        cls.hosts = Hosts(["router", "prefill", "decode", "client"])
        cls.hosts.__enter__()
        cls.addClassCleanup(cls.hosts.__exit__, None, None, None)

    def all_right(self, cluster, what):
        start, sent = time.monotonic(), self.sent(cluster)
        got = in_parallel([lambda b=b: self.on_client(answer, cluster, b) for b in self.bodies])
        for body, want, have in zip(self.bodies, self.alone, got):
            self.assertEqual(have, want, f"{what}: {body}")
        took = time.monotonic() - start
        deadline = time.monotonic() + 5
        while (moved := self.sent(cluster) - sent) == 0:
            self.assertLess(time.monotonic(), deadline, f"{what}: no KV moved")
            time.sleep(0.05)
        print(f"    {what}: {len(got)} answers, bit for bit, in {took:.2f} s; {moved / 1e6:.1f} MB of KV", flush=True)

    def on_client(self, call, *args):
        with self.hosts.inside("client"):
            return call(*args)

    def sent(self, cluster):
        """Bytes that the prefill worker has sent, as its last report says."""
        return self.metric(cluster, "baton_kv_transfer_bytes_total")

    def metric(self, cluster, name):
        return self.on_client(cluster.metric, name)

    def through_bad_networks(self, transport):
        if transport == "ucx-tcp" and not self.on_client(has_ucx, self.hosts):
            self.skipTest("this build has no UCX")
        with HostCluster(self.hosts, worker_args=["--transport", transport, "--no-enable-prefix-caching"],
                         router_args=HANDOFF) as c:
            self.all_right(c, f"{transport}, a good network")
            self.assertIn(f"is reached by {transport} (", c.log_of("prefill"))
            print("    " + next(line for line in c.log_of("prefill").splitlines() if "is reached by" in line), flush=True)
            with self.hosts.impaired(delay=0.01):  # each way: 20 ms
                self.all_right(c, f"{transport}, 20 ms there and back")
            with self.hosts.impaired(delay=0.01, loss=0.01):
                self.all_right(c, f"{transport}, 20 ms and 1 % loss")
            self.cut_off(c, transport)
            self.all_right(c, f"{transport}, after the cut")
            self.assertEqual(self.metric(c, "baton_kv_digest_mismatches_total"), 0)
            self.on_client(wait_for_memory, c, "bad networks")

    def cut_off(self, cluster, transport):
        """The decode host hears nothing and is not heard for 3 s, under load."""
        def ask(body):
            reply = self.on_client(lambda: cluster.post(path_of(body), body))
            return reply.status, reply

        started = time.monotonic()
        results = {}

        def load():
            results["got"] = in_parallel([lambda b=b: ask(b) for b in self.bodies])

        thread = threading.Thread(target=load)
        self.hosts.cut("decode")
        thread.start()
        time.sleep(CUT_SECONDS)  # the length of the cut is what is tested
        self.hosts.cut()
        thread.join()
        right = 0
        for body, want, (status, reply) in zip(self.bodies, self.alone, results["got"]):
            if status == 200:
                self.assertEqual(bits_of(reply.json()), want, f"{transport}, cut off: {body}")
                right += 1
            else:
                self.assertIn(status, CLEAR, reply.body)
                self.assertTrue(reply.json()["error"]["message"], reply.body)
        print(f"    {transport}, cut off for {CUT_SECONDS} s: {right} of {len(self.bodies)} right, the others a clear error, "
              f"all over after {time.monotonic() - started:.2f} s", flush=True)
        self.on_client(wait_for_memory, cluster, "the cut")

    def test_tcp(self):
        self.through_bad_networks("tcp")

    def test_ucx_over_tcp(self):
        self.through_bad_networks("ucx-tcp")


if __name__ == "__main__":
    unittest.main(verbosity=2)
