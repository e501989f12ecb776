"""Training by several ranks: mpirun starts them, and the same bits come out on any number of them. Skips
where the build or the machine has no MPI."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import comm_test  # not its tests
import driver
from comm_test import LAUNCH, MODULE, mpirun
from train_test import bits, checkpoints, metrics, pack_stories, shape



def some(**other):
    """Options of a run: gradients that are clipped, a validation whose last batch is short."""
    options = {"layers": 2, "batch": 8, "steps": 4, "eval-every": 2, "eval-batches": 0, "sample-tokens": 0,
               "save-every": 0, "clip": 0.25, "lr": 0.01, "device": "cpu", "threads": 1}
    return shape(**{**options, **{name.replace("_", "-"): value for name, value in other.items()}})


FAMILIES = {"llama": ("--model", "llama"), "tied gpt2": ("--model", "gpt2", "--tied", "yes"),
            "untied": ("--model", "qwen3", "--tied", "no"),
            "bf16 masters": ("--model", "llama", "--masters", "bf16"),
            "diffusion": ("--model", "llama", "--objective", "diffusion", "--block", 8)}


@unittest.skipUnless(MODULE.exists() and shutil.which("mpirun"), "no MPI here")
class Ranks(driver.CliTest):
    @classmethod
    def setUpClass(cls):
        made = tempfile.TemporaryDirectory(prefix="millrace-ranks-")
        cls.addClassCleanup(made.cleanup)
        cls.base = pathlib.Path(made.name)
        _, _, cls.data = pack_stories(cls.base)

    def train(self, ranks, out, *more, **other):
        words = ("train", *some(**other), "--data", self.data, "--out", out, "--json", *more)
        if ranks == 1:
            return self.ok_json(*words)
        done = mpirun(ranks, *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def resume(self, ranks, run, *more):
        done = mpirun(ranks, "train", "--resume", run, "--json", *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_bits_are_the_same_on_1_2_and_4_ranks(self):
        for name, family in FAMILIES.items():
            for accumulate in (1, 2) if name in ("llama", "tied gpt2") else (2,):
                runs = {}
                for ranks in (1, 2, 4):
                    run = self.folder / f"{name} {accumulate} {ranks}".replace(" ", "-")
                    got = self.train(ranks, run, *family, grains=4, accumulate=accumulate)
                    self.assertEqual([got["ranks"], got["grains"]], [ranks, 4])
                    self.assertEqual(got["exchange_seconds"] > 0, ranks > 1)
                    runs[ranks] = (metrics(run), bits(run, 4))
                self.assertEqual(runs[2], runs[1], name)
                self.assertEqual(runs[4], runs[1], name)
                self.assertEqual([m["skipped"] for m in runs[1][0]], [False] * 4)
                self.assertGreater(min(m["grad_norm"] for m in runs[1][0]), 0.25)

    def test_grains_are_the_ranks_unless_told(self):
        got = self.train(2, self.folder / "two")
        self.assertEqual([got["ranks"], got["grains"]], [2, 2])
        alone, one = self.folder / "alone", self.folder / "one"
        self.assertEqual(self.train(1, alone)["grains"], 1)
        self.train(1, one, grains=1)
        self.assertEqual(bits(alone, 4), bits(one, 4))
        self.assertNotEqual(bits(alone, 4), bits(self.folder / "two", 4))  # another order of sums

    def test_a_run_goes_on_with_another_number_of_ranks(self):
        whole, parts = self.folder / "whole", self.folder / "parts"
        same = {"grains": 4, "schedule": "constant", "warmup": 0}
        self.train(1, whole, steps=6, **same)
        self.train(4, parts, steps=2, **same)
        self.ok("train", "--resume", parts, "--steps", 4)
        self.assertEqual(self.resume(2, parts, "--steps", 6)["step"], 6)
        self.assertEqual(bits(parts, 6), bits(whole, 6))
        self.assertEqual([m["loss"] for m in metrics(parts)], [m["loss"] for m in metrics(whole)])

    def test_what_ranks_cannot_do_is_one_line(self):
        run = self.folder / "run"
        for more, said in (({"grains": 3}, "--grains = 3: must be a power of two"),
                           ({"grains": 16}, "does not divide the 8 sequences"),
                           ({"batch": 4, "grains": 4, "accumulate": 3}, "neither a part nor"),
                           ({"batch": 4, "grains": 2, "accumulate": 3}, "neither a part nor"),
                           ({"bucket": 0}, "--bucket")):
            self.fails(2, "train", *some(**more), "--data", self.data, "--out", run, says=said)
        words = ("train", *some(), "--data", self.data, "--out", run)
        done = mpirun(4, *words, "--grains", 2)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--grains = 2: 4 ranks do not divide it", done.stderr)
        done = mpirun(3, *words)
        self.assertEqual(done.returncode, 2)
        self.assertIn("must be a power of two", done.stderr)
        self.assertFalse(run.exists())
        # A run keeps its grains.
        self.train(2, run)
        self.fails(2, "train", "--resume", run, "--grains", 4, says="--grains")
        done = mpirun(4, "train", "--resume", run)
        self.assertIn("4 ranks do not divide it", done.stderr)

    def differing(self, first, second):
        """Two ranks with other words each: what they say."""
        def words(of):
            return [driver.BIN, *map(str, of)]
        done = subprocess.run(["mpirun", "-n", "1", *words(first), ":", "-n", "1", *words(second)],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=60, env={**os.environ, **LAUNCH})
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_ranks_that_differ_are_refused_before_the_first_step(self):
        run = self.folder / "run"
        words = ("train", *some(), "--out", run, "--data")
        said = self.differing((*words, self.data), (*words, self.data, "--seed", 2))
        self.assertIn("rank 1 of 2: seed = 2: rank 0 has seed = 1", said)
        other = self.folder / "other"
        other.mkdir()
        text = other / "s.txt"
        self.ok("data", "storybook", "--stories", 30, "--seed", 9, "--out", text)
        self.ok("data", "pack", "--data", text, "--tokenizer", self.base / "tok", "--val-docs", 2, "--out",
                other / "data")
        said = self.differing((*words, self.data), (*words, other / "data"))
        self.assertIn("rank 1 of 2: data = ", said)
        self.assertEqual(checkpoints(run), [])

    def start(self, run):
        """Two ranks that train for a long time, and the process of each."""
        job = subprocess.Popen(
            ["mpirun", "-n", "2", driver.BIN, "train",
             *some(steps=1000000, save_every=20, eval_every=0, eval_batches=1), "--data", self.data, "--out", run],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **LAUNCH})
        self.addCleanup(job.kill)
        for _ in range(300):
            time.sleep(0.1)
            if checkpoints(run):
                ranks = sorted(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
                               if comm_test.Ranks.is_rank(pid, job.pid))
                self.assertEqual(len(ranks), 2)
                return job, ranks
        self.fail("there is no checkpoint")

    def test_a_rank_that_is_killed_ends_all_and_loses_nothing(self):
        for victim in (0, 1):
            run = self.folder / f"run{victim}"
            job, ranks = self.start(run)
            os.kill(ranks[victim], signal.SIGKILL)
            begin = time.monotonic()
            job.communicate(timeout=60)
            self.assertLess(time.monotonic() - begin, 15)
            self.assertNotEqual(job.returncode, 0)
            steps = [int(name.split("-")[1]) for name in checkpoints(run) if name.startswith("step-")]
            self.assertEqual([step % 20 for step in steps], [0] * len(steps))  # none was saved in haste
            got = self.resume(2, run, "--steps", max(steps) + 3, "--save-every", 0)
            self.assertEqual(got["step"], max(steps) + 3)

    def test_a_rank_that_is_killed_in_a_save_loses_nothing(self):
        same = {"save_every": 2, "keep": 0, "schedule": "constant", "warmup": 0}
        plain = self.folder / "plain"
        self.train(2, plain, steps=6, **same)
        for point in (1, 6, 12):
            run = self.folder / f"run{point}"
            self.train(2, run, steps=2, **same)
            # The first rank is killed while it saves step 4.
            again = [driver.FAULTY, "train", "--resume", str(run), "--steps", "6"]
            done = subprocess.run(
                ["mpirun", "-n", "1", "env", f"MILLRACE_FAULT=save:{point}", *again, ":", "-n", "1", *again],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                timeout=60, env={**os.environ, **LAUNCH})
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("step-000002", checkpoints(run))
            self.assertNotIn("step-000006", checkpoints(run))
            self.assertEqual(self.resume(2, run, "--steps", 6)["step"], 6)
            self.assertEqual(bits(run, 6), bits(plain, 6))

    def test_a_signal_to_one_rank_saves_and_ends_all(self):
        run = self.folder / "run"
        job, ranks = self.start(run)
        os.kill(ranks[1], signal.SIGTERM)
        _, err = job.communicate(timeout=60)
        self.assertIn("stopped after step", err)
        step = int(err.split("stopped after step ")[1].split(":")[0])
        self.assertIn(f"step-{step:06}", checkpoints(run))
        self.assertEqual(self.resume(1, run, "--steps", step + 2)["step"], step + 2)


if __name__ == "__main__":
    driver.main()
