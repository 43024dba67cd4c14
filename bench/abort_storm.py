#!/usr/bin/env python3
"""What an abort storm costs those who stay: 500 streams under prefill/decode whose clients leave within a second, beside
a steady closed-loop load. Prints the load's tokens/s before the storm, in each second after it, and the ratio; design goal:
≥ 95 % within 5 s. Every round is run beside a control round in which nobody comes and nobody leaves: the load's own drift is
in both. Run by hand on a quiet machine: bench/abort_storm.py [--rounds 3] [--transports shm,tcp] [--json FILE]"""
import argparse
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cluster"))
from harness import Cluster  # noqa: E402
from storm import Load, Storm, held  # noqa: E402


def measure(transport, cancels, clients, window):
    args = ["--prefill", 1, "--decode", 1, "--threads", 1, "--local-prefill-max-tokens", 8, "--max-running-requests", 2000, "--max-connections", 4000,
            "--max-running-tokens", "16M", "--transport", transport]
    with Cluster(args=args) as c:
        load = Load(c, clients)
        time.sleep(2 + window)
        now = time.monotonic()
        before = load.tokens_per_s(now - window, now)
        storm = Storm(c, cancels)
        time.sleep(1)
        took, refused = storm.leave()
        left = time.monotonic()
        memory = None
        while memory is None and time.monotonic() - left < 20:
            leftover = {k: v for k, v in held(c).items() if "quarantined" in k or "leaked" in k}
            memory = None if leftover else time.monotonic() - left
            time.sleep(0.05)
        time.sleep(max(0, left + 5 + window - time.monotonic()))
        row = {"transport": transport, "cancels": cancels, "left_in_s": took, "refused": refused, "before_tokens_per_s": before,
               "during_tokens_per_s": load.tokens_per_s(left - 1, left),
               "after_by_second": [load.tokens_per_s(left + s, left + s + 1) for s in range(5)],
               "after_5s_tokens_per_s": load.tokens_per_s(left + 5, left + 5 + window)}
        load.stop()
        end = time.monotonic()
        while held(c) and time.monotonic() - end < 20:
            time.sleep(0.02)
        row["held_after_load_s"] = time.monotonic() - end
        row["leaked_blocks"] = c.metric("baton_leaked_kv_blocks")
        row["ratio"] = row["after_5s_tokens_per_s"] / before
        row["requests"] = len(load.done)
        row["failed"] = len(load.failed)
        return row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cancels", type=int, default=500)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--window", type=float, default=5, help="seconds measured before and after")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--transports", default="shm,tcp")
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    transports = options.transports.split(",")
    for transport in transports:
        for cancels in [0, options.cancels] * options.rounds:
            row = measure(transport, cancels, options.clients, options.window)
            rows.append(row)
            print(f"{transport}: {row['before_tokens_per_s']:.0f} tokens/s before, {row['cancels']} left in {row['left_in_s']:.2f} s, then "
                  + " ".join(f"{v:.0f}" for v in row["after_by_second"])
                  + f", after 5 s {row['after_5s_tokens_per_s']:.0f} ({100 * row['ratio']:.0f} %), leaked {row['leaked_blocks']:.0f}")
    for transport in transports:
        storm, control = ([row["ratio"] for row in rows if row["transport"] == transport and (row["cancels"] > 0) == stormy]
                          for stormy in (True, False))
        print(f"{transport}: median {100 * statistics.median(storm):.0f} % of the throughput before, "
              f"{100 * statistics.median(control):.0f} % without a storm")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
