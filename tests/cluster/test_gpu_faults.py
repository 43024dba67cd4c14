"""Prefill and decode on GPUs (the emulated plugin), with a spare worker of each role: one that is killed within a transfer, whose GPU
fails within one, or that stands still, a router that stands still and slots that are damaged change no answer. Of four pairs of kinds
of worker and three transports one is drawn, by the tree; between two GPUs KV goes by CUDA IPC where the transport is shm.
BATON_GPU_FAULTS=all runs every pair over every transport, a number that one of them."""
import functools
import itertools
import os
import random
import signal
import tempfile
import threading
import unittest

from harness import Cluster, in_parallel, tree_seed
from random_clusters import disturb
from test_disaggregated import LONG, wait_for_memory
from test_gpu_hardware import fail
from test_gpu_ipc import READ
from test_gpu_roles import PLUGIN, SLOTS, SMALL, bodies, flags
from test_kv_types import keeps_the_protocol
from test_promise_a import answer

SEEDS = (8, 9, 21)  # of random_clusters.py: stops prefill, stops decode, stops the router
# Prefill and decode. Where both compute and keep the same the answers are those of one worker, bit for bit.
PAIRS = [("GPU bfloat16", "GPU bfloat16"), ("CPU float32", "GPU bfloat16"), ("GPU bfloat16", "CPU float32"),
         ("GPU bfloat16", "GPU fp8")]
CASES = list(itertools.product(PAIRS, ("auto", "tcp", "ucx-shm")))
TOKENS = 6


def drawn():
    asked = os.environ.get("BATON_GPU_FAULTS", "")
    return CASES if asked == "all" else [CASES[(int(asked) if asked else tree_seed()) % len(CASES)]]


def streams(first, count):
    """What ends after TOKENS tokens a choice, whatever its bits are."""
    return [{"model": "tiny-llama", "prompt": f"{first + i} " + LONG[:90 + 7 * i], "max_tokens": TOKENS, "ignore_eos": True, "seed": i,
             "temperature": [0, 0.8][i % 2], "n": 1 + i % 2, "logit_bias": {"0": -100, "1": -100, "2": -100}} for i in range(count)]


def stop(cluster, seed):
    disturb(cluster, random.Random(seed), threading.Event())


def within(cluster, role, before, harm):
    """Once slots are granted and the first of the round are on their way, harm is done to a worker of the role."""
    pid = cluster.workers(role)[0]
    cluster.wait_until(
        lambda: cluster.metric("baton_landing_slots_granted") > 0 or cluster.metric("baton_kv_transfer_bytes_total") > before, "KV moves")
    harm(pid)


def kill(pid):
    os.kill(pid, signal.SIGKILL)


@unittest.skipUnless(PLUGIN, "no emulated plugin was built")
class GpuFaults(unittest.TestCase):
    def round(self, cluster, calls, harm, *args):
        """Calls each with the cluster while harm is done to it."""
        harmer = threading.Thread(target=harm, args=(cluster, *args))
        harmer.start()
        try:
            in_parallel([functools.partial(call, cluster) for call in calls])
        finally:
            harmer.join()
        cluster.wait_until(lambda: cluster.metric("baton_worker_up") == 4, "all workers are back", 60)

    def equals(self, body, want, cluster):
        self.assertEqual(answer(cluster, body), want, body)

    def protocol(self, body, cluster):
        keeps_the_protocol(self, cluster, body, TOKENS, alone=True)  # decode itself, once prefill is lost

    def rounds_of(self, kind, count):
        """The calls of `count` rounds of new prompts, then of one for each seed; each holds an answer against what one worker of the kind says."""
        new = [[{**body, "prompt": f"{n}{i} " + LONG[:120 + 7 * i]} for i, body in enumerate(bodies() * 2)] for n in range(count)]
        with Cluster(args=[*SMALL, *flags(kind)]) as c:
            want = [list(zip(asked, in_parallel([functools.partial(answer, c, body) for body in asked]))) for asked in (*new, bodies())]
        return [[functools.partial(self.equals, *pair) for pair in asked] for asked in (*want[:-1], *[want[-1] * 2] * len(SEEDS))]

    def harmed(self, prefill, decode, transport):
        with tempfile.TemporaryDirectory() as folder:
            harms = [("prefill", kill), ("decode", kill)]
            failures = [(role, functools.partial(fail, folder)) for role, kind in (("prefill", prefill), ("decode", decode)) if "GPU" in kind]
            count = len(harms + failures)
            rounds = self.rounds_of(prefill, count) if prefill == decode else [
                [functools.partial(self.protocol, body) for body in streams(100 * n, 6)] for n in range(count + len(SEEDS))]
            pair = ["--local-prefill-max-tokens", 8, *SLOTS, *SMALL, "--transport", transport, *flags(prefill, "prefill"), *flags(decode, "decode")]
            with Cluster(args=["--prefill", 2, "--decode", 2, *pair], env={"BATON_EMULATED_FAULTS": folder}) as c:
                if f"no KV by {transport}" in c.log.read_text():
                    self.skipTest(f"this build has no {transport}")
                for (role, harm), calls in zip(harms + failures, rounds):
                    self.round(c, calls, within, role, c.metric("baton_kv_transfer_bytes_total"), harm)
                for seed, calls in zip(SEEDS, rounds[count:]):
                    self.round(c, calls, stop, seed)
                log = c.log.read_text()
                self.assertEqual(log.count("baton: the GPU failed: "), len(failures))
                if transport == "auto" and "CPU" not in prefill + decode:
                    self.assertGreater(log.count(READ), 4, "the next ones are reached as those before them")
                else:
                    self.assertEqual(log.count(READ), 0)
                self.assertEqual(c.metric("baton_kv_digest_mismatches_total"), 0)
                wait_for_memory(c, f"{prefill} to {decode}")
        with Cluster(args=["--prefill", 1, "--decode", 1, *pair, "--prefill.test-kv-fault-rate", 0.3]) as c:
            in_parallel([functools.partial(call, c) for call in rounds[0]])
            c.wait_until(lambda: c.metric("baton_kv_digest_mismatches_total") > 0, "damage is found")
            wait_for_memory(c, f"{prefill} to {decode}, damaged slots")

    def test_nothing_that_befalls_one_of_two_changes_an_answer(self):
        for (prefill, decode), transport in drawn():
            with self.subTest(prefill=prefill, decode=decode, transport=transport):
                print(f"    BATON_GPU_FAULTS={CASES.index(((prefill, decode), transport))}: {prefill} to {decode} by {transport}", flush=True)
                self.harmed(prefill, decode, transport)


if __name__ == "__main__":
    unittest.main()
