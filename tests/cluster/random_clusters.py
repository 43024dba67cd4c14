#!/usr/bin/env python3
"""Clusters drawn by chance: transports, ranks, block sizes, chunks, prefix caches, numbers of workers, and requests with every
field. Every third seed has two workers of each role and, in each round, one fault: a worker is killed or stopped, or the router
stands still. What one worker answers is what every one of them must answer, bit for bit, and then all memory is back. Limits
and budgets are the default ones. By hand: random_clusters.py [--seeds 20] [--from 0] [--harm]; a seed is a cluster, and the
failing one's line replays it. --gpu: on emulated GPUs, with a model of a family drawn too, limits small enough for the emulator and
what one GPU answers (drawn_gpus.py)."""
import argparse
import contextlib
import os
import random
import signal
import sys
import threading
import time

from harness import Cluster, in_parallel
from test_disaggregated import LONG, wait_for_memory
from test_promise_a import answer, as_chat

WIDTH = ["--threads", 1, "--reduction-width", 4]
WORDS_OF_A_PROMPT, TOKENS_OF_AN_ANSWER = [1, 3, 20, 60, 150], [1, 2, 5, 17, 40]
TRANSPORTS = ["shm", "tcp", "ucx", "ucx-shm", "ucx-tcp"]
WORDS = "one two three four five six seven eight nine ten Zürich 北京 naïve \u2603 code() { return x; } <html>".split(" ")


def text(r, words):
    return " ".join(r.choice(WORDS) for _ in range(words))


def request(r, shared, model="tiny-llama", words=WORDS_OF_A_PROMPT, tokens=TOKENS_OF_AN_ANSWER):
    """One with any of the fields."""
    start = r.choice(["", "", shared[: r.randint(0, len(shared))], shared])
    body = {"model": model, "prompt": start + text(r, r.choice(words)), "max_tokens": r.choice(tokens),
            "seed": r.randint(0, 2**40), "temperature": r.choice([0, 0, 0.7, 1.2]), "logprobs": r.choice([None, 0, 1, 5])}
    extras = {"n": lambda: r.choice([2, 4]), "top_k": lambda: r.choice([1, 7]), "top_p": lambda: 0.8, "min_p": lambda: 0.03,
              "repetition_penalty": lambda: 1.3, "presence_penalty": lambda: 0.9, "frequency_penalty": lambda: -0.4,
              "stop": lambda: r.sample(["e", "qu", " ", "on", "\n", "xyz"], 2), "min_tokens": lambda: r.randint(0, body["max_tokens"]),
              "logit_bias": lambda: {str(r.randint(3, 500)): r.choice([-100, -2, 6]) for _ in range(3)},
              "priority": lambda: r.randint(-5, 5), "ignore_eos": lambda: True, "stop_token_ids": lambda: r.sample(range(3, 500), 60),
              "include_stop_str_in_output": lambda: True, "cache_salt": lambda: r.choice("ab")}
    for name in r.sample(sorted(extras), r.randint(0, 4)):
        body[name] = extras[name]()
    if r.random() < 0.2:
        body.update(echo=True, prompt_logprobs=r.choice([0, 2]))
    elif r.random() < 0.2:
        body["prompt_logprobs"] = r.choice([0, 1, 3])
    if r.random() < 0.2 and not body.get("echo"):
        body = as_chat(body)
    return {k: v for k, v in body.items() if v is not None}


def side(r, role):
    """Flags of one role."""
    ranks = r.choice([(1, 1), (1, 1), (2, 1), (4, 1), (1, 2), (2, 2)])
    args = [f"--{role}.tensor-parallel-size", ranks[0], f"--{role}.pipeline-parallel-size", ranks[1],
            f"--{role}.block-size", r.choice([16, 16, 64]), f"--{role}.max-num-batched-tokens", r.choice([16, 48, 100, 512, 2048])]
    if r.random() < 0.2:
        args += [f"--{role}.distributed-executor-backend", "mp"]
    if r.random() < 0.2:
        args += [f"--{role}.no-enable-prefix-caching"]
    return args


def cluster(r, harm):
    prefills, decodes = (2, 2) if harm else (r.choice([1, 1, 2]), r.choice([1, 1, 2]))
    args = [*WIDTH, "--prefill", prefills, "--decode", decodes, "--local-prefill-max-tokens", r.choice([-1, 0, 8, 40]),
            "--transport", r.choice(TRANSPORTS), *side(r, "prefill"), *side(r, "decode")]
    if r.random() < 0.3:
        args += ["--landing-slots", r.choice([2, 5]), "--landing-slot-bytes", 65536]
    if r.random() < 0.3:
        args += ["--decode.kv-cache-memory", "8M", "--max-model-len", 1024]
    if r.random() < 0.2:
        args += ["--prefill.test-kv-fault-rate", r.choice([0.1, 0.5])]
    if r.random() < 0.2:
        args += ["--no-enable-prefix-caching"]
    return args


def disturb(c, r, over):
    """One fault at some moment of a round; a worker of each role stays as it is."""
    over.wait(r.uniform(0.02, 0.6))
    what, whom = r.choice(["kill", "stop"]), r.choice(["prefill", "decode", "router"])
    if whom == "router":
        what = "stop"
    pid = c.pid_of("router") if whom == "router" else r.choice(c.workers(whom))
    if what == "kill":
        return os.kill(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(r.choice([0.2, 1, 2.5, 3.5, 4.5, 7]))  # the length of the stop is what is tested
    os.kill(pid, signal.SIGCONT)


def run(seed, alone, harm):
    r = random.Random(seed)
    harm = harm or seed % 3 == 2
    args = cluster(r, harm)
    shared = text(r, 40)
    bodies = [request(r, shared) for _ in range(24)]
    print(f"seed {seed}: {'harmed; ' if harm else ''}{' '.join(map(str, args))}", flush=True)
    want = [answer(alone, body) for body in bodies]
    with Cluster(args=args) as c:
        holds(c, r, bodies, want, f"seed {seed}", harm, 3 if harm else 2)


def holds(c, r, bodies, want, what, harm, rounds):
    """The answers of each round, with a fault in it where `harm` says so, are those that are wanted; then all memory is back."""
    for round_number in range(rounds):
        over = threading.Event()
        harmer = threading.Thread(target=disturb, args=(c, r, over))
        if harm:
            harmer.start()
        try:
            got = in_parallel([lambda b=b: answer(c, b) for b in bodies])
        finally:
            over.set()
            if harm:
                harmer.join()
        for body, expected, have in zip(bodies, want, got):
            assert have == expected, f"{what}, round {round_number}: {body}\n{have}\ninstead of\n{expected}"
        if harm:
            c.wait_until(lambda: c.metric("baton_worker_up") == 4, "all workers are back", 60)
    wait_for_memory(c, what)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--harm", action="store_true", help="faults in every seed")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--gpu", action="store_true", help="on emulated GPUs: BATON_EMULATED_PLUGIN is the plugin")
    options = parser.parse_args()
    begin, failed = time.monotonic(), []
    with contextlib.ExitStack() as held:
        if options.gpu:
            from drawn_gpus import run_on_gpus as draw_and_run
        else:
            alone = held.enter_context(Cluster(args=WIDTH))
            draw_and_run = lambda seed, harm: run(seed, alone, harm)
        for seed in range(options.first, options.first + options.seeds):
            if time.monotonic() - begin > options.seconds:
                break
            try:
                draw_and_run(seed, options.harm)
            except Exception as e:  # noqa: BLE001 - told at the end
                failed.append(seed)
                print(f"seed {seed} FAILED: {str(e)[:6000]}", flush=True)
    print(f"failed: {failed}" if failed else "all right")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
