#!/usr/bin/env python3
"""Makes tests/engine/model/goldens/smollm2.json: greedy text of the real SmolLM2-135M-Instruct GGUF, dequantized by the gguf
package, computed in double precision. Rounded to bf16 first (--round-to-bf16), the weights gave the logits of transformers in f32
within 1e-5 standard deviations and the same text.

usage: make_smollm2_golden.py [--round-to-bf16] FILE.gguf [OUT.json]    needs numpy, gguf; prompts' ids come from the file to be replaced
"""
import json
import pathlib
import sys

import gguf
import numpy as np

GREEDY = 48


def bf16(x):
    bits = x.view(np.uint32).astype(np.uint64)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


class Llama:
    """One sequence; the rows of q and k lie in pairs in the file, and the rotation takes them so."""

    def __init__(self, path, rounded):
        reader = gguf.GGUFReader(path)
        field = lambda key: reader.fields["llama." + key].contents()
        self.heads, self.kv_heads, self.layers = field("attention.head_count"), field("attention.head_count_kv"), field("block_count")
        self.eps = field("attention.layer_norm_rms_epsilon")
        self.weights = {}
        for tensor in reader.tensors:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            self.weights[tensor.name] = (bf16(values) if rounded and values.ndim == 2 else values).astype(np.float64)
        self.dim = self.weights["token_embd.weight"].shape[1] // self.heads
        self.frequencies = field("rope.freq_base") ** (-np.arange(0, self.dim, 2) / self.dim)
        self.cache = []

    def rotate(self, x, positions):
        angles = positions[:, None, None] * self.frequencies
        cos, sin, even, odd = np.cos(angles), np.sin(angles), x[..., 0::2], x[..., 1::2]
        return np.concatenate([even * cos - odd * sin, even * sin + odd * cos], -1)

    def attend(self, q, k, v, positions):
        out, group = np.empty_like(q), self.heads // self.kv_heads
        later = np.arange(k.shape[0])[None] > positions[:, None]
        for head in range(self.heads):
            scores = q[:, head] @ k[:, head // group].T / np.sqrt(self.dim)
            scores[later] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = weights / weights.sum(-1, keepdims=True) @ v[:, head // group]
        return out.reshape(len(q), -1)

    def logits(self, tokens):
        """Of the last of `tokens`, which follow those of earlier calls."""
        x = self.weights["token_embd.weight"][tokens]
        first = len(self.cache[0][0]) if self.cache else 0
        positions = np.arange(first, first + len(tokens))
        for layer in range(self.layers):
            w = lambda name: self.weights[f"blk.{layer}.{name}.weight"]
            h = norm(x, w("attn_norm"), self.eps)
            part = lambda name, heads: (h @ w(name).T).reshape(-1, heads, self.dim)
            q, k = self.rotate(part("attn_q", self.heads), positions), self.rotate(part("attn_k", self.kv_heads), positions)
            v = part("attn_v", self.kv_heads)
            if first > 0:
                k, v = np.concatenate([self.cache[layer][0], k]), np.concatenate([self.cache[layer][1], v])
            self.cache[layer:layer + 1] = [(k, v)]
            x = x + self.attend(q, k, v, positions) @ w("attn_output").T
            h = norm(x, w("ffn_norm"), self.eps)
            gate = h @ w("ffn_gate").T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up").T)) @ w("ffn_down").T
        return norm(x[-1], self.weights["output_norm.weight"], self.eps) @ self.weights["token_embd.weight"].T


def main():
    arguments = [a for a in sys.argv[1:] if a != "--round-to-bf16"]
    golden = pathlib.Path(__file__).parent / "goldens/smollm2.json"
    out = pathlib.Path(arguments[1]) if len(arguments) > 1 else golden
    model, cases = Llama(pathlib.Path(arguments[0]), "--round-to-bf16" in sys.argv), []
    for case in json.loads(golden.read_text())["cases"]:
        model.cache = []
        first = row = model.logits(np.array(case["prompt"]))
        greedy, margins = [], []
        for _ in range(GREEDY):
            second, best = np.sort(row)[-2:]
            greedy.append(int(row.argmax()))
            margins.append(float(f"{best - second:.5g}"))
            row = model.logits(np.array(greedy[-1:]))
        cases.append({"text": case["text"], "prompt": case["prompt"], "greedy": greedy, "margins": margins, "std": float(first.std(ddof=1)),
                      "first_logits": [float(f"{x:.7g}") for x in first[::97]]})
        print(repr(case["text"]), "least margin", min(margins), "std", cases[-1]["std"])
    out.write_text(json.dumps({"cases": cases}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
