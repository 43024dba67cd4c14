"""`baton bench` against real clusters: sweeps with a table and a page, two servers side by side, over https, with a worker
killed in the middle, and the results of several generators as one."""
import http.server
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

from harness import BATON, Cluster, TINY, run
from odd_server import OddServer
from test_tls import Certs


def may_be_real_time():
    """Whether the system lets a process of ours run before others."""
    return subprocess.run(["chrt", "--rr", "1", "true"], capture_output=True).returncode == 0


def descendants(pid):
    """Ids of the processes that this one has started, and those have."""
    try:
        children = [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [one for child in children for one in (child, *descendants(child))]


def wait_until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def runs(pid):
    """Whether there is a process of this id that has not ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


PAIR = ["--prefill", 1, "--decode", 2, "--threads", 1]


def asks(output_tokens):
    return ["--model", "tiny-llama", "--random-input-len", 16, "--random-output-len", output_tokens, "--ignore-eos", "--disable-tqdm"]


SMALL = asks(16)


class StartingServer(http.server.BaseHTTPRequestHandler):
    """An OpenAI server that refuses its first requests, as one whose workers load; `refuses` says how many are left, `hides` how often
    its models are yet asked for in vain, and `asked` how often anything was."""
    refuses, hides, asked = 3, 0, 0

    def do_GET(self):
        type(self).asked += 1
        type(self).hides -= 1
        self.answer(503 if self.hides >= 0 else 200, "application/json", '{"data":[{"id":"m"}]}')

    def do_POST(self):
        type(self).asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).refuses -= 1
        if type(self).refuses >= 0:
            return self.answer(503, "application/json", '{"error":{"message":"No worker is ready yet"}}')
        chunk = '{"choices":[{"index":0,"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":16,"completion_tokens":1}}'
        return self.answer(200, "text/event-stream", f"data: {chunk}\n\ndata: [DONE]\n\n")

    def answer(self, status, kind, text):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


class Bench(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-bench-"))
        self.addCleanup(shutil.rmtree, self.dir)

    def bench(self, *args, code=0, **kw):
        done = run(["bench", *args], **kw)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def saved(self, name):
        return [json.loads(line) for line in (self.dir / name).read_text().splitlines()]

    def test_where_nothing_can_be_kept_nothing_is_measured(self):
        nowhere, dead = self.dir / "nowhere", ["--base-url", "http://127.0.0.1:9", "--num-prompts", 2]
        for args in (["--html", nowhere / "x.html"], ["--save-as", f"guidellm={nowhere}/g.json"],
                     ["--save-result", "--result-filename", nowhere / "r.json"]):
            self.assertIn(f"{nowhere}: No such file", self.bench(*dead, *args, code=2))
        self.assertIn("refused", self.bench(*dead, "--save-result", "--result-dir", nowhere, code=6))
        self.assertTrue(nowhere.is_dir(), "it is made, as vLLM's does")

    def test_what_finds_no_room_is_said_and_takes_nothing_else_away(self):
        with Cluster(args=PAIR) as c:
            said = self.bench("--port", c.port, *SMALL, "--num-prompts", 2, "--max-concurrency", "1,2", "--label", "a/b", "--save-result", "--result-dir",
                              self.dir, "--save-as", "sglang=/dev/full", "--html", self.dir / "page.html", code=5)
            self.assertIn("--save-as sglang: cannot write /dev/full: No space left on device", said)
            self.assertRegex(said, r"\n2 at a time .*\n")
            self.assertTrue((self.dir / "page.html").exists())
            self.assertEqual(len(list(self.dir.glob("a_b-*.json"))), 2)
            said = self.bench("--port", c.port, *SMALL, "--num-prompts", 2, "--max-concurrency", "1,2", "--save-result", "--result-filename", "/dev/full",
                              "--html", self.dir / "other.html", code=5)
            self.assertIn("2 files could not be written, the first: the result: cannot write /dev/full: No space left on device", said)
            self.assertTrue((self.dir / "other.html").exists())
            said = self.bench("--port", c.port, *SMALL, "--num-prompts", 2, "--kill", "nobody@1s", "--admin-url", c.admin, code=2)
            self.assertIn("there is no worker nobody", said)

    def test_a_sweep_is_a_table_a_page_and_a_file_of_its_runs(self):
        with Cluster(args=PAIR) as c:
            said = self.bench("--port", c.port, *SMALL, "--num-prompts", 12, "--max-concurrency", "1,4", "--num-runs", 2,
                              "--html", self.dir / "page.html", "--save-result", "--result-dir", self.dir, "--result-filename", "r.json")
            self.assertRegex(said, r"\n1 at a time .* 2 runs, tok/s within")
            self.assertRegex(said, r"\n4 at a time .* 2 runs, tok/s within")
            runs = self.saved("r.json")
            self.assertEqual([(r["max_concurrency"], r["run"], r["completed"]) for r in runs], [(1, 0, 12), (4, 0, 12), (1, 1, 12), (4, 1, 12)])
            self.assertEqual({r["total_cached_tokens"] for r in runs}, {0}, "no run meets the prompts of another in a cache")
            self.assertTrue(all(0 < r["median_ttst_ms"] for r in runs))
            self.assertEqual({r["real_time"] for r in runs}, {may_be_real_time()})
            self.bench("--port", c.port, *SMALL, "--num-prompts", 1, "--no-real-time", "--save-result", "--result-dir", self.dir, "--result-filename", "n.json")
            self.assertEqual([r["real_time"] for r in self.saved("n.json")], [False])
            page = (self.dir / "page.html").read_text()
            self.assertEqual(page.count("<svg"), 1 + 4 * 4)

    def test_two_servers_side_by_side_one_of_them_by_https_answer_the_same_bytes(self):
        with Certs(["127.0.0.1"]) as certs, Certs(["127.0.0.1"]) as others:
            with Cluster(args=PAIR) as c, Cluster(args=["--threads", 1, *certs.flags()], ca=certs.ca) as tls:
                both = ["--compare", f"pd=http://127.0.0.1:{c.port}", f"whole=https://127.0.0.1:{tls.port}", *SMALL, "--num-prompts", 8,
                        "--max-concurrency", 2, "--temperature", "0.7"]
                said = self.bench(*both, "--tls-ca", certs.ca)
                self.assertRegex(said, r"whole beside pd, 2 at a time: .*answers with the same bytes 8, with others 0\n")
                refused = self.bench(*both, "--tls-ca", others.ca, code=6)
                self.assertRegex(refused, r"8 times: TLS: certificate verify failed")
                self.assertIn("8, with others 0", self.bench(*both, "--insecure"))
                self.assertIn("no certificates", self.bench(*both, "--tls-ca", self.dir / "none", code=2))

    def test_a_server_that_is_not_ready_is_waited_for(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StartingServer)
        self.addCleanup(server.server_close)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.shutdown)
        ask = ["--base-url", f"http://127.0.0.1:{server.server_port}", *SMALL, "--num-prompts", 2]
        self.assertRegex(self.bench(*ask, "--ready-check-timeout-sec", 60), r"Successful requests: +2\b")
        StartingServer.refuses = 10**9
        self.assertIn("not ready within --ready-check-timeout-sec 1: HTTP 503: No worker is ready yet",
                      self.bench(*ask, "--ready-check-timeout-sec", 1, code=6))
        # Who also has to be asked for his model is waited for as long and no longer: with 200 ms between two tries at most 13 go into 2 s.
        StartingServer.hides, StartingServer.asked = 4, 0
        nameless = [*ask[:2], *SMALL[2:], "--num-prompts", 2]
        self.assertIn("not ready within", self.bench(*nameless, "--ready-check-timeout-sec", 2, code=6))
        self.assertLessEqual(StartingServer.asked, 13)
        # Over gRPC: a router that has no worker yet.
        alone = subprocess.Popen([BATON, "router", "--model", TINY, "--port", "0", "--grpc-port", "0", "--admin-port", "0", "--worker", "127.0.0.1:9"],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(lambda: (alone.kill(), alone.wait(), alone.stdout.close()))
        grpc = next(re.search(r"gRPC at (\S+)", line) for line in alone.stdout if "gRPC at" in line).group(1)
        self.assertRegex(self.bench("--backend", "baton-grpc", "--base-url", f"grpc://{grpc}", *SMALL, "--num-prompts", 2, "--ready-check-timeout-sec",
                                    1, code=6), "not ready within --ready-check-timeout-sec 1: gRPC 14: ")

    def test_the_ready_check_ends_by_its_own_limit_whatever_the_server_does(self):
        odd = {"is silent": ([], False), "sends half a head": ([HEAD[:20]], False), "closes": ([], True),
               "trickles a head": ([b"HTT"] + [b"T"] * 2000, False),
               "trickles a body without a word": ([HEAD] + [b": wait\n\n"] * 2000, False)}
        for what, (pieces, closes) in odd.items():
            for model in (SMALL[:2], []):  # or it has to be asked for its models first
                with self.subTest(what, model=model), OddServer(pieces, closes) as server:
                    said = self.bench("--base-url", server.url, *model, *SMALL[2:], "--num-prompts", 2, "--ready-check-timeout-sec", 1,
                                      code=6, timeout=30)
                    self.assertRegex(said, r"not ready within --ready-check-timeout-sec 1: .")
                    self.assertIn(server.url, said)

    def test_without_a_ready_check_a_silent_server_is_not_asked_for_its_models_for_ever(self):
        with OddServer() as server:
            said = self.bench("--base-url", server.url, *SMALL[2:], "--num-prompts", 2, code=6, timeout=30)
            self.assertIn(f"{server.url}: no answer within 10 s", said)

    def test_a_key_of_the_environment_is_shown_as_other_clients_do(self):
        with Cluster(args=["--threads", 1, "--api-key", "k1"]) as c:
            ask = ["--base-url", f"http://127.0.0.1:{c.port}", *SMALL[2:], "--num-prompts", 2]
            self.assertIn("/v1/models answers 401", self.bench(*ask, code=6))
            for more, key in (([], "k1"), (["--api-key", "k1"], "k2"), (["--header", "Authorization=Bearer k1"], "k2"), (["--header", "authorization=bearer k1"], "")):
                self.assertRegex(self.bench(*ask, *more, env={**os.environ, "OPENAI_API_KEY": key}), r"Successful requests: +2\b")
            self.assertIn("a key is one line", self.bench(*ask, env={**os.environ, "OPENAI_API_KEY": "k1\nX: y"}, code=2))

    def test_more_requests_at_a_time_than_files_that_a_shell_lets_it_have(self):
        few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        with OddServer() as server:
            said = self.bench("--base-url", server.url, "--model", "m", *SMALL[2:], "--num-prompts", 100, "--request-timeout-ms", 2000, code=6, preexec_fn=few)
        self.assertRegex(said, r"Failed, timeout: +100\b")

    def test_layouts_are_clusters_that_are_measured_side_by_side(self):
        small = [*SMALL[2:], "--num-prompts", 6, "--max-concurrency", 2, "--temperature", "0.7"]
        said = self.bench("--compare", "both,pd", "--model", TINY, "--serve-args", "--load-format dummy --threads 1", *small)
        self.assertIn("both: starting 2 workers (0 prefill, 0 decode, 2 both)\n", said)
        self.assertIn("pd: starting 2 workers (1 prefill, 1 decode, 0 both)\n", said)
        self.assertRegex(said, r"pd beside both, 2 at a time: .*answers with the same bytes 6, with others 0\n")
        self.assertIn("--model says which model", self.bench("--compare", "both,pd", *small, code=2))
        self.assertIn("is not NAME=URL", self.bench("--compare", "both,both", "--model", TINY, *small, code=2))
        self.assertIn("name layouts there",
                      self.bench("--compare", "a=http://127.0.0.1:1", "--serve-args", "--threads 1", *small, code=2))
        self.assertIn("asked over HTTP", self.bench("--compare", "both,pd", "--model", TINY, "--backend", "baton-grpc", *small, code=2))
        failed = self.bench("--compare", "pd", "--model", self.dir / "none", *small, code=6)
        self.assertRegex(failed, r'the cluster "pd" ended with exit code 3 before it was ready')

    def measure_layouts(self, num_prompts):
        """A measurement and the eight processes of its two clusters, which run."""
        measured = subprocess.Popen([BATON, "bench", "--compare", "both,pd", "--model", TINY, "--serve-args", "--load-format dummy --threads 1",
                                     *map(str, asks(64)[2:]), "--num-prompts", str(num_prompts), "--max-concurrency", "1"], stdout=subprocess.DEVNULL)
        wait_until(lambda: len(descendants(measured.pid)) == 8, "two clusters: each a parent, a router and two workers")
        return measured, descendants(measured.pid)

    def test_clusters_end_with_their_measurement(self):
        measured, processes = self.measure_layouts(100)
        self.assertEqual(measured.wait(120), 0)
        self.assertEqual([pid for pid in processes if runs(pid)], [])

    def test_clusters_end_with_a_measurement_that_is_killed(self):
        measured, processes = self.measure_layouts(100000)
        measured.kill()
        measured.wait()
        wait_until(lambda: not any(map(runs, processes)), "the clusters to end")

    def test_over_grpc_the_figures_and_the_stages_are_those_of_http(self):
        with Cluster(args=PAIR) as c:
            asked = [*SMALL, "--num-prompts", 8, "--max-concurrency", 2, "--temperature", "0.7"]
            said = self.bench("--compare", f"http=http://127.0.0.1:{c.port}", f"grpc=grpc://{c.grpc}", *asked, "--random-vocab-size", 300,
                              "--save-detailed", "--result-dir", self.dir, "--result-filename", "r.json")
            self.assertIn("answers with the same bytes 8, with others 0", said)
            http, grpc = self.saved("r.json")
            for key in ("completed", "failed", "total_input_tokens", "total_output_tokens", "requests_with_stages", "input_lens",
                        "output_lens", "generated_texts"):
                self.assertEqual(grpc[key], http[key], key)
            self.assertEqual((grpc["completed"], grpc["requests_with_stages"], grpc["connections"]), (8, 8, 1))
            self.assertTrue(all(0 < t < e for t, e in zip(grpc["ttfts"], grpc["latencies"])))
            chats = self.bench("--backend", "baton-grpc-chat", "--base-url", f"grpc://{c.grpc}", *asked, "--verify", "identical")
            self.assertIn("Asked again: 8 answers, 0 different", chats)
            refused = self.bench("--base-url", f"grpc://{c.grpc}", *asked, "--random-input-len", 100000, code=6)
            self.assertRegex(refused, r"Failed, refused: +8 *\n +\d times: gRPC 3: This model's maximum context")
        self.assertIn("Failed, connect:", self.bench("--base-url", f"grpc://{c.grpc}", "--model", "m", *SMALL, "--num-prompts", 1, code=6))
        self.assertIn("is not grpc://HOST:PORT", self.bench("--backend", "baton-grpc", "--base-url", "http://x", code=2))
        self.assertIn("--extra-body: gRPC", self.bench("--backend", "baton-grpc", "--extra-body", "{}", code=2))

    def test_a_killed_worker_is_a_dip_with_its_length_and_no_byte_changes(self):
        with Cluster(args=PAIR) as c:
            # 1,000 tokens/s, which a slow machine beside other tests has, too: else the dip lasts as long as the load.
            said = self.bench("--port", c.port, *asks(100), "--num-prompts", 120, "--request-rate", 10,
                              "--kill", "decode@3s", "--at", f"2s=touch {self.dir}/here", "--admin-url", c.admin,
                              "--verify", "identical", "--save-result", "--result-dir", self.dir, "--result-filename", "k.json")
            self.assertRegex(said, r"3\.\d s, kill decode: from \d+ tok/s to \d+ .*over after [\d.]+ s; \d+ requests ran, 0 of them failed")
            self.assertTrue((self.dir / "here").exists())
            result = self.saved("k.json")[0]
            self.assertEqual((result["completed"], result["verified"]["compared"], result["verified"]["different"]), (120, 120, 0))
            self.assertEqual([f["what"] for f in result["faults"]], [f"touch {self.dir}/here", "kill decode"])
            absent = self.bench("--port", c.port, *SMALL, "--num-prompts", 1, "--kill", "nobody@1s", "--admin-url", c.admin, code=2)
            self.assertRegex(absent, r"--kill: there is no worker nobody; there are .*decode-0 \(decode\)")
            nobody = self.bench("--port", c.port, *SMALL, "--num-prompts", 1, "--kill", "decode@1h", code=2)
            self.assertIn('--kill: "decode@1h" is not WORKER@TIME', nobody)

    def test_an_interrupted_measurement_keeps_and_writes_what_it_has(self):
        with Cluster(args=PAIR) as c:
            steps = lambda: sum(w["steps"] for w in json.loads(urllib.request.urlopen(c.admin + "/workers", timeout=30).read())["workers"])
            for number, (url, signal_sent, code) in enumerate(((f"http://127.0.0.1:{c.port}", signal.SIGINT, 130), (f"grpc://{c.grpc}", signal.SIGTERM, 143))):
                with self.subTest(url):
                    begun = steps()
                    started = subprocess.Popen([BATON, "bench", *map(str, ["--base-url", url, *SMALL, "--num-prompts", 100000, "--max-concurrency", "2,3",
                                                "--verify", "identical", "--save-result", "--result-dir", self.dir, "--result-filename", f"i{number}.json",
                                                "--html", self.dir / f"i{number}.html", "--save-as", f"guidellm={self.dir}/g{number}.json"])],
                                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                    c.wait_until(lambda: steps() - begun > 100, "some answers have ended")
                    started.send_signal(signal_sent)
                    said, errors = started.communicate(timeout=60)
                    self.assertEqual(started.returncode, code, said + errors)
                    self.assertEqual(errors.splitlines()[-1], "baton: interrupted: 1 of 2 loads were measured, the last one not to its end")
                    self.assertRegex(said, r"Interrupted: of 100000 requests [12] had no end yet and \d+ were not sent")
                    (result,) = self.saved(f"i{number}.json")
                    self.assertTrue(result["interrupted"])
                    self.assertGreater(result["completed"], 0)
                    self.assertEqual(result["failed"], 0, "what was cut is no failure of the server")
                    self.assertEqual(result["offered"] + result["unfinished"] + result["unsent"], 100000)
                    self.assertNotIn("verified", result)
                    self.assertIn("<svg", (self.dir / f"i{number}.html").read_text())
                    self.assertEqual(len(json.loads((self.dir / f"g{number}.json").read_text())["benchmarks"]), 1)
        dead = subprocess.Popen([BATON, "bench", "--base-url", "http://127.0.0.1:9", "--model", "m", "--ready-check-timeout-sec", "600"], stdout=subprocess.DEVNULL)
        dead.send_signal(signal.SIGINT)
        self.assertEqual(dead.wait(30), -signal.SIGINT, "nothing is measured yet: a signal ends it")

    def test_generators_that_begin_together_are_one_report(self):
        with Cluster(args=PAIR) as c:
            start = time.time() + 3
            started = [subprocess.Popen([BATON, "bench", *map(str, ["--port", c.port, *SMALL, "--num-prompts", 10, "--request-rate", 10,
                                         "--seed", i, "--start-at", start, "--save-detailed", "--result-dir", self.dir,
                                         "--result-filename", f"{i}.json"])], stdout=subprocess.DEVNULL) for i in range(2)]
            self.assertEqual([p.wait(60) for p in started], [0, 0])
        each = [self.saved(f"{i}.json")[0] for i in range(2)]
        said = self.bench("--merge", self.dir / "0.json", self.dir / "1.json", "--save-result", "--result-dir", self.dir,
                          "--result-filename", "all.json")
        self.assertIn("Request rate configured (RPS):           20.00", said)
        merged = self.saved("all.json")[0]
        self.assertEqual(merged["completed"], 20)
        self.assertEqual(merged["total_output_tokens"], sum(r["total_output_tokens"] for r in each))
        self.assertLess(abs(each[0]["started_at"] - each[1]["started_at"]), 1)
        self.assertLess(merged["duration"], sum(r["duration"] for r in each))
        self.assertIn("s ago", self.bench("--port", 1, "--model", "x", "--start-at", start, code=2))


if __name__ == "__main__":
    unittest.main()
