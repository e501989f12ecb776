"""Training in stages: mpirun starts a rank for each, and the bits equal those of one rank. Skips if
the build or the machine has no MPI."""
import os
import shutil
import signal
import unittest

import comm_test  # not its tests
import driver
import ranks_test  # not its tests
from comm_test import MODULE, mpirun
from ranks_test import some
from train_test import bits, checkpoints, metrics

# Clipped gradients, a validation whose last batch is short, as many layers as stages.
SMALL = {"layers": 4, "batch": 8, "steps": 2}


@unittest.skipUnless(MODULE.exists() and shutil.which("mpirun"), "no MPI here")
class Pipeline(driver.CliTest):
    setUpClass = classmethod(ranks_test.Ranks.setUpClass.__func__)
    train = ranks_test.Ranks.train
    resume = ranks_test.Ranks.resume

    def test_stages_have_the_bits_of_one_rank(self):
        families = {"tied": ("--model", "gpt2", "--tied", "yes"), "untied": ("--model", "qwen3", "--tied", "no"),
                    "diffusion": ("--model", "llama", "--objective", "diffusion", "--block", 8)}
        layouts = {"tied": ((4, 4, "--schedule", "1f1b", "--recompute", "full"), (4, 2, "--schedule", "gpipe")),
                   "untied": ((2, 2, "--pipeline-schedule", "gpipe", "--recompute", "light"), (4, 2, "--zero", 1)),
                   "diffusion": ((4, 4),)}
        for name, family in families.items():
            one = self.folder / name
            got = self.train(1, one, *family, grains=8, **SMALL)
            self.assertEqual([got["stages"], got["bubble_expected"], got["bubble_measured"]], [1, None, None])
            self.assertGreater(min(m["grad_norm"] for m in metrics(one)), 0.25)
            for ranks, stages, *more in layouts[name]:
                run = self.folder / f"{name}-{ranks}-{stages}"
                got = self.train(ranks, run, *family, "--pipeline", stages, *more, grains=8, **SMALL)
                micro = 8 // (ranks // stages)
                self.assertEqual([got["ranks"], got["stages"], got["micro_batches"]], [ranks, stages, micro])
                self.assertAlmostEqual(got["bubble_expected"], (stages - 1) / (micro + stages - 1))
                self.assertGreater(got["bubble_measured"], 0)
                self.assertLess(got["bubble_measured"], 1)
                self.assertEqual(metrics(run), metrics(one), run)
                self.assertEqual(bits(run, 2), bits(one, 2), run)

    def test_a_run_goes_on_with_another_layout(self):
        whole, parts = self.folder / "whole", self.folder / "parts"
        same = {**SMALL, "schedule": "constant", "warmup": 0}
        self.train(1, whole, grains=8, **{**same, "steps": 8})
        got = self.train(4, parts, "--pipeline", 4, "--micro-batches", 8, **same)
        self.assertEqual([got["grains"], got["micro_batches"]], [8, 8])
        self.ok("train", "--resume", parts, "--steps", 4)  # one rank has all stages
        self.resume(2, parts, "--steps", 6, "--pipeline", 1)
        got = self.resume(4, parts, "--steps", 8, "--pipeline", 2, "--micro-batches", 4)
        self.assertEqual([got["step"], got["stages"]], [8, 2])
        self.assertEqual(bits(parts, 8), bits(whole, 8))
        self.assertEqual([m["loss"] for m in metrics(parts)], [m["loss"] for m in metrics(whole)])
        done = mpirun(4, "train", "--resume", parts, "--steps", 9, "--micro-batches", 8)
        self.assertIn("--micro-batches = 8: 2 replicas of the model make 16 grains of it, and there are 8", done.stderr)

    def test_stages_and_bubble_are_told(self):
        # Three stages, and samples, which no rank can make.
        done = mpirun(3, "train", *some(**SMALL, sample_tokens=4), "--pipeline", 3, "--data",
                      self.data, "--out", self.folder / "run")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("pipeline: 3 stages of 1, 2, 1 layers, 4 micro-batches by 1f1b, bubble 33.3% expected; "
                      "memory of a rank by stage: ", done.stderr)
        self.assertIn("3 stages, 4 micro-batches: bubble 33.3% expected, ", done.stderr)
        self.assertEqual(done.stderr.count("no samples: no rank of a pipeline has all parameters"), 1)
        self.assertNotIn("a sample after", done.stderr)

    def test_what_a_pipeline_cannot_be_is_one_line(self):
        run = self.folder / "run"

        def words(**more):
            return ("train", *some(**{**SMALL, **more}), "--data", self.data, "--out", run)
        for more, said in (({"pipeline": 0}, "--pipeline = 0: must be at least 1"),
                           ({"pipeline": 4}, "--pipeline = 4: 1 rank cannot be divided into that many stages"),
                           ({"micro-batches": 3}, "--micro-batches = 3: must be a power of two"),
                           ({"micro-batches": 4, "grains": 2}, "makes 4 grains of it, and there are 2"),
                           ({"schedule": "gpipe"}, "--schedule = gpipe: only applies with --pipeline"),
                           ({"pipeline-schedule": "gpipe"}, "--pipeline-schedule: only applies with --pipeline")):
            self.fails(2, *words(**more), says=said)
        for ranks, more, said in ((3, {"pipeline": 2}, "3 ranks cannot be divided into that many stages"),
                                  (6, {"pipeline": 2}, "make 3 replicas of the model, which must be a power of two"),
                                  (2, {"pipeline": 2, "layers": 1}, "the model has 1 layer, and every stage"),
                                  (2, {"pipeline": 2, "micro-batches": 1, "tied": "yes"}, "give 2 or more"),
                                  (2, {"pipeline": 2, "zero": 2}, "--zero = 2: must be 0 or 1 with --pipeline"),
                                  (2, {"pipeline": 2, "micro-batches": 16}, "does not divide the 8 sequences")):
            done = mpirun(ranks, *words(**more))
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)
        self.assertFalse(run.exists())

    def test_a_stage_that_is_killed_ends_all_and_loses_nothing(self):
        run = self.folder / "run"
        job, ranks = ranks_test.start_ranks(self, 3, run, "--pipeline", 3, *ranks_test.PATIENT, layers=4, grains=4)
        os.kill(ranks[1], signal.SIGKILL)
        job.communicate(timeout=driver.HANG)
        self.assertNotEqual(job.returncode, 0)
        step = max(int(name.split("-")[1]) for name in checkpoints(run) if name.startswith("step-"))
        self.assertEqual(step % 20, 0)  # no extra checkpoint
        got = self.resume(2, run, "--pipeline", 2, "--steps", step + 1, "--save-every", 0)
        self.assertEqual(got["step"], step + 1)

    def test_a_stage_that_hangs_is_named_not_one_that_waits_for_it(self):
        run = self.folder / "run"
        # On a busy machine a rank that works may be silent for seconds, and has 4 to answer.
        job, ranks = ranks_test.start_ranks(self, 3, run, "--pipeline", 3, "--comm-timeout", 8, layers=4, grains=4)
        last = next(pid for pid in ranks if comm_test.Ranks.number(pid) == 2)
        os.kill(last, signal.SIGSTOP)
        _, err = job.communicate(timeout=driver.HANG)
        self.assertNotEqual(job.returncode, 0)
        first = next(line for line in err.splitlines() if "not answered" in line)
        self.assertRegex(first, r": rank 2 has not answered for 8 s")


if __name__ == "__main__":
    driver.main()
