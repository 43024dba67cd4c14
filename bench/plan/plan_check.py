#!/usr/bin/env python3
"""`baton plan` beside what workers take: models of several families × layouts, random weights. For each: weights, workspace and
KV to the byte; the resident memory of its workers once every KV block has been written, beside the plan (goal: within 3 % and
64 MiB a process; landing slots and what grammars keep of a tokenizer of as many tokens are planned); and the error of planned TTFT and TPOT, as limits and calibrated by half of the requests.

  plan_check.py [--baton build/baton] [--only MODEL] [--memory-bandwidth GB/S] [--compute TFLOP/S] [--json FILE]

With SmolLM2 (scripts/fetch_model.sh) it checks that as well: real weights, in four bits.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
sys.path.insert(0, str(ROOT / "tests/cluster"))
import made_tokenizer  # noqa: E402
from stall import wait_ready  # noqa: E402

# hidden, inner, layers, heads, KV heads, head size, words: published shapes, with fewer layers where one would take minutes
MODELS = {
    "llama-3.2-1b/2": ("llama", 2048, 8192, 2, 32, 8, 64, 128256),
    "TinyLlama/2": ("llama", 2048, 5632, 2, 32, 4, 64, 32000),
    "qwen2.5-0.5b/8": ("qwen2", 896, 4864, 8, 14, 2, 64, 151936),
    "qwen3-0.6b/6": ("qwen3", 1024, 3072, 6, 16, 8, 128, 151936),
    "mistral-7b/2": ("mistral", 4096, 14336, 2, 32, 8, 128, 32768),
    "gemma-3-1b/4": ("gemma3_text", 1152, 6912, 4, 4, 2, 256, 262144),
}
LAYOUTS = {
    "1 worker": ([], 1),
    "TP 2": (["--tensor-parallel-size", 2], 1),
    "PP 2": (["--pipeline-parallel-size", 2], 1),
    "1P + 1D": (["--prefill", 1, "--decode", 1], 2),
}
SMOLLM2 = pathlib.Path(subprocess.check_output([ROOT / "scripts/fetch_model.sh", "--path"], text=True).strip())
LENGTH, SEQUENCES, KV = 512, 8, 16 << 20
# Bytes that are text each: others can be parts of characters, and no chunk would come of them.
WITH_TEXT = json.dumps({"allowed_token_ids": list(range(40, 120))})
SAME = ["--max-model-len", LENGTH, "--max-num-seqs", SEQUENCES, "--max-num-batched-tokens", 128,
        "--kv-cache-memory", KV]


def write_model(folder, shape):
    family, hidden, inner, layers, heads, kv_heads, head, words = shape
    golden = {"gemma3_text": "gemma3", "llama": "llama3"}.get(family, family)
    config = json.loads((ROOT / "tests/engine/model/goldens" / golden / "config.json").read_text())
    config.update(hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
                  num_key_value_heads=kv_heads, head_dim=head, vocab_size=words, max_position_embeddings=4096)
    if isinstance(config.get("layer_types"), list):
        config["layer_types"] = [config["layer_types"][i % len(config["layer_types"])] for i in range(layers)]
    if config.get("sliding_window"):
        config["sliding_window"] = 512
    for key in ("query_pre_attn_scalar",):
        if key in config:
            config[key] = head
    for name in ("tokenizer_config.json", "generation_config.json"):
        shutil.copy(ROOT / "tests/data/tiny-llama" / name, folder)
    made_tokenizer.write(folder / "tokenizer.json", ROOT / "tests/data/tiny-llama/tokenizer.json", words)
    (folder / "config.json").write_text(json.dumps(config))


def workers_of(server):
    """Process numbers of the workers that a `baton serve` started, ranks of their own included."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
    below, found = [server], []
    while below:
        parent = below.pop()
        for child, its in parents.items():
            if its == parent:
                below.append(child)
                words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                if b"worker" in words or b"rank" in words:
                    found.append(child)
    return found


def resident(pid):
    return int(re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) * 1024


def one(o, folder, model, layout, count):
    """`folder`: for what is written."""
    rank_flags = SAME + (["--load-format", "dummy"] if model == folder else []) + ([] if count > 1 else layout)
    planned = json.loads(subprocess.run([o.baton, "plan", model, *map(str, rank_flags), "--format", "json"], check=True,
                                        capture_output=True, text=True).stdout)
    log = folder / "log"
    with open(log, "w") as out:
        server = subprocess.Popen([o.baton, "serve", model, "--port", str(o.port), "--threads", "1",
                                   *map(str, rank_flags + (layout if count > 1 else []))],
                                  stdout=out, stderr=out)
    try:
        served = wait_ready(f"http://127.0.0.1:{o.port}", server)
        # Distinct prompts, of which all KV blocks are filled more than once.
        prompts = max(16, 3 * planned["kv_tokens"] // 512 + 1) if o.fill else 16
        bench = [o.baton, "bench", "--port", o.port, "--model", served, "--random-vocab-size", 300, "--random-input-len", 240,
                 "--random-output-len", 32, "--ignore-eos", "--extra-body", WITH_TEXT, "--num-prompts", prompts, "--max-concurrency", 4, "--disable-tqdm",
                 "--save-detailed", "--result-dir", folder, "--result-filename", "bench.json"]
        subprocess.run([str(x) for x in bench], check=True, stdout=subprocess.DEVNULL)
        pids = workers_of(server.pid)
        rss = sum(resident(pid) for pid in pids)
    finally:
        server.terminate()
        server.wait()
    text = log.read_text()
    exact = all(int(kv) == planned["kv_bytes"] for kv in re.findall(r"bytes taken by KV of all ranks (\d+)", text))
    for rank in planned["ranks"]:
        want = ", ".join(f"{kind} {rank['weights'][kind]}" for kind in ("embedding", "attention", "mlp", "norms", "head"))
        exact = exact and f"{want}, workspace {rank['workspace']}" in text
    calibrated = subprocess.run([o.baton, "plan", model, *map(str, rank_flags), "--memory-bandwidth", str(o.memory_bandwidth),
                                 "--compute", str(o.compute), "--isl", "240", "--osl", "32", "--calibrate", folder / "bench.json", "--calibrated-workers", str(count)],
                                capture_output=True, text=True, check=True).stdout
    error = re.search(r"TTFT (\d+) % before, (\d+) % after; TPOT (\d+) % before, (\d+) % after", calibrated)
    landing = 2 * planned["landing_bytes"] if count > 1 else 0  # both map it
    return {"planned": (planned["total_bytes"] + planned["text_bytes"]) * count + landing, "resident": rss, "processes": len(pids), "exact": exact,
            "kv_tokens": planned["kv_tokens"], "ttft_error": [int(error[1]), int(error[2])], "tpot_error": [int(error[3]), int(error[4])]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--baton", default=str(ROOT / "build/baton"))
    p.add_argument("--only", default="")
    p.add_argument("--memory-bandwidth", type=float, default=10, help="GB/s of one rank on this machine")
    p.add_argument("--compute", type=float, default=0.05, help="TFLOP/s of one rank")
    p.add_argument("--port", type=int, default=18460)
    p.add_argument("--no-fill", dest="fill", action="store_false", help="few requests: the resident memory says nothing then")
    p.add_argument("--json")
    o = p.parse_args()
    rows = []
    print(f"{'model':<16}{'layout':<10}{'bytes':>6}{'planned MiB':>12}{'resident':>10}{'over':>7}{'goal':>7}{'  TTFT error':>16}{'TPOT error':>14}")
    for model, shape in [*MODELS.items(), *([("SmolLM2-135M", None)] if SMOLLM2.exists() else [])]:
        if o.only not in model:
            continue
        for layout, (flags, count) in LAYOUTS.items():
            if not shape and layout == "TP 2":
                continue  # SmolLM2 has 9 heads
            with tempfile.TemporaryDirectory(prefix="baton-plan-") as name:
                folder = pathlib.Path(name)
                if shape:
                    write_model(folder, shape)
                row = one(o, folder, folder if shape else SMOLLM2, flags, count)
            over = (row["resident"] - row["planned"]) / 2**20
            goal = 0.03 * row["planned"] / 2**20 + 64 * row["processes"]
            row.update(model=model, layout=layout, over_mib=over, goal_mib=goal, load=os.getloadavg()[0])
            print(f"{model:<16}{layout:<10}{'same' if row['exact'] else 'OTHER':>6}{row['planned'] / 2**20:>12.1f}{row['resident'] / 2**20:>10.1f}"
                  f"{over:>7.1f}{goal:>7.1f}{'!' if abs(over) > goal else ' '}"
                  f"{row['ttft_error'][0]:>8} →{row['ttft_error'][1]:>3} %{row['tpot_error'][0]:>7} →{row['tpot_error'][1]:>3} %", flush=True)
            rows.append(row)
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
