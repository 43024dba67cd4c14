"""Structured outputs on real processes with default flags: answers fit what was asked for, whatever it is combined with, and are the
same bytes alone and under load, on one worker and handed over, preempted, and with a worker killed in the middle."""
import json
import math
import random
import re
import tempfile
import threading
import unittest

import schemas
from harness import SMOLLM2, Cluster, events, in_parallel
from streamed_calls import streamed
from test_one_fault import TWO_OF_EACH, ask
from test_promise_a import TIGHT
from token_index import Stream, harm

COUNT = 200


def schema_requests(count, seed):
    """(schema, request): every spelling of one, drawn with every kind of draw."""
    r = random.Random(seed)
    out = []
    for i in range(count):
        s = schemas.schema(r)
        spelling = [{"guided_json": s}, {"structured_outputs": {"json": s}}, {"guided_json": json.dumps(s)},
                    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": s}}}][i % 4]
        body = {"model": "tiny-llama", "prompt": f"{i}: " + "words and words " * r.randint(1, 6), "max_tokens": 400, "seed": i,
                "temperature": r.choice([0, 0.7, 1]), **spelling}
        # A greedy model with random weights would write white space for ever.
        body["logit_bias"] = {str(token): -100 for token in WHITE} if body["temperature"] == 0 else {}
        out.append((s, body))
    return out


def white(cluster):
    """Tokens of the tiny model that are nothing but white space."""
    texts = cluster.post("/detokenize", {"model": "tiny-llama", "tokens": [5]})
    assert texts.status == 200, texts.body
    out = []
    for token in range(512):
        text = cluster.post("/detokenize", {"model": "tiny-llama", "tokens": [token]}).json()["prompt"]
        if text and not text.strip():
            out.append(token)
    return out


WHITE = []


def setUpModule():
    with Cluster() as c:
        WHITE.extend(white(c))


class ManySchemas(unittest.TestCase):
    def test_every_answer_that_ends_fits_its_schema_alone_under_load_and_handed_over(self):
        requests = schema_requests(COUNT, seed=3)
        with Cluster() as c:
            alone = [ask(c, body) for _, body in requests]
            loaded = in_parallel([lambda b=b: ask(c, b) for _, b in requests[:64]])
        ended = 0
        for (s, body), answer in zip(requests, alone):
            choice = answer["choices"][0]
            if choice["end"] == "length":
                continue
            ended += 1
            self.assertTrue(schemas.fits(json.loads(choice["text"]), s), f"{body}\n{choice['text']}")
        print(f"\n    {ended} of {COUNT} ended and fit; the others reached max_tokens", flush=True)
        self.assertGreater(ended, COUNT * 0.9)
        for (_, body), want, got in zip(requests, alone, loaded):
            self.assertEqual(got, want, f"64 at once: {body}")
        with Cluster(args=["--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 8]) as c:
            handed_over = in_parallel([lambda b=b: ask(c, b) for _, b in requests[:64]])
            c.wait_until(lambda: c.metric("baton_kv_transfer_bytes_total") > 0, "KV was handed over")
        for (_, body), want, got in zip(requests, alone, handed_over):
            self.assertEqual(got, want, f"handed over: {body}")

    def test_preempted_answers_are_the_same(self):
        requests = [body for _, body in schema_requests(40, seed=4)]
        requests += [{"model": "tiny-llama", "prompt": f"long {i}", "seed": i, "max_tokens": 250, "guided_regex": "([a-z ]{3})+[.]{3}"}
                     for i in range(16)]
        with Cluster() as c:
            alone = [ask(c, body) for body in requests]
        with Cluster(args=TIGHT) as c:
            loaded = in_parallel([lambda b=b: ask(c, b) for b in requests])
            c.wait_until(lambda: c.metric("vllm:num_requests_running") == 0, "the counters are reported")
            self.assertGreater(c.metric("vllm:num_preemptions_total"), 0)
        for body, want, got in zip(requests, alone, loaded):
            self.assertEqual(got, want, body)


class Combined(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster().__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.c.__exit__(None, None, None)

    def choices(self, **fields):
        reply = self.c.post("/v1/completions", {"model": "tiny-llama", "prompt": "Say", "max_tokens": 60, "seed": 5, **fields})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json()["choices"]

    def test_kinds(self):
        for field, pattern in (({"guided_regex": "[a-c]{3,5}-\\d"}, "[a-c]{3,5}-\\d"), ({"guided_choice": ["yes", "no", "may be"]}, "yes|no|may be"),
                               ({"guided_grammar": "start: \"<\" B \">\"\nB: /[01]{1,8}/"}, "<[01]{1,8}>"),
                               ({"guided_grammar": "root ::= pair+\npair ::= [a-c] \"=\" [0-9]{1,2} \";\""}, "([a-c]=\\d{1,2};)+"),
                               ({"structured_outputs": {"choice": ["caf\u00e9", "\u65e5\u672c"]}}, "caf\u00e9|\u65e5\u672c")):
            for seed in range(6):
                choice = self.choices(**field, seed=seed)[0]
                self.assertTrue(re.fullmatch(pattern, choice["text"]), f"{field}: {choice}")
                self.assertEqual(choice["finish_reason"], "stop")
        grammars, metric = 5, self.c.metric
        self.c.wait_until(lambda: metric("baton_worker_grammars_total") >= 6 * grammars, "the worker has counted its answers", 5)
        self.assertGreater(metric("baton_worker_grammar_masks_total"), 6 * grammars)
        self.assertGreater(metric("baton_worker_grammar_compile_seconds_total"), 0)
        self.assertGreater(metric("baton_worker_grammar_mask_seconds_total"), 0)
        self.c.wait_until(lambda: metric("baton_worker_grammar_answers") == 0, "no answer follows a grammar", 5)
        self.assertIsInstance(json.loads(self.choices(response_format={"type": "json_object"}, max_tokens=500, logit_bias={
            str(token): -100 for token in WHITE})[0]["text"]), dict)

    def test_chat_choices_streams_and_logprobs(self):
        body = {"model": "tiny-llama", "messages": [{"role": "user", "content": "Pick"}], "n": 4, "seed": 1, "max_tokens": 40,
                "logprobs": True, "top_logprobs": 3, "guided_regex": "(one|two|three)( (four|five)){0,3}!"}
        whole = self.c.post("/v1/chat/completions", body).json()["choices"]
        self.assertGreater(len({choice["message"]["content"] for choice in whole}), 1)
        for choice in whole:
            self.assertTrue(re.fullmatch(body["guided_regex"], choice["message"]["content"]), choice)
            for token in choice["logprobs"]["content"]:
                self.assertTrue(all(math.isfinite(t["logprob"]) for t in [token, *token["top_logprobs"]]), token)
        texts = [""] * 4
        for event in events(self.c.post("/v1/chat/completions", {**body, "stream": True}).body):
            for choice in json.loads(event)["choices"] if event != "[DONE]" else []:
                texts[choice["index"]] += choice["delta"].get("content") or ""
        self.assertEqual(texts, [choice["message"]["content"] for choice in whole])

    def test_structural_tags(self):
        tag = {"type": "structural_tag", "triggers": ["<f", "{"], "structures": [
            {"begin": "<f=a>", "schema": {"enum": [1, "one"]}, "end": "</f>"}, {"begin": "<f=b>", "schema": {"type": "boolean"}, "end": "</f>"},
            {"begin": "{", "schema": {"enum": [7]}, "end": "}"}]}
        tags = 0
        toward = {str(t): 3.0 for t in self.tokens_of("<") + self.tokens_of("{")}  # a model with random weights would begin none
        for seed in range(12):
            field = {"response_format": tag} if seed % 2 else {"structured_outputs": {"structural_tag": json.dumps(tag)}}
            choice = self.choices(**field, seed=seed, max_tokens=150, logit_bias=toward)[0]
            whole = re.sub('<f=a>(1|"one")</f>|<f=b>(true|false)</f>|[{]7[}]', "", choice["text"])
            tags += whole != choice["text"]
            if choice["finish_reason"] == "stop":
                self.assertNotRegex(whole, "<f|[{]", "outside of a tag there is no trigger")
        self.assertGreater(tags, 6)
        for wrong, words in (({"triggers": ["<f"]}, "without `structures`"), ({**tag, "triggers": []}, "triggers"), ({**tag, "triggers": ["<g"]}, "<g"),
                             ({**tag, "triggers": ["{"]}, "no trigger begins <f=a>"), ({**tag, "structures": [{"begin": "<f"}]}, "structures[0]")):
            reply = self.c.post("/v1/completions", {"model": "tiny-llama", "prompt": "x", "response_format": {**wrong, "type": "structural_tag"}})
            self.assertEqual(reply.status, 400, reply.body)
            self.assertIn(words, reply.json()["error"]["message"])

    def test_structural_tags_of_formats(self):
        word = {"type": "regex", "pattern": "[a-z]{1,5}"}
        value = {"type": "json_schema", "json_schema": {"enum": [1, "one"]}}
        tag = {"type": "tag", "begin": "<f>", "content": value, "end": ["</f>", "/"]}
        formats = {
            '\\s*(1|"one")\\s*[.][a-z]{1,5}': {"type": "sequence", "elements": [value, {"type": "const_string", "value": "."}, word]},
            '[a-z]{1,5}|\\s*(1|"one")\\s*': {"type": "or", "elements": [word, value]},
            '(?s:<t>((?!</t>|;).)*(</t>|;)\\s*(1|"one")\\s*)': {"type": "sequence", "elements": [
                {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": ["</t>", ";"]}, value]},
            '<f>\\s*(1|"one")\\s*(</f>|/)(,<f>\\s*(1|"one")\\s*(</f>|/))*': {"type": "tags_with_separator", "tags": [tag], "separator": ",", "at_least_one": True},
            '<f>\\s*(1|"one")\\s*(</f>|/)': {"type": "triggered_tags", "triggers": ["<"], "tags": [tag], "at_least_one": True, "stop_after_first": True},
            '(ab){2,3}x?': {"type": "sequence", "elements": [{"type": "repeat", "min": 2, "max": 3, "content": {"type": "const_string", "value": "ab"}},
                                                            {"type": "optional", "content": {"type": "const_string", "value": "x"}}]},
            '(ab|c){1,4};[a-z]{1,5}': {"type": "sequence", "elements": [{"type": "grammar", "grammar": 'root ::= ("ab" | "c"){1,4} ";"'}, word]},
            '(?s:.*)': {"type": "any_tokens", "max_tokens": 30},
            'x(?s:.*)': {"type": "sequence", "elements": [{"type": "token", "token": "x"}, {"type": "any_tokens", "exclude_tokens": [5, "y"], "max_tokens": 9}]},
            '\\s*[{]\\s*("b"\\s*:\\s*2|"a"\\s*:\\s*1)?(?s:.*)[}]\\s*': {"type": "json_schema", "any_order": True, "json_schema": {
                "type": "object", "additionalProperties": False, "required": ["a"], "maxProperties": 2, "properties": {"a": {"enum": [1]}, "b": {"enum": [2]}}}},
            '\\s*<parameter=n>(?s:.*?)</parameter>\\s*': {"type": "qwen_xml_parameter", "json_schema": {
                "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
        }
        ended = set()
        toward = {**{str(t): -100 for t in WHITE}, **{str(t): 4.0 for t in self.tokens_of(";")}}  # JSON may have white space around it
        for regex, form in formats.items():
            whole = {"type": "structural_tag", "format": form}
            for seed in range(6):
                field = {"response_format": whole} if seed % 2 else {"structured_outputs": {"structural_tag": json.dumps(whole)}}
                choice = self.choices(**field, seed=seed, max_tokens=200, logit_bias=toward)[0]
                if choice["finish_reason"] == "stop":
                    ended.add(regex)
                    self.assertTrue(re.fullmatch(regex, choice["text"]), (regex, choice))
        self.assertEqual(ended, set(formats))
        reply = self.c.post("/v1/completions", {"model": "tiny-llama", "prompt": "x", "response_format": {"type": "structural_tag", "format": {
            "type": "sequence", "elements": [word, {"type": "dispatch", "rules": []}]}}})
        self.assertEqual((reply.status, reply.json()["error"]["param"]), (400, "response_format.format.elements[1].type"), reply.body)

    def test_ends(self):
        regex = {"guided_regex": "ab{6}c?"}
        self.assertEqual(self.choices(**regex, stop=["bbb"])[0]["text"], "a")
        self.assertEqual(self.choices(**regex, ignore_eos=True, n=2)[0]["finish_reason"], "stop")
        cut = self.choices(guided_regex="[a-z]{30}", max_tokens=3)[0]
        self.assertEqual(cut["finish_reason"], "length")
        self.assertTrue(re.fullmatch("[a-z]{1,29}", cut["text"]))
        short = self.choices(guided_choice=["ab"], min_tokens=30)[0]
        self.assertEqual((short["text"], short["finish_reason"]), ("ab", "stop"), "a grammar has an end before min_tokens")
        for include, end in ((False, ""), (True, "<|im_end|>")):
            shown = self.choices(guided_choice=["ab"], skip_special_tokens=False, include_stop_str_in_output=include)[0]
            self.assertEqual((shown["text"], shown["finish_reason"]), ("ab" + end, "stop"), "what ends an answer is text where that is asked for")

    def test_with_biases_and_penalties(self):
        forbidden = self.choices(guided_choice=["a", "b"], logit_bias={str(t): -100 for t in self.tokens_of("a")}, temperature=0)[0]
        self.assertEqual(forbidden["text"], "b")
        text = self.choices(guided_regex="[ab]{20}", repetition_penalty=1.5, presence_penalty=1, frequency_penalty=1)[0]["text"]
        self.assertTrue(re.fullmatch("[ab]{20}", text), text)

    def tokens_of(self, text):
        return self.c.post("/tokenize", {"model": "tiny-llama", "prompt": text, "add_special_tokens": False}).json()["tokens"]

    def test_one_that_grows_too_costly_ends_its_answer_with_the_reason_at_the_same_token_everywhere(self):
        body = {"model": "tiny-llama", "prompt": "a prompt that is long enough to be handed over", "max_tokens": 400, "seed": 3, "guided_regex": "(.*[aeiou].{1,150}){1,3}z"}
        whole = self.c.post("/v1/completions", body)
        self.assertEqual((whole.status, whole.json()["error"]["param"]), (400, "guided_regex"), whole.body)
        self.assertIn("the grammar is too costly here", whole.json()["error"]["message"])

        def said(cluster):
            got = [json.loads(event) for event in events(cluster.post("/v1/completions", {**body, "stream": True}).body) if event != "[DONE]"]
            return "".join(event["choices"][0]["text"] for event in got[:-1]), got[-1].get("error")
        text, error = said(self.c)
        self.assertEqual(error, whole.json()["error"])
        self.assertGreater(len(text), 5, "it ends in its middle")
        with Cluster(args=["--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 4]) as c:
            for got in in_parallel([lambda: said(c)] * 8):
                self.assertEqual(got, (text, error), "handed over, eight at once")

    def test_bad_grammars_are_a_400_with_the_place(self):
        for fields, place in (({"guided_json": {"properties": {"a": {"unevaluatedItems": False}}}}, "#/properties/a/unevaluatedItems"),
                              ({"guided_json": {"$ref": "#"}}, "no text fits it"), ({"guided_regex": "(?=a)"}, "look-around"),
                              ({"guided_json": {"multipleOf": 10000019}}, "multipleOf"), ({"guided_choice": []}, "no choice"),
                              ({"guided_regex": "a", "guided_choice": ["a"]}, "both")):
            reply = self.c.post("/v1/completions", {"model": "tiny-llama", "prompt": "x", **fields})
            self.assertEqual(reply.status, 400, reply.body)
            self.assertIn(place, reply.json()["error"]["message"])


WEATHER = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["city", "days"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER}},
         {"type": "function", "function": {"name": "now"}}]


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster().__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.c.__exit__(None, None, None)

    def chat(self, cluster, **fields):
        body = {"model": "tiny-llama", "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "max_tokens": 300, **fields}
        reply = cluster.post("/v1/chat/completions", body)
        self.assertEqual(reply.status, 200, reply.body)
        return reply

    def call_of(self, choice):
        self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("tool_calls", None), choice)
        (call,) = choice["message"]["tool_calls"]
        self.assertEqual(call["type"], "function")
        schema = {"get_weather": WEATHER, "now": {"type": "object", "properties": {}, "additionalProperties": False}}[call["function"]["name"]]
        self.assertTrue(schemas.fits(json.loads(call["function"]["arguments"]), schema), call)
        return call

    def test_calls_that_the_model_writes_by_itself_are_taken_out_of_its_text(self):
        refused = self.c.post("/v1/chat/completions", {"model": "tiny-llama", "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS})
        self.assertEqual((refused.status, refused.json()["error"]["param"]), (400, "tools"), refused.body)
        now, none = ('<tool_call>\\n[{]"name": "%s", "arguments": [{]("a": [0-9])?[}][}]\\n</tool_call>' % name for name in ("now", "none"))
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}Write <tool_call>.{% endif %}")
            template.flush()
            with Cluster(args=["--chat-template", template.name]) as c:
                for seed in range(10):
                    text = [f"[a-c]{{3}}{now}({now})?", f"[a-c]{{3}}({none}){{1,2}}", f"[a-c]{{3}}{none}{now}"][seed % 3]  # as models may write
                    fields = {"guided_regex": text, "seed": seed, "n": 2}
                    whole = self.chat(c, **fields).json()["choices"]
                    pieces = streamed(self.chat(c, **fields, stream=True).body)
                    for choice in whole:
                        content, calls, end = pieces[choice["index"]]
                        self.assertEqual((choice["message"]["content"], choice["finish_reason"]), (content, end))
                        mine = choice["message"].get("tool_calls", [])
                        self.assertEqual([(one["function"]["name"], one["function"]["arguments"]) for one in mine],
                                         [(name, arguments) for _, (_, name, arguments) in sorted(calls.items())])
                        self.assertEqual(bool(mine), seed % 3 != 1)
                        self.assertEqual("none" in content, seed % 3 != 0, "a function that is not there stays text")
                        self.assertEqual(end, "tool_calls" if mine else "stop")
                        self.assertTrue(re.match("[a-c]{3}", content), content)
                        self.assertNotIn('"now"', content)

    def test_calls_fit_their_functions_and_stream_to_the_same(self):
        ids, names = set(), set()
        for seed in range(12):
            fields = {"tool_choice": "required", "seed": seed, "n": 2}
            calls = [self.call_of(choice) for choice in self.chat(self.c, **fields).json()["choices"]]
            ids |= {call["id"] for call in calls}
            names |= {call["function"]["name"] for call in calls}
            for index, (content, got, end) in streamed(self.chat(self.c, **fields, stream=True).body).items():
                (identity, name, arguments), function = got[0], calls[index]["function"]
                self.assertEqual((content, len(got), name, arguments, end), ("", 1, function["name"], function["arguments"], "tool_calls"))
                ids.add(identity)
        self.assertEqual(len(ids), 12 * 4, "every call has an id of its own")
        self.assertEqual(names, {"get_weather", "now"})
        named = {"type": "function", "function": {"name": "get_weather"}}
        call = self.call_of(self.chat(self.c, tool_choice=named, seed=1).json()["choices"][0])
        self.assertEqual(call["function"]["name"], "get_weather")
        cut = self.chat(self.c, tool_choice=named, max_tokens=5).json()["choices"][0]
        self.assertEqual(cut["finish_reason"], "length")
        history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [call]},
                   {"role": "tool", "tool_call_id": call["id"], "content": "rain"}]
        self.call_of(self.chat(self.c, messages=history, tool_choice="required", seed=2).json()["choices"][0])


class RealModel(unittest.TestCase):
    def test_it_knows_the_capital_of_france_as_json(self):
        place = {"type": "object", "properties": {"country": {"type": "string", "maxLength": 30}, "capital": {"type": "string", "maxLength": 30}},
                 "required": ["country", "capital"], "additionalProperties": False}
        with Cluster(SMOLLM2, dummy=False, args=["--served-model-name", "smollm2"]) as c:
            reply = c.post("/v1/chat/completions", {"model": "smollm2", "messages": [{"role": "user", "content": "Tell me about France as JSON."}],
                                                    "temperature": 0, "max_tokens": 100, "response_format": {
                                                        "type": "json_schema", "json_schema": {"name": "place", "schema": place}}})
            self.assertEqual(reply.status, 200, reply.body)
            choice = reply.json()["choices"][0]
            self.assertEqual((choice["finish_reason"], json.loads(choice["message"]["content"])["capital"]), ("stop", "Paris"))


class Faults(unittest.TestCase):
    def test_a_killed_worker_changes_no_byte(self):
        kinds = [{"guided_regex": "([a-z]{1,3} ){60}[.]{4}"}, {"guided_regex": "([a-z]{1,3} )+[.]{4}", "n": 2, "logprobs": 2},
                 {"guided_json": {"type": "array", "items": {"enum": ["alpha", "beta", "gamma"]}, "minItems": 12}, "temperature": 0.9},
                 {"guided_grammar": "start: (W \" \")* \".\"\nW: /[a-z]{1,8}/"}, {"temperature": 0.8, "ignore_eos": True}]
        bodies = [{"model": "tiny-llama", "prompt": f"{i}: " + "the quick brown fox " * 8, "max_tokens": 120, "seed": 9, "stream": True,
                   "stream_options": {"include_usage": True}, **kind} for i, kind in enumerate(kinds)]
        with Cluster(args=TWO_OF_EACH) as c:
            want = [self.streamed(c, body) for body in bodies]
            for fault, index in (("kill decode", 1), ("kill decode", 20), ("kill prefill", 0), ("kill decode", 7), ("kill decode", 45)):
                harmer = threading.Thread(target=harm, args=(c, fault, random.Random(index)))
                streams = [Stream(c, body) for body in bodies]
                streams[0].at_token = lambda count: harmer.start() if count >= max(1, index) and not harmer.ident else None
                in_parallel([s.run for s in streams])
                if not harmer.ident:
                    harmer.start()  # it came in fewer pieces: the fault falls behind its end
                harmer.join()
                for body, expected, stream in zip(bodies, want, streams):
                    self.assertEqual(stream.seen(), expected, f"{fault} at token {index}: {body}")
                c.wait_until(lambda: c.metric("baton_worker_up") == 4, "all workers are back", 60)

    def streamed(self, cluster, body):
        stream = Stream(cluster, body)
        stream.run()
        return stream.seen()


if __name__ == "__main__":
    unittest.main(verbosity=2)
