"""Training by several ranks: mpirun starts them, and the bits are equal on any number of ranks.
Skips if the build or the machine has no MPI."""
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
from comm_test import LAUNCH, MODULE, mpirun
from train_test import bits, checkpoints, metrics, pack_stories, shape



def some(**other):
    """Options of a run: clipped gradients, a validation whose last batch is short."""
    options = {"layers": 2, "batch": 8, "steps": 4, "eval-every": 2, "eval-batches": 0, "sample-tokens": 0,
               "save-every": 0, "clip": 0.25, "lr": 0.01, "device": "cpu", "threads": 1}
    return shape(**{**options, **{name.replace("_", "-"): value for name, value in other.items()}})


def start_ranks(test, count, run, *more, env=None, **other):
    """Ranks that train for a long time, and the process of each."""
    job = subprocess.Popen(
        ["mpirun", "-n", str(count), driver.BIN, "train",
         *some(steps=1000000, save_every=20, eval_every=0, eval_batches=1, **other), *map(str, more), "--data",
         test.data, "--out", run],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **LAUNCH, **(env or {})})
    test.addCleanup(job.kill)
    wait_for_checkpoint(test, job, run)
    ranks = comm_test.Ranks.ranks_of(job.pid)
    test.assertEqual(len(ranks), count)
    return job, ranks


# A rank that waits for another does not give up before the test does.
PATIENT = ("--comm-timeout", 10 * driver.HANG)


def wait_for_checkpoint(test, job, run):
    def saved():
        return any(name.startswith("step-") for name in checkpoints(run))

    driver.eventually(lambda: saved() or job.poll() is not None)
    if not saved():
        job.kill()
        test.fail(f"there is no checkpoint: {job.communicate(timeout=driver.HANG)[1]}")


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

    def kill_in_save(self, run, point):
        """Two ranks resume from step 2, and the first is killed while it saves step 4. Then they
        end at 6."""
        again = [driver.FAULTY, "train", "--resume", str(run), "--steps", "6"]
        done = subprocess.run(
            ["mpirun", "-n", "1", "env", f"MILLRACE_FAULT=save:{point}", *again, ":", "-n", "1", *again],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=driver.HANG,
            env={**os.environ, **LAUNCH})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("step-000002", checkpoints(run))
        self.assertNotIn("step-000006", checkpoints(run))
        self.assertEqual(self.resume(2, run, "--steps", 6)["step"], 6)

    def test_bits_are_the_same_on_1_2_and_4_ranks(self):
        for name, family in FAMILIES.items():
            for accumulate in (1, 2) if name == "llama" else (2,):
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

    def test_ranks_that_share_the_optimizer_have_the_same_bits(self):
        for name in ("tied gpt2", "bf16 masters"):
            runs, memory = {}, {}
            for ranks, zero in ((1, 0), (2, 1), (4, 1)):
                run = self.folder / f"{name} {ranks}".replace(" ", "-")
                got = self.train(ranks, run, *FAMILIES[name], grains=4, zero=zero, save_every=2)
                runs[ranks] = (metrics(run), bits(run, 2), bits(run, 4))
                memory[ranks] = got["memory_bytes"]
            self.assertEqual(runs[2], runs[1], name)
            self.assertEqual(runs[4], runs[1], name)
            self.assertLess(memory[4], memory[2])
        # With another number of ranks and shares it continues unchanged.
        run, whole = self.folder / "parts", self.folder / "whole"
        same = {"grains": 4, "schedule": "constant", "warmup": 0}
        self.train(1, whole, steps=6, **same)
        self.train(4, run, steps=2, zero=1, **same)
        self.resume(2, run, "--steps", 4)
        self.resume(2, run, "--steps", 6, "--zero", 0)
        self.assertEqual(bits(run, 6), bits(whole, 6))

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
                           ({"zero": 4}, "--zero = 4: must be from 0 to 3"), ({"bucket": 0}, "--bucket")):
            self.fails(2, "train", *some(**more), "--data", self.data, "--out", run, says=said)
        words = ("train", *some(), "--data", self.data, "--out", run)
        done = mpirun(4, *words, "--grains", 2)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--grains = 2: 4 ranks do not divide it", done.stderr)
        done = mpirun(3, *words)
        self.assertEqual(done.returncode, 2)
        self.assertIn("ranks = 3: must be a power of two", done.stderr)
        self.assertFalse(run.exists())
        # A run keeps its grains.
        self.train(2, run)
        self.fails(2, "train", "--resume", run, "--grains", 4, says="--grains")
        done = mpirun(4, "train", "--resume", run)
        self.assertIn("4 ranks do not divide it", done.stderr)

    def differing(self, first, second, program=driver.BIN):
        """Two ranks with different arguments each, and another program for the second: their
        messages."""
        def words(of):
            return [driver.BIN if of is first else program, *map(str, of)]
        done = subprocess.run(["mpirun", "-n", "1", *words(first), ":", "-n", "1", *words(second)],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=driver.HANG, env={**os.environ, **LAUNCH})
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
        self.ok(driver.LAB, "story", "write", "--stories", 30, "--seed", 9, "--out", text)
        self.ok("data", "pack", "--data", text, "--tokenizer", self.base / "tok", "--val-docs", 2, "--out",
                other / "data")
        said = self.differing((*words, self.data), (*words, other / "data"))
        self.assertIn("rank 1 of 2: data hash = ", said)
        # Another version: a copy of the program with another version string.
        compiler = self.ok("--version").out.splitlines()[0].split(", ")[-2].encode()
        image = pathlib.Path(driver.BIN).read_bytes()
        self.assertIn(compiler, image)
        program = self.folder / "bin" / "millrace"
        program.parent.mkdir()
        (program.parent / MODULE.name).symlink_to(MODULE)
        program.write_bytes(image.replace(compiler, compiler[:-1] + b"X"))
        program.chmod(0o755)
        said = self.differing((*words, self.data), (*words, self.data), program)
        self.assertRegex(said, "rank 1 of 2: program = .*X.*: rank 0 has program = ")
        self.assertEqual(checkpoints(run), [])

    def test_ranks_may_have_different_threads(self):
        plain, run = self.folder / "plain", self.folder / "run"
        self.train(2, plain)
        words = [driver.BIN, "train", *some(), "--data", self.data, "--out", run]
        at = words.index("--threads")
        done = subprocess.run(["mpirun", "-n", "1", *words, ":", "-n", "1", *words[:at], *words[at + 2:]],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=driver.HANG, env={**os.environ, **LAUNCH})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(bits(run, 4), bits(plain, 4))

    def start(self, run, *more, **env):
        return start_ranks(self, 2, run, *more, env=env)

    def test_a_rank_that_is_killed_ends_all_and_loses_nothing(self):
        for victim in (0, 1):
            run = self.folder / f"run{victim}"
            job, ranks = self.start(run, *PATIENT)
            os.kill(ranks[victim], signal.SIGKILL)
            job.communicate(timeout=driver.HANG)
            self.assertNotEqual(job.returncode, 0)
            steps = [int(name.split("-")[1]) for name in checkpoints(run) if name.startswith("step-")]
            self.assertEqual([step % 20 for step in steps], [0] * len(steps))  # no extra checkpoint
            got = self.resume(2, run, "--steps", max(steps) + 3, "--save-every", 0)
            self.assertEqual(got["step"], max(steps) + 3)

    def test_a_rank_that_is_killed_in_a_save_loses_nothing(self):
        same = {"save_every": 2, "keep": 0, "schedule": "constant", "warmup": 0}
        plain = self.folder / "plain"
        self.train(2, plain, steps=6, **same)
        for point in (1, 10):
            run = self.folder / f"run{point}"
            self.train(2, run, steps=2, **same)
            self.kill_in_save(run, point)
            self.assertEqual(bits(run, 6), bits(plain, 6))

    def test_samples_reports_and_threads_change_no_bit(self):
        plain, run = self.folder / "plain", self.folder / "run"
        self.train(2, plain)
        got = self.train(2, run, sample_tokens=4, sample_every=2, save_every=2, threads=2)
        self.assertEqual(bits(run, 4), bits(plain, 4))
        report = driver.Page(run / "report.html")
        # The first rank's, which has samples and the device.
        self.assertIn("CPU, 2 threads", report.text)
        self.assertIn("Samples", [one["title"] for one in report.sections("texts")])
        self.assertEqual(got["checkpoint"], str(run / "checkpoints" / "step-000004"))

    def test_a_validation_that_was_missed_is_made_by_all(self):
        run = self.folder / "run"
        self.train(2, run)
        log = run / "metrics.jsonl"
        lines = log.read_text().splitlines()
        last = json.loads(lines[-1])
        missing = {key: value for key, value in last.items() if key not in ("val_loss", "bits_per_byte")}
        log.write_text("\n".join([*lines[:-1], json.dumps(missing)]) + "\n")
        self.resume(2, run)
        again = json.loads(log.read_text().splitlines()[-1])
        self.assertEqual(again["val_loss"], last["val_loss"])
        self.assertEqual(again["bits_per_byte"], last["bits_per_byte"])

    def test_a_damaged_checkpoint_is_left_by_all(self):
        plain, run = self.folder / "plain", self.folder / "run"
        same = {"save_every": 2, "keep": 0}
        self.train(2, plain, **same)
        self.train(2, run, **same)
        file = run / "checkpoints" / "step-000004" / "optimizer.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        self.assertEqual(self.resume(2, run)["step"], 4)
        self.assertEqual(bits(run, 4), bits(plain, 4))
        self.assertIn("damaged-step-000004", checkpoints(run))

    def test_gradients_that_are_not_finite_end_all_with_one_line(self):
        run = self.folder / "run"
        done = mpirun(2, "train", *some(lr=1e30, steps=40, clip=0, eval_every=0), "--max-skips", 2, "--warmup", 0,
                      "--data", self.data, "--out", run)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count("(--max-skips)"), 1)
        self.assertTrue((run / "report.html").exists())

    def test_a_signal_to_mpirun_saves_and_ends_all(self):
        run = self.folder / "run"
        # mpirun kills ranks this many seconds after it has told them to end.
        job, _ = self.start(run, OMPI_MCA_odls_base_sigkill_timeout="3",
                            PRTE_MCA_odls_base_sigkill_timeout="3")
        job.send_signal(signal.SIGTERM)
        _, err = job.communicate(timeout=driver.HANG)
        step = int(err.split("stopped after step ")[1].split(":")[0])
        self.assertIn(f"step-{step:06}", checkpoints(run))

    def test_a_signal_to_one_rank_saves_and_ends_all(self):
        run = self.folder / "run"
        job, ranks = self.start(run)
        os.kill(ranks[1], signal.SIGTERM)
        _, err = job.communicate(timeout=driver.HANG)
        self.assertIn("stopped after step", err)
        step = int(err.split("stopped after step ")[1].split(":")[0])
        self.assertIn(f"step-{step:06}", checkpoints(run))
        self.assertEqual(self.resume(1, run, "--steps", step + 2)["step"], step + 2)


if __name__ == "__main__":
    driver.main()
