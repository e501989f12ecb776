#!/usr/bin/env python3
"""Files that are not what their names suggest: pipes, devices, links, folders."""
import json
import os
import resource
import shutil
import signal
import subprocess
import time

import driver
from driver import BIN, REFERENCE, millrace
from train_test import QUIET, SHAPE, pack_stories


class Files(driver.CliTest):
    def refused(self, *arguments, says, code=1, **kwargs):
        """Fails with one line, and does not wait for ever."""
        result = millrace(*arguments, **kwargs)
        self.assertEqual(result.code, code, f"{arguments}: {result.err}")
        self.assertIn(says, result.err)
        self.assertEqual(result.err.count("\n"), 1, result.err)

    def pipe_at(self, path):
        path.unlink(missing_ok=True)
        os.mkfifo(path)

    def test_a_pipe_in_place_of_a_model_s_file(self):
        pipe = self.folder / "model.gguf"
        self.pipe_at(pipe)
        self.refused("info", pipe, says="is a pipe, not a regular file")
        self.refused("run", pipe, "-p", "x", says="is a pipe, not a regular file")
        self.refused("convert", REFERENCE / "llama2", pipe, says="is a device or a pipe")
        self.refused("tokenize", "--tokenizer", pipe, "--text", "x", says="is a pipe")
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
                     "model.safetensors.index.json", "chat_template.jinja"):
            folder = self.folder / f"model-{name}"
            shutil.copytree(REFERENCE / "llama2", folder)
            if name.endswith("index.json"):
                (folder / "model.safetensors").unlink()
            self.pipe_at(folder / name)
            self.refused("run", folder, "-p", "x", "-n", "1",
                         says=f"{name}: is a pipe, not a regular file")

    def test_a_pipe_in_a_run_s_folder(self):
        text, tok, data = pack_stories(self.folder)
        run = self.folder / "run"
        self.ok("train", *SHAPE, *QUIET, "--steps", "2", "--data", data, "--out", run)
        for path in ("checkpoints/step-000002/state.json", "checkpoints/step-000002/config.json",
                     "checkpoints/step-000002/optimizer.safetensors"):
            broken = self.folder / path.replace("/", "-")
            shutil.copytree(run, broken)
            self.pipe_at(broken / path)
            result = millrace("train", "--resume", broken, "--steps", "3")
            self.assertEqual(result.code, 1, result.err)
            self.assertIn("is a pipe, not a regular file", result.err)
        # A log error never ends a run.
        for make in (os.mkfifo, os.mkdir):
            broken = self.folder / f"log-{make.__name__}"
            shutil.copytree(run, broken)
            (broken / "metrics.jsonl").unlink()
            make(broken / "metrics.jsonl")
            result = millrace("train", "--resume", broken, "--steps", "3")
            self.assertEqual(result.code, 0, result.err)
            self.assertIn("metrics.jsonl: is not a regular file, and is left as it is", result.err)
            self.assertIn("lines of this run's steps are missing", result.err)
        # Nor changes another file, even through a link.
        mine = self.folder / "mine.txt"
        mine.write_text("mine\n")
        for place in (lambda log: log.symlink_to(mine), lambda log: shutil.copy(mine, log)):
            (run / "metrics.jsonl").unlink()
            place(run / "metrics.jsonl")
            self.ok("train", "--resume", run, "--steps", "3")
            self.assertEqual((run / "metrics.jsonl").read_text(), "mine\n")
            self.assertEqual(mine.read_text(), "mine\n")
        for name in ("data.json", "tokenizer.json", "train-00000.bin"):
            broken = self.folder / f"data-{name}"
            shutil.copytree(data, broken)
            self.pipe_at(broken / name)
            self.refused("train", *SHAPE, *QUIET, "--steps", "2", "--data", broken, "--out",
                         self.folder / "other", says="is a pipe")
        # The report is optional: a complete run still succeeds.
        os.remove(run / "report.html")
        (run / "report.html").mkdir()
        result = millrace("train", "--resume", run, "--steps", "4")
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("no report after step 4", result.err)

    def test_a_newest_checkpoint_that_is_none(self):
        _, _, data = pack_stories(self.folder)
        run = self.folder / "run"
        self.ok("train", *SHAPE, *QUIET, "--steps", "2", "--save-every", "1", "--data", data, "--out",
                run)
        newest = run / "checkpoints" / "step-000007"
        for make in (lambda: newest.write_text("x"), lambda: newest.symlink_to(newest),
                     lambda: newest.symlink_to(self.folder / "nowhere"),
                     lambda: os.mkfifo(newest), newest.mkdir):
            make()
            result = millrace("train", "--resume", run, "--steps", "3")
            self.assertEqual(result.code, 0, result.err)
            self.assertIn("the checkpoint is damaged; going on from step", result.err)
            self.assertFalse(os.path.lexists(newest), "it is put aside")
            shutil.rmtree(run / "checkpoints" / "step-000003", ignore_errors=True)

    def test_a_tokenizer_that_was_changed(self):
        _, _, data = pack_stories(self.folder)
        run = self.folder / "run"
        self.ok("train", *SHAPE, *QUIET, "--steps", "2", "--data", data, "--out", run)
        own = run / "checkpoints" / "step-000002" / "tokenizer.json"
        good = own.read_text()
        # Changes that do not affect the ids.
        own.write_text(good.replace('"special": true', '"special": false') + "\n")
        result = millrace("train", "--resume", run, "--steps", "3")
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("step-000002/tokenizer.json was changed after it was saved", result.err)
        (data / "tokenizer.json").write_text(good + "\n")
        self.refused("train", "--resume", run, "--steps", "4",
                     says="tokenizer.json: was changed since the run's last checkpoint; restore the "
                     "one")
        (data / "tokenizer.json").write_text(good)
        self.ok("train", "--resume", run, "--steps", "4")

    def test_a_device_is_no_text(self):
        for command in (("eval", "--text"), ("tokenize", "--file")):
            self.refused(*command, "/dev/zero", says="/dev/zero: is a device, not a text")
            with open("/dev/zero", "rb") as zero:
                done = subprocess.run([BIN, *command, "-"], stdin=zero, capture_output=True,
                                      timeout=driver.HANG, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(b"standard input: is a device", done.stderr)
        self.refused("tokenizer", "train", "--data", "/dev/zero", "--out", self.folder / "tok",
                     says="is a device, not a regular file")
        pipe = self.folder / "pipe"
        self.pipe_at(pipe)  # a text may come through a pipe
        with subprocess.Popen(["sh", "-c", f"echo Once > {pipe}"]) as writer:
            self.assertIn("Once", self.ok("tokenize", "--file", pipe).out)
            writer.wait()

    def test_what_a_killed_process_left_is_removed(self):
        target = self.folder / "big.gguf"
        command = [BIN, "convert", "random:gpt2", str(target)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            end = time.time() + 60
            while not list(self.folder.glob("big.gguf.millrace-partial.*")) and time.time() < end:
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
        left = list(self.folder.glob("big.gguf.millrace-partial.*"))
        self.assertEqual(len(left), 1, "it was killed while it wrote")
        self.ok("convert", REFERENCE / "llama2", target)
        self.assertEqual([p.name for p in self.folder.iterdir()], ["big.gguf"])

    def test_what_a_file_says_does_not_reach_the_terminal(self):
        evil = "a\u202eb\u009b31mc\u2066\x1b]0;x\x07"
        folder = self.folder / evil
        shutil.copytree(REFERENCE / "llama2", folder)
        raw = folder.name.encode() + b"\xff"
        broken = os.path.join(os.fsencode(self.folder), raw)
        shutil.copytree(os.fsencode(folder), broken)
        config = json.loads((folder / "config.json").read_text())
        texts = [self.ok("info", folder).out, self.ok("info", folder, "--json").out,
                 self.ok("info", os.fsdecode(broken)).raw.decode("utf-8")]
        self.assertIn(evil, json.loads(texts[1])["model"]["name"], "JSON means the same")
        for change in ({"model_type": evil}, {"hidden_act": evil + "é" * 500},
                       {"rope_scaling": {"rope_type": evil}}):
            (folder / "config.json").write_text(json.dumps({**config, **change}))
            result = millrace("info", folder)
            self.assertEqual(result.code, 1)
            texts.append(result.err)
        with open(os.path.join(broken, b"config.json"), "wb") as file:
            file.write(b'{"model_type": "\xff\xc2\x9b"}')
        texts.append(millrace("info", os.fsdecode(broken)).err)
        for text in texts:
            self.assertIn("\\u202e", text)
            for character in "\u202e\u009b\u2066\x1b\x07\ufffd":
                self.assertNotIn(character, text)

    def test_the_paths_that_commands_name(self):
        evil = self.folder / "a\u202eb\u009b31mc"
        evil.mkdir()
        model = evil / "model"
        shutil.copytree(REFERENCE / "llama2", model)
        text, _, data = pack_stories(evil)
        run = evil / "run"
        named = {}
        for command in (
                ("bench", "decode", model, "-n", "2", "--reps", "1", "--prompt", "4", "--threads", "1"),
                ("profile", model, "-p", "x", "-n", "2", "--threads", "1", "--html",
                 evil / "page.html", "--trace", evil / "trace.json"),
                ("tokenizer", "train", "--data", text, "--vocab", "270", "--out", evil / "other"),
                ("convert", model, evil / "out.gguf"),
                ("train", *SHAPE, *QUIET, "--steps", "1", "--data", data, "--out", run)):
            result = self.ok(*command)
            named[command[0]] = result.out + result.err
        # A note about a file, and the line that says how to resume.
        (run / "metrics.jsonl").unlink()
        (run / "metrics.jsonl").mkdir()
        result = self.ok("train", "--resume", run, "--steps", "2")
        named["resume"] = result.out + result.err
        for command, said in named.items():
            with self.subTest(command):
                self.assertIn("a\\u202eb\\u009b31mc", said)
                for character in "\u202e\u009b":
                    self.assertNotIn(character, said)
        for command, ends in (("profile", ("page.html\n", "trace.json (open")),
                              ("train", ("step-000001\n", "report.html\n"))):
            for end in ends:
                self.assertIn(end, named[command])

    def test_too_many_open_files(self):
        # More files than descriptors: the error does not blame the model's files.
        result = millrace("info", REFERENCE / "llama2", preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_NOFILE, (4, 4)))
        self.assertEqual(result.code, 3, result.err)
        self.assertIn("raise the limit (ulimit -n)", result.err)


if __name__ == "__main__":
    driver.main()
