"""Attacks of clients on a router, and of files and flags on a start, against real processes with their default flags. Each time the processes live,
others are answered as before, memory and computing time have a bound, and the refusal says why."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import tempfile
import time
import unittest
import urllib.request

from harness import TINY, Cluster, in_parallel, run
from test_discovery import Discovery
from test_hostile_tls import until_closed
from test_hostile_worker import HostileWorker, resident
from test_key_holder import literal
from test_tls import Process, exchange, worker
from test_trust import frame

MIB = 1 << 20
KEY = "sk-of-the-clients"
BODY = {"model": "tiny-llama", "prompt": "one two three", "max_tokens": 8, "temperature": 0}
GATHERS = "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s ~ m['content'] %}{% endfor %}{{ ns.s }}"
SMUGGLED = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def head(length, *lines, path="/v1/completions"):
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {length}", *lines, "", ""]).encode()


def statuses(data):
    return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d{3}) ", data)]


class Front(unittest.TestCase):
    """A cluster that all tests of a class attack."""

    args = ()
    headers = {}
    most_grown = 96 * MIB

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(args=cls.args))
        cls.want = cls.ask().json()["choices"]
        cls.pids = list(cls.cluster.children())

    @classmethod
    def ask(cls, **fields):
        return cls.cluster.post("/v1/completions", {**BODY, **fields}, headers=cls.headers)

    def setUp(self):
        self.router = self.cluster.pid_of("router")
        self.before, self.cpu = resident(self.router, "VmHWM"), cpu_seconds(self.router)

    def tearDown(self):
        self.assertEqual(list(self.cluster.children()), self.pids, "nobody died")
        self.assertLess(resident(self.router, "VmHWM") - self.before, self.most_grown)
        reply = self.ask()
        self.assertEqual((reply.status, reply.json().get("choices")), (200, self.want))

    def dial(self, source="127.0.0.1", cluster=None):
        c = cluster or self.cluster
        return socket.create_connection((c.host, int(c.port)), timeout=60, source_address=(source, 0))


class Open(Front):
    args = ["--chat-template", GATHERS]

    def test_s6_lists_of_token_ids_have_a_length(self):
        for name, most in [("stop_token_ids", "at most 4096"), ("allowed_token_ids", "more than the vocabulary of 548")]:
            reply = self.ask(**{name: [5] * 1_000_000}, min_tokens=4)
            self.assertEqual(reply.status, 400)
            self.assertIn(f"`{name}` has 1000000 token ids, {most}", reply.body)
        bias = ",".join('"%d":-100' % (i % 500) for i in range(400_000))
        reply = self.cluster.post("/v1/completions", json.dumps(BODY)[:-1] + ',"min_tokens":8,"n":8,"logit_bias":{' + bias + "}}")
        self.assertEqual(reply.status, 200, "of each id the last counts")
        worker = self.cluster.workers("both")[0]
        before = cpu_seconds(worker)
        reply = self.ask(stop_token_ids=[4] * 4096, max_tokens=64, min_tokens=64, ignore_eos=True, n=8)
        self.assertEqual(reply.status, 200)
        self.assertLess(cpu_seconds(worker) - before, 10, "its steps are no slower")

    def test_s10_texts_that_cannot_fit_are_not_tokenized(self):
        prompt = "the quick brown " * (7 * MIB // 16)
        reply = self.ask(prompt=prompt)
        self.assertEqual(reply.status, 400)
        self.assertIn("This prompt has 7340032 bytes, and at most ", reply.body)
        body = json.dumps({**BODY, "prompt": prompt}).encode()
        for _ in range(12):  # and leave
            with self.dial() as s:
                s.sendall(head(len(body)) + body)
        self.assertEqual(self.cluster.post("/tokenize", {"model": "tiny-llama", "prompt": prompt[:7000]}).status, 200)
        self.assertLess(cpu_seconds(self.router) - self.cpu, 12, "one of them takes 4 s")

    def test_s10_texts_of_clients_that_have_left_are_not_tokenized(self):
        self.most_grown = 320 * MIB  # what a text of a MiB takes, and those that wait
        body = json.dumps({**BODY, "prompt": "the quick brown " * (MIB // 16), "truncate_prompt_tokens": 8}).encode()
        with self.dial() as s:
            s.sendall(head(len(body), "Connection: close") + body)
            self.assertEqual(statuses(until_closed(s)), [200])
        one, begin = cpu_seconds(self.router) - self.cpu, cpu_seconds(self.router)
        for _ in range(16):
            with self.dial() as s:
                s.sendall(head(len(body)) + body)
        self.assertEqual(self.cluster.post("/tokenize", {"model": "tiny-llama", "prompt": "the quick brown " * 400}).status, 200, "it had its turn")
        self.assertLess(cpu_seconds(self.router) - begin, 8 * one)

    def test_s12_a_web_page_of_another_origin_may_ask_nothing(self):
        chat, port = {**BODY, "prompt": "hi"}, self.cluster.port
        for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": f"evil.example:{port}"}, {"Host": f"127.0.0.1.evil.example:{port}"},
                        {"Origin": f"http://evil.example:{port}", "Host": f"evil.example:{port}"}):
            for method, path, body in [("POST", "/v1/completions", chat), ("GET", "/metrics", None), ("GET", "/v1/models", None), ("OPTIONS", "/v1/completions", None)]:
                with self.subTest(path=path, **headers):
                    reply = self.cluster.request(method, path, body, headers=headers)
                    self.assertEqual(reply.status, 403, reply.body)
                    self.assertNotIn("choices", reply.body)
                    self.assertFalse([name for name in reply.headers if name.lower().startswith("access-control-allow")])
        plain = json.dumps(chat).encode()
        data = exchange(port, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(plain) + plain)
        self.assertEqual(statuses(data), [403], "also without a type, which asks for no preflight")
        self.assertEqual(self.cluster.post("/v1/completions", chat, headers={"Origin": self.cluster.url}).status, 200, "its own pages may")

    def test_s17_one_request_id_says_nothing_of_another(self):
        ids = [int(self.ask(max_tokens=1).headers["X-Request-Id"], 16) for _ in range(48)]
        for i, a in enumerate(ids):
            for b in ids[:i]:
                for told in (abs(a - b), a ^ b):
                    self.assertGreater(told >> 64, 1 << 20, "of two, the upper halves differ")
                    self.assertGreater(told & (1 << 64) - 1, 1 << 20, "and the lower ones")

    def test_s18_what_a_proxy_may_frame_otherwise_is_refused_and_the_rest_not_read(self):
        body = json.dumps(BODY).encode()
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)

        def framed(first, *lines, rest=chunked):
            return "\r\n".join([first, "Host: localhost", "Content-Type: application/json", *lines, "", ""]).encode() + rest + SMUGGLED
        post = "POST /v1/completions HTTP/1.1"
        chunks = "Transfer-Encoding: chunked"
        for name, data in {
                "chunks in HTTP/1.0": framed("POST /v1/completions HTTP/1.0", chunks),
                "another coding": framed(post, "Transfer-Encoding: gzip, chunked"),
                "chunked twice": framed(post, chunks, chunks),
                "both lengths": framed(post, chunks, f"Content-Length: {len(body)}"),
                "two lengths": framed(post, "Content-Length: 5", f"Content-Length: {len(body)}", rest=body),
                "a length with a sign": framed(post, f"Content-Length: +{len(body)}", rest=body),
                "a folded header": framed(post, "X-A: b", " c", chunks),
                "a space before the colon": framed(post, "Transfer-Encoding : chunked"),
                "two hosts": framed(post, "Host: other", chunks)}.items():
            with self.subTest(name), self.dial() as s:
                s.sendall(data)
                got = until_closed(s)
                self.assertEqual(len(statuses(got)), 1, got)
                self.assertIn(statuses(got)[0], (400, 501))
        with self.dial() as s:
            s.sendall(framed(post, chunks).replace(SMUGGLED, SMUGGLED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")))
            self.assertEqual(statuses(until_closed(s)), [200, 200], "well framed, both are answered")

    def test_s23_a_template_that_gathers_and_a_hundred_thousand_messages(self):
        messages = [{"role": "user", "content": "0123456789" * 4}] * 90_000
        reply = self.cluster.post("/v1/chat/completions", {"model": "tiny-llama", "messages": messages, "max_tokens": 2}, timeout=100)
        self.assertEqual(reply.status, 400, reply.body)
        self.assertIn("all values together would have more than ", reply.body)
        self.assertLess(cpu_seconds(self.router) - self.cpu, 20)
        few = self.cluster.post("/v1/chat/completions", {"model": "tiny-llama", "messages": messages[:20], "max_tokens": 2})
        self.assertEqual(few.status, 200, few.body)


class WithKey(Front):
    args = ["--api-key", KEY]
    headers = {"Authorization": f"Bearer {KEY}"}

    def test_s9_bodies_of_a_wrong_key_are_not_kept(self):
        size, part = 8 * MIB - 1024, b" " * MIB
        with contextlib.ExitStack() as stack:
            held = []
            for i in range(150):
                s = stack.enter_context(self.dial())
                s.sendall(head(size, "Authorization: Bearer wrong") if i % 2 else head(size))
                with contextlib.suppress(OSError):
                    s.sendall(part)
                held.append(s)
            for s in held:
                got = b""
                with contextlib.suppress(ConnectionError):
                    got = s.recv(4096)
                self.assertTrue(got == b"" or statuses(got) == [401], got)
            self.assertTrue(got, "one at least was told")
        for path in ("/v1/chat/completions", "/v1/models", "/metrics/no"):
            reply = self.cluster.post(path, BODY, headers={"Authorization": "Bearer wrong"})
            self.assertIn(reply.status, (401, 404, 405))
            self.assertNotIn("choices", reply.body)


class Connections(Front):
    """The times and numbers that are waited for are smaller than they are by default."""

    args = ["--max-connections", 60, "--read-timeout-ms", 5000, "--write-timeout-ms", 4000]

    def closed(self, reason):
        found = re.findall(rf'^baton_http_connections_closed_total{{[^}}]*port="http",reason="{reason}"[^}}]*}} (\S+)$', self.cluster.get("/metrics").body, re.M)
        return sum(map(float, found))

    def test_s13_idle_connections_of_one_address_leave_others_theirs(self):
        with contextlib.ExitStack() as stack:
            for others in (stack.enter_context(self.dial("127.0.0.3")), None):  # one that is the oldest of all, one that comes last
                if others:
                    for _ in range(100):
                        with contextlib.suppress(ConnectionError):
                            stack.enter_context(self.dial("127.0.0.2"))
                    self.cluster.wait_until(lambda: self.closed("for-another") >= 60, "an address to give up its own")
                s = others or stack.enter_context(self.dial("127.0.0.3"))
                s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                self.assertEqual(statuses(until_closed(s)), [200])

    def test_s13_a_connection_that_asks_nothing_has_the_time_of_a_request(self):
        for words in (b"", b"GET /hea"):
            with self.subTest(words), self.dial() as s:
                begin = time.monotonic()
                s.sendall(words)
                self.assertIn(statuses(until_closed(s)), ([], [408]))
                self.assertLess(time.monotonic() - begin, 60, "not the two minutes between requests")

    def test_s13_whoever_takes_next_to_nothing_of_an_answer_is_dropped(self):
        body = json.dumps({**BODY, "max_tokens": 600, "ignore_eos": True, "logprobs": 5, "n": 2}).encode()
        before = self.closed("slow-reader")
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
            s.settimeout(60)
            s.connect((self.cluster.host, int(self.cluster.port)))
            s.sendall(head(len(body)) + body)
            got, ended = b"", False
            while not ended:
                time.sleep(0.25)  # the attack: so little that the server sees nothing taken for long
                try:
                    more = s.recv(1024)
                    got, ended = got + more, more == b""
                except ConnectionError:
                    ended = True
        length = int(re.search(rb"Content-Length: (\d+)", got)[1])
        self.assertLess(len(got), length, "it did not get all of it")
        self.cluster.wait_until(lambda: self.closed("slow-reader") == before + 1, "counted")
        self.assertIn("slow-reader", self.cluster.log.read_text())

    def test_s13_an_answer_is_taken_at_sixteen_kib_a_second_in_the_mean(self):
        """Of two clients that both take something all the time."""
        body = json.dumps({**BODY, "max_tokens": 600, "ignore_eos": True, "logprobs": 5, "n": 2}).encode()

        def takes(bytes_per_turn):
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
                s.settimeout(60)
                s.connect((self.cluster.host, int(self.cluster.port)))
                s.sendall(head(len(body), "Connection: close") + body)
                got, begin = b"", None
                with contextlib.suppress(ConnectionError):
                    while more := s.recv(bytes_per_turn):
                        got, begin = got + more, begin or time.monotonic()
                        time.sleep(0.05)  # the attack: a rate
            return len(got) >= int(re.search(rb"Content-Length: (\d+)", got)[1]), time.monotonic() - begin
        before = self.closed("slow-reader")
        (slow, slow_s), (fast, fast_s) = in_parallel([lambda: takes(256), lambda: takes(4096)])
        self.assertEqual((slow, fast), (False, True), f"{slow_s:.1f} s, {fast_s:.1f} s")
        self.assertGreater(slow_s, 4, "not for a time in which it took nothing")
        self.cluster.wait_until(lambda: self.closed("slow-reader") == before + 1, "counted")


class FalseWorker(Discovery):
    def test_s16_words_of_a_worker_are_one_line_of_the_routers_log(self):
        said = b"evil%0A[error] all is lost%1B[2J%0D" + b"x" * 60
        begin = b"\x88" + literal(b"content-type", b"application/grpc") + literal(b"grpc-status", b"14") + literal(b"grpc-message", said)
        with HostileWorker(lambda stream: frame(1, 5, stream, begin), None) as evil:
            good = self.worker("a")
            with self.router("--worker", good.address, "--worker", evil.address) as router:
                router.wait_until(lambda: "evil" in router.log.read_text(), "its words are in the log")
                for line in router.log.read_text().splitlines():
                    self.assertFalse(line.startswith("[error] all is lost"), line)
                    self.assertRegex(line, r"^[^\x00-\x1f\x7f]*$")
                shown = [router.get("/metrics").body, router.get("/ready").body]
                with urllib.request.urlopen(router.admin + "/workers", timeout=10) as reply:
                    shown.append(reply.read().decode())
                for text in shown:
                    self.assertRegex(text, r"^[^\x00-\x09\x0b-\x1f\x7f]*$")
                    self.assertNotIn("\n[error] all is lost", text)
                self.assertEqual(router.post("/v1/completions", BODY).status, 200)


class Starts(unittest.TestCase):
    """Files and flags that are not what they seem."""

    def test_s20_a_name_that_looks_like_loopback_is_none(self):
        base = ["worker", "--model", TINY, "--load-format", "dummy"]
        for host in ("127.evil.example", "127.0.0.1.evil.example", "127.1.2"):
            done = run([*base, "--host", host])
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(f"--host {host} can be reached from other machines", done.stderr + done.stdout)
            done = run(["router", "--model", TINY, "--worker", "127.0.0.1:1", "--host", host, "--port", 0, "--grpc-port", 0, "--admin-port", 0])
            self.assertIn(f"--host {host} can be reached from other machines", done.stderr + done.stdout)
        if socket.has_ipv6 and pathlib.Path("/proc/net/if_inet6").exists() and pathlib.Path("/proc/net/if_inet6").read_text():
            with worker(host="::1") as w:
                w.until_logged("gRPC at [::1]:")

    def test_s22_a_model_file_of_endless_tokens_is_refused_at_once(self):
        def string(text):
            return struct.pack("<Q", len(text)) + text

        def value(key, kind, data):
            return string(key) + struct.pack("<I", kind) + data
        tokens = [b"a", b"aa", b"a" * (16 * MIB)]
        facts = [value(b"general.architecture", 8, string(b"llama")), value(b"tokenizer.ggml.model", 8, string(b"llama")),
                 value(b"tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, len(tokens)) + b"".join(map(string, tokens))),
                 value(b"tokenizer.ggml.scores", 9, struct.pack("<IQ3f", 6, 3, 0, -1, -2))]
        facts += [value(b"llama." + name, 4, struct.pack("<I", number)) for name, number in
                  [(b"block_count", 1), (b"context_length", 128), (b"embedding_length", 64), (b"feed_forward_length", 64), (b"attention.head_count", 1)]]
        facts += [value(b"llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5))]
        folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-model-"))
        self.addCleanup(shutil.rmtree, folder)
        file = folder / "long.gguf"
        tensor = string(b"token_embd.weight") + struct.pack("<IQQIQ", 2, 64, 3, 0, 0)  # float32 [3, 64]
        begin = b"GGUF" + struct.pack("<IQQ", 3, 1, len(facts)) + b"".join(facts) + tensor
        file.write_bytes(begin + bytes(-len(begin) % 32 + 3 * 64 * 4))
        why = "token 2 has 16777216 bytes, at most 1024"
        done = run(["router", "--model", file, "--worker", "127.0.0.1:1", "--port", 0, "--grpc-port", 0, "--admin-port", 0], timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(why, done.stderr + done.stdout)
        with Process("worker", "--model", file, "--load-format", "dummy") as w:
            w.until_logged("requests with structured outputs are refused: GGUF tokenizer: " + why)


if __name__ == "__main__":
    unittest.main(verbosity=2)
