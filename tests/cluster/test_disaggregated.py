"""Prefill and decode in processes of their own answer what one worker answers, bit for bit: over every transport, with other blocks
and chunks, with little memory, and although slots are damaged. Whom death and clocks concern is in test_lost_workers.py."""
import re
import time
import unittest

from harness import HELD, TINY, Cluster, in_parallel, run
from test_promise_a import answer, requests

HANDOFF = ["--local-prefill-max-tokens", 8]  # the model is so small that decode would compute most prompts itself
PAIR = ["--prefill", 1, "--decode", 1, "--threads", 1, *HANDOFF]
LONG = "the quick brown fox jumps over the lazy dog " * 18


def field_requests():
    """One request per field that has a meaning on both sides of the handoff."""
    base = {"model": "tiny-llama", "prompt": LONG, "max_tokens": 12, "seed": 11, "temperature": 0.9, "logprobs": 2}
    changes = [{}, {"temperature": 0}, {"n": 4}, {"n": 2, "best_of": 2}, {"max_tokens": 1}, {"max_tokens": 1, "n": 3},
               {"echo": True}, {"echo": True, "prompt_logprobs": 2, "logprobs": 3}, {"prompt_logprobs": 0, "n": 2},
               {"repetition_penalty": 1.4}, {"presence_penalty": 1.1, "frequency_penalty": 0.7}, {"stop": ["e", "qu"]},
               {"min_tokens": 8, "stop": [" "]}, {"logit_bias": {"7": 5.0, "11": -100}}, {"priority": -3},
               {"ignore_eos": True, "max_tokens": 40}, {"stop_token_ids": list(range(3, 120))}, {"prompt": "a"},
               {"prompt": LONG[:90]}, {"prompt": LONG + "tail B"}, {"prompt": LONG * 2, "max_tokens": 30}]
    return [{k: v for k, v in {**base, **change}.items() if k != "best_of"} for change in changes]


def peers(cluster):
    """Labels and value of every measured connection from a prefill to a decode worker."""
    found = re.findall(r"^baton_kv_peer_gigabytes_per_second\{(.*)\} (.*)$", cluster.get("/metrics").body, re.M)
    out = [{**dict(re.findall(r'(\w+)="([^"]*)"', labels)), "value": float(value)} for labels, value in found]
    assert out and all(peer["value"] > 0 for peer in out), out
    return out


def wait_for_memory(cluster, when):
    """Nothing of a handoff is held within 5 s, and every block has an owner who knows of it."""
    deadline = time.monotonic() + 5
    while held := {name: value for name in HELD if (value := cluster.metric(name))}:
        assert time.monotonic() < deadline, f"held 5 s after {when}: {held}\n{cluster.get('/metrics').body}"
        time.sleep(0.05)


class AsAlone(unittest.TestCase):
    """Bodies, and what one worker answers to them."""

    @classmethod
    def setUpClass(cls):
        cls.bodies = field_requests() + requests(24, seed=19)
        with Cluster(args=["--threads", 1]) as c:
            cls.alone = [answer(c, body) for body in cls.bodies]


class Disaggregated(AsAlone):
    def check(self, cluster, what):
        for round_name in ("cold", "with prefix hits"):
            got = in_parallel([lambda b=b: answer(cluster, b) for b in self.bodies])
            for body, want, have in zip(self.bodies, self.alone, got):
                self.assertEqual(have, want, f"{what}, {round_name}: {body}")
        self.assertGreater(cluster.metric("baton_kv_transfer_bytes_total"), 0)
        self.assertEqual(cluster.metric("baton_kv_digest_mismatches_total"), 0)
        self.assertEqual(cluster.metric("baton_handoff_recomputes_total"), 0)
        wait_for_memory(cluster, what)

    def test_every_field_equals_aggregated_over_shared_memory(self):
        with Cluster(args=PAIR) as c:
            self.check(c, "shm")

    def test_every_field_equals_aggregated_over_tcp_with_other_blocks_and_chunks(self):
        args = [*PAIR, "--transport", "tcp", "--prefill.block-size", 64, "--decode.block-size", 16, "--prefill.max-num-batched-tokens", 48]
        with Cluster(args=args) as c:
            self.check(c, "tcp, blocks 64 to 16, chunks of 48")

    def test_chunks_that_begin_inside_blocks_that_are_being_sent(self):
        """Many prompts in small chunks at once: every block is filled while earlier parts of it are gathered."""
        args = [*PAIR, "--prefill.block-size", 64, "--prefill.max-num-batched-tokens", 16, "--no-enable-prefix-caching",
                "--landing-slots", 2, "--landing-slot-bytes", 65536]
        with Cluster(args=args) as c:
            self.check(c, "blocks of 64, chunks of 16")

    def test_a_prompt_of_which_no_segment_fits_a_prefill_workers_slots_is_computed_where_it_is_decoded(self):
        body = {"model": "tiny-llama", "prompt": LONG[:600], "max_tokens": 6, "temperature": 0}
        with Cluster(args=["--threads", 1]) as c:
            want = answer(c, body)
        for prefills in (1, 2):
            with Cluster(args=[*PAIR, "--prefill", prefills, "--prefill.landing-slot-bytes", 65536]) as c:
                self.assertEqual(answer(c, body), want)
                self.assertLessEqual(c.metric("baton_retries_total"), prefills - 1, "each is asked once, if its canary has come back")
                c.wait_until(lambda: "of 524320 bytes, a slot holds 65408 (--landing-slot-bytes)" in c.log.read_text(), "the flag is named")
                wait_for_memory(c, f"{prefills} prefill workers of small slots")

    def test_every_field_equals_aggregated_over_ucx(self):
        for transport, path in (("ucx", "/memory put"), ("ucx-tcp", "tcp/lo messages")):
            with self.subTest(transport=transport), Cluster(args=[*PAIR, "--transport", transport]) as c:
                if "no KV by ucx" in c.log.read_text():
                    self.skipTest("this build has no UCX")
                self.check(c, transport)
                self.assertIn(path, peers(c)[0]["path"])

    def test_a_transport_that_fails_its_self_test_is_not_used(self):
        with Cluster(args=[*PAIR, "--transport", "shm", "--prefill.test-failing-transport", "shm"]) as c:
            self.check(c, "shm that damages, so tcp")
            (peer,) = peers(c)
            self.assertEqual(peer["transport"], "tcp")
            self.assertIn("shm is not used for this decode worker: wrong bytes arrived", c.log.read_text())
            self.assertGreater(c.metric("baton_kv_transfer_failures_total"), 0)

    def test_require_rdma_refuses_to_start_without_it(self):
        done = run(["worker", "--role", "decode", "--model", TINY, "--load-format", "dummy", "--require-rdma"])
        if done.returncode == 0 or "no RDMA device" not in done.stdout + done.stderr:
            self.skipTest("this machine has RDMA") if "rc_" in done.stdout + done.stderr else self.fail(done.stderr)
        self.assertIn("UCX finds here", done.stdout + done.stderr)

    def test_small_landing_ring_makes_tickets_wait_not_fail(self):
        args = [*PAIR, "--decode.block-size", 64, "--landing-slots", 2, "--landing-slot-bytes", 65536, "--local-prefill-max-tokens", 0]
        with Cluster(args=args) as c:
            self.check(c, "2 slots, blocks 16 to 64")

    def test_little_memory_on_decode_makes_requests_wait_not_fail(self):
        """As one worker alone lets them wait for its blocks."""
        with Cluster(args=[*PAIR, "--decode.kv-cache-memory", "13M"]) as c:
            self.check(c, "memory for little more than one sequence")
            self.assertEqual(c.metric("baton_handoff_reserves_refused_total"), 0)

    def test_damaged_slots_never_become_a_wrong_token(self):
        for rate, repaired, transport in ((0.1, "resent", "shm"), (1.0, "computed on decode", "shm"), (0.3, "resent", "tcp"),
                                          (0.3, "resent", "ucx"), (0.3, "resent", "ucx-tcp")):
            with self.subTest(rate=rate, transport=transport), Cluster(args=[*PAIR, "--transport", transport, "--prefill.test-kv-fault-rate", rate]) as c:
                got = in_parallel([lambda b=b: answer(c, b) for b in self.bodies])
                for body, want, have in zip(self.bodies, self.alone, got):
                    self.assertEqual(have, want, f"{rate} of the slots damaged: {body}")
                self.assertGreater(c.metric("baton_kv_digest_mismatches_total"), 0)
                counter = "baton_handoff_resent_segments_total" if repaired == "resent" else "baton_handoff_lanes_failed_total"
                self.assertGreater(c.metric(counter), 0)
                wait_for_memory(c, "damage")

    def test_stages_and_usage_are_reported(self):
        with Cluster(args=PAIR) as c:
            reply = c.post("/v1/completions", {"model": "tiny-llama", "prompt": LONG, "max_tokens": 8, "temperature": 0}).json()
            timings = reply["timings"]
            self.assertGreater(timings["prefill_ms"], 0)
            self.assertGreater(timings["first_decode_ms"], 0)
            for stage in ("queue_prefill_ms", "transfer_ms", "queue_decode_ms", "decode_ms"):
                self.assertIn(stage, timings)
            self.assertGreater(timings["reserve_ms"], 0)
            to_first = ("router_ms", "lost_ms", "reserve_ms", "queue_prefill_ms", "prefill_ms", "network_ms")
            self.assertAlmostEqual(sum(timings[stage] for stage in to_first), reply["metrics"]["time_to_first_token_ms"], places=3)
            again = c.post("/v1/completions", {"model": "tiny-llama", "prompt": LONG, "max_tokens": 8, "temperature": 0}).json()
            self.assertGreater(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_kv_of_other_numerics_is_taken_and_said(self):
        with Cluster(args=[*PAIR, "--prefill.kv-cache-dtype", "float32", "--decode.kv-cache-dtype", "bfloat16"]) as c:
            body = {"model": "tiny-llama", "prompt": LONG, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            reply = c.post("/v1/completions", body).json()
            self.assertEqual(reply["numerics"], "mixed")
            self.assertEqual(reply["usage"]["completion_tokens"], 8)
            self.assertEqual(c.metric("baton_handoff_recomputes_total"), 0)
            self.assertIn("Promise B", c.log.read_text())



if __name__ == "__main__":
    unittest.main(verbosity=2)
