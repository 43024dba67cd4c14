"""Prefill and decode workers whose ranks are on several machines (processes on addresses of their own): each rank hands its own
KV over, to the ranks that need it, bit for bit; no rank carries another's bytes; who dies while KV moves costs no answer."""
import contextlib
import re
import shutil
import sys
import time
import unittest

from harness import Cluster, in_parallel
from test_disaggregated import LONG, field_requests, wait_for_memory
from test_nodes import PP, TP, WIDTH, Group
from test_promise_a import answer, requests

HANDOFF = ["--local-prefill-max-tokens", 0]
BYTES = re.compile(r'^baton_kv_rank_bytes_total\{([^}]*)\} (\S+)$', re.M)


def rank_bytes(cluster):
    """{role: [bytes of rank 0, 1, …]}"""
    out = {}
    for labels, value in BYTES.findall(cluster.get("/metrics").body):
        label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        out.setdefault(label["role"], {})[int(label["rank"])] = float(value)
    return {role: [by_rank[r] for r in sorted(by_rank)] for role, by_rank in out.items()}


class Pair:
    """A prefill and a decode worker on machines of their own, and a router. `prefill`, `decode`: (machines, flags). `spare`: another
    decode worker, the same."""

    def __init__(self, prefill, decode, router=(), spare=None):
        self.stack, self.router_args = contextlib.ExitStack(), [*HANDOFF, *router]
        self.sides = [("prefill", "prefill", *prefill), ("decode", "decode", *decode)]
        if spare:
            self.sides.append(("spare", "decode", *spare))

    def __enter__(self):
        self.groups = {}
        try:
            first = None
            for name, role, count, flags in self.sides:
                group = self.groups[name] = self.stack.enter_context(Group(count, *flags, "--role", role))
                if first is not None:  # one cluster
                    for mine, theirs in ((group.secret, first.secret), (group.key, first.key)):
                        shutil.copy(theirs, mine)
                first = first or group
            for group in self.groups.values():
                for index in range(group.count):
                    group.start(index)
            workers = [group.nodes[0].await_ready() for group in self.groups.values()]
            self.cluster = self.stack.enter_context(first.router(*workers, args=self.router_args))
            self.cluster.wait_until(lambda: self.cluster.get("/ready").status == 200, "all workers are ready")
            return self
        except BaseException:
            self.stack.__exit__(*sys.exc_info())
            raise

    def __exit__(self, *why):
        return self.stack.__exit__(*why)


class NodeLanes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bodies = field_requests() + requests(8, seed=31)
        with Cluster(args=WIDTH) as c:
            cls.alone = [answer(c, body) for body in cls.bodies]

    def check(self, c, what):
        for round_name in ("cold", "with prefix hits"):
            got = in_parallel([lambda b=b: answer(c, b) for b in self.bodies])
            for body, want, have in zip(self.bodies, self.alone, got):
                self.assertEqual(have, want, f"{what}, {round_name}: {body}")
        self.assertEqual(c.metric("baton_kv_digest_mismatches_total"), 0)
        self.assertEqual(c.metric("baton_handoff_recomputes_total"), 0)
        wait_for_memory(c, what)

    def halves(self, c, *roles):
        """Of prompts that are all handed over to their end, before any other is: each of two ranks carries half of the bytes, to the byte.
        (Of a request that ends at its first token a rank may still have sent a slot that the other has not.)"""
        whole = {"model": "tiny-llama", "max_tokens": 16, "ignore_eos": True, "temperature": 0}
        in_parallel([lambda i=i: answer(c, {**whole, "prompt": f"{i} {LONG}"}) for i in range(6)])
        for role in roles:
            c.wait_until(lambda: rank_bytes(c)[role][0] == rank_bytes(c)[role][1] > 0, f"each rank of {role} has carried half: {rank_bytes(c)}")

    def test_two_machines_hand_over_to_two_and_each_rank_carries_its_own_half(self):
        with Pair((2, [TP, 2]), (2, [TP, 2])) as pair:
            self.halves(pair.cluster, "prefill", "decode")
            self.check(pair.cluster, "TP 2 to TP 2")
            for role, group in pair.groups.items():
                said = " is reached by " if role == "prefill" else "a prefill worker comes by "
                for node in group.nodes:
                    self.assertEqual(node.said().count(said), 1, f"{role}: one lane per rank:\n{node.said()}")

    def test_halves_of_heads_become_stages_of_layers_in_other_blocks_over_tcp(self):
        with Pair((2, [TP, 2, "--block-size", 64, "--max-num-batched-tokens", 48, "--transport", "tcp"]),
                  (2, [PP, 2, "--transport", "tcp"])) as pair:
            self.halves(pair.cluster, "prefill")
            self.check(pair.cluster, "TP 2 to PP 2, blocks of 64 to 16, chunks of 48")

    def test_four_ranks_on_two_machines_hand_over_to_one_rank_and_back_to_four(self):
        for prefill, decode in (((2, [TP, 2, PP, 2]), (1, [])), ((1, []), (2, [TP, 4, "--landing-slots", 8]))):
            with self.subTest(prefill=prefill, decode=decode), Pair(prefill, decode) as pair:
                self.check(pair.cluster, f"{prefill} to {decode}")

    def test_a_machine_that_is_killed_while_kv_moves_costs_no_answer(self):
        """Either side's machine without rank 0 goes while segments are on their way; another worker of that role takes over."""
        bodies = [{"model": "tiny-llama", "prompt": f"{i} {LONG}", "max_tokens": 24, "seed": i, "temperature": 0.8, "logprobs": 2}
                  for i in range(12)]
        with Cluster(args=WIDTH) as c:
            want = [answer(c, body) for body in bodies]
        small = ["--landing-slots", 4, "--landing-slot-bytes", 65536, "--max-num-batched-tokens", 64]
        for role in ("prefill", "decode"):
            with self.subTest(role=role), Pair((2, [TP, 2, *small]), (2, [TP, 2, *small])) as pair:
                c, group = pair.cluster, pair.groups[role]

                def kill():
                    while c.metric("baton_kv_transfer_bytes_total") == 0:
                        time.sleep(0.002)
                    group.nodes[1].process.kill()
                    since = time.monotonic()
                    group.ends_lost([group.nodes[0]], since, "is gone")
                    port = group.nodes[0].address.rsplit(":", 1)[1]
                    group.start(0, "--port", port), group.start(1)

                *got, _ = in_parallel([*(lambda b=b: answer(c, b) for b in bodies), kill])
                for body, expected, have in zip(bodies, want, got):
                    self.assertEqual(have, expected, f"{role} lost a machine: {body}")
                self.assertEqual(c.metric("baton_kv_digest_mismatches_total"), 0)
                wait_for_memory(c, f"{role} lost a machine")


if __name__ == "__main__":
    unittest.main(verbosity=2)
