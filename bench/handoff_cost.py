#!/usr/bin/env python3
"""What a handoff costs: time to the first token and CPU time of a long prompt, prefill and decode apart beside one worker that
does both, in turn on the same machine.

  bench/handoff_cost.py --model MODEL.gguf [--tokens 2000] [--rounds 7] [--transports shm,tcp,ucx] [--json FILE]
                        [--without-digests BINARY]     a build with -DBATON_KV_DIGESTS=OFF, for what digests cost: also
                                                       decode throughput of 8 sequences, by clock and by the worker's CPU time

Every prompt is new, so no cache helps. Each cluster has one compute thread per worker. On two cores the sum of CPU time says
more than the time to the first token: router, prefill and decode share them."""
import argparse
import http.client
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cluster"))
from harness import Cluster  # noqa: E402

WORDS = "river stone cloud paper green seven quiet light north apple".split()
DECODED = {"sequences": 8, "tokens": 48}


def prompt(tokens, seed):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(tokens))


def cpu_seconds(pids):
    """Time that all threads of the processes were on a CPU so far."""
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)  # the process's CPU clock: MAKE_PROCESS_CPUCLOCK(pid, SCHED)


def first_token(cluster, text, model):
    """Seconds to the first token, prompt tokens, and the reply's stages."""
    body = json.dumps({"model": model, "prompt": text, "max_tokens": 2, "temperature": 0, "ignore_eos": True, "stream": True,
                       "stream_options": {"include_usage": True}})
    connection = http.client.HTTPConnection(cluster.host, int(cluster.port), timeout=300)
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    first, usage, timings = None, None, {}
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if first is None and event.get("choices") and event["choices"][0].get("text"):
            first = time.perf_counter() - start
        usage = event.get("usage") or usage
        timings = event.get("timings") or timings
    connection.close()
    return first, usage["prompt_tokens"], timings


def decode(cluster, text, model):
    """Tokens/s from the first token on of some sequences at once."""
    body = json.dumps({"model": model, "prompt": text, "n": DECODED["sequences"], "max_tokens": DECODED["tokens"], "temperature": 1, "seed": 1,
                       "ignore_eos": True, "stream": True})
    connection = http.client.HTTPConnection(cluster.host, int(cluster.port), timeout=300)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    first = None
    for line in response:
        if first is None and line.startswith(b"data: {"):
            first = time.perf_counter()
    seconds = time.perf_counter() - first
    connection.close()
    return DECODED["sequences"] * (DECODED["tokens"] - 1) / seconds


class Contender:
    def __init__(self, name, model, args, binary=None):
        self.name, self.rows, self.decodes = name, [], False
        self.cluster = Cluster(model=model, dummy=False, args=["--threads", 1, "--served-model-name", "m", *args])
        if binary:
            self.cluster.command[0] = binary

    def round(self, text):
        before = cpu_seconds(self.cluster.children())
        ttft, tokens, timings = first_token(self.cluster, text, "m")
        time.sleep(0.05)  # the last messages of lanes and reports
        self.rows.append({"ttft": ttft, "cpu": cpu_seconds(self.cluster.children()) - before, "tokens": tokens,
                          "transfer_ms": timings.get("transfer_ms", 0)})
        if not self.decodes:
            return
        worker = [self.cluster.workers("decode" if "P/D" in self.name else "both")[0]]
        before = cpu_seconds(worker)
        self.rows[-1]["decode_tokens_per_s"] = decode(self.cluster, text[:300], "m")
        tokens = DECODED["sequences"] * (DECODED["tokens"] - 1)
        self.rows[-1]["decode_tokens_per_cpu_s"] = tokens / (cpu_seconds(worker) - before)

    def median(self, key):
        return statistics.median(row[key] for row in self.rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--transports", default="shm,tcp,ucx")
    parser.add_argument("--without-digests")
    parser.add_argument("--json")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # clusters are stopped
    pair = ["--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 8]
    contenders = [Contender("aggregated", args.model, ["--both", 1])]
    for transport in args.transports.split(","):
        contenders.append(Contender(f"P/D {transport}", args.model, [*pair, "--transport", transport]))
    if args.without_digests:
        contenders.append(Contender("aggregated, no digests", args.model, ["--both", 1], args.without_digests))
        contenders.append(Contender("P/D shm, no digests", args.model, [*pair, "--transport", "shm"], args.without_digests))
        for contender in contenders:
            contender.decodes = True
    started = []
    try:
        for contender in contenders:
            contender.cluster.__enter__()
            started.append(contender)
            first_token(contender.cluster, prompt(args.tokens, 0), "m")  # connects, warms up
        for round_number in range(1, args.rounds + 1):
            order = contenders if round_number % 2 else contenders[::-1]
            for contender in order:
                contender.round(prompt(args.tokens, round_number))
    except KeyboardInterrupt:
        print("interrupted: what was measured so far")
    finally:
        for contender in started:
            contender.cluster.__exit__(None, None, None)
    contenders = [c for c in contenders if c.rows]
    base = contenders[0]
    print(f"{base.median('tokens'):.0f} prompt tokens, {len(base.rows)} rounds in turn, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'':26} {'TTFT ms':>9} {'low … high':>17} {'÷ first':>8} {'CPU ms':>9} {'÷ first':>8} {'transfer ms':>12}")
    rows = []
    for c in contenders:
        ttfts = sorted(row["ttft"] * 1000 for row in c.rows)
        row = {"name": c.name, "ttft_ms": c.median("ttft") * 1000, "low": ttfts[0], "high": ttfts[-1], "cpu_ms": c.median("cpu") * 1000,
               "transfer_ms": c.median("transfer_ms"), "ttft_ratio": c.median("ttft") / base.median("ttft"),
               "cpu_ratio": c.median("cpu") / base.median("cpu")}
        for key in ("decode_tokens_per_s", "decode_tokens_per_cpu_s"):
            if c.decodes:
                row[key] = c.median(key)
        row["each"] = c.rows
        rows.append(row)
        print(f"{c.name:26} {row['ttft_ms']:9.1f} {row['low']:8.1f}…{row['high']:8.1f} {row['ttft_ratio']:8.3f} {row['cpu_ms']:9.1f} "
              f"{row['cpu_ratio']:8.3f} {row['transfer_ms']:12.2f}")
    if args.without_digests:
        by_name = {c.name: c for c in contenders}
        for name in ("aggregated", "P/D shm"):
            off = by_name.get(f"{name}, no digests")
            if off is None or name not in by_name:
                continue
            print(f"{name}, with digests ÷ without, median of each round's ratio (low … high):")
            for key in ("ttft", "cpu", "decode_tokens_per_s", "decode_tokens_per_cpu_s"):
                ratios = sorted(on[key] / without[key] for on, without in zip(by_name[name].rows, off.rows))
                print(f"  {key:24} {statistics.median(ratios):.4f} ({ratios[0]:.3f} … {ratios[-1]:.3f}); of the medians "
                      f"{by_name[name].median(key) / off.median(key):.4f}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"prompt_tokens": base.median("tokens"), "rounds": len(base.rows), "cores": os.cpu_count(),
                                                       "load": os.getloadavg()[0], "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
