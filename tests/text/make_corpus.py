#!/usr/bin/env python3
"""Writes golden/corpus.json: the texts that every tokenizer is compared on.

An entry is a string, {"hex": bytes that are not UTF-8}, or {"units", "seed", "bytes"}: a long line, made by drawing units
with a linear congruential generator until it has that many bytes (the C++ test draws the same).
"""
import json
import pathlib
import random

SENTENCES = [
    "The quick brown fox doesn't jump over 13 lazy dogs; it's asleep, isn't it? I'll wait, they'VE said.",
    "Der Straßenbahnführer aß süße Äpfel, während es in Öhringen regnete.",
    "L'été dernier, où étaient les élèves ? Ça dépend « peut-être » de l'œuvre.",
    "El pingüino ñandú cruzó la calle. ¿Por qué? ¡Porque quiso!",
    "Zażółć gęślą jaźń, powiedział chrząszcz w Szczebrzeszynie.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "Щоб їжак з'їв яблуко, потрібен ґанок і трохи часу.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία· τι ώρα είναι;",
    "今天天气很好，我们去公园散步吧。明天可能会下雨！",
    "今日は天気がいいので、公園を散歩しましょう。カタカナとﾊﾝｶｸも。",
    "오늘은 날씨가 좋아서 공원을 산책합시다. 한글도 있습니다.",
    "वह कल दिल्ली से आएगा और किताबें लाएगा।",
    "আজ বৃষ্টি হচ্ছে, তাই আমরা বাড়িতে থাকব।",
    "இன்று மழை பெய்கிறது; நாங்கள் வீட்டில் இருப்போம்.",
    "วันนี้อากาศดีมาก เราไปเดินเล่นที่สวนกันเถอะ",
    "ວັນນີ້ອາກາດດີ ພວກເຮົາໄປຍ່າງຫຼິ້ນ",
    "ဒီနေ့ရာသီဥတုကောင်းတယ်။",
    "ថ្ងៃនេះអាកាសធាតុល្អណាស់។",
    "الطقس جميل اليوم، فلنذهب إلى الحديقة. كم الساعة؟ ١٢٣٤٥",
    "امروز هوا خوب است؛ بیایید به پارک برویم. می‌خواهم ۱۲۳",
    "היום מזג האוויר יפה, בוא נלך לפארק. שָׁלוֹם",
    "ამინდი კარგია დღეს, წავიდეთ პარკში.",
    "Եղանակն այսօր լավ է, գնանք այգի։",
    "ዛሬ አየሩ ጥሩ ነው፣ ወደ መናፈሻ እንሂድ።",
    "Hôm nay trời đẹp quá, chúng ta đi dạo công viên nhé. Đường phố đông người.",
    "Bugün hava güzel, İstanbul'da ığdır ağacı gördüm.",
    "Leo hali ya hewa ni nzuri, twende bustanini.",
    "བཀྲ་ཤིས་བདེ་ལེགས། དེ་རིང་གནམ་གཤིས་ཡག་པོ་འདུག",
    "def f(x: int) -> str:\n\treturn f\"{x:>08}\" if x != 0 else 'none'  # 100%\n\n\nclass A(B): pass\n",
    "for (size_t i = 0; i < n; ++i) {\n    sum += a[i] * b[i];   // O(n)\n}\n",
    "{\"key\": [1, 2.5e-10, null, true], \"uri\": \"https://example.org/a?b=c&d=%20#frag\"}",
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n## Title\n\n* item\n  * nested\n\n```sh\n$ ls -la | grep '^d'\n```",
    "SHOUTING camelCase snake_case kebab-case XMLHttpRequest iPhone15ProMax v1.2.3-rc4",
    "¼ ½ ² ³ ①②③ Ⅷ ﬁne ﬂow ｆｕｌｌｗｉｄｔｈ １２３ ㎏ ㍿ ℌ ∑∫√∞ ≤≥≠ →⇒ €£¥₿ ©®™",
]
EMOJI = [
    "👨‍👩‍👧‍👦 family", "👩🏽‍🚀🧑‍⚕️ 🏳️‍🌈 🏴‍☠️", "🇺🇦🇯🇵🇧🇷🇩🇪", "❤️ vs ❤ ☺︎ ☺️", "👍🏻👍🏿👍", "1️⃣2️⃣#️⃣*️⃣", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "😀😃😄😁😆",
    "a\u200db\u200cc\u200d", "🤦🏼‍♂️!🤷‍♀️?",
]
COMBINING = [
    "e\u0301 \u00e9 E\u0301 \u00c9", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!", "\u0301\u0302 alone", "각 \u1100\u1161\u11a8",
    "ṩ s\u0323\u0307 s\u0307\u0323", "Å \u212b A\u030a", "नि नी क्ष क्‍ष क्‌ष", "ﷺ ﷽", "q\u0307\u0323 q\u0323\u0307",
]
CONTROL = [
    "\x00", "a\x00b", "\x01\x02\x03\x1f\x7f", "bell\x07 back\x08 esc\x1b[31mred\x1b[0m", "\u200b\u200e\u200f\u202a\u202e\u2060\ufeff",
    "\ufeffBOM first", "\u0085next\u2028line\u2029par", "\ufffd", "\uffff\ufffe", "\U0010ffff\U000e0001", "\u061c\u2066\u2069", "\x0b\x0c\x1c\x1d\x1e\x1f",
]
SPACES = [
    "", " ", "  ", "   a", "a   ", "a    b     c      d", "\n", "\n\n\n", "\r\n\r\n", "\t\t\tx", " \n \n  \n", "a\n b\n  c\n   d", "\u00a0\u00a0x\u00a0",
    "\u2003\u2009wide\u3000全角", "x \t \n y", "   \n\n   x", "word\t\tword", " ▁ ▁▁ a▁b", "\n x", "  \r  \r\n  ", " leading", "trailing ", "a \u0301b",
]
DIGITS = [
    "1", "12", "123", "1234", "12345", "1234567890" * 3, "0.1 0.12 0.123 1,234,567.89", "٣٤٥ ३४५ ๓๔๕ ３４５ 𝟙𝟚𝟛", "a1b22c333d4444", "3.14159265358979",
    "2026-11-21T10:00:00Z", "+1 (555) 010-9999", "0x1F 0b1010 1e-9", "½1¾2", "1'000'000", "²³¹",
]
SPECIALS = [
    "<s>hello</s>", "<|im_start|>user\nhi<|im_end|>\n", "a<|endoftext|>b", "<|begin_of_text|>x", "<s><s>twice", " <s> spaced </s> ", "<unk>", "<pad><pad>", "<0x0A><0xE2>",
    "<|im_start|", "x<tool>y</tool>z", "<|im_start|><|im_start|>", "</s>", "<s>", "<|IM_START|>", "Ġ Ċ ĠĠ", "▁", "[CLS] [SEP] [MASK]",
]
INVALID = [
    "ff", "61ff62", "c3", "e282", "f09f98", "c080", "eda080", "f4908080", "6162e28261", "80808080", "e2e2e2ac", "f0f0f0f0", "e282ac80", "fffe0041", "20c320", "f09f9861f09f9880",
    "c3a9c3", "eda0bdedb880", "4142c343",
]
RANGES = [
    (0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x4FF), (0x590, 0x6FF), (0x900, 0xDFF), (0xE00, 0xEFF), (0x1100, 0x11FF), (0x1E00, 0x1FFF),
    (0x2000, 0x206F), (0x20A0, 0x27BF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xFB00, 0xFEFF), (0xFF00, 0xFFEF),
    (0x10330, 0x1034A), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0x00, 0x1F), (0x30, 0x39), (0x20, 0x20),
]


def random_texts(count):
    rng = random.Random(20261121)
    words = [w for s in SENTENCES for w in s.split()]
    texts = []
    for i in range(count):
        parts = []
        for _ in range(rng.randint(1, 12)):
            kind = rng.randrange(7)
            if kind < 3:
                low, high = rng.choice(RANGES)
                parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 5))))
            elif kind < 5:
                parts.append(rng.choice(words))
            elif kind == 5:
                parts.append(rng.choice([" ", "  ", "\n", "\t", "\r\n", "\n\n", "   ", "\u3000", "\u00a0"]))
            else:
                parts.append(str(rng.randrange(10 ** rng.randint(1, 9))))
            if rng.random() < 0.4:
                parts.append(" ")
        texts.append("".join(parts))
    return texts


def long_lines():
    words = [w + " " for s in SENTENCES[:12] for w in s.split()]
    units = [["a"], [" "], ["\n"], ["1", "2", "3", "4", "5", "6", "7", "8", "9", "0"], ["今", "天", "気", "は", "良", "い"], EMOJI[:2],
             ["e\u0301", "o\u0302"], words, list("abcdefghijklmnopqrstuvwxyz"), ["שלום ", "مرحبا "], ["ab ", "  ", "\t", "x\n"]]
    return [{"units": u, "seed": 7 + i, "bytes": 200_000} for i, u in enumerate(units)]


def expand(entry):
    """The bytes of an entry."""
    if isinstance(entry, str):
        return entry.encode()
    if "hex" in entry:
        return bytes.fromhex(entry["hex"])
    units = [u.encode() for u in entry["units"]]
    state, out = entry["seed"], bytearray()
    while len(out) < entry["bytes"]:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out += units[(state >> 33) % len(units)]
    return bytes(out)


def corpus():
    plain = SENTENCES + EMOJI + COMBINING + CONTROL + SPACES + DIGITS + SPECIALS
    return plain + [{"hex": h} for h in INVALID] + random_texts(150) + long_lines()


if __name__ == "__main__":
    path = pathlib.Path(__file__).parent / "golden" / "corpus.json"
    path.write_text("[\n" + ",\n".join(json.dumps(e, ensure_ascii=True) for e in corpus()) + "\n]\n")
    print(f"{path}: {len(corpus())} texts, {path.stat().st_size} bytes")
