#!/usr/bin/env python3
"""What each technique of serving is worth: the same load with all of them, then with one switched off, the servers in turns.

  techniques.py [--model GGUF] [--requests 24] [--clients 8] [--rounds 3] [--json FILE]

  no prefix cache       prompts that begin alike are computed whole
  no batching           one sequence at a time
  no chunked prefill    a prompt is one step, which every stream waits for

Prompts begin with one of two long beginnings and have an end of their own. Medians of the rounds; the answers with the same
bytes as with all techniques are counted (all of them must be); so is the CPU that other processes took. What attention without
the matrix of scores and operations in one pass are worth is `bench_techniques`.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

from stall import busy_seconds, children_seconds, wait_ready

ROOT = pathlib.Path(__file__).resolve().parents[1]
WAYS = {
    "all": [],
    "no prefix cache": ["--no-enable-prefix-caching"],
    "no batching": ["--max-num-seqs", "1"],
    "no chunked prefill": ["--max-num-batched-tokens", "2048", "--max-stall-ms", "0", "--max-step-ms", "0"],
}
FIGURES = {"output_throughput": "tokens/s", "median_ttft_ms": "TTFT p50", "p99_ttft_ms": "TTFT p99", "median_tpot_ms": "TPOT p50",
           "p99_itl_ms": "gap p99", "total_cached_tokens": "cached"}


def measure(o, flags):
    server = subprocess.Popen([o.baton, "serve", o.model, "--port", str(o.port), "--max-model-len", "2048", *flags], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        name = wait_ready(f"http://127.0.0.1:{o.port}", server)
        with tempfile.TemporaryDirectory() as folder:
            load = ["--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", 2, "--prefix-repetition-prefix-len", 512,
                    "--prefix-repetition-suffix-len", 64, "--prefix-repetition-output-len", 48, "--num-prompts", o.requests, "--max-concurrency",
                    o.clients, "--temperature", 0, "--ignore-eos", "--disable-tqdm", "--save-detailed", "--result-dir", folder, "--result-filename", "r.json"]
            subprocess.run([o.baton, "bench", "--port", str(o.port), "--model", name, *map(str, load)], check=True, stdout=subprocess.DEVNULL)
            return json.loads((pathlib.Path(folder) / "r.json").read_text())
    finally:
        server.terminate()
        server.wait()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default=subprocess.check_output([ROOT / "scripts" / "fetch_model.sh", "--path"], text=True).strip())
    p.add_argument("--baton", default=str(ROOT / "build" / "baton"))
    p.add_argument("--requests", type=int, default=24)
    p.add_argument("--clients", type=int, default=8)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--port", type=int, default=18457)
    p.add_argument("--json")
    o = p.parse_args()
    seen, others = {way: [] for way in WAYS}, []
    for i in range(o.rounds):
        before = busy_seconds(), children_seconds(), time.time()
        for way in list(WAYS)[i % len(WAYS):] + list(WAYS)[:i % len(WAYS)]:
            seen[way].append(measure(o, WAYS[way]))
        others.append((busy_seconds() - before[0] - (children_seconds() - before[1])) / (time.time() - before[2]))
        print(f"round {i + 1} of {o.rounds}, others took {others[-1]:.2f} cores", flush=True)
    texts = seen["all"][0]["generated_texts"]
    rows = {way: {key: statistics.median(run[key] for run in runs) for key in FIGURES} | {
        "same_answers": sum(a == b for run in runs for a, b in zip(run["generated_texts"], texts)), "answers": sum(run["completed"] for run in runs)}
        for way, runs in seen.items()}
    print(f"\n{'':<20}" + "".join(f"{title:>10}" for title in FIGURES.values()) + f"{'of all':>9}{'same bytes':>14}")
    for way, row in rows.items():
        share = row["output_throughput"] / rows["all"]["output_throughput"]
        print(f"{way:<20}" + "".join(f"{row[key]:>10.1f}" for key in FIGURES) + f"{share:>9.2f}{row['same_answers']:>7} of {row['answers']}")
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps({"bench": "techniques", "options": vars(o), "cores_of_others": others, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
