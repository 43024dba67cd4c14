"""A checkpoint of tiny-llama's shape with weights of its own, in two shards as the Hub has them, for tests that damage it."""
import array
import json
import math
import random
import shutil
import struct

from harness import TINY

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def shapes(config):
    """Name → shape; the second shard begins with the last layer."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    out = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        out |= {f"{at}self_attn.q_proj.weight": (q, hidden), f"{at}self_attn.k_proj.weight": (kv, hidden),
                f"{at}self_attn.v_proj.weight": (kv, hidden), f"{at}self_attn.o_proj.weight": (hidden, q),
                f"{at}mlp.gate_proj.weight": (inner, hidden), f"{at}mlp.up_proj.weight": (inner, hidden),
                f"{at}mlp.down_proj.weight": (hidden, inner), f"{at}input_layernorm.weight": (hidden,),
                f"{at}post_attention_layernorm.weight": (hidden,)}
    return out | {"model.norm.weight": (hidden,), "lm_head.weight": (config["vocab_size"], hidden)}


def write_shard(path, tensors):
    """Tensors: name → (shape, numbers)."""
    header, at = {}, 0
    for name, (shape, numbers) in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + 4 * len(numbers)]}
        at += 4 * len(numbers)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, numbers in tensors.values():
            f.write(numbers.tobytes())


def make_checkpoint(folder, seed=1):
    """Into `folder`, which is made."""
    shutil.copytree(TINY, folder)
    r = random.Random(seed)
    config = json.loads((TINY / "config.json").read_text())
    last = f"model.layers.{config['num_hidden_layers'] - 1}."
    shards, where = ({}, {}), {}
    for name, shape in shapes(config).items():
        second = name.startswith((last, "model.norm", "lm_head"))
        numbers = array.array("f", (r.uniform(-0.08, 0.08) for _ in range(math.prod(shape))) if len(shape) > 1 else [1.0] * shape[0])
        shards[second][name], where[name] = (shape, numbers), SHARDS[second]
    for name, tensors in zip(SHARDS, shards):
        write_shard(folder / name, tensors)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


def put(folder, tensor, element, value):
    """One number of a tensor becomes `value`, in its file."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    with open(folder / index["weight_map"][tensor], "r+b") as f:
        length = struct.unpack("<Q", f.read(8))[0]
        begin = json.loads(f.read(length))[tensor]["data_offsets"][0]
        f.seek(8 + length + begin + 4 * element)
        f.write(struct.pack("<f", value))


def cut(path, keep):
    """Leaves the first `keep` of 1 of a file's bytes."""
    with open(path, "r+b") as f:
        f.truncate(int(path.stat().st_size * keep))
