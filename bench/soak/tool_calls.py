#!/usr/bin/env python3
"""Calls of functions with odd schemas in the form of every family, forced, named, strict and free: do the pieces of a stream add up to the
whole answer, do the arguments fit the function's schema (jsonschema_rs, not ours), has every call an id of its own, is a cut answer cut the
same way, and does the conversation go on behind them? By hand: tool_calls.py [--seed N] [--requests 60] [--disaggregated]."""
import argparse
import json
import pathlib
import random
import sys

import jsonschema_rs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "cluster"))
from harness import Cluster, in_parallel  # noqa: E402
from odd_schemas import ODD, OPEN  # noqa: E402
from streamed_calls import streamed  # noqa: E402
from test_tools import FAMILIES  # noqa: E402
from thinking_model import thinking_model  # noqa: E402

NAMES = ["f", "get_weather", "lookup-2", "a1_b2", "x" * 64]


def parameters(r):
    made = [r.choice(ODD)(r) for _ in range(r.randint(0, 3))]
    names = r.sample(["city", "q", "\u00fcber", "a b", "x-y", "quote\"d", "from", "n", "class"], len(made))
    for i, schema in enumerate(made):
        # What a schema defines stands at the top.
        if "$defs" in schema or "$ref" in schema:
            made[i] = {"type": "integer", "minimum": 0, "maximum": 9}
    return {"type": "object", "properties": dict(zip(names, made)), "required": r.sample(names, r.randint(0, len(names))), **OPEN}


def tools(r):
    chosen = r.sample(NAMES, r.randint(1, 3))
    made = []
    for name in chosen:
        function = {"name": name, "description": "A function."}
        if r.random() < 0.9:
            function["parameters"] = parameters(r)
        function["strict"] = True
        made.append({"type": "function", "function": function})
    return made


def case(r, marks):
    offered = tools(r)
    body = {"model": "tiny-thinker", "messages": [{"role": "user", "content": r.choice(["Hi", "Call it.", "\u00fc?"])}], "tools": offered, "seed": r.randrange(2**32),
            "max_tokens": r.choice([15, 40, 300, 300, 300]), "n": r.choice([1, 1, 2]), "temperature": r.choice([0.5, 1.0])}
    choice = r.choice(["auto", "auto", "required", "required", "named"])
    if choice == "named":
        body["tool_choice"] = {"type": "function", "function": {"name": r.choice(offered)["function"]["name"]}}
    else:
        body["tool_choice"] = choice
    if choice == "auto" and marks:
        body["logit_bias"] = {str(550 + i): 12 for i in range(len(marks))}
    if r.random() < 0.3:
        body["parallel_tool_calls"] = False
    if r.random() < 0.2:
        body["stop"] = ["zq", "\u00fc"]
    return body


def faults_of(body, whole, pieces, ids):
    """What is wrong with an answer, in words; its ids are added to `ids`."""
    schemas = {t["function"]["name"]: t["function"].get("parameters", {}) for t in body["tools"]}
    for choice in whole["choices"]:
        message, end = choice["message"], choice["finish_reason"]
        calls = message.get("tool_calls") or []
        content, got, streamed_end = pieces[choice["index"]]
        if (content, streamed_end) != (message["content"] or "", end):
            yield f"streamed {content!r}, {streamed_end}; whole {message['content']!r}, {end}"
        flat = [(c["function"]["name"], c["function"]["arguments"]) for c in calls]
        if flat != [tuple(one[1:]) for _, one in sorted(got.items())]:
            yield f"streamed calls {got}, whole {flat}"
        ids += [c["id"] for c in calls] + [one[0] for one in got.values()]
        if body.get("parallel_tool_calls") is False and len(calls) > 1:
            yield f"{len(calls)} calls"
        if isinstance(body["tool_choice"], dict) and any(name != body["tool_choice"]["function"]["name"] for name, _ in flat):
            yield f"another function: {flat}"
        if calls and end not in ("tool_calls", "length") and not body.get("stop"):
            yield f"calls, but it ends with {end}"
        if body["tool_choice"] != "auto" and end == "stop" and not body.get("stop"):
            yield f"no call: {message}"
        for i, (name, arguments) in enumerate(flat):
            if name not in schemas:
                yield f"no function {name}"
                continue
            if end != "tool_calls" and i == len(flat) - 1:
                continue  # cut
            try:
                value = json.loads(arguments)
                yield from (f"{name}: {e}" for e in jsonschema_rs.Draft202012Validator(schemas[name], validate_formats=True).iter_errors(value))
            except ValueError as e:
                yield f"{name}({arguments}): {e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--disaggregated", action="store_true")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    failed = 0
    for family, (_, marks, _, _) in FAMILIES.items():
        r, ids, refused = random.Random(f"{options.seed} {family}"), [], {}
        marks = [mark for mark in marks if mark] if family not in ("llama3_json", "pythonic") else []  # those have no mark of their own
        args = ["--tool-call-parser", family] + (["--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 4] if options.disaggregated else [])
        with thinking_model(more=marks) as model, Cluster(model, args=args) as c:
            cases = [case(r, marks) for _ in range(options.requests)]
            ask = lambda body: (c.post("/v1/chat/completions", body), c.post("/v1/chat/completions", {**body, "stream": True}))
            calls = 0
            for body, (reply, stream) in zip(cases, in_parallel([lambda body=body: ask(body) for body in cases])):
                if reply.status != 200:
                    refused[reply.body[:300]] = body
                    continue
                whole = reply.json()
                wrong = list(faults_of(body, whole, streamed(stream.body), ids))
                for choice in whole["choices"]:
                    made = choice["message"].get("tool_calls") or []
                    calls += len(made)
                    if choice["finish_reason"] == "tool_calls" and choice["index"] == 0:
                        results = [{"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in made]
                        more = c.post("/v1/chat/completions", {**body, "messages": [*body["messages"], choice["message"], *results], "max_tokens": 2})
                        if more.status != 200:
                            wrong.append(f"the conversation does not go on: {more.body}")
                failed += bool(wrong)
                if wrong:
                    print(f"WRONG, {family}: {json.dumps(body)}\n  " + "\n  ".join(wrong), flush=True)
            if len(set(ids)) != len(ids):
                failed += 1
                print(f"WRONG, {family}: ids twice")
            print(f"{family}: {len(cases)} requests, {calls} calls, {len(refused)} refused", flush=True)
            for body in list(refused)[:4]:
                print(f"  refused: {body}\n     {json.dumps(refused[body])[:1500]}")
    print(f"{failed} are wrong" if failed else "all are right")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
