#!/usr/bin/env python3
"""Beam searches of every kind, all at once, handed over between workers of other ranks and blocks, while a decode worker is killed at every
fifth token of a stream beside them: is any byte another one than on one worker that nothing disturbs? Default flags otherwise.
By hand: beams.py [--every 5] [--seed 1]."""
import argparse
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "cluster"))
from harness import Cluster, in_parallel  # noqa: E402
from test_beams import DEATHS, SPARES, WIDTH, across_a_death, searches  # noqa: E402
from test_promise_a import answer  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=DEATHS.step)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    r, bodies, failed = random.Random(options.seed), searches(), []
    with Cluster(args=WIDTH) as c:
        want = in_parallel([lambda b=b: answer(c, b) for b in bodies])
    for ranks, args in SPARES.items():
        with Cluster(args=args) as c:
            for index in range(DEATHS.start, DEATHS.stop, options.every):
                got = across_a_death(c, bodies, index, r)
                differ = [body for body, expected, have in zip(bodies, want, got) if expected != have]
                failed += [(ranks, index, body) for body in differ]
                print(f"{ranks}, token {index:3}: {len(bodies)} searches, {differ or 'same bytes'}", flush=True)
            print(f"{ranks}: {c.metric('baton_retries_total'):.0f} legs were begun again", flush=True)
    print(f"failed: {failed}" if failed else "all as alone and undisturbed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
