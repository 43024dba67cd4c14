"""The public clients, unchanged, against a real cluster. They live in build/venv; without it the test is skipped."""
import csv
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from harness import ROOT, Cluster
from thinking_model import thinking_model

VENV = ROOT / "build" / "venv" / "bin" / "python"
INSTRUCTORS = ROOT / "build" / "venv-instructor" / "bin" / "python"  # it wants another openai

OPENAI = """
import json, sys, openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "Hello"}]
whole = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=10, logprobs=True, top_logprobs=2, n=2, seed=3)
assert len(whole.choices) == 2 and whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
text, usage = "", None
for chunk in client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=10, stream=True, stream_options={"include_usage": True}):
    for choice in chunk.choices:
        text += choice.delta.content or ""
    usage = chunk.usage or usage
assert text == whole.choices[0].message.content, (text, whole.choices[0].message.content)
assert usage.completion_tokens == 10 or usage.completion_tokens > 0
legacy = client.completions.create(model=model, prompt=["one", "two"], max_tokens=3, temperature=0, logprobs=1, echo=True)
assert len(legacy.choices) == 2 and legacy.choices[0].text.startswith("one")
for bad, kind in (({"model": "nope"}, openai.NotFoundError), ({"max_tokens": 100000}, openai.BadRequestError)):
    try:
        client.chat.completions.create(**{"model": model, "messages": messages, **bad})
        raise SystemExit(f"{bad} was accepted")
    except kind as e:
        assert e.body["message"], e
import enum, pydantic
class Point(pydantic.BaseModel):
    kind: enum.Enum("Kind", {"near": "near", "far": "far"})
    steps: list[int] = pydantic.Field(max_length=3)
asked = dict(model=model, messages=messages, response_format=Point, max_tokens=300, seed=3)
parsed = client.chat.completions.parse(**asked).choices[0].message.parsed
assert isinstance(parsed, Point), parsed
with client.chat.completions.stream(**asked) as stream:
    assert list(stream) and stream.get_final_completion().choices[0].message.parsed == parsed
tool = {"type": "function", "function": {"name": "move", "parameters": Point.model_json_schema()}}
forced = dict(model=model, messages=messages, tools=[tool], tool_choice="required", max_tokens=300, seed=4)
answer = client.chat.completions.create(**forced).choices[0]
other = {"type": "function", "function": {"name": "stay", "parameters": Point.model_json_schema()}}
allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "move"}}]}}
same = client.chat.completions.create(**{**forced, "tools": [other, tool], "tool_choice": allowed}).choices[0]
assert same.message.tool_calls[0].function.name == "move", same
call = answer.message.tool_calls[0]
assert answer.finish_reason == "tool_calls" and call.function.name == "move", answer
Point.model_validate_json(call.function.arguments)
with client.chat.completions.stream(**forced) as stream:
    assert list(stream) and stream.get_final_completion().choices[0].message.tool_calls[0].function.arguments == call.function.arguments
print("openai", openai.__version__)
"""

LANGCHAIN = """
import sys
from langchain_openai import ChatOpenAI
chat = ChatOpenAI(base_url=sys.argv[1] + "/v1", api_key="none", model=sys.argv[2], temperature=0, max_tokens=10, stream_usage=True)
whole = chat.invoke("Hello")
pieces = list(chat.stream("Hello"))
assert "".join(p.content for p in pieces) == whole.content
assert whole.usage_metadata["output_tokens"] > 0
import openai, pydantic
class Place(pydantic.BaseModel):
    "A place."
    city: str = pydantic.Field(max_length=12)
    near: bool
drawn = dict(base_url=sys.argv[1] + "/v1", api_key="none", model=sys.argv[2], max_tokens=1500, temperature=1)
for method in ("json_schema", "function_calling"):
    formed = 0
    for seed in range(8):
        structured = ChatOpenAI(**drawn, seed=seed).with_structured_output(Place, method=method, include_raw=True)
        try:
            said = structured.invoke("Hello")
        except openai.LengthFinishReasonError:
            continue  # a random model may write spaces, or more members, to the end
        if said["raw"].response_metadata["finish_reason"] == "length":
            continue
        assert isinstance(said["parsed"], Place), (method, said)
        formed += 1
    assert formed >= 3, (method, formed)
print("langchain-openai ok")
"""

# An agent: the model calls a function until it answers with text. A random model is drawn to the mark of a call by a bias, and from the
# third turn on away from it.
AGENT = """
import sys
from typing import Literal
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
@tool
def weather(city: Literal["Rome", "Oslo"], days: Literal[1, 2, 3]) -> str:
    "The weather of a city."
    asked.append((city, days))
    return f"rain for {days} days"
asked, turns = [], 0
chat = ChatOpenAI(base_url=sys.argv[1] + "/v1", api_key="none", model=sys.argv[2], max_tokens=300, temperature=1, streaming=len(sys.argv) > 3)
messages = [HumanMessage("How is the weather?")]
while True:
    bias = {"550": 100 if turns < 2 else -100}
    answer = chat.bind_tools([weather], strict=True, parallel_tool_calls=False).bind(seed=turns, logit_bias=bias).invoke(messages)
    messages.append(answer)
    turns += 1
    if not answer.tool_calls:
        break
    assert turns < 6, messages
    for call in answer.tool_calls:
        messages.append(ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]))
assert turns == 3 and len(asked) == 2, (turns, asked)
assert len({call["id"] for m in messages for call in getattr(m, "tool_calls", [])}) == len(asked)
print("agent ok", asked)
"""

INSTRUCTOR = """
import sys, instructor, openai, pydantic, typing
class Step(pydantic.BaseModel, extra="forbid"):  # a random model writes further members to the end
    kind: typing.Literal["walk", "ride"]
    minutes: int = pydantic.Field(ge=1, le=90)
class Route(pydantic.BaseModel, extra="forbid"):
    to: str = pydantic.Field(max_length=10)
    steps: typing.Annotated[list[Step], pydantic.Field(max_length=2)]
base = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(base, mode=mode)
    for seed in range(3):
        route = client.chat.completions.create(model=sys.argv[2], response_model=Route, max_retries=0, max_tokens=1500, seed=seed,
                                               messages=[{"role": "user", "content": "Hello"}])
        assert isinstance(route, Route), route
print("instructor ok")
"""

RESPONSES = """
import json, sys, openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
drawn = dict(model=sys.argv[2], temperature=0, max_output_tokens=12)
first = client.responses.create(input="Hello", **drawn)
chat = client.chat.completions.create(model=sys.argv[2], messages=[{"role": "user", "content": "Hello"}], temperature=0, max_tokens=12)
assert first.output_text == chat.choices[0].message.content, (first, chat)
assert first.usage.output_tokens == chat.usage.completion_tokens
then = client.responses.create(input="More", previous_response_id=first.id, **drawn)
assert then.usage.input_tokens > first.usage.input_tokens
import pydantic
class Place(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=20)
formed = dict(model=sys.argv[2], input="Hello", text_format=Place, max_output_tokens=500, extra_body={"seed": 3})
parsed = client.responses.parse(**formed)
assert isinstance(parsed.output_parsed, Place), parsed
with client.responses.stream(**formed) as stream:
    text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == stream.get_final_response().output_text == parsed.output_text
tool = {"type": "function", "name": "place", "parameters": {**Place.model_json_schema(), "additionalProperties": False}, "strict": True}
asked = dict(model=sys.argv[2], input="Hello", tools=[tool], tool_choice="required", max_output_tokens=300)
call = client.responses.create(**asked).output[-1]
assert call.type == "function_call", call
Place.model_validate_json(call.arguments)
again = client.responses.create(model=sys.argv[2], input=[{"role": "user", "content": "Hello"}, call, {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}], max_output_tokens=5)
assert again.output_text is not None
assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
(asked,) = client.responses.input_items.list(first.id)
assert asked.content[0].text == "Hello" and asked.role == "user", asked
assert client.responses.input_tokens.count(input="Hello", model=sys.argv[2]).input_tokens == first.usage.input_tokens
try:
    client.responses.cancel(first.id)
    raise SystemExit("an answer that is complete was cancelled")
except openai.BadRequestError as e:
    assert "background" in e.body["message"], e
client.responses.delete(then.id)
try:
    client.responses.retrieve(then.id)
    raise SystemExit("a response that was deleted was found")
except openai.NotFoundError as e:
    assert "64 MiB" in e.body["message"], e
try:
    client.responses.create(input="x", previous_response_id="resp_none", **drawn)
    raise SystemExit("a response that was never given was found")
except openai.NotFoundError as e:
    assert "64 MiB" in e.body["message"], e
print("responses ok")
"""

ANTHROPIC = """
import sys, anthropic
client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
asked = dict(model=sys.argv[2], max_tokens=12, extra_body={"temperature": 0}, system="Be brief", messages=[{"role": "user", "content": "Hello"}])
assert [m.id for m in client.models.list()] == [sys.argv[2]] and client.models.retrieve(sys.argv[2]).type == "model"
whole = client.messages.create(**asked)
assert whole.usage.output_tokens > 0 and whole.stop_reason in ("end_turn", "max_tokens"), whole
with client.messages.stream(**asked) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
assert text == whole.content[0].text == final.content[0].text and final.usage.output_tokens == whole.usage.output_tokens
assert client.messages.count_tokens(**{k: asked[k] for k in ("model", "system", "messages")}).input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens
tool = {"name": "place", "description": "d", "input_schema": {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}}
forced = dict(model=sys.argv[2], max_tokens=500, tools=[tool], tool_choice={"type": "any"}, messages=asked["messages"], extra_body={"seed": 4})
call = client.messages.create(**forced)
assert call.stop_reason == "tool_use" and call.content[-1].input["city"] in ("Rome", "Oslo"), call
with client.messages.stream(**forced) as stream:
    assert stream.get_final_message().content[-1].input == call.content[-1].input
result = {"type": "tool_result", "tool_use_id": call.content[-1].id, "content": "rain"}
client.messages.create(model=sys.argv[2], max_tokens=5, messages=[*asked["messages"], {"role": "assistant", "content": call.content}, {"role": "user", "content": [result]}])
import pydantic, typing
class Place(pydantic.BaseModel):
    city: typing.Literal["Rome", "Oslo"]
    near: bool | None
parsed = client.messages.parse(model=sys.argv[2], max_tokens=1500, messages=asked["messages"], output_format=Place, extra_body={"seed": 4})
assert isinstance(parsed.parsed_output, Place), parsed
for bad, kind in (({"model": "nope"}, anthropic.NotFoundError), ({"max_tokens": 10000}, anthropic.BadRequestError)):
    try:
        client.messages.create(**{**asked, **bad})
        raise SystemExit(f"{bad} was accepted")
    except kind as e:
        assert e.body["error"]["message"], e
print("anthropic", anthropic.__version__)
"""

OLLAMA = """
import sys, ollama
client = ollama.Client(host=sys.argv[1])
assert [m.model for m in client.list().models] == [sys.argv[2]]
assert "completion" in client.show(sys.argv[2]).capabilities
assert [m.model for m in client.ps().models] == [sys.argv[2]]
try:
    client.embed(sys.argv[2], "Hello")
    raise SystemExit("a model that writes text made an embedding")
except ollama.ResponseError as e:
    assert e.status_code == 501 and "no embeddings" in e.error, e
options = {"temperature": 0, "num_predict": 12}
messages = [{"role": "user", "content": "Hello"}]
whole = client.chat(sys.argv[2], messages=messages, options=options)
pieces = list(client.chat(sys.argv[2] + ":latest", messages=messages, options=options, stream=True))
assert "".join(p.message.content for p in pieces) == whole.message.content and pieces[-1].done and pieces[-1].eval_count == whole.eval_count > 0
assert client.generate(sys.argv[2], "Hello", options=options).response == whole.message.content
schema = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
import json
formed = client.chat(sys.argv[2], messages=messages, format=schema, options={"seed": 3, "num_predict": 500})
assert json.loads(formed.message.content)["city"] in ("Rome", "Oslo"), formed
try:
    client.chat("nope", messages=messages)
    raise SystemExit("a model that is not there answered")
except ollama.ResponseError as e:
    assert e.status_code == 404 and e.error, e
print("ollama ok")
"""

LOCUST = """
import json
from locust import HttpUser, task

class Chatter(HttpUser):
    @task(2)
    def streamed(self):
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "stream": True}
        with self.client.post("/v1/chat/completions", json=body, stream=True, catch_response=True) as response:
            last = [line for line in response.iter_lines() if line][-1:]
            if last != [b"data: [DONE]"]:
                response.failure(f"the stream ended with {last}")

    @task(1)
    def whole(self):
        body = {"prompt": "Hello", "max_tokens": 4, "temperature": 0}
        with self.client.post("/v1/completions", json=body, catch_response=True) as response:
            if response.json()["usage"]["completion_tokens"] < 1:
                response.failure(response.text)
"""


@unittest.skipUnless(VENV.exists() and (VENV.parents[1] / ".requirements").exists(), "build/venv is not there (no package index?)")
class PublicClients(unittest.TestCase):
    def check(self, program, python=VENV):
        with Cluster() as c:
            self.run_client(c, [python, "-c", program, c.url, "tiny-llama"])

    def run_client(self, c, command):
        env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr[-3000:])

    def test_openai_python(self):
        self.check(OPENAI)

    def test_langchain_openai(self):
        self.check(LANGCHAIN)

    def test_a_langchain_agent_calls_functions_until_it_is_done(self):
        with thinking_model(more=["<tool_call>"]) as model, Cluster(model, args=["--reasoning-parser", "none"]) as c:
            self.run_client(c, [VENV, "-c", AGENT, c.url, "tiny-thinker"])
            self.run_client(c, [VENV, "-c", AGENT, c.url, "tiny-thinker", "streamed"])

    def test_instructor(self):
        if not (INSTRUCTORS.parents[1] / ".requirements").exists():
            self.skipTest("build/venv-instructor is not there (no package index?)")
        self.check(INSTRUCTOR, INSTRUCTORS)

    def test_openai_responses(self):
        self.check(RESPONSES)

    def test_anthropic(self):
        self.check(ANTHROPIC)

    def test_ollama(self):
        self.check(OLLAMA)

    def test_locust(self):
        with Cluster() as c, tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "chatter.py").write_text(LOCUST)
            command = [VENV.parent / "locust", "-f", f"{folder}/chatter.py", "--host", c.url, "--headless", "--users", "8",
                       "--spawn-rate", "8", "--run-time", "5s", "--stop-timeout", "30", "--csv", f"{folder}/run", "--only-summary"]
            env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
            result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)  # 1: a request failed
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr[-3000:])
            with open(f"{folder}/run_stats.csv", newline="") as stats:
                total = {row["Name"]: row for row in csv.DictReader(stats)}["Aggregated"]
            self.assertGreater(int(total["Request Count"]), 8)
            self.assertEqual(total["Failure Count"], "0")

    def test_schemathesis(self):
        """What /openapi.json says is what the server does: no 5xx, no bad request accepted, no answer it does not describe. Whether
        every request of the schema is taken is not asked: it cannot say that min_tokens must not exceed max_tokens."""
        with Cluster(args=["--max-model-len", 64]) as c, tempfile.TemporaryDirectory() as folder:
            command = [VENV.parent / "schemathesis", "run", c.url + "/openapi.json", "--generation-deterministic", "--max-examples", "40",
                       "--workers", "1", "--request-timeout", "60", "--continue-on-failure", "--no-color",
                       "--exclude-checks", "positive_data_acceptance"]
            env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
            result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, cwd=folder)
            self.assertEqual(result.returncode, 0, result.stdout[-6000:] + result.stderr[-3000:])
            self.assertRegex(result.stdout, r"Tested: 2[0-9]")


if __name__ == "__main__":
    unittest.main(verbosity=2)
