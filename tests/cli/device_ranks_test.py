"""Training by several ranks on one shared GPU: gradients go through pinned host memory. The bits
equal those of one rank. Skips if there is no GPU or no MPI."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import unittest

import comm_test  # not its tests
import driver
import ranks_test  # not its tests
from comm_test import LAUNCH, MODULE, mpirun
from train_test import bits, checkpoints, metrics, pack_stories, shape


def some(**other):
    options = {"dim": 64, "layers": 2, "batch": 8, "steps": 4, "eval-every": 2, "eval-batches": 0,
               "sample-tokens": 0, "save-every": 2, "clip": 0.25, "lr": 0.01, "device": "cuda", "threads": 1}
    return shape(**{**options, **{name.replace("_", "-"): value for name, value in other.items()}})


FAMILIES = {"llama": ("--model", "llama"), "tied gpt2": ("--model", "gpt2", "--tied", "yes"),
            "bf16 masters": ("--model", "llama", "--masters", "bf16"),
            "diffusion": ("--model", "llama", "--objective", "diffusion", "--block", 8)}


@unittest.skipUnless(MODULE.exists() and shutil.which("mpirun"), "no MPI here")
class DeviceRanks(driver.CliTest):
    @classmethod
    def setUpClass(cls):
        driver.need_gpu()
        made = tempfile.TemporaryDirectory(prefix="millrace-device-ranks-")
        cls.addClassCleanup(made.cleanup)
        _, _, cls.data = pack_stories(pathlib.Path(made.name))

    def train(self, ranks, out, *more, **other):
        done = mpirun(ranks, "train", *some(**other), "--data", self.data, "--out", out, "--json", *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout), done.stderr

    def test_bits_are_the_same_on_1_and_2_ranks(self):
        for name, family in FAMILIES.items():
            runs = {}
            for ranks in (1, 2):
                run = self.folder / f"{name} {ranks}".replace(" ", "-")
                got, said = self.train(ranks, run, *family, grains=4)
                self.assertEqual([got["ranks"], got["grains"]], [ranks, 4])
                self.assertEqual("through pinned host memory" in said, ranks == 2, said)
                runs[ranks] = (metrics(run), bits(run, 2), bits(run, 4))
            self.assertTrue(runs[2] == runs[1], name)  # avoids printing a long difference
            self.assertEqual([m["skipped"] for m in runs[1][0]], [False] * 4)

    def test_shares_and_stages_have_the_same_bits(self):
        for name in ("tied gpt2", "bf16 masters"):
            layouts = [(1, ()), *((2, ("--zero", zero)) for zero in (1, 2, 3)), (2, ("--pipeline", 2)),
                       (2, ("--pipeline", 2, "--pipeline-schedule", "gpipe")),
                       (4, ("--pipeline", 2, "--zero", 1))]
            runs = []
            for number, (ranks, layout) in enumerate(layouts):
                run = self.folder / f"{name} {number}".replace(" ", "-")
                got, _ = self.train(ranks, run, *FAMILIES[name], *layout, grains=4)
                self.assertEqual([got["ranks"], got["grains"]], [ranks, 4])
                runs.append((metrics(run), bits(run, 2), bits(run, 4)))
            for layout, run in zip(layouts, runs):
                self.assertTrue(run == runs[0], (name, layout))

    def test_a_run_goes_on_with_another_number_of_ranks(self):
        whole, run = self.folder / "whole", self.folder / "parts"
        same = {"grains": 2, "schedule": "constant", "warmup": 0}
        self.train(1, whole, steps=6, **same)
        self.train(2, run, steps=2, **same)
        for ranks, steps, layout in ((1, 4, ()), (2, 5, ("--pipeline", 2)),
                                     (2, 6, ("--pipeline", 1, "--zero", 3))):
            done = mpirun(ranks, "train", "--resume", run, "--steps", steps, *layout)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(bits(run, 6) == bits(whole, 6))

    def test_what_cannot_be_is_one_line(self):
        done = mpirun(2, "train", *some(), "--data", self.data, "--out", self.folder / "x", "--reduce", "fast")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--reduce", done.stderr)

    def test_a_killed_rank_ends_the_others(self):
        run = self.folder / "killed"
        started = subprocess.Popen(
            ["mpirun", "-n", "2", driver.BIN, "train", *map(str, some(steps=100000, save_every=20, eval_every=0)),
             "--data", self.data, "--out", run, *map(str, ranks_test.PATIENT)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **LAUNCH})
        self.addCleanup(started.kill)
        ranks_test.wait_for_checkpoint(self, started, run)
        ranks = comm_test.Ranks.ranks_of(started.pid)
        self.assertEqual(len(ranks), 2)
        os.kill(ranks[1], signal.SIGKILL)
        started.communicate(timeout=driver.HANG)
        self.assertNotEqual(started.returncode, 0)
        last = max(int(name.split("-")[1]) for name in checkpoints(run) if name.startswith("step-"))
        done = mpirun(2, "train", "--resume", run, "--steps", last + 3, "--device", "cuda", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["step"], last + 3)


if __name__ == "__main__":
    unittest.main()
