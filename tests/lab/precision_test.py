"""millrace-lab precision: rows compared with `millrace train`, sums with exact ones, and
errors."""
import json
import math
import struct
from fractions import Fraction

import driver

GPT2 = driver.REFERENCE / "gpt2"
CPU = ["f32", "f32-nearest", "f32-stochastic"]
GPU = ["bf16", "bf16-stochastic"]
SHAPE = ("--batch", 4, "--seq", 16)
SMALL = (*SHAPE, "--steps", 8)
PARTS = ("weights", "gradients", "optimizer", "activations")


def f32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


class Precision(driver.CliTest):
    def ask(self, *more, model=GPT2, steps=8):
        return self.ok_json(driver.LAB, "precision", model, *SHAPE, "--steps", steps, "--device", "cpu",
                            *more)

    def test_rows_of_the_cpu(self):
        got = self.ask()
        self.assertEqual((got["experiment"], got["steps"], got["cpu_steps"], got["gpu"]),
                         ("precision", 8, 8, None))
        self.assertEqual([way["way"] for way in got["ways"]], CPU)
        self.assertEqual([way["way"] for way in got["absent"]], GPU)
        self.assertEqual([(way["products"], way["masters"], way["rounding"]) for way in got["ways"]],
                         [("f32", "f32", None), ("f32", "bf16", "nearest"),
                          ("f32", "bf16", "stochastic")])
        base = got["ways"][0]
        for way in got["ways"]:
            self.assertEqual([len(way[key]) for key in ("seconds", "losses", "grad_norms")], [8] * 3)
            self.assertEqual(sum(way["memory"][part] for part in PARTS), way["memory"]["total"])
            self.assertEqual(way["memory"], base["memory"])  # on the CPU masters are f32
            self.assertEqual(way["difference"], way["loss"] - base["loss"])
            self.assertEqual(way["grad_norm"], way["grad_norms"][-1])
            # A new model: all ids about equally likely. bf16 keeps 8 bits of a weight.
            self.assertAlmostEqual(way["losses"][0], math.log(288), delta=0.2)
            self.assertAlmostEqual(way["loss"], base["loss"], delta=0.01)
            self.assertGreater(way["moved"], 0.5)
        self.assertEqual(base["moved"], 1)
        self.assertNotEqual(got["ways"][1]["losses"], got["ways"][2]["losses"])
        # The optimizer has two numbers per gradient.
        self.assertEqual(base["memory"]["optimizer"], 2 * base["memory"]["gradients"])

        def result(study):  # everything but times
            return [[way[key] for key in ("losses", "grad_norms", "loss", "moved")]
                    for way in study["ways"]]
        self.assertEqual(result(self.ask("--threads", 1)), result(got))
        self.assertNotEqual(result(self.ask("--seed", 2)), result(got))

    def test_small_steps_are_lost_to_nearest(self):
        """A rate so small that most steps are less than half of a weight's last bit in bf16."""
        ways = {way["way"]: way for way in self.ask("--lr", 1e-5, steps=60)["ways"]}
        self.assertLess(ways["f32-nearest"]["moved"], 0.5)
        self.assertGreater(ways["f32-stochastic"]["moved"], 2 * ways["f32-nearest"]["moved"])
        self.assertLess(10 * abs(ways["f32-stochastic"]["difference"]),
                        ways["f32-nearest"]["difference"])

    def test_is_what_train_does(self):
        text, tok, data = (self.folder / name for name in ("s.txt", "tok", "data"))
        self.ok(driver.LAB, "story", "write", "--stories", 60, "--seed", 1, "--out", text)
        self.ok("tokenizer", "train", "--data", text, "--vocab", 280, "--out", tok)
        self.ok("data", "pack", "--data", text, "--tokenizer", tok, "--val-docs", 4, "--out", data)
        for masters, way in (("f32", "f32"), ("bf16", "f32-stochastic")):
            run = self.folder / f"run-{masters}"
            self.ok("train", "--model", "llama", "--dim", 32, "--layers", 1, "--heads", 2, "--data",
                    data, "--out", run, "--steps", 8, "--batch", 4, "--seq", 16, "--lr", 2e-3,
                    "--schedule", "constant", "--warmup", 0, "--masters", masters, "--eval-batches",
                    4, "--sample-tokens", 0, "--seed", 5, "--device", "cpu")
            lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            got = self.ask("--data", data, "--lr", 2e-3, "--seed", 5, "--types", way, model=run)
            self.assertEqual([one["way"] for one in got["ways"]], [way])
            self.assertEqual(got["ways"][0]["losses"], [line["loss"] for line in lines])
            self.assertEqual(got["ways"][0]["grad_norms"], [line["grad_norm"] for line in lines])
            self.assertEqual(got["ways"][0]["loss"], lines[-1]["val_loss"])

    def test_bytes_of_a_file(self):
        text = self.folder / "text.txt"
        text.write_text("The mill by the river turns, and the river goes on. " * 40)
        got = self.ask("--data", text, "--types", "f32", steps=40)
        self.assertIn("last tenth", got["data"])
        self.assertLess(got["ways"][0]["loss"], 4.5)  # of ln 288 = 5.66
        self.fails(1, driver.LAB, "precision", driver.REFERENCE / "qwen3", *SMALL, "--data", text,
                   says=["text.txt", "byte by byte"])
        text.write_text("A mill.")
        self.fails(1, driver.LAB, "precision", GPT2, *SMALL, "--data", text, says=["text.txt", "--seq"])

    def test_sums_are_exact_ones_rounded(self):
        rows = {(row["addend"], row["sum"], row["rounding"]): row
                for row in self.ask("--types", "f32")["accumulation"]}
        self.assertEqual(len(rows), 7)
        exact, sum_ = Fraction(f32(0.01)), 0.0
        for _ in range(1000):
            sum_ = f32(Fraction(sum_) + exact)
        self.assertEqual(rows["f32", "f32", "nearest"]["result"], sum_)
        half, sum_ = struct.unpack("e", struct.pack("e", 0.01))[0], 0.0
        for _ in range(1000):
            sum_ = struct.unpack("e", struct.pack("e", sum_ + half))[0]
        self.assertEqual(rows["f16", "f16", "nearest"]["result"], sum_)
        # From 4 on the numbers of bf16 are 1/32 apart, and 0.01 is less than half of that.
        self.assertEqual(rows["bf16", "bf16", "nearest"]["result"], 4)
        chance = rows["f32", "bf16", "stochastic"]
        self.assertAlmostEqual(chance["mean"], 10, delta=5 * chance["deviation"] / 1000 ** 0.5)
        for row in rows.values():
            self.assertAlmostEqual(row["error"], row["result"] - 10)

    def test_table(self):
        done = self.ok(driver.LAB, "precision", GPT2, *SMALL, "--device", "cpu").out
        lines = done.splitlines()
        for way in CPU + GPU:
            self.assertEqual(sum(line.split()[:1] == [way] for line in lines[:10]), 1, way)
        for way in GPU:
            self.assertIn(f"{way:<15} absent: it needs a GPU, and the device is cpu", done)
        for part in ("ms/step", *PARTS, "loss@8", "vs f32", "norm@8", "moved",
                     "0.01 added 1000 times"):
            self.assertIn(part, done)
        short = self.ok(driver.LAB, "precision", GPT2, *SMALL, "--cpu-steps", 3, "--device", "cpu").out
        self.assertIn("loss@3", short)
        self.assertNotIn("loss@8", short)  # there are fewer rows
        alone = self.ok(driver.LAB, "precision", GPT2, *SMALL, "--device", "auto",
                        env={"CUDA_VISIBLE_DEVICES": ""}).out
        self.assertEqual(alone.count("absent: it needs a GPU: "), 2)

    def test_bad_input_is_one_line(self):
        ask = (driver.LAB, "precision")
        self.fails(2, *ask, says="MODEL is required")
        self.fails(2, *ask, "random:llama-9000b", says="llama-2-7b")
        self.fails(2, *ask, GPT2, says=["--seq = 256", "context of 64"])
        for option, value in (("--steps", 0), ("--cpu-steps", 0), ("--batch", 0), ("--seq", 1),
                              ("--lr", 0), ("--lr", 2), ("--seed", -1), ("--types", "f16")):
            self.fails(2, *ask, GPT2, option, value, says=option)
        self.fails(2, *ask, GPT2, *SMALL, "--cpu-steps", 9, says=["--cpu-steps = 9", "8 of --steps"])
        self.fails(2, *ask, driver.REFERENCE / "sdar", *SMALL, says="is a diffusion model")
        self.fails(3, *ask, GPT2, *SMALL, "--types", "bf16", "--device", "cpu",
                   says=["--types = bf16", "needs a GPU", "f32-nearest"])
        self.fails(3, *ask, GPT2, *SMALL, "--device", "cuda", env={"CUDA_VISIBLE_DEVICES": ""})
        self.fails(1, *ask, GPT2, *SMALL, "--data", self.folder / "none", says="none")
        self.fails(1, *ask, GPT2, *SMALL, "--data", self.folder, says="data.json")
        text = self.ok(*ask, "--help").out
        for part in ("--types", "--cpu-steps", "--data FILE", "docs/precision.md"):
            self.assertIn(part, text)


if __name__ == "__main__":
    driver.main()
