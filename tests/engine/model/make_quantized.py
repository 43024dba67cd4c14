#!/usr/bin/env python3
"""Makes tests/engine/model/goldens/quantized.json: small linear layers as AutoAWQ, AutoGPTQ and compressed-tensors store them, packed
here as their own packing does it, and the f32 values that they stand for, computed from the numbers before they are packed.

usage: make_quantized.py [FILE]    needs numpy
"""
import json
import pathlib
import sys

import numpy as np

LAYER = "model.layers.0.mlp.up_proj"
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def tensor(array, dtype):
    return {"dtype": dtype, "shape": list(array.shape), "bytes": np.ascontiguousarray(array).tobytes().hex()}


def pack_columns(codes, bits, order):
    """[rows, n] to words [rows, n · bits / 32]: neighbours of a row share a word."""
    per = 32 // bits
    words = np.zeros((codes.shape[0], codes.shape[1] // per), np.uint32)
    for word in range(words.shape[1]):
        for i in range(per):
            words[:, word] |= codes[:, word * per + order[i]].astype(np.uint32) << np.uint32(bits * i)
    return words.view(np.int32)


def pack_rows(codes, bits):
    """[k, n] to words [k · bits / 32, n]: neighbours of a column share a word."""
    return np.ascontiguousarray(pack_columns(np.ascontiguousarray(codes.T), bits, range(32 // bits)).T)


class Drawn:
    def __init__(self, seed, bits, k, n, group, ordered=False, symmetric=False):
        random = np.random.default_rng(seed)
        self.groups = k // group
        self.codes = random.integers(0, 1 << bits, (k, n))
        self.zeros = np.full((self.groups, n), 1 << (bits - 1)) if symmetric else random.integers(1, (1 << bits) + 1, (self.groups, n))
        self.scales = random.uniform(0.001, 0.02, (self.groups, n)).astype(np.float16)
        self.group_of = np.arange(k) // group
        if ordered:
            self.group_of = random.permutation(self.group_of)
        self.values = ((self.codes - self.zeros[self.group_of]) * self.scales[self.group_of].astype(np.float64)).astype(np.float32).T


def case(config, drawn, tensors):
    return {"quantization_config": config, "layer": LAYER, "shape": list(drawn.values.shape),
            "tensors": {f"{LAYER}.{name}": value for name, value in tensors.items()},
            "values": np.ascontiguousarray(drawn.values).tobytes().hex()}


def awq(seed, k, n, group):
    d = Drawn(seed, 4, k, n, group)
    d.zeros = np.minimum(d.zeros, 15)
    d.values = ((d.codes - d.zeros[d.group_of]) * d.scales[d.group_of].astype(np.float64)).astype(np.float32).T
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    return case(config, d, {"qweight": tensor(pack_columns(d.codes, 4, AWQ_ORDER), "I32"), "qzeros": tensor(pack_columns(d.zeros, 4, AWQ_ORDER), "I32"),
                            "scales": tensor(d.scales, "F16")})


def gptq(seed, bits, k, n, group, ordered=False, second=False):
    d = Drawn(seed, bits, k, n, group, ordered)
    if second:
        d.zeros -= 1
        d.values = ((d.codes - d.zeros[d.group_of]) * d.scales[d.group_of].astype(np.float64)).astype(np.float32).T
    stored = d.zeros if second else d.zeros - 1
    config = {"quant_method": "gptq", "bits": bits, "group_size": -1 if group == k else group, "desc_act": ordered, "sym": False,
              "checkpoint_format": "gptq_v2" if second else "gptq"}
    return case(config, d, {"qweight": tensor(pack_rows(d.codes, bits), "I32"), "qzeros": tensor(pack_columns(stored, bits, range(32 // bits)), "I32"),
                            "scales": tensor(d.scales, "F16"), "g_idx": tensor(d.group_of.astype(np.int32), "I32")})


def packed(seed, bits, k, n, group, ordered=False, symmetric=True):
    d = Drawn(seed, bits, k, n, group, ordered, symmetric)
    d.zeros = np.minimum(d.zeros, (1 << bits) - 1)
    bf16 = (d.scales.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)  # cut
    exact = (bf16.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    d.values = ((d.codes - d.zeros[d.group_of]) * exact[d.group_of]).astype(np.float32).T
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "actorder": "group" if ordered else None}
    weights |= {"strategy": "channel"} if group == k else {"strategy": "group", "group_size": group}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}}
    tensors = {"weight_packed": tensor(pack_columns(d.codes.T, bits, range(32 // bits)), "I32"), "weight_scale": tensor(bf16.T, "BF16"),
               "weight_shape": tensor(np.array([n, k], np.int64), "I64")}
    if not symmetric:
        tensors["weight_zero_point"] = tensor(pack_rows(d.zeros.T, bits), "I32")
    if ordered:
        tensors["weight_g_idx"] = tensor(d.group_of.astype(np.int32), "I32")
    return case(config, d, tensors)


def e4m3_values():
    """What the 256 codes stand for, from their definition: a sign, 4 bits of exponent with bias 7, 3 of mantissa, no infinity."""
    out = np.empty(256, np.float64)
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        value = mantissa * 2.0 ** -9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
        out[code] = -value if code & 128 else value
    return out


def float8(seed, k, n, block=None, channel=False, compressed=False, flat=False, bf16=False):
    """`block`: (outputs, inputs) of a scale."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 256, (n, k)).astype(np.uint8)
    codes[codes & 127 == 127] = 0x38  # not a number
    outputs, inputs = block or ((1, k) if channel else (n, k))
    rows, columns = -(-n // outputs), -(-k // inputs)
    scales = random.uniform(0.001, 0.02, (rows, columns)).astype(np.float32)
    if bf16:
        scales = (scales.view(np.uint32) & np.uint32(0xffff0000)).view(np.float32)
    each = scales[np.arange(n)[:, None] // outputs, np.arange(k)[None, :] // inputs]
    values = (e4m3_values()[codes] * each.astype(np.float64)).astype(np.float32)
    stored = tensor((scales.view(np.uint32) >> 16).astype(np.uint16), "BF16") if bf16 else tensor(scales, "F32")
    if flat:
        stored["shape"] = [] if rows == 1 else [rows]
    name = "weight_scale"
    if compressed:
        weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block" if block else "channel" if channel else "tensor"}
        weights |= {"block_structure": list(block)} if block else {}
        config = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
                  "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                                                "input_activations": {"num_bits": 8, "type": "float", "dynamic": True, "strategy": "token"}}}}
    else:
        config = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
        if block:
            config["weight_block_size"] = list(block)
            name = "weight_scale_inv"
    return {"quantization_config": config, "layer": LAYER, "shape": [n, k],
            "tensors": {f"{LAYER}.weight": tensor(codes, "F8_E4M3"), f"{LAYER}.{name}": stored},
            "values": np.ascontiguousarray(values).tobytes().hex()}


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "goldens" / "quantized.json")
    cases = {"awq": awq(1, 128, 16, 64), "awq_narrow": awq(2, 128, 24, 32), "awq_whole": awq(3, 64, 8, 64),
             "gptq": gptq(4, 4, 128, 16, 64), "gptq_ordered": gptq(5, 4, 128, 16, 32, ordered=True), "gptq_8": gptq(6, 8, 64, 12, 32),
             "gptq_8_ordered": gptq(7, 8, 128, 8, 64, ordered=True), "gptq_whole": gptq(8, 4, 64, 8, 64), "gptq_2": gptq(9, 4, 64, 16, 32, second=True),
             "packed": packed(10, 4, 128, 8, 64), "packed_asymmetric": packed(11, 4, 64, 16, 32, symmetric=False),
             "packed_8_channel": packed(12, 8, 64, 8, 64), "packed_ordered": packed(13, 4, 128, 8, 32, ordered=True),
             "float8_blocks": float8(14, 128, 20, block=(8, 64)), "float8_tensor": float8(15, 64, 8, flat=True),
             "float8_compressed_tensor": float8(16, 64, 8, compressed=True), "float8_compressed_channel": float8(17, 64, 16, channel=True, compressed=True, bf16=True),
             "float8_channel_flat": float8(18, 64, 16, channel=True, compressed=True, flat=True),
             "float8_compressed_blocks": float8(19, 128, 16, block=(16, 64), compressed=True, bf16=True)}
    out.write_text(json.dumps(cases, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
