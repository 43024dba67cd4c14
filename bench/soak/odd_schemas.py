#!/usr/bin/env python3
"""Answers over 100 odd JSON Schemas, each with several seeds, read by a validator that is not ours (jsonschema_rs, formats asserted): nested
$defs, unions, enums of Unicode, patternProperties, formats, tuples, bounds. Every fourth answer comes through another front end. Answers that
end by their length are counted apart; an answer that ends and does not fit, or is no JSON, is printed and ends it with 1.
build/venv/bin/python bench/soak/odd_schemas.py [--seed N] [--answers 1000] [--disaggregated] [--model GGUF]"""
import argparse
import concurrent.futures
import json
import pathlib
import random
import sys

import jsonschema_rs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "cluster"))
from harness import TINY, Cluster  # noqa: E402

SCHEMA = "https://json-schema.org/draft/2020-12/schema"
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "duration", "uri"]
WORDS = ["na\u00efve", "\u65e5\u672c\u8a9e", "\U0001f980 crab", "\u0627\u0644\u0633\u0644\u0627\u0645", "tab\there", "quote\"d", "back\\slash", "nul\u0001", "a/b~c", "", " ", "\u00df", "e\u0301", "\u200b", "</s>", "<|im_end|>"]
OPEN = {"additionalProperties": False}


def closed(properties, required=None, **more):
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required, **OPEN, **more}


def text(r, most=8):
    return {"type": "string", "minLength": r.randint(0, 2), "maxLength": most}


# Each makes a schema of its own numbers.
ODD = [
    lambda r: {"$defs": {"a": {"$defs": {"b": {"enum": r.sample(WORDS, 4)}}, "properties": {"b": {"$ref": "#/$defs/a/$defs/b"}}, "type": "object", "required": ["b"], **OPEN}},
               "type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1, "maxItems": r.randint(1, 3)},
    lambda r: {"$schema": SCHEMA, "$id": "https://example.com/tree", "$defs": {"node": closed({"v": {"type": "integer", "minimum": 0, "maximum": r.randint(1, 99)},
               "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1}}, ["v"])}, "$ref": "#/$defs/node"},
    lambda r: {"anyOf": [{"type": "null"}, {"anyOf": [{"const": r.choice(WORDS)}, {"type": "boolean"}]}, closed({"deep": {"anyOf": [{"const": 0}, {"const": -1.5}]}})]},
    lambda r: {"enum": r.sample(WORDS, 8)},
    lambda r: {"enum": [{"k": w, "n": [i, None]} for i, w in enumerate(r.sample(WORDS, 5))]},
    lambda r: {"type": "object", "patternProperties": {"^x-[a-c]{1,3}$": {"type": "integer", "minimum": -5, "maximum": 5}, "^y\\d$": {"type": "boolean"}}, **OPEN, "minProperties": 1, "maxProperties": r.randint(1, 4)},
    lambda r: {"type": "object", "properties": {"id": {"type": "integer", "minimum": 1, "maximum": 9}}, "patternProperties": {"^_": {"type": "null"}}, "required": ["id"], **OPEN},
    lambda r: closed({f: {"type": "string", "format": f} for f in r.sample(FORMATS, 3)}),
    lambda r: {"type": "array", "items": {"type": "string", "format": r.choice(FORMATS)}, "minItems": 2, "maxItems": 2},
    lambda r: {"type": "array", "prefixItems": [{"const": r.choice(WORDS)}, {"type": "integer", "minimum": 0, "maximum": 3}, {"type": ["null", "boolean"]}], "items": False, "minItems": 3},
    lambda r: {"type": "array", "prefixItems": [{"enum": ["a", "b"]}], "items": {"type": "integer", "exclusiveMinimum": r.randint(-9, 0), "exclusiveMaximum": r.randint(2, 9)}, "minItems": 1, "maxItems": 4},
    lambda r: {"type": "integer", "minimum": -r.randint(1, 10**6), "maximum": r.randint(0, 10**6)},
    lambda r: {"type": "integer", "exclusiveMinimum": r.randint(-99, -2), "exclusiveMaximum": r.randint(1, 99), "multipleOf": r.choice([2, 3, 7])},
    lambda r: {"type": "number", "minimum": -0.5, "maximum": r.choice([0.25, 1, 12.75])},
    lambda r: {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": r.choice([0.001, 1e-3, 1000.5])},
    lambda r: {"type": "number", "multipleOf": r.choice([0.5, 0.25, 2.5]), "minimum": 0, "maximum": 50},
    lambda r: {"type": "string", "pattern": r.choice(["^(?:[A-Z][a-z]+ ){1,3}$", "^\\w+@\\w+\\.(de|fr)$", "^[^\\x00-\\x1f\"\\\\]{3,7}$", "^\\p{Lu}{2}\\d{3}$", "^(a|b)*c{2,}$"]), "maxLength": 24},
    lambda r: {"type": "string", "pattern": "^[a-z]{2,30}$", "minLength": 4, "maxLength": r.randint(5, 9)},
    lambda r: {"const": {"a": r.sample(WORDS, 3), "b": {"c": [1, 2.5, None, True, {"d": ""}]}}},
    lambda r: {"const": r.choice([[], {}, "", 0, -0.5, None, [[[]]], "\U0001f980"])},
    lambda r: {"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 50}}, "required": ["a"]},
               {"properties": {"a": {"maximum": 9}, "b": text(r)}, "required": ["b"]}], "properties": {"a": {}, "b": {}}, **OPEN},
    lambda r: {"oneOf": [closed({"kind": {"const": "circle"}, "r": {"type": "integer", "minimum": 0, "maximum": 9}}), closed({"kind": {"const": "square"}, "side": {"enum": [1, 2]}})]},
    lambda r: {"type": ["string", "integer", "null"], "maxLength": 5, "minimum": 0, "maximum": 99},
    lambda r: closed({w: {"type": "boolean"} for w in r.sample([w for w in WORDS if w], 4)}),
    lambda r: closed({f"p{i}": {"type": "null"} for i in range(r.randint(5, 20))}, []),
    lambda r: {"type": "object", "additionalProperties": {"type": "array", "items": {"const": 1}, "maxItems": 2}, "maxProperties": 2, "propertyOrder": ["ignored"]},
    lambda r: closed({"a": closed({"b": closed({"c": closed({"d": {"enum": r.sample(WORDS, 3)}})})})}),
    lambda r: {"$defs": {"Pair<int>": {"type": "array", "prefixItems": [{"type": "integer", "minimum": 0, "maximum": 9}] * 2, "items": False, "minItems": 2}}, **closed({"p": {"$ref": "#/$defs/Pair%3Cint%3E"}, "q": {"$ref": "#/$defs/Pair%3Cint%3E"}})},
    lambda r: {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/c"}, {"type": "null"}]}, "c": {"enum": [True, "c"]}}, "$ref": "#/$defs/a", "description": "\u00fcber", "default": None, "examples": [1]},
    lambda r: {"type": "array", "minItems": r.randint(0, 2), "maxItems": 3, "items": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "array", "maxItems": 1, "items": {"type": "null"}}]}},
    lambda r: {"title": "T", "deprecated": True, "type": "string", "enum": ["\u00e9", "e\u0301", "\U0001f980", "x"], "maxLength": 1},
    lambda r: {"anyOf": [{"type": "string", "const": "auto"}, {"type": "integer", "minimum": r.randint(-20, 0), "maximum": 20}], "title": "Or"},
    lambda r: {"type": "object", "required": ["unlisted", "b"], "properties": {"b": {"type": "boolean"}}, "additionalProperties": {"enum": [1, "one"]}, "maxProperties": 3},
    lambda r: {"type": "string", "format": r.choice(FORMATS), "maxLength": 40},
    lambda r: {"type": "number", "exclusiveMinimum": 0, "maximum": r.choice([0.5, 0.001, 1, 0.75, 3.125])},
    lambda r: {"type": "number", "minimum": r.choice([-0.001, -0.75, -12.5]), "exclusiveMaximum": 0},
    lambda r: {"type": ["number", "null"], "exclusiveMinimum": r.randint(1, 9), "maximum": r.choice([9.001, 10.25])},
    lambda r: closed({"p": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, "q": {"allOf": [{"type": "number", "minimum": -1.25}, {"exclusiveMaximum": r.choice([0, 0.1, -1])}]}}),
    lambda r: {"type": "array", "items": {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5, "multipleOf": r.choice([0.25, 0.5, 1.25])}, "minItems": 2, "maxItems": 4},
]


def front_end(r, schema, seed):
    """(path, body, how to read the text and whether it ended) of one that takes this schema."""
    chat = {"model": "tiny-llama", "messages": [{"role": "user", "content": f"{seed} please"}], "max_tokens": 500, "seed": seed, "temperature": r.choice([0.7, 1.0])}
    kind = seed % 8
    if kind == 1:
        body = {**chat, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
        return "/v1/messages", body, lambda a: (a["content"][0]["text"] if a["content"] else "", a["stop_reason"] == "end_turn")
    if kind == 3:
        body = {k: v for k, v in chat.items() if k not in ("messages", "max_tokens")}
        body |= {"input": f"{seed} please", "max_output_tokens": 500, "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}
        return "/v1/responses", body, lambda a: (a["output"][-1]["content"][0]["text"], a["status"] == "completed")
    if kind == 5 and isinstance(schema, dict):
        body = {"model": "tiny-llama", "messages": chat["messages"], "stream": False, "format": schema, "options": {"num_predict": 500, "seed": seed, "temperature": chat["temperature"]}}
        return "/api/chat", body, lambda a: (a["message"]["content"], a["done_reason"] == "stop")
    if kind == 7 and isinstance(schema, dict) and schema.get("type") == "object":
        body = {**chat, "tools": [{"type": "function", "function": {"name": "note", "strict": True, "parameters": schema}}], "tool_choice": {"type": "function", "function": {"name": "note"}}}
        return "/v1/chat/completions", body, lambda a: ((a["choices"][0]["message"].get("tool_calls") or [{"function": {"arguments": ""}}])[0]["function"]["arguments"], a["choices"][0]["finish_reason"] in ("stop", "tool_calls"))
    body = {**chat, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}}
    return "/v1/chat/completions", body, lambda a: (a["choices"][0]["message"]["content"], a["choices"][0]["finish_reason"] == "stop")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--disaggregated", action="store_true")
    parser.add_argument("--model", default=TINY)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    r = random.Random(options.seed)
    schemas = [ODD[i % len(ODD)](r) for i in range(100)]
    ended = cut = 0
    refused, wrong = {}, []
    args = ["--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 4] if options.disaggregated else []
    with Cluster(options.model, args=args) as c:
        def ask(number):
            schema = schemas[number % 100]
            path, body, read = front_end(random.Random(f"{options.seed} {number}"), schema, options.seed + number)
            return schema, path, c.post(path, body), read
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            for schema, path, reply, read in pool.map(ask, range(options.answers)):
                if reply.status != 200:
                    refused[json.dumps(schema)] = reply.body
                    continue
                said, whole = read(reply.json())
                if not whole:
                    cut += 1
                    continue
                ended += 1
                try:
                    faults = [str(e) for e in jsonschema_rs.Draft202012Validator(schema, validate_formats=True).iter_errors(json.loads(said))]
                except ValueError as e:
                    faults = [str(e)]
                if faults:
                    wrong.append((schema, path, said, faults))
    for schema, body in refused.items():
        print(f"refused: {schema}\n  {body}")
    for schema, path, said, faults in wrong:
        print(f"WRONG, {path}: {json.dumps(schema)}\n  {said!r}\n  {faults}")
    print(f"{ended} ended, {ended - len(wrong)} of them fit; {cut} were cut at their length; {len(refused)} schemas of 100 were refused")
    sys.exit(1 if wrong or not ended else 0)


if __name__ == "__main__":
    main()
