"""Ranks that shard gradients and parameters (--zero 2 and 3): the files equal those of one rank.
Skips if the build or the machine has no MPI."""
import shutil
import unittest

import driver
import ranks_test
from comm_test import MODULE, mpirun
from ranks_test import FAMILIES, some
from train_test import bits, metrics


@unittest.skipUnless(MODULE.exists() and shutil.which("mpirun"), "no MPI here")
class Zero(driver.CliTest):
    setUpClass = classmethod(ranks_test.Ranks.setUpClass.__func__)
    train = ranks_test.Ranks.train
    resume = ranks_test.Ranks.resume
    kill_in_save = ranks_test.Ranks.kill_in_save

    def test_bits_are_those_of_one_rank(self):
        # The last batch of the validation is short, gradients are clipped (some()); 2 ranks have
        # several grains each, 4 ranks one.
        for name, runs in (("tied gpt2", ((2, 2), (4, 3))), ("untied", ((4, 2), (2, 3))),
                           ("bf16 masters", ((4, 3),)), ("diffusion", ((2, 3),))):
            one = self.folder / f"{name} one".replace(" ", "-")
            self.train(1, one, *FAMILIES[name], grains=4, accumulate=2)
            for ranks, zero in runs:
                run = self.folder / f"{name} {ranks} {zero}".replace(" ", "-")
                got = self.train(ranks, run, *FAMILIES[name], grains=4, accumulate=2, zero=zero)
                self.assertEqual([got["ranks"], got["grains"]], [ranks, 4])
                self.assertEqual((metrics(run), bits(run, 4)), (metrics(one), bits(one, 4)), (name, ranks, zero))
        self.assertGreater(min(m["grad_norm"] for m in metrics(one)), 0.25)

    def test_a_run_goes_on_with_other_ranks_and_other_shares(self):
        whole, parts = self.folder / "whole", self.folder / "parts"
        same = {"grains": 4, "schedule": "constant", "warmup": 0}
        self.train(1, whole, steps=8, **same)
        self.train(4, parts, steps=2, zero=3, **same)
        self.ok("train", "--resume", parts, "--steps", 4)
        self.resume(2, parts, "--steps", 6, "--zero", 2)
        self.resume(4, parts, "--steps", 8, "--zero", 3)
        self.assertEqual(bits(parts, 8), bits(whole, 8))
        self.assertEqual([m["loss"] for m in metrics(parts)], [m["loss"] for m in metrics(whole)])

    def test_a_rank_that_is_killed_in_a_save_loses_nothing(self):
        same = {"save_every": 2, "keep": 0, "schedule": "constant", "warmup": 0, "zero": 3}
        plain, run = self.folder / "plain", self.folder / "run"
        self.train(2, plain, steps=6, **same)
        self.train(2, run, steps=2, **same)
        self.kill_in_save(run, 6)  # between tensors, while the other rank is asked for its shares
        self.assertEqual(bits(run, 6), bits(plain, 6))

    def test_the_plan_is_of_one_rank_and_there_are_no_samples(self):
        said = {}
        for zero in (0, 2, 3):
            run = self.folder / f"run{zero}"
            done = mpirun(2, "train", *some(steps=2, zero=zero, sample_tokens=4, sample_every=1), "--data", self.data,
                          "--out", run)
            self.assertEqual(done.returncode, 0, done.stderr)
            said[zero] = done.stderr
            self.assertRegex(done.stderr, r"memory \S+ \S+ per rank: parameters ")
            self.assertEqual("no samples: with --zero 3 no rank has all parameters" in done.stderr, zero == 3)
        self.assertNotIn("unit buffers", said[0])
        self.assertIn("unit buffers", said[2])
        self.assertIn("unit buffers", said[3])

    def test_a_grain_is_one_pass(self):
        run = self.folder / "run"
        for zero in (2, 3):
            done = mpirun(2, "train", *some(zero=zero, accumulate=4), "--data", self.data, "--out", run)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"--zero = {zero}: a grain must be one pass, and is 2 with --grains 2", done.stderr)
            self.assertIn("give --grains 4", done.stderr)
        done = mpirun(2, "train", *some(zero=2, accumulate=3, grains=2, batch=6), "--data", self.data, "--out", run)
        self.assertEqual(done.returncode, 2)
        self.assertFalse(run.exists())
        # A run keeps its grains.
        self.train(2, run, accumulate=4)
        done = mpirun(2, "train", "--resume", run, "--steps", 6, "--zero", 2)
        self.assertIn("give --zero 1: the run has its grains from its first step", done.stderr)


if __name__ == "__main__":
    driver.main()
