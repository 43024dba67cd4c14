"""Prefill and decode on GPUs (the emulated plugin): a GPU pair answers what one GPU worker answers, bit for bit, by messages and by
memory that a transport knows (by CUDA IPC and shm: test_gpu_ipc.py); pairs of a GPU and a CPU, or of GPUs that keep other types,
hold the protocol; damaged slots change no answer."""
import contextlib
import itertools
import os
import pathlib
import re
import tempfile
import unittest

from harness import Cluster, cpu_computes_bfloat16, in_parallel
from test_disaggregated import LONG, wait_for_memory
from test_kv_types import keeps_the_protocol
from test_metrics import samples, total
from test_promise_a import answer, requests
from test_two_routers import Router, Worker

PLUGIN = os.environ.get("BATON_EMULATED_PLUGIN", "")
GPU = {"device": "cuda", "device-plugin": PLUGIN}
CPU_OF_FEWEST_BITS = "CPU bfloat16" if cpu_computes_bfloat16() else "CPU float32"
KINDS = {"CPU float32": {"dtype": "float32"}, "CPU bfloat16": {"dtype": "bfloat16"}, "GPU bfloat16": GPU,
         "GPU fp8": {**GPU, "kv-cache-dtype": "fp8"}}
FLEETS = [("CPU float32", "GPU bfloat16"), (CPU_OF_FEWEST_BITS, "GPU fp8")]
SMALL = ["--threads", 1, "--kv-cache-memory", "8M", "--max-model-len", 576, "--max-num-seqs", 4]
SLOTS = ["--landing-slot-bytes", 65536]  # a prompt has several, and a start's self-test moves little; half of the fleets have each device's own
PAIR = ["--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 8, *SLOTS, *SMALL]
STAGED = "KV staged through host memory"


def flags(kind, role=""):
    prefix = f"--{role}." if role else "--"
    return [part for name, value in KINDS[kind].items() for part in (prefix + name, value)]


def bodies():
    # Of several blocks on both sides, and of several of the smallest steps that a test has (48 tokens): 110, 67 and 73 tokens.
    base = {"model": "tiny-llama", "prompt": LONG[:150], "max_tokens": 8, "seed": 11, "temperature": 0.9, "logprobs": 2}
    changes = [{}, {"temperature": 0, "n": 2}, {"prompt": LONG[:90], "prompt_logprobs": 1}, {"prompt": LONG[:100], "max_tokens": 1}]
    return [{**base, **change} for change in changes]


def stateful_bodies():
    """Of every kind that keeps a state of its own while it runs, long enough that not all of them have room."""
    base = {"model": "tiny-llama", "ignore_eos": True, "logprobs": 1, "max_tokens": 44}
    drawn = {**base, "temperature": 0.9}
    return [{**base, "prompt": "beams of a text " * 4, "use_beam_search": True, "n": 2, "best_of": 3, "temperature": 0},
            {**drawn, "prompt": "one of several " * 5, "n": 2, "best_of": 3, "seed": 5},
            {**drawn, "prompt": "scored " * 12, "seed": 6, "prompt_logprobs": 2},
            {**drawn, "prompt": "banned " * 9, "seed": 7, "bad_words": ["e", "qu"]},
            {**drawn, "prompt": "penalties " * 9, "seed": 10, "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3},
            {**drawn, "prompt": "plain " * 9, "seed": 11, "top_k": 5, "top_p": 0.9},
            {"model": "tiny-llama", "prompt": "a grammar", "max_tokens": 50, "seed": 8, "guided_regex": "([a-z ]{3})+[.]{3}"}]


def answers_of_one(kind):
    """What one worker of both roles answers, one request at a time."""
    with Cluster(args=[*SMALL, *flags(kind)]) as c:
        assert STAGED not in c.log.read_text()
        return [answer(c, body) for body in bodies()]


@unittest.skipUnless(PLUGIN, "no emulated plugin was built")
class GpuRoles(unittest.TestCase):
    def equals(self, cluster, alone, what):
        for round_name in ("cold", "with prefix hits"):
            got = in_parallel([lambda b=b: answer(cluster, b) for b in bodies()])
            for body, want, have in zip(bodies(), alone, got):
                self.assertEqual(have, want, f"{what}, {round_name}: {body}")
        # Workers report what they have sent; on a GPU the answers are there before it.
        cluster.wait_until(lambda: cluster.metric("baton_kv_transfer_bytes_total") > 0, f"{what}: KV moves")
        wait_for_memory(cluster, what)

    def test_a_pair_of_gpus_equals_one_by_tcp_and_by_ucx(self):
        alone = answers_of_one("GPU bfloat16")
        for transport in ("tcp", "ucx"):
            refused = {"BATON_EMULATED_PINS": "refused"} if transport == "ucx" else {}
            with self.subTest(transport=transport), Cluster(
                    env=refused, args=[*PAIR, *flags("GPU bfloat16"), "--transport", transport, "--decode.block-size", 32,
                          "--prefill.max-num-batched-tokens", 48]) as c:
                log = c.log.read_text()
                if "no KV by ucx" in log:
                    self.skipTest("this build has no UCX")
                self.assertEqual(log.count(STAGED), 2)
                pinned = "are not pinned, the host copies them for the GPU: operation not supported" if refused else "bytes of slots of tcp are pinned"
                self.assertIn(pinned, log)
                self.equals(c, alone, transport)
                self.assertEqual(c.metric("baton_kv_digest_mismatches_total"), 0)
                self.assertEqual(c.metric("baton_handoff_recomputes_total"), 0)

    def test_steps_that_a_gpu_is_given_ahead_change_no_bit(self):
        asked = [{**body, "max_tokens": min(body["max_tokens"], 8)} for body in requests(12, seed=19)]
        one_by_one = [*SMALL, *flags("GPU bfloat16"), "--no-async-scheduling"]
        with Cluster(args=one_by_one) as c:
            alone = [answer(c, body) for body in asked]
        with Cluster(args=one_by_one[:-1]) as c:
            got = in_parallel([lambda b=b: answer(c, b) for b in asked])
            for body, want, have in zip(asked, alone, got):
                self.assertEqual(have, want, body)
            c.wait_until(lambda: c.metric("baton_leaked_kv_blocks") == 0, "every block has an owner who knows of it", 5)

    def test_preempted_they_answer_what_they_answer_in_a_large_pool(self):
        few = ["--threads", 1, "--max-model-len", 208, "--max-num-seqs", 8, "--max-num-batched-tokens", 64, *flags("GPU bfloat16")]
        # However late others come: its choices, that run beside each other, have no room to end in.
        too_long = {**stateful_bodies()[1], "max_tokens": 60, "n": 3}
        large, tight = ["--kv-cache-memory", "16M"], ["--kv-cache-memory", "700K"]  # of a sequence of full length it is 650 KB
        settings = {"one worker": [*few, *tight], "both of a pair": [*few, *tight, *PAIR[:-len(SMALL)]]}
        with Cluster(args=[*few, *large]) as c:
            alone = [answer(c, body) for body in stateful_bodies()]
            alone_too_long = answer(c, too_long)
        for what, args in settings.items():
            with self.subTest(what), Cluster(args=args) as c:
                self.assertEqual(answer(c, too_long), alone_too_long, what)
                c.wait_until(lambda: c.metric("vllm:num_preemptions_total") > 0, f"{what}: it was preempted by itself", 5)
                got = in_parallel([lambda b=b: answer(c, b) for b in stateful_bodies()])
                for body, want, have in zip(stateful_bodies(), alone, got):
                    self.assertEqual(have, want, f"{what}: {body}")
                if "pair" in what:
                    c.wait_until(lambda: c.metric("baton_kv_transfer_bytes_total") > 0, f"{what}: KV moves")
                    wait_for_memory(c, what)
                c.wait_until(lambda: c.metric("baton_leaked_kv_blocks") == 0, "every block has an owner who knows of it", 5)

    def test_a_pair_with_fp8_equals_one_although_slots_are_damaged(self):
        alone = answers_of_one("GPU fp8")
        with Cluster(args=[*PAIR, *flags("GPU fp8"), "--prefill.test-kv-fault-rate", 0.3]) as c:
            self.equals(c, alone, "damaged slots")
            c.wait_until(lambda: c.metric("baton_kv_digest_mismatches_total") > 0, "damage is found")

    def fleet(self, there, folder, kinds, transport):
        """Addresses of a worker of each (role, kind), whose name has its number, and their key."""
        key, addresses = pathlib.Path(folder, "key"), []
        key.write_text(os.urandom(32).hex() + "\n")
        for number, (role, kind) in enumerate(kinds):
            place = pathlib.Path(folder, str(number))
            place.mkdir()
            worker = Worker(role, place, key)
            worker.command += map(str, [*SMALL[2:], *(SLOTS if "ucx" in transport else []), "--worker-id", f"{role}-{number}", "--transport", transport, *flags(kind)])
            addresses.append(there.enter_context(worker).address)
            if f"no KV by {transport}" in worker.log.read_text():
                self.skipTest(f"this build has no {transport}")
        return addresses, key

    def test_fleets_of_two_kinds_in_each_role_hand_over_between_every_two(self):
        """Every pair of kinds once, by a router that knows no others, and each fleet by another transport and by one that knows all. Slot by
        slot: worker_device_handoff_test."""
        body = {"model": "tiny-llama", "max_tokens": 4, "ignore_eos": True, "n": 2, "temperature": 0.8, "logit_bias": {"0": -100, "1": -100, "2": -100}}
        for transport, (prefills, decodes) in zip(("shm", "tcp", "ucx-shm", "ucx-tcp"), itertools.product(FLEETS, repeat=2)):
            kinds = [("prefill", kind) for kind in prefills] + [("decode", kind) for kind in decodes]
            with self.subTest(transport=transport, kinds=kinds), tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as there:
                addresses, key = self.fleet(there, folder, kinds, transport)
                for known in (*itertools.product((0, 1), (2, 3)), range(4)):
                    with Router([addresses[i] for i in known], key, ["--local-prefill-max-tokens", 8, "--route-policy", "round-robin"]) as c:
                        pairs = len(known) ** 2 // 4
                        c.wait_until(lambda: len(samples(c, "baton_kv_peer_gigabytes_per_second")) == pairs, "every two have met")
                        moved = lambda n: total(c, "baton_kv_transfer_bytes_total", worker=f"{kinds[n][0]}-{n}")
                        before = {number: moved(number) for number in known}
                        asked = [{**body, "prompt": f"{known} {i} " + LONG[:50 + 10 * i], "seed": i} for i in range(pairs)]
                        in_parallel([lambda b=b: keeps_the_protocol(self, c, b, 4, alone=pairs > 1 or kinds[known[0]][1] == kinds[known[1]][1]) for b in asked])
                        enough = all if pairs == 1 else any  # where there is a choice, who is chosen is not this test's
                        c.wait_until(lambda: enough(moved(number) > before[number] for number in known), "KV moves")
                        for name in ("baton_kv_digest_mismatches_total", "baton_handoff_recomputes_total", "baton_retries_total"):
                            self.assertEqual(c.metric(name), 0, name)
                        wait_for_memory(c, known)


if __name__ == "__main__":
    unittest.main()
