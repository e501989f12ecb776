#!/usr/bin/env python3
"""A checkpoint of every family as transformers reads it: every tensor has its place, the tokenizer
gives the same ids, and a text has the NLL that `millrace eval` says. Skips where python3, or the
one that MILLRACE_PYTHON names, has no transformers."""
import json
import os
import subprocess
import sys

import driver

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt-neox")
# Both sum in f32. Along the longest path from a token to its loss lie 2 layers with sums of 32
# (qkv), 64 (scores' values), 32 (out), 32 (up) and 128 (down), then 32 and 280 (head, softmax):
# under 900 roundings of 2^-24 each of values of the loss's size.
RELATIVE = 900 * 2**-24

# A JSON line for every folder of argv[2:]: the ids of the text in argv[1] and its NLL a token.
READER = """
import json, sys
import torch
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
                      "wrong": {k: sorted(map(str, v)) for k, v in info.items() if v}}))
"""


def reader():
    """The python to read with, or why there is none."""
    python = os.environ.get("MILLRACE_PYTHON", sys.executable)
    tried = subprocess.run([python, "-c", "import torch, transformers"], capture_output=True)
    return python, None if tried.returncode == 0 else f"{python} has no torch and transformers"


class TransformersTest(driver.CliTest):
    def test_checkpoints_of_every_family(self):
        python, missing = reader()
        if missing:
            self.skipTest(f"{missing}: set MILLRACE_PYTHON")
        text, tok, data, one = (self.folder / n for n in ("s.txt", "tok", "data", "one.txt"))
        self.ok("data", "storybook", "--stories", 2, "--out", text)
        one.write_text(text.read_text().split("<|endoftext|>")[0].strip())
        self.ok("tokenizer", "train", "--data", text, "--vocab", 280, "--out", tok)
        self.ok("data", "pack", "--data", text, "--tokenizer", tok, "--val", 0, "--out", data)
        for family in FAMILIES:
            # Until it has them nearly by heart: a wrong rotation or a wrong row shows.
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
                self.assertEqual(theirs["ids"], ids)
                ours = self.ok_json("eval", self.folder / family, "--text", one, "--threads", 1)
                self.assertEqual(ours["tokens"], len(ids) - 1)
                self.assertAlmostEqual(theirs["nll"], ours["nll"],
                                       delta=RELATIVE * abs(ours["nll"]))


if __name__ == "__main__":
    driver.main()
