"""What a client sees: shapes, streaming, limits and bad input, through the real router and worker."""
import json
import pathlib
import socket
import tempfile
import unittest
import urllib.request
from collections import Counter

from harness import SMOLLM2, Cluster, HeldStream, events, in_parallel, run

CHAT = {"model": "tiny-llama", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "temperature": 0}


class Answers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = cls.enterClassContext(Cluster()) if hasattr(cls, "enterClassContext") else Cluster().__enter__()

    def test_streamed_chat_equals_the_whole_answer(self):
        whole = self.c.post("/v1/chat/completions", CHAT).json()
        stream = self.c.post("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}})
        self.assertTrue(stream.headers["Content-Type"].startswith("text/event-stream"))
        data = events(stream.body)
        self.assertEqual(data[-1], "[DONE]")
        chunks = [json.loads(d) for d in data[:-1]]
        self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertIsNone(chunks[0]["choices"][0]["finish_reason"])
        self.assertEqual("".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]), whole["choices"][0]["message"]["content"])
        finish = [c for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]]
        self.assertEqual(len(finish), 1)
        self.assertEqual(finish[0]["choices"][0]["delta"], {})
        self.assertEqual(chunks[-1]["choices"], [])
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])
        self.assertEqual(len({c["id"] for c in chunks}), 1)

    def test_token_ids_of_prompts_and_answers_are_the_same_streamed_and_whole(self):
        shown = {"return_token_ids": True, "n": 2, "max_tokens": 5, "seed": 1}
        whole = self.c.post("/v1/chat/completions", {**CHAT, **shown}).json()
        data = events(self.c.post("/v1/chat/completions", {**CHAT, **shown, "stream": True}).body)[:-1]
        self.assertEqual([json.loads(d)["prompt_token_ids"] for d in data if "prompt_token_ids" in d], [whole["prompt_token_ids"]])
        texts = {"model": "tiny-llama", "prompt": ["Hi", "two there"], **shown}
        for more in ({}, {"logit_bias": {"2": 100}}):  # the first token is the last
            whole = self.c.post("/v1/completions", {**texts, **more}).json()
            pieces = [c for d in events(self.c.post("/v1/completions", {**texts, **more, "stream": True}).body)[:-1] for c in json.loads(d)["choices"]]
            for choice in whole["choices"]:
                mine = [p for p in pieces if p["index"] == choice["index"]]
                self.assertEqual([p["prompt_token_ids"] for p in mine if "prompt_token_ids" in p], [choice["prompt_token_ids"]])
                self.assertEqual([token for p in mine for token in p.get("token_ids", [])], choice["token_ids"])

    def test_usage_and_timings_are_always_there(self):
        body = self.c.post("/v1/chat/completions", CHAT).json()
        self.assertIn("cached_tokens", body["usage"]["prompt_tokens_details"])
        self.assertIn("timings", body)

    def test_tokenize_round_trip(self):
        text = "naïve café 你好 👩‍👩‍👧 2026"
        tokens = self.c.post("/tokenize", {"model": "tiny-llama", "prompt": text}).json()
        self.assertEqual(tokens["count"], len(tokens["tokens"]))
        self.assertEqual(self.c.post("/detokenize", {"model": "tiny-llama", "tokens": tokens["tokens"]}).json()["prompt"], text)

    def test_over_long_prompt_is_refused_with_both_numbers(self):
        reply = self.c.post("/v1/completions", {"model": "tiny-llama", "prompt": [5] * 3000, "max_tokens": 5})
        self.assertEqual(reply.status, 400)
        for number in ("3000", "2048"):
            self.assertIn(number, reply.json()["error"]["message"])

    def test_bad_input_is_a_clear_error_object(self):
        cases = [
            (b"{", 400), (b"", 400), (b"[]", 400), (b'{"model":"tiny-llama"}', 400), (b"\xff\xfe{}", 400),
            (json.dumps({**CHAT, "model": "no-such"}), 404), (json.dumps({**CHAT, "messages": []}), 400),
            (json.dumps({**CHAT, "temperature": "hot"}), 400), (json.dumps({**CHAT, "temperature": -1}), 400),
            (json.dumps({**CHAT, "top_p": 0}), 400), (json.dumps({**CHAT, "n": 0}), 400), (json.dumps({**CHAT, "max_tokens": 0}), 400),
            (json.dumps({**CHAT, "stream_options": {}}), 400), (json.dumps({**CHAT, "top_logprobs": 2}), 400),
            (json.dumps({**CHAT, "messages": "hi"}), 400), (json.dumps({**CHAT, "messages": [{"role": "user"}]}), 400),
            (b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}", 400),
            (json.dumps({**CHAT, "response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}}), 400),
            (json.dumps({**CHAT, "stop_token_ids": [10**9]}), 400), (json.dumps({**CHAT, "logit_bias": {"99999999": 1}}), 400),
        ]
        for body, status in cases:
            with self.subTest(body=body[:120]):
                reply = self.c.post("/v1/chat/completions", body)
                self.assertEqual(reply.status, status, reply.body)
                error = reply.json()["error"]
                self.assertTrue(error["message"])
                self.assertIn("type", error)
        self.assertEqual(self.c.post("/v1/chat/completions", CHAT).status, 200, "still serves")

    def test_huge_headers_and_bodies_are_refused_before_they_are_read(self):
        self.assertEqual(self.c.get("/v1/models", headers={"X-Big": "a" * 40000}).status, 431)
        with socket.create_connection((self.c.host, int(self.c.port))) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 999999999\r\n\r\n{")
            self.assertIn(b" 413 ", s.recv(100))

    def test_what_bodies_may_hold(self):
        def complete(body):
            return self.c.post("/v1/completions", body)

        for name, body in {"lone high surrogate": b'{"prompt":"a\\ud800b"}', "lone low surrogate": b'{"prompt":"a\\udc00b"}',
                           "a number beyond a double": b'{"prompt":"a","temperature":1e400}', "NaN": b'{"prompt":"a","temperature":NaN}',
                           "two documents": b'{"prompt":"a"}{"prompt":"a"}', "an unescaped control character": b'{"prompt":"a\x01"}',
                           "no ids allowed": b'{"prompt":"a","allowed_token_ids":[]}', "an id that is none": b'{"prompt":[-1]}',
                           "a grammar": b'{"prompt":"a","grammar":"root ::= x"}'}.items():
            with self.subTest(name):
                reply = complete(body)
                self.assertEqual(reply.status, 400, reply.body)
                self.assertTrue(reply.json()["error"]["message"])
        for name, body in {"surrogate pair": b'{"prompt":"a\\ud83d\\ude00","max_tokens":2}', "NUL": b'{"prompt":"a\\u0000b","max_tokens":2}',
                           "the last of two equal keys": b'{"prompt":[],"prompt":"b","max_tokens":2}',
                           "the smallest temperature": b'{"prompt":"a","temperature":1e-45,"top_p":1e-45,"min_p":1e-45,"max_tokens":2}',
                           "the largest numbers": b'{"prompt":"a","temperature":3e38,"top_k":2147483647,"repetition_penalty":3e38,"max_tokens":2}'}.items():
            with self.subTest(name):
                self.assertEqual(complete(body).status, 200, complete(body).body)
        self.assertEqual(self.c.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, {"Content-Type": "Application/JSON; charset=utf-8"}).status, 200)
        self.assertEqual(self.c.request("POST", "/v1/completions", {"prompt": "a"}, {"Content-Type": "application/jsonl"}).status, 400)

    def test_stop_strings_across_tokens_and_characters(self):
        prompt = {"model": "tiny-llama", "prompt": "tell", "max_tokens": 40, "seed": 5, "temperature": 1, "ignore_eos": True}
        text = self.c.post("/v1/completions", prompt).json()["choices"][0]["text"]
        for begin in range(0, len(text) - 3, 5):
            stop = text[begin:begin + 3]
            for include in (False, True):
                body = {**prompt, "stop": ["\uffff", stop], "include_stop_str_in_output": include}
                whole = self.c.post("/v1/completions", body).json()["choices"][0]
                end = text.index(stop) + (len(stop) if include else 0)
                self.assertEqual((whole["text"], whole["finish_reason"], whole["stop_reason"]), (text[:end], "stop", stop), repr(stop))
                data = [json.loads(d) for d in events(self.c.post("/v1/completions", {**body, "stream": True}).body)[:-1]]
                self.assertEqual("".join(d["choices"][0]["text"] for d in data), text[:end], repr(stop))

    def test_bad_words_are_in_no_answer(self):
        """By tokens, at the beginning of a text and behind a space; words of several tokens too."""
        def ids(text):
            return self.c.post("/tokenize", {"model": "tiny-llama", "prompt": text, "add_special_tokens": False}).json()["tokens"]

        def told(seed, **more):
            reply = self.c.post("/v1/completions", {"model": "tiny-llama", "prompt": "the quick", "max_tokens": 120, "seed": seed,
                                                    "temperature": 1.0, "ignore_eos": True, "return_token_ids": True, **more})
            self.assertEqual(reply.status, 200, reply.body)
            return reply.json()["choices"][0]["token_ids"]

        def holds(answer, word):
            return any(answer[i:i + len(word)] == word for i in range(len(answer)))

        free = [told(seed) for seed in range(6)]
        singles = [t for t, _ in Counter(t for answer in free for t in answer).most_common(8)]
        pairs = [p for p, _ in Counter(p for answer in free for p in zip(answer, answer[1:])).most_common(40)]
        words = {}  # text -> tokens that it has in every place
        for tokens in [[t] for t in singles] + [list(p) for p in pairs]:
            text = self.c.post("/detokenize", {"model": "tiny-llama", "tokens": tokens}).json()["prompt"]
            if text == text.strip() and text.isprintable() and ids(text) == tokens:
                words[text] = tokens
        self.assertTrue({1, 2} <= {len(t) for t in words.values()}, words)
        held = [told(seed, bad_words=list(words)) for seed in range(6)]
        for text, tokens in words.items():
            self.assertTrue(any(holds(a, tokens) for a in free), text)
            self.assertFalse(any(holds(a, tokens) for a in held), text)
        for bad, why in (([""], "without a letter"), (["  "], "without a letter"), ("a", "an array of strings"), ([7], "string"),
                         (["x" * 5000], "more than 4096 tokens")):
            reply = self.c.post("/v1/completions", {"model": "tiny-llama", "prompt": "x", "bad_words": bad})
            self.assertEqual((reply.status, why in reply.body), (400, True), reply.body)
        with_none = told(1, allowed_token_ids=[words[next(iter(words))][0]], bad_words=[next(iter(words))])
        self.assertEqual(with_none, [], "nothing is left to draw: the answer ends")

    def test_logprobs_of_every_count_are_the_same_streamed_and_whole(self):
        for count in (0, 1, 5, 20):
            body = {"model": "tiny-llama", "prompt": "tell me", "max_tokens": 6, "seed": 9, "logprobs": count, "echo": True, "n": 2}
            whole = self.c.post("/v1/completions", body).json()["choices"]
            data = [json.loads(d) for d in events(self.c.post("/v1/completions", {**body, "stream": True}).body)[:-1]]
            for choice in whole:
                parts = [c for d in data for c in d["choices"] if c["index"] == choice["index"]]
                self.assertEqual("".join(p["text"] for p in parts), choice["text"])
                for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                    joined = [x for p in parts if p["logprobs"] for x in p["logprobs"][field]]
                    self.assertEqual(joined, choice["logprobs"][field], f"{field}, {count}")
                tops = [len(t) for t in choice["logprobs"]["top_logprobs"] if t]
                self.assertTrue(all(1 <= n <= count + 1 for n in tops), f"{tops} for {count}")

    def test_unknown_path_and_method_are_json(self):
        self.assertIn("`\\xff`", self.c.get("/v1/models/%ff").json()["error"]["message"])
        self.assertEqual(self.c.get("/nope").status, 404)
        self.assertIn("error", self.c.get("/nope").json())
        self.assertEqual(self.c.get("/v1/chat/completions").status, 405)

    def test_operations_endpoints(self):
        for path in ("/health", "/ping", "/live", "/ready", "/metrics", "/version", "/openapi.json", "/v1/models", "/v1/models/tiny-llama"):
            self.assertEqual(self.c.get(path).status, 200, path)
        self.assertEqual(self.c.get("/v1/models").json()["data"][0]["max_model_len"], 2048)

    def test_request_id_is_echoed_or_made(self):
        self.assertEqual(self.c.post("/v1/chat/completions", CHAT, headers={"X-Request-Id": "abc-1"}).headers["X-Request-Id"], "abc-1")
        self.assertTrue(self.c.post("/v1/chat/completions", CHAT).headers["X-Request-Id"])

    def test_grpc_gives_the_same_text(self):
        http = self.c.post("/v1/chat/completions", CHAT).json()["choices"][0]["message"]["content"]
        grpc = run(["chat", "--grpc", self.c.grpc, "--message", "Hello", "--max-tokens", 12, "--temperature", 0])
        self.assertEqual(grpc.returncode, 0, grpc.stderr)
        self.assertEqual(grpc.stdout.removesuffix("\n"), http)

    def test_prefix_is_found_again(self):
        prompt = list(range(10, 250))
        body = {"model": "tiny-llama", "prompt": prompt, "max_tokens": 4, "temperature": 0}
        first, second = (self.c.post("/v1/completions", body).json() for _ in range(2))
        self.assertEqual(first["choices"], second["choices"])
        self.assertGreaterEqual(second["usage"]["prompt_tokens_details"]["cached_tokens"], 224)


class Overload(unittest.TestCase):
    def test_full_queue_is_429_with_retry_after(self):
        with Cluster(args=["--max-running-requests", 2]) as c:
            body = {"model": "tiny-llama", "prompt": "x", "max_tokens": 600, "ignore_eos": True}
            with HeldStream(c), HeldStream(c):
                refused = c.post("/v1/completions", body)
                self.assertEqual(refused.status, 429)
                self.assertIn("Retry-After", refused.headers)
                self.assertIn("2", refused.json()["error"]["message"])
            replies = in_parallel([lambda: c.post("/v1/completions", body)] * 8)
            self.assertLessEqual({r.status for r in replies}, {200, 429})


class Keys(unittest.TestCase):
    def test_api_key(self):
        with Cluster(args=["--api-key", "secret"]) as c:
            self.assertEqual(c.post("/v1/chat/completions", CHAT).status, 401)
            self.assertEqual(c.post("/v1/chat/completions", CHAT, headers={"Authorization": "Bearer wrong"}).status, 401)
            self.assertEqual(c.post("/v1/chat/completions", CHAT, headers={"Authorization": "Bearer secret"}).status, 200)
            self.assertEqual(c.get("/health").status, 200)
            self.assertNotIn("secret", c.log.read_text())

    def test_a_key_learns_nothing_of_what_others_sent(self):
        prompt = {"model": "tiny-llama", "prompt": "the quick brown fox jumps over the lazy dog " * 8, "max_tokens": 2}

        def cached(c, key):
            reply = c.post("/v1/completions", prompt, headers={"Authorization": f"Bearer {key}"})
            return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

        def predicted(c, key):
            """Of the prompt, where it would go, were it that key's."""
            ask = urllib.request.Request(c.admin + "/debug/route", json.dumps({"prompt": prompt["prompt"]}).encode(),
                                         {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
            with urllib.request.urlopen(ask, timeout=10) as reply:
                return json.load(reply)["options"][0]["cached_tokens"]

        two_keys = ["--api-key", "alpha", "--api-key", "beta"]
        with Cluster(args=two_keys) as c:
            self.assertEqual(cached(c, "alpha"), 0)
            self.assertGreater(cached(c, "alpha"), 100)
            c.wait_until(lambda: predicted(c, "alpha") > 100, "the router hears what is cached, and explains it to whose it is")
            self.assertEqual(predicted(c, "beta"), 0)
            self.assertEqual(cached(c, "beta"), 0)
        with Cluster(args=[*two_keys, "--share-prefix-cache"]) as c:
            self.assertEqual(cached(c, "alpha"), 0)
            self.assertGreater(cached(c, "beta"), 100)

    def test_no_key_stands_on_the_command_line_of_the_router(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
            file.write("# ours\nfrom-file\n")
            file.flush()
            with Cluster(args=["--api-key-file", file.name], env={"BATON_API_KEY": "two words"}) as c:
                line = pathlib.Path(f"/proc/{c.pid_of('router')}/cmdline").read_text()
                self.assertNotIn("two words", line)
                for key in ("from-file", "two words"):
                    headers = {"Authorization": f"Bearer {key}"}
                    self.assertEqual(c.post("/v1/chat/completions", CHAT, headers=headers).status, 200, key)
                self.assertEqual(c.post("/v1/chat/completions", CHAT, headers={"Authorization": "Bearer # ours"}).status, 401)


@unittest.skipUnless(SMOLLM2.exists(), f"the demo model is not in the cache ({SMOLLM2.name})")
class RealModel(unittest.TestCase):
    def test_it_knows_the_capital_of_france(self):
        with Cluster(SMOLLM2, dummy=False, args=["--served-model-name", "smollm2"]) as c:
            reply = c.post("/v1/chat/completions", {"model": "smollm2", "messages": [{"role": "user", "content": "What is the capital of France?"}],
                                                    "temperature": 0, "max_tokens": 24})
            self.assertEqual(reply.status, 200, reply.body)
            self.assertIn("Paris", reply.json()["choices"][0]["message"]["content"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
