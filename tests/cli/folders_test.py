#!/usr/bin/env python3
"""Training in folders that are damaged, shared, or owned by another user."""
import fcntl
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile

import driver
from driver import millrace
from train_test import pack_stories

SHAPE = "--dim 32 --layers 1 --heads 2 --batch 2 --seq 32 --threads 1".split()
QUIET = "--sample-tokens 0 --eval-every 0 --eval-batches 1".split()


def dead_process():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def names(folder):
    return sorted(p.name for p in folder.iterdir())


class FoldersTest(driver.CliTest):
    @classmethod
    def setUpClass(cls):
        made = tempfile.TemporaryDirectory(prefix="millrace-folders-")
        cls.addClassCleanup(made.cleanup)
        base = pathlib.Path(made.name)
        cls.text, cls.tok, cls.packed = pack_stories(base)
        cls.trained = base / "run"
        result = millrace("train", *SHAPE, *QUIET, "--steps", "4", "--save-every", "2", "--data",
                          cls.packed, "--out", cls.trained)
        assert result.code == 0, result.err

    def setUp(self):
        super().setUp()
        self.data, self.run_ = self.folder / "data", self.folder / "run"
        shutil.copytree(self.packed, self.data)
        shutil.copytree(self.trained, self.run_)

    def new(self, out, *more, data=None):
        return ["train", *SHAPE, *QUIET, "--steps", "1", "--data", data or self.data, "--out", out,
                *more]

    def pack(self, *more):
        return ["data", "pack", "--data", self.text, "--tokenizer", self.tok, "--val-docs", "2",
                "--out", self.data, *more]

    def test_the_lock_comes_before_everything(self):
        new = self.folder / "new"
        new.mkdir()
        for run, command in ((new, self.new(new, data=self.folder / "none")),
                             (self.run_, ["train", "--resume", self.run_])):
            newest = self.run_ / "checkpoints" / "step-000004" / "state.json"
            newest.write_text("not even read")
            with open(run / "lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self.fails(1, *command, says="another process is training here")
        # A refused run leaves nothing: no lock, no folder.
        shutil.rmtree(new)
        self.fails(1, *self.new(self.folder / "a" / "b", data=self.folder / "none"), says="none")
        self.assertFalse((self.folder / "a").exists())
        (self.folder / "a").mkdir()
        self.fails(1, *self.new(self.folder / "a", data=self.folder / "none"), says="none")
        self.assertEqual(names(self.folder / "a"), [])

    def test_a_lock_that_is_a_link_is_called_one(self):
        lock = self.run_ / "lock"
        target = self.folder / "target"
        for exists in (False, True):
            lock.unlink()
            lock.symlink_to(target)
            if exists:
                target.write_text("mine")
            self.fails(1, "train", "--resume", self.run_, "--steps", "5",
                       says=[f"{lock}: is a link", "remove the link"])
            self.assertEqual(target.exists(), exists, "nothing is made through it")
        self.assertEqual(target.read_text(), "mine")
        lock.unlink()
        self.ok("train", "--resume", self.run_, "--steps", "5")

    def training(self, out, *more):
        """A process that trains in `out` and saves every step, after its second checkpoint."""
        process = subprocess.Popen(
            [driver.BIN, "train", *SHAPE, *QUIET, "--steps", "100000", "--save-every", "1",
             "--keep", "2", "--data", str(self.data), "--out", str(out), *more],
            stderr=subprocess.PIPE)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertTrue(driver.eventually(lambda: len(self.saved(out)) >= 2))
        return process

    def saved(self, run):
        folder = run / "checkpoints"
        found = folder.iterdir() if folder.exists() else []
        return sorted(int(p.name[5:]) for p in found if p.name.startswith("step-"))

    def stopped(self, process, code=130):
        if code == 130:
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, code, err)
        return err.decode()

    def test_a_run_that_is_moved_goes_on_in_its_folder(self):
        run, moved = self.folder / "r", self.folder / "moved"
        first = self.training(run)
        run.rename(moved)
        before = self.saved(moved)[-1]
        self.assertTrue(driver.eventually(lambda: self.saved(moved)[-1] > before + 2))
        self.assertFalse(run.exists())
        # Another run takes the name, and both go on.
        second = self.training(run, "--seed", "7")
        steps = self.saved(moved)[-1]
        self.assertTrue(driver.eventually(lambda: self.saved(moved)[-1] > steps + 2))
        self.assertIsNone(second.poll())
        said = self.stopped(first)
        self.assertIn(f"was moved to {moved}", said)
        self.assertIn(f"--resume {moved}", said)
        self.stopped(second)
        for folder, seed in ((moved, 1), (run, 7)):
            self.assertEqual(len(self.saved(folder)), 2)
            newest = folder / "checkpoints" / f"step-{self.saved(folder)[-1]:06}"
            state = json.loads((newest / "state.json").read_text())
            self.assertEqual(state["options"]["seed"], seed, "each has its own checkpoints")
            done = state["step"]
            result = self.ok_json("train", "--resume", folder, "--steps", done + 1)
            self.assertEqual((result["run"], result["step"]), (str(folder), done + 1))

    def test_a_run_whose_folder_is_removed_stops(self):
        run = self.folder / "r"
        first = self.training(run)
        while run.exists():  # the run writes meanwhile
            subprocess.run(["rm", "-rf", run], stderr=subprocess.DEVNULL, check=False)
        second = self.training(run, "--seed", "7")
        err = self.stopped(first, 1)
        self.assertIn(f"{run}: was removed while the run writes to it", err)
        self.assertIsNone(second.poll(), "the new run was disturbed")
        self.stopped(second)
        newest = run / "checkpoints" / f"step-{self.saved(run)[-1]:06}" / "state.json"
        self.assertEqual(json.loads(newest.read_text())["options"]["seed"], 7)

    def test_a_run_whose_lock_is_replaced_stops(self):
        run = self.folder / "r"
        process = self.training(run)
        (self.folder / "lock").touch()
        (self.folder / "lock").rename(run / "lock")
        err = self.stopped(process, 1)
        self.assertIn(f"{run}/lock: was replaced", err)
        self.ok("train", "--resume", run, "--steps", self.saved(run)[-1] + 1)

    def test_a_run_does_not_begin_among_other_files(self):
        before = names(self.data)
        self.fails(1, *self.new(self.data), says="packed data")
        self.assertEqual(names(self.data), before)
        mine = self.folder / "mine"
        mine.mkdir()
        for name in ("report.html", "metrics.jsonl", "thesis.txt"):
            (mine / name).write_text("mine")
            self.fails(1, *self.new(mine), says=[name, "no run wrote"])
            self.assertEqual(names(mine), [name])
            (mine / name).unlink()
        (mine / ".hidden").write_text("")
        self.ok(*self.new(mine))
        self.fails(1, *self.new(self.folder / "data" / "data.json"), says="--out")
        # A run that ended before its first checkpoint may start again.
        shutil.rmtree(mine / "checkpoints" / "step-000001")
        self.ok(*self.new(mine))
        self.fails(2, *self.new(mine), says=["--resume", str(mine)])

    def test_pack_replaces_only_what_it_wrote(self):
        self.fails(1, *self.pack(), says="--force")
        self.ok(*self.pack("--force"))
        (self.data / "checkpoints").mkdir()
        self.fails(1, *self.pack("--force"), says="'checkpoints'")
        self.assertIn("checkpoints", names(self.data))
        (self.data / "checkpoints").rmdir()
        index = self.data / "data.json"
        index.write_text('{"format": "mine"}')
        self.fails(1, *self.pack("--force"), says="data.json is not")
        index.write_text('{"format": "mill')  # damaged: the remedy is to pack again
        self.ok(*self.pack("--force"))
        self.assertEqual(names(self.data), names(self.packed))
        self.assertEqual(names(self.folder), ["data", "run"])

    def test_killed_while_it_replaced_the_data(self):
        old = self.folder / f"data.millrace-old.{dead_process()}"
        half = self.folder / f"data.millrace-partial.{dead_process()}"
        self.data.rename(old)
        half.mkdir()
        self.fails(1, *self.new(self.folder / "new"), says=[str(old), "rename"])
        # Packing moves it back; then it is replaced only with --force.
        self.fails(1, *self.pack(), says="--force")
        self.assertEqual(names(self.folder), ["data", "run"])
        self.ok("train", "--resume", self.run_, "--data", self.data)

    def test_what_another_process_fills_stays(self):
        half = self.folder / f"data.millrace-partial.{dead_process()}"  # a process that seems to be gone
        half.mkdir()
        lock = os.open(half, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.ok(*self.pack("--force"))
        self.assertTrue(half.exists())
        os.close(lock)
        self.ok(*self.pack("--force"))
        self.assertFalse(half.exists())

    def test_a_tokenizer_is_not_written_over(self):
        tok = self.folder / "tok"
        train = ["tokenizer", "train", "--data", self.text, "--vocab"]
        self.ok(*train, "270", "--out", tok)
        before = (tok / "tokenizer.json").read_bytes()
        self.fails(1, *train, "290", "--out", tok, says=["tokenizer.json", "--force"])
        self.fails(1, *train, "290", "--out", tok / "tokenizer.json", says="--force")
        self.assertEqual((tok / "tokenizer.json").read_bytes(), before)
        self.ok(*train, "290", "--out", tok, "--force")
        for other in (self.data, self.run_ / "checkpoints" / "step-000004"):
            self.fails(1, *train, "290", "--out", other, "--force", says="its own tokenizer")
        self.assertNotEqual((tok / "tokenizer.json").read_bytes(), before)
        # Nor files beside it.
        self.fails(1, *train, "290", "--out", tok / "mine.json", says="tokenizer_config.json")
        for other in (self.data, self.run_ / "checkpoints" / "step-000004"):
            self.fails(1, *train, "290", "--out", other / "mine.json", says="its own tokenizer")

    def test_data_whose_ids_have_changed(self):
        for name in ("train-00000.bin", "val-00000.bin"):
            file = self.data / name
            whole = file.read_bytes()
            file.write_bytes(whole[:80] + bytes([whole[80] ^ 1]) + whole[81:])
            for command in (self.new(self.folder / "new"),
                            ["train", "--resume", self.run_, "--data", self.data, "--steps", "6"]):
                self.fails(1, *command, says=[name, "checksum", "damaged"])
            file.write_bytes(whole)

    def test_a_tokenizer_that_is_not_the_datas(self):
        tok = self.folder / "tok"
        self.ok("tokenizer", "train", "--data", self.text, "--vocab", "270", "--out", tok)
        shutil.copy(tok / "tokenizer.json", self.data / "tokenizer.json")
        for command in (self.new(self.folder / "new"),
                        ["train", "--resume", self.run_, "--data", self.data, "--steps", "6"]):
            self.fails(1, *command, says=["tokenizer.json", "packed with"])

    def test_damaged_metrics_do_not_end_a_run(self):
        file = self.run_ / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True)
        result = self.ok("train", "--resume", self.run_, "--steps", "5")
        self.assertNotIn("damaged", result.err)
        # A damaged line in the middle: reported, and later ones stay.
        file.write_text(lines[0] + "{oops\n" + "".join(lines[2:]))
        result = self.ok("train", "--resume", self.run_, "--steps", "6")
        self.assertIn("1 damaged line was left out (line 2)", result.err)
        self.assertEqual([m.split(",")[0] for m in file.read_text().splitlines()],
                         [f'{{"step": {step}' for step in (1, 3, 4, 6)])
        # Zeros at the end, as after a power cut, alone and in place of a line: reported.
        for kept, step in ((4, 6), (3, 4)):
            lines = file.read_text().splitlines(keepends=True)
            file.write_text("".join(lines[:kept]) + "\0" * 100)
            result = self.ok("train", "--resume", self.run_)
            (line,) = [line for line in result.err.splitlines() if str(file) in line]
            self.assertIn(f"{file}: 100 bytes at its end", line)
            self.assertIn(f"up to step {step} stay, and the run goes on from step 6", line)
            self.assertEqual(file.read_text(), "".join(lines[:kept]))
        # Empty.
        file.write_text("")
        self.ok("train", "--resume", self.run_, "--steps", "7")
        self.assertEqual(file.read_text().count("\n"), 1)

    def test_damaged_checkpoints_are_left_for_the_one_before(self):
        newest = self.run_ / "checkpoints" / "step-000004"
        aside = newest.with_name("damaged-step-000004")
        for name in ("model.safetensors", "optimizer.safetensors", "state.json", "config.json",
                     "tokenizer.json"):
            file = newest / name
            whole = file.read_bytes()
            for damage in (b"", whole[:len(whole) // 2], None):
                if damage is None and name == "tokenizer.json":
                    continue  # a model may have no tokenizer; the data's is the same
                file.unlink()
                if damage is not None:
                    file.write_bytes(damage)
                (line,) = [line for line in self.ok("train", "--resume", self.run_).err.splitlines()
                           if "damaged" in line]
                for part in (str(newest), "the checkpoint is damaged", "going on from step 2",
                             f"{aside} is kept"):
                    self.assertIn(part, line)
                self.assertTrue(file.exists())
                shutil.rmtree(aside)
        (newest / "state.json").write_text("{}")
        shutil.rmtree(self.run_ / "checkpoints" / "step-000002")
        self.fails(1, "train", "--resume", self.run_, says=["damaged", "none before it"])
        self.fails(1, "train", "--resume", newest, says=["one checkpoint", f"--resume {self.run_}"])

    def test_a_run_whose_newest_model_is_damaged_names_the_one_that_can_be_run(self):
        old, newest = (self.run_ / "checkpoints" / f"step-00000{step}" for step in (2, 4))
        for name in ("model.safetensors", "config.json"):
            file = newest / name
            whole = file.read_bytes()
            file.write_bytes(whole[:len(whole) // 2])
            for command in (["run", self.run_, "-p", "Once", "-n", "1"],
                            ["eval", self.run_, "--text", self.text],
                            ["convert", self.run_, self.folder / "out.gguf"]):
                self.fails(1, *command, says=[str(file), f"take {old}, an older checkpoint"])
            file.write_bytes(whole)
        # A damaged tokenizer, also for commands that only need the tokenizer.
        file = newest / "tokenizer.json"
        whole = file.read_bytes()
        file.write_bytes(whole[:len(whole) // 2])
        pack = ["data", "pack", "--data", self.text, "--tokenizer", self.run_, "--out"]
        for command in (["run", self.run_, "-p", "Once", "-n", "1"],
                        ["tokenize", self.run_, "--text", "a"], [*pack, self.folder / "packed"]):
            self.fails(1, *command, says=[str(file), f"take {old}, an older checkpoint"])
        file.write_bytes(whole)
        self.ok(*pack, self.folder / "packed")
        # An older checkpoint is not named if it is damaged, too, or if a checkpoint was named
        # explicitly.
        config = self.run_ / "checkpoints" / "step-000003" / "config.json"
        shutil.copytree(old, config.parent)
        config.write_text(config.read_text().replace('"hidden_size": 32', '"hidden_size": 64'))
        (newest / "model.safetensors").unlink()
        run = ["run", self.run_, "-p", "Once", "-n", "1"]
        self.fails(1, *run, says=[str(newest), f"take {old}, an older checkpoint"])
        result = self.fails(1, "run", newest, "-p", "Once", "-n", "1", says=str(newest))
        self.assertNotIn(str(old), result.err)
        shutil.rmtree(old)
        self.assertNotIn("an older checkpoint", self.fails(1, *run, says=str(newest)).err)

    def test_a_full_disk_says_how_to_go_on(self):
        def limit():  # a limit on file sizes simulates a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        result = millrace("train", "--resume", self.run_, "--steps", "5", preexec_fn=limit)
        self.assertEqual(result.code, 1)
        self.assertIn(f"--resume {self.run_} goes on from step-000004",
                      result.err.splitlines()[-1])

    def test_wrong_options_are_named(self):
        for words, option in (("--layers 0", "--layers"), ("--heads 4 --kv-heads 3", "--kv-heads"),
                              ("--dim 33 --heads 1", "--head-dim"),
                              ("--hidden 2000000000", "--hidden")):
            self.fails(2, "train", *words.split(), "--seq", "32", "--data", self.data, "--out",
                       self.folder / "new", says=option)
        self.assertFalse((self.folder / "new").exists())
        self.fails(2, *self.new(self.folder / "new"), "--vocab", "3", says="--vocab: unknown option;")
        empty = self.folder / "empty.txt"
        empty.write_text("")
        for command in (["eval", self.run_, "--text", empty], [driver.LAB, "story", "check", empty]):
            self.fails(1, *command, says=["is empty", "with something in it"])


if __name__ == "__main__":
    driver.main()
