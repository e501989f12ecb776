#!/usr/bin/env python3
"""Records token ids from Hugging Face `tokenizers` into tests/text/golden_ids.json.

usage: tests/text/make_golden.py DATA_FOLDER   (needs the Python packages `tokenizers` and
`sentencepiece`)

DATA_FOLDER is what MILLRACE_DATA names: its tokenizers/*/tokenizer.json are read. The file also
records the words that Llama-3's pre-tokenizer cuts each text into, because no Llama-3 vocabulary is
there to encode with.
"""
import json
import os
import sys

import sentencepiece
from tokenizers import Regex, Tokenizer, pre_tokenizers

TEXTS = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\n \n\n  x", "a", " a", "  a", "a ",
    "Hello world", " Hello, world!", "The quick brown fox jumps over the lazy dog.",
    "I've been 'told he's there, 'RE you sure? 'M not sure I'll make it, 'D you like some tea? "
    "We'Ve a'lL y'all",
    "it'\u017f '\u017fa 's 'S x's' 'T't '", "''''''```````\"\"\"\"......!!!!!!??????", "don't DON'T Don\u2019t",
    "0 1 12 123 1234 12345 1,234,567.89 3.14 2\u00b2 \u00bd \u2167 \u0664\u0665\u0666 \u4e09",
    "x=1;y=22;z=333;w=4444", "a1b22c333", "  12  345   6789",
    "def f(x):\n    if x > 0:\n        return x\n\n\n    return -x  # done\n",
    "\tint main() {\r\n\t\treturn 0;\r\n\t}\r\n", "trailing spaces   ", "   leading", "mid   dle",
    "tabs\t\tand \t mixed \n\t lines\n \n", "word\n\nword \n \n word",
    "\u00a0nbsp\u00a0\u00a0x\u3000\u3000ideographic\u2003em\u2028line\u2029para\u0085nel\u200bzero\ufeffbom",
    "\u00c4pfel \u00fcber na\u00efve \u0153uvre \u00c5ngstr\u00f6m \u1ebd",
    "A\u0308pfel e\u0301\u0323 a\u0323\u0301 n\u0303 o\u0328\u0304 \u1e9b\u0323 \u212b \u2126 \ufb01",
    "\u1112\u1161\u11ab\u1100\u1173\u11af \ud55c\uae00 \u1100\uac00\u11a8",
    "\u0915\u094d\u0937\u093f \u0928\u092e\u0938\u094d\u0924\u0947 \u09a8\u09cb \u0b9a\u0bc6\u0bbe",
    "\u1780\u17b6\u1793\u17cb\u178f\u17c2\u1796\u17b7\u179f\u17c1\u179f", "C\u1eeda Vi\u1ec7t", "\u0e44\u0e17\u0e22\u0e19\u0e35\u0e49\u0e14\u0e35",
    "\u043d\u0435\u0449\u043e \u043d\u0430 \u0411\u044a\u043b\u0433\u0430\u0440\u0441\u043a\u0438", "\u05e9\u05c1\u05dc\u05d5\u05b9\u05dd \u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627",
    "\u6211\u60f3\u5728apple\u5de5\u4f5c1314151\u5929\uff5e", "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3002\u30ab\u30bf\u30ab\u30ca\u3001\u304b\u3099",
    "\U0001f680 (normal) \U0001f636\u200d\U0001f32b\ufe0f (multiple) \u2705 \U0001f999\U0001f999",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd", "\U0001d54f\U0001d7d8 \U00010400\U00010428 \U000e0041 \U0010ffff",
    "\x00\x01\x1f\x7f\u0080\u009f control", "-=_+[]{}|;:,.<>/?`~!@#$%^&*()\\", "$100 \u20ac200 \u00a3300",
    "https://example.com/a?b=c&d=e#f user@example.org", "snake_case camelCase PascalCase SCREAMING",
    "a\u0300\u0301\u0302\u0303b", "\u0300alone", "x \u0301y", "1\u0301 \u0660\u0301",
    "!hello ?world #tag @name (paren) [brack]", "!\n!\r\n? \n.", "...\n\n\n...", " .\n .\r\n", "#\n", "?!\t?!",
    "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> \n<|endoftext|><|endoftext|>", "<|endoftext", "<|im_start|>user\nHi<|im_end|>\n",
    "<s>", "</s>", "a<s>b</s> c", "<unk> <s> x", "<tool_call>{}</tool_call>", "<|padding|>x <|fim_prefix|>",
    "x" + " " * 2 + "y" + " " * 3 + "z" + " " * 7 + "w" + " " * 24 + "v" + " " * 25 + "u" + " " * 60,
    "\n" * 5 + " " * 5 + "\n" * 5, "ab" * 40, "a" * 100, "1" * 50, "-" * 70, "=" * 33 + "\n" + "-" * 33,
    "\u0130stanbul \u01c5 \u02b0 \u2160 \u3007 \u00aa\u00ba \u2071\u207f", "Zo\u00eb's caf\u00e9\u2014r\u00e9sum\u00e9 \u201cquoted\u201d \u2018single\u2019 \u2026",
    "[INST] Hi [/INST] Hello </s><s>[INST] Bye [/INST]", "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST]",
]

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def main():
    folder = os.path.join(sys.argv[1], "tokenizers")
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    golden = {"texts": TEXTS, "llama3_words": [], "ids": {}}
    for text in TEXTS:
        words = [word for word, _ in split.pre_tokenize_str(text)]
        golden["llama3_words"].append([len(word.encode()) for word in words])
    for name in ("gpt2", "gpt-neox", "qwen2_5", "llama2"):
        tokenizer = Tokenizer.from_file(os.path.join(folder, name, "tokenizer.json"))
        golden["ids"][name] = [tokenizer.encode(text).ids for text in TEXTS]
    llama2 = sentencepiece.SentencePieceProcessor(os.path.join(folder, "llama2/tokenizer.model"))
    golden["ids"]["sentencepiece"] = [[llama2.bos_id()] + llama2.encode(text) for text in TEXTS]
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden_ids.json")
    with open(out, "w", encoding="ascii") as file:
        file.write("{\n")
        file.write(' "texts": [\n' + ",\n".join("  " + json.dumps(t) for t in TEXTS) + "\n ],\n")
        file.write(' "llama3_words": ' + json.dumps(golden["llama3_words"]) + ",\n")
        rows = (f'  "{k}": ' + json.dumps(v, separators=(",", ":")) for k, v in golden["ids"].items())
        file.write(' "ids": {\n' + ",\n".join(rows) + "\n }\n}\n")


if __name__ == "__main__":
    main()
