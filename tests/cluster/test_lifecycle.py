"""Start, death, drain and refusal of whole clusters."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

from harness import BATON, SMOLLM2, STOP_SECONDS, TINY, Cluster, HeldStream, run, state, texts


def complete(cluster, **fields):
    return cluster.post("/v1/completions", {"model": "tiny-llama", "prompt": "one two three", "max_tokens": 8, "temperature": 0, **fields})


class Lifecycle(unittest.TestCase):
    def test_a_lone_worker_that_dies_in_the_middle_of_an_answer_is_waited_for(self):
        with Cluster() as c:
            with HeldStream(c) as stream:
                want = complete(c, **stream.body).json()["choices"]
                os.kill(c.pid_of("worker"), signal.SIGKILL)
                c.wait_until(lambda: c.metric("baton_worker_up") == 0, "the router knows")
                self.assertEqual(complete(c).status, 200, "a new request waits, too")
                data = stream.rest()
            self.assertEqual(texts(data), [choice["text"] for choice in want])

    def test_kill_of_the_worker_gives_clear_errors_and_it_serves_again_by_itself(self):
        with Cluster(args=["--failover-wait-ms", 0]) as c:
            before = complete(c)
            self.assertEqual(before.status, 200, before.body)
            with HeldStream(c) as stream:
                os.kill(c.pid_of("worker"), signal.SIGKILL)
                data = stream.rest()
            self.assertEqual(data[-1], "[DONE]")
            self.assertIn("error", json.loads(data[-2]), "a broken stream ends with an error event")
            after = [None]

            def serves():
                after[0] = complete(c)
                if after[0].status != 200:
                    self.assertIn(after[0].status, (502, 503), after[0].body)
                    self.assertIn("message", after[0].json()["error"])
                return after[0].status == 200

            c.wait_until(serves, "the restarted worker serves")
            self.assertEqual(after[0].json()["choices"], before.json()["choices"], "same request, same bytes, new worker")

    def test_sigterm_lets_running_streams_finish(self):
        with Cluster() as c:
            with HeldStream(c) as stream:
                c.process.send_signal(signal.SIGTERM)
                c.wait_until(lambda: "[router] draining" in c.log.read_text(), "the drain has begun")
                data = stream.rest()
            self.assertEqual(data[-1], "[DONE]")
            choices = [choice for d in data[:-1] for choice in json.loads(d).get("choices", ())]
            self.assertEqual([choice["finish_reason"] for choice in choices if choice["finish_reason"]], ["length"] * 4)
            self.assertEqual(c.process.wait(STOP_SECONDS), 0)

    @unittest.skipUnless(SMOLLM2.exists(), f"the demo model is not in the cache ({SMOLLM2.name})")
    def test_a_worker_that_is_stopped_while_it_loads_loads_no_further(self):
        # Loading takes a second, and this process may have had to wait for longer before it sends the signal.
        self.assertTrue(any("warm-up" not in self.said_when_stopped_while_it_loads() for _ in range(3)))

    def said_when_stopped_while_it_loads(self):
        process = subprocess.Popen([BATON, "worker", "--model", SMOLLM2, "--port", "0"], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        lines = []
        while not lines or " compute " not in lines[-1]:  # its last line before the weights
            lines.append(process.stdout.readline())
            self.assertTrue(lines[-1], "".join(lines))
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 0, rest)
        self.assertIn("draining", rest)
        return rest

    def test_children_follow_a_killed_supervisor(self):
        c = Cluster()
        with c:
            children = c.children()
            self.assertEqual(sorted(children.values()), ["router", "worker"])
            c.process.kill()
            c.process.wait()
            c.wait_until(lambda: all(state(p) in ("gone", "Z") for p in children), "children end with their parent")

    def test_client_that_leaves_frees_its_sequence(self):
        with Cluster() as c:
            s = socket.create_connection((c.host, int(c.port)))
            body = json.dumps({"model": "tiny-llama", "prompt": "x", "max_tokens": 1800, "stream": True, "ignore_eos": True}).encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            s.recv(1)
            s.close()
            c.wait_until(lambda: c.sequences() == 0, "cancelled on the worker", 10)

    def test_client_that_reads_nothing_is_dropped_and_its_memory_comes_back(self):
        with Cluster(args=["--write-timeout-ms", "500", "--relay-credit-tokens", "64", "--write-buffer-bytes", "4096"]) as c:
            c.wait_until(lambda: c.metric("vllm:kv_cache_usage_perc") == 0, "no canary runs")
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                s.connect((c.host, int(c.port)))
                body = json.dumps({"model": "tiny-llama", "prompt": "x", "max_tokens": 1900, "stream": True, "ignore_eos": True,
                                   "logprobs": 20, "n": 2}).encode()
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
                          + body)
                c.wait_until(lambda: c.metric("vllm:generation_tokens_total") > 0, "it runs")
                c.wait_until(lambda: c.sequences() == 0, "cancelled on the worker")
                self.assertLess(c.metric("vllm:generation_tokens_total"), 2000, "long before its end")
                c.wait_until(lambda: c.metric("vllm:kv_cache_usage_perc") == 0, "its blocks are free")
                self.assertEqual(c.metric("baton_router_running_requests"), 0)
            self.assertEqual(complete(c).status, 200)


class Configuration(unittest.TestCase):
    """Flag, environment and file say the same to `baton serve`, whichever of its processes the setting is for."""

    def test_file_and_environment_reach_router_and_workers(self):
        with tempfile.TemporaryDirectory() as d:
            config = pathlib.Path(d, "config.yaml")
            config.write_text("prefill: 1\ndecode: 1\nload-format: dummy\nthreads: 1\nserved-model-name: [small, tiny]\n"
                              "max-header-bytes: 2048\ndecode.max-num-seqs: 7\n")
            with Cluster(dummy=False, env={"BATON_CONFIG": str(config), "BATON_MAX_LOGPROBS": "3"}) as c:
                self.assertEqual(len(c.workers("prefill")), 1)
                self.assertEqual(len(c.workers("decode")), 1)
                self.assertEqual([m["id"] for m in c.get("/v1/models").json()["data"]], ["small", "tiny"])
                self.assertEqual(c.get("/v1/models", headers={"X-Big": "a" * 4000}).status, 431)
                refused = c.post("/v1/completions", {"model": "small", "prompt": "a", "logprobs": 4})
                self.assertEqual(refused.status, 400)
                self.assertIn("[0, 3]", refused.json()["error"]["message"])

    def test_a_misspelt_variable_is_warned_of(self):
        result = run(["serve", "/no/such/model"], env={"BATON_MAX_NUM_SEQ": "3"})
        self.assertIn("BATON_MAX_NUM_SEQ is set, but no flag reads it (did you mean BATON_MAX_NUM_SEQS?)", result.stderr)
        self.assertEqual(result.stderr.count("BATON_MAX_NUM_SEQ "), 1)

    def test_a_misspelt_key_of_the_file_is_refused(self):
        with tempfile.TemporaryDirectory() as d:
            config = pathlib.Path(d, "config.yaml")
            config.write_text("max-num-sqs: 3\n")
            result = run(["serve", str(TINY), "--config", config])
            self.assertEqual(result.returncode, 2)
            self.assertIn("did you mean max-num-seqs?", result.stderr.strip().splitlines()[-1])

    def test_api_keys_stand_on_no_command_line_of_a_child(self):
        with Cluster(env={"BATON_API_KEY": "very-secret"}) as c:
            self.assertEqual(c.get("/v1/models").status, 401)
            self.assertEqual(c.get("/v1/models", headers={"Authorization": "Bearer very-secret"}).status, 200)
            for pid in c.children():
                self.assertNotIn(b"very-secret", pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())


class Words(unittest.TestCase):
    """What a command prints of itself."""

    def test_version_and_help_end_with_0(self):
        for args, words in ((["--version"], "baton 0."), (["version"], "baton 0."), (["help"], "doctor"), (["--help"], "doctor"),
                            (["help", "serve"], "--prefill"), (["serve", "--help"], "--prefill"), (["help", "chat"], "--temperature")):
            result = run(args)
            self.assertEqual((result.returncode, result.stderr), (0, ""), args)
            self.assertIn(words, result.stdout)
        self.assertEqual(run(["--version"]).stdout, run(["version"]).stdout)
        self.assertEqual(run(["help", "serve"]).stdout, run(["serve", "--help"]).stdout)
        wrong = run(["help", "sevre"])
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("serve", wrong.stderr)

    def test_a_clean_start_warns_of_nothing(self):
        with Cluster(args=["--prefill", 1, "--decode", 1]) as c:
            complete(c)
            self.assertNotIn("warning", c.log.read_text())

    def test_every_line_says_which_process_it_is_of(self):
        with Cluster(args=["--prefill", 2, "--decode", 2]) as c:
            complete(c, prompt="one two three " * 60)
            lines = c.log.read_text().splitlines()
            names = {re.fullmatch(r"\[[^]]*\] \[[a-z]+\] \[([^]]*)\] .*", line).group(1) for line in lines}
            self.assertEqual(names, {"router", "prefill-0", "prefill-1", "decode-0", "decode-1"})
            admin = dict(line.split("=", 1) for line in c.ready.read_text().split())["BATON_ADMIN"].strip("'")
            told = json.loads(urllib.request.urlopen(admin + "/workers").read())
            self.assertEqual(sorted(re.findall(r'"worker_id": "([^"]*)"', json.dumps(told))),
                             ["decode-0", "decode-1", "prefill-0", "prefill-1"])

    def test_a_worker_alone_is_called_by_its_role_and_port(self):
        with subprocess.Popen([BATON, "worker", "--model", TINY, "--load-format", "dummy"], stdout=subprocess.PIPE, text=True) as process:
            line = next(line for line in process.stdout if "gRPC at" in line)
            port = line.strip().rsplit(":", 1)[1]
            self.assertIn(f"[both@{port}]", line)
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
        self.assertEqual(process.returncode, 0)

    def test_a_drain_that_runs_out_of_time_says_so(self):
        with Cluster(args=["--shutdown-timeout-ms", 300]) as c:
            with HeldStream(c):
                self.assertEqual(c.stop(), 1)
            self.assertIn("the drain ran out of time after 0.3 s", c.log.read_text())


class Refusals(unittest.TestCase):
    def check(self, args, code, *words):
        result = run(args)
        last = result.stderr.strip().splitlines()[-1] if result.stderr.strip() else ""
        self.assertEqual(result.returncode, code, result.stderr[-2000:])
        for word in words:
            self.assertIn(word, last)

    def test_no_such_model(self):
        self.check(["serve", "/no/such/model", "--port", "0", "--grpc-port", "0", "--admin-port", "0"], 3, "/no/such/model")

    def test_unknown_flag(self):
        self.check(["serve", str(TINY), "--no-such-flag", "1"], 2, "--no-such-flag", "serve --help")
        self.check(["serve", str(TINY), "--max-num-seq", "1"], 2, "did you mean --max-num-seqs?")
        self.check(["serve"], 2, "--model")
        self.check(["sevre"], 2, "sevre")

    def test_a_flag_of_another_command_is_named_with_it_in_whichever_program_that_is(self):
        self.check(["serve", str(TINY), "--request-rate", "3"], 2, "--request-rate is a flag of baton bench and baton sim)")
        self.check(["bench", "--max-num-seqs", "4"], 2, "--max-num-seqs is a flag of baton plan, baton sim, baton serve and baton worker)")
        self.check(["bench", "--no-such-flag"], 2, "bench does not take --no-such-flag. ")
        self.check(["bench", "--request-rat", "3"], 2, "did you mean --request-rate?")

    def test_a_value_that_only_a_worker_can_judge(self):
        self.check(["worker", "--model", str(TINY), "--max-num-seqs", "0"], 2, "--max-num-seqs 0")
        self.check(["serve", str(TINY), "--dtype", "int3", "--port", "0", "--grpc-port", "0", "--admin-port", "0"], 2, "--dtype int3")
        self.check(["worker", "--model", str(TINY), "--load-format", "dummy", "--max-model-len", "1m"], 2, "1000000", "2048")

    def test_serve_finds_what_stops_a_child_before_it_starts_one(self):
        """One line, with the flag and its value; no process was started that could have said more."""
        ports = ["--port", "0", "--grpc-port", "0", "--admin-port", "0"]
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            taken = s.getsockname()[1]
            for flags, code, words in (
                    (["--dtype", "int3"], 2, ["--dtype int3"]),
                    (["--prefill", 1, "--decode", 1, "--prefill.dtype", "int3"], 2, ["--dtype int3"]),
                    (["--device", "tpu"], 2, ["--device tpu"]),
                    (["--device", "cuda", "--device-plugin", "/no/such.so"], 2, ["--device cuda", "/no/such.so"]),
                    (["--device", "cuda", "--max-logprobs", 200], 2, ["--max-logprobs 200", "--device cuda", "128"]),
                    (["--max-model-len", "1m"], 2, ["1000000", "2048"]),
                    (["--max-num-seqs", "0"], 2, ["--max-num-seqs 0"]),
                    (["--host", "nowhere"], 2, ["--host nowhere"]),
                    (["--host", "192.0.2.1", "--insecure"], 4, ["192.0.2.1"]),
                    (["--port", "99999"], 2, ["--port 99999"]),
                    (["--admin-port", taken], 4, [f":{taken}", "--admin-port"]),
                    (["--grpc-port", taken], 4, [f":{taken}", "--grpc-port"]),
                    (["--port", taken], 4, [f":{taken}", "--port N moves all"]),
                    (["--log-format", "xml"], 2, ["--log-format xml"]),
                    (["--ready-file", "/no/such/folder/ready"], 2, ["--ready-file", "/no/such/folder/ready"])):
                with self.subTest(flags):
                    result = run(["serve", str(TINY), "--load-format", "dummy", *ports, *flags])
                    self.assertEqual(result.returncode, code, result.stdout + result.stderr)
                    said = (result.stdout + result.stderr).splitlines()
                    self.assertEqual(len(said), 1, said)
                    for word in words:
                        self.assertIn(word, said[0])

    def test_an_unwritable_ready_file_is_found_before_the_model_is_loaded(self):
        for command in (["worker", "--load-format", "dummy"], ["router", "--port", "0", "--grpc-port", "0", "--admin-port", "0"]):
            result = run([*command, "--model", str(TINY), "--ready-file", "/no/such/folder/ready"])
            self.assertEqual(result.returncode, 2)
            self.assertEqual(result.stdout, "")
            self.assertIn("/no/such/folder/ready", result.stderr)

    def test_bad_flag_value(self):
        self.check(["serve", str(TINY), "--max-num-seqs", "many"], 2, "--max-num-seqs", "many")

    def test_port_in_use(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            port = s.getsockname()[1]
            self.check(["serve", str(TINY), "--load-format", "dummy", "--port", port, "--grpc-port", "0", "--admin-port", "0"], 4, str(port))

    def test_model_larger_than_memory(self):
        with tempfile.TemporaryDirectory() as d:
            big = pathlib.Path(d) / "big"
            subprocess.run(["cp", "-r", str(TINY), str(big)], check=True)
            config = json.loads((big / "config.json").read_text())
            config.update(hidden_size=16384, intermediate_size=65536, num_hidden_layers=200, num_attention_heads=128, num_key_value_heads=128)
            config["head_dim"] = 128
            (big / "config.json").write_text(json.dumps(config))
            self.check(["serve", str(big), "--load-format", "dummy", "--port", "0", "--grpc-port", "0", "--admin-port", "0"], 5, "GiB")

    def test_max_model_len_that_does_not_fit_the_kv_memory(self):
        self.check(["serve", str(TINY), "--load-format", "dummy", "--kv-cache-memory", "64K", "--port", "0", "--grpc-port", "0", "--admin-port", "0"], 5,
                   "--kv-cache-memory")

    def test_chat_without_a_server(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))  # bound, not listening: nobody answers, and nobody else can take it
            self.check(["chat", "--url", f"http://127.0.0.1:{s.getsockname()[1]}", "--message", "x"], 6)

    def test_doctor_says_what_this_machine_has_and_what_is_wrong(self):
        fit = run(["doctor"])
        self.assertEqual(fit.returncode, 0, fit.stdout)
        self.assertIn("GiB available", fit.stdout)
        self.assertRegex(fit.stdout, r"ok +kv in tls +(the kernel encrypts|this process encrypts, not the kernel: it)")
        if "no UCX in this build" not in fit.stdout:
            self.assertRegex(fit.stdout, r"ok +kv memory +a page was registered with \w+")
        without_weights = run(["doctor", TINY])
        self.assertEqual(without_weights.returncode, 3)
        self.assertIn("no model.safetensors", without_weights.stdout)
        self.assertIn("548 tokens", without_weights.stdout)
        missing = run(["doctor", "/no/such.gguf"])
        self.assertEqual(missing.returncode, 3)
        self.assertIn("/no/such.gguf", missing.stdout)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))  # bound, not listening: nobody answers, and nobody else can take it
            url = f"http://127.0.0.1:{s.getsockname()[1]}"
            unreachable = run(["doctor", "--url", url])
            self.assertEqual(unreachable.returncode, 6)
            self.assertIn(url, unreachable.stdout)

    @unittest.skipUnless(SMOLLM2.exists(), f"the demo model is not in the cache ({SMOLLM2.name})")
    def test_doctor_knows_a_model_that_can_be_served(self):
        done = run(["doctor", SMOLLM2])
        self.assertEqual(done.returncode, 0, done.stdout)
        for word in ("134.5 M parameters", "49152 tokens", "chat template"):
            self.assertIn(word, done.stdout)

    def test_non_loopback_bind_needs_auth_and_tls(self):
        result = run(["serve", str(TINY), "--load-format", "dummy", "--host", "0.0.0.0", "--port", "0", "--grpc-port", "0", "--admin-port", "0"])
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("--insecure", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
