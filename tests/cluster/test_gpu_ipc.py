"""KV from GPU to GPU between processes of one machine by CUDA IPC (the emulated plugin): the answers are those of one GPU and of KV
that is staged through host memory; where it cannot be, it is staged, and the log says why; whoever dies within a transfer changes no
answer."""
import os
import signal
import threading
import unittest

from harness import Cluster, in_parallel
from test_disaggregated import LONG, peers, wait_for_memory
from test_gpu_roles import PAIR, PLUGIN, SMALL, answers_of_one, bodies, flags
from test_parallel import MP, TP
from test_promise_a import answer

READ = "is read from its GPU by CUDA IPC"
STAGED = "is staged through host memory: "
GPUS = [*PAIR, *flags("GPU bfloat16"), "--decode.block-size", 32, "--prefill.max-num-batched-tokens", 48]
TWO_OF_EACH = ["--prefill", 2, "--decode", 2, "--local-prefill-max-tokens", 8, *SMALL, *flags("GPU bfloat16")]


@unittest.skipUnless(PLUGIN, "no emulated plugin was built")
class GpuIpc(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.alone = answers_of_one("GPU bfloat16")

    def equals(self, cluster, what):
        for round_name in ("cold", "with prefix hits"):
            got = in_parallel([lambda b=b: answer(cluster, b) for b in bodies()])
            for body, want, have in zip(bodies(), self.alone, got):
                self.assertEqual(have, want, f"{what}, {round_name}: {body}")
        cluster.wait_until(lambda: cluster.metric("baton_kv_transfer_bytes_total") > 0, f"{what}: KV moves")
        self.assertEqual(cluster.metric("baton_kv_digest_mismatches_total"), 0)
        self.assertEqual(cluster.metric("baton_handoff_recomputes_total"), 0)
        wait_for_memory(cluster, what)

    def test_a_pair_of_gpus_hands_over_without_the_host(self):
        for transport in ("auto", "shm"):
            with self.subTest(transport=transport), Cluster(args=[*GPUS, "--transport", transport]) as c:
                self.equals(c, transport)
                log = c.log.read_text()
                self.assertEqual((log.count(READ), log.count(STAGED)), (1, 0), log)
                self.assertEqual(log.count("goes by CUDA IPC: 16 buffers of 1048576 bytes to read from"), 2)
                c.wait_until(lambda: [p["path"] for p in peers(c)] == ["shm + CUDA IPC"], "the router knows the way")

    def test_each_rank_that_is_a_process_hands_over_its_own(self):
        with Cluster(args=[*SMALL, *flags("GPU bfloat16"), "--reduction-width", 2]) as c:
            alone = [answer(c, body) for body in bodies()]
        for prefill, decode in ((2, 2), (2, 1), (1, 2)):
            with self.subTest(prefill=prefill, decode=decode), Cluster(args=[
                    *GPUS, *MP, "--reduction-width", 2, f"--prefill.{TP}", prefill, f"--decode.{TP}", decode]) as c:
                self.assertEqual(in_parallel([lambda b=b: answer(c, b) for b in bodies()]), alone)
                log = c.log.read_text()
                self.assertEqual((log.count(READ), log.count(STAGED)), (max(prefill, decode), 0), log)
                self.assertEqual(c.metric("baton_kv_digest_mismatches_total"), 0)

    def test_where_it_cannot_be_kv_is_staged_and_the_log_says_why(self):
        lends_none = STAGED + "it lends no memory of a GPU"
        for args, env, words in (
                ([], {"BATON_EMULATED_PEERS": "no-ipc"}, ("no KV by CUDA IPC: CUDA IPC is not supported (emulated)", lends_none)),
                ([], {"BATON_EMULATED_PEERS": "no-access"}, (STAGED + "no peer access from GPU 0 to 0 (emulated)",)),
                ([], {"BATON_EMULATED_PEERS": "lost"}, (STAGED + "what is in its memory does not arrive",)),
                (["--prefill.no-kv-cuda-ipc"], {}, ("no KV by CUDA IPC: --no-kv-cuda-ipc", lends_none)),
                (["--decode.no-kv-cuda-ipc"], {}, ("no KV by CUDA IPC: --no-kv-cuda-ipc", STAGED + "this GPU is not asked to")),
                (["--transport", "tcp"], {}, ("by tcp, " + STAGED + "by CUDA IPC only what comes by shm does",))):
            with self.subTest(args=args, env=env), Cluster(args=[*GPUS, *args], env=env) as c:
                self.equals(c, words)
                log = c.log.read_text()
                for word in words:
                    self.assertIn(word, log)
                self.assertNotIn(READ, log)
                self.assertNotIn("+ CUDA IPC", log)

    def test_ranks_that_are_threads_stage_theirs(self):
        with Cluster(args=[*GPUS, "--reduction-width", 2, f"--prefill.{TP}", 2]) as c:
            for body in bodies():
                answer(c, body)
            log = c.log.read_text()
            self.assertIn("no KV by CUDA IPC: ranks are threads, each with a part of every slot", log)
            self.assertIn(STAGED + "it lends no memory of a GPU", log)

    def test_whoever_is_killed_within_a_transfer_changes_no_answer(self):
        rounds = [[{**body, "prompt": f"{n}{i} " + LONG[:120 + 7 * i]} for i, body in enumerate(bodies() * 3)] for n in range(4)]
        with Cluster(args=[*SMALL, *flags("GPU bfloat16")]) as c:
            alone = [in_parallel([lambda b=b: answer(c, b) for b in asked]) for asked in rounds]
        with Cluster(args=TWO_OF_EACH) as c:
            for role, asked, want in zip(("prefill", "decode") * 2, rounds, alone):
                before = c.metric("baton_kv_transfer_bytes_total")
                killer = threading.Thread(target=self.kill_within, args=(c, role, before))
                killer.start()
                got = in_parallel([lambda b=b: answer(c, b) for b in asked])
                killer.join()
                c.wait_until(lambda: c.metric("baton_worker_up") == 4, "all workers are back", 60)
                self.assertEqual(got, want, role)
            self.assertGreater(c.log.read_text().count(READ), 4, "the next ones are reached as those before them")
            self.assertEqual(c.metric("baton_kv_digest_mismatches_total"), 0)
            wait_for_memory(c, "deaths")

    @staticmethod
    def kill_within(c, role, before):
        """Once slots are granted and the first of the round are on their way, a worker of the role dies."""
        pid = c.workers(role)[0]
        c.wait_until(lambda: c.metric("baton_landing_slots_granted") > 0 or c.metric("baton_kv_transfer_bytes_total") > before, "KV moves")
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
