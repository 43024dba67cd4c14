"""Every metric of the handoff moves when that happens which it counts, in real processes; none moves when nothing did."""
import json
import os
import re
import signal
import socket
import threading
import time
import unittest

from harness import Cluster, in_parallel, run
from storm import prompt
from test_disaggregated import PAIR, wait_for_memory

STAGES = ("router", "lost", "reserve", "queue_prefill", "prefill", "network", "transfer", "queue_decode", "first_decode", "decode")
TO_FIRST = ("router", "lost", "reserve", "queue_prefill", "prefill", "network")  # the others are decode's, or come after it
TROUBLE = ("baton_kv_transfer_failures_total", "baton_kv_digest_mismatches_total", "baton_handoff_lanes_failed_total",
           "baton_handoff_recomputes_total", "baton_handoff_resent_segments_total", "baton_leaked_kv_blocks",
           "baton_landing_slots_quarantined")


def samples(cluster, name):
    """[(labels, value)] of a metric."""
    found = re.findall(rf"^{re.escape(name)}(?:{{(.*)}})? (\S+)$", cluster.get("/metrics").body, re.M)
    return [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in found]


def total(cluster, name, **labels):
    return sum(value for have, value in samples(cluster, name) if labels.items() <= have.items())


def completion(seed=0, words=90, **fields):
    return {"model": "tiny-llama", "prompt": prompt(seed, words), "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}


def ask(cluster, count, **fields):
    return in_parallel([lambda i=i: cluster.post("/v1/completions", completion(i, **fields)).status for i in range(count)])


class Metrics(unittest.TestCase):
    def moves(self, cluster, what, name, **labels):
        cluster.wait_until(lambda: total(cluster, name, **labels) > 0, f"{what}: {name} {labels} is still 0", 10)

    def test_a_handoff_counts_its_time_bytes_rate_and_stages_and_no_trouble(self):
        for transport in ("shm", "tcp"):
            with self.subTest(transport=transport), Cluster(args=[*PAIR, "--transport", transport]) as c:
                self.assertEqual(ask(c, 12), [200] * 12)
                for role in ("prefill", "decode"):
                    for name in ("bytes_total", "seconds_total", "slots_total", "gigabytes_per_second"):
                        self.moves(c, "a handoff", f"baton_kv_transfer_{name}", role=role, transport=transport)
                for name in ("bytes", "slots"):  # what was sent is what was placed
                    sides = lambda: [total(c, f"baton_kv_transfer_{name}_total", role=role) for role in ("prefill", "decode")]
                    c.wait_until(lambda: sides()[0] == sides()[1], f"{name} sent and placed: {sides()}", 5)
                for stage in STAGES:
                    self.assertEqual(total(c, "baton_stage_seconds_count", stage=stage), 12, stage)
                for stage in ("router", "reserve", "prefill", "first_decode", "decode"):
                    self.assertGreater(total(c, "baton_stage_seconds_sum", stage=stage), 0, stage)
                for name in TROUBLE:
                    self.assertEqual(total(c, name), 0, name)

    def test_workers_meet_before_the_first_prompt_and_again_after_a_death(self):
        reached = lambda: sum(1 for _, rate in samples(c, "baton_kv_peer_gigabytes_per_second") if rate > 0)
        with Cluster(args=["--prefill", 2, "--decode", 2]) as c:
            c.wait_until(lambda: reached() == 4, "each prefill worker has measured its way to each decode worker", 10)
            for role in ("decode", "prefill"):
                victim = c.workers(role)[0]
                c.process.send_signal(signal.SIGSTOP)  # so that nobody starts it again before it was missed
                try:
                    os.kill(victim, signal.SIGKILL)
                    c.wait_until(lambda: reached() == 2, f"two of four pairs are left without a {role} worker", 10)
                finally:
                    c.process.send_signal(signal.SIGCONT)
                c.wait_until(lambda: reached() == 4, f"the {role} worker that was started again meets the others", 20)

    def test_queues_show_who_waits_where(self):
        args = [*PAIR, "--max-num-seqs", 2, "--prefill.max-num-batched-tokens", 16]
        with Cluster(args=args) as c:
            seen = set()
            wanted = {"queue_prefill", "prefill", "queue_decode", "decode"}
            for _ in range(10):  # a queue may be empty whenever it is looked at
                over = threading.Event()
                load = threading.Thread(target=lambda: (ask(c, 40, words=100, max_tokens=60), over.set()))
                load.start()
                while not over.is_set() and not wanted <= seen:
                    seen |= {labels["stage"] for labels, value in samples(c, "baton_queue_depth") if value > 0}
                load.join()
                if wanted <= seen:
                    break
            self.assertLessEqual(wanted, seen)
            self.assertEqual({labels["stage"] for labels, _ in samples(c, "baton_queue_depth")}, wanted | {"transfer"})
            c.wait_until(lambda: total(c, "baton_queue_depth") == 0, "all queues are empty again", 5)

    def test_damage_is_counted_by_kind_and_reason(self):
        with Cluster(args=[*PAIR, "--no-enable-prefix-caching", "--landing-slot-bytes", 65536, "--landing-slots", 8,
                           "--prefill.test-kv-fault-rate", 0.5]) as c:
            def damaged():
                self.assertEqual(set(ask(c, 8)), {200})
                return all(total(c, "baton_kv_digest_mismatches_total", kind=kind) > 0 for kind in ("wire", "slot", "source"))

            c.wait_until(damaged, "damage of every kind is seen", 60)
            for reason in ("wire_digest", "slot_unreadable", "source_digest"):
                self.moves(c, "damage", "baton_kv_transfer_failures_total", reason=reason)
            for name in ("lanes_failed", "resent_segments"):
                self.moves(c, "damage", f"baton_handoff_{name}_total")
            wait_for_memory(c, "damage")
        with Cluster(args=[*PAIR, "--prefill.test-kv-fault-rate", 1]) as c:
            c.wait_until(lambda: set(ask(c, 8)) == {200} and total(c, "baton_handoff_recomputes_total") > 0,
                         "lost KV is computed on decode", 60)

    def test_refusals_for_now_are_counted(self):
        with Cluster(args=[*PAIR, "--landing-slots", 2, "--landing-slot-bytes", 65536]) as c:
            c.wait_until(lambda: ask(c, 16, words=200) and total(c, "baton_handoff_nacks_total", kind="open") > 0,
                         "lanes are told to ask again", 30)
            self.moves(c, "two slots", "baton_handoff_opens_refused_total")
        tight = ["--decode.kv-cache-memory", "4M", "--max-model-len", 576, "--decode.max-waiting-tokens", 100]
        with Cluster(args=[*PAIR, *tight, "--failover-wait-ms", 0]) as c:
            c.wait_until(lambda: ask(c, 48, words=90, max_tokens=200) and total(c, "baton_handoff_nacks_total", kind="reserve") > 0,
                         "tickets are refused", 60)
            self.moves(c, "little memory", "baton_handoff_reserves_refused_total")
            wait_for_memory(c, "refusals")

    def test_a_transport_that_fails_and_a_peer_that_dies_are_counted(self):
        with Cluster(args=[*PAIR, "--transport", "shm", "--prefill.test-failing-transport", "shm"]) as c:
            c.wait_until(lambda: set(ask(c, 4)) == {200} and total(c, "baton_kv_transfer_failures_total", reason="self_test") > 0,
                         "a bad self-test is counted", 30)
        for victim, role in (("prefill", "decode"), ("decode", "prefill")):
            with self.subTest(victim=victim), Cluster(args=PAIR) as c:
                c.wait_until(lambda: set(ask(c, 4)) == {200} and len(samples(c, "baton_kv_peer_gigabytes_per_second")) == 1,
                             "the two have met", 30)
                os.kill(c.workers(victim)[0], signal.SIGKILL)
                self.moves(c, "a death", "baton_kv_transfer_failures_total", reason="peer_lost", role=role)
                c.wait_until(lambda: total(c, "baton_worker_up") == 2, "it is back", 30)

    def test_slots_of_a_stopped_writer_are_in_quarantine_until_it_goes_on(self):
        with Cluster(args=[*PAIR, "--transport", "shm", "--landing-slots", 2, "--landing-slot-bytes", 65536,
                           "--heartbeat-timeout-ms", 60000]) as c:
            writer = c.workers("prefill")[0]
            quarantined = False
            for attempt in range(50):  # until it is caught with a lane open
                clients = [leaving_client(c, completion(1000 * attempt + i, words=300, stream=True)) for i in range(12)]
                deadline = time.monotonic() + 2  # prompts may be over before the metrics tell of a lane
                while c.metric("baton_landing_slots_granted") == 0 and time.monotonic() < deadline:
                    pass
                os.kill(writer, signal.SIGSTOP)
                for client in clients:
                    client.close()
                deadline = time.monotonic() + 1
                while not quarantined and time.monotonic() < deadline:
                    quarantined = c.metric("baton_landing_slots_quarantined") > 0
                os.kill(writer, signal.SIGCONT)
                wait_for_memory(c, "the writer goes on")
                if quarantined:
                    return
            self.fail("no slot was ever in quarantine")

    def test_a_block_that_nobody_accounts_for_is_a_leak(self):
        for role in ("prefill", "decode"):
            with self.subTest(role=role), Cluster(args=[*PAIR, f"--{role}.test-leaked-blocks", 3]) as c:
                self.assertEqual(ask(c, 2), [200] * 2)
                c.wait_until(lambda: total(c, "baton_leaked_kv_blocks") == 3, "the gauge shows the leak", 10)

    def test_timings_of_a_request_are_in_its_answer(self):
        with Cluster(args=PAIR) as c:
            for fields in ({}, {"n": 3}, {"max_tokens": 1}):
                timings = c.post("/v1/completions", completion(7, **fields)).json()["timings"]
                self.assertLessEqual({f"{stage}_ms" for stage in STAGES}, set(timings), fields)
                self.assertGreater(timings["prefill_ms"], 0, fields)
            body = {**completion(8), "stream": True, "stream_options": {"include_usage": True}}
            last = c.post("/v1/completions", body).body.split("data: ")[-2]
            self.assertGreater(json.loads(last)["timings"]["prefill_ms"], 0)
            chat = run(["chat", "--grpc", c.grpc, "--stats", "--message", prompt(9, 90), "--max-tokens", 8, "--temperature", 0])
            self.assertRegex(chat.stdout, r"\[stages: .*\bprefill [0-9.]+ ms.*\bdecode [0-9.]+ ms", "the trailer of gRPC")
            for n in (1, 3):
                whole = c.post("/v1/completions", completion(5, n=n)).json()
                for metrics, usage in ((end["metrics"], end["usage"]) for end in (whole, self.first_token(c, completion(5, n=n))[1])):
                    self.assertEqual(set(metrics), {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second"})
                    self.assertEqual(usage["completion_tokens"], 8 * n)
                    self.assertAlmostEqual(metrics["tokens_per_second"] * metrics["generation_time_ms"] / 1000, 8 * n, delta=0.1)
                    self.assertTrue(0 < metrics["time_to_first_token_ms"] < metrics["generation_time_ms"] and metrics["mean_itl_ms"] > 0, metrics)

    def first_token(self, c, body):
        """Of a streamed answer: milliseconds from the request to its first token by this process's clock, and what its end says."""
        connection = c.connection()
        start = time.monotonic()
        connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}),
                           {"Content-Type": "application/json"})
        reply = connection.getresponse()
        while not reply.readline().startswith(b"data: "):
            pass
        took = 1000 * (time.monotonic() - start)
        end = json.loads(reply.read().decode().split("data: ")[-2])
        connection.close()
        return took, end

    def test_stages_add_up_to_the_time_to_the_first_token_by_the_clients_own_clock(self):
        spans = lambda end: sum(end["timings"][f"{stage}_ms"] for stage in TO_FIRST)
        with Cluster(args=PAIR) as c:
            for n in (1, 3):
                left = []  # what the client waits for beside: its own work, and the way to the router and back
                for seed in range(12):
                    took, end = self.first_token(c, completion(100 * n + seed, n=n, words=300))
                    self.assertAlmostEqual(spans(end), end["metrics"]["time_to_first_token_ms"], places=3)
                    self.assertLessEqual(spans(end), took)
                    left.append(took - spans(end))
                print(f"n = {n}: the client waits {min(left):.2f} ms beside the stages, of {took:.1f}", flush=True)
                self.assertLess(min(left), 10)
            # One who waits for others waits in some stage.
            for took, end in in_parallel([lambda i=i: self.first_token(c, completion(900 + i, n=1 + 2 * (i % 2), words=300, max_tokens=32)) for i in range(16)]):
                self.assertAlmostEqual(spans(end), end["metrics"]["time_to_first_token_ms"], places=3)
                self.assertLessEqual(spans(end), took)


def leaving_client(cluster, body):
    """A connection that has asked and reads nothing."""
    data = json.dumps(body).encode()
    s = socket.create_connection((cluster.host, int(cluster.port)), timeout=30)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return s


if __name__ == "__main__":
    unittest.main(verbosity=2)
