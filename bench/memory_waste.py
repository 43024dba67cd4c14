#!/usr/bin/env python3
"""How much KV memory is taken and not used, by how it is handed out, over the requests of one trace.

  contiguous  a request reserves the longest sequence that the model takes
  known       it reserves its prompt and its answer in one piece, as if that length were known
  buddy       it holds one piece of a power of two, and moves to one twice as large when that is full
  paged       it holds blocks of --block tokens as it grows

A request holds its prompt from its arrival on, and a token more every --step ms. All that is held counts, however much
memory there is: the table says what would have to be there, and what share of it is used.

usage: memory_waste.py TRACE (Mooncake's or a timed trace, JSON lines; Azure's, CSV) [--longest N] [--block N] [--step MS] [--json FILE]
"""
import argparse
import datetime
import heapq
import itertools
import json


def requests(path, most):
    """(second, prompt tokens, answer tokens), in the order of time."""
    with open(path) as file:
        lines = (line for line in file if not line.startswith("TIMESTAMP"))
        for line in itertools.islice(lines, most):
            if line.startswith("{"):
                row = json.loads(line)
                yield (row.get("timestamp", row.get("ts")) / 1e3, row.get("input_length", row.get("il")),
                       max(1, row.get("output_length", row.get("ol"))))
            else:
                at, prompt, answer = line.strip().split(",")
                yield datetime.datetime.fromisoformat(at[:26]).timestamp(), int(prompt), max(1, int(answer))


def held_by(kind, tokens, final, o):
    """Tokens of memory that a sequence of so many tokens holds, which will have `final` of them."""
    if kind == "contiguous":
        return o.longest
    if kind == "known":
        return final
    if kind == "buddy":
        return 1 << max(4, (tokens - 1).bit_length())
    return -(-tokens // o.block) * o.block


def replay(kind, trace, o):
    """Mean share of what is held that is not used, and the most that is held at once, in tokens."""
    live, held_area, used_area, most, last = [], 0.0, 0.0, 0, None
    ends = []
    for at, prompt, answer in [*trace, (trace[-1][0] + 1e9, 0, 0)]:
        second = last if last is not None else at
        while second < min(at, second + 1e9):  # every tenth of a second, as long as somebody is there
            now = min(at, second + 0.1)
            while ends and ends[0][0] <= second:
                live.remove(heapq.heappop(ends)[1])
            if not live:
                break
            held = used = 0
            for begin, p, a in live:
                tokens = p + min(a, int((second - begin) / (o.step / 1e3)))
                held += held_by(kind, tokens, p + a, o)
                used += tokens
            held_area += held * (now - second)
            used_area += used * (now - second)
            most = max(most, held)
            second = now
        last = at
        if prompt:
            live.append((at, prompt, answer))
            heapq.heappush(ends, (at + answer * o.step / 1e3, (at, prompt, answer)))
    return {"kind": kind, "wasted": 1 - used_area / held_area, "most_tokens": most}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trace")
    p.add_argument("--longest", type=int, default=0, help="tokens that the model takes; default: the longest of the trace")
    p.add_argument("--block", type=int, default=16)
    p.add_argument("--step", type=float, default=30, help="ms of a token")
    p.add_argument("--requests", type=int, default=500)
    p.add_argument("--json")
    o = p.parse_args()
    trace = list(requests(o.trace, o.requests))
    o.longest = o.longest or max(prompt + answer for _, prompt, answer in trace)
    rows = [replay(kind, trace, o) for kind in ("contiguous", "known", "buddy", "paged")]
    print(f"{len(trace)} requests, the longest sequence {o.longest} tokens, blocks of {o.block}")
    print(f"{'handed out':12} {'not used':>9} {'most held, tokens':>18} {'beside paged':>13}")
    for row in rows:
        print(f"{row['kind']:12} {100 * row['wasted']:8.1f}% {row['most_tokens']:18} {row['most_tokens'] / rows[-1]['most_tokens']:12.2f}x")
    if o.json:
        with open(o.json, "w") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    main()
