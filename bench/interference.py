#!/usr/bin/env python3
"""What a long prompt does to streams that run: one is sent while others draw tokens; their gaps before it and until its first
token, and how long that took, by how prompts are computed beside decode steps.

  interference.py --model PATH [--prompt 7900] [--streams 4] [--rounds 3] [--only NAME] [--json FILE]

  whole      the whole prompt in one step, which all streams wait for
  chunks     in chunks of 512 tokens, each in a step with the streams
  bounded    chunks that keep a step's time in bounds (the defaults)
  apart      a prefill worker computes it, a decode worker has the streams; half of the cores each

Servers take turns; medians of the rounds. The CPU that other processes took is printed with every round.
"""
import argparse
import http.client
import json
import pathlib
import statistics
import subprocess
import threading
import time

from stall import busy_seconds, children_seconds, wait_ready

ROOT = pathlib.Path(__file__).resolve().parents[1]
WAYS = {
    "whole": ["--max-num-batched-tokens", "8192", "--max-stall-ms", "0", "--max-step-ms", "0"],
    "chunks": ["--max-num-batched-tokens", "512", "--max-stall-ms", "0", "--max-step-ms", "0"],
    "bounded": [],
    "apart": ["--prefill", "1", "--decode", "1"],
}


class Stream(threading.Thread):
    """One answer, with the time of each event that has text."""

    def __init__(self, port, name, prompt, tokens):
        super().__init__()
        self.port, self.times, self.sent = port, [], 0.0
        self.body = json.dumps({"model": name, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True})

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        self.sent = time.perf_counter()
        connection.request("POST", "/v1/completions", self.body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {response.read().decode()}")
        for line in response:
            if line.startswith(b"data: {") and b'"text"' in line:
                self.times.append(time.perf_counter())
        connection.close()


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def measure(o, flags):
    command = [o.baton, "serve", o.model, "--port", str(o.port), "--no-enable-prefix-caching", "--max-model-len", "8192", *flags]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        name = wait_ready(f"http://127.0.0.1:{o.port}", server)
        streams = [Stream(o.port, name, list(range(1000 + 70 * i, 1064 + 70 * i)), o.tokens) for i in range(o.streams)]
        for stream in streams:
            stream.start()
        while min(len(s.times) for s in streams) < 16:  # all run
            time.sleep(0.01)
        quiet_from = time.perf_counter()
        while min(len(s.times) for s in streams) < 48:
            time.sleep(0.01)
        long = Stream(o.port, name, [100 + i * 37 % 40000 for i in range(o.prompt)], 1)
        long.start()
        long.join()
        for stream in streams:
            stream.join()
    finally:
        server.terminate()
        server.wait()
    before, during, tokens = [], [], 0
    for stream in streams:
        for a, b in zip(stream.times, stream.times[1:]):
            if quiet_from <= a and b < long.sent:
                before.append(b - a)
            elif b > long.sent and a < long.times[0]:
                during.append(b - a)
                tokens += 1
    ttft = long.times[0] - long.sent
    return {"ttft_s": ttft, "gap_before_ms": 1e3 * statistics.median(before), "gap_p50_ms": 1e3 * percentile(during, 0.5),
            "gap_p99_ms": 1e3 * percentile(during, 0.99), "gap_max_ms": 1e3 * max(during), "streams_tokens_per_s": tokens / ttft}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--baton", default=str(ROOT / "build" / "baton"))
    p.add_argument("--prompt", type=int, default=7900)
    p.add_argument("--streams", type=int, default=4)
    p.add_argument("--tokens", type=int, default=1000)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--only", default="")
    p.add_argument("--port", type=int, default=18447)
    p.add_argument("--json")
    o = p.parse_args()
    ways = {name: flags for name, flags in WAYS.items() if o.only in name}
    seen = {name: [] for name in ways}
    for i in range(o.rounds):
        before = busy_seconds(), children_seconds(), time.time()
        for name in list(ways)[i % len(ways):] + list(ways)[:i % len(ways)]:
            seen[name].append(measure(o, ways[name]))
        foreign = (busy_seconds() - before[0] - (children_seconds() - before[1])) / (time.time() - before[2])
        print(f"round {i + 1} of {o.rounds}, others took {foreign:.2f} cores", flush=True)
    keys = list(next(iter(seen.values()))[0])
    print(f"\n{'':<10}" + "".join(f"{key:>22}" for key in keys))
    for name, rounds in seen.items():
        print(f"{name:<10}" + "".join(f"{statistics.median(r[key] for r in rounds):>22.2f}" for key in keys))
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps({"options": vars(o), "rounds": seen}, indent=1) + "\n")


if __name__ == "__main__":
    main()
