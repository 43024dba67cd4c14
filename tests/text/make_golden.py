#!/usr/bin/env python3
"""Writes what transformers gives for the corpus: golden/<tokenizer>/golden.json, and golden/smollm2-gguf.json for the demo model.

A case is [ids, hash with special tokens, hash without, hash with special tokens in the text read as text, hash of the decoded
text, the same without special tokens]; hashes are FNV-1a (64 bit) of int32 ids or of UTF-8. The first cases also have their ids.
Run make_corpus.py and make_tokenizers.py first; ONLY=smollm make_golden.py writes one. Needs: transformers, tokenizers, gguf. The test needs none of them.
"""
import array
import json
import os
import pathlib
import sys
import tempfile

import tokenizers
import transformers
from transformers import AutoTokenizer

import make_corpus

GOLDEN = pathlib.Path(__file__).parent / "golden"
FULL_CASES = 40


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def hash_ids(ids):
    return fnv(array.array("i", ids).tobytes())


def golden(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    cases, full = [], {}
    puts_bos = tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id]
    for i, entry in enumerate(make_corpus.corpus()):
        text = make_corpus.expand(entry).decode("utf-8", errors="replace")
        ids = tokenizer(text)["input_ids"]
        if puts_bos and ids[:2] == [tokenizer.bos_token_id] * 2:
            ids = ids[1:]  # Baton never puts BOS before a text that begins with it
        bare = tokenizer(text, add_special_tokens=False)["input_ids"]
        tokenizer.split_special_tokens = True
        literal = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        tokenizer.split_special_tokens = False
        kept = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        skipped = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        cases.append([len(ids), hash_ids(ids), hash_ids(bare), hash_ids(literal), fnv(kept.encode()), fnv(skipped.encode())])
        if i < FULL_CASES:
            full[str(i)] = ids
    return {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__, "vocab_size": len(tokenizer), "cases": cases, "full": full}


def write(path, value):
    cases = ",\n".join(json.dumps(c, separators=(",", ":")) for c in value.pop("cases"))
    head = json.dumps(value, separators=(",", ":"))[:-1]
    path.write_text(f'{head},"cases":[\n{cases}\n]}}\n')
    print(f"{path}: {path.stat().st_size} bytes")


def demo_model(path):
    """The demo model's vocabulary in the pipeline that its family's tokenizer.json has (digits one by one, then GPT-2's words)."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    fields = GGUFReader(path).fields
    tokens, merges = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.merges"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types) if k == 3])
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(os.path.join(folder, "tokenizer.json"))
        pathlib.Path(folder, "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false}')
        return golden(folder)


if __name__ == "__main__":
    for config in sorted(GOLDEN.glob(os.environ.get("ONLY", "*") + "/tokenizer_config.json")):
        write(config.parent / "golden.json", golden(config.parent))
    model = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "~/.cache/baton/models/SmolLM2-135M-Instruct.Q4_1.gguf").expanduser()
    if model.exists() and "ONLY" not in os.environ:
        write(GOLDEN / "smollm2-gguf.json", demo_model(model))
    else:
        print(f"{model} is not there: smollm2-gguf.json is left as it is")
