#!/usr/bin/env python3
"""Compares with Hugging Face's libraries. A checkpoint of every family as transformers reads it:
every tensor is used, the tokenizer gives the same ids, and a text has the NLL of `millrace eval`. A
tokenizer as trained by `tokenizers`. Skips if python3, or the one that MILLRACE_PYTHON names, has
no transformers."""
import json
import os
import subprocess
import sys

import driver
from driver import DATA

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt-neox")
# Both sum in f32. The longest path from a token to its loss has 2 layers with sums of 32 (qkv), 64
# (scores' values), 32 (out), 32 (up) and 128 (down), then 32 and 280 (head, softmax): under 900
# roundings of 2^-24 each of values of the loss's size.
RELATIVE = 900 * 2**-24

# A JSON line for every folder of argv[2:]: the ids of the text in argv[1] and its NLL per token.
READER = """
import json, sys
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
text = open(sys.argv[1]).read()
for folder in sys.argv[2:]:
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                       output_loading_info=True)
    ids = AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    row = torch.tensor([ids])
    with torch.no_grad():
        scores = model(row).logits.double().log_softmax(-1)
    nll = -scores[0, :-1].gather(1, row[0, 1:, None]).mean().item()
    print(json.dumps({"ids": ids, "nll": nll, "class": type(model).__name__,
                      "version": [int(n) for n in transformers.__version__.split(".")[:2]],
                      "wrong": {k: sorted(map(str, v)) for k, v in info.items() if v}}))
"""

# The vocabulary and merges of Hugging Face's trainer for the text argv[1] and argv[2] tokens.
TRAINER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trainer = trainers.BpeTrainer(vocab_size=int(sys.argv[2]), min_frequency=2, show_progress=False,
                              special_tokens=["<|endoftext|>"],
                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
text = open(sys.argv[1], encoding="utf-8", newline="").read()
tokenizer.train_from_iterator(text.split("<|endoftext|>"), trainer)
print(tokenizer.to_str())
"""


class TransformersTest(driver.CliTest):
    def python_with(self, *modules):
        python = os.environ.get("MILLRACE_PYTHON", sys.executable)
        for module in modules:
            if subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode:
                self.skipTest(f"{python} has no {module}: set MILLRACE_PYTHON")
        return python

    def test_a_tokenizer_is_the_one_of_hugging_faces_trainer(self):
        python = self.python_with("tokenizers")
        stories = self.folder / "stories.txt"
        self.ok(driver.LAB, "story", "write", "--stories", 200, "--out", stories)
        texts = [(stories, 1024)] + [(DATA / "text" / name, vocab) for name, vocab in (
            ("tinystories_1000.txt", 2048), ("wiki.test.raw", 8192), ("tinyshakespeare.txt", 8192))]
        for text, vocab in texts:
            with self.subTest(text=text.name):
                if not text.exists():
                    self.skipTest(f"no {text}: set MILLRACE_DATA")
                done = subprocess.run([python, "-c", TRAINER, text, str(vocab)],
                                      capture_output=True, check=True)
                theirs = json.loads(done.stdout)["model"]
                tok = self.folder / text.stem
                self.ok("tokenizer", "train", "--data", text, "--vocab", vocab, "--out", tok)
                ours = json.loads((tok / "tokenizer.json").read_text())["model"]
                self.assertEqual(ours["vocab"], theirs["vocab"])
                pairs = [[m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
                         for model in (ours, theirs)]
                self.assertEqual(pairs[0], pairs[1])

    def test_checkpoints_of_every_family(self):
        python = self.python_with("torch", "transformers")
        text, tok, data, one = (self.folder / n for n in ("s.txt", "tok", "data", "one.txt"))
        self.ok(driver.LAB, "story", "write", "--stories", 2, "--out", text)
        # Words, numbers and marks that some families' tokenizers split in their own way.
        one.write_text(text.read_text().split("<|endoftext|>")[0].strip() +
                       "\n\n\n  12345 I'LL  it's e\u0301 \u00e9!!!\n\n ok")
        self.ok("tokenizer", "train", "--data", text, "--vocab", 280, "--out", tok)
        self.ok("data", "pack", "--data", text, "--tokenizer", tok, "--val", 0, "--out", data)
        for family in FAMILIES:
            # Trained until it nearly memorises the text: a wrong rotation or a wrong row would
            # show.
            self.ok("train", "--model", family, "--dim", 32, "--layers", 2, "--heads", 4,
                    *(["--kv-heads", 2] if family not in ("gpt2", "gpt-neox") else []), "--hidden",
                    128, "--batch", 8, "--seq", 64, "--context", 1024, "--steps", 150, "--lr",
                    "1e-2", "--sample-tokens", 0, "--threads", 1, "--data", data, "--out",
                    self.folder / family)
        folders = [self.folder / f / "checkpoints" / "step-000150" for f in FAMILIES]
        done = subprocess.run([python, "-c", READER, one, *folders], capture_output=True,
                              env={**os.environ, "HF_HUB_OFFLINE": "1"})
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        ids = self.ok_json("tokenize", "--tokenizer", tok, "--file", one)["ids"]
        for family, line in zip(FAMILIES, done.stdout.splitlines(), strict=True):
            with self.subTest(family=family):
                theirs = json.loads(line)
                self.assertEqual(theirs["wrong"], {})
                if family == "qwen2" and theirs["version"] < [5, 22]:
                    self.skipTest("reads every Qwen2 model's tokenizer as Qwen's own")
                self.assertEqual(theirs["ids"], ids)
                ours = self.ok_json("eval", self.folder / family, "--text", one, "--threads", 1)
                self.assertEqual(ours["tokens"], len(ids) - 1)
                self.assertAlmostEqual(theirs["nll"], ours["nll"],
                                       delta=RELATIVE * abs(ours["nll"]))


if __name__ == "__main__":
    driver.main()
