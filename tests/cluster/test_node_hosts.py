"""Ranks on hosts of their own (network namespaces), which trust nobody but each other: TLS and secret everywhere. KV goes from rank to rank between them, also when nobody has asked for
long and the network has forgotten who was connected; and a host that is cut off, both ways, ends its group on both sides of the cut in time, while what it was computing is answered all the same."""
import shutil
import time
import unittest

from harness import Cluster, in_parallel
from hosts import Hosts, why_not
from test_disaggregated import LONG
from test_node_lanes import HANDOFF, rank_bytes
from test_nodes import TP, WIDTH, Group
from test_promise_a import answer
from test_tls import Certs

SKIP = why_not()
FAILOVER_WAIT = 10  # --failover-wait-ms, in seconds


class HostGroup(Group):
    """The machines of one worker, on hosts `names`."""

    def __init__(self, hosts, names, *args):
        super().__init__(len(names), "--transport", "tcp", *args)
        self.hosts, self.names = hosts, names

    def host_of(self, index):
        return self.hosts.address(self.names[index])

    def on_machine(self, index):
        return self.hosts.inside(self.names[index])


@unittest.skipIf(SKIP, SKIP)
class NodeHosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bodies = [{"model": "tiny-llama", "prompt": f"{i} {LONG}", "max_tokens": 24, "seed": i, "temperature": 0.8, "logprobs": 2}
                      for i in range(12)]
        with Cluster(args=WIDTH) as c:
            cls.alone = [answer(c, body) for body in cls.bodies]
        cls.hosts = Hosts(["a", "b", "c", "d", "client"])
        cls.hosts.__enter__()
        cls.addClassCleanup(cls.hosts.__exit__, None, None, None)

        cls.certs = Certs()
        cls.addClassCleanup(cls.certs.__exit__)

    def right(self, c, what):
        """The seconds that it took."""
        since = time.monotonic()
        for body, want, have in zip(self.bodies, self.alone, in_parallel([lambda b=b: answer(c, b) for b in self.bodies])):
            self.assertEqual(have, want, f"{what}: {body}")
        return time.monotonic() - since

    def test_ranks_hand_over_between_hosts_also_after_they_were_idle_and_a_host_that_is_cut_off_ends_both_sides(self):
        tls = self.certs.flags()
        with HostGroup(self.hosts, ["a", "b"], TP, 2, "--role", "prefill", "--kv-tls", *tls) as prefill, \
             HostGroup(self.hosts, ["c", "d"], TP, 2, "--role", "decode", "--kv-tls", *tls) as decode:
            for mine, theirs in ((decode.secret, prefill.secret), (decode.key, prefill.key)):
                shutil.copy(theirs, mine)
            for group in (prefill, decode):
                for index in range(2):
                    group.start(index)
            workers = [group.nodes[0].await_ready() for group in (prefill, decode)]
            with self.hosts.inside("client"), prefill.router(*workers, args=[*HANDOFF, *tls, "--insecure-no-tls"]) as c:
                c.wait_until(lambda: c.get("/ready").status == 200, "both workers are ready")
                took = self.right(c, "whole")
                self.assertEqual(c.metric("baton_kv_digest_mismatches_total"), 0)
                for node in prefill.nodes:
                    node.await_text("is reached by tcp (tcp in TLS)")
                c.wait_until(lambda: len(rank_bytes(c)["decode"]) == 2 and min(rank_bytes(c)["decode"]) > 0, "both ranks took KV")
                self.idle(c, [*prefill.nodes, *decode.nodes], took)
                self.cut_off(prefill, c)

    def idle(self, c, nodes, before):
        """Long enough for a network that forgets after 15 s, as others do after minutes."""
        lost = c.metric("baton_worker_losses_total")
        with self.hosts.forgetful(15):
            time.sleep(20)
            self.assertLess(self.right(c, "after it was idle"), FAILOVER_WAIT + before, "nobody waited for a lost worker")
        self.assertEqual([node.process.poll() for node in nodes], [None] * len(nodes))
        self.assertEqual(c.metric("baton_worker_losses_total"), lost, c.log.read_text()[-3000:])

    def cut_off(self, group, c):
        """b hears nobody and nobody hears b, while a step may run."""
        def cut():
            self.hosts.cut("b")
            group.ends_lost(group.nodes, time.monotonic(), "has shown no sign of life for ")

        *got, _ = in_parallel([*(lambda b=b: answer(c, b) for b in self.bodies), cut])
        self.hosts.cut()
        for body, want, have in zip(self.bodies, self.alone, got):
            self.assertEqual(have, want, f"b was cut off: {body}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
