#!/usr/bin/env python3
"""`baton bench` beside `vllm bench serve` and guidellm on one server: the same prompts, the same load, in turns. For every
figure that a tool shares with ours: each one's median over the rounds, and whether what lies between its rounds' least and
most meets what lies between ours, or the medians are within --near.

  beside_tools.py --python VENV/bin/python [--guidellm VENV/bin/guidellm] [--model MODEL | --stub] [--rounds 5] [--json FILE]

--python has `vllm` (a wheel of the CPU build is enough, without most of its dependencies) with pandas and aiohttp. --stub: in
place of a cluster, timed_stub.py, whose times are known.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
from stall import busy_seconds, children_seconds, wait_ready  # noqa: E402

WORDS = ("river stone garden winter letter silver market window shadow forest bridge candle engine summer harbor "
         "island copper meadow ticket planet").split()
VLLM = ("import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
        "from vllm.utils.argparse_utils import FlexibleArgumentParser as P; p = P(); add_cli_args(p); main(p.parse_args())")
FIGURES = ["completed", "total_input_tokens", "total_output_tokens", "request_throughput", "output_throughput",
           "max_output_tokens_per_s", "max_concurrent_requests",
           *(f"{which}_{what}_ms" for what in ("ttft", "tpot", "itl", "e2el") for which in ("mean", "median", "p99"))]


def write_prompts(path, requests, words, tokens, seed):
    draw = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(requests):
            text = " ".join(draw.choice(WORDS) for _ in range(words))
            file.write(json.dumps({"prompt": text, "output_tokens": tokens, "output_tokens_count": tokens}) + "\n")


def load_of(o):
    """In the words that `vllm bench serve` and `baton bench` share."""
    load = ["--max-concurrency", o.concurrency] if not o.rate else ["--request-rate", o.rate, "--burstiness", 1e6]
    return [*load, *(["--backend", "openai-chat", "--endpoint", "/v1/chat/completions"] if o.chat else [])]


def by_baton(o, server, prompts, folder):
    run(o, [o.baton, "bench", "--base-url", server.url, "--model", server.name, "--dataset-name", "custom", "--dataset-path", prompts,
            "--num-prompts", o.requests, *load_of(o), "--ignore-eos", "--temperature", 0, "--disable-tqdm", "--save-result",
            "--percentile-metrics", "ttft,tpot,itl,e2el", "--result-dir", folder, "--result-filename", "baton.json"])
    return json.loads((folder / "baton.json").read_text().splitlines()[-1])


def by_vllm(o, server, prompts, folder):
    run(o, [o.python, "-c", VLLM, "--base-url", server.url, "--model", server.name, "--tokenizer", o.tokenizer, "--dataset-name", "custom",
            "--dataset-path", prompts, "--skip-chat-template", "--disable-shuffle", "--num-prompts", o.requests, *load_of(o), "--ignore-eos",
            "--temperature", 0, "--disable-tqdm", "--save-result", "--percentile-metrics", "ttft,tpot,itl,e2el",
            "--custom-output-len", -1, "--result-dir", folder, "--result-filename", "vllm.json"])
    return json.loads((folder / "vllm.json").read_text())


def by_guidellm(o, server, prompts, folder):
    profile = f"kind=concurrent,streams={o.concurrency}" if not o.rate else f"kind=constant,rate={o.rate}"
    run(o, [o.guidellm, "run", "--backend", f"kind=openai_http,target={server.url},model={server.name},"
            f"request_format=/v1/{'chat/' if o.chat else ''}completions",
            "--data", f"kind=json_file,path={prompts}", "--profile", profile, "--constraint", f"kind=max_requests,count={o.requests}",
            "--tokenizer", f"kind=hf_auto,model={o.tokenizer}", "--output", f"kind=json,path={folder}/guidellm.json", "--disable-console"])
    seen = json.loads((folder / "guidellm.json").read_text())["benchmarks"][0]
    metrics = seen["metrics"]

    def ms(name, key, scale=1):
        d = metrics[name]["successful"]
        return {f"mean_{key}_ms": d["mean"] * scale, f"median_{key}_ms": d["median"] * scale,
                f"p99_{key}_ms": d["percentiles"]["p99"] * scale}

    out, prompt = (metrics[f"{which}_token_count"]["successful"]["total_sum"] for which in ("output", "prompt"))
    # guidellm's inter token latency is (last token - first) / (tokens - 1): what others call TPOT.
    return {"completed": metrics["request_totals"]["successful"], "total_input_tokens": prompt, "total_output_tokens": out,
            "request_throughput": metrics["requests_per_second"]["successful"]["mean"],
            "output_throughput": metrics["output_tokens_per_second"]["successful"]["mean"], **ms("time_to_first_token_ms", "ttft"), **ms("inter_token_latency_ms", "tpot"),
            **ms("request_latency", "e2el", 1e3)}


def run(o, command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=o.limit, check=False)
    if done.returncode:
        raise SystemExit(f"{command[:3]} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


class Server:
    """A cluster of `baton serve`, or the stub; the address and the name of its model."""

    def __init__(self, o):
        if o.stub:
            self.process = subprocess.Popen([sys.executable, HERE / "timed_stub.py"], stdout=subprocess.PIPE, text=True)
            self.url, self.name = f"http://127.0.0.1:{self.process.stdout.readline().split()[1]}", "stub"
            return
        command = [o.baton, "serve", o.model, "--port", str(o.port), "--no-enable-prefix-caching", "--prefill", "1", "--decode", "1",
                   "--threads", "1"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{o.port}"
        self.name = wait_ready(self.url, self.process)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def beside(ours, theirs, near):
    """Our median over theirs, and whether the two tools' rounds meet."""
    a, b = statistics.median(ours), statistics.median(theirs)
    ratio = a / b if b else 1 if a == b else float("inf")
    return ratio, (min(ours) <= max(theirs) and min(theirs) <= max(ours)) or abs(ratio - 1) <= near


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--python", help="with vllm")
    p.add_argument("--guidellm", help="the command")
    p.add_argument("--baton", default=str(ROOT / "build" / "baton"))
    p.add_argument("--model")
    p.add_argument("--stub", action="store_true")
    p.add_argument("--chat", action="store_true", help="chats in place of completions; not of the stub")
    p.add_argument("--tokenizer", default=str(ROOT / "tests" / "data" / "tiny-llama"), help="of the other tools; counts nothing here")
    p.add_argument("--concurrency", type=int, default=4)
    p.add_argument("--rate", type=float, default=0, help="requests per second at even distances, in place of --concurrency")
    p.add_argument("--requests", type=int, default=60)
    p.add_argument("--words", type=int, default=40)
    p.add_argument("--tokens", type=int, default=32)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--near", type=float, default=0.03)
    p.add_argument("--port", type=int, default=18441)
    p.add_argument("--limit", type=float, default=600, help="seconds that one run may take")
    p.add_argument("--json")
    o = p.parse_args()
    tools = {"baton": by_baton, **({"vllm": by_vllm} if o.python else {}), **({"guidellm": by_guidellm} if o.guidellm else {})}
    runs = {name: [] for name in tools}
    server = Server(o)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            before = busy_seconds()
            for i in range(o.rounds):
                order = list(tools)[i % len(tools):] + list(tools)[:i % len(tools)]
                for tool in order:
                    write_prompts(folder / "prompts.jsonl", o.requests, o.words, o.tokens, 100 * i + len(runs[tool]))
                    runs[tool].append(tools[tool](o, server, folder / "prompts.jsonl", folder))
                print(f"round {i + 1} of {o.rounds}: " + ", ".join(f"{t} {runs[t][-1]['output_throughput']:.1f} tok/s" for t in order), flush=True)
    finally:
        server.stop()
    foreign = busy_seconds() - before - children_seconds()
    print(f"CPU seconds of others meanwhile: {foreign:.0f}\n\n{'figure':<24}{'baton':>10}" + "".join(f"{t:>12}{'ratio':>8}  noise" for t in list(tools)[1:]))
    rows = []
    for figure in FIGURES:
        ours = [r[figure] for r in runs["baton"]]
        line, row = f"{figure:<24}{statistics.median(ours):>10.2f}", {"figure": figure, "baton": ours}
        for tool in list(tools)[1:]:
            theirs = [r[figure] for r in runs[tool] if figure in r]
            if not theirs:
                line += f"{'-':>12}{'-':>8}  {'-':<5}"
                continue
            ratio, within = beside(ours, theirs, o.near)
            line += f"{statistics.median(theirs):>12.2f}{ratio:>8.3f}  {'yes' if within else 'NO':<5}"
            row[tool] = theirs
        print(line)
        rows.append(row)
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps({"options": vars(o), "cpu_seconds_of_others": foreign, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
