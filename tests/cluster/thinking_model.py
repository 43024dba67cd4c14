"""The tiny model with the tokens <think> and </think>, and a chat template that knows thoughts."""
import contextlib
import json
import pathlib
import shutil
import tempfile

from harness import TINY

TEMPLATE = """{% for m in messages %}[{{ m.role }}]{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}
{% endfor %}{% if tools %}Write <tool_call>.{% endif %}{% if add_generation_prompt %}[assistant]{% if opened %}<think>
{% elif enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""


@contextlib.contextmanager
def thinking_model(more=(), special=()):
    """The model's folder; `more`: further tokens, `special`: those of them that are no text."""
    with tempfile.TemporaryDirectory(prefix="baton-thinking-") as folder:
        model = pathlib.Path(folder, "tiny-thinker")
        shutil.copytree(TINY, model)
        tokenizer = json.loads((model / "tokenizer.json").read_text())
        config = json.loads((model / "config.json").read_text())
        settings = json.loads((model / "tokenizer_config.json").read_text())
        for tag in ("<think>", "</think>", *more):
            tokenizer["added_tokens"].append({"id": config["vocab_size"], "content": tag, "single_word": False, "lstrip": False,
                                              "rstrip": False, "normalized": False, "special": tag in special})
            config["vocab_size"] += 1
        settings["chat_template"] = TEMPLATE
        (model / "tokenizer.json").write_text(json.dumps(tokenizer))
        (model / "config.json").write_text(json.dumps(config))
        (model / "tokenizer_config.json").write_text(json.dumps(settings))
        yield model
