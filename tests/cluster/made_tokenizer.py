"""A tokenizer of as many tokens as a model of a real vocabulary has, made up: byte-level BPE of random merges, always the same."""
import json
import random


def alphabet():
    """How byte-level BPE writes the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]


def write(path, template, words):
    """As `template`, a tokenizer.json of byte-level BPE with `words` tokens in place of its own; its added tokens stay."""
    tokenizer = json.loads(template.read_text())
    draw = random.Random(1)
    names = [token["content"] for token in tokenizer["added_tokens"]] + alphabet()
    first, known, merges = len(tokenizer["added_tokens"]), set(names), []
    while len(names) < words:
        # Half of the parts are from a beginning that most words share, so that lengths are as in real vocabularies.
        left = names[draw.randrange(first, len(names))]
        right = names[draw.randrange(first, min(len(names), 2000))]
        if len(left) + len(right) <= 10 and left + right not in known:
            names.append(left + right)
            known.add(left + right)
            merges.append([left, right])
    tokenizer["model"]["vocab"] = {name: i for i, name in enumerate(names)}
    tokenizer["model"]["merges"] = merges
    path.write_text(json.dumps(tokenizer))
