"""Clusters of prefill and decode workers on emulated GPUs, drawn by a seed: a model of any family, ranks and stages of each role,
threads or processes, the KV's type, blocks, chunks and a transport. They answer what one GPU answers, bit for bit."""
import json
import os
import pathlib
import random
import shutil
import tempfile

from harness import ROOT, TINY, Cluster
from random_clusters import holds, request, text
from test_promise_a import answer

GOLDENS = ROOT / "tests" / "engine" / "model" / "goldens"
FAMILIES = ["tiny-llama", *sorted(config.parent.name for config in GOLDENS.glob("*/config.json"))]
TRANSPORTS = ["auto", "shm", "tcp", "ucx-shm", "ucx-tcp"]
# Everywhere, so that all answers are those of one worker.
GPUS = ["--threads", 1, "--device", "cuda", "--device-plugin", os.environ.get("BATON_EMULATED_PLUGIN", ""), "--reduction-width", 2,
        "--kv-cache-memory", "8M", "--max-model-len", 576, "--max-num-seqs", 4]


def model_of(family, folder):
    """A model of that family whose vocabulary is tiny-llama's: its toy config, with the tokenizer."""
    if family == "tiny-llama":
        return TINY
    path = pathlib.Path(folder) / family
    shutil.copytree(TINY, path)
    ours = json.loads((TINY / "config.json").read_text())
    config = json.loads((GOLDENS / family / "config.json").read_text())
    config.update({key: ours[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "max_position_embeddings")})
    (path / "config.json").write_text(json.dumps(config))
    return path


def side(r, role):
    """Flags of one role."""
    tensor, pipeline = r.choice([(1, 1), (2, 1), (2, 1), (1, 2), (2, 2)])
    args = [f"--{role}.tensor-parallel-size", tensor, f"--{role}.pipeline-parallel-size", pipeline,
            f"--{role}.block-size", r.choice([16, 16, 32, 64]), f"--{role}.max-num-batched-tokens", r.choice([48, 100, 512])]
    if tensor * pipeline > 1 and r.random() < 0.5:
        args += [f"--{role}.distributed-executor-backend", "mp"]
    if r.random() < 0.3:
        args += [f"--{role}.enforce-eager"]
    if r.random() < 0.3:
        args += [f"--{role}.one-shot-sum-bytes", 0]
    return args


def run_on_gpus(seed, harm=False, count=8, rounds=2):
    """`count` requests in each round; `harm`: two workers of each role, and a fault in each of three rounds."""
    r = random.Random(seed)
    family, transport = FAMILIES[seed % len(FAMILIES)], TRANSPORTS[seed // len(FAMILIES) % len(TRANSPORTS)]
    kept = [*GPUS, *(["--kv-cache-dtype", "fp8"] if r.random() < 0.2 else [])]
    number = 2 if harm else 1
    pair = ["--prefill", number, "--decode", number, "--local-prefill-max-tokens", r.choice([0, 8, 8]), "--transport", transport,
            *side(r, "prefill"), *side(r, "decode")]
    print(f"seed {seed}: {family}{', harmed' if harm else ''}; {' '.join(map(str, [*kept[8:], *pair]))}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        model = model_of(family, folder)
        shared = text(r, 10)
        # The first is longer than what a decode worker computes itself.
        bodies = [request(r, shared, model.name, words=[1, 3, 12, 30] if i else [30], tokens=[1, 2, 5, 9]) for i in range(count)]
        with Cluster(model, args=kept) as alone:
            want = [answer(alone, body) for body in bodies]
        with Cluster(model, args=[*kept, *pair]) as c:
            if f"no KV by {transport}" in c.log.read_text():
                print(f"seed {seed}: this build has no {transport}", flush=True)
                return
            holds(c, r, bodies, want, f"seed {seed}", harm, 3 if harm else rounds)
            c.wait_until(lambda: c.metric("baton_kv_transfer_bytes_total") > 0, f"seed {seed}: KV moves")  # told after the answers
            if not harm:
                assert c.metric("baton_kv_digest_mismatches_total") == 0 and c.metric("baton_handoff_recomputes_total") == 0
