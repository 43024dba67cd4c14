"""Thoughts before an answer: apart from it whole and streamed, counted, bounded, and the same bytes however they are computed."""
import json
import re
import threading
import random
import unittest

from harness import Cluster, events, in_parallel
from thinking_model import thinking_model
from token_index import harm

CALL = '<tool_call>[{]"name": "now", "arguments": [{][}][}]</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "now"}}]
CLOSE = 549  # the token </think>


def chat(cluster, **fields):
    body = {"model": "tiny-thinker", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200, "seed": 1, **fields}
    reply = cluster.post("/v1/chat/completions", body)
    assert reply.status == 200, reply.body
    return reply


def counted(usage):
    """What does not depend on what came before."""
    return {name: count for name, count in usage.items() if name != "prompt_tokens_details"}


def seen(reply):
    """[thoughts, content, names of calls, end] of each choice, and usage; of a stream or a whole answer."""
    if not reply.body.startswith("data: "):
        body = reply.json()
        return [[c["message"].get("reasoning_content", ""), c["message"]["content"] or "",
                 [call["function"]["name"] for call in c["message"].get("tool_calls", [])], c["finish_reason"]]
                for c in body["choices"]], counted(body["usage"])
    got, usage = {}, None
    for event in events(reply.body):
        chunk = json.loads(event) if event != "[DONE]" else {"choices": []}
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            mine = got.setdefault(choice["index"], ["", "", [], None])
            delta = choice["delta"]
            assert delta.get("reasoning_content") == delta.get("reasoning"), delta
            mine[0] += delta.get("reasoning_content") or ""
            mine[1] += delta.get("content") or ""
            mine[2] += [call["function"]["name"] for call in delta.get("tool_calls", []) if "id" in call]
            mine[3] = choice["finish_reason"] or mine[3]
    return [got[i] for i in sorted(got)], counted(usage)


class Reasoning(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = thinking_model()
        cls.c = Cluster(cls.model.__enter__()).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.c.__exit__(None, None, None)
        cls.model.__exit__(None, None, None)

    def both(self, **fields):
        """Whole and streamed; they must be the same."""
        whole, usage = seen(chat(self.c, **fields))
        streamed, streamed_usage = seen(chat(self.c, **fields, stream=True, stream_options={"include_usage": True}))
        self.assertEqual((streamed, streamed_usage), (whole, usage))
        return whole, usage

    def test_thoughts_a_call_and_text_in_one_answer(self):
        """The thoughts are held to a budget, the answer behind them to a regular expression: so the model writes all three."""
        for seed in range(4):
            (choice,), usage = self.both(seed=seed, tools=TOOLS, thinking_token_budget=20, guided_regex=f"{CALL} So be it\\.",
                                         chat_template_kwargs={"opened": True})
            self.assertEqual(choice[1:], ["So be it.", ["now"], "tool_calls"], choice)
            self.assertNotIn("think>", choice[0])
            thoughts = usage["completion_tokens_details"]["reasoning_tokens"]
            self.assertGreaterEqual(self.c.metric("baton_thought_tokens_total"), thoughts)
            self.assertTrue(1 <= thoughts <= 21, usage)
            self.assertLess(thoughts, usage["completion_tokens"])

    def test_a_budget_ends_thoughts_and_the_answer_goes_on(self):
        for budget in (0, 1, 7, 50):
            (first, second), usage = self.both(thinking_token_budget=budget, n=2, max_tokens=80, ignore_eos=True,
                                               chat_template_kwargs={"opened": True}, logit_bias={str(CLOSE): -100})
            self.assertEqual(usage["completion_tokens_details"]["reasoning_tokens"], 2 * (budget + 1), "and the tag that ends them")
            self.assertTrue(first[1] and second[1], (first, second))
            self.assertEqual(bool(first[0]), budget > 1 or bool(first[0]), first)
        free = {"max_tokens": 40, "chat_template_kwargs": {"opened": True}, "ignore_eos": True}
        self.assertEqual(self.both(**free, thinking_token_budget=-1), self.both(**free), "-1 is none")
        refused = self.c.post("/v1/chat/completions", {"model": "tiny-thinker", "messages": [{"role": "user", "content": "Hi"}],
                                                       "thinking_token_budget": -2})
        self.assertEqual((refused.status, refused.json()["error"]["param"]), (400, "thinking_token_budget"), refused.body)

    def test_a_schema_is_of_what_follows_the_thoughts(self):
        schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
        for fields in ({"guided_json": schema}, {"guided_choice": ["yes", "no/maybe"]}, {"guided_regex": "[ab]{3}/c"},
                       {"tools": TOOLS, "tool_choice": "required"}):
            for more in ({"chat_template_kwargs": {"opened": True}}, {}):
                (choice,), _ = self.both(**fields, **more, thinking_token_budget=10, logit_bias={str(CLOSE): -2})
                if "guided_json" in fields:
                    self.assertIn(json.loads(choice[1]), ({"a": 1}, {"a": 2}))
                elif "guided_choice" in fields:
                    self.assertIn(choice[1], fields["guided_choice"])
                elif "guided_regex" in fields:
                    self.assertTrue(re.fullmatch("[ab]{3}/c", choice[1]), choice)
                else:
                    self.assertEqual(choice[1:], ["", ["now"], "tool_calls"])

    def test_where_the_prompt_has_closed_them_there_are_none(self):
        for seed in range(6):  # a model may open others, unless a grammar says what comes
            (choice,), usage = self.both(seed=seed, guided_regex="[ab]{3}", chat_template_kwargs={"enable_thinking": False},
                                         logit_bias={str(CLOSE - 1): 20})
            self.assertTrue(re.fullmatch("[ab]{3}", choice[1]), choice)
            self.assertEqual((choice[0], usage["completion_tokens_details"]["reasoning_tokens"]), ("", 0))

    def test_they_can_be_left_out(self):
        fields = {"thinking_token_budget": 20, "max_tokens": 60, "chat_template_kwargs": {"opened": True}}
        (full,), usage = self.both(**fields)
        (short,), same = self.both(**fields, include_reasoning=False)
        self.assertEqual((short, same), (["", *full[1:]], usage))

    def tokens(self, **fields):
        """[token ids, tokens of logprobs] of each choice; a stream says the same."""
        fields = {"return_token_ids": True, "logprobs": True, "top_logprobs": 1, **fields}
        whole = [[c["token_ids"], [p["token"] for p in (c["logprobs"] or {"content": []})["content"]]] for c in chat(self.c, **fields).json()["choices"]]
        if "best_of" in fields:  # never streamed
            return whole
        streamed = [[[], []] for _ in whole]
        for event in events(chat(self.c, **fields, stream=True).body)[:-1]:
            for choice in json.loads(event)["choices"]:
                streamed[choice["index"]][0] += choice.get("token_ids") or []
                streamed[choice["index"]][1] += [p["token"] for p in (choice["logprobs"] or {"content": []})["content"]]
        self.assertEqual(streamed, whole)
        return whole

    def test_what_is_left_out_is_in_no_list_of_tokens(self):
        for more in ({"chat_template_kwargs": {"opened": True}}, {"n": 3, "logit_bias": {str(CLOSE - 1): 15}}, {"n": 2, "best_of": 3},
                     {"stop": ["e"]}, {"logit_bias": {str(CLOSE): -100}, "ignore_eos": True, "chat_template_kwargs": {"opened": True}}):
            fields = {"max_tokens": 40, **more} if "ignore_eos" in more else {"thinking_token_budget": 9, "max_tokens": 40, **more}
            for full, left in zip(self.tokens(**fields), self.tokens(**fields, include_reasoning=False)):
                thinks = "chat_template_kwargs" in more or full[0][0] == CLOSE - 1
                thoughts = 0 if not thinks else full[0].index(CLOSE) + 1 if CLOSE in full[0] else len(full[0])
                self.assertEqual(left, [part[thoughts:] for part in full], more)
                self.assertEqual(len(full[0]), len(full[1]))
        options = {"num_predict": 40, "thinking_token_budget": 9, "seed": 3, "logit_bias": {str(CLOSE - 1): 15}}
        body = {"model": "tiny-thinker", "messages": [{"role": "user", "content": "Hi"}], "stream": False, "logprobs": True, "options": options}
        shown = [p["token"] for p in self.c.post("/api/chat", {**body, "think": True}).json()["logprobs"]]
        hidden = self.c.post("/api/chat", {**body, "think": False}).json()
        self.assertNotIn("</think>", [p["token"] for p in hidden.get("logprobs", [])])
        self.assertIn("</think>", shown)

    def test_thoughts_of_earlier_turns_reach_the_template(self):
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "yes", "reasoning_content": "hm"}, {"role": "user", "content": "So"}]
        ids = self.c.post("/tokenize", {"model": "tiny-thinker", "messages": messages}).json()["tokens"]
        self.assertIn("<think>hm</think>yes", self.c.post("/detokenize", {"model": "tiny-thinker", "tokens": ids}).json()["prompt"])

    def test_the_same_bytes_handed_over_at_once_and_after_a_kill(self):
        bodies = [{"seed": i, "thinking_token_budget": 5 + i, "guided_regex": f"([a-z]{{1,4}} ){{12}}{CALL}", "tools": TOOLS, "n": 1 + i % 2,
                   "chat_template_kwargs": {"opened": i % 3 > 0}, "stream": True, "stream_options": {"include_usage": True}} for i in range(8)]
        want = [seen(chat(self.c, **body)) for body in bodies]
        with thinking_model() as model, Cluster(model, args=["--prefill", 1, "--decode", 2, "--local-prefill-max-tokens", 4]) as c:
            self.assertEqual(in_parallel([lambda b=b: seen(chat(c, **b)) for b in bodies]), want)
            self.assertGreater(c.metric("baton_kv_transfer_bytes_total"), 0)
            harmer = threading.Thread(target=harm, args=(c, "kill decode", random.Random(3)))
            answers = threading.Thread(target=lambda: got.extend(in_parallel([lambda b=b: seen(chat(c, **b)) for b in bodies])))
            got = []
            answers.start()
            harmer.start()
            answers.join()
            harmer.join()
            self.assertEqual(got, want)


class Untagged(unittest.TestCase):
    def test_an_answer_begins_in_thoughts_where_the_flag_says_so(self):
        fields = {"guided_regex": "first</think>then", "max_tokens": 100}
        with thinking_model() as model:
            for parser, want in (("deepseek_r1", None), ("none", ["", "first</think>then", [], "stop"])):
                with Cluster(model, args=["--reasoning-parser", parser]) as c:
                    if want:
                        (choice,), usage = seen(chat(c, **fields))
                        self.assertEqual(choice, want)
                        self.assertNotIn("completion_tokens_details", usage)
                    else:
                        (choice,), usage = seen(chat(c, thinking_token_budget=9, max_tokens=40, logit_bias={str(CLOSE): -100}, ignore_eos=True))
                        self.assertEqual(usage["completion_tokens_details"]["reasoning_tokens"], 10)
                        self.assertTrue(choice[0] and choice[1], choice)


if __name__ == "__main__":
    unittest.main(verbosity=2)
