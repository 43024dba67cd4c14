#!/usr/bin/env python3
"""Who carries KV when both sides have several rank processes, and what a gigabyte costs: 1, 2 and 4 ranks hand over to as many.

  bench/rank_lanes.py [--prompts 24] [--tokens 1500] [--transport tcp] [--rounds 1] [--beside BATON] [--json FILE] [-- FLAGS OF BATON SERVE]

A model of random weights with much KV and little to compute. Of each rank: bytes as its worker reports them, and the CPU time of its
transfer thread, which gathers or scatters, verifies, and talks to the other side and to rank 0, for a gigabyte of its own; and how often
that thread has waited meanwhile. All are medians over the rounds, each a fresh cluster; `--beside` takes turns with another build of the
program. One rank needs no orders for each slot.
Beside each group of ranks as many pairs of one rank, apart from one another, do the same at the same time: as many processes on the
same cores, and the bytes of a rank of the group each. So a processor that is shared by more processes costs both the same, and what
the group costs more is what its ranks have to tell one another.
Fails when rank 0 carries another share than its own, or when a gigabyte of four ranks costs half as much again as one of one rank, or 30 % more than one of
four pairs apart."""
import argparse
import contextlib
import json
import pathlib
import random
import re
import shutil
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cluster"))
import harness  # noqa: E402
from harness import TINY, Cluster, in_parallel  # noqa: E402
from test_node_lanes import rank_bytes  # noqa: E402
from test_parallel import children_of  # noqa: E402

MODEL = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 32,
         "head_dim": 128}
ROLES = ("prefill", "decode")
KINDS = ((1, 1), (1, 2), (2, 1), (1, 4), (4, 1))  # ranks of a group, groups at the same time
MOST = 1.5  # of one rank
MOST_OF_APART = 1.3
WARM_UP = 6  # times four prompts: only then has every page of the landing rings been touched, for slots are filled to other places


def model_dir(share=1):
    """TINY with other sizes: its KV is 2 layers x 32 heads x 128 x 2 planes a token, or that share of the heads."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="baton-lanes-")) / "lanes"
    shutil.copytree(TINY, path)
    config = json.loads((path / "config.json").read_text())
    heads = {name: MODEL[name] // share for name in ("num_attention_heads", "num_key_value_heads")}
    (path / "config.json").write_text(json.dumps({**config, **MODEL, **heads}))
    return path


def transfer_cost(pid):
    """CPU seconds of the process's transfer thread so far, and how often it has waited: each time somebody woke it."""
    seconds, waits = 0, 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "transfer":
            seconds += int((task / "schedstat").read_text().split()[0]) / 1e9
            waits += int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.M)[1])
    return seconds, waits


def processes(cluster, role):
    worker = cluster.workers(role)[0]
    rank_of = {int(re.search(r"--rank=(\d+)", pathlib.Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))[1]): pid
               for pid in children_of(worker)}
    return [worker, *(rank_of[r] for r in sorted(rank_of))]


def ask(cluster, tokens, seed):
    r = random.Random(seed)
    prompt = [r.randrange(3, 500) for _ in range(tokens)]
    reply = cluster.post("/v1/completions", {"prompt": prompt, "max_tokens": 2, "ignore_eos": True, "temperature": 0})
    assert reply.status == 200, reply.body


def reported(cluster):
    """{role: (bytes of each rank, slots of all)}, since the start."""
    time.sleep(1)  # reports come ten times a second
    slots = r'^baton_kv_transfer_slots_total{[^}]*role="%s"[^}]*} (\S+)$'
    return {role: (rank_bytes(cluster)[role], sum(float(n) for n in re.findall(slots % role, cluster.get("/metrics").body, re.M))) for role in ROLES}


def group(model, ranks, args):
    flags = ["--threads", 1, "--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 0, "--no-enable-prefix-caching",
             "--transport", args.transport, "--tensor-parallel-size", ranks, "--distributed-executor-backend", "mp", "--reduction-width", 4,
             "--kv-cache-memory", "1G", *args.flags]
    return Cluster(args=flags, model=model)


def ask_all(clusters, args, seeds):
    """Four prompts at a time of each cluster."""
    def of_one(c):
        for i in range(0, len(seeds), 4):
            in_parallel([lambda s=s: ask(c, args.tokens, s) for s in seeds[i:i + 4]])
    in_parallel([lambda c=c: of_one(c) for c in clusters])


def measure(model, ranks, args, apart=1):
    """One group of so many ranks, or `apart` pairs of one rank at the same time, each a cluster, whose ranks are counted as one group's."""
    with contextlib.ExitStack() as stack:
        clusters = [stack.enter_context(group(model, ranks, args)) for _ in range(apart)]
        # Each rank's landing ring is touched for the first time: as many bytes, whatever its share is.
        ask_all(clusters, args, range(-4 * WARM_UP + 1, 1))
        pids = {role: [pid for c in clusters for pid in processes(c, role)] for role in ROLES}
        told_before = [reported(c) for c in clusters]
        before = {role: [transfer_cost(pid) for pid in pids[role]] for role in pids}
        began = time.monotonic()
        ask_all(clusters, args, range(1, args.prompts + 1))
        out = {"ranks": ranks, "apart": apart, "seconds": time.monotonic() - began}
        after = {role: [transfer_cost(pid) for pid in pids[role]] for role in pids}
        told = [reported(c) for c in clusters]
        for role in pids:
            carried = [now - then for c, d in zip(told, told_before) for now, then in zip(c[role][0], d[role][0])]
            slots = sum(c[role][1] - d[role][1] for c, d in zip(told, told_before))
            cpu, waits = zip(*([now - then for now, then in zip(a, b)] for a, b in zip(after[role], before[role])))
            out[role] = {"bytes": carried, "slots": slots, "cpu_seconds": cpu, "waits": waits,
                         "share_of_rank_0": carried[0] / sum(carried), "cpu_seconds_per_gb": [s / (b / 1e9) for s, b in zip(cpu, carried)],
                         "waits_per_gb": [n / (b / 1e9) for n, b in zip(waits, carried)]}
        return out


def medians(rows):
    """{(ranks, apart, role): {rank 0, the others, all: CPU seconds for a GB of their own; waits: of rank 0, of the others, for a GB; slot: bytes in one}}"""
    out = {}
    for ranks, apart in KINDS:
        for role in ROLES:
            of_these = [row[role] for row in rows if (row["ranks"], row["apart"]) == (ranks, apart)]
            per_gb = [statistics.median(of_rank) for of_rank in zip(*(f["cpu_seconds_per_gb"] for f in of_these))]
            waits = [statistics.median(of_rank) for of_rank in zip(*(f["waits_per_gb"] for f in of_these))]
            out[ranks, apart, role] = {"waits": (waits[0], statistics.mean(waits[1:] or waits)), "rank 0": per_gb[0], "others": statistics.mean(per_gb[1:] or per_gb), "all": statistics.mean(per_gb),
                                "slot": statistics.median(sum(f["bytes"]) / max(1, f["slots"]) for f in of_these)}
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--transport", default="tcp")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--beside", type=pathlib.Path)
    parser.add_argument("--json")
    parser.add_argument("flags", nargs="*")
    args = parser.parse_args()
    builds = {"this": harness.BATON, **({"beside": args.beside} if args.beside else {})}
    models = {apart: model_dir(apart) for apart in {apart for _, apart in KINDS}}
    rows = {name: [] for name in builds}
    try:
        for turn in range(args.rounds):
            for ranks, apart in KINDS:
                for name in list(builds)[::-1 if turn % 2 else 1]:
                    harness.BATON = builds[name]
                    rows[name].append(measure(models[apart], ranks, args, apart))
    finally:
        for model in models.values():
            shutil.rmtree(model.parent)
    print(f"{args.prompts} prompts of {args.tokens} tokens, by {args.transport}; transfer threads' CPU seconds for a GB, medians of {args.rounds} rounds")
    print(f"{'build':>6} {'ranks':>7} {'role':>8} {'rank 0':>7} {'others':>7} {'of each other':>13} {'of one rank':>12} {'of apart':>8} {'KiB a slot':>11} {'waits':>7} {'others':>7}")
    for name in builds:
        figures = medians(rows[name])
        for (ranks, apart, role), f in figures.items():
            shown = f"{apart} x {ranks}" if apart > 1 else ranks
            print(f"{name:>6} {shown:>7} {role:>8} {f['rank 0']:>7.3f} {f['others']:>7.3f} {f['rank 0'] / f['others']:>13.2f} "
                  f"{f['all'] / figures[1, 1, role]['all']:>12.2f} {f['all'] / figures[1, ranks * apart, role]['all']:>8.2f} "
                  f"{f['slot'] / 1024:>11.0f} {f['waits'][0]:>7.0f} {f['waits'][1]:>7.0f}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1))
    wrong = [f"{role} of {row['ranks']} ranks: rank 0 carries {row[role]['share_of_rank_0']:.1%}" for row in sum(rows.values(), []) if row["apart"] == 1
             for role in ROLES if abs(row[role]["share_of_rank_0"] * row["ranks"] - 1) > 0.001]
    figures = medians(rows["this"])
    wrong += [f"{role}: 4 ranks take more than {most} times the CPU of {what} per GB" for role in ROLES
              for most, what, kind in ((MOST, "one", (1, 1)), (MOST_OF_APART, "four apart", (1, 4)))
              if figures[4, 1, role]["all"] > most * figures[*kind, role]["all"]]
    return "; ".join(wrong)


if __name__ == "__main__":
    sys.exit(main())
