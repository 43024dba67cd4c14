#!/usr/bin/env python3
"""What sharing saves a beam search, and `n` drawn choices: the KV blocks that they hold at most beside those that as many sequences of their
own would hold, and the time per token of both, which take turns. One request at a time, on one worker:
bench/beams.py [--model GGUF] [--beams 2,4,8] [--prompt 512] [--tokens 256] [--rounds 3] [--json FILE]"""
import argparse
import json
import pathlib
import statistics
import sys
import threading
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cluster"))
from harness import SMOLLM2, Cluster  # noqa: E402

BLOCK = 16


class Held:
    """The most blocks that are used, and shared, while it runs."""

    def __init__(self, cluster):
        self.cluster, self.over, self.used, self.shared = cluster, threading.Event(), 0, 0
        self.thread = threading.Thread(target=self.watch)

    def __enter__(self):
        # What was before is not counted: its last report may come late.
        self.cluster.wait_until(lambda: self.read() == (0, 0), "nothing is held")
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def read(self):
        with urllib.request.urlopen(self.cluster.admin + "/workers", timeout=10) as reply:
            (worker,) = json.load(reply)["workers"]
        return worker.get("kv_blocks_used", 0), worker.get("kv_blocks_shared", 0)

    def watch(self):
        while not self.over.wait(0.05):
            used, shared = self.read()
            self.used, self.shared = max(self.used, used), max(self.shared, shared)


def ask(cluster, body):
    started = time.monotonic()
    reply = cluster.post("/v1/completions", body)
    assert reply.status == 200, reply.body
    return time.monotonic() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--beams", default="2,4,8")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    with Cluster(options.model, dummy=False, args=["--no-enable-prefix-caching", "--block-size", BLOCK]) as c:
        for beams in (int(b) for b in options.beams.split(",")):
            body = {"prompt": [1000 + i for i in range(options.prompt)], "max_tokens": options.tokens, "ignore_eos": True, "n": beams}
            times, drawn = [], []
            with Held(c) as held:
                for _ in range(options.rounds):
                    times.append(ask(c, {**body, "use_beam_search": True}) / options.tokens)
            with Held(c) as held_by_drawn:
                for _ in range(options.rounds):
                    drawn.append(ask(c, {**body, "seed": 1}) / options.tokens)
            alone = beams * -(-(options.prompt + options.tokens) // BLOCK)
            row = {"beams": beams, "blocks": held.used, "blocks_without_sharing": alone, "share": held.used / alone, "shared_blocks": held.shared,
                   "drawn_blocks": held_by_drawn.used, "drawn_share": held_by_drawn.used / alone, "drawn_shared_blocks": held_by_drawn.shared,
                   "ms_per_token": 1e3 * statistics.median(times), "drawn_ms_per_token": 1e3 * statistics.median(drawn)}
            row["ratio"] = row["ms_per_token"] / row["drawn_ms_per_token"]
            rows.append(row)
            print("{beams} beams: {blocks} blocks of {blocks_without_sharing} without sharing ({share:.0%}), {shared_blocks} shared at most; drawn choices "
                  "{drawn_blocks} ({drawn_share:.0%}), {drawn_shared_blocks} shared; "
                  "{ms_per_token:.2f} ms per token, drawn choices {drawn_ms_per_token:.2f} ms (ratio {ratio:.2f})".format(**row), flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"bench": "beams", "model": str(options.model), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
