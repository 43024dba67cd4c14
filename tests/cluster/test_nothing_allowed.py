"""Where grammar, allowed_token_ids, bad_words and min_tokens together leave no token, every front end says so, whole and streamed, and the
same on one worker and handed over: an answer that ends so is none that its model has ended."""
import json
import random
import threading
import unittest

from harness import Cluster, events, in_parallel
from test_apis import named_events
from test_promise_a import TIGHT
from token_index import Stream, harm

MODEL = "tiny-llama"
SAID = [{"role": "user", "content": "Say something long enough that it is handed over."}]
WHY = "nothing_allowed"
ARRANGEMENTS = {"one worker": [], "handed over": ["--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 4]}


class NothingAllowed:
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster(args=ARRANGEMENTS[cls.arrangement]).__enter__()
        cls.a, cls.b = ([cls.one_token(letter) for letter in "ab"])
        # Of "ab" only the "a": the grammar leaves nothing that is allowed behind it.
        cls.second = {"guided_choice": ["ab"], "allowed_token_ids": [cls.a]}
        # The grammar begins with what is not allowed.
        cls.first = {"guided_choice": ["ab"], "allowed_token_ids": [cls.b]}

    @classmethod
    def tearDownClass(cls):
        if cls.arrangement != "one worker":
            assert cls.c.metric("baton_kv_transfer_bytes_total") > 0, "nothing was handed over"
        cls.c.__exit__(None, None, None)

    @classmethod
    def one_token(cls, text):
        tokens = cls.c.post("/tokenize", {"model": MODEL, "prompt": text, "add_special_tokens": False}).json()["tokens"]
        assert len(tokens) == 1, tokens
        return tokens[0]

    def post(self, path, body):
        reply = self.c.post(path, {"model": MODEL, **body})
        self.assertEqual(reply.status, 200, reply.body)
        return reply

    def test_chats_and_text_completions(self):
        for path, asked in (("/v1/chat/completions", {"messages": SAID}), ("/v1/completions", {"prompt": SAID[0]["content"]})):
            for fields, text in ((self.second, "a"), (self.first, "")):
                body = {**asked, **fields, "n": 2, "max_tokens": 20}
                whole = self.post(path, body).json()
                for choice in whole["choices"]:
                    said = choice["message"]["content"] if "message" in choice else choice["text"]
                    self.assertEqual((said, choice["finish_reason"], choice["stop_reason"]), (text, "stop", WHY), whole)
                self.assertEqual(whole["usage"]["completion_tokens"], 2 * len(text), whole)
                texts, ends = ["", ""], [None, None]
                for event in events(self.post(path, {**body, "stream": True}).body)[:-1]:
                    for choice in json.loads(event)["choices"]:
                        texts[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
                        if choice["finish_reason"]:
                            ends[choice["index"]] = choice["finish_reason"], choice["stop_reason"]
                self.assertEqual((texts, ends), ([text] * 2, [("stop", WHY)] * 2))

    def test_a_text_that_is_whole_ends_as_ever(self):
        for fields in ({"guided_choice": ["ab"], "min_tokens": 30}, {"guided_choice": ["ab"], "ignore_eos": True}, {"guided_choice": ["ab"], "stop": ["b"]}):
            choice = self.post("/v1/completions", {"prompt": SAID[0]["content"], "max_tokens": 40, **fields}).json()["choices"][0]
            self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", fields.get("stop", [None])[0]), choice)

    def test_without_a_grammar(self):
        choice = self.post("/v1/completions", {"prompt": SAID[0]["content"], "max_tokens": 9, "allowed_token_ids": [self.a], "bad_words": ["aaa"]}).json()["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"], choice["stop_reason"]), ("aa", "stop", WHY))

    def test_the_best_of_several(self):
        body = {"prompt": SAID[0]["content"], "max_tokens": 9, **self.second, "n": 1, "best_of": 3}
        choice = self.post("/v1/completions", body).json()["choices"][0]
        self.assertEqual((choice["text"], choice["stop_reason"]), ("a", WHY))

    def test_a_call_that_cannot_go_on_is_no_whole_call(self):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
        body = {"messages": SAID, "tools": tools, "tool_choice": "required", "max_tokens": 40, "bad_words": ["name"]}
        choice = self.post("/v1/chat/completions", body).json()["choices"][0]
        self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", WHY), choice)

    def test_messages(self):
        body = {"messages": SAID, "max_tokens": 20, **self.second}
        whole = self.post("/v1/messages", body).json()
        want = ("end_turn", None, WHY)
        self.assertEqual((whole["stop_reason"], whole["stop_sequence"], whole["stop_cause"]), want, whole)
        delta = named_events(self.post("/v1/messages", {**body, "stream": True}).body)[-2][1]["delta"]
        self.assertEqual((delta["stop_reason"], delta["stop_sequence"], delta["stop_cause"]), want)
        ended = self.post("/v1/messages", {"messages": SAID, "max_tokens": 20, "guided_choice": ["ab"]}).json()
        self.assertNotIn("stop_cause", ended)

    def test_responses(self):
        body = {"input": SAID[0]["content"], "max_output_tokens": 20, **self.second}
        whole = self.post("/v1/responses", body).json()
        self.assertEqual((whole["status"], whole["incomplete_details"]), ("incomplete", {"reason": WHY}), whole)
        name, data = named_events(self.post("/v1/responses", {**body, "stream": True}).body)[-1]
        self.assertEqual((name, data["response"]["incomplete_details"]), ("response.incomplete", {"reason": WHY}))

    def test_ollama(self):
        for path, asked in (("/api/chat", {"messages": SAID}), ("/api/generate", {"prompt": SAID[0]["content"]})):
            body = {**asked, "options": {"num_predict": 20, **self.second}}
            self.assertEqual(self.post(path, {**body, "stream": False}).json()["done_reason"], WHY)
            self.assertEqual(json.loads(self.post(path, body).body.strip().split("\n")[-1])["done_reason"], WHY)

    def test_beams_do_not_take_what_could_leave_nothing(self):
        for field, value in (("allowed_token_ids", [self.a]), ("bad_words", ["a"]), ("guided_choice", ["ab"])):
            reply = self.c.post("/v1/completions", {"model": MODEL, "prompt": "x", "use_beam_search": True, "best_of": 2, field: value})
            self.assertEqual(reply.status, 400, reply.body)
            self.assertIn(field, reply.json()["error"]["message"])


class BehindFaults(unittest.TestCase):
    """Answers that come to where nothing is allowed after many tokens, and to there again after a preemption or on another worker."""

    def bodies(self, cluster, tokens):
        (a,) = cluster.post("/tokenize", {"model": MODEL, "prompt": "a", "add_special_tokens": False}).json()["tokens"]
        prompt = SAID[0]["content"]
        # Behind the last "a" only a "b" could follow, which is not allowed.
        return [{"model": MODEL, "prompt": f"{i} {prompt}", "max_tokens": 400, "seed": i, "n": 1 + i % 2, "allowed_token_ids": [a], "logprobs": 1,
                 "guided_regex": f"a{{{length}}}b"} for i, length in enumerate(tokens)]

    def check(self, whole, body):
        length = int(body["guided_regex"][2:-2])
        for choice in whole["choices"]:
            self.assertEqual((choice["text"], choice["finish_reason"], choice["stop_reason"]), ("a" * length, "stop", WHY), choice)
            self.assertEqual(len(choice["logprobs"]["tokens"]), length)
        self.assertEqual(len(whole["choices"]), body["n"])

    def test_preempted(self):
        with Cluster(args=TIGHT) as c:
            bodies = self.bodies(c, range(150, 246, 4))
            for body, reply in zip(bodies, in_parallel([lambda body=body: c.post("/v1/completions", body) for body in bodies])):
                self.assertEqual(reply.status, 200, reply.body)
                self.check(reply.json(), body)
            c.wait_until(lambda: c.metric("vllm:num_requests_running") == 0, "the counters are reported")
            self.assertGreater(c.metric("vllm:num_preemptions_total"), 0)

    def test_a_decode_worker_dies(self):
        with Cluster(args=["--prefill", 1, "--decode", 2, "--local-prefill-max-tokens", 4]) as c:
            for index in (1, 20, 39, 40):
                bodies = self.bodies(c, [40, 41, 42, 60, 80, 99])
                killer = threading.Thread(target=harm, args=(c, "kill decode", random.Random(index)))
                beside = Stream(c, {**bodies[0], "stream": True}, lambda count: killer.start() if count >= index and not killer.ident else None)
                streaming = threading.Thread(target=beside.run)
                streaming.start()
                for body, reply in zip(bodies, in_parallel([lambda body=body: c.post("/v1/completions", body) for body in bodies])):
                    self.assertEqual(reply.status, 200, reply.body)
                    self.check(reply.json(), body)
                streaming.join()
                self.assertTrue(killer.ident, beside.text)
                killer.join()
                pieces = [json.loads(event)["choices"][0] for event in events(beside.text)[:-1]]
                self.assertEqual(("".join(piece["text"] for piece in pieces), pieces[-1]["finish_reason"], pieces[-1]["stop_reason"]), ("a" * 40, "stop", WHY), index)
                c.wait_until(lambda: c.metric("baton_worker_up") == 3, "the worker is back", 60)


class OneWorker(NothingAllowed, unittest.TestCase):
    arrangement = "one worker"


class HandedOver(NothingAllowed, unittest.TestCase):
    arrangement = "handed over"


if __name__ == "__main__":
    unittest.main(verbosity=2)
