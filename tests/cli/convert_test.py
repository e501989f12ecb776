"""millrace convert: round trips through every format, and outputs that cannot be written."""
import os
import resource
import signal
import subprocess
import time

import driver

MODEL = driver.REFERENCE / "llama2"


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
