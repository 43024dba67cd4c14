"""Prefill and decode on GPUs (the emulated plugin), whose KV goes by CUDA IPC, with a spare worker of each role: one that is killed
within a transfer or stands still changes no answer."""
import os
import random
import signal
import threading
import unittest

from harness import Cluster, in_parallel
from random_clusters import disturb
from test_disaggregated import LONG, wait_for_memory
from test_gpu_ipc import READ
from test_gpu_roles import PLUGIN, SMALL, bodies, flags
from test_promise_a import answer

SEEDS = (8, 9)  # of random_clusters.py: stops prefill, stops decode


def stop(cluster, seed):
    disturb(cluster, random.Random(seed), threading.Event())


def kill_within(cluster, role, before):
    """Once slots are granted and the first of the round are on their way, a worker of the role dies."""
    pid = cluster.workers(role)[0]
    cluster.wait_until(
        lambda: cluster.metric("baton_landing_slots_granted") > 0 or cluster.metric("baton_kv_transfer_bytes_total") > before, "KV moves")
    os.kill(pid, signal.SIGKILL)


@unittest.skipUnless(PLUGIN, "no emulated plugin was built")
class GpuFaults(unittest.TestCase):
    def round(self, cluster, asked, want, harm, *args):
        harmer = threading.Thread(target=harm, args=(cluster, *args))
        harmer.start()
        try:
            got = in_parallel([lambda b=b: answer(cluster, b) for b in asked])
        finally:
            harmer.join()
        self.assertEqual(got, want, args)
        cluster.wait_until(lambda: cluster.metric("baton_worker_up") == 4, "all workers are back", 60)

    def test_a_worker_that_dies_or_stands_still_changes_no_answer(self):
        gpus = [*SMALL, *flags("GPU bfloat16")]
        new = [[{**body, "prompt": f"{n}{i} " + LONG[:120 + 7 * i]} for i, body in enumerate(bodies() * 2)] for n in range(2)]
        with Cluster(args=gpus) as c:
            killed = [[answer(c, body) for body in asked] for asked in new]
            alone = [answer(c, body) for body in bodies()]
        with Cluster(args=["--prefill", 2, "--decode", 2, "--local-prefill-max-tokens", 8, *gpus]) as c:
            for role, asked, want in zip(("prefill", "decode"), new, killed):
                self.round(c, asked, want, kill_within, role, c.metric("baton_kv_transfer_bytes_total"))
            for seed in SEEDS:
                self.round(c, bodies() * 2, alone * 2, stop, seed)
            self.assertGreater(c.log.read_text().count(READ), 4, "the next ones are reached as those before them")
            self.assertEqual(c.metric("baton_kv_digest_mismatches_total"), 0)
            wait_for_memory(c, "faults")


if __name__ == "__main__":
    unittest.main()
