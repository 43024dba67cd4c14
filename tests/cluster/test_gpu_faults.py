"""Prefill and decode on GPUs (the emulated plugin), with a spare worker of each role: one that is killed or stands still changes
no answer. The faults are those of random_clusters.py, one in each round."""
import random
import threading
import unittest

from harness import Cluster, in_parallel
from random_clusters import disturb
from test_disaggregated import wait_for_memory
from test_gpu_roles import PLUGIN, SMALL, answers_of_one, bodies, flags
from test_promise_a import answer

SEEDS = (1, 2, 8, 9)  # kills decode, kills prefill, stops prefill, stops decode


@unittest.skipUnless(PLUGIN, "no emulated plugin was built")
class GpuFaults(unittest.TestCase):
    def test_a_worker_that_dies_or_stands_still_changes_no_answer(self):
        alone = answers_of_one("GPU bfloat16")
        args = ["--prefill", 2, "--decode", 2, "--local-prefill-max-tokens", 8, *SMALL, *flags("GPU bfloat16")]
        with Cluster(args=args) as c:
            for seed in SEEDS:
                over = threading.Event()
                harmer = threading.Thread(target=disturb, args=(c, random.Random(seed), over))
                harmer.start()
                try:
                    got = in_parallel([lambda b=b: answer(c, b) for b in bodies() * 3])
                finally:
                    over.set()
                    harmer.join()
                self.assertEqual(got, alone * 3, f"seed {seed}")
                c.wait_until(lambda: c.metric("baton_worker_up") == 4, "all workers are back", 60)
            wait_for_memory(c, "faults")


if __name__ == "__main__":
    unittest.main()
