#!/usr/bin/env python3
"""Every kind of answer of tests/cluster/test_matrix.py (structured, tools, thoughts, other APIs …), all at once, while a decode worker is
killed at every fifth token of a stream beside them: is any byte another one than alone and undisturbed? Default flags.
By hand: matrix.py [--every 5] [--seed 1]."""
import argparse
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "cluster"))
from harness import Cluster  # noqa: E402
from test_matrix import COLUMNS, DEATHS, differing, row_across_a_death, row_of  # noqa: E402
from thinking_model import thinking_model  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=DEATHS.step)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    r, failed = random.Random(options.seed), []
    with thinking_model(more=["<tool_call>"]) as model:
        with Cluster(model) as c:
            want = row_of(c, at_once=False)
        with Cluster(model, args=COLUMNS["a decode worker dies"]) as c:
            for index in range(DEATHS.start, DEATHS.stop, options.every):
                differ = differing(want, row_across_a_death(c, index, r), f"killed at token {index}")
                failed += [(index, feature) for feature in sorted(differ)]
                print(f"token {index:3}: {len(want)} answers, {'differ: ' + ', '.join(sorted(differ)) if differ else 'same bytes'}", flush=True)
    print(f"failed: {failed}" if failed else "all as alone and undisturbed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
