"""Help, version, misspelt commands, wrong options, closed and full outputs."""
import os
import re
import subprocess
import time

import driver


class Basics(driver.CliTest):
    def commands(self):
        text = self.ok("--help").out
        lines = text.split("Commands:")[1].split("\n\n")[0].splitlines()
        return [line.split()[0] for line in lines if re.match(r"  \S", line)]

    def test_help_that_cannot_be_written(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("there is no /dev/full")
        with open("/dev/full", "wb") as full:
            for option in ("--help", "--version"):
                done = subprocess.run([driver.BIN, option], stdout=full, stderr=subprocess.PIPE)
                self.assertEqual(done.returncode, 1, option)
                self.assertIn(b"standard output", done.stderr)

    def test_output_that_does_not_block_is_waited_for(self):
        """A parent may share a pipe that it made non-blocking; this one reads late."""
        text = self.ok(driver.LAB, "story", "write", "--stories", 400, "--seed", 1, "--out", "-").out
        self.assertGreater(len(text), 1 << 17)  # more than a pipe holds
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        with subprocess.Popen([driver.LAB, "story", "write", "--stories", "400", "--seed", "1",
                               "--out", "-"], stdout=theirs, stderr=subprocess.PIPE) as process:
            os.close(theirs)
            time.sleep(0.3)
            with os.fdopen(ours, "rb") as pipe:
                self.assertEqual(pipe.read().decode(), text)
            self.assertEqual(process.wait(), 0, process.stderr.read())

    def test_help_lists_commands_and_each_has_an_example(self):
        commands = self.commands()
        self.assertEqual(set(commands), {"run", "chat", "serve", "profile", "info", "eval", "tokenize",
                                         "tokenizer", "train", "plan", "convert", "pull", "bench",
                                         "data", "completion"})
        for command in commands:
            text = self.ok(command, "--help").out
            self.assertIn("Example", text, command)
            self.assertIn(f"millrace {command}", text, command)

    def test_help_as_a_command(self):
        self.assertEqual(self.ok("help").out, self.ok("--help").out)
        self.assertEqual(self.ok("help", "run").out, self.ok("run", "--help").out)
        self.fails(2, "help", "rnu", says="did you mean 'millrace run'")

    def test_no_command_shows_the_help(self):
        result = driver.millrace()
        self.assertEqual(result.code, 2)
        self.assertIn("Commands", result.out + result.err)

    def test_unknown_command_names_the_nearest(self):
        self.fails(2, "ifno", says=["ifno", "did you mean 'millrace info'"])
        self.fails(2, "rnu", says="did you mean 'millrace run'")
        self.fails(2, "xyzzyplugh", says=["xyzzyplugh", "--help"])
        self.fails(2, "", says="command")

    def test_wrong_options(self):
        self.fails(2, "info", "--frobnicate", says=["--frobnicate", "millrace info --help"])
        self.fails(2, "info", "--threads", "many", says="--threads")
        self.fails(2, "info", "--device", "abacus", says="--device")

    def test_an_error_names_the_variable_it_came_from(self):
        self.fails(2, "info", says="MILLRACE_DEVICE: 'gpu' is not a choice", env={"MILLRACE_DEVICE": "gpu"})
        self.fails(2, "info", "--device", "gpu", says="--device: 'gpu' is not a choice")
        # Where it is not asked for, it does not matter.
        for words in (("--help",), ("info", "--help"), ("info", "--device", "cpu"), ("tokenize", "--text", "Once")):
            self.ok(*words, env={"MILLRACE_DEVICE": "gpu"})

    def test_a_prompt_in_the_wrong_place(self):
        self.fails(2, "run", "-p", "Once", "upon", "a", "time", says="a prompt of several words is given in quotes")
        self.fails(1, "run", "Once upon a time", says="a prompt is given with -p")

    def test_a_model_elsewhere(self):
        for name in ("meta-llama/Llama-2-7b", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B-GGUF:Q8_0"):
            self.fails(1, "run", name, says=(name, f"'millrace pull {name}' downloads it"))
        for address in ("https://huggingface.co/Qwen/Qwen2.5-0.5B",
                        "https://huggingface.co/Qwen/Qwen2.5-0.5B/tree/main"):
            self.fails(1, "run", address, says="'millrace pull Qwen/Qwen2.5-0.5B' downloads")
        self.fails(1, "run", "https://example.org/model.gguf", says="'millrace pull OWNER/NAME'")
        # The path of a file that is missing is no name on a hub.
        self.fails(1, "run", "models/missing.gguf", says="cannot be opened")

    def test_an_empty_text_follows_its_prompt(self):
        self.assertEqual(self.ok("run", "-p", "Once", "-n", 0, "-q").out, "Once\n")
        self.assertEqual(self.ok("run", "-p", "Once", "-n", 0, "-q", "--no-echo").out, "")

    def test_machine(self):
        machine = self.ok_json("info")["machine"]
        self.assertGreater(machine["cores"], 0)
        self.assertGreater(machine["memory_bytes"], 1 << 20)
        for key in ("read_bandwidth_gb_s", "f32_gflop_s", "int8_gflop_s"):
            self.assertGreater(machine[key], 0.1, key)
        self.assertIn(machine["isa"], machine["isas"])
        self.assertIn("machine", self.ok("info").out)

    def test_what_fits(self):
        got = self.ok_json("info", "--device", "cpu")
        self.assertIsNone(got["machine"]["gpu"])
        self.assertEqual(got["machine"]["devices"], ["cpu"])
        fits = got["what_fits"]
        self.assertEqual(fits["device"], "cpu")
        self.assertEqual(fits["memory_bytes"], got["machine"]["memory_bytes"])
        rows = {(row["weights"], row["kv"]): row for row in fits["rows"]}
        self.assertEqual(set(rows), {(weights, kv) for kv in ("f32", "f16") for weights in
                                     ("f32", "f16", "bf16", "q8_0", "q4_0")})
        # Half the bytes per position give twice the positions; smaller weights leave more room.
        f32, f16 = rows["f16", "f32"], rows["f16", "f16"]
        self.assertAlmostEqual(f16["ctx"] / f32["ctx"], 2, places=1)
        self.assertLess(rows["q8_0", "f32"]["weight_bytes"], f32["weight_bytes"])
        self.assertGreaterEqual(rows["q4_0", "f32"]["ctx"], rows["f32", "f32"]["ctx"])
        self.assertIn("what fits", self.ok("info", "--device", "cpu").out)

    def test_the_gpu_or_why_there_is_none(self):
        machine = self.ok_json("info", "--device", "auto")["machine"]
        if machine["gpu"] is None:
            self.assertGreater(len(machine["why_no_gpu"]), 10)
            if not os.path.exists("/proc/driver/nvidia/version"):
                self.assertRegex(machine["why_no_gpu"], "^(no GPU found(, and this build's kernels are not optimised)?|"
                                                        "this build has no CUDA engine);")
                if "kernels not optimised" in self.ok("--version").out:
                    self.assertIn("are not optimised", machine["why_no_gpu"])
            what = "not used" if machine["gpu_passed_over"] else "none"
            self.assertIn(f"gpu         {what}: ", self.ok("info", "--device", "auto").out)
            return
        self.assertEqual(machine["devices"], ["cpu", "cuda"])
        for key in ("name", "multiprocessors", "memory_bytes", "free_bytes", "driver", "runtime",
                    "read_gb_s", "copy_gb_s", "to_device_gb_s", "to_host_gb_s", "cublaslt"):
            self.assertIn(key, machine["gpu"])
        without = self.ok("info", "--device", "auto", env={"MILLRACE_CUBLASLT": "off"}).out
        self.assertIn("our own kernels", without)
        self.assertIn("MILLRACE_CUBLASLT is off", without)

    def test_a_full_output_is_an_error(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        with open("/dev/full", "wb") as full:
            done = subprocess.run([driver.BIN, "info"], stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.decode(), r"^millrace: standard output: .*\n$")

    def test_a_closed_output_is_quiet(self):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([driver.BIN, "info"], stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        self.assertEqual((done.returncode, done.stderr), (0, b""))


if __name__ == "__main__":
    driver.main()
