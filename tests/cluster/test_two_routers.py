"""Two routers on the same workers: both serve, both know what is cached where, and the death of one frees what it held."""
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from balancer import Balancer
from harness import BATON, HELD, TINY, Cluster, HeldStream, in_parallel, not_reading, run, texts
from test_flip import Load, answers, workers
from test_frozen_writer import all_computed, most_jobs, settled, stop_all_threads
from test_metrics import total
from test_promise_a import answer

LONG = "the quick brown fox jumps over the lazy dog " * 18
BODY = {"model": "tiny-llama", "prompt": LONG, "max_tokens": 24, "seed": 5, "temperature": 0.8, "logprobs": 2}


class Router(Cluster):
    """`baton router` before workers that somebody else runs. Leaving it ends it."""

    def __init__(self, workers, key_file, args=(), key_flag="--hash-key-file"):
        super().__init__()
        self.command = [str(BATON), "router", "--model", str(TINY), "--port", "0", "--grpc-port", "0", "--admin-port", "0", "--ready-file",
                        str(self.ready), key_flag, str(key_file), *(f"--worker={w}" for w in workers), *map(str, args)]

    def kill(self, children=None):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Worker:
    """`baton worker` on a free port; `address` once it is entered."""

    def __init__(self, role, folder, key_file, key_flag="--hash-key-file"):
        self.ready, self.log = pathlib.Path(folder, f"{role}.ready"), pathlib.Path(folder, f"{role}.log")
        self.command = [str(BATON), "worker", "--role", role, "--model", str(TINY), "--load-format", "dummy", "--threads", "1", "--port",
                        "0", "--ready-file", str(self.ready), key_flag, str(key_file)]

    def __enter__(self):
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not self.ready.exists():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        self.address = self.ready.read_text().split("'")[1]
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            print(self.log.read_text()[-3000:])
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        assert kind is not None or code == 0, f"exit {code}:\n{self.log.read_text()[-3000:]}"


class Address(Cluster):
    """What is behind an address that others listen at."""

    def __init__(self, host, port):
        super().__init__()
        self.host, self.port = host, port

    def __enter__(self):
        self.log.touch()
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.dir, ignore_errors=True)


class Routers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="baton-test-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.key_file = pathlib.Path(self.folder, "key")
        self.key_file.write_text(os.urandom(32).hex() + "\n")
        self.key_file.chmod(0o600)

    def both(self, there, args=()):
        addresses = [w.address for w in there]
        return Router(addresses, self.key_file, args), Router(addresses, self.key_file, args)


class TwoRouters(Routers):
    def test_both_serve_and_each_knows_what_the_other_made_the_workers_cache(self):
        with Worker("prefill", self.folder, self.key_file) as p, Worker("decode", self.folder, self.key_file) as d:
            a, b = self.both([p, d], ["--local-prefill-max-tokens", 8])
            with a, b:
                first = a.post("/v1/completions", BODY).json()
                self.assertEqual(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
                b.wait_until(lambda: b.metric("baton_router_index_units") == a.metric("baton_router_index_units") > 0,
                             "the events reach both")

                def predicted():
                    before = b.metric("baton_prefix_hit_tokens_predicted_total")
                    again = b.post("/v1/completions", BODY).json()
                    self.assertEqual(again["choices"], first["choices"])
                    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
                    self.assertGreater(cached, 0)
                    return b.metric("baton_prefix_hit_tokens_predicted_total") - before == cached

                b.wait_until(predicted, "the events of each worker have reached the other router")
                bodies = [{**BODY, "prompt": f"{i} {LONG}", "n": 1 + i % 3} for i in range(8)]
                alone = [answer(a, body) for body in bodies]
                both = in_parallel([lambda r=r, body=body: answer(r, body) for body in bodies for r in (a, b)])
                self.assertEqual(both, [one for one in alone for _ in range(2)])

    def test_without_a_key_file_workers_that_no_router_gave_a_key_have_that_of_the_clusters_secret(self):
        secret, pipe = (self.key_file, "--cluster-secret-file"), pathlib.Path(self.folder, "pipe")
        os.mkfifo(pipe, 0o600)
        end = os.open(pipe, os.O_RDWR)
        self.addCleanup(os.close, end)
        os.write(end, self.key_file.read_bytes())  # what comes out of a pipe can be read once
        with contextlib.ExitStack() as there:  # a worker is ready once it waits for a router's key no more
            addresses = [there.enter_context(Worker(role, self.folder, *secret)).address for role in ("prefill", "decode")]
            routers = [Router(addresses, file, ["--local-prefill-max-tokens", 8], secret[1]) for file in (self.key_file, pipe)]
            with routers[0] as a:
                a.wait_until(lambda: [w["state"] for w in workers(a)] == ["ready"] * 2, "both are its workers")
                first = a.post("/v1/completions", BODY).json()
            with routers[1] as b:
                b.wait_until(lambda: b.metric("baton_router_index_units") > 0, "it knows what they have")
                again = b.post("/v1/completions", BODY).json()
                self.assertEqual(again["choices"], first["choices"])
                self.assertGreater(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
                self.assertGreater(b.metric("baton_prefix_hit_tokens_predicted_total"), 0)

    def test_a_flip_that_one_router_orders_is_no_loss_for_the_other(self):
        with Worker("prefill", self.folder, self.key_file) as p, Worker("decode", self.folder, self.key_file) as d:
            a, b = self.both([p, d])
            with a, b:
                def role(router):
                    return next((w["role"], w["takes_requests"]) for w in workers(router) if w["address"] == p.address)

                b.wait_until(lambda: role(b) == ("prefill", True), "the other router knows it")
                for to in ("decode", "prefill"):
                    done = run(["flip", p.address, to, "--url", a.admin])
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    b.wait_until(lambda: role(b) == (to, True), "the other router has seen it")
                for counter in ("baton_worker_losses_total", "baton_worker_restarts_total"):
                    self.assertEqual((counter, b.metric(counter)), (counter, 0))
                self.assertNotRegex(b.log.read_text(), r"\[warning\].*: lost")
                self.assertEqual(answer(b, BODY), answer(a, BODY))

    def test_flips_that_two_routers_order_leave_one_that_decodes(self):
        with contextlib.ExitStack() as stack:
            p = stack.enter_context(Worker("prefill", self.folder, self.key_file))
            d, e = (stack.enter_context(Worker("decode", pathlib.Path(tempfile.mkdtemp(dir=self.folder)), self.key_file)) for _ in range(2))
            a, b = map(stack.enter_context, self.both([p, d, e]))
            for r in (a, b):
                r.wait_until(lambda r=r: all(w["takes_requests"] for w in workers(r)), "it knows all of them")
            want = answers(a)
            with HeldStream(a) as stream:
                a.wait_until(lambda: sum(w["requests"] for w in workers(a)) == 1, "it runs")
                busy = next(w["address"] for w in workers(a) if w["requests"])
                done = []
                order = threading.Thread(target=lambda: done.append(run(["flip", busy, "prefill", "--url", a.admin], timeout=120)))
                order.start()
                a.wait_until(lambda: any(w.get("flip") for w in workers(a)), "it drains")
                self.assertEqual(run(["flip", {d.address: e, e.address: d}[busy].address, "prefill", "--url", b.admin]).returncode, 0)
                self.assertEqual(stream.rest()[-1], "[DONE]")
                order.join()
            self.assertIn("it is the last that decodes by now", done[0].stderr)
            self.assertEqual(run(["flip", {d.address: e, e.address: d}[busy].address, "decode", "--url", b.admin]).returncode, 0)
            with Load(a, want, threads=1) as of_a, Load(b, want, threads=1) as of_b:
                in_parallel([lambda r=r, w=w: run(["flip", w.address, "prefill", "--url", r.admin], timeout=120) for r, w in ((a, d), (b, e))])
            self.assertEqual(of_a.wrong + of_b.wrong, [])
            for r in (a, b):
                r.wait_until(lambda r=r: any(w["role"] == "decode" and w["takes_requests"] for w in workers(r)), "one decodes")
                self.assertEqual(answers(r), want)

    def test_a_flip_that_both_routers_order_at_once_is_one_change_and_both_wait_for_it(self):
        with Worker("prefill", self.folder, self.key_file) as p, Worker("decode", self.folder, self.key_file) as d:
            a, b = self.both([p, d])
            with a, b:
                want = answers(a)
                with Load(a, want, threads=1) as of_a, Load(b, want, threads=1) as of_b:
                    for to in ("decode", "prefill") * 4:
                        both = in_parallel([lambda r=r: run(["flip", p.address, to, "--url", r.admin]) for r in (a, b)])
                        for done in both:
                            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                            self.assertIn(f"serves as {to}", done.stdout)
                self.assertEqual(of_a.wrong + of_b.wrong, [])
                self.assertEqual(p.log.read_text().count("changes its role from"), 8, "each change is made once")
                self.assertEqual(answers(b), want)

    def test_a_flip_waits_for_the_requests_of_the_other_router(self):
        """Who orders knows nothing of them: the worker itself lets them end."""
        other = pathlib.Path(self.folder, "other")
        other.mkdir()
        with Worker("prefill", self.folder, self.key_file) as p, Worker("decode", self.folder, self.key_file) as d, \
                Worker("decode", other, self.key_file) as d2:
            a, b = self.both([p, d, d2], ["--local-prefill-max-tokens", 8])
            with a, b:
                want = answers(a)
                with HeldStream(b, prompt=LONG) as stream:
                    decoding = lambda: [w["address"] for w in workers(b) if w["role"] == "decode" and w["requests"]]
                    b.wait_until(decoding, "where it runs")
                    (busy,) = decoding()
                    worker = {d.address: d, d2.address: d2}[busy]
                    with self.ordered(a, b, worker, "prefill") as told:
                        for router in (a, b):
                            self.assertEqual(answers(router), want, "of the other one that decodes")
                        now = self.at(a, worker)
                        self.assertEqual((now["role"], now["flip"]["stage"], told), ("decode", "changes", []))
                        alone = a.post("/v1/completions", stream.body).json()["choices"]
                        self.assertEqual(texts(stream.rest()), [c["text"] for c in alone])
                self.unharmed(told, worker, "prefill", a, b)
                self.assertEqual(answers(b), want)

    def test_a_flip_waits_for_the_legs_of_the_other_router(self):
        """A prompt that is computed and not yet handed over: nothing of it is left in the engine."""
        with Worker("prefill", self.folder, self.key_file) as p, Worker("decode", self.folder, self.key_file) as d:
            a, b = self.both([p, d], ["--local-prefill-max-tokens", 8, "--heartbeat-timeout-ms", 60000])
            with a, b:
                body, got = {**BODY, "prompt": f"another one: {LONG}"}, []
                want, alone = (settled(b, lambda: answer(a, one)) for one in (BODY, {**body, "cache_salt": "of another cache"}))
                try:
                    stop_all_threads(p.process.pid)  # the leg waits in its socket until there is a ticket
                    leg = threading.Thread(target=lambda: got.append(answer(b, body)))
                    leg.start()
                    b.wait_until(lambda: total(b, "baton_handoff_tickets", role="decode") == 1, "a ticket")
                    stop_all_threads(d.process.pid)
                    p.process.send_signal(signal.SIGCONT)
                    b.wait_until(lambda: most_jobs(b) == 1 and all_computed(b), "KV that nobody takes")
                    with self.ordered(a, b, p, "decode") as told:
                        for _ in range(50):
                            now = self.at(a, p)
                            self.assertEqual((now["role"], now["flip"]["stage"], told, got), ("prefill", "changes", [], []))
                        d.process.send_signal(signal.SIGCONT)
                        leg.join(60)
                finally:
                    for worker in (p, d):
                        worker.process.send_signal(signal.SIGCONT)
                self.assertEqual(got, [alone])
                self.unharmed(told, p, "decode", a, b)
                self.assertEqual(answer(b, BODY), want)

    def test_a_killed_router_takes_its_tickets_with_it_and_none_of_the_others(self):
        with Worker("prefill", self.folder, self.key_file) as p, Worker("decode", self.folder, self.key_file) as d:
            a, b = self.both([p, d], ["--local-prefill-max-tokens", 8, "--heartbeat-timeout-ms", 60000])
            with b:
                body, got = {**BODY, "prompt": f"another one: {LONG}"}, []
                alone = settled(b, lambda: answer(b, {**body, "cache_salt": "of another cache"}))
                tickets = lambda: total(b, "baton_handoff_tickets", role="decode")
                with a:
                    try:
                        stop_all_threads(p.process.pid)  # legs wait in its socket
                        client = not_reading(a, body)
                        self.addCleanup(client.close)
                        b.wait_until(lambda: tickets() == 1, "a ticket of one router")
                        asks = threading.Thread(target=lambda: got.append(answer(b, body)), daemon=True)
                        asks.start()
                        b.wait_until(lambda: tickets() == 2, "and of the other")
                        a.kill()
                        b.wait_until(lambda: tickets() < 2, "its ticket ends with it", 2)  # and not by its lease, of 4 s
                    finally:
                        p.process.send_signal(signal.SIGCONT)
                    asks.join(60)
                self.assertEqual(got, [alone])
                self.assertEqual((b.metric("baton_retries_total"), total(b, "baton_handoff_recomputes_total")), (0, 0))
                b.wait_until(lambda: tickets() == 0 and all(b.metric(name) == 0 for name in HELD), "nothing is held", 10)

    def at(self, router, worker):
        return next(w for w in workers(router) if w["address"] == worker.address)

    @contextlib.contextmanager
    def ordered(self, a, b, worker, role):
        """A `baton flip` that `a` was told, and `b` has heard of by the worker alone. Left when it has ended, or at once by a failure."""
        told = []
        order = threading.Thread(target=lambda: told.append(run(["flip", worker.address, role, "--url", a.admin], timeout=120)), daemon=True)
        order.start()
        b.wait_until(lambda: told or self.at(b, worker)["state"] == "draining", "the worker takes no more")
        yield told
        order.join()

    def unharmed(self, told, worker, role, *routers):
        (done,) = told
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + worker.log.read_text()[-2000:])
        self.assertIn(f"serves as {role}", done.stdout)
        for router in routers:
            router.wait_until(lambda: self.at(router, worker)["role"] == role and self.at(router, worker)["takes_requests"], "it has its new role")
            for counter in ("baton_retries_total", "baton_migrations_total", "baton_worker_losses_total", "baton_handoff_recomputes_total"):
                self.assertEqual((counter, total(router, counter)), (counter, 0), router.log.read_text()[-2000:])

    def test_a_killed_router_frees_what_it_held_and_the_other_goes_on(self):
        slow = {**BODY, "stream": True, "ignore_eos": True, "max_tokens": 1400, "logprobs": 20}
        with Worker("prefill", self.folder, self.key_file) as p, Worker("decode", self.folder, self.key_file) as d:
            a, b = self.both([p, d], ["--local-prefill-max-tokens", 8, "--relay-credit-tokens", 64, "--write-buffer-bytes", 4096])
            with b:
                alone = answer(b, {**BODY, "max_tokens": 1400, "ignore_eos": True})
                b.wait_until(lambda: b.metric("vllm:kv_cache_usage_perc") == 0, "all is idle")
                with a:
                    held = [not_reading(a, {**slow, "n": 4, "seed": i}) for i in range(2)]
                    self.addCleanup(lambda: [s.close() for s in held])
                    b.wait_until(lambda: b.sequences() >= 8, "both run")
                    seen = []

                    def starved():
                        seen.append(b.metric("vllm:generation_tokens_total"))
                        return len(seen) > 20 and len(set(seen[-20:])) == 1

                    b.wait_until(starved, "nobody reads, so nothing is made")
                    self.assertGreater(b.metric("vllm:kv_cache_usage_perc"), 0)
                    got = []
                    stream = threading.Thread(target=lambda: got.append(answer(b, {**BODY, "max_tokens": 1400, "ignore_eos": True})))
                    stream.start()
                    a.kill()
                    b.wait_until(lambda: b.sequences() <= 1, "its sequences end", 5)
                    stream.join(60)
                    self.assertEqual(got, [alone], "the other router's answer goes on as if nothing had been")
                b.wait_until(lambda: b.metric("vllm:kv_cache_usage_perc") == 0, "its blocks are free", 5)
                b.wait_until(lambda: all(b.metric(name) == 0 for name in HELD), "nothing of a handoff is held", 5)
                self.assertEqual(answer(b, {**BODY, "max_tokens": 1400, "ignore_eos": True}), alone)


class OneAddress(Routers):
    """Two routers behind an address that knows connections only, with default flags."""

    def test_one_that_drains_restarts_or_dies_under_load_costs_the_other_nothing(self):
        with contextlib.ExitStack() as stack:
            there = [stack.enter_context(Worker(role, self.folder, self.key_file)) for role in ("prefill", "decode")]
            first, b = self.both(there)
            stack.enter_context(b)
            with first:
                open_to = [first, b]
                balancer = stack.enter_context(Balancer(lambda number: [r.port for r in open_to[number % 2:] + open_to[:number % 2]]))
                front = stack.enter_context(Address(balancer.host, balancer.port))
                want = answers(first)
                self.assertEqual(answers(front), want)
                self.drains(first, b, open_to, front, want)
            again = Router([w.address for w in there], self.key_file)
            with again:
                self.restarts(again, b, want)
                open_to.insert(0, again)
                self.dies(again, b, open_to, front, want)
            b.wait_until(lambda: all(b.metric(name) == 0 for name in HELD), "nothing is held of who died", 10)
            self.assertEqual(answers(front), want)

    def test_one_that_drains_sends_its_grpc_clients_to_the_other_and_refuses_none_of_their_calls(self):
        with contextlib.ExitStack() as stack:
            there = [stack.enter_context(Worker(role, self.folder, self.key_file)) for role in ("prefill", "decode")]
            a, b = self.both(there)
            stack.enter_context(b)
            with a:
                open_to = [a, b]
                port = lambda router: router.grpc.rsplit(":", 1)[1]
                balancer = stack.enter_context(Balancer(lambda number: [port(r) for r in open_to[number % 2:] + open_to[:number % 2]]))
                clients = [self.asks_over_grpc(balancer, i) for i in range(4)]
                for router in (a, b):
                    router.wait_until(lambda r=router: self.asked(r) > 20, "clients ask it", 60)
                open_to.remove(a)
                a.process.send_signal(signal.SIGTERM)
                self.assertEqual(a.process.wait(60), 0)
                self.assertEqual([c.poll() for c in clients], [None] * len(clients), "they still ask")
                seen = self.asked(b)
                b.wait_until(lambda: self.asked(b) > seen + 100, "all ask the other one now", 60)
                b.wait_until(lambda: len(balancer.pairs) == len(clients), "each has one connection")
                self.assertNotIn("ran out of time", a.log.read_text())
            for client in clients:
                said = client.communicate(timeout=300)[0]
                self.assertRegex(said, r"Failed requests: +0 *\n")
                self.assertEqual(client.returncode, 0, said)

    def asks_over_grpc(self, balancer, i):
        """A client of gRPC's own, with one connection at a time and four calls on it."""
        client = subprocess.Popen([BATON, "bench", "--backend", "baton-grpc", "--base-url", f"grpc://{balancer.host}:{balancer.port}", "--model",
                                   "tiny-llama", "--random-input-len", "16", "--random-output-len", "4", "--ignore-eos", "--disable-tqdm",
                                   "--num-prompts", "1500", "--max-concurrency", "4", "--seed", str(i)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(lambda: client.poll() is None and (client.kill(), client.wait()))
        return client

    @staticmethod
    def asked(router):
        return router.metric("vllm:e2e_request_latency_seconds_count")

    @contextlib.contextmanager
    def stream_of(self, router, open_to, front):
        """A stream through the address that this router answers, and nobody reads; what one alone would answer."""
        kept, open_to[:] = open_to[:], [router]
        try:
            stream = HeldStream(front, prompt=LONG, n=2)
        finally:
            open_to[:] = kept
        with stream:
            yield stream

    def whole(self, stream, router):
        self.assertEqual(texts(stream.rest()), [c["text"] for c in router.post("/v1/completions", stream.body).json()["choices"]])

    def drains(self, a, b, open_to, front, want):
        kept, open_to[:] = open_to[:], [a]
        idle = front.connection(timeout=10)
        idle.request("GET", "/v1/models")
        self.assertEqual(idle.getresponse().read()[:1], b"{")
        open_to[:] = kept
        with self.stream_of(a, open_to, front) as ends, self.stream_of(b, open_to, front) as other, Load(front, want) as load:
            b.wait_until(lambda: load.count > 6, "requests")
            open_to.remove(a)  # as who stops a process takes it out of the address first
            a.process.send_signal(signal.SIGTERM)
            b.wait_until(lambda: "draining" in a.log.read_text(), "the drain")
            self.assertEqual(idle.sock.recv(1), b"", "who asks nothing is sent elsewhere before he asks")
            idle.close()
            seen = load.count
            b.wait_until(lambda: load.count > seen + 6, "requests while it drains")
            self.assertIsNone(a.process.poll(), "a stream still runs there")
            self.whole(ends, b)
            self.assertEqual(a.process.wait(60), 0)
            seen = load.count
            b.wait_until(lambda: load.count > seen + 6, "requests")
            self.whole(other, b)
        self.assertEqual(load.wrong, [])

    def restarts(self, again, b, want):
        again.wait_until(lambda: again.metric("baton_router_index_units") == b.metric("baton_router_index_units") > 0, "what workers have cached")
        body = {"model": "tiny-llama", "prompt": LONG, "max_tokens": 4, "seed": 5, "temperature": 0}
        cached = [router.post("/v1/completions", body).json()["usage"]["prompt_tokens_details"]["cached_tokens"] for router in (b, b, again)]
        self.assertGreater(cached[1], 0)
        self.assertEqual(cached[2], cached[1])
        self.assertEqual(answers(again), want)

    def dies(self, a, b, open_to, front, want):
        with self.stream_of(a, open_to, front) as lost, self.stream_of(b, open_to, front) as other, Load(front, want) as load:
            a.wait_until(lambda: load.count > 6 and a.metric("baton_router_running_requests") > 1, "requests at both")
            a.kill()
            seen = load.count
            b.wait_until(lambda: load.count > seen + 6, "requests")
            with self.assertRaises((http.client.IncompleteRead, ConnectionError)):
                lost.rest()  # never half an answer that looks whole
            self.whole(other, b)
        self.assertLessEqual(len(load.wrong), len(load.threads), load.wrong)  # each client's request of that moment
        for wrong in load.wrong:
            self.assertRegex(str(wrong), "RemoteDisconnected|ConnectionReset|IncompleteRead|BrokenPipe")


if __name__ == "__main__":
    unittest.main(verbosity=2)
