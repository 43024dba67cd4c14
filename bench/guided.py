#!/usr/bin/env python3
"""What structured outputs cost and whether they hold, with default flags, everything in turn in one run, on the demo model:
  - time per token of a full batch without a grammar, with one for half of it, and for all of it (regular expression, JSON Schema),
  - how much later the first token of a 10 KB schema comes that nobody has sent before,
  - how far the gaps between other requests' tokens grow at p99 beside a tenant who sends grammars that are costly or wrong, and beside one
    who sends regular expressions that compile soon and are costly at each token,
  - and on a small model with random weights, handed over: how many answers over 100 schemas end, and whether all of these are valid by the
    library jsonschema.
By hand: guided.py [--rounds 5] [--batch 32] [--tokens 64] [--answers 1000] [--prefill-decode] [--only PART] [--json FILE]."""
import argparse
import importlib.util
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cluster"))
import schemas  # noqa: E402
from harness import SMOLLM2, Cluster, in_parallel  # noqa: E402
from token_index import Stream  # noqa: E402

LONG = {"type": "array", "items": {"type": "string", "minLength": 20, "maxLength": 60}, "minItems": 40, "maxItems": 60}
KINDS = {"none": {}, "regex": {"guided_regex": "[A-Za-z ,.]{600,900}"}, "schema": {"guided_json": LONG}}


def p(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def tpot(c, model, kind, batch, tokens, seed):
    """Milliseconds per token of so many answers at once: the median answer's."""
    def one(i):
        guided = KINDS["schema"] if kind == "half" and i % 2 else KINDS.get(kind, {})
        reply = c.post("/v1/completions", {"model": model, "prompt": f"{i}: Once upon a time", "max_tokens": tokens, "temperature": 0.8, "seed": seed + i,
                                           **({} if guided else {"ignore_eos": True}), **guided})
        assert reply.status == 200, reply.body
        return reply.json()["metrics"]["mean_itl_ms"]
    return statistics.median(in_parallel([lambda i=i: one(i) for i in range(batch)]))


def batches(c, model, o):
    kinds = ["none", "half", "regex", "schema"]
    seen = {kind: [] for kind in kinds}
    tpot(c, model, "schema", o.batch, 8, 0)
    for r in range(o.rounds):
        for kind in kinds[r % 4:] + kinds[:r % 4]:
            seen[kind].append(tpot(c, model, kind, o.batch, o.tokens, 1000 * r))
        print(f"round {r}: " + ", ".join(f"{kind} {seen[kind][-1]:.1f} ms" for kind in kinds), flush=True)
    cost = {kind: sorted(a / b - 1 for a, b in zip(seen[kind], seen["none"])) for kind in kinds[1:]}
    return {"tpot_ms": {kind: round(statistics.median(v), 2) for kind, v in seen.items()}, "rounds": o.rounds,
            "cost": {kind: {"p25": round(p(v, 0.25), 4), "p50": round(statistics.median(v), 4), "p75": round(p(v, 0.75), 4)} for kind, v in cost.items()}}


def big_schema(salt):
    """About 10 KB."""
    return {"type": "object", "additionalProperties": False, "required": [f"p{salt}_0"],
            "properties": {f"p{salt}_{i}": {"type": "object", "properties": {"kind": {"enum": [f"a{salt}{i}", "b", "c"]}, "n": {"type": "integer", "minimum": i},
                                                                             "text": {"type": "string", "maxLength": 20 + i}}, "required": ["kind"]} for i in range(52)}}


def first_masks(c, model, o):
    def first(salt, guided):
        body = {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        return c.post("/v1/completions", {**body, **({"guided_json": big_schema(salt)} if guided else {})}).json()["metrics"]["time_to_first_token_ms"]
    pairs = [(first(i, False), first(i, True)) for i in range(4 * o.rounds)]
    late = [b - a for a, b in pairs]
    return {"schema_bytes": len(json.dumps(big_schema(10), separators=(",", ":"))), "first_token_later_ms": {"p50": round(p(late, 0.5), 1), "max": round(max(late), 1)}}


def hostile(r):
    n = r.randrange(10**6)
    return r.choice([{"guided_regex": f"(((a{{1,{n % 200 + 100}}}){{1,300}}){{1,300}}){{1,300}}"}, {"guided_regex": "([a-z]*[0-9]*){60}x(.*y){40}" + str(n)},
                     {"guided_json": {"enum": [f"v{n + i}" for i in range(10000)]}}, {"guided_json": {"multipleOf": n}}, {"guided_choice": [f"{i} {n}" for i in range(40000)]},
                     {"guided_json": {"type": "string", "pattern": f"(a|b)*c(a|b){{200}}{n}"}}, {"guided_json": {"type": "object", "properties": {f"p{i}_{n}": {} for i in range(1500)}}},
                     {"guided_json": {"$ref": "#"}}, {"guided_grammar": "start: " + "(" * 3000 + '"a"' + ")" * 3000}])


def hostile_while_drawn(r):
    n = r.randrange(10**6)
    return {"guided_regex": r.choice([".*(a|b).{1,200}c.{1,200}d", "([ab]|.*x.{1,100}){1,50}c.{1,200}d", "(.*[aeiou].{1,150}){1,3}z"]) + str(n), "max_tokens": 100, "seed": n}


def tenant(c, bodies, begin, stop, seen):
    """One client of the tenant, a process of its own: what it does must not delay who reads the streams. Its bodies are ready before the streams begin."""
    begin.wait()
    for body in itertools.cycle(bodies):
        if stop.is_set():
            break
        begun = time.monotonic()
        status = c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"}).status
        seen.put((status, time.monotonic() - begun))
    seen.put(None)


def gaps(c, model, tokens, beside, seed):
    """All gaps between tokens of four streams, in seconds; and the seconds of each refusal of the tenant beside them. `beside` draws what it sends."""
    processes = multiprocessing.get_context("fork")
    begin, stop, seen, clients = processes.Event(), processes.Event(), processes.Queue(), []
    for n in range(2 if beside else 0):
        r = random.Random(seed * 10 + n)
        bodies = [json.dumps({"model": model, "prompt": "x", "max_tokens": 4, **beside(r)}).encode() for _ in range(100)]
        clients.append(processes.Process(target=tenant, args=(c, bodies, begin, stop, seen)))
    for client in clients:
        client.start()
    streams = [Stream(c, {"model": model, "prompt": f"{i}. A story", "max_tokens": tokens, "ignore_eos": True, "stream": True, "seed": i}) for i in range(4)]
    begin.set()
    in_parallel([s.run for s in streams])
    stop.set()
    got = [x for _ in clients for x in iter(seen.get, None)]
    for client in clients:
        client.join()
    return [gap for s in streams for gap in s.gaps[1:]], [seconds for status, seconds in got if status != 200]


def stolen():
    """Seconds that this machine's cores were ready to work and the machine below it had no time for them, since its start."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n")[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def neighbours(c, model, o, tenant_sends=hostile):
    """The control, four streams without the tenant, runs next to each round: what both have in common is the machine's."""
    alone, beside, refusals, rounds = [], [], [], []
    for r in range(o.rounds):
        ms = {}
        for quiet in ((True, False) if r % 2 else (False, True)):
            before = stolen()
            seen, refused = gaps(c, model, 4 * o.tokens, None if quiet else tenant_sends, r)
            (alone if quiet else beside).extend(seen)
            refusals += refused
            ms["alone" if quiet else "beside"] = {"p99": round(1000 * p(seen, 0.99), 1), "max": round(1000 * max(seen), 1), "stolen_s": round(stolen() - before, 2)}
        rounds.append(ms)
        print(f"round {r}: {json.dumps(ms)}", flush=True)
    ms = {"alone": round(1000 * p(alone, 0.99), 1), "beside": round(1000 * p(beside, 0.99), 1)}
    return {"gap_p99_ms": ms, "grows_by_ms": round(ms["beside"] - ms["alone"], 1), "refusals": len(refusals), "rounds": rounds,
            "refusal_s": {"p50": round(p(refusals, 0.5), 2), "max": round(max(refusals), 2)} if refusals else None}


def neighbours_while_drawn(c, model, o):
    return neighbours(c, model, o, hostile_while_drawn)


def answers(o):
    r = random.Random(7)
    asked = [schemas.schema(r) for _ in range(100)]
    with Cluster(args=["--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 4]) as c:
        return {"schemas": len(asked), **answer_all(c, c.get("/v1/models").json()["data"][0]["id"], asked, o)}


def answer_all(c, model, asked, o):
    import jsonschema  # that a library says so is the point
    def one(i):
        s = asked[i % len(asked)]
        reply = c.post("/v1/completions", {"model": model, "prompt": f"{i}: an example:\n", "max_tokens": 400, "temperature": 0.7 + i % 2 * 0.3, "seed": i, "guided_json": s})
        assert reply.status == 200, reply.body
        choice = reply.json()["choices"][0]
        if choice["finish_reason"] == "length":
            return None
        return jsonschema.Draft202012Validator(s).is_valid(json.loads(choice["text"])), s, choice["text"]
    got = [x for at in range(0, o.answers, o.batch) for x in in_parallel([lambda i=i: one(i) for i in range(at, min(at + o.batch, o.answers))])]
    wrong = [x for x in got if x and not x[0]]
    for _, s, text in wrong[:5]:
        print("does not fit:", json.dumps(s), text, flush=True)
    return {"answers": len(got), "ended": sum(x is not None for x in got), "valid": sum(bool(x and x[0]) for x in got)}


PARTS = {"batch": batches, "first_mask": first_masks, "neighbours": neighbours, "neighbours_while_drawn": neighbours_while_drawn}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="0: only whether answers hold")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--prefill-decode", action="store_true", help="one worker of each instead of one that does both")
    parser.add_argument("--only", choices=[*PARTS, "share_valid"], help="this part alone")
    parser.add_argument("--json", help="where the figures go")
    o = parser.parse_args()
    if o.only in (None, "share_valid") and importlib.util.find_spec("jsonschema") is None:
        sys.exit("guided.py wants the library jsonschema (pip install jsonschema)")
    figures = {}
    with Cluster(SMOLLM2, ["--prefill", 1, "--decode", 1] if o.prefill_decode else [], dummy=False) as c:
        model = c.get("/v1/models").json()["data"][0]["id"]
        for name, part in PARTS.items() if o.rounds else ():
            if o.only not in (None, name):
                continue
            figures[name] = part(c, model, o)
            print(name, json.dumps(figures[name]), flush=True)
    if o.only in (None, "share_valid"):
        figures["share_valid"] = answers(o)
        print("share_valid", json.dumps(figures["share_valid"]), flush=True)
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps(figures, indent=1) + "\n")
    held = figures.get("share_valid")
    sys.exit(bool(held and held["valid"] != held["ended"]))


if __name__ == "__main__":
    main()
