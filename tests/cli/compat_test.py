#!/usr/bin/env python3
"""Unusual configurations and tokenizers, compared with the results of transformers and tokenizers
as recorded by tests/compat/record.py (`make test-compat` compares its records with today's results)."""
import json
import re
import sys

import driver
from driver import SOURCE

sys.path.insert(0, str(SOURCE / "tests" / "compat"))
import models  # noqa: E402
import tokenizer_cases  # noqa: E402
import tokenizer_random  # noqa: E402

RECORDED = json.loads((SOURCE / "tests" / "compat" / "recorded.json").read_text())
RELATIVE = 2e-5  # for an NLL: both sides sum in f32
LEAD = 1e-4      # of the first choice over the second, for greedy ids to be compared
PROMPT = models.TEXT[:20]
# What GGUF cannot express, with a word of the error.
NO_GGUF = {"llama-gelu": "activation", "llama-gelu-new": "activation", "llama-relu": "activation",
           "llama-gelu-tanh": "activation", "gpt2-gelu": "activation", "gpt2-relu": "activation",
           "neox-gelu-new": "activation", "neox-gelu-fast": "activation",
           "neox-relu": "activation"}


def same_text(case, ids):
    """How the text of `ids` may differ from the library's, as docs/models.md says: None if in any way;
    else a function to apply to both."""
    vocab = case["model"]["vocab"]
    added = {token["id"]: token for token in case["added_tokens"]}
    first = 0
    # Those that are normalized are no special ones for the library's decoder behind a Prepend.
    while first < len(ids) and ids[first] in added and added[ids[first]]["special"] and not (
            added[ids[first]]["normalized"]):
        first += 1
    used = [added[i]["content"] for i in ids[first:] if i in added]
    if not used:
        return str
    # Those that are no pieces print as they are spelt, also where they spell bytes or spaces.
    if any(re.search("[^!-~]|<0x", text) and not (len(text) == 1 and text in vocab) for text in used):
        return None
    if "ByteLevel" in json.dumps(case["pre_tokenizer"]):
        return str
    return lambda text: text.replace(" ", "")  # the spaces that encoding puts after added tokens


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

    def test_other_words_for_the_same(self):
        for name, (config, case) in models.SAME.items():
            with self.subTest(model=name):
                folder = models.write_same(self.folder / name, config, case)
                self.assert_near(self.nll(folder), RECORDED["models"][case]["nll"])

    def test_what_is_not_supported_is_refused(self):
        for name, (config, says) in models.REFUSED.items():
            with self.subTest(model=name):
                folder = models.write(self.folder / name, name, config, {})
                self.fails(1, "run", folder, "-p", "x", says=says)

    def assert_tokenizer(self, name, case, texts, ids, decoded):
        self.assertEqual((len(ids), len(decoded)), (len(texts), len(texts)))
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(case))
        for i, text in enumerate(texts):
            with self.subTest(tokenizer=name, text=text):
                said = self.ok_json("tokenize", "--tokenizer", path, "--file", "-",
                                    stdin=text.encode())
                self.assertEqual(said["ids"], ids[i])
                if same := same_text(case, ids[i]):
                    self.assertEqual(same(said["text"]), same(decoded[i]))
        # A GGUF, and a folder made of it, have the same ids. GGUF says less of SentencePiece's kind.
        gguf, folder = self.folder / "model.gguf", self.folder / "folder"
        self.ok("convert", self.weights(), gguf, "--tokenizer", path, "--force")
        said = self.ok("convert", gguf, folder, "--force").err
        written_to = [(gguf, 7 if "ByteLevel" in json.dumps(case) else 1)]
        if (folder / "tokenizer.json").exists():
            written_to.append((folder, 7))
        else:  # where a tokenizer.json cannot have these ids
            self.assertIn("tokenizer", said, name)
        for written, every in written_to:
            for i, text in list(enumerate(texts))[::every]:
                with self.subTest(tokenizer=name, written=written.name, text=text):
                    said = self.ok_json("tokenize", written, "--file", "-", stdin=text.encode())
                    self.assertEqual(said["ids"], ids[i])

    def weights(self):
        """A model without a tokenizer, with room for any of these."""
        folder = self.folder / "weights"
        if not folder.exists():
            models.write(folder, "weights", models.llama(vocab_size=1024, bos_token_id=0, eos_token_id=0), {})
            for name in ("tokenizer.json", "tokenizer_config.json"):
                (folder / name).unlink(missing_ok=True)
        return folder

    def test_tokenizers_say_what_tokenizers_says(self):
        cases = tokenizer_cases.cases()
        self.assertEqual(cases.keys(), RECORDED["tokenizers_of"].keys())
        for name, case in cases.items():
            self.assert_tokenizer(name, case, tokenizer_cases.TEXTS,
                                  RECORDED["tokenizers_of"][name], RECORDED["decoded"][name])

    def test_random_tokenizers_say_what_tokenizers_says(self):
        self.assertGreater(len(RECORDED["random"]), 100)
        for seed, expected in RECORDED["random"].items():
            case, texts = tokenizer_random.case(int(seed))
            self.assert_tokenizer(f"random-{seed}", case, texts, expected["ids"],
                                  expected["decoded"])

    def test_tokenizers_that_are_not_supported_are_refused(self):
        for name, (case, says) in tokenizer_cases.refused().items():
            with self.subTest(tokenizer=name):
                path = self.folder / f"{name}.json"
                path.write_text(json.dumps(case))
                self.fails(1, "tokenize", "--tokenizer", path, "--text", "x", says=says)


if __name__ == "__main__":
    driver.main()
