#!/usr/bin/env python3
"""millrace train: runs, resuming bit for bit, kills, Ctrl-C, refusals."""
import array
import fcntl
import json
import math
import os
import pathlib
import pty
import random
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import termios
import time

import driver
from driver import BIN, FAULTY, millrace


def shape(**other):
    options = {"dim": 32, "layers": 1, "heads": 2, "batch": 2, "seq": 32, **other}
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


SHAPE = shape()
QUIET = ["--sample-tokens", "0", "--eval-every", "0", "--eval-batches", "1", "--threads", "1"]


def pack_stories(base):
    """40 stories, their tokenizer and their data, under `base`: the three paths."""
    text, tok, data = base / "s.txt", base / "tok", base / "data"
    for command in ([driver.LAB, "story", "write", "--stories", "40", "--seed", "1", "--out", text],
                    ["tokenizer", "train", "--data", text, "--vocab", "280", "--out", tok],
                    ["data", "pack", "--data", text, "--tokenizer", tok, "--val-docs", "2",
                     "--out", data]):
        result = millrace(*command)
        assert result.code == 0, (command, result.err)
    return text, tok, data


def metrics(run):
    """Every line of a run's metrics without times."""
    keys = ("step", "loss", "val_loss", "masked", "lr", "grad_norm", "skipped")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k in keys} for line in lines]


def checkpoints(run):
    folder = run / "checkpoints"
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def bits(run, step):
    folder = run / "checkpoints" / f"step-{step:06}"
    return [(folder / f"{name}.safetensors").read_bytes() for name in ("model", "optimizer")]


class TrainTest(driver.CliTest):
    @classmethod
    def setUpClass(cls):
        made = tempfile.TemporaryDirectory(prefix="millrace-train-")
        cls.addClassCleanup(made.cleanup)
        base = pathlib.Path(made.name)
        _, _, cls.data = pack_stories(base)
        # The reference for all others: six steps, a checkpoint after every second.
        cls.whole = base / "whole"
        result = millrace("train", *SHAPE, *QUIET, *cls.steps(), "--data", cls.data, "--out",
                          cls.whole, "--keep", "0", "--json")
        assert result.code == 0, result.err
        cls.result = result.json()

    @staticmethod
    def steps():
        return ["--steps", "6", "--save-every", "2"]

    def start(self, run, *more, **kwargs):
        return millrace("train", *SHAPE, *QUIET, *self.steps(), "--data", self.data, "--out", run,
                        *more, **kwargs)

    def assert_same_end(self, run):
        self.assertEqual(bits(run, 6), bits(self.whole, 6))
        self.assertEqual(metrics(run), metrics(self.whole))

    def test_a_run_leaves_a_model_metrics_and_a_report(self):
        self.assertEqual(self.result["step"], 6)
        self.assertEqual(checkpoints(self.whole), ["step-000002", "step-000004", "step-000006"])
        lines = metrics(self.whole)
        self.assertEqual([m["step"] for m in lines], [1, 2, 3, 4, 5, 6])
        self.assertIn("val_loss", lines[-1])
        self.assertLess(lines[-1]["loss"], lines[0]["loss"])
        self.assertEqual(self.result["loss"], lines[-1]["loss"])
        self.assertEqual(driver.Page(self.whole / "report.html").elsewhere, [])
        made = self.ok_json("run", self.whole, "-p", "Once", "-n", "4", "--temp", "0")
        self.assertEqual(len(made["ids"]), 4)
        self.ok("convert", self.whole, self.folder / "m.gguf")
        self.assertEqual(self.ok_json("info", self.folder / "m.gguf")["model"]["name"], "whole")
        other = self.folder / "checkpoints" / "mine"  # a folder of that name does not make a run
        shutil.copytree(self.whole / "checkpoints" / "step-000006", other)
        self.assertEqual(self.ok_json("info", other)["model"]["name"], "mine")
        again = self.ok_json("run", self.folder / "m.gguf", "-p", "Once", "-n", "4", "--temp", "0")
        self.assertEqual(again["text"], made["text"])

    def test_what_a_run_shows(self):
        run = self.folder / "run"
        err = self.ok("train", *SHAPE, "--steps", "6", "--eval-every", "3", "--eval-batches", "1",
                      "--sample-every", "3", "--sample-tokens", "4", "--threads", "1", "--data",
                      self.data, "--out", run).err
        self.assertRegex(err, r"memory [\d.]+ .iB: parameters .*, gradients .*, optimizer .*, "
                         r"activations ")
        for step in (3, 6):
            self.assertRegex(err, rf"step {step}/6  loss [\d.]+  val [\d.]+  \d+ tok/s  "
                             r"data wait \d+%  [\d.]+ .iB  .* left\n")
            self.assertIn(f"--- a sample after step {step}:\n", err)
        self.assertRegex(err, r"done after step 6: loss [\d.]+, validation [\d.]+ \([\d.]+ bits per "
                         r"byte\) over 64 tokens, \d+ tok/s, .* of training; .*/report.html\n")
        page = driver.Page(run / "report.html")
        for part in ("Loss, nats per token", "Learning rate", "Gradient norm", "Throughput",
                     "Stages", "Memory plan", "Samples", "step 3",
                     "CPU, 1 thread"):
            self.assertIn(part, page.text)
        self.assertIn("attention", [row["operation"] for row in page.table("Stages")])
        self.assertIn("activations", [row["what"] for row in page.table("Memory plan")])

    def test_bits_per_byte_are_of_the_tokens_that_were_validated(self):
        vocab = json.loads((self.data / "tokenizer.json").read_text())["model"]["vocab"]
        size = {id: len(piece) for piece, id in vocab.items()}  # one character per byte
        ids = array.array("H", (self.data / "val-00000.bin").read_bytes()[64:])
        end = ids[0]
        everything = self.ok_json("train", *SHAPE, "--eval-batches", "0", "--steps", "1",
                                  "--sample-tokens", "0", "--data", self.data, "--out",
                                  self.folder / "run")
        # One batch of two rows of 32, and all whole rows.
        for result, tokens in ((self.result, 64), (everything, (len(ids) - 1) // 32 * 32)):
            self.assertEqual(result["val_tokens"], tokens)
            text = sum(0 if id == end else size[id] for id in ids[1:tokens + 1])
            self.assertAlmostEqual(result["bits_per_byte"],
                                   result["val_loss"] * tokens / math.log(2) / text, places=9)

    def test_resuming_gives_the_same_bits_with_any_threads_and_recomputation(self):
        run = self.folder / "run"
        shutil.copytree(self.whole, run)
        for step in (4, 6):
            shutil.rmtree(run / "checkpoints" / f"step-{step:06}")
        went_on = self.ok("train", "--resume", run, "--threads", "2", "--prefetch", "0", "--recompute",
                          "full")
        self.assertIn("\ngoing on after 2 of 6 steps of 64 tokens (2 x 32), ", went_on.err)
        self.assert_same_end(run)
        # With no steps left nothing is done. A run of the CPU stays there, whatever the variable says.
        self.assertEqual(self.ok_json("train", "--resume", run)["step"], 6)
        stayed = self.ok("train", "--resume", run, env={"MILLRACE_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": ""})
        self.assertIn("no step was left", stayed.err)
        self.assertRegex(self.ok("train", "--resume", run).err,
                         r"done after step 6: loss [\d.]+, validation [^;]* tokens, [^;]* of training;"
                         r".*\nno step was left: for more, give --steps beyond 6\n$")
        self.assert_same_end(run)

    def test_the_same_seed_gives_the_same_run_and_another_seed_another(self):
        same, other = self.folder / "same", self.folder / "other"
        began = self.start(same, "--seed", "1")
        self.assertEqual(began.code, 0)
        self.assertIn("llama: 1 layer of 32, ", began.err)
        self.assertIn("\ntraining 6 steps of 64 tokens (2 x 32), ", began.err)
        self.assertEqual(self.start(other, "--seed", "2").code, 0)
        self.assert_same_end(same)
        for mine, theirs in zip(metrics(other), metrics(self.whole)):
            self.assertNotEqual(mine["loss"], theirs["loss"])

    def test_bf16_masters_resume_with_the_same_bits(self):
        whole, run = self.folder / "whole16", self.folder / "run16"
        result = self.start(whole, "--masters", "bf16", "--keep", "0")
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("bf16, rounded by chance", driver.Page(whole / "report.html").text)
        shutil.copytree(whole, run)
        for step in (4, 6):
            shutil.rmtree(run / "checkpoints" / f"step-{step:06}")
        self.ok("train", "--resume", run, "--threads", "2")
        self.assertEqual(bits(run, 6), bits(whole, 6))
        self.assertEqual(metrics(run), metrics(whole))
        # It differs from the run with f32 masters, and learns like it.
        self.assertNotEqual(bits(whole, 6), bits(self.whole, 6))
        self.assertAlmostEqual(metrics(whole)[-1]["loss"], metrics(self.whole)[-1]["loss"], 1)
        self.fails(2, "train", "--resume", whole, "--masters", "f32", says="--masters")
        self.assertEqual(self.start(self.folder / "other", "--masters", "f16").code, 2)
        # A checkpoint from before the option existed.
        state = whole / "checkpoints" / "step-000006" / "state.json"
        text = state.read_text().replace('    "masters": "bf16",\n', "")
        state.write_text(re.sub(r'  "(config_)?hash": ".*",\n', "", text))
        self.assertNotIn('"masters"', state.read_text())
        self.assertNotIn('"hash"', state.read_text())
        self.ok("train", "--resume", whole)

    def test_killed_at_points_of_saving_it_goes_on_as_if_never_stopped(self):
        points = random.Random(7).sample(range(1, 40), 7)
        killed = 0
        for point in points:
            run = self.folder / f"run{point}"
            result = self.start(run, "--keep", "1", program=FAULTY,
                                env={"MILLRACE_FAULT": f"save:{point}"})
            if result.code == 0:
                continue  # there are fewer points
            self.assertEqual(result.code, -signal.SIGKILL)
            killed += 1
            whole = [name for name in checkpoints(run) if name.startswith("step-")]
            again = (self.start(run) if not whole else millrace("train", "--resume", run))
            self.assertEqual(again.code, 0, again.err)
            self.assert_same_end(run)
            # No half-written file is left.
            self.assertEqual([n for n in checkpoints(run) if n.startswith(".")], [])
        self.assertGreaterEqual(killed, 4)

    def test_faults_are_for_the_tests_program_alone(self):
        run = self.folder / "run"
        result = self.start(run, env={"MILLRACE_FAULT": "save:1"})
        self.assertEqual(result.code, 0, result.err)
        self.assert_same_end(run)
        self.assertNotIn(b"MILLRACE_FAULT", pathlib.Path(BIN).read_bytes())
        # ... and it refuses an unknown fault.
        self.assertEqual(self.start(run, program=FAULTY, env={"MILLRACE_FAULT": "save:x"}).code, 2)

    def test_killed_at_any_time(self):
        run = self.folder / "run"
        process = subprocess.Popen(
            [BIN, "train", *SHAPE, *QUIET, "--steps", "6", "--save-every", "1", "--data",
             str(self.data), "--out", str(run)], stderr=subprocess.DEVNULL)
        time.sleep(random.Random().uniform(0.02, 0.3))
        process.kill()
        process.wait()
        whole = [name for name in checkpoints(run) if name.startswith("step-")]
        again = self.start(run) if not whole else millrace("train", "--resume", run)
        self.assertEqual(again.code, 0, again.err)
        self.assert_same_end(run)

    def test_ctrl_c_saves_and_leaves(self):
        run, process = self.running(stderr=subprocess.PIPE)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)  # repeated Ctrl-C
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn(b"stopping: this step is finished and saved first", err)
        self.assertIn(b"--resume", err)
        self.assert_saved_last_step(run)

    def test_ctrl_c_again_does_not_cut_the_save(self):
        run, process = self.running(stderr=subprocess.PIPE, program=FAULTY,
                                    env={**os.environ, "MILLRACE_FAULT": "ctrl-c:3"})
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn(b"still saving", err)
        self.assert_saved_last_step(run)

    def running(self, *more, data=None, program=BIN, **kwargs):
        """A run without end, after its first step."""
        run = self.folder / "run"
        process = subprocess.Popen(
            [program, "train", *SHAPE, *QUIET, "--steps", "100000", "--save-every", "0", "--data",
             str(data or self.data), "--out", str(run), *more], **kwargs)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        while not (run / "metrics.jsonl").exists() or not metrics(run):
            self.assertIsNone(process.poll(), "it ended by itself")
            time.sleep(0.02)
        return run, process

    def assert_saved_last_step(self, run):
        (last,) = checkpoints(run)
        self.assertEqual(last, f"step-{metrics(run)[-1]['step']:06}")
        self.assertEqual(len(metrics(run)), metrics(run)[-1]["step"])
        self.assertTrue((run / "report.html").exists())

    def test_standard_error_that_takes_no_more_changes_nothing(self):
        def gone():  # the reader of a pipe has gone
            read, write = os.pipe()
            os.close(read)
            return write

        full = os.open("/dev/full", os.O_WRONLY)
        for name, fd in (("pipe", gone()), ("full", full), ("closed", None)):
            run = self.folder / name
            to = {"stderr": fd} if fd else {"preexec_fn": lambda: os.close(2)}
            code = subprocess.call(
                [BIN, "train", *SHAPE, *QUIET, *self.steps(), "--data", str(self.data), "--out",
                 str(run)], **to)
            self.assertEqual(code, 0, name)
            self.assert_same_end(run)
            # Nor does it change how an error ends.
            self.assertEqual(subprocess.call([BIN, "info", "/no/such/model"], **to), 1)
            if fd:
                os.close(fd)

    def test_a_terminal_that_is_closed_saves(self):
        ours, theirs = pty.openpty()

        def in_front():  # in the terminal's foreground: it gets SIGHUP when the terminal is closed
            os.setsid()
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        run, process = self.running(stderr=theirs, preexec_fn=in_front)
        os.close(theirs)
        os.close(ours)
        process.send_signal(signal.SIGHUP)  # as a shell also does for its jobs
        self.assertEqual(process.wait(60), 128 + signal.SIGHUP)
        self.assert_saved_last_step(run)

    def test_accumulation_init_and_the_other_families(self):
        for family in ("qwen3", "gpt2", "gpt-neox"):
            run = self.folder / family
            self.ok("train", "--model", family, *SHAPE, *QUIET, "--steps", "2", "--accumulate", "2",
                    "--data", self.data, "--out", run)
            self.ok("run", run, "-p", "Once", "-n", "2")
        tuned = self.ok_json("train", "--init", self.whole, "--batch", "2", "--seq", "32", *QUIET,
                             "--steps", "2", "--data", self.data, "--out", self.folder / "tuned")
        # A rate for fine-tuning, unless another is given.
        self.assertLess(max(m["lr"] for m in metrics(self.folder / "tuned")), 1.001e-4)
        self.ok("train", "--init", self.whole, "--batch", "2", "--seq", "32", *QUIET, "--lr", "1e-3",
                "--steps", "2", "--data", self.data, "--out", self.folder / "fast")
        self.assertGreater(max(m["lr"] for m in metrics(self.folder / "fast")), 4e-4)
        # It starts from the other model, not from scratch.
        self.assertLess(tuned["loss"], metrics(self.whole)[0]["loss"])
        # Also from a quantised file: its weights in f32.
        self.ok("convert", self.whole, self.folder / "q8.gguf", "--type", "q8_0")
        other = self.ok_json("train", "--init", self.folder / "q8.gguf", "--batch", "2", "--seq",
                             "32", *QUIET, "--steps", "2", "--data", self.data, "--out",
                             self.folder / "from_q8")
        self.assertAlmostEqual(other["loss"], tuned["loss"], places=2)
        self.assertNotEqual(other["loss"], tuned["loss"])

    def test_steps_without_a_finite_gradient_end_the_run(self):
        result = self.start(self.folder / "run", "--lr", "1e30", "--warmup", "0", "--clip", "0",
                            "--max-skips", "3")
        self.assertEqual(result.code, 1)
        self.assertIn("3 steps in a row had no finite gradient", result.err)
        self.assertEqual([m["skipped"] for m in metrics(self.folder / "run")][-3:], [True] * 3)

    def test_a_full_disk_leaves_the_last_checkpoint(self):
        run = self.folder / "run"
        shutil.copytree(self.whole, run)
        shutil.rmtree(run / "checkpoints" / "step-000006")
        before = bits(run, 4)

        def limit():  # a limit on file sizes simulates a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        result = millrace("train", "--resume", run, preexec_fn=limit)
        self.assertEqual(result.code, 1)
        self.assertIn("cannot be written", result.err.splitlines()[-1])
        self.assertEqual(checkpoints(run), ["step-000002", "step-000004"])
        self.assertEqual(bits(run, 4), before)
        self.ok("train", "--resume", run)
        self.assert_same_end(run)

    def test_damaged_checkpoints_are_left_for_the_one_before(self):
        def damage(run, step, name, change):
            file = run / "checkpoints" / f"step-{step:06}" / name
            changed = change(file.read_bytes())
            file.unlink()
            file.write_bytes(changed)

        run = self.folder / "run"
        for name, change, says in (
                ("optimizer.safetensors", lambda b: b[:-2000] + b"12345678" + b[-1992:], "damaged"),
                ("model.safetensors", lambda b: b[:-8] + b"12345678", "damaged"),
                ("state.json", lambda b: b.replace(b'"seq": 32', b'"seq": "x"'), "options.seq"),
                ("state.json", lambda b: b.replace(b'"seq": 32', b'"seq": 0'), "--seq"),
                ("state.json", lambda b: b.replace(b'"seed": ', b'"seed": 9'), "state.json: hash"),
                ("config.json", lambda b: b.replace(b"10000.0", b"20000.0"),
                 "config.json: config_hash"),
                ("config.json", lambda b: b"{}", "config.json")):
            shutil.copytree(self.whole, run)
            damage(run, 6, name, change)
            err = self.ok("train", "--resume", run).err
            (line,) = [line for line in err.splitlines() if "damaged" in line]
            for part in (says, "step-000006", "going on from step 4", "damaged-step-000006"):
                self.assertIn(part, line)
            self.assert_same_end(run)
            self.assertEqual(checkpoints(run),
                             ["damaged-step-000006", *(f"step-{n:06}" for n in (2, 4, 6))])
            shutil.rmtree(run)
        # Two of three are damaged, and again where they were put aside before.
        shutil.copytree(self.whole, run)
        for _ in range(2):
            for step in (4, 6):
                damage(run, step, "model.safetensors", lambda b: b[:-1])
            self.assertIn("going on from step 2", self.ok("train", "--resume", run).err)
            self.assert_same_end(run)
        # If all are damaged, the newest is named, and nothing is changed.
        for step in (2, 4, 6):
            damage(run, step, "state.json", lambda b: b[:-9])
        before = checkpoints(run)
        self.fails(1, "train", "--resume", run, says=["step-000006", "damaged", "2 before it"])
        self.assertEqual(checkpoints(run), before)
        for step in (2, 4):
            shutil.rmtree(run / "checkpoints" / f"step-{step:06}")
        self.fails(1, "train", "--resume", run, says=["step-000006", "none before it", "--init"])
        # A checkpoint of another version is not damaged.
        shutil.rmtree(run)
        shutil.copytree(self.whole, run)
        damage(run, 6, "state.json", lambda b: b.replace(b'"version": 1', b'"version": 99'))
        self.fails(1, "train", "--resume", run, says=["state.json", "99", "the program that wrote"])

    def test_a_shard_that_is_cut_under_a_run(self):
        shutil.copytree(self.data, self.folder / "data")
        run, process = self.running(data=self.folder / "data", stderr=subprocess.PIPE)
        os.truncate(self.folder / "data" / "train-00000.bin", 64)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, err)
        self.assertIn("train-00000.bin", err.decode().splitlines()[-1])
        self.assertIn("was truncated while in use", err.decode().splitlines()[-1])
        self.assert_saved_last_step(run)

    def test_data_that_is_not_the_runs(self):
        run, text, other = (self.folder / name for name in ("run", "t.txt", "other"))
        shutil.copytree(self.whole, run)
        self.ok(driver.LAB, "story", "write", "--stories", 30, "--seed", 2, "--out", text)
        self.ok("data", "pack", "--data", text, "--tokenizer", self.data, "--val-docs", 2, "--out",
                other)
        self.fails(1, "train", "--resume", run, "--data", other, says="other data")
        # A shard of another tokenizer among the run's own.
        tok, mixed = self.folder / "tok", self.folder / "mixed"
        self.ok("tokenizer", "train", "--data", text, "--vocab", 300, "--out", tok)
        self.ok("data", "pack", "--data", text, "--tokenizer", tok, "--val-docs", 2, "--out", mixed)
        shutil.copy(self.data / "train-00000.bin", mixed / "train-00000.bin")
        self.fails(1, "train", *SHAPE, *QUIET, "--data", mixed, "--out", self.folder / "out",
                   says="train-00000.bin")

    def test_every_option_is_taken_by_resume_or_refused(self):
        taken = {"--data": self.data, "--steps": 7, "--max-skips": 8, "--eval-every": 3,
                 "--eval-batches": 2, "--save-every": 4, "--sample-every": 5, "--sample-tokens": 3,
                 "--prompt": "The", "--keep": 9, "--recompute": "light", "--prefetch": 1,
                 "--threads": 2, "--bucket": 2.5, "--zero": 1, "--reduce": "fast", "--pipeline": 1,
                 "--pipeline-schedule": "gpipe"}
        run = self.folder / "run"
        shutil.copytree(self.whole, run)
        self.ok("train", "--resume", run, *(word for pair in taken.items() for word in pair))
        state = json.loads((run / "checkpoints" / "step-000007" / "state.json").read_text())
        for name, value in taken.items():
            kept = state["options"][name[2:].replace("-", "_")]
            self.assertEqual(kept, str(value) if name == "--data" else value, name)
        # The report still begins with the command that made the run.
        command = state["options"]["command"].splitlines()
        self.assertIn("--seq 32", command[0])
        self.assertIn("--resume", command[1])
        self.assertIn(command[0], driver.Page(run / "report.html").text)
        # Every option and what its value is called: N, or the words that it may be.
        names = dict(re.findall(r"^ +(?:-\w, )?(--[a-z0-9-]+) (\S*)",
                                self.ok("train", "--help-all").out, re.M))
        self.assertGreater(len(names), 40)
        for name in sorted(set(names) - set(taken) - {"--help", "--help-all", "--resume", "--device",
                                                      "--json", "--comm-timeout", "--micro-batches"}):
            value = names[name].split("|")[0] if "|" in names[name] else "1"
            given = [name, value] if names[name] else [name]  # a flag has no value
            self.fails(2, "train", "--resume", self.whole, *given, says=[name, "--resume"])
        self.fails(2, "train", "--resume", self.whole, "--steps", "5", says=["--steps", "6"])

    def test_what_is_refused(self):
        out = ["--out", self.folder / "out"]

        def new(*more, **other):
            return ["train", *shape(**other), *QUIET, "--data", self.data, *more]

        self.fails(2, *new(), "--out", self.whole, says="--resume")
        self.fails(2, *new(), says="--out")
        self.fails(2, "train", *out, says="--data")
        self.fails(2, "train", "--resume", self.whole, "--lr", "1", says="--lr")
        self.fails(1, "train", "--resume", self.folder / "none", says="no checkpoint")
        self.fails(1, "train", "--data", self.folder / "none", *out, says="none")
        self.fails(2, *new(*out, "--context", "16"), says=["--seq", "16"])
        self.fails(2, *new(*out, heads=3), says="--heads")
        self.fails(2, *new(*out, "--head-dim", "12"), says="multiple of 8")
        self.fails(2, *new(*out, "--model", "rnn"), says="rnn")
        self.fails(2, *new(*out, "--lr", "0"), says="--lr")
        self.fails(2, *new(*out, "--schedule", "up"), says="--schedule")
        self.fails(2, *new(*out, "--decay", "0.5"), says="--decay: only applies with --schedule wsd")
        self.fails(2, *new(*out, batch=1, seq=4), says="too few")
        self.fails(1, *new(*out, seq=1000000), says="1000000")
        for name in ("--min-lr", "--warmup", "--kv-heads", "--head-dim", "--hidden", "--context",
                     "--eval-every", "--eval-batches", "--save-every", "--sample-every",
                     "--sample-tokens", "--keep"):
            self.fails(2, "train", *SHAPE, "--data", self.data, *out, name, "-1",
                       says=[name, "negative"])
        self.fails(1, "train", "--init", driver.SOURCE / "models" / "storyteller.gguf", "--data",
                   self.data, "--seq", "32", *out, says="tokenizer")
        self.fails(3, *new(*out, batch=1000000, seq=200), says=["what would fit", "--batch"])
        self.assertFalse((self.folder / "out").exists())


if __name__ == "__main__":
    driver.main()
