#!/usr/bin/env python3
"""Routing policies side by side on real processes: the same trace with shared beginnings is offered to a fresh cluster of each
policy, in turns; medians of rounds. Times to the first token, output tokens/s, and the share of prompt tokens found in caches.

  bench/policies.py --trace mooncake.jsonl [--model PATH] [--both 3 | --prefill 1 --decode 2] [--requests 120] [--rate 1.5]
                    [--shrink 32] [--turns 1] [--rounds 3] [--json FILE]

The trace is Mooncake's: blocks of 512 tokens become blocks of 512/shrink, answers of as much less; --rate is what its own times are
stretched to. A quiet machine only: the share of it that other processes took is printed with every round.
"""
import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from stall import busy_seconds, children_seconds, wait_ready  # noqa: E402

BLOCK = 512  # tokens of a hash of the trace
FIGURES = {"ttft_p50_ms": 0, "ttft_p99_ms": 0, "e2el_p50_ms": 0, "output_tokens_per_s": 1, "hit_share": 3}  # name -> digits


def conversation(row):
    """What requests of one conversation have in common: the block behind the one that most of the trace's prompts begin with."""
    return row["hash_ids"][1] if len(row["hash_ids"]) > 1 else None


def write_trace(o, path):
    """The first requests that fit --longest and --turns, smaller and slower. Its share of prompt tokens that an endless cache would
    have."""
    seen, known, tokens, requests = set(), 0, 0, []
    rows = [json.loads(line) for line in open(o.trace, encoding="utf-8")]
    rows = [row for row in rows if row["input_length"] // o.shrink <= o.longest]
    turns = collections.Counter(map(conversation, rows))
    for row in rows:
        if o.turns > 1 and (conversation(row) is None or turns[conversation(row)] < o.turns):
            continue
        size = BLOCK // o.shrink
        length = max(1, row["input_length"] // o.shrink)
        hashes = row["hash_ids"][:length // size + 1]
        for i, block in enumerate(hashes[:length // size]):
            if block not in seen:
                break
            known += size
        seen.update(hashes)
        tokens += length
        requests.append({"timestamp": row["timestamp"] / 1e3, "input_length": length, "output_length": max(2, row["output_length"] // o.shrink),
                         "hash_ids": hashes})
        if len(requests) == o.requests:
            break
    if len(requests) < 2:
        raise SystemExit(f"{o.trace}: {len(requests)} requests of at most {o.longest} tokens: too few")
    lasts = requests[-1]["timestamp"] - requests[0]["timestamp"]
    slower = len(requests) / o.rate / lasts
    for row in requests:
        row["timestamp"] *= slower
    path.write_text("".join(json.dumps(row) + "\n" for row in requests))
    return known / tokens, len(requests)


def one_run(o, policy, trace, folder):
    layout = ["--both", o.both] if o.prefill == 0 else ["--prefill", o.prefill, "--decode", o.decode]
    serve = [o.baton, "serve", o.model, "--port", o.port, "--route-policy", policy, "--threads", o.threads, "--max-model-len", o.longest + 512,
             *(["--kv-cache-memory", o.kv_cache_memory] if o.kv_cache_memory else []), *layout]
    before = busy_seconds(), children_seconds(), time.time()
    server = subprocess.Popen([str(a) for a in serve], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{o.port}"
        name = wait_ready(url, server)
        bench = [o.baton, "bench", "--base-url", url, "--model", name, "--dataset-name", "timed_trace", "--dataset-path", trace,
                 "--timed-trace-chunk-hash-size", BLOCK // o.shrink, "--num-prompts", o.requests, "--ignore-eos", "--temperature", 0,
                 "--percentile-metrics", "ttft,tpot,e2el", "--metric-percentiles", "50,99", "--disable-tqdm", "--save-result",
                 "--result-dir", folder, "--result-filename", f"{policy}.json"]
        (folder / f"{policy}.json").unlink(missing_ok=True)
        done = subprocess.run([str(a) for a in bench], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"baton bench ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        seen = json.loads((folder / f"{policy}.json").read_text())
    finally:
        server.terminate()
        server.wait()
    others = (busy_seconds() - before[0] - (children_seconds() - before[1])) / (time.time() - before[2])
    return {"ttft_p50_ms": seen["p50_ttft_ms"], "ttft_p99_ms": seen["p99_ttft_ms"], "e2el_p50_ms": seen["p50_e2el_ms"],
            "output_tokens_per_s": seen["output_throughput"], "hit_share": seen["total_cached_tokens"] / seen["total_input_tokens"],
            "failed": seen["failed"], "cores_of_others": others}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--trace", required=True)
    p.add_argument("--model", help="default: the demo model")
    p.add_argument("--baton", default=str(HERE.parent / "build" / "baton"))
    p.add_argument("--policies", default="predicted-time,least-loaded,round-robin,longest-prefix")
    p.add_argument("--both", type=int, default=3)
    p.add_argument("--prefill", type=int, default=0)
    p.add_argument("--decode", type=int, default=0)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--kv-cache-memory", default="", help="of a worker; a small one makes caches forget")
    p.add_argument("--requests", type=int, default=120)
    p.add_argument("--rate", type=float, default=1.5, help="requests per second, on average")
    p.add_argument("--shrink", type=int, default=32, choices=[1, 2, 4, 8, 16, 32])
    p.add_argument("--longest", type=int, default=1536, help="tokens of a prompt; longer ones of the trace are left out")
    p.add_argument("--turns", type=int, default=1, help="only conversations that have at least as many requests in the trace")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--port", type=int, default=18471)
    p.add_argument("--json")
    o = p.parse_args()
    if o.model is None:
        o.model = subprocess.run([HERE.parent / "scripts" / "fetch_model.sh", "--path"], capture_output=True, text=True, check=True).stdout.strip()
    policies = o.policies.split(",")
    runs = {policy: [] for policy in policies}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        ceiling, requests = write_trace(o, folder / "trace.jsonl")
        for i in range(o.rounds):
            for policy in policies[i % len(policies):] + policies[:i % len(policies)]:
                runs[policy].append(one_run(o, policy, folder / "trace.jsonl", folder))
                print(f"round {i + 1}: {policy}: {json.dumps(runs[policy][-1])}", flush=True)
    print(f"{requests} requests; an endless cache of one worker would have {ceiling:.3f} of the prompt tokens\n")
    print(f"{'policy':<16}" + "".join(f"{figure:>21}" for figure in FIGURES) + f"{'failed':>8}")
    for policy, rows in runs.items():
        print(f"{policy:<16}" + "".join(f"{statistics.median(r[f] for r in rows):>21.{digits}f}" for f, digits in FIGURES.items())
              + f"{sum(r['failed'] for r in rows):>8}")
    if o.json:
        kept = {k: v for k, v in vars(o).items() if k not in ("json", "baton", "model", "trace")}
        pathlib.Path(o.json).write_text(json.dumps({"options": kept | {"model": pathlib.Path(o.model).name, "trace": pathlib.Path(o.trace).name},
                                                    "endless_cache_share": ceiling, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
