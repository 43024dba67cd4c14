#!/usr/bin/env python3
"""Makes tests/engine/model/goldens: what Hugging Face transformers computes, in f32 on the CPU, for small models of every
family with the weights of `--load-format dummy` (engine/model/files/dummy_weights.cc, repeated here), for rope scalings, and for
GGUF blocks.

usage: make_goldens.py [DIRECTORY]    needs torch, transformers 5, gguf
"""
import functools
import json
import pathlib
import sys

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.gemma3 import modeling_gemma3

GOLDEN = 0x9E3779B97F4A7C15
M64 = (1 << 64) - 1
PROMPT, GREEDY, SEED = 48, 32, 7
LOGIT_ROWS = [0, 1, 15, 16, 17, 33, 47]

SMALL = {"hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 64, "vocab_size": 320, "max_position_embeddings": 512, "eos_token_id": 2, "bos_token_id": 1}
CASES = {
    "llama2": {**SMALL, "model_type": "llama", "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": True,
               "tie_word_embeddings": False, "rope_theta": 10000.0},
    "llama3": {**SMALL, "model_type": "llama", "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": True,
               "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                                        "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
    "qwen2": {**SMALL, "model_type": "qwen2", "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
              "rope_theta": 1000000.0, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    "qwen3": {**SMALL, "model_type": "qwen3", "head_dim": 128, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": True,
              "rope_theta": 1000000.0, "attention_bias": False, "use_sliding_window": False, "sliding_window": None},
    "mistral": {**SMALL, "model_type": "mistral", "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
                "rope_theta": 10000.0, "sliding_window": 16},
    "smollm3": {**SMALL, "model_type": "smollm3", "num_hidden_layers": 4, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": True,
                "rope_theta": 2000000.0, "no_rope_layers": [1, 1, 1, 0], "pad_token_id": 0},
    "gemma2": {**SMALL, "model_type": "gemma2", "num_hidden_layers": 4, "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh",
               "query_pre_attn_scalar": 48, "sliding_window": 16, "rope_theta": 10000.0, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0,
               "tie_word_embeddings": False},
    "gemma3": {**SMALL, "model_type": "gemma3_text", "num_hidden_layers": 4, "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh",
               "query_pre_attn_scalar": 48, "sliding_window": 16, "sliding_window_pattern": 2, "rope_theta": 1000000.0,
               "rope_local_base_freq": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
               "attn_logit_softcapping": 4.0, "final_logit_softcapping": 6.0, "tie_word_embeddings": False},
}
ROPES = {
    "default": {"rope_theta": 10000.0},
    "linear": {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama3": {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                        "original_max_position_embeddings": 8192}},
    "yarn": {"rope_theta": 1000000.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
    "yarn_all": {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096,
                                                         "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.7}},
    "yarn_attention": {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096,
                                                               "beta_fast": 20.0, "beta_slow": 2.0, "attention_factor": 0.9, "truncate": False}},
    "yarn_short": {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    "yarn_shortest": {"rope_theta": 10000.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6}},
    "yarn_long": {"rope_theta": 2.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}},
    "parameters": {"rope_parameters": {"rope_type": "linear", "rope_theta": 20000.0, "factor": 2.0}},
}
BLOCKS = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]


EAGER_GEMMA3 = modeling_gemma3.eager_attention_forward


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & M64
    return value


def dummy(name, shape, seed, norm_offset):
    n = int(np.prod(shape))
    key = np.uint64((fnv1a(name) + seed * GOLDEN) & M64)
    with np.errstate(over="ignore"):
        z = key + np.arange(1, (n + 3) // 4 + 1, dtype=np.uint64) * np.uint64(GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    lanes = z.view(np.uint16)[:n].astype(np.float32) - np.float32(32767.5)
    matrix = len(shape) == 2
    deviation = 1 / np.sqrt(float(shape[1])) if matrix else 0.1
    centre = np.float32(0 if matrix or name.endswith("bias") else 1 - norm_offset)
    values = lanes * np.float32(np.sqrt(3.0) * deviation / 32768) + centre
    return torch.from_numpy(values.reshape(shape)).to(torch.bfloat16).to(torch.float32)


def make_model(directory, config):
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    hf = AutoConfig.from_pretrained(directory)
    model = AutoModelForCausalLM.from_config(hf, attn_implementation="eager", dtype=torch.float32).eval()
    offset = 1.0 if config["model_type"].startswith("gemma") else 0.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # a tied head is not listed
            parameter.copy_(dummy(name.removeprefix("model."), list(parameter.shape), SEED, offset))
    return model


def family_golden(directory, config):
    directory.mkdir(parents=True, exist_ok=True)
    # transformers' Gemma 3 reads the attention soft-cap but does not hand it to its own attention function; no checkpoint
    # sets it. It is handed over here, so that the path is compared at all.
    cap = config.get("attn_logit_softcapping")
    modeling_gemma3.eager_attention_forward = functools.partial(EAGER_GEMMA3, softcap=cap)
    model = make_model(directory, config)
    prompt = [int(x) for x in (np.arange(PROMPT) * 2654435761 + 12345) % (1 << 32) // 7 % config["vocab_size"]]
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0]
        tokens, margins = list(prompt), []
        for _ in range(GREEDY):
            row = model(torch.tensor([tokens])).logits[0, -1]
            best = torch.topk(row, 2).values
            tokens.append(int(row.argmax()))
            margins.append(float(best[0] - best[1]))
    out = {"seed": SEED, "prompt": prompt, "rows": LOGIT_ROWS, "std": float(logits.std()),
           "logits": [[float(f"{x:.7g}") for x in logits[r].tolist()] for r in LOGIT_ROWS],
           "greedy": tokens[PROMPT:], "margins": [float(f"{m:.5g}") for m in margins]}
    (directory / "golden.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")
    print(directory.name, "std", out["std"], "least margin", min(margins), "distinct tokens", len(set(out["greedy"])))


def rope_golden(path):
    out = {}
    for name, fields in ROPES.items():
        config = {**SMALL, "model_type": "llama", "rms_norm_eps": 1e-5, "num_hidden_layers": 1, "max_position_embeddings": 131072, **fields}
        hf = AutoConfig.for_model(**config)
        rotary = AutoModelForCausalLM.from_config(hf).model.rotary_emb
        out[name] = {"config": config, "inv_freq": [float(f"{x:.9g}") for x in rotary.inv_freq.tolist()],
                     "attention_factor": float(rotary.attention_scaling)}
    path.write_text(json.dumps(out, indent=1) + "\n")


def block_golden(path):
    random = np.random.default_rng(3)
    out = {}
    for name in BLOCKS:
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (2, size), dtype=np.uint8)
        scales = random.uniform(-0.1, 0.1, (2, 2)).astype(np.float16).view(np.uint8)
        if name == "Q6_K":
            blocks[:, 208:210] = scales[:, :2]
        else:
            two = name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K")
            blocks[:, :4 if two else 2] = scales[:, :4 if two else 2]
        values = gguf.quants.dequantize(blocks, kind).astype(np.float32)
        out[name] = {"blocks": blocks.tobytes().hex(), "floats": values.tobytes().hex()}
    path.write_text(json.dumps(out, indent=1) + "\n")


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "goldens")
    out.mkdir(parents=True, exist_ok=True)
    for name, config in CASES.items():
        family_golden(out / name, config)
    rope_golden(out / "ropes.json")
    block_golden(out / "blocks.json")


if __name__ == "__main__":
    main()
