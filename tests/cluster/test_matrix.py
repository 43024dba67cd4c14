"""What works with what: every kind of answer in every arrangement of workers, under load and across a fault. A cell is "same" where the
answers are, byte for byte, those of one worker that is asked one by one. docs/compatibility.md shows the table; it must be this one."""
import json
import random
import re
import threading
import unittest

from harness import ROOT, Cluster, in_parallel
from test_promise_a import TIGHT
from thinking_model import thinking_model
from token_index import harm

MODEL = "tiny-thinker"
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["city", "days"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}, {"type": "function", "function": {"name": "now"}}]
CALL = '<tool_call>[{]"name": "now", "arguments": [{][}][}]</tool_call>'
OPENED = {"chat_template_kwargs": {"opened": True}}
SAID = [{"role": "user", "content": "Say something about the quick brown fox that jumps over the lazy dog."}]


def chat(**fields):
    return "/v1/chat/completions", {"messages": SAID, "max_tokens": 60, **fields}


FEATURES = {
    "text, greedy": chat(temperature=0, ignore_eos=True),
    "text, n = 2, logprobs": chat(n=2, logprobs=True, top_logprobs=2, ignore_eos=True),
    "text, penalties, stop": chat(repetition_penalty=1.3, presence_penalty=0.5, stop=["zq"], ignore_eos=True),
    "text, bad words": chat(bad_words=["e", "a", "the"], temperature=1.0, n=2, ignore_eos=True),
    "best 2 of 4": chat(n=2, best_of=4, logprobs=True, ignore_eos=True),
    "beam search": chat(use_beam_search=True, n=2, best_of=4, logprobs=True, top_logprobs=1, ignore_eos=True),
    "regular expression": chat(guided_regex="([a-z]{1,4} ){8}[.]"),
    "JSON Schema": chat(guided_json=WEATHER, max_tokens=200),
    "choice": chat(guided_choice=["one of these", "one of those"], n=2),
    "grammar": chat(guided_grammar="start: (W \" \")* \".\"\nW: /[a-z]{1,8}/"),
    "structural tag": chat(response_format={"type": "structural_tag", "triggers": ["a"], "structures": [
        {"begin": "ab", "schema": {"enum": [1, 2]}, "end": "c"}]}, ignore_eos=True),
    "forced call": chat(tools=TOOLS, tool_choice="required", max_tokens=200),
    "free calls": chat(tools=TOOLS, guided_regex=f"[a-c]{{3}}{CALL}({CALL})?", max_tokens=200),
    "thoughts, budget": chat(thinking_token_budget=20, ignore_eos=True, **OPENED),
    "thoughts, call, text": chat(tools=TOOLS, thinking_token_budget=15, guided_regex=f"{CALL} [a-z]{{9}}", max_tokens=200, **OPENED),
    "messages": ("/v1/messages", {"messages": SAID, "max_tokens": 60, "ignore_eos": True}),
    "responses": ("/v1/responses", {"input": SAID[0]["content"], "max_output_tokens": 60, "ignore_eos": True}),
    "ollama": ("/api/chat", {"messages": SAID, "options": {"num_predict": 60}}),
}

NEVER_STREAMED = ("best 2 of 4", "beam search")

PAIR = ["--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 4]
COLUMNS = {
    "one worker, all at once": [],
    "preempted": TIGHT,
    "P/D shm": [*PAIR, "--transport", "shm"],
    "P/D tcp, other blocks": [*PAIR, "--transport", "tcp", "--prefill.block-size", 64, "--decode.block-size", 16],
    "a decode worker dies": ["--prefill", 1, "--decode", 2, "--local-prefill-max-tokens", 4],
}


def ask(cluster, feature, seed, stream):
    """What a client sees, apart from ids and times."""
    path, fields = FEATURES[feature]
    body = {"model": MODEL, "stream": stream, **fields}
    if path == "/api/chat":
        body["options"] = {**body["options"], "seed": seed}
    else:
        body["seed"] = seed
    reply = cluster.post(path, body)
    assert reply.status == 200, f"{feature}: {reply.body}"
    text = re.sub(r'"(id|call_id|item_id|created_at)":"[^"]*"', '""', reply.body)
    text = re.sub(r'"(created|created_at|total_duration|prompt_eval_duration|eval_duration|cached_tokens|input_tokens|cache_read_input_tokens)":\d+', '""', text)
    return re.sub(r',"(timings|metrics)":[{][^}]*[}]([}])?', lambda m: "" if '"output_token_metrics"' in m[0] else m[2] or "", text)


def cases():
    return [(feature, seed, stream) for feature in FEATURES for seed, stream in ((1, False), (2, feature not in NEVER_STREAMED), (3, False))]


def gathered(text):
    """A stream's pieces may be cut in other places: what they add up to."""
    if "data: " not in text and "\n" not in text.strip():
        return text
    by_choice = {}
    for index, rest in re.findall(r'"choices":\[[{]"index":(\d+)(.*)', text):
        by_choice.setdefault(index, []).append(rest)
    text = "\n".join(line for index in sorted(by_choice) for line in by_choice[index]) or text
    words = re.findall(r'"(?:content|text|delta|arguments|partial_json|reasoning_content|thinking)":"((?:[^"\\]|\\.)*)"', text)
    return "".join(words)


def row_of(cluster, at_once):
    if not at_once:
        return {case: gathered(ask(cluster, *case)) for case in cases()}
    return dict(zip(cases(), in_parallel([lambda c=case: gathered(ask(cluster, *c)) for case in cases()])))


def table(results):
    widths = [max(len(f) for f in FEATURES), *(len(c) for c in COLUMNS)]
    def line(cells):
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths)) + " |"
    lines = [line(["", *COLUMNS]), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
    for feature in FEATURES:
        lines.append(line([feature, *(results[feature, column] for column in COLUMNS)]))
    return "\n".join(lines)


class Matrix(unittest.TestCase):
    def test_every_kind_of_answer_in_every_arrangement(self):
        results = {}
        with thinking_model() as model:
            with Cluster(model) as c:
                want = row_of(c, at_once=False)
            self.assertTrue(all(want.values()), want)
            for column, args in COLUMNS.items():
                with Cluster(model, args=args) as c:
                    harmer = threading.Thread(target=harm, args=(c, "kill decode", random.Random(5)))
                    answers = []
                    asking = threading.Thread(target=lambda: answers.append(row_of(c, at_once=True)))
                    asking.start()
                    if "dies" in column:
                        c.wait_until(lambda: c.metric("vllm:generation_tokens_total") > 50, "answers are under way")
                        harmer.start()
                        harmer.join()
                    asking.join()
                    got = answers[0]
                    if "P/D" in column:
                        self.assertGreater(c.metric("baton_kv_transfer_bytes_total"), 0)
                    if column == "preempted":
                        c.wait_until(lambda: c.metric("vllm:num_requests_running") == 0, "the counters are reported")
                        self.assertGreater(c.metric("vllm:num_preemptions_total"), 0)
                for feature in FEATURES:
                    differ = [case for case in want if case[0] == feature and got[case] != want[case]]
                    results[feature, column] = "same" if not differ else "DIFFERS"
                    for case in differ:
                        print(f"{column}: {case}\n  want {want[case]}\n  got  {got[case]}")
        made = table(results)
        print("\n" + made, flush=True)
        self.assertNotIn("DIFFERS", made)
        shown = (ROOT / "docs" / "compatibility.md").read_text()
        self.assertIn(made, shown, "docs/compatibility.md shows another table")


if __name__ == "__main__":
    unittest.main(verbosity=2)
