#!/usr/bin/env python3
"""Makes tests/engine/sampling/goldens/beams.json: what generate(num_beams=…) of Hugging Face transformers answers, for tables of logits by
the last token (the search alone) and for the small models of tests/engine/model/make_goldens.py. A case is kept only when noise on
the logits, far above the error of f32 arithmetic, leaves the answers as they are: where margins decide.

usage: make_beam_goldens.py [OUT.json]    needs torch, transformers 5, gguf
"""
import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PretrainedConfig, PreTrainedModel
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutput

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "model"))
import make_goldens  # noqa: E402

TABLES, TABLE_VOCAB, TABLE_CASES, NOISY_RUNS = 4, 24, 160, 3
FAMILIES, FAMILY_CASES = ["llama3", "qwen3", "gemma3"], 10


class Table(PreTrainedModel, GenerationMixin):
    config_class = PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, rows):
        super().__init__(PretrainedConfig(vocab_size=len(rows), num_hidden_layers=1, hidden_size=8, num_attention_heads=1, is_encoder_decoder=False))
        self.rows = torch.nn.Parameter(torch.tensor(rows, dtype=torch.float32))
        self.generation_config = GenerationConfig()

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        return {"input_ids": input_ids}

    def forward(self, input_ids, attention_mask=None, **_):
        return CausalLMOutput(logits=self.rows[input_ids])


class Noise(LogitsProcessor):
    def __init__(self, seed, size):
        self.random, self.size = torch.Generator().manual_seed(seed), size

    def __call__(self, _, scores):
        return scores + self.size * torch.randn(scores.shape, generator=self.random)


def answers(model, prompt, case, noise=None):
    settings = GenerationConfig(
        num_beams=case["beams"], num_return_sequences=case["n"], do_sample=False, max_new_tokens=case["max_tokens"],
        min_new_tokens=case["min_tokens"] or None, length_penalty=case["length_penalty"], early_stopping=case["early_stopping"],
        eos_token_id=case["eos"] or None, pad_token_id=0, use_cache=False, output_scores=True, return_dict_in_generate=True)
    with torch.no_grad():
        out = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), generation_config=settings,
                             logits_processor=LogitsProcessorList([noise] if noise else []))
    found = []
    for row in out.sequences[:, len(prompt):].tolist():
        ends = [i for i, token in enumerate(row) if token in case["eos"] and i >= case["min_tokens"]]
        found.append(row[:ends[0] + 1] if ends else row)
    return found, [float(f"{s:.7g}") for s in out.sequences_scores.tolist()]


def decided(model, prompt, case, noise):
    found, scores = answers(model, prompt, case)
    for seed in range(NOISY_RUNS):
        if answers(model, prompt, case, Noise(seed, noise))[0] != found:
            return None
    return {"prompt": prompt, **case, "answers": found, "scores": scores}


def draw_case(random, vocab, longest):
    beams = int(random.integers(2, 7))
    return {"beams": beams, "n": int(random.integers(1, beams + 1)), "max_tokens": int(random.integers(1, longest)),
            "min_tokens": 0, "length_penalty": float(random.choice([1.0, 1.0, 0.0, 0.5, 2.0, -1.0])),
            "early_stopping": [False, True, "never"][int(random.integers(3))],
            "eos": sorted(int(t) for t in random.choice(np.arange(1, vocab), int(random.integers(0, 4)), replace=False))}


def table_cases(random):
    tables, cases = [], []
    for t in range(TABLES):
        tables.append([[float(f"{x:.5g}") for x in row] for row in random.normal(0, 1.5, (TABLE_VOCAB, TABLE_VOCAB))])
    while len(cases) < TABLE_CASES:
        t = len(cases) % TABLES
        case = draw_case(random, TABLE_VOCAB, 24)
        case["min_tokens"] = int(random.integers(0, case["max_tokens"])) if random.integers(3) == 0 else 0
        kept = decided(Table(tables[t]), [int(random.integers(TABLE_VOCAB))], case, 1e-5)
        if kept:
            cases.append({"table": t, **kept})
    return tables, cases


def family_cases(random, name):
    config = make_goldens.CASES[name]
    with tempfile.TemporaryDirectory() as directory:
        model = make_goldens.make_model(pathlib.Path(directory), config)
    model.generation_config = GenerationConfig()
    cases, tried = [], 0
    while len(cases) < FAMILY_CASES:
        tried += 1
        prompt = [int(x) for x in random.integers(3, config["vocab_size"], int(random.integers(5, 40)))]
        case = draw_case(random, config["vocab_size"], 24)
        # These models like every token alike: of many ends one comes up.
        case["eos"] = sorted(int(x) for x in random.choice(np.arange(3, config["vocab_size"]), 24, replace=False))
        kept = decided(model, prompt, case, 1e-4)
        if kept:
            cases.append(kept)
    print(name, FAMILY_CASES, "cases of", tried, "lengths", [len(a) for c in cases for a in c["answers"]])
    return cases


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "goldens/beams.json"
    out.parent.mkdir(exist_ok=True)
    random = np.random.default_rng(11)
    tables, cases = table_cases(random)
    print(len(cases), "cases of tables, ended early:", sum(len(c["answers"][0]) < c["max_tokens"] for c in cases))
    families = {}
    make_goldens.modeling_gemma3.eager_attention_forward = make_goldens.functools.partial(
        make_goldens.EAGER_GEMMA3, softcap=make_goldens.CASES["gemma3"]["attn_logit_softcapping"])
    for name in FAMILIES:
        families[name] = family_cases(random, name)
    text = {"transformers": transformers.__version__, "tables": tables, "cases": cases, "families": families}
    out.write_text(json.dumps(text, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
