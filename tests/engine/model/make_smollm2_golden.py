#!/usr/bin/env python3
"""Makes tests/engine/model/goldens/smollm2.json: greedy text of transformers, in f32, on the real SmolLM2-135M-Instruct GGUF
dequantized by the gguf package and rounded to bf16 (what Baton computes with).

usage: make_smollm2_golden.py FILE.gguf [OUT.json]    needs torch, transformers 5, gguf
"""
import json
import pathlib
import sys

import gguf
import numpy as np
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

GREEDY = 48
PROMPTS = [
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a short poem about a relay race.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    ",
    "The history of the printing press begins in",
]
NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}


def hf_name(name):
    if name in ("token_embd.weight", "output_norm.weight"):
        return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.{kind}"


def rotate_half_rows(weight, heads):
    """Rows of q and k lie in pairs in the file; back to two halves per head."""
    rows = weight.shape[0]
    return weight.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def load(path):
    reader = gguf.GGUFReader(path)
    field = lambda key: reader.fields["llama." + key].contents()
    heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    state = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if ".attn_q." in tensor.name:
            values = rotate_half_rows(values, heads)
        if ".attn_k." in tensor.name:
            values = rotate_half_rows(values, kv_heads)
        weight = torch.from_numpy(np.ascontiguousarray(values))
        state[hf_name(tensor.name)] = weight.to(torch.bfloat16).to(torch.float32) if weight.dim() == 2 else weight
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    config = LlamaConfig(hidden_size=field("embedding_length"), intermediate_size=field("feed_forward_length"), num_attention_heads=heads,
                         num_key_value_heads=kv_heads, num_hidden_layers=field("block_count"), tie_word_embeddings=True,
                         vocab_size=state["model.embed_tokens.weight"].shape[0], rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
                         rope_theta=field("rope.freq_base"), max_position_embeddings=field("context_length"))
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(state)
    return model


def main():
    path = pathlib.Path(sys.argv[1])
    out = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else pathlib.Path(__file__).parent / "goldens/smollm2.json")
    model = load(path)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    cases = []
    for text in PROMPTS:
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        tokens, margins, first, cache = list(prompt), [], None, None
        with torch.no_grad():
            for _ in range(GREEDY):
                step = model(torch.tensor([tokens if cache is None else tokens[-1:]]), past_key_values=cache, use_cache=True)
                row, cache = step.logits[0, -1], step.past_key_values
                first = row if first is None else first
                best = torch.topk(row, 2).values
                margins.append(float(f"{best[0] - best[1]:.5g}"))
                tokens.append(int(row.argmax()))
        greedy = tokens[len(prompt):]
        cases.append({"text": text, "prompt": prompt, "greedy": greedy, "margins": margins, "std": float(first.std()),
                      "first_logits": [float(f"{x:.7g}") for x in first[::97].tolist()]})
        print(repr(tokenizer.decode(greedy)), "least margin", min(margins), "std", cases[-1]["std"])
    out.write_text(json.dumps({"cases": cases}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
