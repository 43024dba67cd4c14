#!/usr/bin/env python3
"""Times what others have for the same shapes: torch (cuBLAS, cuDNN) and FlashInfer, each only when importable.
usage: libraries.py --ours kernels.json --json OUT"""
import argparse
import json
import re
import statistics
import sys


def timer(torch):
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

    def measure(f, runs=31, warm_up=5):
        times = []
        for i in range(runs + warm_up):
            flush.fill_(i & 1)  # cold L2, as ours
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


PEERS = {"gemm_bf16": gemm, "gemm_wgmma": gemm, "gemv": gemm, "rmsnorm_add": rmsnorm, "silu_mul": silu, "embedding": embedding,
         "sample": sample, "merge_state": merge_state, "attention_prefill": prefill, "attention_decode": flashinfer_decode}


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
        make, shape = PEERS.get(ours["kernel"]), ours["shape"]
        if make is None or not re.fullmatch(r"[\dx]+", shape):
            continue
        try:
            name, f = make(torch, shape)
            us = measure(f)
        except Exception as e:  # a missing library or an unsupported shape is a line, not the end
            print(f"{ours['kernel']:20} {shape:24} SKIPPED: {type(e).__name__}: {str(e)[:100]}")
            continue
        rows.append(dict(kernel=ours["kernel"], shape=shape, library=name, us=us, ours_us=ours["us"], ratio=us / ours["us"]))
        print(f"{ours['kernel']:20} {shape:24} {name:16} {us:10.2f} us, ours {ours['us']:10.2f} us, ours is {us / ours['us']:.2f} times as fast")
    json.dump(dict(torch=torch.__version__, rows=rows), open(arguments.json, "w"), indent=1)


if __name__ == "__main__":
    sys.exit(main())
