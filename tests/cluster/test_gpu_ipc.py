"""KV from GPU to GPU between processes of one machine by CUDA IPC (the emulated plugin): the answers are those of one GPU; where it
cannot be, KV is staged through host memory, and the log says why. Whoever dies within a transfer is in test_gpu_faults.py."""
import unittest

from harness import Cluster, in_parallel
from test_disaggregated import peers, wait_for_memory
from test_gpu_roles import PAIR, PLUGIN, SLOTS, SMALL, bodies, flags
from test_parallel import MP, TP
from test_promise_a import answer

READ = "is read from its GPU by CUDA IPC"
STAGED = "is staged through host memory: "
LENDS_NONE = STAGED + "it lends no memory of a GPU"
WIDTH = [*flags("GPU bfloat16"), "--reduction-width", 2]  # everywhere, so that all answers are those of one worker
GPUS = [*PAIR, *WIDTH, "--decode.block-size", 32, "--prefill.max-num-batched-tokens", 48]


@unittest.skipUnless(PLUGIN, "no emulated plugin was built")
class GpuIpc(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Cluster(args=[*SMALL, *WIDTH]) as c:
            cls.alone = [answer(c, body) for body in bodies()]

    def equals(self, cluster, what, asked=None):
        """KV moves, and the answers to the bodies with the numbers `asked`, or to all, are those of one worker."""
        asked = range(len(bodies())) if asked is None else asked
        got = in_parallel([lambda i=i: answer(cluster, bodies()[i]) for i in asked])
        for i, have in zip(asked, got):
            self.assertEqual(have, self.alone[i], f"{what}: {bodies()[i]}")
        cluster.wait_until(lambda: cluster.metric("baton_kv_transfer_bytes_total") > 0, f"{what}: KV moves")
        self.assertEqual(cluster.metric("baton_kv_digest_mismatches_total"), 0)
        self.assertEqual(cluster.metric("baton_handoff_recomputes_total"), 0)
        wait_for_memory(cluster, what)

    def test_a_pair_of_gpus_hands_over_without_the_host(self):
        with Cluster(args=[part for part in GPUS if part not in SLOTS]) as c:  # in a GPU's own slots
            for round_name in ("cold", "with prefix hits"):
                self.equals(c, round_name)
            log = c.log.read_text()
            self.assertEqual((log.count(READ), log.count(STAGED)), (1, 0), log)
            self.assertEqual(log.count("goes by CUDA IPC: 16 buffers of 4194304 bytes to read from"), 2)
            self.assertIn("32 slots of 4194304 bytes", log)
            c.wait_until(lambda: [p["path"] for p in peers(c)] == ["shm + CUDA IPC"], "the router knows the way")

    def test_each_rank_that_is_a_process_hands_over_its_own(self):
        for prefill, decode, transport in ((2, 1, "auto"), (1, 2, "shm")):
            with self.subTest(prefill=prefill, decode=decode), Cluster(args=[
                    *GPUS, *MP, "--transport", transport, f"--prefill.{TP}", prefill, f"--decode.{TP}", decode]) as c:
                self.equals(c, transport)
                log = c.log.read_text()
                self.assertEqual((log.count(READ), log.count(STAGED)), (2, 0), log)

    def test_where_it_cannot_be_kv_is_staged_and_the_log_says_why(self):
        for args, env, words in (
                ([], {"BATON_EMULATED_PEERS": "no-ipc"}, ("no KV by CUDA IPC: CUDA IPC is not supported (emulated)", LENDS_NONE)),
                ([], {"BATON_EMULATED_PEERS": "no-access"}, (STAGED + "no peer access from GPU 0 to 0 (emulated)",)),
                ([], {"BATON_EMULATED_PEERS": "lost"}, (STAGED + "what is in its memory does not arrive",)),
                (["--prefill.no-kv-cuda-ipc"], {}, ("no KV by CUDA IPC: --no-kv-cuda-ipc", LENDS_NONE)),
                (["--decode.no-kv-cuda-ipc"], {}, ("no KV by CUDA IPC: --no-kv-cuda-ipc", STAGED + "this GPU is not asked to")),
                (["--transport", "tcp"], {}, ("by tcp, " + STAGED + "by CUDA IPC only what comes by shm does",)),
                ([f"--prefill.{TP}", 2], {}, ("no KV by CUDA IPC: ranks are threads, each with a part of every slot", LENDS_NONE))):
            with self.subTest(args=args, env=env), Cluster(args=[*GPUS, *args], env=env) as c:
                self.equals(c, words, asked=[2])
                log = c.log.read_text()
                for word in words:
                    self.assertIn(word, log)
                self.assertNotIn(READ, log)
                self.assertNotIn("+ CUDA IPC", log)


if __name__ == "__main__":
    unittest.main()
