#!/usr/bin/env python3
"""Trains the small tokenizers of the golden tests and writes them as Hugging Face directories under golden/.

Vocabularies are learned from the corpus' sentences; the pipelines (normalizer, pre-tokenizer, decoder, post-processor) are
those of the model families that are named. SentencePiece models are trained by sentencepiece itself; spm.json beside
their tokenizer.json keeps the pieces, scores and types that a GGUF file would hold.
Needs: tokenizers, sentencepiece, protobuf.
"""
import base64
import io
import json
import pathlib

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as spm_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import make_corpus

GOLDEN = pathlib.Path(__file__).parent / "golden"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CL100K = CONTRACTIONS + r"|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LEAD, TAIL = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (LEAD + UPPER + "*" + LOWER + "+" + CONTRACTIONS + "?|" + LEAD + UPPER + "+" + LOWER + "*" + CONTRACTIONS + r"?|\p{N}{1,3}|" + TAIL)
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
            r"\s*[\r\n]+|\s+(?!\S)|\s+"]
TEKKEN = LEAD + UPPER + "*" + LOWER + "+|" + LEAD + UPPER + "+" + LOWER + r"*|\p{N}|" + TAIL
TRAINING = (make_corpus.SENTENCES * 3 + make_corpus.EMOJI + make_corpus.COMBINING + make_corpus.SPACES + make_corpus.DIGITS)


def isolated(regex):
    return pre_tokenizers.Split(Regex(regex), "isolated")


def sequence(*steps):
    return pre_tokenizers.Sequence(list(steps))


def save(tokenizer, name, config, more=None):
    folder = GOLDEN / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=True, separators=(",", ":")) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1, ensure_ascii=True) + "\n")
    for file, value in (more or {}).items():
        (folder / file).write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


def byte_level(name, pre, special, config, normalizer=None, ignore_merges=False, bos=None, added=()):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=720, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens(list(added))
    if bos:
        template = processors.TemplateProcessing(f"{bos}:0 $A:0", f"{bos}:0 $A:0 {bos}:1 $B:1", [(bos, tokenizer.token_to_id(bos))])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    save(tokenizer, name, {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config})


def train_sentencepiece(kind, **more):
    model = io.BytesIO()
    sentences = [t for t in TRAINING if "\n" not in t and "\x00" not in t]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, model_type=kind, vocab_size=900, byte_fallback=True, character_coverage=0.98,
        hard_vocab_limit=False, num_threads=1, minloglevel=2, max_sentence_length=100000, **more)
    proto = spm_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto


def gguf_fields(proto, **more):
    return {"tokens": [p.piece for p in proto.pieces], "scores": [p.score for p in proto.pieces], "types": [p.type for p in proto.pieces], **more}


def merges_of(proto):
    """Every way to cut a piece into two pieces, best piece first (what conversions of SentencePiece BPE do)."""
    ids = {p.piece: i for i, p in enumerate(proto.pieces)}
    ranked = []
    for piece in proto.pieces:
        cuts = [(piece.piece[:i], piece.piece[i:]) for i in range(1, len(piece.piece))]
        cuts = [c for c in cuts if c[0] in ids and c[1] in ids]
        ranked += [(piece.score, *c) for c in sorted(cuts, key=lambda c: (ids[c[0]], ids[c[1]]))]
    return [m[1:] for m in sorted(ranked, key=lambda m: m[0], reverse=True)]


def sentencepiece_bpe(name, prefix, bos):
    proto = train_sentencepiece("bpe", normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=prefix,
                                split_digits=True, allow_whitespace_only_pieces=True, user_defined_symbols=["<tool>", "</tool>"])
    vocab = {p.piece: i for i, p in enumerate(proto.pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, merges_of(proto), unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ["<unk>", "<s>", "</s>"]])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ["<tool>", "</tool>"]])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", vocab["<s>"])])
    save(tokenizer, name, {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
                           "clean_up_tokenization_spaces": False},
         {"spm.json": gguf_fields(proto, add_space_prefix=prefix)})


def sentencepiece_unigram(name):
    rules = GOLDEN / "rules.tsv"  # the built-in rules make a 240 KB table
    pairs = [("ﬁ", "fi"), ("ﬂ", "fl"), ("½", "1⁄2"), ("e\u0301", "é"), ("\u3000", " "), ("\u00a0", " "), ("\t", " "), ("\n", " "), ("\r", " ")]
    pairs += [(chr(0xFF01 + i), chr(0x21 + i)) for i in range(94)]
    rules.write_text("".join(" ".join(f"{ord(c):X}" for c in a) + "\t" + " ".join(f"{ord(c):X}" for c in b) + "\n" for a, b in pairs))
    proto = train_sentencepiece("unigram", normalization_rule_tsv=str(rules), pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    rules.unlink()
    pieces = [(p.piece, p.score) for p in proto.pieces]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=True))
    charsmap = proto.normalizer_spec.precompiled_charsmap
    tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    tokenizer.decoder = decoders.Metaspace("▁", "always")
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ["<pad>", "</s>", "<unk>"]])
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    save(tokenizer, name, {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>",
                           "clean_up_tokenization_spaces": False},
         {"spm.json": gguf_fields(proto, charsmap=base64.b16encode(charsmap).decode(), add_space_prefix=True)})


def wordpiece(name):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(TRAINING, trainers.WordPieceTrainer(vocab_size=900, special_tokens=special, show_progress=False))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)])
    save(tokenizer, name, {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]",
                           "sep_token": "[SEP]", "clean_up_tokenization_spaces": False})


def main():
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    no_regex = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    eot = ["<|endoftext|>"]
    chatml = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    chatml_config = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    byte_level("gpt2", gpt2, eot, {"bos_token": eot[0], "eos_token": eot[0], "unk_token": eot[0]})
    byte_level("llama3", sequence(isolated(CL100K.format(digits=r"\p{N}{1,3}")), no_regex), ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"],
               {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}, ignore_merges=True, bos="<|begin_of_text|>")
    added = [AddedToken("<tool>", normalized=False), AddedToken("</tool>", normalized=False)]
    byte_level("qwen2", sequence(isolated(CL100K.format(digits=r"\p{N}")), no_regex), chatml, chatml_config, normalizers.NFC(), added=added)
    byte_level("smollm", sequence(pre_tokenizers.Digits(individual_digits=True), gpt2), chatml,
               {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"})
    byte_level("tekken", sequence(isolated(TEKKEN), no_regex), ["<s>", "</s>", "<unk>"], {"bos_token": "<s>", "eos_token": "</s>"},
               ignore_merges=True, bos="<s>")
    byte_level("dbrx", sequence(isolated(CL100K.format(digits=r"\p{N}{1,3}")), no_regex), chatml, chatml_config)
    byte_level("gpt-4o", sequence(isolated(O200K), no_regex), eot, {"bos_token": eot[0], "eos_token": eot[0]})
    byte_level("deepseek-v3", sequence(*map(isolated, DEEPSEEK), no_regex), ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"],
               {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>", "add_bos_token": True}, bos="<｜begin▁of▁sentence｜>")
    sentencepiece_bpe("spm-bpe", prefix=True, bos=True)
    sentencepiece_bpe("spm-bpe-no-prefix", prefix=False, bos=True)
    sentencepiece_unigram("spm-unigram")
    wordpiece("wordpiece")


if __name__ == "__main__":
    main()
