"""Anthropic's, OpenAI's newer and Ollama's APIs: each is another shape of the same answer. What a chat answers, they answer, whole and
streamed; calls, results and thoughts go both ways."""
import json
import sys
import unittest

from harness import Cluster
from streamed_calls import streamed
from thinking_model import thinking_model

MODEL = "tiny-thinker"
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
GREETING = [{"role": "user", "content": "Hi"}]


def named_events(body):
    """[(name, data)] of server-sent events that have names."""
    out = []
    for event in body.split("\n\n"):
        if event.startswith("event: "):
            name, data = event.split("\n", 1)
            out.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return out


class Apis:
    @classmethod
    def setUpClass(cls):
        cls.model = thinking_model()
        cls.c = Cluster(cls.model.__enter__(), args=["--api-key", "one", "--api-key", "two"]).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.c.__exit__(None, None, None)
        cls.model.__exit__(None, None, None)

    def post(self, path, body, key="one", status=200):
        reply = self.c.post(path, {"model": MODEL, **body}, headers={"Authorization": f"Bearer {key}"})
        self.assertEqual(reply.status, status, reply.body)
        return reply

    def chat(self, messages, **fields):
        return self.post("/v1/chat/completions", {"messages": messages, **fields}).json()


class Messages(Apis, unittest.TestCase):
    def ask(self, messages, **fields):
        """Whole, and gathered from the events, which must be the same but for ids."""
        body = {"messages": messages, "max_tokens": 60, "temperature": 0, **fields}
        whole = self.post("/v1/messages", body).json()
        names = named_events(self.post("/v1/messages", {**body, "stream": True}).body)
        self.assertEqual([name for name, _ in names[:1]] + [name for name, _ in names[-2:]], ["message_start", "message_delta", "message_stop"])
        message, calls = names[0][1]["message"], {}
        for name, data in names:
            self.assertEqual(name, data["type"])
            if name == "content_block_start":
                self.assertEqual(data["index"], len(message["content"]))
                message["content"].append(data["content_block"])
            elif name == "content_block_delta":
                block, delta = message["content"][data["index"]], data["delta"]
                for kind, key in (("text_delta", "text"), ("thinking_delta", "thinking")):
                    if delta["type"] == kind:
                        block[key] += delta[key]
                if delta["type"] == "input_json_delta":
                    calls[data["index"]] = calls.get(data["index"], "") + delta["partial_json"]
            elif name == "message_delta":
                message.update(data["delta"], usage=data["usage"])
        for index, text in calls.items():
            message["content"][index]["input"] = json.loads(text)
        without = lambda m: {**m, "id": "", "usage": {**m["usage"], "cache_read_input_tokens": 0, "input_tokens": 0},
                             "content": [{**block, "id": ""} for block in m["content"]]}
        self.assertEqual(without(message), without(whole))
        return whole

    def test_it_says_what_a_chat_says(self):
        want = self.chat([{"role": "system", "content": "Be\nbrief"}, *GREETING], max_tokens=20, temperature=0)
        got = self.ask([{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}],
                       system=[{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}], max_tokens=20)
        self.assertEqual("".join(block["text"] for block in got["content"]), want["choices"][0]["message"]["content"])
        usage = got["usage"]
        self.assertEqual((usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]),
                         (want["usage"]["prompt_tokens"], want["usage"]["completion_tokens"]))
        self.assertIn(got["stop_reason"], ("max_tokens", "end_turn"))

    def test_calls_results_and_thoughts(self):
        tools = [{"name": "get_weather", "description": "Weather", "input_schema": WEATHER}, {"name": "now", "input_schema": {"type": "object", "properties": {}}}]
        named = self.ask(GREETING, tools=tools, tool_choice={"type": "tool", "name": "get_weather"}, thinking={"type": "enabled", "budget_tokens": 1024},
                         temperature=1, seed=3, max_tokens=1500)
        self.assertEqual(named["stop_reason"], "tool_use")
        (call,) = [block for block in named["content"] if block["type"] == "tool_use"]
        self.assertIn(call["input"]["city"], ("Rome", "Oslo"))
        history = [*GREETING, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "So"}, call]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "rain"}]},
                                                {"type": "text", "text": "And?"}]}]
        count = self.post("/v1/messages/count_tokens", {"messages": history, "tools": tools}).json()["input_tokens"]
        chat = [*GREETING, {"role": "assistant", "content": "So", "reasoning_content": "hm", "tool_calls": [
            {"id": call["id"], "type": "function", "function": {"name": "get_weather", "arguments": json.dumps(call["input"])}}]},
            {"role": "tool", "tool_call_id": call["id"], "content": "rain"}, {"role": "user", "content": "And?"}]
        functions = [{"type": "function", "function": {"name": tool["name"], "parameters": tool["input_schema"], **(
            {"description": tool["description"]} if "description" in tool else {})}} for tool in tools]
        same = self.c.post("/tokenize", {"model": MODEL, "messages": chat, "tools": functions}, headers={"Authorization": "Bearer one"}).json()
        self.assertEqual(count, same["count"])
        self.ask(history, tools=tools, tool_choice={"type": "none"})

    def test_blocks_stand_as_they_were_generated(self):
        tools = [{"name": "get_weather", "input_schema": WEATHER}]
        call = r'<tool_call>\{"name": "get_weather", "arguments": \{"city": "Rome"\}\}</tool_call>'
        answer = self.ask(GREETING, tools=tools, guided_regex=f"So: {call}Well{call}", max_tokens=600)
        self.assertEqual([block["type"] for block in answer["content"]], ["text", "tool_use", "text", "tool_use"])
        self.assertEqual([block["text"] for block in answer["content"] if block["type"] == "text"], ["So: ", "Well"])

    def test_a_body_that_is_packed_is_refused(self):
        for path, body in (("/v1/messages", {"max_tokens": 2}), ("/v1/chat/completions", {}), ("/api/chat", {})):
            reply = self.c.post(path, {"messages": GREETING, **body}, headers={"Content-Encoding": "gzip", "Authorization": "Bearer one"})
            self.assertEqual(reply.status, 415, reply.body)
            self.assertIn("Content-Encoding gzip is not read", reply.body)

    def test_stop_sequences_and_keys(self):
        text = self.ask(GREETING, max_tokens=30)["content"][0]["text"]
        stop = self.ask(GREETING, max_tokens=30, stop_sequences=[text[5:9]])
        self.assertEqual((stop["stop_reason"], stop["stop_sequence"]), ("stop_sequence", text[5:9]))
        with_key = self.c.post("/v1/messages", {"model": MODEL, "messages": GREETING, "max_tokens": 2}, headers={"x-api-key": "two"})
        self.assertEqual(with_key.status, 200, with_key.body)
        for headers in ({}, {"x-api-key": "three"}):
            self.assertEqual(self.c.post("/v1/messages", {"model": MODEL, "messages": GREETING, "max_tokens": 2}, headers=headers).status, 401)

    def test_an_answer_goes_on_from_a_last_message_of_the_assistants(self):
        begun = [*GREETING, {"role": "assistant", "content": "So it"}]
        want = self.chat(begun, max_tokens=20, temperature=0, continue_final_message=True, add_generation_prompt=False)
        got = self.ask(begun, max_tokens=20)
        self.assertEqual(got["content"][0]["text"], want["choices"][0]["message"]["content"])
        usage = got["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"], want["usage"]["prompt_tokens"])
        ollama = self.post("/api/chat", {"messages": begun, "stream": False, "options": {"num_predict": 20, "temperature": 0}}).json()
        self.assertEqual(ollama["message"]["content"], want["choices"][0]["message"]["content"])

    def test_what_is_wrong_is_named(self):
        for body, words in (({}, "`messages` is required"), ({"messages": GREETING, "max_tokens": None}, "`max_tokens` is required"), ({"messages": GREETING, "stop_sequences": ["a", ""]}, "`stop_sequences`"), ({"messages": [{"role": "user"}]}, "messages[0]"),
                            ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
                            ({"messages": GREETING, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
                            ({"messages": GREETING, "tool_choice": {"type": "tool", "name": "x"}}, "needs `tools`")):
            error = self.post("/v1/messages", {"max_tokens": 2, **body}, status=400).json()
            self.assertEqual((error["type"], error["error"]["type"]), ("error", "invalid_request_error"))
            self.assertIn(words, error["error"]["message"])


class Responses(Apis, unittest.TestCase):
    def ask(self, asked, **fields):
        """Whole, and gathered from the events, which must be the same but for ids."""
        body = {"input": asked, "max_output_tokens": 60, "temperature": 0, **fields}
        whole = self.post("/v1/responses", body).json()
        names = named_events(self.post("/v1/responses", {**body, "stream": True}).body)
        self.assertEqual([data["sequence_number"] for _, data in names], list(range(len(names))))
        self.assertEqual([name for name, _ in names[:2]], ["response.created", "response.in_progress"])
        self.assertEqual(names[-1][0], f"response.{whole['status']}")
        final = names[-1][1]["response"]
        texts = {}
        for name, data in names:
            if name.endswith(".delta"):
                texts[data["output_index"]] = texts.get(data["output_index"], "") + data["delta"]
        for index, item in enumerate(final["output"]):
            self.assertEqual(texts.get(index, ""), item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
        without = lambda r: {**r, "id": "", "created_at": 0, "usage": {**r["usage"], "input_tokens_details": {}},
                             "output": [{**item, "id": "", "call_id": ""} for item in r["output"]]}
        self.assertEqual(without(final), without(whole))
        return whole

    def test_it_says_what_a_chat_says_and_goes_on_from_there(self):
        want = self.chat([{"role": "system", "content": "Be brief"}, *GREETING], max_tokens=20, temperature=0)
        first = self.ask("Hi", instructions="Be brief", max_output_tokens=20)
        text = "".join(part["text"] for item in first["output"] for part in item["content"])
        self.assertEqual(text, want["choices"][0]["message"]["content"])
        self.assertEqual(first["usage"]["output_tokens"], want["usage"]["completion_tokens"])
        then = self.ask([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "More"}]}], max_output_tokens=20,
                        previous_response_id=first["id"])
        again = self.chat([*GREETING, {"role": "assistant", "content": text}, {"role": "user", "content": "More"}], max_tokens=20, temperature=0)
        self.assertEqual("".join(part["text"] for item in then["output"] for part in item["content"]), again["choices"][0]["message"]["content"])
        self.assertEqual(then["usage"]["input_tokens"], again["usage"]["prompt_tokens"])
        for key, response in (("two", first["id"]), ("one", "resp_none")):
            error = self.post("/v1/responses", {"input": "x", "previous_response_id": response}, key=key, status=404).json()["error"]
            self.assertIn("64 MiB", error["message"])
            self.assertEqual(error["param"], "previous_response_id")
        unkept = self.ask("Hi", store=False)
        self.post("/v1/responses", {"input": "x", "previous_response_id": unkept["id"]}, status=404)

    def test_calls_results_and_formats(self):
        tools = [{"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}]
        drawn = {"temperature": 1, "seed": 3, "max_output_tokens": 1500}
        first = self.ask("Hi", tools=tools, tool_choice="required", reasoning={"effort": "low"}, **drawn)
        (call,) = [item for item in first["output"] if item["type"] == "function_call"]
        self.assertIn(json.loads(call["arguments"])["city"], ("Rome", "Oslo"))
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        short = self.ask([result], tools=tools, tool_choice="none", previous_response_id=first["id"], max_output_tokens=10)
        long = self.ask([{"role": "user", "content": "Hi"}, *first["output"], result], tools=tools, tool_choice="none", max_output_tokens=10)
        self.assertEqual(short["usage"]["input_tokens"], long["usage"]["input_tokens"])
        formed = self.ask("Hi", text={"format": {"type": "json_schema", "name": "w", "schema": WEATHER, "strict": True}}, **drawn)
        self.assertIn(json.loads(formed["output"][-1]["content"][0]["text"])["city"], ("Rome", "Oslo"))

    def test_logprobs_are_those_of_a_chat(self):
        for guided in ({}, {"guided_regex": "[a-z]{3,9}"}):
            want = self.chat(GREETING, max_tokens=12, temperature=0, logprobs=True, top_logprobs=2, **guided)["choices"][0]["logprobs"]["content"]
            for asked in ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"top_logprobs": 2}):
                got = self.ask("Hi", max_output_tokens=12, **asked, **guided)["output"][-1]["content"][0]["logprobs"]
                self.assertEqual(got[:len(want)], want[:len(got)])
                self.assertGreater(len(got), 2)
                body = {"input": "Hi", "max_output_tokens": 12, "temperature": 0, "stream": True, **asked, **guided}
                pieces = [data["logprobs"] for name, data in named_events(self.post("/v1/responses", body).body) if name == "response.output_text.delta"]
                self.assertEqual([token for piece in pieces for token in piece], got)
            self.assertEqual(self.ask("Hi", max_output_tokens=12, **guided)["output"][-1]["content"][0]["logprobs"], [])
        thinking = {"thinking_token_budget": 3, "chat_template_kwargs": {"opened": True}, "guided_regex": "[a-z]{3,9}", "max_output_tokens": 20}
        behind = self.ask("Hi", top_logprobs=1, **thinking)
        tokens, thoughts = behind["usage"]["output_tokens"], behind["usage"]["output_tokens_details"]["reasoning_tokens"]
        self.assertGreater(thoughts, 2)
        self.assertEqual(len(behind["output"][-1]["content"][0]["logprobs"]), tokens - thoughts, "those of thoughts have no place")

    def test_tokens_of_a_call_are_none_of_the_text(self):
        tools = [{"type": "function", "name": "get_weather", "parameters": WEATHER}]
        call = r'<tool_call>\{"name": "get_weather", "arguments": \{"city": "Rome"\}\}</tool_call>'
        self.ask("Hi", tools=tools, guided_regex=f"So: {call}", top_logprobs=1, max_output_tokens=300)
        for says, text in ((f"So: {call}", "So:"), (f"{call}Well", "Well"), (f"So: {call}Well", "So:Well")):
            answer = self.post("/v1/responses", {"input": "Hi", "tools": tools, "guided_regex": says, "top_logprobs": 1, "max_output_tokens": 300, "temperature": 0}).json()
            texts = [item["content"][0] for item in answer["output"] if item["type"] == "message"]
            self.assertEqual(len(answer["output"]) - len(texts), 1, answer["output"])
            said = "".join(token["token"] for part in texts for token in part["logprobs"])
            self.assertEqual("".join(part["text"] for part in texts).replace(" ", ""), text)
            self.assertEqual(said.replace(" ", "").removesuffix("<|im_end|>"), text)

    def test_items_stand_as_they_were_generated(self):
        tools = [{"type": "function", "name": "get_weather", "parameters": WEATHER}]
        call = r'<tool_call>\{"name": "get_weather", "arguments": \{"city": "Rome"\}\}</tool_call>'
        for says, kinds in ((f"So: {call}Well", ["message", "function_call", "message"]), (f"{call}Well{call}", ["function_call", "message", "function_call"]),
                            (f"{call}{call}Well", ["function_call", "function_call", "message"])):
            for logprobs in ({}, {"top_logprobs": 1}):
                answer = self.ask("Hi", tools=tools, guided_regex=says, max_output_tokens=600, **logprobs)
                self.assertEqual([item["type"] for item in answer["output"]], kinds)
                texts = [item["content"][0] for item in answer["output"] if item["type"] == "message"]
                self.assertEqual([text["text"] for text in texts], [text for text in ("So: ", "Well") if text in says])
                for text in texts if logprobs else ():
                    said = "".join(token["token"] for token in text["logprobs"]).removesuffix("<|im_end|>")
                    self.assertEqual(said.replace(" ", ""), text["text"].replace(" ", ""))

    def test_what_is_wrong_is_named(self):
        for body, words in (({}, "`input` is required"), ({"input": [{"type": "web_search_call"}]}, "web_search_call"),
                            ({"input": [{"role": "tool", "content": "x"}]}, "`input[0]` has the role \"tool\"; there are user"),
                            ({"input": "x", "tools": [{"type": "file_search"}]}, "file_search"), ({"input": "x", "background": True}, "background")):
            self.assertIn(words, self.post("/v1/responses", body, status=400).json()["error"]["message"])
        for body, field in (({"max_output_tokens": 0}, "max_output_tokens"), ({"reasoning": "high"}, "reasoning"), ({"text": "x"}, "text")):
            error = self.post("/v1/responses", {"input": "x", **body}, status=400).json()["error"]
            self.assertEqual((error["param"], error["message"].split(" ")[0]), (field, f"`{field}`"))
        formed = {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}}
        self.assertEqual(self.post("/v1/responses", formed, status=400).json()["error"]["param"], "text.format.schema")
        self.assertEqual(self.post("/v1/embeddings", {"input": "x"}, status=501).json()["error"]["code"], "unsupported_endpoint")

    def get(self, path, key="one", status=200):
        reply = self.c.get(path, headers={"Authorization": f"Bearer {key}"})
        self.assertEqual(reply.status, status, reply.body)
        return reply.json()

    def test_a_call_that_a_stop_string_ends_or_follows_is_whole(self):
        tools = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]
        call = r'<tool_call>\{"name": "get_weather", "arguments": \{"city": "Rome"\}\}</tool_call>'
        ask = {"tools": tools, "guided_regex": f"{call}Well<tool_call>", "temperature": 0, "max_tokens": 300}
        for stop, calls, reason in (("</tool_call>", 1, "tool_calls"), ("}}", 0, "stop"), ("Well", 1, "tool_calls"), ("l<tool", 1, "tool_calls")):
            choice = self.chat(GREETING, **ask, stop=[stop])["choices"][0]
            self.assertEqual((len(choice["message"].get("tool_calls", [])), choice["stop_reason"], choice["finish_reason"]), (calls, stop, reason))
            self.assertEqual((choice["message"]["content"] or "").startswith("<tool_call>"), calls == 0)
            (content, got, end), = streamed(self.post("/v1/chat/completions", {"messages": GREETING, **ask, "stop": [stop], "stream": True}).body).values()
            self.assertEqual((content, len(got), end), (choice["message"]["content"] or "", calls, reason))
            theirs = [{"name": "get_weather", "input_schema": WEATHER}]
            answer = self.post("/v1/messages", {"messages": GREETING, **ask, "tools": theirs, "stop_sequences": [stop]}).json()
            self.assertEqual((answer["stop_reason"], answer["stop_sequence"]), ("tool_use", None) if calls else ("stop_sequence", stop))
        cut = self.chat(GREETING, **ask, tool_choice="auto", stop=["never"])["choices"][0]
        self.assertEqual((len(cut["message"]["tool_calls"]), cut["finish_reason"]), (1, "tool_calls"))

    def test_what_was_asked_is_listed(self):
        text = self.post("/v1/responses", {"input": "Hi", "max_output_tokens": 2}).json()["id"]
        (item,) = self.get(f"/v1/responses/{text}/input_items")["data"]
        self.assertEqual((item["type"], item["role"], item["content"]), ("message", "user", [{"type": "input_text", "text": "Hi"}]))
        asked = [{"role": "user", "content": [{"type": "input_text", "text": "One"}]}, {"id": "msg_own", "role": "assistant", "content": "Two"},
                 {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "c", "output": "3"},
                 {"role": "user", "content": "Four"}]
        several = self.post("/v1/responses", {"input": asked, "max_output_tokens": 2}).json()["id"]
        path = f"/v1/responses/{several}/input_items"
        whole = self.get(path + "?order=asc")
        kinds = ["message", "message", "function_call", "function_call_output", "message"]
        self.assertEqual([item["type"] for item in whole["data"]], kinds)
        ids = [item["id"] for item in whole["data"]]
        self.assertEqual((len(set(ids)), ids[1], whole["first_id"], whole["last_id"], whole["has_more"]), (5, "msg_own", ids[0], ids[-1], False))
        self.assertEqual(whole["data"][1]["content"][0]["type"], "output_text")
        self.assertEqual([item["id"] for item in self.get(path)["data"]], ids[::-1], "newest first, unless asked")
        page = self.get(f"{path}?order=asc&limit=2&after={ids[0]}")
        self.assertEqual(([item["id"] for item in page["data"]], page["has_more"]), (ids[1:3], True))
        self.assertEqual(self.get(f"{path}?order=asc&after={ids[-1]}")["data"], [])
        for query, field in (("order=up", "order"), ("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("after=none", "after")):
            self.assertEqual(self.get(f"{path}?{query}", status=400)["error"]["param"], field)
        for of, key in ((several, "two"), ("resp_none", "one")):
            self.assertIn("64 MiB", self.get(f"/v1/responses/{of}/input_items", key=key, status=404)["error"]["message"])
        great = self.post("/v1/responses", {"input": [{"role": "user", "content": "Hi", "weight": int("9" * 400)}], "max_output_tokens": 2}).json()["id"]
        self.assertEqual(self.get(f"/v1/responses/{great}/input_items")["data"][0]["weight"], sys.float_info.max, "no double holds more")
        self.assertEqual(self.get(f"/v1/responses/{several}?stream=true", status=400)["error"]["param"], "stream")
        self.assertEqual(self.get(f"/v1/responses/{several}?stream=false")["id"], several)
        self.assertIn("background", self.post(f"/v1/responses/{several}/cancel", {}, status=400).json()["error"]["message"])
        self.post("/v1/responses/resp_none/cancel", {}, status=404)

    def test_tokens_are_counted_as_an_answer_would_count_them(self):
        tools = [{"type": "function", "name": "f", "parameters": WEATHER}]
        first = self.post("/v1/responses", {"input": "Hi", "max_output_tokens": 2}).json()["id"]
        for body in ({"input": "Hi"}, {"input": GREETING, "instructions": "Be brief", "tools": tools}, {"input": "More", "previous_response_id": first}):
            count = self.post("/v1/responses/input_tokens", body).json()
            used = self.post("/v1/responses", {**body, "max_output_tokens": 1}).json()["usage"]["input_tokens"]
            self.assertEqual(count, {"object": "response.input_tokens", "input_tokens": used})
        self.post("/v1/responses/input_tokens", {}, status=400)
        self.post("/v1/responses/input_tokens", {"input": "x", "previous_response_id": "resp_none"}, status=404)

    def test_a_conversation_that_is_too_long_is_cut_where_that_is_asked_for(self):
        long = {"input": "word " * 5000, "max_output_tokens": 4}
        for fields in ({}, {"truncation": "disabled"}):
            self.assertEqual(self.post("/v1/responses", {**long, **fields}, status=400).json()["error"]["code"], "context_length_exceeded")
        cut = self.post("/v1/responses", {**long, "truncation": "auto"}).json()
        self.assertEqual(cut["truncation"], "auto")
        self.assertGreater(cut["usage"]["input_tokens"], 100)
        self.assertEqual(self.post("/v1/responses", {"input": "x", "truncation": "some"}, status=400).json()["error"]["param"], "truncation")


class Ollama(Apis, unittest.TestCase):
    def ask(self, path, **fields):
        """Whole, and gathered from the lines, which must be the same."""
        whole = self.post(path, {"stream": False, **fields}).json()
        lines = [json.loads(line) for line in self.post(path, fields).body.splitlines()]
        self.assertEqual([line["done"] for line in lines], [False] * (len(lines) - 1) + [True])
        pick = lambda line: line["message"] if path == "/api/chat" else line
        key = "content" if path == "/api/chat" else "response"
        self.assertEqual("".join(pick(line)[key] for line in lines), pick(whole)[key])
        self.assertEqual("".join(pick(line).get("thinking", "") for line in lines), pick(whole).get("thinking", ""))
        for name in ("done_reason", "eval_count", "prompt_eval_count"):
            self.assertEqual(lines[-1][name], whole[name])
        calls = [call["function"] for line in lines for call in pick(line).get("tool_calls", [])]
        self.assertEqual(calls, [call["function"] for call in pick(whole).get("tool_calls", [])])
        return whole

    def test_it_says_what_a_chat_says(self):
        want = self.chat(GREETING, max_tokens=20, temperature=0)
        text = want["choices"][0]["message"]["content"]
        options = {"temperature": 0, "num_predict": 20, "num_ctx": 4096}
        got = self.ask("/api/chat", messages=GREETING, options=options, model=f"{MODEL}:latest", keep_alive="5m")
        self.assertEqual((got["message"]["content"], got["eval_count"]), (text, want["usage"]["completion_tokens"]))
        self.assertEqual(self.ask("/api/generate", prompt="Hi", options=options)["response"], text)
        raw = self.post("/v1/completions", {"prompt": "Hi", "max_tokens": 20, "temperature": 0, "add_special_tokens": False}).json()["choices"][0]["text"]
        self.assertEqual(self.ask("/api/generate", prompt="Hi", raw=True, options=options)["response"], raw)

    def test_durations_are_there_whatever_ended_the_answer(self):
        text = self.ask("/api/chat", messages=GREETING, options={"temperature": 0, "num_predict": 6})["message"]["content"]
        for stop in ([], [text[-3:]]):  # so few tokens that the model ends by itself on no kind of CPU
            got = self.ask("/api/chat", messages=GREETING, options={"temperature": 0, "num_predict": 6, "stop": stop})
            self.assertEqual(got["done_reason"], "stop" if stop else "length")
            for name in ("prompt_eval_duration", "eval_duration"):
                self.assertGreater(got[name], 0, (stop, name))
            self.assertGreaterEqual(got["total_duration"], got["prompt_eval_duration"] + got["eval_duration"])
        self.assertGreater(self.ask("/api/chat", messages=GREETING, options={"temperature": 0, "num_predict": 1})["eval_duration"], 0)

    def test_logprobs_are_those_of_a_chat(self):
        want = self.chat(GREETING, max_tokens=12, temperature=0, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
        body = {"messages": GREETING, "logprobs": True, "top_logprobs": 2, "options": {"temperature": 0, "num_predict": 12}}
        self.assertEqual(self.post("/api/chat", {**body, "stream": False}).json()["logprobs"], want)
        lines = [json.loads(line) for line in self.post("/api/chat", body).body.splitlines()]
        self.assertEqual([token for line in lines for token in line.get("logprobs", [])], want)
        raw = self.post("/api/generate", {"prompt": "Hi", "raw": True, "stream": False, "logprobs": True, "top_logprobs": 1, "options": {"num_predict": 4, "seed": 1}})
        self.assertEqual([len(token["top_logprobs"]) for token in raw.json()["logprobs"]], [1] * raw.json()["eval_count"])

    def test_a_model_is_loaded_without_an_answer(self):
        """Clients ask for nothing before their first question, and with `keep_alive` 0 behind the last."""
        for path, empty, says in (("/api/generate", {}, {"response": ""}), ("/api/generate", {"prompt": ""}, {"response": ""}),
                                  ("/api/chat", {"messages": []}, {"message": {"role": "assistant", "content": ""}})):
            for alive, reason in (({}, "load"), ({"keep_alive": "10m"}, "load"), ({"keep_alive": 0}, "unload")):
                reply = self.post(path, {**empty, **alive})
                self.assertEqual({**reply.json(), "created_at": ""}, {"model": MODEL, "created_at": "", **says, "done": True, "done_reason": reason})
                self.assertEqual(reply.headers.get("X-Ignored-Fields"), "keep_alive" if alive else None)
            self.post(path, {"model": "none", **empty}, status=404)

    def test_calls_formats_and_what_there_is(self):
        tools = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]
        history = [*GREETING, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}]},
                   {"role": "tool", "tool_name": "get_weather", "content": "rain"}]
        self.ask("/api/chat", messages=history, tools=tools, options={"num_predict": 5, "seed": 1})
        formed = self.ask("/api/chat", messages=GREETING, format=WEATHER, think=False, options={"seed": 2, "num_predict": 1500})
        self.assertIn(json.loads(formed["message"]["content"])["city"], ("Rome", "Oslo"))
        headers = {"Authorization": "Bearer one"}
        self.assertEqual([m["name"] for m in self.c.get("/api/tags", headers=headers).json()["models"]], [MODEL])
        (running,) = self.c.get("/api/ps", headers=headers).json()["models"]
        self.assertEqual(running["model"], MODEL)
        self.assertGreater(running["context_length"], 0)
        self.assertEqual(self.post("/api/show", {}).json()["capabilities"], ["completion", "tools", "thinking"])
        self.assertIn("version", self.c.get("/api/version", headers=headers).json())
        self.assertIn("not", self.post("/api/chat", {"model": "none", "messages": GREETING}, status=404).json()["error"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
