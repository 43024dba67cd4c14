#!/usr/bin/env python3
"""Every token index of a 64-token stream of the demo model, every fault: kill -9 and stop of a prefill and of a decode worker,
pauses of the router. Streams of every kind run at once (n = 1 and 2, logprobs, seeds, penalties, a stop string across the
seam); what each client gets must be what it gets undisturbed. Default flags. By hand: token_indices.py [--every 1] [--seed 1]
[--faults "kill decode,pause router"] [--model tiny]."""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "cluster"))
from harness import SMOLLM2, Cluster  # noqa: E402
from token_index import FAULTS, check  # noqa: E402

PROMPT = "Tell me a story about a lighthouse keeper who finds a letter in a bottle, and what the letter says. " * 3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only every n-th index")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--model", choices=["demo", "tiny"], default="demo")
    options = parser.parse_args()
    gaps, failed = {}, []
    args = ["--prefill", 2, "--decode", 2]
    cluster = Cluster(SMOLLM2, args, dummy=False) if options.model == "demo" else Cluster(args=args)
    with cluster as c:
        model = c.get("/v1/models").json()["data"][0]["id"]
        for index in range(0, options.tokens, options.every):
            for fault in options.faults.split(","):
                broken, gap = check(c, model, options.tokens, PROMPT, index, fault, options.seed * 1000 + index)
                if broken:
                    failed.append((index, fault))
                    print(broken[:3000], flush=True)
                gaps.setdefault(fault, []).append(gap)
                print(f"token {index:3} {fault:14} longest gap {gap:.2f} s", flush=True)
    for fault, all_of in gaps.items():
        ordered = sorted(all_of)
        print(f"{fault:14} gaps p50 {ordered[len(ordered) // 2]:.2f} s, max {ordered[-1]:.2f} s, {len(ordered)} tries")
    print(f"failed: {failed}" if failed else "all as undisturbed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
