#!/usr/bin/env python3
"""millrace train --objective diffusion: block diffusion models, new and from others."""
import json
import pathlib
import re
import shutil
import tempfile

import driver
from driver import millrace
from train_test import QUIET, bits, metrics, pack_stories, shape

SHAPE = shape(batch=4, seq=32)
DIFFUSION = ["--objective", "diffusion", "--block", "8"]


def last(run):
    return run / "checkpoints" / sorted(p.name for p in (run / "checkpoints").iterdir())[-1]


def config(run):
    return json.loads((last(run) / "config.json").read_text())


class TrainDiffusionTest(driver.CliTest):
    @classmethod
    def setUpClass(cls):
        made = tempfile.TemporaryDirectory(prefix="millrace-diffusion-")
        cls.addClassCleanup(made.cleanup)
        base = pathlib.Path(made.name)
        _, _, cls.data = pack_stories(base)
        cls.whole = base / "whole"
        result = millrace("train", *SHAPE, *QUIET, *DIFFUSION, *cls.steps(), "--data", cls.data,
                          "--out", cls.whole, "--keep", "0", "--json")
        assert result.code == 0, result.err
        cls.result = result.json()

    @staticmethod
    def steps():
        return ["--steps", "6", "--save-every", "2"]

    def train(self, run, *more):
        return self.ok_json("train", "--data", self.data, "--out", run, *QUIET, *more)

    def refused(self, code, *more):
        out = self.folder / "refused"
        result = millrace("train", "--data", self.data, "--out", out, *QUIET, *more)
        self.assertEqual(result.code, code, result.err)
        self.assertFalse(out.exists())
        return self.error(result)

    def error(self, result):
        lines = result.err.strip().splitlines()
        self.assertEqual(len(lines), 1, result.err)
        return lines[0]

    def test_the_loss_falls(self):
        run = self.folder / "run"
        result = self.train(run, *shape(dim=64, batch=8, seq=32), *DIFFUSION, "--steps", "80",
                            "--lr", "0.01")
        lines = metrics(run)
        # log(281) is 5.64; token frequencies alone give about 4.8.
        self.assertGreater(lines[0]["loss"], 5)
        mean = sum(line["loss"] for line in lines[-10:]) / 10
        self.assertLess(mean, 4.9)
        self.assertLess(result["val_loss"], 4.9)

    def test_the_files_say_what_it_is(self):
        made = config(self.whole)
        self.assertEqual(made["model_type"], "sdar")
        self.assertEqual(made["block_size"], 8)
        tokens = self.ok_json("tokenize", self.whole, "--text", "<|mask|>")
        # One more token than the data: the mask.
        self.assertEqual(made["vocab_size"], 281)
        self.assertEqual(made["mask_token_id"], 280)
        self.assertEqual(tokens["ids"][-1], 280)
        self.assertIn("blocks of 8 tokens, <|mask|> stands for unknown ones",
                      driver.Page(self.whole / "report.html").text)

    def test_the_log_says_what_it_is(self):
        said = [self.result[key] for key in ("objective", "block", "diffusion_weight")]
        self.assertEqual(said, ["diffusion", 8, "1/t"])
        # Of 4 x 32 tokens: k of each block of 8, with k from 1 to 8 equally often, without a
        # document's first token.
        for line in metrics(self.whole):
            self.assertGreater(line["masked"], 4 * 32 // 4)
            self.assertLess(line["masked"], 4 * 32)
        copy = self.folder / "copy"
        shutil.copytree(self.whole, copy)
        resumed = self.ok_json("train", "--resume", copy)  # no step is left
        self.assertEqual([resumed["objective"], resumed["block"]], ["diffusion", 8])
        ar = self.train(self.folder / "ar", *SHAPE, "--steps", "1")
        self.assertEqual([ar["objective"], ar["block"], ar["diffusion_weight"]], ["ar", None, None])
        self.assertNotIn("masked", metrics(self.folder / "ar")[0])

    def test_the_same_seed_has_the_same_bits(self):
        again, other = self.folder / "again", self.folder / "other"
        self.train(again, *SHAPE, *DIFFUSION, *self.steps(), "--keep", "0", "--recompute", "full",
                   "--prefetch", "0")
        self.train(other, *SHAPE, *DIFFUSION, *self.steps(), "--seed", "2")
        self.assertEqual(bits(again, 6), bits(self.whole, 6))
        self.assertEqual(metrics(again), metrics(self.whole))
        self.assertNotEqual(bits(other, 6), bits(self.whole, 6))

    def test_a_resumed_run_goes_on_bit_for_bit(self):
        for weight in ("1/t", "none"):
            more = [*SHAPE, *DIFFUSION, "--diffusion-weight", weight, "--schedule", "constant",
                    "--warmup", "0"]
            whole, part = self.folder / f"a{len(weight)}", self.folder / f"b{len(weight)}"
            self.train(whole, *more, "--steps", "4")
            self.train(part, *more, "--steps", "2")
            self.ok_json("train", "--resume", part, "--steps", "4")
            self.assertEqual(bits(part, 4), bits(whole, 4), weight)
            losses = [[line["loss"] for line in metrics(run)] for run in (part, whole)]
            self.assertEqual(losses[0], losses[1], weight)
            self.assertEqual(metrics(part)[-1], metrics(whole)[-1], weight)  # with its validation

    def test_an_ar_model_becomes_one(self):
        ar, run, again = self.folder / "ar", self.folder / "run", self.folder / "again"
        self.train(ar, *SHAPE, "--steps", "2")
        self.train(run, "--batch", "4", "--seq", "32", *DIFFUSION, "--init", ar, "--steps", "2")
        self.assertEqual(config(run)["vocab_size"], config(ar)["vocab_size"] + 1)
        self.assertEqual(config(run)["model_type"], "sdar")
        # Such a model can get other blocks without another token.
        self.train(again, "--batch", "4", "--seq", "32", "--objective", "diffusion", "--block",
                   "16", "--init", run, "--steps", "2")
        self.assertEqual(config(again)["block_size"], 16)
        self.assertEqual(config(again)["vocab_size"], config(run)["vocab_size"])
        self.assertIn("is a diffusion model",
                      self.refused(2, "--batch", "4", "--seq", "32", "--init", run))

    def test_qwen3_has_its_norms(self):
        run = self.folder / "run"
        self.train(run, *SHAPE, "--model", "qwen3", *DIFFUSION, "--steps", "1")
        self.assertIs(config(run).get("qk_norm", True), True)  # SDAR's files do not name it
        self.assertFalse(config(self.whole)["qk_norm"])
        for folder, there in ((run, True), (self.whole, False)):
            tensors = (last(folder) / "model.safetensors").read_bytes()
            self.assertEqual(b"self_attn.q_norm.weight" in tensors, there)

    def test_refusals_are_one_line(self):
        for words, said in (
                (["--block", "0"], "--block = 0"),
                (["--block", "7"], "is not a multiple of --block 7; give 28 or 35"),
                (["--block", "64"], "must not be more than --seq"),
                (["--bos"], "--bos"),
                (["--model", "gpt2"], "gpt2 has learned positions"),
                (["--model", "qwen2"], "the family qwen2"),
                (["--diffusion-weight", "t"], "--diffusion-weight")):
            self.assertIn(said, self.refused(2, *SHAPE, "--objective", "diffusion", *words))
        self.assertIn("must be even", self.refused(
            2, *shape(batch=3), *DIFFUSION, "--diffusion-weight", "none"))
        self.assertIn("'mlm' is not a choice", self.refused(2, *SHAPE, "--objective", "mlm"))
        for option in (["--block", "8"], ["--diffusion-weight", "none"]):
            self.assertIn("--objective diffusion", self.refused(2, *SHAPE, *option))
        self.assertIn("cannot be changed by --resume", self.error(
            millrace("train", "--resume", self.whole, "--block", "4")))
        self.assertIn("too few", self.refused(
            1, *shape(batch=1, seq=65536), "--objective", "diffusion"))

    def sampled(self, run, *more):
        """The samples by step, as printed."""
        result = millrace("train", "--data", self.data, "--out", run, "--eval-every", "0",
                          "--eval-batches", "1", "--threads", "1", "--lr", "0.01", "--prompt",
                          "Once upon a", *more)
        self.assertEqual(result.code, 0, result.err)
        self.assertNotIn("no sample", result.err)
        shown = re.findall(r"--- a sample after step (\d+):\n(.*?)\n---", result.err, re.DOTALL)
        return {int(step): text for step, text in shown}

    def test_samples_are_what_the_checkpoint_says(self):
        run, without = self.folder / "run", self.folder / "without"
        # 22 tokens; the last block is cut short.
        more = [*SHAPE, *DIFFUSION, "--steps", "4", "--seed", "3"]
        shown = self.sampled(run, *more, "--sample-every", "2", "--sample-tokens", "22",
                             "--save-every", "2", "--keep", "0")
        self.assertEqual(sorted(shown), [2, 4])
        self.assertNotEqual(shown[2], shown[4])
        for step, text in shown.items():
            self.assertTrue(text.startswith("Once upon a"), text)
            self.assertGreater(len(text), len("Once upon a"))
            self.assertNotIn("mask", text)
            said = self.ok("run", run / "checkpoints" / f"step-{step:06}", "-p", "Once upon a",
                           "-n", 22, "--temp", 0.8, "--top-k", 40, "--seed", 3, "--threads", 1)
            self.assertEqual(said.out.strip(), text.strip())
        self.assertIn("Once upon a", driver.Page(run / "report.html").text)
        # They change nothing.
        self.train(without, *more, "--lr", "0.01")
        self.assertEqual(bits(without, 4), bits(run, 4))

    def test_samples_of_blocks_longer_than_the_decoders(self):
        shown = self.sampled(self.folder / "run", *shape(batch=2, seq=96), "--objective",
                             "diffusion", "--block", "96", "--steps", "1", "--sample-tokens", "70")
        self.assertEqual(list(shown), [1])
        self.assertTrue(shown[1].startswith("Once upon a"))


if __name__ == "__main__":
    driver.main()
