"""millrace convert: round trips through every format, and outputs that cannot be written."""
import os
import resource
import shutil
import signal
import subprocess
import time

import driver

MODEL = driver.REFERENCE / "llama2"


def contents(folder):
    """The files in a folder, if it is there, without what a killed process left under a name of its
    own: {name: bytes}."""
    if not folder.exists():
        return {}
    return {p.name: p.read_bytes() for p in folder.iterdir()
            if p.is_file() and ".millrace-partial." not in p.name}


class Convert(driver.CliTest):
    def greedy(self, model, *more):
        return self.ok_json("run", model, "--temp", 0, "-p", "Once upon", "-n", 16, "--ignore-eos",
                            *more)["ids"]

    def test_every_type_and_format_runs(self):
        want = self.greedy(MODEL)
        for name in ("f32", "f16", "bf16", "q8_0", "q4_0"):
            target = self.folder / f"{name}.gguf"
            got = self.ok_json("convert", MODEL, target, "--type", name)
            self.assertEqual(got["files"][0], str(target))
            ids = self.greedy(target)
            if name in ("f32", "f16", "bf16"):  # the reference's weights are exact in these
                self.assertEqual(ids, want, name)
            else:
                self.assertEqual(len(ids), len(want), name)
        target = self.folder / "folder"
        self.ok("convert", self.folder / "f32.gguf", target)
        self.assertEqual(self.greedy(target), want)
        again = self.folder / "again.gguf"
        self.ok("convert", target, again)
        self.assertEqual(self.greedy(again), want)

    def test_quiet_in_a_pipe(self):
        result = self.ok("convert", MODEL, self.folder / "m.gguf")
        self.assertEqual(result.out, f"{self.folder / 'm.gguf'}\n")
        self.assertEqual(result.err, "")

    def test_llama2c(self):
        target = self.folder / "stories.gguf"
        model, option, tokenizer = self.stories()
        self.ok("convert", model, target, option, tokenizer)
        self.assertEqual(self.greedy(target), self.greedy(model, option, tokenizer))

    def test_errors_leave_nothing(self):
        self.fails(1, "convert", self.folder / "none.gguf", self.folder / "o.gguf", says="none.gguf")
        self.fails(1, "convert", MODEL, self.folder / "missing" / "o.gguf", says="missing")
        self.fails(1, "convert", MODEL, "/dev/null/o.gguf")
        (self.folder / "dir.gguf").mkdir()
        self.fails(1, "convert", MODEL, self.folder / "dir.gguf", says="dir.gguf")
        self.fails(2, "convert", MODEL, self.folder / "o.gguf", "--type", "q3_k", says="--type")
        self.fails(2, "convert", MODEL, says="OUT is required")
        self.fails(2, "convert", MODEL, "-", says="not written to standard output")
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["dir.gguf"])

    def test_a_failure_keeps_what_was_there(self):
        target = self.folder / "model"
        self.ok("convert", MODEL, target)
        (target / "tokenizer.json").unlink()
        (target / "tokenizer.json").mkdir()  # cannot be written
        before = {p.name: p.read_bytes() for p in target.iterdir() if p.is_file()}
        self.assertIn("model.safetensors", before)
        self.fails(2, "convert", MODEL, target, "--type", "f16", says="--force")
        self.fails(1, "convert", MODEL, target, "--type", "f16", "--force", says="tokenizer.json")
        self.assertEqual({p.name: p.read_bytes() for p in target.iterdir() if p.is_file()}, before)

    def test_a_file_is_replaced_only_if_asked(self):
        for name in ("notes.gguf", "notes.safetensors"):
            target = self.folder / name
            target.write_text("important\n")
            self.fails(2, "convert", MODEL, target, says=[f"{name}: this file already exists", "--force"])
            self.assertEqual(target.read_text(), "important\n")
            self.ok("convert", MODEL, target, "--force")
            self.assertGreater(target.stat().st_size, 1000)
        self.fails(2, "convert", target.parent / "notes.gguf", target.parent / "notes.gguf",
                   says="this is the model being read")

    def test_folders_are_not_left_behind(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        self.fails(1, "convert", MODEL, self.folder / "a" / "b", preexec_fn=limit)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_link_stays_a_link(self):
        (self.folder / "real").mkdir()
        link = self.folder / "link.gguf"
        link.symlink_to("real/m.gguf")
        self.ok("convert", MODEL, link)
        self.assertTrue(link.is_symlink())
        self.assertTrue((self.folder / "real" / "m.gguf").is_file())

    def test_signals_leave_nothing(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)):
            process = subprocess.Popen([driver.BIN, "convert", "random:stories-110m",
                                        str(self.folder / "o.gguf"), "--type", "f32"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            end = time.time() + 60
            while not list(self.folder.glob("*.millrace-partial.*")) and time.time() < end:
                time.sleep(0.002)
            process.send_signal(number)
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, code)
            self.assertEqual(list(self.folder.iterdir()), [])

    def old_model(self, place):
        """A folder of another model than MODEL, with files that a conversion does not write."""
        self.ok("convert", driver.REFERENCE / "qwen2", place)
        (place / "generation_config.json").write_text('{"temperature": 0.1}')
        (place / "chat_template.jinja").write_text("old")
        (place / "notes.txt").write_text("mine")
        return place

    def kill_everywhere(self, target, before, command, check):
        """Runs `command`, killed before the first, second, ... system call that changes files, each
        time from `before` (or nothing) at `target`, and checks what is left."""
        for call in range(1, 1000):
            for left in target.parent.iterdir():
                shutil.rmtree(left)
            if before:
                shutil.copytree(before, target)
            done = subprocess.run([driver.KILL_AT, str(call), driver.BIN, *map(str, command)],
                                  capture_output=True, timeout=driver.HANG)
            if done.returncode == 77:
                self.skipTest("processes cannot be traced here")
            if done.returncode != 0:
                self.assertEqual(done.returncode, 10, done.stderr)
                break
            with self.subTest(call=call):
                check()
            if call % 7 == 0:  # the next conversion makes it whole
                self.ok(*command)
                self.assertEqual([p.name for p in target.parent.iterdir()], [target.name])
                self.assertEqual({**contents(target), **self.new}, contents(target))
                self.assertEqual(list(target.glob("*.millrace-partial.*")), [])
        self.assertGreater(call, 20)

    def test_killed_at_any_system_call(self):
        old = self.old_model(self.folder / "old")
        fresh = self.folder / "fresh"
        self.ok("convert", MODEL, fresh)
        self.new = contents(fresh)
        was = contents(old)
        after = {**self.new, "notes.txt": b"mine"}
        place = self.folder / "place"
        place.mkdir()
        target = place / "model"
        command = ("convert", MODEL, target, "--force")
        seen = set()

        def whole(*states):
            now = contents(target)
            seen.add(states.index(now) if now in states else None)
            self.assertIn(now, states)

        self.kill_everywhere(target, old, command, lambda: whole(was, after))
        self.assertEqual(seen, {0, 1}, "killed before and after the exchange")
        self.kill_everywhere(target, None, command, lambda: whole({}, self.new))
        # With a folder in it, its files are replaced one by one: what is half of each is no model.
        (old / "original").mkdir()
        refused = []

        def whole_or_none():
            now = contents(target)
            self.assertEqual(now["notes.txt"], b"mine")
            if now not in (was, after):
                self.fails(1, "run", target, "-p", "x", "-n", 1, says=["config.json", "convert again"]
                           if "model.safetensors" in now else "config.json")
                refused.append(now)

        self.kill_everywhere(target, old, command, whole_or_none)
        self.assertGreater(len(refused), 3)
        # A single file and what is beside it.
        command = ("convert", MODEL, target / "model.safetensors", "--force")
        self.kill_everywhere(target, old, command, whole_or_none)

    def test_the_working_directory_is_replaced_in_place(self):
        old = self.old_model(self.folder / "old")
        self.ok("convert", MODEL, ".", "--force", cwd=old)
        self.assertFalse((old / "chat_template.jinja").exists())
        inode = old.stat().st_ino
        self.ok("convert", driver.REFERENCE / "qwen2", ".", "--force", cwd=old)
        self.assertEqual(old.stat().st_ino, inode)
        self.assertEqual((old / "notes.txt").read_text(), "mine")
        # Through a link, the folder is replaced and the link stays.
        link = self.folder / "link"
        link.symlink_to("old")
        said = self.ok("convert", MODEL, link, "--force").err
        self.assertIn("kept, being no files of a model: notes.txt", said)
        self.assertTrue(link.is_symlink())
        self.assertEqual((link / "notes.txt").read_text(), "mine")

    def test_a_changed_type_is_said(self):
        quantised, target = self.folder / "q.gguf", self.folder / "hf"
        self.ok("convert", MODEL, quantised, "--type", "q8_0")
        self.assertIn("of type q8_0 became f16", self.ok("convert", quantised, target).err)
        notes = self.ok_json("convert", quantised, target, "--force")["notes"]
        self.assertTrue(any("became f16" in note for note in notes), notes)

    def test_an_unwritable_folder(self):
        if os.geteuid() == 0:
            self.skipTest("root may write anywhere")
        self.folder.chmod(0o500)
        self.addCleanup(self.folder.chmod, 0o700)
        self.fails(1, "convert", MODEL, self.folder / "o.gguf", says="o.gguf")

    def test_a_full_disk_leaves_nothing(self):
        # A limit on file sizes simulates a full disk.
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        self.fails(1, "convert", MODEL, self.folder / "o.gguf", "--type", "f32", says="o.gguf",
                   preexec_fn=limit)
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    driver.main()
