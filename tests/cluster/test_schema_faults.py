"""A keyword of JSON Schema that is not followed is a 400 that names it, its place and the client's own field, wherever a schema can stand:
one table of keywords and fields. What no grammar can be made of, of whatever kind, is answered within a second, too."""
import json
import resource
import shutil
import time
import unittest

import grpc_call
from harness import Cluster
from thinking_model import thinking_model

MODEL = "tiny-thinker"
SAID = [{"role": "user", "content": "Hi"}]

# keyword: (a schema around it, where it stands)
KEYWORDS = {
    "not": ({"not": {"type": "null"}}, "#/not"),
    "if": ({"items": {"if": {"minimum": 3}}, "type": "array"}, "#/items/if"),
    "then": ({"anyOf": [{"type": "null"}, {"then": {"type": "null"}}]}, "#/anyOf/1/then"),
    "else": ({"allOf": [{"else": False}]}, "#/allOf/0/else"),
    "contains": ({"properties": {"a b/c": {"contains": {"const": 1}}}}, "#/properties/a b~1c/contains"),
    "minContains": ({"prefixItems": [{"minContains": 2}]}, "#/prefixItems/0/minContains"),
    "maxContains": ({"oneOf": [{"maxContains": 2}]}, "#/oneOf/0/maxContains"),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "#/uniqueItems"),
    "unevaluatedItems": ({"$defs": {"d": {"unevaluatedItems": False}}, "$ref": "#/$defs/d"}, "#/$defs/d/unevaluatedItems"),
    "unevaluatedProperties": ({"additionalProperties": {"unevaluatedProperties": False}}, "#/additionalProperties/unevaluatedProperties"),
    "propertyNames": ({"patternProperties": {"^x": {"propertyNames": {"maxLength": 3}}}}, "#/patternProperties/^x/propertyNames"),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, "#/dependentRequired"),
    "dependentSchemas": ({"properties": {"\u00fc": {"dependentSchemas": {"a": {}}}}}, "#/properties/\u00fc/dependentSchemas"),
    "$dynamicRef": ({"properties": {"a": {"$dynamicRef": "#x"}}}, "#/properties/a/$dynamicRef"),
}


def in_object(schema, where):
    """The same within an object, as functions need it."""
    defs = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    return {"type": "object", "properties": {"w": inner}, **defs}, where if defs else where.replace("#", "#/properties/w", 1)


def formed(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


def function(schema, **more):
    return {"type": "function", "function": {"name": "f", "parameters": schema, **more}}


CHAT = ("/v1/chat/completions", {"messages": SAID})
TEXT = ("/v1/completions", {"prompt": "Hi"})
RESPONSES = ("/v1/responses", {"input": "Hi"})
MESSAGES = ("/v1/messages", {"messages": SAID, "max_tokens": 9})
OLLAMA = ("/api/chat", {"messages": SAID})
GENERATE = ("/api/generate", {"prompt": "Hi"})
NAMED = {"type": "function", "function": {"name": "f"}}
TAGS = lambda s: {"type": "structural_tag", "triggers": ["<"], "structures": [{"begin": "<f>", "schema": s, "end": "</f>"}]}
FORMAT = lambda s: {"type": "structural_tag", "format": {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": s}, "end": "</f>"}}

# where a schema stands: (front end, its fields, how the error names the field)
PLACES = {
    "response_format": (CHAT, lambda s: {"response_format": formed(s)}, "response_format.json_schema.schema"),
    "response_format of a text": (TEXT, lambda s: {"response_format": formed(s)}, "response_format.json_schema.schema"),
    "guided_json": (TEXT, lambda s: {"guided_json": s}, "guided_json"),
    "guided_json, as text": (CHAT, lambda s: {"guided_json": json.dumps(s)}, "guided_json"),
    "structured_outputs.json": (CHAT, lambda s: {"structured_outputs": {"json": s}}, "structured_outputs.json"),
    "structural tag": (CHAT, lambda s: {"response_format": TAGS(s)}, "response_format"),
    "structural tag of formats": (CHAT, lambda s: {"response_format": FORMAT(s)}, "response_format"),
    "structured_outputs.structural_tag": (TEXT, lambda s: {"structured_outputs": {"structural_tag": TAGS(s)}}, "structured_outputs.structural_tag"),
    "strict function": (CHAT, lambda s: {"tools": [function(s, strict=True)]}, "tools[0].function.parameters"),
    "required function": (CHAT, lambda s: {"tools": [function(s)], "tool_choice": "required"}, "tools[0].function.parameters"),
    "named function": (CHAT, lambda s: {"tools": [function(s)], "tool_choice": NAMED}, "tools[0].function.parameters"),
    "text.format": (RESPONSES, lambda s: {"text": {"format": {"type": "json_schema", "name": "x", "schema": s}}}, "text.format.schema"),
    "strict function of responses": (RESPONSES, lambda s: {"tools": [{"type": "function", "name": "f", "parameters": s, "strict": True}]}, "tools[0].parameters"),
    "output_config.format": (MESSAGES, lambda s: {"output_config": {"format": {"type": "json_schema", "schema": s}}}, "output_config.format.schema"),
    "output_format": (MESSAGES, lambda s: {"output_format": {"type": "json_schema", "schema": s}}, "output_format.schema"),
    "strict tool of messages": (MESSAGES, lambda s: {"tools": [{"name": "f", "input_schema": s, "strict": True}]}, "tools[0].input_schema"),
    "any tool of messages": (MESSAGES, lambda s: {"tools": [{"name": "f", "input_schema": s}], "tool_choice": {"type": "any"}}, "tools[0].input_schema"),
    "format": (OLLAMA, lambda s: {"format": s}, "format"),
    "format of a text": (GENERATE, lambda s: {"format": s}, "format"),
    "options.guided_json": (GENERATE, lambda s: {"options": {"guided_json": s}}, "guided_json"),
}

# gRPC, whose only field for it is sampling.grammar: (the prompt, the grammar's kind, its text)
JSON_SCHEMA, LARK = 1, 3
WITH_TEXT = grpc_call.field(2, "Hi")
WITH_TOKENS = grpc_call.field(3, grpc_call.field(1, b"\x05"))
WITH_CHAT = grpc_call.field(4, grpc_call.field(1, grpc_call.field(1, "user") + grpc_call.field(2, "Hi")))
GRPC_PLACES = {
    "gRPC, text": (WITH_TEXT, JSON_SCHEMA, json.dumps),
    "gRPC, token ids": (WITH_TOKENS, JSON_SCHEMA, json.dumps),
    "gRPC, chat": (WITH_CHAT, JSON_SCHEMA, json.dumps),
    "gRPC, in a grammar of rules": (WITH_CHAT, LARK, lambda s: f"start: \"<\" %json {json.dumps(s)}"),
}


def generate(address, prompt, kind, text):
    grammar = grpc_call.field(1, kind) + grpc_call.field(2, text)
    sampling = grpc_call.field(13, 2) + grpc_call.field(18, grammar)  # max_tokens
    return grpc_call.call(address, "/baton.v1.Generation/Generate", prompt + grpc_call.field(6, sampling))


def answered(cluster, path, body):
    """What the server says of it once the machine has had time for it: a 429 says that it had none yet."""
    until = time.monotonic() + 60
    while (reply := cluster.post(path, body)).status == 429 and time.monotonic() < until:
        time.sleep(float(reply.headers["Retry-After"]))
    return reply


def message_of(reply):
    error = reply.json()["error"]
    return error if isinstance(error, str) else error["message"]


class SchemaFaults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = thinking_model(more=["<tool_call>"])
        cls.folder = cls.model.__enter__()
        cls.c = Cluster(cls.folder).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.c.__exit__(None, None, None)
        cls.model.__exit__(None, None, None)

    def test_every_keyword_in_every_place(self):
        slowest = 0.0
        for place, (front, fields, field) in PLACES.items():
            for keyword, (schema, where) in KEYWORDS.items():
                if field.startswith("tools"):
                    schema, where = in_object(schema, where)
                path, body = front
                began = time.monotonic()
                reply = self.c.post(path, {"model": MODEL, **body, **fields(schema)})
                slowest = max(slowest, time.monotonic() - began)
                with self.subTest(place=place, keyword=keyword):
                    self.assertEqual(reply.status, 400, reply.body)
                    self.assertIn(f"{where} is not supported", message_of(reply))
                    self.assertIn(f"`{field}`", message_of(reply))
                    if path in (CHAT[0], TEXT[0], RESPONSES[0]):
                        self.assertEqual(reply.json()["error"]["param"], field)
        print(f"\n    {len(PLACES)} places, {len(KEYWORDS)} keywords, the slowest answer after {slowest:.2f} s", flush=True)

    @unittest.skipUnless(shutil.which("curl"), "curl is not installed")
    def test_every_keyword_over_grpc(self):
        slowest = 0.0
        for place, (prompt, kind, text) in GRPC_PLACES.items():
            for keyword, (schema, where) in KEYWORDS.items():
                began = time.monotonic()
                code, message = generate(self.c.grpc, prompt, kind, text(schema))
                slowest = max(slowest, time.monotonic() - began)
                with self.subTest(place=place, keyword=keyword):
                    self.assertEqual(code, "INVALID_ARGUMENT", message)
                    self.assertIn(f"{where} is not supported", message)
                    self.assertIn("sampling.grammar", message)
            self.assertEqual(generate(self.c.grpc, prompt, kind, text({"type": "integer"})), ("OK", ""), place)
        print(f"\n    {len(GRPC_PLACES)} places, {len(KEYWORDS)} keywords, the slowest answer after {slowest:.2f} s", flush=True)

    def test_what_grows_in_the_compiler_is_refused_and_the_server_stays(self):
        """Of each of these one request took the process down, or seconds of a core and a GiB."""
        def definitions(count, of):
            return json.dumps({"$ref": f"#/$defs/d{count}", "$defs": {"d0": {"type": "null"}, **{f"d{i}": of({"$ref": f"#/$defs/d{i - 1}"}) for i in range(1, count + 1)}}})
        one = lambda ref: {"type": "object", "properties": {"a": ref}}
        two = lambda ref: {"type": "object", "properties": {"a": {**ref, "minProperties": 0}, "b": {**ref, "minProperties": 0}}}
        chain = lambda first, rule: first + "".join(f"\nr{i}{rule}r{i + 1}" for i in range(20000)) + f'\nr20000{rule}"a"'
        names = {f"^a{i}_": {"type": "string"} for i in range(300)}
        hostile = (("guided_json", definitions(3000, one), "too deep"), ("guided_json", definitions(60, two), "too large"),
                   ("guided_json", json.dumps({"patternProperties": names}), "300 patternProperties"), ("guided_regex", "a?" * 50000, "may be empty"),
                   ("guided_grammar", chain("start: r0", ": "), "too deep"), ("guided_grammar", chain("root ::= r0", " ::= "), "too deep"))
        slowest = 0.0
        for field, text, words in hostile:
            for path, body in (CHAT, TEXT, MESSAGES, RESPONSES):
                began = time.monotonic()
                reply = answered(self.c, path, {"model": MODEL, **body, field: text})
                slowest = max(slowest, time.monotonic() - began)
                with self.subTest(field=field, words=words, path=path):
                    self.assertEqual(reply.status, 400, reply.body)
                    self.assertIn(words, message_of(reply))
                    self.assertIn(f"`{field}`", message_of(reply))
        path, body = CHAT
        self.assertEqual(self.c.post(path, {"model": MODEL, **body, "guided_regex": "ab", "max_tokens": 3}).status, 200)
        print(f"\n    {len(hostile)} grammars, the slowest answer after {slowest:.2f} s", flush=True)

    def test_a_shell_with_small_stacks_starts_a_server_whose_threads_have_what_they_need(self):
        """Where a shell limits stacks to 2 MiB, or not at all, glibc gives a thread 2 MiB; the deepest schemas need more."""
        nested = {"$ref": "#/$defs/d390", "$defs": {"d0": {"type": "null"}, **{
            f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i - 1}"}}} for i in range(1, 391)}}}
        rules = "start: r0" + "".join(f"\nr{i}: r{i + 1}" for i in range(1400)) + '\nr1400: "a"'
        before = resource.getrlimit(resource.RLIMIT_STACK)
        resource.setrlimit(resource.RLIMIT_STACK, (2 << 20, before[1]))
        try:
            cluster = Cluster(self.folder)
            cluster.__enter__()
        finally:
            resource.setrlimit(resource.RLIMIT_STACK, before)
        try:
            for field, text in (("guided_json", json.dumps(nested)), ("guided_grammar", rules)):
                path, body = CHAT
                with self.subTest(field=field):
                    reply = answered(cluster, path, {"model": MODEL, **body, field: text, "max_tokens": 2})
                    self.assertEqual(reply.status, 200, reply.body)
        finally:
            cluster.__exit__(None, None, None)

    def test_a_function_that_is_not_strict_may_have_any_schema(self):
        for path, body, tools in ((*CHAT, [function(in_object(*KEYWORDS["not"])[0])]), (*MESSAGES, [{"name": "f", "input_schema": in_object(*KEYWORDS["not"])[0]}])):
            reply = self.c.post(path, {"model": MODEL, **body, "tools": tools, "max_tokens": 2})
            self.assertEqual(reply.status, 200, reply.body)


if __name__ == "__main__":
    unittest.main(verbosity=2)
