#!/usr/bin/env python3
"""Writes golden/templates/cases.json: what transformers' apply_chat_template renders from the templates beside it.

"demo" is the template inside the demo model's GGUF file, which is not committed; its cases are written when the file is there.
Needs: transformers, jinja2, gguf. The test needs none of them.
"""
import datetime
import json
import os
import pathlib
import sys
import time

from transformers.utils import chat_template_utils

TEMPLATES = pathlib.Path(__file__).parent / "golden" / "templates"
NOW_S = 1_795_000_000  # what strftime_now reads, in UTC
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}

WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "the weather <now> & later\nof a 'city'", "parameters": {
        "type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "Zürich, 東京 or \"x\""}, "unit": {"type": "string", "enum": ["C", "F"]},
            "days": {"type": "array", "items": {"type": "integer"}}, "where": {"type": "object", "properties": {"lat": {"type": "number"}}},
            "maybe": {"type": ["string", "null"]}}}}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


def message(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments):
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


USER = [message("user", "  Hello, <b>wörld</b> 👩‍🚀 & \"quotes\" 'single' \\ \n")]
CHAT = [message("system", " You are helpful.\n"), message("user", "Hi"), message("assistant", " Hello! "), message("user", "2 < 3 ?")]
ASSISTANT_LAST = [message("user", "Count"), message("assistant", "1, 2,  ")]
TOOLS = [message("system", "Use tools."), message("user", "Weather?"),
         message("assistant", "", tool_calls=[call("weather", {"city": "Zürich", "unit": "C", "n": 1.5, "ok": True, "x": None})]),
         message("tool", "{\"t\": -3}", name="weather", tool_call_id="c1"), message("assistant", "It is -3 °C."), message("user", "Thanks")]
TWO_CALLS = [message("user", "Both?"), message("assistant", None, tool_calls=[call("clock", {}), call("weather", "{\"city\": \"Rome\"}")]),
             message("tool", "12:00"), message("tool", "21")]
SILENT_CALLS = [{**m, "content": m["content"] or "", **({"tool_calls": [call("clock", {}), call("weather", {"city": "Rome"})]} if "tool_calls" in m else {})} for m in TWO_CALLS]  # as the router reads TWO_CALLS
THOUGHTS = [message("user", "1+1"), message("assistant", "<think>\neasy\n</think>\n\n2"), message("user", "2+2"),
            message("assistant", "4", reasoning_content="\nas before\n"), message("user", "<result>x</result>"), message("assistant", "done", thinking="hm")]
PARTS = [message("system", [{"type": "text", "text": "Look."}]), message("user", [{"type": "image"}, {"type": "text", "text": " What is it? "}])]
WRONG_ROLES = [message("user", "a"), message("user", "b")]
HIDDEN = [message("developer", "no"), message("user", "yes"), message("hidden", "no")]
EMPTY_TEXT = [message("user", "")]
CONVERSATIONS = {"user": USER, "chat": CHAT, "assistant_last": ASSISTANT_LAST, "tools": TOOLS, "two_calls": TWO_CALLS, "silent_calls": SILENT_CALLS, "thoughts": THOUGHTS,
                 "parts": PARTS, "wrong_roles": WRONG_ROLES, "hidden": HIDDEN, "empty_text": EMPTY_TEXT}
VALUE = {"html": "<a href='x'>&</a>", "n": [1, 2.5, -0.0, 1e16, 123456789012345678], "u": "é\u2028\u00a0\x7f😀", "nested": {"e": [], "o": {}}, "z": None, "t": True}


class FixedClock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW_S, tz)


def render(source, case):
    kwargs = {**TOKENS, **case.get("kwargs", {})}
    rendered, _ = chat_template_utils.render_jinja_template(
        [case["messages"]], tools=case.get("tools"), chat_template=source, add_generation_prompt=case.get("add_generation_prompt", False),
        continue_final_message=case.get("continue_final_message", False), **kwargs)
    return rendered[0]


def cases_of(name):
    for conversation in CONVERSATIONS:
        for more in ({}, {"add_generation_prompt": True}, {"tools": [WEATHER, CLOCK], "add_generation_prompt": True}):
            yield {"template": name, "conversation": conversation, **more}
    yield {"template": name, "conversation": "assistant_last", "continue_final_message": True}
    yield {"template": name, "conversation": "chat", "add_generation_prompt": True, "kwargs": {"enable_thinking": False, "value": VALUE}}
    yield {"template": name, "conversation": "tools", "tools": [WEATHER], "kwargs": {"tools_in_user_message": False, "date_string": "1 May"}}


def main():
    os.environ["TZ"] = "UTC"
    time.tzset()
    chat_template_utils.datetime = FixedClock
    sources = {path.stem: path.read_text() for path in sorted(TEMPLATES.glob("*.jinja"))}
    model = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "~/.cache/baton/models/SmolLM2-135M-Instruct.Q4_1.gguf").expanduser()
    if model.exists():
        from gguf import GGUFReader
        sources["demo"] = GGUFReader(model).fields["tokenizer.chat_template"].contents()
    cases = []
    for name, source in sources.items():
        for case in cases_of(name):
            try:
                case["expected"] = render(source, {**case, "messages": CONVERSATIONS[case["conversation"]]})
            except Exception as error:  # the template raised, or the message has what it cannot print
                case["error"] = str(error) if type(error).__name__ == "TemplateError" else ""
            cases.append(case)
    golden = {"now_s": NOW_S, "tokens": TOKENS, "conversations": CONVERSATIONS}
    body = ",\n".join(json.dumps(case) for case in cases)
    path = TEMPLATES / "cases.json"
    path.write_text(json.dumps(golden)[:-1] + f', "cases": [\n{body}\n]}}\n')
    errors = sum("error" in case for case in cases)
    print(f"{path}: {len(cases)} cases, {errors} of them errors, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
