"""`baton plan` says what a worker will take: every kind of bytes that real workers print at their start is the one that
was planned, for the toy model of every family and for SmolLM2, in f32 and bf16, on one rank and on several."""
import json
import pathlib
import re
import shlex
import statistics
import subprocess
import tempfile
import time
import unittest

import made_tokenizer
from harness import BATON, ROOT, SMOLLM2, START_SECONDS, STOP_SECONDS, TINY

GOLDENS = ROOT / "tests" / "engine" / "model" / "goldens"
DOC = (ROOT / "docs" / "plan.md").read_text()
KINDS = ["embedding", "attention", "mlp", "norms", "head"]
TIMES = ["--isl", 500, "--osl", 100, "--memory-bandwidth", 100, "--compute", 1]
SMALL = ["--max-num-seqs", 4, "--max-num-batched-tokens", 64]


def plan(*args):
    return subprocess.run([BATON, "plan", *map(str, args)], capture_output=True, text=True)


def planned(*args):
    result = plan(*args, "--format", "json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def anonymous_bytes(pid):
    return int(re.search(r"RssAnon:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) * 1024


def taken(*args, look=lambda pid: None):
    """What a worker of these flags says that it has taken, from its log. `look` is given the process once it is ready."""
    with tempfile.TemporaryDirectory() as folder:
        ready, log = pathlib.Path(folder) / "ready", pathlib.Path(folder) / "log"
        key = pathlib.Path(folder) / "key"  # else it would wait for a router's
        key.write_text("0" * 64)
        command = [BATON, "worker", "--ready-file", ready, "--hash-key-file", key, "--threads", "1", *map(str, args)]
        with open(log, "w") as out:
            worker = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not ready.exists():
                assert worker.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)
            look(worker.pid)
        finally:
            worker.terminate()
            worker.wait(STOP_SECONDS)
        text = log.read_text()
    ranks = {int(rank): dict((kind, int(n)) for kind, n in re.findall(r"(\w+) (\d+)", line))
             for rank, line in re.findall(r"rank (\d+) \(.*?\): bytes taken by (.*)", text)}
    kv = int(re.search(r"bytes taken by KV of all ranks (\d+)", text)[1])
    return ranks, kv, int(re.search(r"KV cache size: (\d+) tokens", text)[1]), text


def dtypes(*args):
    """Those that this machine computes in."""
    for dtype in ("float32", "bfloat16"):
        if plan(*args, "--dtype", dtype).returncode != 2:
            yield dtype


class Plan(unittest.TestCase):
    def check(self, *args):
        with self.subTest(args=args):
            said, (ranks, kv, tokens, _) = planned(*args), taken(*args)
            self.assertEqual(sorted(ranks), [rank["rank"] for rank in said["ranks"]])
            for rank in said["ranks"]:
                want = {**{kind: rank["weights"][kind] for kind in KINDS}, "workspace": rank["workspace"]}
                self.assertEqual(ranks[rank["rank"]], want, f"rank {rank['rank']}")
            self.assertEqual(said["kv_bytes"], kv)
            self.assertEqual(said["kv_tokens"], tokens)
            self.assertEqual(said["total_bytes"], kv + sum(sum(kinds.values()) for kinds in ranks.values()))

    def test_toy_models_of_every_family(self):
        for config in sorted(GOLDENS.glob("*/config.json")):
            common = ["--model", config.parent, "--load-format", "dummy", *SMALL]
            for dtype in dtypes(*common):
                self.check(*common, "--dtype", dtype)

    def test_ranks(self):
        common = ["--model", TINY, "--load-format", "dummy", *SMALL]
        for ranks in (["--tensor-parallel-size", 2], ["--tensor-parallel-size", 4, "--pipeline-parallel-size", 2],
                      ["--tensor-parallel-size", 2, "--reduction-width", 4]):
            for dtype in dtypes(*common):
                self.check(*common, *ranks, "--dtype", dtype)

    def test_smollm2(self):
        common = ["--model", SMOLLM2, "--kv-cache-memory", "64MiB", "--max-model-len", 1024, *SMALL]
        for dtype in dtypes(*common):
            self.check(*common, "--dtype", dtype)
        self.check(*common, "--dtype", "float32", "--kv-cache-dtype", "fp8", "--block-size", 64)

    def test_what_grammars_keep_of_a_tokenizer(self):
        """Beside the same worker without one, and planned for both; medians, as one start in many keeps some MiB more or less."""
        words, resident = 60000, {}
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
                (folder / name).write_text((TINY / name).read_text())
            (folder / "config.json").write_text(json.dumps({**json.loads((TINY / "config.json").read_text()), "vocab_size": words}))
            common = ["--model", folder, "--load-format", "dummy", *SMALL]
            self.assertEqual(planned(*common)["text_bytes"], 0)  # a folder without tokenizer.json
            made_tokenizer.write(folder / "tokenizer.json", TINY / "tokenizer.json", words)
            for more in ([], ["--skip-tokenizer-init"]):
                seen = []
                for _ in range(3):
                    log = taken(*common, *more, look=lambda pid: seen.append(anonymous_bytes(pid)))[3]
                resident[len(more)] = seen
                bytes_said = re.search(r"grammars keep of the tokenizer about (\d+)", log)
                self.assertEqual(int(bytes_said[1]) if bytes_said else 0, planned(*common, *more)["text_bytes"])
            said = planned(*common)
            beside = statistics.median(resident[0]) - statistics.median(resident[1])
            self.assertAlmostEqual(beside / said["text_bytes"], 1, delta=0.25, msg=str(resident))
            line = f"keeps about {said['text_bytes'] / 2**20:.2f} MiB of its tokenizer beside"
            self.assertIn(line, plan(*common).stdout)
            self.assertNotIn("of its tokenizer", plan(*common, "--skip-tokenizer-init").stdout)
            too_small = plan(*common, "--memory", said["total_bytes"] + said["text_bytes"] - 1, "--kv-cache-memory", said["kv_bytes"])
            self.assertEqual(too_small.returncode, 5, too_small.stderr)

    def test_the_flags_that_it_emits_plan_the_same(self):
        args = [TINY, "--load-format", "dummy", *SMALL, "--tensor-parallel-size", 2]
        emitted = shlex.split(plan(*args, "--emit", "flags").stdout)
        self.assertIn("--kv-cache-memory", emitted)
        said, again = planned(*args), planned(*emitted)
        for key in ("ranks", "kv_tokens", "max_model_len", "total_bytes"):
            self.assertEqual(again[key], said[key], key)
        self.check(*emitted)
        folder = str(TINY)
        self.assertIn("--skip-tokenizer-init", shlex.split(plan(*args, "--skip-tokenizer-init", "--emit", "flags").stdout))
        self.assertIn(folder, shlex.split(plan(SMOLLM2, "--tokenizer", folder, "--emit", "flags").stdout))

    def test_what_stands_over_a_models_config_is_planned_with(self):
        args = [TINY, "--load-format", "dummy", *SMALL]
        self.assertEqual(planned(*args, "--hf-overrides", '{"num_hidden_layers": 1}')["kv_kinds"][0]["layers"], 1)
        emitted = shlex.split(plan(*args, "--hf-overrides", '{"num_hidden_layers": 2}', "--emit", "flags").stdout)
        self.assertEqual(planned(*emitted)["kv_kinds"][0]["layers"], 2)

    def test_a_gpu_needs_none_here(self):
        said = planned(SMOLLM2, "--device", "cuda", "--memory", "8GiB", "--max-model-len", 2048)
        self.assertEqual((said["dtype"], said["kv_cache_dtype"]), ("bfloat16", "bfloat16"))
        free = said["available_bytes"] - said["total_bytes"] + said["kv_bytes"]
        self.assertLessEqual(said["kv_bytes"], 0.9 * free)
        self.assertGreater(said["kv_bytes"], 0.89 * free)
        result = plan(SMOLLM2, "--device", "cuda")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--memory", result.stderr)

    def test_each_rank_on_a_gpu_has_a_gpus_memory(self):
        args = ["--model-shape", "llama-3-8b", "--device", "cuda", "--memory", "16GiB", "--max-model-len", 4096]
        alone, smaller = plan(*args), plan(*args[:4], "--memory", "14GiB", *args[6:])
        self.assertEqual((alone.returncode, smaller.returncode), (5, 5))
        self.assertIn("one sequence of 4096 tokens needs 540020736 bytes of KV cache", alone.stderr)
        self.assertIn("15032385536 bytes (14.00 GiB) are available", smaller.stderr)
        said = planned(*args, "--tensor-parallel-size", 2)
        self.assertEqual(said["available_bytes"], 2 * 16 << 30)
        self.assertLessEqual(max(rank["total"] for rank in said["ranks"]), 16 << 30)
        on_cpu = plan(*args[:2], "--dtype", "float32", *args[4:], "--tensor-parallel-size", 2)
        self.assertEqual(on_cpu.returncode, 5, "the ranks of a machine share its memory")

    def test_times_grow_with_what_is_asked_for(self):
        args = [SMOLLM2, "--dtype", "float32", "--memory", "8GiB", *SMALL, *TIMES, "--max-num-batched-tokens", 2048]
        said = planned(*args)["roofline"]
        self.assertEqual((said["prefill_limit"], said["decode_limit"]), ("compute", "memory bandwidth"))
        flops = 2 * 500 * 106_200_000  # multiplications of the layers' weights, without attention
        self.assertGreater(said["ttft_ms"], flops / 1e9)
        self.assertLess(said["ttft_ms"], 1.2 * flops / 1e9)
        self.assertGreater(said["tpot_ms"], 134_000_000 * 4 / 100e6)
        self.assertEqual(said["batch"], 4)
        self.assertEqual(said["advice"], "")
        self.assertIsNone(said["break_even_tokens"])
        faster = planned(*args, "--memory-bandwidth", 200, "--compute", 2)["roofline"]
        self.assertAlmostEqual(faster["ttft_ms"], said["ttft_ms"] / 2)
        self.assertAlmostEqual(faster["tpot_ms"], said["tpot_ms"] / 2)
        self.assertIn("do not disaggregate", plan(*args, "--link", 0.01).stdout)
        fast = plan(*args, "--link", 10).stdout
        self.assertIn("\ndisaggregate: ", fast)
        self.assertIn("not calibrated", fast)

    def test_layouts_are_ranked_and_the_others_have_reasons(self):
        args = [TINY, "--load-format", "dummy", *TIMES, "--memory", "1GiB", "--link", 1, "--total-gpus", 4]
        said = planned(*args)
        good = [p["requests_per_s"] for p in said if not p["why_not"]]
        self.assertGreater(len(good), 4)
        self.assertEqual(good, sorted(good, reverse=True))
        text = plan(*args).stdout
        self.assertEqual(len(re.findall(r"^ *\d+\. .* requests/s", text, re.M)), len(good))
        self.assertEqual(len(re.findall(r"^WHY NOT .*: ", text, re.M)), len(said) - len(good))
        self.assertIn("no layout meets the goals", plan(*args, "--tpot", 0).stdout)
        text = plan("--model-shape", "llama-3-8b", *TIMES, "--memory", "8GiB", "--total-gpus", 4).stdout
        self.assertRegex(text, r"(?m)^WHY NOT 4 workers for both: llama-3-8b needs \d+ bytes")

    def test_what_does_not_fit_is_refused_with_the_bytes_that_are_missing(self):
        fits = planned(SMOLLM2, "--dtype", "float32", "--memory", "4GiB", *SMALL)
        weights = fits["ranks"][0]["weights"]["total"]
        result = plan(SMOLLM2, "--dtype", "float32", "--memory", weights, *SMALL)
        self.assertEqual(result.returncode, 5)
        need, available, missing = map(int, re.search(
            r"needs (\d+) bytes \(.*?\), (\d+) bytes \(.*?\) are available: (\d+) bytes .* too many", result.stderr).groups())
        self.assertEqual((available, missing), (weights, need - weights))
        self.assertEqual(plan(SMOLLM2, "--dtype", "float32", "--memory", need, *SMALL).returncode, 5, "no room for KV")
        result = plan(SMOLLM2, "--dtype", "float32", "--memory", "2GiB", "--kv-cache-memory", "2GiB", *SMALL)
        self.assertEqual(result.returncode, 5)
        self.assertIn("too many", result.stderr)
        result = plan(SMOLLM2, "--dtype", "float32", "--kv-cache-memory", 1000, *SMALL)
        self.assertEqual(result.returncode, 5)
        self.assertIn("too few", result.stderr)

    def test_bad_input(self):
        for code, text, args in ((3, "no such model", ["/nowhere/model"]),
                                 (3, "config.json", [ROOT / "docs"]),
                                 (2, "--dtype", [TINY, "--dtype", "float64"]),
                                 (2, "--format", [TINY, "--format", "xml"]),
                                 (2, "--max-model-len", [TINY, "--max-model-length", 5]),
                                 (2, "longer than the model's context", [TINY, "--load-format", "dummy", "--max-model-len", "1G"]),
                                 (2, "--memory-bandwidth", [TINY, "--compute", 1]),
                                 (2, "--compute", [TINY, "--memory-bandwidth", 1]),
                                 (2, "--compute", [TINY, "--link", 1]),
                                 (2, "2048", [TINY, "--load-format", "dummy", "--memory-bandwidth", 1, "--compute", 1]),
                                 (2, "--total-gpus", [TINY, "--total-gpus", 2]),
                                 (2, "--emit", [TINY, *TIMES, "--memory", "1GiB", "--total-gpus", 2, "--emit", "flags"]),
                                 (2, "--isl", [TINY, *TIMES, "--isl", 2**63 - 1]),
                                 (2, "--handoff-ms", [TINY, *TIMES, "--link", 1, "--handoff-ms", "inf"]),
                                 (2, "--memory-bandwidth", [TINY, *TIMES, "--memory-bandwidth", "inf"]),
                                 (2, "--compute 1e-300: at least", [TINY, *TIMES, "--compute", "1e-300"]),
                                 (2, "--prefix 9", [TINY, "--load-format", "dummy", *TIMES, "--isl", 9, "--prefix", 9]),
                                 (2, "--model", [])):
            with self.subTest(args=args):
                result = plan(*args)
                self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
                self.assertIn(text, result.stderr)

    def test_the_page_tells_the_flags_and_keys_there_are(self):
        help_text = subprocess.run([BATON, "help", "plan"], capture_output=True, text=True).stdout
        lines = [line for block in re.findall(r"^```\n(.*?)^```", DOC, re.M | re.S) for line in block.splitlines()]
        lines = [re.sub(r"\s+# .*", "", line) for line in lines if line.startswith("baton plan")]
        self.assertGreater(len(lines), 2)
        for line in lines:
            result = plan(*shlex.split(line.replace("MODEL", str(SMOLLM2)))[2:])
            self.assertEqual(result.returncode, 0, f"{line}: {result.stderr}")
        for flag in re.findall(r"`(--[a-z-]+)", DOC):
            self.assertIn(flag, help_text)
        said = planned(TINY, "--load-format", "dummy", *TIMES)
        keys = set(re.findall(r"^\| `(\w+)`", DOC, re.M))
        self.assertEqual(keys, set(said) | set(said["ranks"][0]) | set(said["kv_kinds"][0]) | set(said["roofline"])
                         | set(planned(TINY, "--load-format", "dummy", *TIMES, "--memory", "1GiB", "--total-gpus", 1)[0]))


if __name__ == "__main__":
    unittest.main()
