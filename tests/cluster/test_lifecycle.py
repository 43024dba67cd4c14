"""Start, death, drain and refusal of whole clusters."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from harness import BATON, TINY, Cluster, events, in_parallel, run, state


def complete(cluster, **fields):
    return cluster.post("/v1/completions", {"model": "tiny-llama", "prompt": "one two three", "max_tokens": 8, "temperature": 0, **fields})


class Lifecycle(unittest.TestCase):
    def test_kill_of_the_worker_gives_clear_errors_and_it_serves_again_by_itself(self):
        with Cluster() as c:
            before = complete(c)
            self.assertEqual(before.status, 200, before.body)
            stream = []
            t = threading.Thread(target=lambda: stream.append(complete(c, max_tokens=1500, stream=True, ignore_eos=True)))
            t.start()
            c.wait_until(lambda: c.metric("vllm:num_requests_running") >= 1, "the stream runs")
            os.kill(c.pid_of("worker"), signal.SIGKILL)
            t.join(60)
            self.assertTrue(stream, "the stream ended")
            data = events(stream[0].body)
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
            out = []
            t = threading.Thread(target=lambda: out.append(complete(c, max_tokens=400, stream=True, ignore_eos=True)))
            t.start()
            c.wait_until(lambda: c.metric("vllm:num_requests_running") >= 1, "the stream runs")
            self.assertEqual(c.stop(), 0)
            t.join(60)
            data = events(out[0].body)
            self.assertEqual(data[-1], "[DONE]")
            finish = [json.loads(d)["choices"][0]["finish_reason"] for d in data[:-1] if json.loads(d).get("choices")]
            self.assertEqual(finish[-1], "length")

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
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            s.recv(1)
            s.close()
            c.wait_until(lambda: c.metric("vllm:num_requests_running") == 0, "cancelled on the worker", 10)


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
        result = run(["serve", str(TINY), "--no-such-flag", "1"])
        self.assertEqual(result.returncode, 2)
        self.assertIn("no-such-flag", result.stderr)

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
        self.assertEqual(run(["doctor", str(TINY)]).returncode, 0)
        sick = run(["doctor", "/no/such.gguf"])
        self.assertEqual(sick.returncode, 2)
        self.assertIn("/no/such.gguf", sick.stdout)
        self.assertIn("GiB available", sick.stdout)

    def test_non_loopback_bind_needs_auth_and_tls(self):
        result = run(["serve", str(TINY), "--load-format", "dummy", "--host", "0.0.0.0", "--port", "0", "--grpc-port", "0", "--admin-port", "0"])
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("--insecure", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
