"""Calls of functions in the form of every family, chosen from the chat template: whole and streamed they are the same calls, and the
turns of a conversation with calls go through the family's template. The templates are ours, with the marks of the families."""
import json
import tempfile
import unittest

from harness import Cluster
from streamed_calls import streamed
from thinking_model import thinking_model

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER}},
         {"type": "function", "function": {"name": "now"}}]

# How a template shows a turn: text, calls as JSON and results. Between the family's marks.
TURNS = """{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}OPEN{{ c.function.name }} {{ c.function.arguments | tojson }}CLOSE{% endfor %}{% endfor %}{% if tools %}{{ tools | length }} tools: MARKS{% endif %}{% if add_generation_prompt %}[assistant]{% endif %}"""

CITY = "(Rome|Oslo)"
# family -> (what its template says, its marks around a call, a regular expression of an answer with two calls, its text before the calls)
FAMILIES = {
    "hermes": ("Write <tool_call>.", ("<tool_call>", "</tool_call>"),
               f'Well\\. <tool_call>[{{]"name": "get_weather", "arguments": [{{]"city": "{CITY}", "days": [1-9][}}][}}]</tool_call>'
               '\\n<tool_call>[{]"name": "now", "arguments": [{][}][}]</tool_call>', "Well. "),
    "llama3_json": ('Answer {"name": ..., "parameters": ...} <|start_header_id|>', ("{", "}"),
                    f'[{{]"name": "get_weather", "parameters": [{{]"city": "{CITY}", "days": [1-9][}}][}}]; [{{]"name": "now", "parameters": [{{][}}][}}]', ""),
    "mistral": ("[TOOL_CALLS]", ("[TOOL_CALLS]", ""),
                f'Well\\. \\[TOOL_CALLS\\]\\[[{{]"name": "get_weather", "arguments": [{{]"city": "{CITY}", "days": [1-9][}}][}}], '
                '[{]"name": "now", "arguments": [{][}][}]\\]', "Well. "),
    "pythonic": ("Answer [func_name1(a=1), func_name2()]", ("[", "]"), f"\\[get_weather\\(city='{CITY}', days=[1-9]\\), now\\(\\)\\]", ""),
    "gemma": ("<start_function_call>call:", ("<start_function_call>", "<end_function_call>"),
              f"Well\\. <start_function_call>call:get_weather[{{]city:<escape>{CITY}<escape>,days:[1-9][}}]<end_function_call>"
              "<start_function_call>call:now[{][}]<end_function_call>", "Well. "),
    "gemma4": ("<|tool_call>call:", ("<|tool_call>", "<tool_call|>"),
               f'Well\\. <\\|tool_call>call:get_weather[{{]city:<\\|"\\|>{CITY}<\\|"\\|>,days:[1-9][}}]<tool_call\\|>'
               "<\\|tool_call>call:now[{][}]<tool_call\\|>", "Well. "),
}


def template_of(family):
    says, (opens, closes), _, _ = FAMILIES[family]
    quoted = "{{ " + json.dumps(says) + " }}"
    return TURNS.replace("MARKS", quoted).replace("OPEN", "{{ " + json.dumps(opens) + " }}").replace("CLOSE", "{{ " + json.dumps(closes) + " }}")


class Families(unittest.TestCase):
    def check(self, family, parser=None):
        _, _, answer, before = FAMILIES[family]
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write(template_of(family) if not parser else TURNS)
            template.flush()
            args = ["--chat-template", template.name] + (["--tool-call-parser", parser] if parser else [])
            with Cluster(args=args) as c:
                ids = set()
                for seed in range(4):
                    body = {"model": "tiny-llama", "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "max_tokens": 400,
                            "guided_regex": answer, "seed": seed, "n": 2}
                    reply = c.post("/v1/chat/completions", body)
                    self.assertEqual(reply.status, 200, reply.body)
                    pieces = streamed(c.post("/v1/chat/completions", {**body, "stream": True}).body)
                    for choice in reply.json()["choices"]:
                        self.assertEqual((choice["message"]["content"] or "", choice["finish_reason"]), (before, "tool_calls"), choice)
                        calls = choice["message"]["tool_calls"]
                        self.assertEqual([call["function"]["name"] for call in calls], ["get_weather", "now"])
                        arguments = [json.loads(call["function"]["arguments"]) for call in calls]
                        self.assertEqual((sorted(arguments[0]), arguments[1]), (["city", "days"], {}))
                        self.assertIn(arguments[0]["city"], ("Rome", "Oslo"))
                        content, got, end = pieces[choice["index"]]
                        self.assertEqual((content, end), (before, "tool_calls"))
                        self.assertEqual([[call["function"]["name"], call["function"]["arguments"]] for call in calls],
                                         [one[1:] for _, one in sorted(got.items())])
                        ids |= {call["id"] for call in calls} | {one[0] for one in got.values()}
                    if family == "mistral":
                        self.assertTrue(all(len(one) == 9 and one.isalnum() for one in ids), ids)
                self.assertEqual(len(ids), 4 * 2 * 2 * 2, "every call has an id of its own")
                one = c.post("/v1/chat/completions", {**body, "parallel_tool_calls": False}).json()["choices"][0]
                self.assertEqual([call["function"]["name"] for call in one["message"]["tool_calls"]], ["get_weather"])
                self.history(c, family, choice["message"], parser)

    def history(self, c, family, message, parser):
        """A conversation that goes on behind the calls, as the template shows it."""
        results = [{"role": "tool", "tool_call_id": call["id"], "content": f"result {i}"} for i, call in enumerate(message["tool_calls"])]
        chat = {"model": "tiny-llama", "messages": [{"role": "user", "content": "Hi"}, message, *results], "tools": TOOLS}
        ids = c.post("/tokenize", chat).json()["tokens"]
        text = c.post("/detokenize", {"model": "tiny-llama", "tokens": ids}).json()["prompt"]
        opens, closes = ("OPEN", "CLOSE") if parser else FAMILIES[family][1]
        for call in message["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            self.assertIn(f"{opens}{call['function']['name']} {json.dumps(arguments)}{closes}", text)
        self.assertIn("[tool]result 0[tool]result 1", text)
        self.assertIn("2 tools", text)

    def test_strict_functions_are_called_with_arguments_that_fit(self):
        """The model is drawn to the mark of a call: so it calls all the time, and only its arguments are its own."""
        strict = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
        tools = [{"type": "function", "function": {"name": "go", "parameters": strict, "strict": True}}, {"type": "function", "function": {"name": "any"}}]
        for family in ("hermes", "mistral", "gemma", "gemma4"):
            marks = [mark for mark in FAMILIES[family][1] if mark]
            asked = tools if family == "hermes" else tools[:1]  # what a function without a schema is given has no end here
            bias = {str(550 + i): 12 for i in range(len(marks))}
            with self.subTest(family), thinking_model(more=marks) as model, Cluster(model, args=["--tool-call-parser", family]) as c:
                calls = []
                for seed in range(8):
                    reply = c.post("/v1/chat/completions", {"model": "tiny-thinker", "messages": [{"role": "user", "content": "Hi"}], "tools": asked,
                                                            "seed": seed, "max_tokens": 250, "logit_bias": bias})
                    self.assertEqual(reply.status, 200, reply.body)
                    message = reply.json()["choices"][0]["message"]
                    calls += message.get("tool_calls", [])
                for call in calls:
                    arguments = json.loads(call["function"]["arguments"])
                    if call["function"]["name"] == "go":
                        self.assertIn(arguments, ({"city": "Rome"}, {"city": "Oslo"}))
                self.assertGreater([call["function"]["name"] for call in calls].count("go"), 3)
                refused = c.post("/v1/chat/completions", {"model": "tiny-thinker", "messages": [{"role": "user", "content": "Hi"}], "tools": [
                    {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"properties": {"a": {"unevaluatedItems": False}}}}}]})
                self.assertEqual((refused.status, refused.json()["error"]["param"]), (400, "tools[0].function.parameters"), refused.body)
                self.assertIn("/unevaluatedItems is not supported", refused.json()["error"]["message"])

    def test_where_the_mark_of_a_call_is_a_special_token_no_other_is_text(self):
        strict = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
        ask = {"model": "tiny-thinker", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 250, "chat_template_kwargs": {"enable_thinking": False},
               "tools": [{"type": "function", "function": {"name": "go", "parameters": strict, "strict": True}}]}
        mark = "[TOOL_CALLS]"
        with thinking_model(more=[mark], special=[mark]) as model, Cluster(model, args=["--tool-call-parser", "mistral"]) as c:
            answers = []
            for fields in [{"guided_regex": "Well", "seed": 1}, *({"logit_bias": {"550": 12}, "seed": seed} for seed in range(6))]:
                whole = c.post("/v1/chat/completions", {**ask, **fields}).json()["choices"][0]
                (content, calls, end), = streamed(c.post("/v1/chat/completions", {**ask, **fields, "stream": True}).body).values()
                self.assertEqual((content, end), (whole["message"]["content"] or "", whole["finish_reason"]))
                self.assertEqual([name for _, name, _ in calls.values()], [call["function"]["name"] for call in whole["message"].get("tool_calls", [])])
                answers.append((content, end, len(calls)))
            self.assertEqual(answers[0], ("Well", "stop", 0), "the end of an answer is no text")
            self.assertGreater(sum(count for _, _, count in answers), 3)

    def test_hermes(self):
        self.check("hermes")

    def test_llama3_json(self):
        self.check("llama3_json")

    def test_mistral(self):
        self.check("mistral")

    def test_pythonic(self):
        self.check("pythonic")

    def test_gemma(self):
        self.check("gemma")

    def test_gemma4(self):
        self.check("gemma4")

    def test_the_flag_names_a_form_that_the_template_does_not_show(self):
        self.check("pythonic", parser="pythonic")


if __name__ == "__main__":
    unittest.main(verbosity=2)
