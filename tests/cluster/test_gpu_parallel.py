"""Workers over several GPUs (the emulated plugin, with an emulated NCCL): whatever a model is cut into, in one process or in
several, in one role or two, it answers bit for bit what one GPU answers at one --reduction-width. How ranks end is in
test_lost_ranks.py."""
import unittest

from drawn_gpus import run_on_gpus
from harness import TINY, Cluster, in_parallel, run, tree_seed
from test_disaggregated import wait_for_memory
from test_gpu_roles import GPU, PLUGIN, SLOTS, SMALL, bodies
from test_parallel import MP, PP, TP
from test_promise_a import answer

FLAGS = [part for name, value in GPU.items() for part in (f"--{name}", value)]
WIDTH = [*SMALL, *FLAGS, "--reduction-width", 2]
NCCL = ["--one-shot-sum-bytes", 0]
PAIR = [*WIDTH, "--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 8, *SLOTS]


class AsOneGpu(unittest.TestCase):
    """What a worker of one GPU answers to the bodies."""

    @classmethod
    def setUpClass(cls):
        with Cluster(args=WIDTH) as c:
            cls.alone = [answer(c, body) for body in bodies()]


@unittest.skipUnless(PLUGIN, "no emulated plugin was built")
class GpuParallel(AsOneGpu):
    def check(self, args, handoff=False):
        with Cluster(args=args) as c:
            got = in_parallel([lambda b=b: answer(c, b) for b in bodies()])
            for body, want, have in zip(bodies(), self.alone, got):
                self.assertEqual(have, want, f"{args}: {body}")
            if not handoff:
                self.assertIn("sums over GPUs of up to 262144 bytes over the GPUs' own links, else by NCCL", c.log.read_text())
            else:
                self.assertGreater(c.metric("baton_kv_transfer_bytes_total"), 0)
                self.assertEqual(c.metric("baton_kv_digest_mismatches_total"), 0)
                self.assertEqual(c.metric("baton_handoff_recomputes_total"), 0)
                wait_for_memory(c, args)

    def test_gpus_of_one_process(self):
        self.check([*WIDTH, f"--{TP}", 2, f"--{PP}", 2])

    def test_gpus_of_a_process_each(self):
        self.check([*WIDTH, *MP, f"--{TP}", 2, f"--{PP}", 2, "--device", "cuda:3,1,0,2"])

    def test_clusters_drawn_by_the_tree(self):
        """Any family, ranks and stages of each role, transport; by hand: random_clusters.py --gpu."""
        for seed in (tree_seed() % 10_000, tree_seed() % 9_999):
            with self.subTest(seed=seed):
                run_on_gpus(seed, count=4, rounds=1)

    def test_prefill_in_stages_and_decode_in_parts_with_a_process_for_each_gpu(self):
        self.check([*PAIR, *MP, f"--prefill.{PP}", 2, f"--decode.{TP}", 2, "--transport", "tcp"], handoff=True)

    def test_gpus_that_do_not_reach_each_others_memory_sum_by_nccl_and_say_so(self):
        by_nccl = "sums over GPUs by NCCL, since those over the GPUs' own links cannot be: rank 0: "
        for backend, env, flags, words in ((MP, {"BATON_EMULATED_PEERS": "no-ipc"}, [], by_nccl + "memory of rank 1: CUDA IPC is not supported"),
                                           ([], {"BATON_EMULATED_PEERS": "no-access"}, [], by_nccl + "memory of rank 1: no peer access from GPU 0 to 1"),
                                           ([], {}, NCCL, "cannot be: they are switched off")):
            with self.subTest(backend=backend, env=env, flags=flags), Cluster(args=[*WIDTH, *backend, f"--{TP}", 2, *flags], env=env) as c:
                self.assertIn(words, c.log.read_text())
                for body, want in list(zip(bodies(), self.alone))[:2]:
                    self.assertEqual(answer(c, body), want, body)

    def test_what_cannot_be_is_refused(self):
        for flags, code, words in ((["--device", "cuda:1,1"], 2, "ranks 0 and 1 of a group have the same GPU"),
                                   (["--device", "cuda:0,1,2"], 2, "--device cuda:0,1,2: 3 GPUs for this machine's 2 ranks"),
                                   (["--device", "cuda:7"], 2, "rank 1: no GPU can be used: number 8 is asked for")):
            with self.subTest(flags=flags):
                done = run(["worker", "--model", TINY, "--load-format", "dummy", "--port", 0, *WIDTH, f"--{TP}", 2, *flags])
                self.assertEqual(done.returncode, code, done.stdout + done.stderr)
                self.assertIn(words, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
