#!/usr/bin/env python3
"""Requests that mix what can be asked of an answer at random (grammars of every kind, odd schemas, tools, thoughts, beams, the best of several,
penalties, biases, bad words, logprobs, stops, several choices, every front end), asked one by one of one worker, then all at once of every
arrangement of tests/cluster/test_matrix.py, of one that computes prompts in small parts, and while decode workers die: is any byte another?
By hand: random_mix.py [--seed N] [--requests 120] [--at-once 120] [--deaths 4]."""
import argparse
import concurrent.futures
import json
import pathlib
import random
import re
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "cluster"))
import grpc_call  # noqa: E402
from harness import Cluster  # noqa: E402
from odd_schemas import ODD  # noqa: E402
from test_matrix import COLUMNS, MARK, MODEL, OPENED, SAID, TOOLS, WIDTH, gathered, without_times  # noqa: E402
from thinking_model import thinking_model  # noqa: E402
from token_index import Stream, harm  # noqa: E402

ALL = {**COLUMNS, "small parts": ["--max-num-batched-tokens", 16, "--threads", 3]}
GRPC, BUSY = "gRPC", 429
WORDS = "the quick brown fox jumps over a lazy dog while seven wizards quiz Jack about boxing".split()


def says(r):
    return " ".join(r.choice(WORDS) for _ in range(r.choice([3, 9, 40, 80])))


def grammar(r):
    """Fields of one kind of grammar."""
    word = r.choice(WORDS)
    return r.choice([
        lambda: {"guided_regex": r.choice([f"({word}|[a-z]{{2,5}} ){{2,6}}\\.", "[0-9]{3}-[0-9]{4}", "(yes|no|perhaps)( [a-z]+){0,4}!"])},
        lambda: {"guided_choice": r.sample(WORDS, 4)},
        lambda: {"guided_json": r.choice(ODD)(r)},
        lambda: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": r.choice(ODD)(r)}}},
        lambda: {"response_format": {"type": "json_object"}},
        lambda: {"structured_outputs": {"json": r.choice(ODD)(r), **r.choice([{"disable_any_whitespace": True}, {"whitespace_pattern": "[ \\n]{0,3}"}, {"whitespace_pattern": "\\s*"}])}},
        lambda: {"structured_outputs": {"json_object": True}},
        lambda: {"guided_grammar": f'start: (W " ")+ "."\nW: /[a-{word[0]}z]{{1,6}}/'},
        lambda: {"guided_grammar": f'root ::= "{word}" ("," [a-z]+){{1,4}}'},
        lambda: {"structured_outputs": {"structural_tag": {"type": "structural_tag", "triggers": ["a"], "structures": [{"begin": "ab", "schema": r.choice(ODD)(r), "end": "c"}]}}},
    ])()


def functions(r, path):
    """Fields of functions that the answer may call, or must, as the API has them."""
    strict = {"strict": True} if r.random() < 0.5 else {}
    called = [{**tool["function"], "parameters": tool["function"].get("parameters", {"type": "object", "additionalProperties": False})} for tool in TOOLS]
    drawn = {"logit_bias": {MARK: 12}} if r.random() < 0.6 else {}
    if path == "/v1/messages":
        choice = r.choice([{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "get_weather"}, {"type": "auto", "disable_parallel_tool_use": True}])
        return drawn | {"tools": [{"name": one["name"], "input_schema": one["parameters"], **strict} for one in called], "tool_choice": choice}
    if path == "/v1/responses":
        choice = r.choice(["auto", "required", {"type": "function", "name": "get_weather"}])
        return drawn | {"tools": [{"type": "function", **one, **strict} for one in called], "tool_choice": choice, "parallel_tool_calls": r.random() < 0.7}
    choice = r.choice(["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
    return drawn | {"tools": [{"type": "function", "function": {**one, **strict}} for one in called], "tool_choice": choice}


def formed(r, path):
    """The API's own field for a schema."""
    schema = r.choice(ODD)(r)
    if path == "/v1/messages":
        return {"output_format": {"type": "json_schema", "schema": schema}}
    if path == "/v1/responses":
        return {"text": {"format": r.choice([{"type": "json_schema", "name": "x", "schema": schema}, {"type": "json_object"}])}}
    return {"format": schema if isinstance(schema, dict) else "json"}


def drawing(r):
    """Fields of how tokens are drawn, some of them."""
    some = {
        "temperature": r.choice([0, 0.3, 1.0, 1.7]), "top_p": r.choice([0.5, 0.95]), "top_k": r.choice([1, 5, 50]), "min_p": 0.05,
        "repetition_penalty": r.choice([0.8, 1.3]), "presence_penalty": r.choice([-1, 0.7]), "frequency_penalty": r.choice([-0.5, 0.9]),
        "logit_bias": {str(r.randrange(300)): r.choice([-100, 5, 20]) for _ in range(4)}, "min_tokens": r.choice([1, 12]),
        "bad_words": r.sample(["e", "a", "the", "zq", " x", "0", "\""], 2), "stop": r.sample(["zq", "e", "}", ".", "ab"], r.choice([1, 2])),
        "ignore_eos": True, "include_stop_str_in_output": True, "stop_token_ids": [r.randrange(300)],
    }
    return {key: some[key] for key in r.sample(list(some), r.randint(0, 6))}


def case(r):
    """(path, body) of one request."""
    seed, tokens = r.randrange(2**40), r.choice([1, 2, 17, 60, 130])
    fields = {"max_tokens": tokens, **drawing(r)}
    path = r.choice(["/v1/chat/completions"] * 4 + ["/v1/completions"] * 2 + ["/v1/messages", "/v1/responses", "/api/chat", "/api/generate", GRPC])
    if path == GRPC:
        return path, of_grpc(r, seed, tokens)
    structured = r.random() < 0.5
    if structured:
        fields |= grammar(r)
    if path.endswith("completions"):
        chat = path == "/v1/chat/completions"
        fields["n"] = r.choice([1, 1, 2, 4])
        fields |= r.choice([{}, {"best_of": fields["n"] + 2}, {}, {}])
        if r.random() < 0.4:
            fields |= {"logprobs": True, "top_logprobs": r.choice([0, 3, 20])} if chat else {"logprobs": r.choice([0, 1, 5])}
        if r.random() < 0.3:
            fields["return_token_ids"] = True
        if chat and r.random() < 0.3:
            fields |= {"tools": TOOLS, "tool_choice": r.choice(["auto", "none"] if structured else ["auto", "required", {"type": "function", "function": {"name": "now"}}])}
            if r.random() < 0.5:
                fields["logit_bias"] = {MARK: 12}
        if chat and r.random() < 0.3:
            fields |= {"thinking_token_budget": r.choice([0, 7, 30]), **OPENED, "include_reasoning": r.random() < 0.7}
        if r.random() < 0.1:
            fields |= {"truncate_prompt_tokens": r.choice([3, 20]), "truncation_side": r.choice(["left", "right"])}
        if r.random() < 0.2:
            fields = {"use_beam_search": True, "n": r.choice([1, 2]), "best_of": r.choice([2, 4]), "max_tokens": tokens, "length_penalty": r.choice([0, 1, 1.5]),
                      "early_stopping": r.choice([True, False])} | {key: fields[key] for key in ("stop_token_ids", "ignore_eos", "min_tokens", "logprobs") if key in fields}
        if fields.get("best_of", 0) <= fields["n"] and not fields.get("use_beam_search"):
            fields["stream"] = r.random() < 0.5
        return path, {"model": MODEL, "seed": seed, **({"messages": said(r)} if chat else {"prompt": says(r)}), **fields}
    fields.pop("stop", None)
    if not structured and r.random() < 0.6:
        fields |= r.choice([functions, formed])(r, path) if path != "/api/generate" else formed(r, path)
    if path == "/v1/messages":
        return path, {"model": MODEL, "messages": said(r), "seed": seed, "stream": r.random() < 0.5, **fields}
    if path == "/v1/responses":
        return path, {"model": MODEL, "input": says(r), "seed": seed, "stream": r.random() < 0.5, **fields, "max_output_tokens": fields.pop("max_tokens")}
    asked = {"prompt": says(r)} if path == "/api/generate" else {"messages": said(r)}
    if r.random() < 0.3:
        asked |= {"logprobs": True, "top_logprobs": 2, "think": r.random() < 0.5}
    asked |= {key: fields.pop(key) for key in ("format", "tools", "tool_choice") if key in fields}
    return path, {"model": MODEL, **asked, "stream": r.random() < 0.5, "options": {**fields, "num_predict": fields.pop("max_tokens"), "seed": seed}}


def of_grpc(r, seed, tokens):
    """The fields of a message, as grpc_call has them."""
    sampling = [(1, r.choice([0.0, 1.0])), (11, int(r.random() < 0.5)), (12, r.choice([0, 9])), (13, tokens), (14, seed), (15, r.choice([1, 2])), (16, r.choice([0, 2])), (5, r.choice([1.0, 1.3]))]
    if r.random() < 0.6:
        kind, text = r.choice([(2, "([a-z]{2,5} ){2,6}[.]"), (1, json.dumps(r.choice(ODD)(r))), (3, 'start: (W " ")+ "."\nW: /[a-z]{1,6}/'), (4, json.dumps(WORDS[:5]))])
        sampling.append((18, (grpc_call.field(1, kind) + grpc_call.field(2, text)).hex()))
    return {"sampling": sampling, "text": says(r), "stop": r.choice([[], ["e"], ["zq", "."]]), "kept": r.choice([None, None, 5, -1])}


def ask_grpc(cluster, body):
    """(status, what came of each choice)."""
    sampling = b"".join(grpc_call.field(number, bytes.fromhex(value) if isinstance(value, str) else value) for number, value in body["sampling"])
    message = grpc_call.field(2, body["text"]) + grpc_call.field(6, sampling) + b"".join(grpc_call.field(7, stop) for stop in body["stop"]) + grpc_call.field(13, 1)
    if body["kept"] is not None:
        message += grpc_call.field(16, body["kept"] % 2**64)
    code, said, chunks = grpc_call.answers(cluster.grpc, "/baton.v1.Generation/Generate", message, 120)
    choices = {}
    for chunk in chunks:
        text, ids, logprobs, end = choices.setdefault(chunk.get(2, [0])[0], ["", [], [], []])
        choices[chunk.get(2, [0])[0]][0] = text + b"".join(chunk.get(3, [])).decode()
        ids += grpc_call.ints(chunk.get(4, []))
        logprobs += [one.hex() for one in chunk.get(5, [])]
        end += [(number, str(value)) for number in (7, 8, 9, 13) for value in chunk.get(number, [])]
    return {"OK": 200, "INVALID_ARGUMENT": 400, "RESOURCE_EXHAUSTED": BUSY}.get(code, 500), json.dumps([code, said, sorted(choices.items())])


def said(r):
    return SAID if r.random() < 0.2 else [{"role": "user", "content": says(r)}]


def ask(cluster, path, body):
    """As a client does that is told to come again: a machine that is full of these may have no time for a grammar."""
    while (got := ask_once(cluster, path, body))[0] == BUSY:
        time.sleep(1)
    return got


def at_once(cluster, cases, most):
    with concurrent.futures.ThreadPoolExecutor(most) as pool:
        return list(pool.map(lambda one: ask(cluster, *one), cases))


def ask_once(cluster, path, body):
    if path == GRPC:
        return ask_grpc(cluster, body)
    reply = cluster.post(path, body)
    return reply.status, gathered(without_times(reply.body)) if reply.status == 200 else without_times(reply.body)


def across_a_death(c, cases, most, index, r):
    killer = threading.Thread(target=harm, args=(c, "kill decode", r))
    beside = Stream(c, {"model": MODEL, "prompt": SAID[0]["content"], "max_tokens": 80, "temperature": 0, "ignore_eos": True, "stream": True},
                    lambda count: killer.start() if count >= index and not killer.ident else None)
    streaming = threading.Thread(target=beside.run)
    streaming.start()
    got = at_once(c, cases, most)
    streaming.join()
    if killer.ident:
        killer.join()
    c.wait_until(lambda: c.metric("baton_worker_up") == 3, "the worker is back", 60)
    return got


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--at-once", type=int, default=120)
    parser.add_argument("--deaths", type=int, default=4)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    r = random.Random(options.seed)
    cases = [case(r) for _ in range(options.requests)]
    failed = 0

    def compare(want, got, where):
        nonlocal failed
        wrong = [i for i in range(len(want)) if want[i] != got[i] or got[i][0] >= 500]
        for i in wrong:
            print(f"{where}: {cases[i][0]} {json.dumps(cases[i][1])}\n  want {want[i]}\n  got  {got[i]}", flush=True)
        failed += len(wrong)
        print(f"{where}: {len(want)} answers, {len(wrong)} differ", flush=True)

    with thinking_model(more=["<tool_call>"]) as model:
        wants = {}
        for flags in ([], WIDTH):
            with Cluster(model, args=flags) as c:
                wants[bool(flags)] = [ask(c, *one) for one in cases]
        for reply in sorted({re.sub(r"\d+", "N", text)[:160] for status, text in wants[False] if status != 200}):
            print(f"refused: {reply}")
        print(f"{sum(status == 200 for status, _ in wants[False])} of {len(cases)} are served", flush=True)
        for column, args in ALL.items():
            want = wants["--reduction-width" in args]
            with Cluster(model, args=args) as c:
                if "dies" in column:
                    for _ in range(options.deaths):
                        index = r.randrange(60)
                        compare(want, across_a_death(c, cases, options.at_once, index, r), f"{column} at token {index}")
                else:
                    compare(want, at_once(c, cases, options.at_once), column)
    print(f"{failed} differ" if failed else "all the same bytes")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
