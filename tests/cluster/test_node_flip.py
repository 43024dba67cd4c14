"""`baton flip` of a worker whose ranks are on several machines (processes on addresses of their own), under load: the ranks on all of
its machines take the other role, no request is refused, no answer changes; a machine that dies meanwhile costs no answer."""
import os
import signal
import threading
import unittest

from harness import Cluster, run
from test_disaggregated import LONG, wait_for_memory
from test_flip import Load, answers, flip, workers
from test_metrics import samples
from test_node_lanes import Pair
from test_nodes import TP, WIDTH

TWO = (2, [TP, 2])


class Drained:
    """A worker takes no requests."""

    def __init__(self, cluster, worker):
        self.cluster, self.worker = cluster, worker

    def order(self, *args):
        done = run(["drain", self.worker["address"], "--url", self.cluster.admin, *args])
        assert done.returncode == 0, done.stderr

    def __enter__(self):
        self.order()

    def __exit__(self, *why):
        self.order("--undo")


class NodeFlips(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Cluster(args=WIDTH) as c:
            cls.alone = answers(c)

    def worker_of(self, pair, name):
        address = pair.groups[name].nodes[0].address
        return next(w for w in workers(pair.cluster) if w["address"] == address)

    def carried(self, c, role, ranks=2):
        """KV bytes by rank of the workers of that role, all of them."""
        return [sum(v for have, v in samples(c, "baton_kv_rank_bytes_total") if (have["role"], have["rank"]) == (role, str(r)))
                for r in range(ranks)]

    def test_a_worker_on_two_machines_changes_its_role_and_back(self):
        with Pair(TWO, TWO, spare=TWO) as pair:
            c = pair.cluster
            self.assertEqual(answers(c), self.alone)
            with Load(c, self.alone, threads=2) as load:
                for role in ("prefill", "decode"):
                    spare = self.worker_of(pair, "spare")
                    done = flip(c, spare, role)
                    self.assertEqual(done.returncode, 0, done.stderr + c.log.read_text()[-3000:])
                    now = self.worker_of(pair, "spare")
                    self.assertEqual((now["role"], now["takes_requests"], now["name"]), (role, True, spare["name"]))
                    if role == "prefill":  # with the first one away it alone hands over: from both machines
                        drained = self.worker_of(pair, "prefill")
                        with Drained(c, drained):
                            before = self.carried(c, "prefill")
                            c.wait_until(lambda: all(b > a for a, b in zip(before, self.carried(c, "prefill"))), "both ranks send KV", 60)
                    seen = load.count
                    c.wait_until(lambda: load.count > seen + 6, "requests after the change", 60)
            self.assertEqual(load.wrong, [])
            self.assertEqual(c.metric("baton_kv_digest_mismatches_total"), 0)
            wait_for_memory(c, "two flips")

    def test_a_machine_that_dies_while_its_worker_changes_costs_no_answer(self):
        with Pair(TWO, TWO, spare=TWO) as pair:
            c, group = pair.cluster, pair.groups["spare"]
            port = group.nodes[0].address.rsplit(":", 1)[1]
            slow = {"model": "tiny-llama", "prompt": LONG, "max_tokens": 400, "ignore_eos": True, "temperature": 0}
            with Load(c, self.alone, threads=3) as load:
                held = [threading.Thread(target=c.post, args=("/v1/completions", slow)) for _ in range(6)]
                for t in held:
                    t.start()
                c.wait_until(lambda: self.worker_of(pair, "spare")["requests"] > 1, "requests there", 60)
                told = []
                order = threading.Thread(target=lambda: told.append(flip(c, self.worker_of(pair, "spare"), "prefill")))
                order.start()
                c.wait_until(lambda: self.worker_of(pair, "spare").get("flip"), "the order")
                os.kill(group.nodes[1].process.pid, signal.SIGKILL)
                group.nodes[1].process.wait()
                self.assertEqual(group.nodes[0].process.wait(30), 7)
                order.join()  # nobody has brought the machine back
                for t in held:
                    t.join()
                group.start(0, "--port", port), group.start(1)
                c.wait_until(lambda: all(w["takes_requests"] for w in workers(c)), "that it is back", 60)
                self.assertEqual(self.worker_of(pair, "spare")["role"], "decode", "of its command line")
            self.assertEqual(load.wrong, [])
            if told[0].returncode != 0:  # else it had changed before it died
                self.assertRegex(told[0].stderr, "has not become prefill: ")
            self.assertEqual(answers(c), self.alone)


if __name__ == "__main__":
    unittest.main(verbosity=2)
