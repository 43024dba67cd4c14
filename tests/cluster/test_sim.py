"""`baton sim` and `baton plan --trace`: a trace goes in, figures of a cluster that nobody has built come out, the same
bytes each time; and what cannot be is said."""
import json
import pathlib
import re
import subprocess
import tempfile
import time
import unittest

from harness import BATON, ROOT, TINY

SHAPE = "layers=2,hidden=64,heads=4,kv-heads=2,inner=128,vocab=1000,context=4096"
MACHINE = ["--model-shape", SHAPE, "--dtype", "float32", "--memory", "1GiB", "--kv-cache-memory", "8MiB"]
STEPS = ["--step-ms", 4, "--row-us", 40, "--sequence-us", 100, "--kilotoken-us", 50]
TIMES = ["--memory-bandwidth", 0.02, "--compute", 0.001]
LINK = ["--link", 0.5]


def mooncake(count, gap_ms=40):
    """Every third prompt begins as the one three before."""
    return "".join(json.dumps({"timestamp": i * gap_ms, "input_length": 700 + 13 * i, "output_length": 5 + i % 7,
                               "hash_ids": [i % 3, 100 + i]}) + "\n" for i in range(count))


def run(*args):
    return subprocess.run([BATON, *map(str, args)], capture_output=True, text=True)


class Sim(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.trace = pathlib.Path(cls.folder.name) / "trace.jsonl"
        cls.trace.write_text(mooncake(60))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def write(self, text, name="other"):
        path = pathlib.Path(self.folder.name) / name
        path.write_text(text)
        return path

    def simulated(self, *args):
        result = run("sim", *MACHINE, *STEPS, *args, "--format", "json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_every_request_of_a_trace_is_answered_on_every_layout(self):
        for layout in (["--both", 2], ["--prefill", 1, "--decode", 2, *LINK], ["--prefill", 1, "--decode", 1, "--both", 1, *LINK]):
            with self.subTest(layout=layout):
                said = self.simulated(*layout, "--trace", self.trace, "--goodput", "ttft:400", "tpot:40")
                self.assertEqual((said["offered"], said["completed"], said["failed"]), (60, 60, 0), said["failures"])
                self.assertEqual(said["total_input_tokens"], sum(700 + 13 * i for i in range(60)))
                self.assertEqual(said["total_output_tokens"], sum(5 + i % 7 for i in range(60)))
                self.assertGreater(said["good_requests"], 0)
                self.assertGreater(said["total_cached_tokens"], 0, "prompts begin alike")
                mixed = {"--prefill", "--both"} <= set(layout)  # the worker of role both may be enough, and has the prefixes
                if not mixed:
                    self.assertEqual(said["handoffs"] > 0, "--prefill" in layout)
                    self.assertEqual(said["link_gigabytes_per_s"] > 0, "--prefill" in layout)
                self.assertEqual(sum(role["workers"] for role in said["roles"]), sum(layout[1:len(layout) - 2 * ("--link" in layout):2]))
                for role in said["roles"]:
                    self.assertTrue(0 <= role["busy"] <= 1.001 and (mixed or role["busy"] > 0) and 0 <= role["kv_used_most"] <= 1, role)

    def test_the_same_seed_gives_the_same_bytes(self):
        args = ["sim", *MACHINE, *STEPS, "--prefill", 1, "--decode", 1, *LINK, "--request-rate", 20, "--num-prompts", 50,
                "--random-input-len", 200, "--random-output-len", 10]
        once, again, other = run(*args), run(*args), run(*args, "--seed", 1)
        self.assertEqual((once.returncode, once.stdout), (0, again.stdout), once.stderr)
        self.assertNotEqual(once.stdout, other.stdout)
        self.assertIn("times as fast as they would be", once.stderr)

    def test_policies_and_rates_stand_side_by_side(self):
        args = ["--both", 3, "--num-prompts", 60, "--dataset-name", "prefix_repetition", "--request-rate", "20,40",
                "--compare-policies", "predicted-time", "round-robin"]
        said = self.simulated(*args)
        self.assertEqual([(one["route_policy"], one["request_rate"]) for one in said],
                         [("predicted-time", 20), ("round-robin", 20), ("predicted-time", 40), ("round-robin", 40)])
        self.assertGreater(said[0]["total_cached_tokens"], said[1]["total_cached_tokens"])
        text = run("sim", *MACHINE, *STEPS, *args).stdout
        self.assertIn("--route-policy round-robin, 20/s", text)

    def test_a_killed_worker_is_a_dip_as_a_bench_reports_it(self):
        args = ["--prefill", 1, "--decode", 2, *LINK, "--request-rate", 20, "--num-prompts", 200, "--random-input-len", 100,
                "--random-output-len", 40, "--kill", "decode@3s", "--restart-ms", 2000]
        said = self.simulated(*args)
        self.assertEqual((said["completed"], said["failed"]), (200, 0), said["failures"])
        self.assertEqual(said["faults"], [{"at_s": 3, "what": "kill decode-0", "error": ""}])
        [dip] = said["dips"]
        self.assertGreater(dip["running"], 0)
        self.assertEqual(dip["failed"], 0)
        self.assertLess(dip["least_tokens_per_s"], dip["before_tokens_per_s"])
        self.assertRegex(run("sim", *MACHINE, *STEPS, *args).stdout, r"3\.0 s, kill decode-0: from \d+ tok/s to \d+ .* 0 of them failed")

    def test_ranked_layouts_are_simulated_and_lose_a_worker(self):
        begin = time.monotonic()
        result = run("plan", *MACHINE, *TIMES, *LINK, "--max-model-len", 4096, "--isl", 1000, "--osl", 10, "--ttft", 5000,
                     "--tpot", 1000, "--total-gpus", 4, "--trace", self.trace, "--simulated-layouts", 2, "--target-request-rate", 5)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"not calibrated.*0\.4 to 1 times")
        self.assertRegex(result.stdout, r" 1\. .* requests/s \([\d.]+ to [\d.]+\)  TTFT +[\d.]+ \([\d.]+ to [\d.]+\)")
        self.assertRegex(result.stdout, r"order: the first is the fastest at \d of 8 ends of these ranges")
        self.assertRegex(result.stdout, r"prompts twice as long .* serves +\d+ % of 5/s")
        self.assertRegex(result.stdout, r"simulated under .*, 60 requests, with queues")
        self.assertEqual(result.stdout.count("good "), 3, result.stdout)
        self.assertRegex(result.stdout, r"one less: ")
        self.assertLess(time.monotonic() - begin, 20)

    def test_what_is_measured_calibrates(self):
        base = ["plan", *MACHINE, *TIMES, "--max-model-len", 4096, "--isl", 400, "--osl", 10]
        said = json.loads(run(*base, "--format", "json").stdout)["roofline"]
        slow = {"duration": 100.0, "ttfts": [], "input_lens": [], "output_lens": [], "latencies": []}
        for i in range(20):
            ttft = 3 * said["ttft_ms"] / 1e3 * (1 + 0.1 * (i % 2))
            slow["input_lens"].append(400), slow["output_lens"].append(11), slow["ttfts"].append(ttft)
            slow["latencies"].append(ttft + 10 * 2 * said["tpot_ms"] / 1e3)
        result = run(*base, "--calibrate", self.write(json.dumps(slow), "bench.json"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"prompts take 3\.\d+ times the roofline")
        self.assertRegex(result.stdout, r"TTFT \d\d % before, \d+ % after")
        self.assertRegex(result.stdout, r"calibrated: TTFT without a queue \+-\d+ %.* eight of ten requests took [\d.]+ to [\d.]+")
        result = run(*base, "--calibrate", self.write("{}", "bench.json"))
        self.assertEqual(result.returncode, 3)
        self.assertIn("no list", result.stderr)

    def test_layouts_are_written_as_values_of_the_chart_and_as_services(self):
        args = ["plan", *MACHINE, *TIMES, *LINK, "--max-model-len", 4096, "--isl", 1000, "--osl", 10, "--ttft", 5000, "--tpot", 1000,
                "--total-gpus", 3]
        helm, compose = run(*args, "--emit", "helm"), run(*args, "--emit", "compose")
        self.assertEqual((helm.returncode, compose.returncode), (0, 0), helm.stderr + compose.stderr)
        schema = json.loads((ROOT / "deploy" / "helm" / "baton" / "values.schema.json").read_text())["properties"]
        roles = [line[:-1] for line in helm.stdout.splitlines() if line.endswith(":") and not line.startswith(" ")]
        self.assertEqual(roles, ["model", "prefill", "decode", "both"])
        role = None
        for line in helm.stdout.splitlines():
            if line.startswith("  ") and not line.startswith("   "):
                self.assertIn(line.split(":")[0].strip(), schema[role]["properties"], line)
            elif not line.startswith(("#", " ")):
                role = line.split(":")[0]
                self.assertIn(role, schema)
        for role in ("prefill", "decode", "both"):
            self.assertIn("kvCacheMemory", schema[role]["properties"], role)
        # What the chart sets from a value of its own it refuses among extraArgs.
        rules = (ROOT / "deploy" / "helm" / "baton" / "templates" / "_validate.tpl").read_text()
        own = next(re.findall(r'"([a-z-]+)"', line) for line in rules.splitlines() if '"kv-cache-memory"' in line)
        extra = [key for line in helm.stdout.splitlines() if "extraArgs:" in line for key in re.findall(r"([a-z-]+): ", line.partition("extraArgs:")[2])]
        self.assertTrue(extra)
        self.assertEqual([key for key in extra if key in own], [])
        self.assertEqual(helm.stdout.count("kvCacheMemory: "), helm.stdout.count("extraArgs: "))
        # A tokenizer beside the model is the router's and every worker's.
        for flags, key, value in ((["--skip-tokenizer-init"], "skip-tokenizer-init", "true"),
                                  (["--tokenizer", f"{TINY}/"], "tokenizer", f'"/models/{TINY.name}"')):
            helm, compose = run(*args, *flags, "--emit", "helm"), run(*args, *flags, "--emit", "compose")
            self.assertEqual((helm.returncode, compose.returncode), (0, 0), helm.stderr + compose.stderr)
            self.assertIn(f"\nrouter:\n  extraArgs: {{{key}: {value}}}\n", helm.stdout)
            workers = [line for line in helm.stdout.splitlines() if "extraArgs: {max-num-seqs" in line]
            self.assertTrue(workers and all(line.endswith(f", {key}: {value}}}") for line in workers), workers)
            self.assertIn(f'\n  BATON_{key.upper().replace("-", "_")}: "{value.strip(chr(34))}"\n', compose.stdout)
        # What a plan was made with is what is started: device, parts of sums, where weights come from, landing memory.
        planned = ["plan", "--model-shape", "llama-3-8b", "--device", "cuda", "--memory", "80GiB", "--memory-bandwidth", 3000, "--compute", 800,
                   *LINK, "--max-model-len", 4096, "--isl", 1000, "--osl", 10, "--total-gpus", 3, "--reduction-width", 4, "--load-format", "dummy",
                   "--landing-slots", 64]
        compose, helm = run(*planned, "--emit", "compose"), run(*planned, "--emit", "helm")
        workers = [line for line in compose.stdout.splitlines() if "command: [worker" in line]
        self.assertTrue(workers, compose.stderr)
        for line in workers:
            self.assertIn('--landing-slots, "64", --reduction-width, "4", --load-format, "dummy", --device, "cuda"]', line)
        gpus = re.findall(r"device_ids: \[([^]]*)\]", compose.stdout)
        self.assertEqual((len(workers), gpus), (3, ['"0"', '"1"', '"2"']), "each has its own")
        self.assertIn("${IMAGE:-baton-cuda:", compose.stdout)
        self.assertIn("landing-slots: 64", helm.stdout)
        self.assertRegex(compose.stdout, r"(?s)services:.*  router:")
        self.assertIn("--kv-cache-memory", compose.stdout)

    def test_well_known_models_have_a_row_each(self):
        table = run("plan", "--kv-table").stdout.splitlines()
        self.assertGreater(len(table), 20)
        self.assertRegex("\n".join(table), r"llama-3\.1-8b +8\.03 B .* 131072 +8192")

    def test_a_trace_comes_through_a_pipe_too(self):
        trace = self.write(mooncake(40), "piped.jsonl")
        flags = " ".join(map(str, [*MACHINE, *STEPS, "--both", 1, "--format", "json"]))
        done = subprocess.run(["bash", "-c", f"{BATON} sim {flags} --trace <(cat {trace})"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout), self.simulated("--both", 1, "--trace", trace))
        twice = subprocess.run(["bash", "-c", f"{BATON} bench --model m --base-url http://127.0.0.1:9 --num-runs 2 --dataset-name mooncake --dataset-path <(cat {trace})"],
                               capture_output=True, text=True)
        self.assertEqual(twice.returncode, 2, twice.stderr)
        self.assertIn("a pipe is read once, and there are 2 loads", twice.stderr)

    def test_bad_input(self):
        broken = self.write(mooncake(2) + '{"timestamp": 50, "input_length": "many"}\n', "broken.jsonl")
        backwards = self.write(mooncake(3) + mooncake(1), "backwards.jsonl")
        both = ["--both", 1]
        marked = self.write("\ufeff" + mooncake(3), "marked.jsonl")
        self.assertEqual(self.simulated(*both, "--trace", marked)["completed"], 3)
        listed = self.write("[1, 2]\n", "listed.jsonl")
        for code, text, args in ((2, f"{broken}:3: \"input_length\" is no number", [*both, "--trace", broken]),
                                 (2, f"{backwards}:4: time runs backwards", [*both, "--trace", backwards]),
                                 (2, "--trace: cannot read /nowhere: No such file", [*both, "--trace", "/nowhere"]),
                                 (2, "--trace: cannot read /tmp: Is a directory", [*both, "--trace", "/tmp"]),
                                 (2, f"{listed}:1: not a JSON object", [*both, "--trace", listed]),
                                 (2, "\"speed\" is not ttft", [*both, "--percentile-metrics", "ttft,speed"]),
                                 (2, "10000000000: at most 16777216", [*both, "--random-input-len", 10**10]),
                                 (2, "must be predicted-time", [*both, "--route-policy", "fastest"]),
                                 (2, "\"random\" is unknown", [*both, "--compare-policies", "predicted-time", "random"]),
                                 (2, "for nobody", ["--prefill", 2]),
                                 (2, "give --link", ["--prefill", 1, "--decode", 1]),
                                 (2, "at most 1024", ["--both", 1000, "--prefill", 20, "--decode", 20, *LINK]),
                                 (2, "--goodput", [*both, "--goodput", "speed:3"]),
                                 (2, "\"soon\" is not WORKER@TIME", [*both, "--kill", "soon"]),
                                 (2, "there is no worker decode; there are both-0", [*both, "--kill", "decode@1s"]),
                                 (2, "leave one out", [*both, *TIMES])):
            with self.subTest(args=args):
                result = run("sim", *MACHINE, *STEPS, *args)
                self.assertEqual((result.returncode, result.stdout), (code, ""), result.stderr)
                self.assertIn(text, result.stderr)
        nobody = run("sim", *MACHINE, *STEPS, *both, "--random-input-len", 5000, "--num-prompts", 2)
        self.assertEqual(nobody.returncode, 6, nobody.stderr)
        self.assertIn("none of 2 requests was answered: the prompt has 5000 tokens", nobody.stderr)
        result = run("sim", *MACHINE, *both)
        self.assertIn("what a step takes is not known", result.stderr)
        result = run("sim", *STEPS, *both, "--model-shape", "llama-3-8B")
        self.assertEqual(result.returncode, 2)
        self.assertIn("did you mean llama-3-8b", result.stderr)
        result = run("sim", *STEPS, *both, "--model-shape", "llama-3-8b", "--dtype", "float32", "--memory", "4GiB")
        self.assertEqual(result.returncode, 5)
        self.assertRegex(result.stderr, r"\d+ bytes .* too many")


if __name__ == "__main__":
    unittest.main()
