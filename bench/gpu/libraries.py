#!/usr/bin/env python3
"""Times what others have for the same shapes: torch (cuBLAS, cuDNN) and FlashInfer, each only when importable. A peer
that is missing or fails is a line and the others go on; the JSON is written again after every row.
usage: libraries.py --ours kernels.json --json OUT"""
import argparse
import json
import re
import statistics
import sys


def timer(torch):
    flush = torch.zeros(32 << 20, dtype=torch.int64, device="cuda")

    def measure(f, runs=31, warm_up=5):
        times = []
        for i in range(runs + warm_up):
            flush.sum()  # cold L2, as ours: by reading, so that nobody pays for a write-back of others
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            f()
            stop.record()
            torch.cuda.synchronize()
            if i >= warm_up:
                times.append(start.elapsed_time(stop) * 1000)
        return statistics.median(times)

    return measure


def gemm(torch, shape):
    m, n, k = map(int, shape.split("x"))
    x, w = (torch.randn(r, k, dtype=torch.bfloat16, device="cuda") for r in (m, n))
    return "cublas", lambda: torch.nn.functional.linear(x, w)


def rmsnorm(torch, shape):
    rows, n = map(int, shape.split("x"))
    x, weight = torch.randn(rows, n, dtype=torch.bfloat16, device="cuda"), torch.ones(n, dtype=torch.bfloat16, device="cuda")
    return "torch.rms_norm", lambda: torch.nn.functional.rms_norm(x, (n,), weight)


def silu(torch, shape):
    rows, n = map(int, shape.split("x"))
    x = torch.randn(rows, 2 * n, dtype=torch.bfloat16, device="cuda")
    return "torch.silu", lambda: torch.nn.functional.silu(x[:, :n]) * x[:, n:]


def embedding(torch, shape):
    rows, n = map(int, shape.split("x"))
    table, ids = torch.randn(1000, n, dtype=torch.bfloat16, device="cuda"), torch.randint(1000, (rows,), device="cuda")
    return "torch.embedding", lambda: torch.nn.functional.embedding(ids, table)


def sample(torch, shape):
    import flashinfer
    rows, vocab = map(int, shape.split("x"))
    p = torch.softmax(torch.randn(rows, vocab, device="cuda"), -1)
    return "flashinfer", lambda: flashinfer.sampling.sampling_from_probs(p)


def multinomial(torch, shape):
    rows, vocab = map(int, shape.split("x"))
    logits = torch.randn(rows, vocab, device="cuda")
    return "torch.multinomial", lambda: torch.multinomial(torch.softmax(logits, -1), 1)


def merge_state(torch, shape):
    import flashinfer
    rows, heads, dim = map(int, shape.split("x"))
    a, b = (torch.randn(rows, heads, dim, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    s, t = (torch.randn(rows, heads, device="cuda") for _ in range(2))
    return "flashinfer", lambda: flashinfer.merge_state(a, s, b, t)


def prefill(torch, shape):
    sequences, length = map(int, shape.split("x"))
    q = torch.randn(sequences, 32, length, 128, dtype=torch.bfloat16, device="cuda")
    k, v = (torch.randn(sequences, 8, length, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return "torch.sdpa", lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def cudnn(torch, q, k, v, causal):
    """cuDNN's attention and no other; a cuDNN that takes no groups of query heads gets keys and values once for each of
    them, and is called so."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def call(k, v, grouped):
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    try:
        call(k, v, True)
        return "torch.cudnn", lambda: call(k, v, True)
    except RuntimeError:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        call(k, v, False)
        return "torch.cudnn, no groups", lambda: call(k, v, False)


def cudnn_prefill(torch, shape):
    sequences, length = map(int, shape.split("x"))
    q = torch.randn(sequences, 32, length, 128, dtype=torch.bfloat16, device="cuda")
    k, v = (torch.randn(sequences, 8, length, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return cudnn(torch, q, k, v, True)


def cudnn_decode(torch, shape):
    sequences, length = map(int, shape.split("x"))
    q = torch.randn(sequences, 32, 1, 128, dtype=torch.bfloat16, device="cuda")
    k, v = (torch.randn(sequences, 8, length, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return cudnn(torch, q, k, v, False)


def sdpa_decode(torch, shape):
    """Over a cache in one piece, which a paged one is not."""
    sequences, length = map(int, shape.split("x"))
    q = torch.randn(sequences, 32, 1, 128, dtype=torch.bfloat16, device="cuda")
    k, v = (torch.randn(sequences, 8, length, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    return "torch.sdpa", lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def flashinfer_decode(torch, shape):
    import flashinfer
    sequences, length = map(int, shape.split("x"))
    pages = (length + 15) // 16
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(128 << 20, dtype=torch.uint8, device="cuda"), "NHD", use_tensor_cores=True)
    indptr = torch.arange(sequences + 1, dtype=torch.int32, device="cuda") * pages
    indices = torch.randperm(sequences * pages, device="cuda").int()
    last = torch.full((sequences,), (length - 1) % 16 + 1, dtype=torch.int32, device="cuda")
    wrapper.plan(indptr, indices, last, 32, 8, 128, 16, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
    cache = torch.randn(sequences * pages, 2, 16, 8, 128, dtype=torch.bfloat16, device="cuda")
    q = torch.randn(sequences, 32, 128, dtype=torch.bfloat16, device="cuda")
    return "flashinfer", lambda: wrapper.run(q, cache)


DECODE = [flashinfer_decode, sdpa_decode, cudnn_decode]
PEERS = {"gemm_bf16": [gemm], "gemm_wgmma": [gemm], "gemv": [gemm], "rmsnorm_add": [rmsnorm], "silu_mul": [silu],
         "embedding": [embedding], "sample": [sample, multinomial], "merge_state": [merge_state],
         "attention_prefill": [prefill, cudnn_prefill], "attention_prefill_wgmma": [prefill, cudnn_prefill],
         "attention_prefill_wgmma_fast": [prefill, cudnn_prefill], "attention_decode": DECODE,
         "attention_decode_fast": DECODE}


def compare(torch, measure, make, ours):
    """A row, or None when the peer is missing or cannot do this shape."""
    try:
        name, f = make(torch, ours["shape"])
        us = measure(f)
    except Exception as e:
        print(f"{ours['kernel']:22} {ours['shape']:24} {make.__name__}: SKIPPED: {type(e).__name__}: {str(e)[:100]}", flush=True)
        return None
    times = us / max(ours["us"], 1e-3)
    print(f"{ours['kernel']:22} {ours['shape']:24} {name:18} {us:10.2f} us, ours {ours['us']:10.2f} us, ours is {times:.2f} times as fast", flush=True)
    return dict(kernel=ours["kernel"], shape=ours["shape"], library=name, us=us, ours_us=ours["us"], ratio=times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ours", required=True)
    parser.add_argument("--json", required=True)
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("libraries: SKIPPED: torch is not importable")
        return
    if not torch.cuda.is_available():
        print("libraries: SKIPPED: torch sees no GPU")
        return
    measure, rows = timer(torch), []
    for ours in json.load(open(arguments.ours))["kernels"]:
        # Shapes with more to them than sizes have no peer here, a kernel that died has nothing to be compared.
        makers = PEERS.get(ours["kernel"], []) if re.fullmatch(r"[\dx]+", ours["shape"]) and ours["us"] > 0 else []
        for make in makers:
            row = compare(torch, measure, make, ours)
            if row is None:
                continue
            rows.append(row)
            with open(arguments.json, "w") as out:
                json.dump(dict(torch=torch.__version__, rows=rows), out, indent=1)


if __name__ == "__main__":
    sys.exit(main())
