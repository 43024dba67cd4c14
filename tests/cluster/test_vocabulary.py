"""Flags under the names people bring that change what a cluster does: a tokenizer and defaults from elsewhere, who is served first."""
import json
import pathlib
import shutil
import tempfile
import unittest
import urllib.request

import grpc_call
from harness import SMOLLM2, TINY, Cluster, run
from storm import prompt

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "seed": 1, "max_tokens": 8}


def answer(cluster, body):
    reply = cluster.post("/v1/chat/completions", body)
    assert reply.status == 200, reply.body
    return reply.json()["choices"][0]["message"]["content"]


class Vocabulary(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-vocabulary-"))
        self.addCleanup(shutil.rmtree, self.dir)

    def bare_model(self):
        """tiny-llama without anything of its text side."""
        bare = self.dir / "bare"
        bare.mkdir()
        shutil.copy(TINY / "config.json", bare)
        return bare

    def test_the_tokenizer_may_stand_elsewhere_and_the_workers_grammars_read_it_too(self):
        bare = self.bare_model()
        without = run(["serve", bare, "--load-format", "dummy", "--port", 0])
        self.assertEqual(without.returncode, 3, without.stderr)
        with Cluster() as own:
            wanted = answer(own, CHAT)
        with Cluster(model=bare, args=["--tokenizer", TINY, "--max_model_len", 1000, "--dtype", "auto"]) as c:
            self.assertEqual(answer(c, CHAT), wanted)
            self.assertIn(answer(c, {**CHAT, "max_tokens": 40, "guided_choice": ["yes", "no"]}), ("yes", "no"))

    def test_a_gguf_file_is_served_with_a_tokenizer_by_the_usual_command_line(self):
        with Cluster(model=SMOLLM2, dummy=False, args=["--tokenizer", SMOLLM2, "--max_model_len", 1000, "--dtype", "auto"]) as c:
            self.assertTrue(answer(c, CHAT))
            self.assertEqual(c.get("/v1/models").json()["data"][0]["max_model_len"], 1000)

    def test_without_a_tokenizer_requests_and_answers_are_token_ids_and_fields_of_text_are_refused_by_name(self):
        ids = [5, 6, 7, 8]
        ask = {"prompt": ids, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
        with Cluster() as own:
            wanted = own.post("/v1/completions", {**ask, "return_token_ids": True}).json()["choices"][0]["token_ids"]
        with Cluster(model=self.bare_model(), args=["--prefill", 1, "--decode", 1, "--skip-tokenizer-init"]) as c:
            choice = c.post("/v1/completions", {**ask, "logprobs": 1, "stop_token_ids": [9]}).json()["choices"][0]
            self.assertEqual((choice["token_ids"], choice["prompt_token_ids"], choice["text"]), (wanted, ids, ""))
            self.assertEqual(choice["logprobs"]["tokens"], [f"token_id:{one}" for one in wanted])
            streamed = []
            for line in c.post("/v1/completions", {**ask, "stream": True}).body.splitlines():
                if line.startswith("data: {"):
                    streamed += [one for choice in json.loads(line[6:])["choices"] for one in choice.get("token_ids", [])]
            self.assertEqual(streamed, wanted)
            chat = ("/v1/chat/completions", CHAT, "messages")
            for path, body, field in (chat, ("/v1/completions", {"prompt": "Hello"}, "prompt"), ("/v1/completions", {**ask, "stop": ["a"]}, "stop"),
                                      ("/v1/completions", {**ask, "bad_words": ["a"]}, "bad_words"), ("/v1/completions", {**ask, "echo": True}, "echo"),
                                      ("/v1/completions", {**ask, "guided_choice": ["a", "b"]}, "guided_choice"), ("/tokenize", {"prompt": "a"}, "prompt"),
                                      ("/detokenize", {"tokens": ids}, "tokens")):
                reply = c.post(path, body)
                self.assertEqual(reply.status, 400, reply.body)
                self.assertIn(f"`{field}`: this server has no tokenizer (--skip-tokenizer-init)", reply.json()["error"]["message"])
            self.check_grpc_without_a_tokenizer(c, ids, wanted)
        said = run(["serve", TINY, "--load-format", "dummy", "--port", 0, "--no-restart", "--skip-tokenizer-init", "--tokenizer", TINY])
        self.assertEqual(said.returncode, 2, said.stderr)
        self.assertIn("leave one of them out", said.stdout + said.stderr)

    def check_grpc_without_a_tokenizer(self, c, ids, wanted):
        """GenerateRequest of proto/generation.proto: ids come back though nobody asked for them, text is refused by its field."""
        field = grpc_call.field
        generate = "/baton.v1.Generation/Generate"
        # temperature 0.0, ignore_eos, max_tokens, logprobs of the chosen token
        sampling = bytes([1 << 3 | 5, 0, 0, 0, 0]) + field(11, 1) + field(13, len(wanted)) + field(16, 0)
        tokens = field(3, field(1, bytes(ids)))
        code, said, chunks = grpc_call.answers(c.grpc, generate, tokens + field(6, sampling))
        self.assertEqual(code, "OK", said)
        self.assertEqual(grpc_call.ints(value for chunk in chunks for value in chunk.get(4, [])), wanted)
        self.assertEqual([text for chunk in chunks for text in chunk.get(3, [])], [])
        places = [grpc_call.fields(place) for chunk in chunks for place in chunk.get(5, [])]
        self.assertEqual(len(places), len(wanted))
        sampled = field(6, sampling)
        guided = field(6, sampling + field(18, field(1, 2) + field(2, "[a-z]+")))
        hello = field(4, field(1, field(1, "user") + field(2, "Hi")))
        for message, name in ((field(2, "Hello") + sampled, "prompt"), (field(5, b"Hello") + sampled, "prompt"), (hello + sampled, "messages"),
                              (tokens + field(7, "a") + sampled, "stop"), (tokens + field(15, "a") + sampled, "bad_words"),
                              (tokens + field(14, 1) + sampled, "echo"), (tokens + guided, "sampling.grammar")):
            code, said = grpc_call.call(c.grpc, generate, message)
            self.assertEqual(code, "INVALID_ARGUMENT", said)
            self.assertIn(f"`{name}`: this server has no tokenizer (--skip-tokenizer-init)", said)
        code, said, cards = grpc_call.answers(c.grpc, "/baton.v1.Generation/GetModel", b"")
        self.assertEqual((code, cards[0][1]), ("OK", [b"bare"]), said)

    def test_variables_of_the_template_and_the_usage_of_streams_may_be_the_servers(self):
        template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ mood }}{{ end }}"
        flags = ["--chat-template", template, "--default-chat-template-kwargs.mood", "glad", "--default-chat-template-kwargs.end", "!",
                 "--enable-force-include-usage"]
        with Cluster(args=flags) as c:
            chat = lambda **more: c.post("/v1/chat/completions", {**CHAT, "return_token_ids": True, **more}).json()["prompt_token_ids"]
            ids = lambda text: c.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json()["tokens"]
            self.assertEqual(chat(), ids("Helloglad!"))
            self.assertEqual(chat(chat_template_kwargs={"mood": "sad"}), ids("Hellosad!"))
            self.assertEqual(chat(chat_template_kwargs={}), ids("Helloglad!"))
            events = [line for line in c.post("/v1/chat/completions", {**CHAT, "stream": True}).body.splitlines() if line.startswith("data: {")]
            self.assertEqual(json.loads(events[-1][6:])["usage"]["completion_tokens"], 8)
        for flags, text in ((["--default-chat-template-kwargs", "[1]"], "--default-chat-template-kwargs: [1] is no JSON object"),
                            (["--chat-template", self.dir], f"--chat-template: cannot read {self.dir}: Is a directory"),
                            (["--chat-template", "{% for"], "--chat-template {% for: ")):
            refused = run(["serve", TINY, "--load-format", "dummy", "--port", 0, "--no-restart", *flags])
            self.assertEqual(refused.returncode, 3, refused.stderr)
            self.assertIn(text, refused.stdout + refused.stderr)

    def test_a_config_from_elsewhere_stands_for_the_models_own(self):
        other = self.dir / "config"
        other.mkdir()
        config = json.loads((TINY / "config.json").read_text())
        (other / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 777}))
        (other / "generation_config.json").write_text(json.dumps({"max_new_tokens": 3}))
        with Cluster(args=["--hf-config-path", other]) as c:
            self.assertEqual(c.get("/v1/models").json()["data"][0]["max_model_len"], 777)
            self.assertEqual(c.post("/v1/completions", {"prompt": "Hello", "ignore_eos": True}).json()["usage"]["completion_tokens"], 3)
        said = run(["serve", TINY, "--load-format", "dummy", "--port", 0, "--no-restart", "--hf-config-path", "/nowhere"])
        self.assertEqual(said.returncode, 3, said.stderr)
        self.assertIn("/nowhere/config.json", said.stdout + said.stderr)

    def test_another_models_tokenizer_is_refused_with_both_numbers_of_tokens(self):
        said = run(["serve", TINY, "--load-format", "dummy", "--port", 0, "--no-restart", "--tokenizer", SMOLLM2])
        self.assertEqual(said.returncode, 3, said.stderr)
        self.assertIn("the tokenizer has 49152 tokens, the model 548", said.stdout + said.stderr)
        gone = run(["serve", TINY, "--load-format", "dummy", "--port", 0, "--no-restart", "--tokenizer", "/nowhere"])
        self.assertEqual(gone.returncode, 3, gone.stderr)
        self.assertIn("/nowhere does not exist (--tokenizer)", gone.stdout + gone.stderr)

    def test_defaults_of_sampling_come_from_a_folder_and_from_the_command_line_over_it(self):
        (self.dir / "generation_config.json").write_text(json.dumps({"max_new_tokens": 3, "temperature": 0}))
        ask = {"prompt": "Hello", "ignore_eos": True}
        with Cluster(args=["--generation-config", f"{self.dir}/", "--override-generation-config", '{"max_new_tokens": 5}']) as c:
            self.assertEqual(c.post("/v1/completions", ask).json()["usage"]["completion_tokens"], 5)
            texts = {c.post("/v1/completions", ask).json()["choices"][0]["text"] for _ in range(3)}
            self.assertEqual(len(texts), 1, "temperature 0 of the folder")
        with Cluster(args=["--generation-config", f"{self.dir}/"]) as c:
            self.assertEqual(c.post("/v1/completions", ask).json()["usage"]["completion_tokens"], 3)
        for bad, word in ((["--override-generation-config", '{"temprature": 1}'], "temperature"), (["--override-generation-config", "{"], "no JSON object"),
                          (["--generation-config", "/nowhere/"], "/nowhere")):
            said = run(["serve", TINY, "--load-format", "dummy", "--port", 0, "--no-restart", *bad])
            self.assertEqual(said.returncode, 3, said.stderr)
            self.assertIn(word, said.stdout + said.stderr)

    def test_fields_over_the_config_change_the_model_and_bad_ones_are_said_before_a_worker_starts(self):
        with Cluster() as own:
            wanted = answer(own, {**CHAT, "max_tokens": 24})
        with Cluster(args=["--hf-overrides", '{"rope_theta": 77.0}', "--rope-theta", 10000]) as c:  # the latter stands over the former
            self.assertEqual(answer(c, {**CHAT, "max_tokens": 24}), wanted, "10000 is what config.json has")
        with Cluster(args=["--rope_theta", 77]) as c:
            self.assertNotEqual(answer(c, {**CHAT, "max_tokens": 24}), wanted)
        for bad, word in (("[1]", "no JSON object"), ('{"rope_theta": 0}', "rope_theta is 0"), ('{"head_dim": 63}', "63")):
            said = run(["serve", TINY, "--load-format", "dummy", "--port", 0, "--hf-overrides", bad])
            self.assertEqual(said.returncode, 3, said.stderr)
            self.assertIn(word, said.stderr)

    def test_a_long_prompt_takes_as_many_steps_as_its_threshold_says(self):
        steps = lambda c: sum(w["steps"] for w in json.loads(self.admin(c, "/workers"))["workers"])
        with Cluster(args=["--long-prefill-token-threshold", 16]) as c:
            before = steps(c)
            reply = c.post("/v1/completions", {"prompt": prompt(1, 100), "max_tokens": 1})
            tokens = reply.json()["usage"]["prompt_tokens"]
            c.wait_until(lambda: steps(c) - before >= tokens // 16, f"{tokens} tokens in steps of 16")

    def admin(self, cluster, path):
        with urllib.request.urlopen(cluster.admin + path, timeout=30) as answer:
            return answer.read().decode()


if __name__ == "__main__":
    unittest.main(verbosity=2)
