#!/usr/bin/env python3
"""Writes the seeds of the tokenizer.json fuzzer: one small file of each arrangement we read."""
import json
import os

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fuzz/corpus/tokenizer_json")
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


def added(token_id, content, **flags):
    return {"id": token_id, "content": content, "special": True, **flags}


def template(token, token_id):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": token, "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}}}


def bpe(tokens, merges, **more):
    return {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges, **more}


def byte_level(regex=None, **more):
    pre = BYTE_LEVEL if regex is None else {
        "type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
            {**BYTE_LEVEL, "use_regex": False}]}
    tokens = ["<|endoftext|>", "H", "e", "l", "o", "\u0120", "1", "2", "\u010a", "\u00c3", "\u00af",
              "He", "ll", "llo", "Hello", "12"]
    return {"version": "1.0", "added_tokens": [added(0, "<|endoftext|>")], "pre_tokenizer": pre,
            "model": bpe(tokens, ["H e", "l l", "ll o", "He llo", "1 2"]), **more}


def sentencepiece(**more):
    tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "<0xC3>", "\u2581", "H", "e", "l", "o", "ll",
              "\u2581H", "llo", "\u2581He", "\u2581Hello"]
    merges = [["l", "l"], ["\u2581", "H"], ["ll", "o"], ["\u2581H", "e"], ["\u2581He", "llo"]]
    return {"added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
            "post_processor": template("<s>", 1),
            "model": bpe(tokens, merges, byte_fallback=True, unk_token="<unk>"), **more}


def main():
    mark = "\u2581"
    flags = {"special": False, "normalized": True, "lstrip": True, "rstrip": True,
             "single_word": True}
    seeds = {
        "gpt2": byte_level(),
        "neox": byte_level(normalizer={"type": "NFC"},
                           added_tokens=[added(0, "<|endoftext|>"), added(16, "  ", **flags)]),
        "qwen2": byte_level(QWEN, normalizer={"type": "NFC"}),
        "llama3": byte_level(LLAMA3, post_processor={
            "type": "Sequence", "processors": [{"type": "ByteLevel"}, template("<|endoftext|>", 0)]}),
        "llama2": sentencepiece(normalizer={"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": mark},
            {"type": "Replace", "pattern": {"String": " "}, "content": mark}]}),
        "metaspace": sentencepiece(pre_tokenizer={
            "type": "Metaspace", "replacement": mark, "prepend_scheme": "first", "split": False}),
        "bad_merge": byte_level(model=bpe(["a"], ["a b"])),
        "bad_ids": byte_level(model=bpe(["a", "b"], []), added_tokens=[added(1, "x")]),
        "bad_type": byte_level(model={"type": "Unigram", "vocab": [["a", 0.5]]}),
        "bad_depth": None,
    }
    os.makedirs(OUT, exist_ok=True)
    for name, seed in seeds.items():
        text = "[" * 500 if seed is None else json.dumps(seed)
        with open(os.path.join(OUT, name + ".json"), "w", encoding="ascii") as file:
            file.write(text)


if __name__ == "__main__":
    main()
