#!/usr/bin/env python3
"""Makes tests/data/tiny-llama: a model directory without weights (served with --load-format dummy).

usage: make_tiny_llama.py [DIRECTORY]    needs the package `tokenizers`
"""
import json
import pathlib
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = """The runner takes the baton and runs; the next runner waits, reaches back, and the baton changes hands at full speed.
Nobody drops it. One two three four five six seven eight nine ten, 1 2 3 4 5 6 7 8 9 10, 2024 2025 2026.
for (int i = 0; i < n; ++i) { sum += values[i]; }   return sum;
Ein Läufer übergibt den Stab. Le coureur passe le témoin. El corredor entrega el testigo. 走る人がバトンを渡す。 Бегун передаёт палочку.
Question and answer, system and user and assistant, message after message, token after token, block after block.
""" * 4
TEMPLATE = (
    "{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}")
VOCAB = 640


def main():
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "tiny-llama")
    out.mkdir(parents=True, exist_ok=True)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(TEXT.splitlines(), trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in special])
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    vocab = tokenizer.get_vocab_size()

    def write(name, value):
        (out / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "bos_token": "<|endoftext|>",
                                    "model_max_length": 2048, "chat_template": TEMPLATE})
    write("config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 256,
                          "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16 * 4,
                          "vocab_size": vocab, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                          "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 2,
                          "torch_dtype": "float32"})
    write("generation_config.json", {"eos_token_id": [2], "bos_token_id": 0})


if __name__ == "__main__":
    main()
