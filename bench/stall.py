#!/usr/bin/env python3
"""Gap between tokens and throughput with 8 clients arriving, by --max-stall-ms: servers take turns, medians of rounds.

  bench/stall.py --model PATH [--baton build/baton] [--load build/release/bench/bench_serve_load] [--stall 0,80]
                 [--rounds 5] [--port 18437] [--json FILE]

A quiet machine only: the share of it that other processes took is printed with every round.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
import urllib.request


def busy_seconds():
    with open("/proc/stat", encoding="ascii") as f:
        v = [int(x) for x in f.readline().split()[1:]]
    return (v[0] + v[1] + v[2] + v[5] + v[6] + v[7]) / os.sysconf("SC_CLK_TCK")


def children_seconds():
    u = resource.getrusage(resource.RUSAGE_CHILDREN)
    return u.ru_utime + u.ru_stime


def wait_ready(url, process):
    """Until a completion is answered; a model that is listed may still be loading."""
    while process.poll() is None:
        try:
            with urllib.request.urlopen(url + "/v1/models", timeout=5) as r:
                name = json.load(r)["data"][0]["id"]
            body = json.dumps({"model": name, "prompt": "a b", "max_tokens": 2}).encode()
            request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=30).read()
            return name
        except (OSError, IndexError):
            time.sleep(0.2)
    raise SystemExit(f"the server ended with {process.returncode}")


def one_round(args, stall):
    url = f"http://127.0.0.1:{args.port}"
    before = busy_seconds(), children_seconds(), time.time()
    command = [args.baton, "serve", args.model, "--port", str(args.port), "--no-enable-prefix-caching"]
    server = subprocess.Popen(command + ["--max-stall-ms", stall], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        name = wait_ready(url, server)
        with tempfile.NamedTemporaryFile() as out:
            load = [args.load, "--url", url, "--model", name, "--clients", "8", "--prompt-words", "100", "--max-tokens", "64"]
            subprocess.run(load + ["--requests", "8"], check=True, stdout=subprocess.DEVNULL)
            subprocess.run(load + ["--requests", "48", "--json", out.name], check=True, stdout=subprocess.DEVNULL)
            seen = json.load(open(out.name, encoding="utf-8"))
    finally:
        server.terminate()
        server.wait()
    gap = seen["between tokens"]
    wall = time.time() - before[2]
    foreign = (busy_seconds() - before[0] - (children_seconds() - before[1])) / wall
    return {"tokens_per_s": seen["output_tokens"] / seen["seconds"], "gap_p50_s": gap["p50"], "gap_p99_s": gap["p99"],
            "first_token_p50_s": seen["first token"]["p50"], "cores_of_others": foreign}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--baton", default="build/baton")
    p.add_argument("--load", default="build/release/bench/bench_serve_load")
    p.add_argument("--stall", default="0,80")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--port", type=int, default=18437)
    p.add_argument("--json")
    args = p.parse_args()
    rounds = {stall: [] for stall in args.stall.split(",")}
    for i in range(args.rounds):
        for stall, seen in rounds.items():
            seen.append(one_round(args, stall))
            r = seen[-1]
            print(f"round {i}, --max-stall-ms {stall}: {r['tokens_per_s']:.1f} tokens/s, gap p50 {1e3 * r['gap_p50_s']:.0f} "
                  f"p99 {1e3 * r['gap_p99_s']:.0f} ms, others took {r['cores_of_others']:.2f} cores", flush=True)
    for stall, seen in rounds.items():
        print(f"--max-stall-ms {stall}: " + ", ".join(
            f"{key} {statistics.median(r[key] for r in seen):.3f}" for key in seen[0]))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(rounds, f, indent=1)


if __name__ == "__main__":
    main()
