#!/usr/bin/env python3
"""Unusual configurations and tokenizers, compared with the results of transformers and tokenizers
as recorded by tests/compat/record.py (`make test-compat` compares its records with today's results)."""
import json
import sys

import driver
from driver import SOURCE

sys.path.insert(0, str(SOURCE / "tests" / "compat"))
import models  # noqa: E402
import tokenizer_cases  # noqa: E402

RECORDED = json.loads((SOURCE / "tests" / "compat" / "recorded.json").read_text())
RELATIVE = 2e-5  # for an NLL: both sides sum in f32
LEAD = 1e-4      # of the first choice over the second, for greedy ids to be compared
PROMPT = models.TEXT[:20]
# What GGUF cannot express, with a word of the error.
NO_GGUF = {"llama-gelu": "activation", "llama-gelu-new": "activation", "llama-relu": "activation",
           "llama-gelu-tanh": "activation", "gpt2-gelu": "activation", "gpt2-relu": "activation",
           "neox-gelu-new": "activation", "neox-gelu-fast": "activation",
           "neox-relu": "activation"}


class CompatTest(driver.CliTest):
    def setUp(self):
        super().setUp()
        self.text = self.folder / "text.txt"
        self.text.write_text(models.TEXT)

    def nll(self, model):
        return self.ok_json("eval", model, "--text", self.text)["nll"]

    def assert_near(self, value, expected):
        self.assertLess(abs(value - expected), RELATIVE * abs(expected), f"{value} {expected}")

    def test_models_say_what_transformers_says(self):
        self.assertEqual(models.CASES.keys(), RECORDED["models"].keys())
        for name, (config, options) in models.CASES.items():
            with self.subTest(model=name):
                expected = RECORDED["models"][name]
                folder = models.write(self.folder / name, name, config, options)
                self.assert_near(self.nll(folder), expected["nll"])
                made = self.ok_json("run", folder, "-p", PROMPT, "-n", 24, "--temp", 0, "-q")
                if expected["lead"] > LEAD:
                    self.assertEqual(made["ids"], expected["greedy"])
                gguf = self.folder / f"{name}.gguf"
                if name in NO_GGUF:
                    self.fails(1, "convert", folder, gguf, says=NO_GGUF[name])
                    continue
                self.ok("convert", folder, gguf, "--type", "f32")
                self.assert_near(self.nll(gguf), expected["nll"])
                again = self.ok_json("run", gguf, "-p", PROMPT, "-n", 24, "--temp", 0, "-q")
                self.assertEqual((again["ids"], again["text"]), (made["ids"], made["text"]))

    def test_what_is_not_supported_is_refused(self):
        for name, (config, says) in models.REFUSED.items():
            with self.subTest(model=name):
                folder = models.write(self.folder / name, name, config, {})
                self.fails(1, "run", folder, "-p", "x", says=says)

    def test_tokenizers_say_what_tokenizers_says(self):
        cases = tokenizer_cases.cases()
        self.assertEqual(cases.keys(), RECORDED["tokenizers_of"].keys())
        for name, case in cases.items():
            path = self.folder / f"{name}.json"
            path.write_text(json.dumps(case))
            expected = RECORDED["tokenizers_of"][name]
            for i, text in enumerate(tokenizer_cases.TEXTS):
                with self.subTest(tokenizer=name, text=text):
                    said = self.ok_json("tokenize", "--tokenizer", path, "--file", "-",
                                        stdin=text.encode())
                    self.assertEqual(said["ids"], expected[i])


if __name__ == "__main__":
    driver.main()
