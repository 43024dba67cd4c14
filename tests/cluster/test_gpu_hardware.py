"""What hardware does to workers on GPUs (the emulated plugin): GPUs that are too small, of two kinds, or not there are refused in one
line with the numbers; a GPU that fails while its worker runs ends the worker, which says so and comes back, and no answer changes;
so with a group of which one rank is lost."""
import functools
import os
import re
import signal
import subprocess
import tempfile
import unittest
from unittest import mock

from harness import BATON, TINY, Cluster, in_parallel, run, state
from test_disaggregated import LONG, wait_for_memory
from test_frozen_writer import stop_while_it_owes
from test_gpu_roles import GPU, PLUGIN, SLOTS, SMALL, bodies, flags
from test_metrics import total
from test_parallel import MP, TP, children_of, gone
from test_plan import GOLDENS, KINDS, planned, taken
from test_promise_a import answer

WORKER = ["worker", "--model", TINY, "--load-format", "dummy", "--port", 0, *SMALL]
ONE = [*SMALL, *flags("GPU bfloat16"), "--reduction-width", 2]  # everywhere, so that all answers are those of one worker
TWO = ["--both", 2, *ONE, "--canaries=false"]
ECC = "uncorrectable ECC error encountered"
MOST_ROUNDS = 20
OTHER = os.environ.get("BATON_OTHER_PLUGIN", "")  # one that says another version
GROUP = [*TWO, f"--{TP}", 2]


def fail(folder, pid):
    """The GPU of a process fails at its next step."""
    with open(f"{folder}/{pid}", "w") as f:
        f.write(ECC)


@functools.cache
def alone():
    with Cluster(args=ONE) as c:
        return [answer(c, body) for body in bodies()]


@unittest.skipUnless(PLUGIN, "no emulated plugin was built")
class GpuHardware(unittest.TestCase):
    def test_what_cannot_be_used_is_refused_in_one_line(self):
        on_gpu = flags("GPU bfloat16")
        two = [*on_gpu, f"--{TP}", 2]
        kinds = {"BATON_EMULATED_NAMES": "NVIDIA H100 80GB HBM3,NVIDIA H200"}
        cases = [(["--device", "cuda", "--device-plugin", "/nowhere/libbaton_cuda.so"], {}, 3, ["no device plugin", "/nowhere/libbaton_cuda.so"]),
                 (["--device", "cuda", "--device-plugin", "libm.so.6"], {}, 2, ["libm.so.6 is no device plugin"]),
                 *[([*args, "--device-plugin", OTHER], {}, 2, ["the device plugin is of version ", ", this program wants ", ": take both from one build"])
                   for args in (on_gpu, two, [*two, *MP])],
                 (["--device", "cuda:8", "--device-plugin", PLUGIN], {}, 2, ["no GPU can be used: number 8 is asked for, counted from 0; 8 are there"]),
                 (on_gpu, {"BATON_EMULATED_DRIVER": "0"}, 2, ["no GPU can be used: there is no NVIDIA driver (libcuda.so.1)", "container"]),
                 (on_gpu, {"BATON_EMULATED_DRIVER": "12080"}, 2, ["no GPU can be used: the NVIDIA driver is too old: it is for CUDA 12.8, ",
                                                                  "built with CUDA 13.0, which needs a driver for 13.0 or later"]),
                 *[(args, {"BATON_EMULATED_UNMADE": number}, 5, [f"{device} does not make {what}: out of memory", "bytes of memory"])
                   for number, what in (("1", "a context"), ("2", "a stream"), ("3", "an event")) for args, device in ((on_gpu, "cuda:0"), ([*two, *MP], ""))],
                 (on_gpu, {"BATON_EMULATED_BYTES": "100000"}, 5, ["needs", "bytes", "are available on the device"]),
                 (on_gpu, {"BATON_EMULATED_BYTES": "4000000"}, 5, ["bytes", "on the device"]),
                 ([*on_gpu, "--kv-cache-memory", "1G"], {"BATON_EMULATED_BYTES": str(512 << 20)}, 5, ["--kv-cache-memory 1073741824", str(512 << 20)]),
                 (two, kinds, 2, ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]), ([*two, *MP], kinds, 2, ["NVIDIA H100 80GB HBM3", "NVIDIA H200"])]
        for args, env, code, words in cases:
            with self.subTest(args=args, env=env):
                done = run([*WORKER, *args], env=env)
                self.assertEqual(done.returncode, code, done.stdout + done.stderr)
                last = done.stderr.strip().splitlines()[-1]
                self.assertTrue(last.startswith("baton: "), done.stderr)
                for word in words:
                    self.assertIn(word, last)

    def test_the_plugin_beside_the_program_needs_no_path(self):
        with tempfile.TemporaryDirectory(dir=BATON.parent) as folder:
            program = f"{folder}/baton"
            os.link(BATON.resolve(), program)
            for beside, code, words in ((False, 3, f"no device plugin: {folder}/libbaton_cuda.so"), (True, 2, "no GPU can be used: there is no NVIDIA driver")):
                if beside:
                    os.symlink(PLUGIN, f"{folder}/libbaton_cuda.so")
                done = subprocess.run([program, *map(str, [*WORKER, "--device", "cuda"])], capture_output=True, text=True, timeout=60,
                                      env={**os.environ, "BATON_EMULATED_DRIVER": "0"})
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(words, done.stderr)

    def test_a_plan_tells_every_kind_of_bytes_that_a_worker_takes(self):
        free, gpu = 512 << 20, ["--device", "cuda"]
        dummy = ["--load-format", "dummy", "--max-num-batched-tokens", 600, "--max-num-seqs", 4, *gpu]
        on_tiny = ["--model", TINY, *dummy]
        cases = [(["--model", config.parent, *dummy], []) for config in sorted(GOLDENS.glob("*/config.json"))]
        cases += [([*on_tiny, "--kv-cache-dtype", "fp8"], []), (on_tiny, ["--role", "decode"]), ([*on_tiny, f"--{TP}", 2], []),
                  ([*on_tiny, f"--{TP}", 2, "--pipeline-parallel-size", 2], []), ([*on_tiny, "--no-deterministic"], [])]
        with mock.patch.dict(os.environ, {"BATON_EMULATED_BYTES": str(free), "BATON_EMULATED_CUBLASLT": "1"}):
            for args, more in cases:
                with self.subTest(args=args, more=more):
                    said, (ranks, kv, tokens, log) = planned(*args, "--memory", free), taken(*args, *more, "--device-plugin", PLUGIN)
                    for rank in said["ranks"]:
                        working = dict(rank["working"])
                        self.assertEqual(working.pop("total"), sum(working.values()))
                        want = {**{kind: rank["weights"][kind] for kind in KINDS}, "workspace": rank["workspace"], **working}
                        self.assertEqual(ranks[rank["rank"]], want, f"rank {rank['rank']}")
                    self.assertEqual("dense layers: cuBLASLt 130000: taken for " in log, "--no-deterministic" in args)
                    lists = re.findall(r"lists and buffers of (\d+) bytes", log)
                    beside = 1 - 0.9 * sum(map(int, lists)) / said["kv_bytes"]  # KV has that part of what they leave
                    self.assertAlmostEqual(beside * said["kv_bytes"] / kv, 1, delta=0.01)
                    self.assertAlmostEqual(beside * said["kv_tokens"] / tokens, 1, delta=0.01)
                    self.assertEqual("--deterministic costs, as measured" in log, "--no-deterministic" not in args)
                    self.assertEqual(len(lists), len(more) // 2)
                    for number in lists:
                        self.assertIn(f"lists and buffers of {number} bytes", run(["plan", *args, "--memory", free]).stdout)
        text = run(["plan", *on_tiny, "--kv-cache-dtype", "fp8", f"--{TP}", 2, "--memory", free]).stdout
        for line in ("inputs of a step", "partial results of attention", "rotary angles", "sampling", "scales of KV", "sums over ranks"):
            self.assertRegex(text, rf"(?m)^  .*{line}.* \d+\.\d\d$")
        self.assertIn(" --deterministic false", run(["plan", *on_tiny, "--no-deterministic", "--memory", free, "--emit", "flags"]).stdout)
        self.assertRegex(text, r"of the host's memory each rank takes up to \d+\.\d\d MiB while it loads")

    def answers_while(self, c, harm):
        """One of two workers is harmed: it ends, whatever is asked meanwhile is answered as ever, and it comes back."""
        before, want = c.workers("both"), alone()
        harm(before[0])
        for _ in range(MOST_ROUNDS):  # its GPU is asked for nothing while the other worker has all requests
            got = in_parallel([lambda b=b: answer(c, b) for b in bodies() * 4])
            self.assertEqual(got, want * 4)
            if state(before[0]) in ("gone", "Z"):
                break
        gone(before[:1], 30)
        c.wait_until(lambda: c.metric("baton_worker_up") == 2 and set(c.workers("both")) > set(before[1:]), "both workers are there", 60)
        self.assertEqual(answer(c, bodies()[0]), want[0])

    def test_a_gpu_that_fails_ends_its_worker_which_comes_back_and_no_answer_changes(self):
        with tempfile.TemporaryDirectory() as folder, Cluster(args=TWO, env={"BATON_EMULATED_FAULTS": folder}) as c:
            self.answers_while(c, lambda worker: fail(folder, worker))
            self.says(c.log.read_text(), "cuda:0")

    def test_ranks_that_are_threads_end_together_and_say_so_once(self):
        with tempfile.TemporaryDirectory() as folder, Cluster(args=GROUP, env={"BATON_EMULATED_FAULTS": folder}) as c:
            self.answers_while(c, lambda worker: fail(folder, worker))
            self.says(c.log.read_text(), "cuda:[01]")

    def says(self, log, device):
        self.assertEqual(len(re.findall(rf"^baton: the GPU failed: {ECC} \({device}\)$", log, re.MULTILINE)), 1, log)
        self.assertRegex(log, r"worker-\d ended with 8; restart in")

    def test_a_group_that_loses_a_rank_or_its_gpu_ends_and_its_requests_move(self):
        patience = ["--rank-timeout-ms", 5000]
        with tempfile.TemporaryDirectory() as folder, Cluster(args=[*GROUP, *MP, *patience], env={"BATON_EMULATED_FAULTS": folder}) as c:
            for harm, words in ((lambda rank: os.kill(rank, signal.SIGKILL), "was ended by signal 9"),
                                (lambda rank: fail(folder, rank), "ended with exit code 8"),
                                (lambda rank: os.kill(rank, signal.SIGSTOP), " for 5000 ms")):
                with self.subTest(words=words):
                    self.answers_while(c, lambda worker, harm=harm: harm(children_of(worker)[0]))
                    self.assertIn(words, c.log.read_text())

    def fails_within_a_handoff(self, c, folder, role, metric, asked, want):
        """A worker stands still while it has a handoff, and its GPU has failed when it goes on."""
        (victim, _), worker = c.workers(role), f"{role}-0"
        moved = lambda: c.metric("baton_retries_total") + (c.metric("baton_migrations_total") if role == "decode" else 0)

        def harm():
            stop_while_it_owes(c, victim, worker, lambda: total(c, metric, worker=worker) > 0)
            fail(folder, victim)
            os.kill(victim, signal.SIGCONT)

        before = moved()
        *got, _ = in_parallel([*(lambda b=b: answer(c, b) for b in asked), harm])
        self.assertEqual(got, want)
        gone([victim], 30)
        c.wait_until(lambda: c.metric("baton_worker_up") == 4 and victim not in c.workers(role), "all workers are there", 60)
        self.assertGreater(moved(), before, f"{worker} is lost, and what it had goes to others")
        self.assertIn(f"{worker} ended with 8; restart in", c.log.read_text())
        self.assertEqual(len(re.findall(rf"^baton: the GPU failed: {ECC} \(cuda:0\)$", c.log.read_text(), re.MULTILINE)), 1 + (role == "decode"))
        wait_for_memory(c, f"{worker} is lost")

    def test_a_gpu_that_fails_within_a_handoff_ends_its_worker_whose_requests_move(self):
        """Of a worker that sends KV, then of one that takes it: no answer changes, and the other side holds nothing of it."""
        asked = [[{**bodies()[i % 2], "prompt": f"{n}{i} " + LONG[:150 + 9 * i]} for i in range(5)] for n in range(2)]
        with Cluster(args=ONE) as c:
            want = [[answer(c, body) for body in of_round] for of_round in asked]
        pair = ["--prefill", 2, "--decode", 2, "--local-prefill-max-tokens", 8, "--prefill.max-num-batched-tokens", 48, *SLOTS, *ONE, "--canaries=false"]
        with tempfile.TemporaryDirectory() as folder, Cluster(args=pair, env={"BATON_EMULATED_FAULTS": folder}) as c:
            for role, metric, *of_round in zip(("prefill", "decode"), ("baton_handoff_jobs", "baton_landing_slots_granted"), asked, want):
                with self.subTest(role=role):
                    self.fails_within_a_handoff(c, folder, role, metric, *of_round)
            self.assertEqual(c.metric("baton_kv_digest_mismatches_total"), 0)


if __name__ == "__main__":
    unittest.main()
