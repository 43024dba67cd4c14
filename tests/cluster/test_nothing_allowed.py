"""Where grammar, allowed_token_ids, bad_words and min_tokens together leave no token, every front end says so, whole and streamed, and the
same on one worker and handed over: an answer that ends so is none that its model has ended."""
import json
import unittest

from harness import Cluster, events
from test_apis import named_events

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


class OneWorker(NothingAllowed, unittest.TestCase):
    arrangement = "one worker"


class HandedOver(NothingAllowed, unittest.TestCase):
    arrangement = "handed over"


if __name__ == "__main__":
    unittest.main(verbosity=2)
