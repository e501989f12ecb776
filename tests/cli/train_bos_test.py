#!/usr/bin/env python3
"""millrace train --bos: every sequence, and every text for the model, begins with one token."""
import json
import shutil

import driver
from driver import REFERENCE
from train_test import QUIET, SHAPE, bits, metrics

MODEL = ["--model", "gpt-neox", *SHAPE, *QUIET]
TEXT = "Once upon a time"
END = "<|endoftext|>"


class TrainBosTest(driver.CliTest):
    def pack(self, name, documents, tokenizer):
        text, data = self.folder / f"{name}.txt", self.folder / name
        text.write_text(END.join(documents))
        self.ok("data", "pack", "--data", text, "--tokenizer", tokenizer, "--val-docs", "2",
                "--out", data)
        return data

    def bears(self, tokenizer=REFERENCE / "gpt2"):
        """Data of a tokenizer that has a beginning-of-text token but puts it before no text."""
        lines = [f"Once upon a time there were {n} bears. " * (n % 5 + 2) for n in range(30)]
        return self.pack("data", lines, tokenizer)

    def train(self, run, *more):
        return self.ok_json("train", *MODEL, "--out", run, *more)

    def ids(self, model, *more):
        return self.ok_json("tokenize", model, "--text", TEXT, *more)["ids"]

    def test_the_model_begins_texts_as_it_was_trained(self):
        data, run, plain = self.bears(), self.folder / "run", self.folder / "plain"
        self.train(run, "--data", data, "--steps", "2", "--bos")
        self.train(plain, "--data", data, "--steps", "2")
        without = self.ids(REFERENCE / "gpt2")
        bos = self.ok_json("tokenize", REFERENCE / "gpt2", "--text", END)["ids"][0]
        self.assertEqual(self.ids(plain), without)
        self.assertEqual(self.ids(run), [bos, *without])
        self.assertEqual(self.ids(run, "--no-special"), without)
        self.assertNotEqual(bits(run, 2), bits(plain, 2))
        self.assertNotEqual(metrics(run)[-1]["val_loss"], metrics(plain)[-1]["val_loss"])
        # So does tokenizer.json alone, and models converted from the folder.
        folder = run / "checkpoints" / "step-000002"
        self.assertEqual(self.ids(run, "--tokenizer", folder / "tokenizer.json"), [bos, *without])
        config = json.loads((folder / "tokenizer_config.json").read_text())
        self.assertTrue(config["add_bos_token"])
        shutil.copy(folder / "tokenizer.json", self.folder)
        alone = self.folder / "tokenizer.json"
        self.assertEqual(self.ids(run, "--tokenizer", alone), [bos, *without])
        for name in ("m.gguf", "copy"):
            self.ok("convert", run, self.folder / name)
            self.assertEqual(self.ids(self.folder / name), [bos, *without], name)
        made = self.ok_json("run", run, "-p", TEXT, "-n", "2", "--temp", "0")
        self.assertEqual(made["prompt_ids"], [bos, *without])
        self.assertIn("each begins with <|endoftext|>", driver.Page(run / "report.html").text)
        self.assertNotIn("each begins with", driver.Page(plain / "report.html").text)

    def test_the_token_stands_first_in_every_sequence_and_nowhere_else(self):
        """Documents of 31 one-byte tokens, each with the end token: windows of 32 already begin
        with that token, and --bos changes no bit. With 30 they do not."""
        letters = "abcdefghijklmnopqrstuvwxyz" * 4
        tok = self.folder / "tok"
        (self.folder / "letters.txt").write_text(letters)
        self.ok("tokenizer", "train", "--data", self.folder / "letters.txt", "--vocab", "257",
                "--out", tok)
        for length, same in ((31, True), (30, False)):
            lines = [letters[n % 7:][:length] for n in range(40)]
            data = self.pack(f"data{length}", lines, tok)
            runs = [self.folder / f"{length}{name}" for name in ("bos", "plain")]
            for run, more in zip(runs, (["--bos"], [])):
                self.train(run, "--data", data, "--steps", "2", *more)
            self.assertEqual(bits(runs[0], 2) == bits(runs[1], 2), same, length)
            self.assertEqual(metrics(runs[0]) == metrics(runs[1]), same, length)
            # Such a tokenizer puts its token before texts anyway: it is copied unchanged.
            for run in runs:
                self.assertEqual(
                    (run / "checkpoints" / "step-000002" / "tokenizer.json").read_bytes(),
                    (data / "tokenizer.json").read_bytes())

    def test_resume_and_init(self):
        data, whole, run = self.bears(), self.folder / "whole", self.folder / "run"
        steps = ["--data", data, "--bos", "--save-every", "2"]
        self.train(whole, *steps, "--steps", "4", "--schedule", "constant")
        self.train(run, *steps, "--steps", "2", "--schedule", "constant", "--warmup", "0")
        self.fails(2, "train", "--resume", run, "--bos", says=["--bos", "--resume"])
        resumed = self.ok("train", "--resume", run, "--steps", "4").err
        self.assertNotIn("tokenizer", resumed)  # its copy is the saved one
        self.assertEqual(bits(run, 4), bits(whole, 4))
        self.assertEqual(metrics(run)[2:], metrics(whole)[2:])  # step 2 of one had a validation
        state = json.loads((run / "checkpoints" / "step-000004" / "state.json").read_text())
        self.assertIs(state["options"]["bos"], True)
        for more in ([], ["--bos"]):
            tuned = self.folder / f"tuned{len(more)}"
            self.ok("train", "--init", run, "--batch", "2", "--seq", "32", *QUIET, "--steps", "1",
                    "--data", data, "--out", tuned, *more)
            self.assertEqual(len(self.ids(tuned)), len(self.ids(REFERENCE / "gpt2")) + len(more))
        # Another beginning-of-text token is another run.
        config = json.loads((data / "tokenizer_config.json").read_text())
        (data / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": "a"}))
        self.fails(1, "train", "--resume", run, "--steps", "5", says="changed")

    def test_a_tokenizer_without_the_token(self):
        tok = self.folder / "tok"
        shutil.copytree(REFERENCE / "gpt2", tok)
        config = json.loads((tok / "tokenizer_config.json").read_text())
        del config["bos_token"]
        (tok / "tokenizer_config.json").write_text(json.dumps(config))
        data, run = self.bears(tok), self.folder / "run"
        new = ["train", *MODEL, "--data", data, "--steps", "1", "--out", run]
        said = self.fails(1, *new, "--bos",
                          says=["--bos", "no beginning-of-text token", '"bos_token"']).err
        self.assertIn(str(data / "tokenizer_config.json"), said)
        self.assertFalse(run.exists())
        # Follows the remedy in the message.
        (data / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": END}))
        self.ok(*new, "--bos")
        self.assertEqual(len(self.ids(run)), len(self.ids(REFERENCE / "gpt2")) + 1)


if __name__ == "__main__":
    driver.main()
