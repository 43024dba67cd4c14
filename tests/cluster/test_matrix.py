"""What works with what: every kind of answer in every arrangement of workers, under load and across a fault. A cell is "same" where the
answers are, byte for byte, those of one worker that is asked one by one. docs/compatibility.md shows the table; it must be this one."""
import json
import os
import random
import re
import threading
import unittest

from harness import ROOT, Cluster, in_parallel
from test_promise_a import TIGHT
from thinking_model import thinking_model
from token_index import Stream, harm

MODEL = "tiny-thinker"
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["city", "days"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}, {"type": "function", "function": {"name": "now"}}]
CALL = '<tool_call>[{]"name": "now", "arguments": [{][}][}]</tool_call>'
MARK = "550"  # the token <tool_call>
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
    "structural tag of formats": chat(response_format={"type": "structural_tag", "format": {"type": "sequence", "elements": [
        {"type": "repeat", "min": 2, "max": 4, "content": {"type": "regex", "pattern": "[a-z]{1,5} "}},
        {"type": "triggered_tags", "triggers": ["a"], "excludes": ["e"], "tags": [
            {"begin": "ab", "content": {"type": "json_schema", "json_schema": {"enum": [1, 2]}}, "end": "c"}]}]}}, ignore_eos=True),
    "forced call": chat(tools=TOOLS, tool_choice="required", max_tokens=200),
    "free calls": chat(tools=TOOLS, guided_regex=f"[a-c]{{3}}{CALL}({CALL})?", max_tokens=200),
    "strict calls": chat(tools=[{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER, "strict": True}}, TOOLS[1]],
                         logit_bias={MARK: 12}, max_tokens=200),
    "thoughts, budget": chat(thinking_token_budget=20, ignore_eos=True, **OPENED),
    "thoughts, call, text": chat(tools=TOOLS, thinking_token_budget=15, guided_regex=f"{CALL} [a-z]{{9}}", max_tokens=200, **OPENED),
    "messages": ("/v1/messages", {"messages": SAID, "max_tokens": 60, "ignore_eos": True, "bad_words": ["e", "a"]}),
    "responses": ("/v1/responses", {"input": SAID[0]["content"], "max_output_tokens": 60, "ignore_eos": True, "presence_penalty": 0.5, "min_p": 0.01}),
    "ollama": ("/api/chat", {"messages": SAID, "options": {"num_predict": 60, "bad_words": ["e", "a"]}}),
}

NEVER_STREAMED = ("best 2 of 4", "beam search")

PAIR = ["--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 4]
OTHER_BLOCKS = ["--prefill.block-size", 64, "--decode.block-size", 16]
WIDTH = ["--reduction-width", 2]  # the same bits on one rank and on two: compared with one worker that sums so (docs/parallel.md)
COLUMNS = {
    "one worker, all at once": [],
    "preempted": TIGHT,
    "P/D shm": [*PAIR, "--transport", "shm"],
    "P/D tcp, other blocks": [*PAIR, "--transport", "tcp", *OTHER_BLOCKS],
    "P/D, TP 2 and 1, other blocks": [*PAIR, *OTHER_BLOCKS, *WIDTH, "--prefill.tensor-parallel-size", 2],
    "P/D, TP 1 and 2": [*PAIR, *WIDTH, "--decode.tensor-parallel-size", 2],
    "a decode worker dies": ["--prefill", 1, "--decode", 2, "--local-prefill-max-tokens", 4],
}
DEATHS = range(0, 61, 5)  # the token of a running stream at which it dies: a sample here, each in bench/soak/matrix.py


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
    return without_times(reply.body)


def without_times(text):
    """An answer's text apart from ids, times and what was cached."""
    text = re.sub(r'"(id|call_id|item_id|request_id|created_at)":"[^"]*"', '""', text)
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


def row_across_a_death(cluster, index, r):
    """All at once, while a decode worker is killed when a stream beside them has had so many tokens."""
    killer = threading.Thread(target=harm, args=(cluster, "kill decode", r))
    beside = Stream(cluster, {"model": MODEL, "prompt": SAID[0]["content"], "max_tokens": 80, "temperature": 0, "ignore_eos": True, "stream": True},
                    lambda count: killer.start() if count >= index and not killer.ident else None)
    if index == 0:
        killer.start()
    streaming = threading.Thread(target=beside.run)
    streaming.start()
    got = row_of(cluster, at_once=True)
    streaming.join()
    assert killer.ident, beside.text
    killer.join()
    cluster.wait_until(lambda: cluster.metric("baton_worker_up") == 3, "the worker is back", 60)
    return got


def differing(want, got, where):
    """The features whose answers differ, which are printed."""
    cases = [case for case in want if got[case] != want[case]]
    for case in cases:
        print(f"{where}: {case}\n  want {want[case]}\n  got  {got[case]}", flush=True)
    return {case[0] for case in cases}


class Matrix(unittest.TestCase):
    def rows(self, column, cluster, seed):
        """[(where, answers)] of a column."""
        if "dies" in column:
            r = random.Random(seed)
            return [(f"{column} at token {index}", row_across_a_death(cluster, index, r)) for index in sorted(r.sample(DEATHS, 2))]
        got = row_of(cluster, at_once=True)
        if "P/D" in column:
            self.assertGreater(cluster.metric("baton_kv_transfer_bytes_total"), 0)
        if column == "preempted":
            cluster.wait_until(lambda: cluster.metric("vllm:num_requests_running") == 0, "the counters are reported")
            self.assertGreater(cluster.metric("vllm:num_preemptions_total"), 0)
        return [(column, got)]

    def test_every_kind_of_answer_in_every_arrangement(self):
        seed = int(os.environ.get("SEED", random.randrange(10**6)))
        print(f"\n    SEED={seed}", flush=True)
        results = {}
        with thinking_model(more=["<tool_call>"]) as model:
            wants = {}
            for flags in ([], WIDTH):
                with Cluster(model, args=flags) as c:
                    wants[bool(flags)] = row_of(c, at_once=False)
                self.assertTrue(all(wants[bool(flags)].values()), wants)
            for column, args in COLUMNS.items():
                want = wants["--reduction-width" in args]
                with Cluster(model, args=args) as c:
                    differ = set().union(*(differing(want, got, where) for where, got in self.rows(column, c, seed)))
                results |= {(feature, column): "DIFFERS" if feature in differ else "same" for feature in FEATURES}
        made = table(results)
        print("\n" + made, flush=True)
        self.assertNotIn("DIFFERS", made)
        shown = (ROOT / "docs" / "compatibility.md").read_text()
        self.assertIn(made, shown, "docs/compatibility.md shows another table")


if __name__ == "__main__":
    unittest.main(verbosity=2)
