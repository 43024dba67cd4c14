#!/usr/bin/env python3
"""What one stream over HTTP costs beside the engine alone: `bench_engine --only tg128` and a served stream of as many tokens
from as long a prompt take turns; medians of rounds, and the median of the rounds' own ratios.

  bench/one_stream.py --model PATH [--baton build/baton] [--engine build/release/bench/bench_engine] [--threads 2]
                      [--rounds 7] [--streams 3] [--port 18438] [--json FILE]

The served rate is that of the client's tokens after the first. A quiet machine only: the share of it that other processes took
is printed with every round.
"""
import argparse
import bisect
import itertools
import json
import socket
import statistics
import subprocess
import tempfile
import time

from stall import busy_seconds, children_seconds, wait_ready

PROMPT_TOKENS, TOKENS = 128, 128  # of bench_engine's tg128


def engine_rate(args):
    with tempfile.NamedTemporaryFile() as out:
        command = [args.engine, args.model, "--only", "tg128", "--threads", str(args.threads), "--rounds", str(args.streams)]
        subprocess.run(command + ["--json", out.name], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(out.name, encoding="utf-8") as f:
            return json.load(f)["rows"][0]["tokens_per_s"]


def received(port, body):
    """[(time, bytes)] of the answer as it came, read by bare receives: the client shares the cores with the engine, and Python's
    HTTP client takes 0.7 % of two of them."""
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n")
    parts = []
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(head.encode() + body)
        while part := connection.recv(65536):
            parts.append((time.perf_counter(), part))
    return parts


def arrivals(parts):
    """[(time, payload)] of the chunks of an answer with status 200. No event of a stream lies in two of them."""
    whole = b"".join(part for _, part in parts)
    head, found, rest = whole.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0] or not found:
        raise SystemExit(whole[:2000].decode(errors="replace"))
    if b"transfer-encoding: chunked" not in head.lower():
        raise SystemExit("the answer is not chunked:\n" + head.decode(errors="replace"))
    ends = list(itertools.accumulate(len(part) for _, part in parts))
    chunks, at = [], len(whole) - len(rest)
    while size := int(whole[at:whole.index(b"\r\n", at)].split(b";")[0], 16):
        start = whole.index(b"\r\n", at) + 2
        at = start + size + 2
        chunks.append((parts[bisect.bisect_left(ends, start + size)][0], whole[start:start + size]))
    return chunks


def stream_rate(port, name):
    """Tokens per second after the first event with tokens; an event may have several."""
    body = json.dumps({"model": name, "prompt": list(range(1000, 1000 + PROMPT_TOKENS)), "max_tokens": TOKENS + 1,
                       "temperature": 0, "ignore_eos": True, "stream": True, "return_token_ids": True}).encode()
    first = last = None
    before = tokens = 0
    for at, payload in arrivals(received(port, body)):
        for line in payload.splitlines():
            if not line.startswith(b"data: {"):
                continue
            choices = json.loads(line[6:]).get("choices") or [{}]
            ids = choices[0].get("token_ids") or []
            if not ids:
                continue
            last = at
            tokens += len(ids)
            if first is None:
                first, before = last, tokens
    if tokens != TOKENS + 1:
        raise SystemExit(f"{tokens} tokens came, {TOKENS + 1} were asked for")
    return (tokens - before) / (last - first)


def served_rate(args):
    command = [args.baton, "serve", args.model, "--port", str(args.port), "--threads", str(args.threads)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        name = wait_ready(f"http://127.0.0.1:{args.port}", server)
        stream_rate(args.port, name)
        return statistics.median(stream_rate(args.port, name) for _ in range(args.streams))
    finally:
        server.terminate()
        server.wait()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--baton", default="build/baton")
    p.add_argument("--engine", default="build/release/bench/bench_engine")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--streams", type=int, default=3, help="of a round, whose median counts; 1 where the machine's speed changes within seconds")
    p.add_argument("--port", type=int, default=18438)
    p.add_argument("--json")
    args = p.parse_args()
    rounds = []
    for i in range(args.rounds):
        before = busy_seconds(), children_seconds(), time.time()
        rates = {}
        for what in [engine_rate, served_rate] if i % 2 == 0 else [served_rate, engine_rate]:
            rates[what] = what(args)
        foreign = (busy_seconds() - before[0] - (children_seconds() - before[1])) / (time.time() - before[2])
        row = {"engine": rates[engine_rate], "served": rates[served_rate], "cores_of_others": foreign}
        row["ratio"] = row["served"] / row["engine"]
        rounds.append(row)
        print(f"round {i}: engine {row['engine']:.1f}, served {row['served']:.1f} tokens/s, {row['ratio']:.3f}; "
              f"others took {foreign:.2f} cores", flush=True)
    medians = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
    print(", ".join(f"{key} {value:.3f}" for key, value in medians.items()))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"rounds": rounds, "medians": medians}, f, indent=1)


if __name__ == "__main__":
    main()
