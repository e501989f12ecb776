"""millrace bench on the CPU; device_bench_test.py has it on a GPU."""
import os

import driver

MODEL = driver.REFERENCE / "llama2"


class Bench(driver.CliTest):
    def test_decode(self):
        got = self.ok_json("bench", "decode", MODEL, "--prompt", 8, "-n", 8, "--reps", 3)
        for key in ("tok_s", "gb_s", "read_bandwidth_gb_s", "percent_of_bandwidth",
                    "bytes_per_token"):
            self.assertGreater(got[key], 0, key)
        self.assertEqual(len(got["seconds"]), 3)
        self.assertGreaterEqual(got["tok_s_best"], got["tok_s"])
        self.assertGreaterEqual(got["bytes_per_token"], got["weight_bytes_per_token"])
        text = self.ok("bench", "decode", MODEL, "--prompt", 8, "-n", 8, "--reps", 2)
        self.assertIn("tok/s", text.out)
        self.assertEqual(text.err, "")

    def test_prefill(self):
        got = self.ok_json("bench", "prefill", MODEL, "--prompt", 32, "--reps", 2)
        self.assertGreater(got["gflop_s"], 0)
        self.assertEqual(got["prompt"], 32)
        self.assertIn("GFLOP/s", self.ok("bench", "prefill", MODEL, "--reps", 2, "-v").out)

    def test_load(self):
        got = self.ok_json("bench", "load", MODEL)
        self.assertGreater(got["first_token_s"], 0)
        self.assertGreater(got["peak_rss_bytes"], got["weight_bytes"])
        self.assertEqual(got["weight_bytes"], got["mapped_bytes"] + got["copied_bytes"])
        self.assertIn("peak", self.ok("bench", "load", MODEL).out)

    def test_resident_memory_is_about_the_weights(self):
        if os.environ.get("MILLRACE_SANITIZE"):
            self.skipTest("a sanitizer takes memory of its own")
        file = self.folder / "m.gguf"
        self.ok("convert", "random:stories-110m:q8_0", file)
        mapped = self.ok_json("bench", "load", file, "--ctx", 128, "--disable", "repack")
        self.assertGreater(mapped["mapped_bytes"], 0.99 * mapped["weight_bytes"])
        # Repacked or not: never two copies. The program itself takes about 16 MB, whatever the
        # model.
        for got in mapped, self.ok_json("bench", "load", file, "--ctx", 128):
            self.assertLess(got["peak_rss_bytes"],
                            1.1 * (got["weight_bytes"] + got["kv_bytes"]) + 16e6)

    def test_the_environment_switches_parts_off_for_every_command(self):
        text = self.folder / "text.txt"
        text.write_text("Once upon a time.\n")
        for command in (("run", "-p", "Once", "-n", 1), ("chat", "-n", 1), ("info", MODEL),
                        ("eval", MODEL, "--text", text), ("profile", "-p", "Once", "-n", 1),
                        ("bench", "decode", MODEL), (driver.LAB, "ladder", MODEL),
                        ("train", "--data", self.folder / "none", "--out", self.folder / "run")):
            self.fails(2, *command, env={"MILLRACE_DISABLE": "repack,frobnicate"},
                       says=["MILLRACE_DISABLE", "frobnicate", "loop, head-records, repack"])
        once = ("run", "-p", "Once upon a time", "-n", 8, "--temp", 0, "-q")
        plain = self.ok(*once, env={"MILLRACE_DISABLE": ""}).out
        self.assertEqual(self.ok(*once, env={"MILLRACE_DISABLE": "repack,persistent"}).out, plain)
        # It has the effect of --disable, and adds to it.
        file = self.folder / "m.gguf"
        self.ok("convert", "random:stories-42m:q8_0", file)
        for given in ((), ("--disable", "graph")):
            got = self.ok_json("bench", "load", file, "--ctx", 128, *given,
                               env={"MILLRACE_DISABLE": "repack"})
            self.assertGreater(got["mapped_bytes"], 0.99 * got["weight_bytes"])

    def test_train(self):
        shape = ["--batch", 2, "--seq", 16, "--steps", 3, "--warmup", 1, "--device", "cpu"]
        for family in ("llama2", "gpt2"):
            got = self.ok_json("bench", "train", driver.REFERENCE / family, *shape)
            self.assertEqual([got["tokens_per_step"], len(got["seconds"])], [32, 3])
            self.assertAlmostEqual(got["tok_s"] * got["ms_per_step"] / 1e3, 32, places=6)
            self.assertEqual(sum(got["memory_plan"].values()), got["memory_bytes"])
            self.assertIsNone(got["memory_taken_bytes"])  # nor counted
            self.assertEqual(got["percent_of_matrix_peak"], 0)  # not measured on a CPU
            # The operations of one step, timed.
            self.assertEqual(got["ledger"]["attention"]["calls"] % 2, 0)
            self.assertGreater(got["ledger"]["optimizer"]["calls"], 0)
            for op in ("embedding", "linear", "norm", "attention", "loss"):
                self.assertGreater(got["ledger"][op]["flops"] + got["ledger"][op]["bytes_read"], 0)
        text = self.ok("bench", "train", driver.REFERENCE / "llama2", *shape).out
        for part in ("tok/s", "ms per step", "memory", "parameters", "linear", "us each",
                     "a row for each name and size"):
            self.assertIn(part, text)
        self.assertNotIn("linear: linear", text)

    def test_train_to_fill_in_blocks(self):
        shape = ["--batch", 2, "--seq", 16, "--steps", 2, "--warmup", 0, "--device", "cpu"]
        llama = driver.REFERENCE / "llama2"
        ar = self.ok_json("bench", "train", llama, *shape)
        self.assertEqual([ar["objective"], ar["block"]], ["ar", None])
        got = self.ok_json("bench", "train", llama, *shape, "--objective", "diffusion", "--block", 4)
        # Tokens of the text count once, although a pass has two rows for each.
        self.assertEqual([got["objective"], got["block"], got["tokens_per_step"]],
                         ["diffusion", 4, 32])
        self.assertGreater(got["flops_per_token"], ar["flops_per_token"])
        self.assertGreater(got["parameters"], ar["parameters"])  # one more row, for the mask
        sdar = self.ok_json("bench", "train", driver.REFERENCE / "sdar", *shape)
        self.assertEqual([sdar["objective"], sdar["block"]], ["diffusion", 16])
        text = self.ok("bench", "train", driver.REFERENCE / "sdar", *shape, "--block", 8).out
        self.assertIn("diffusion in blocks of 8", text)
        for model, part, says in (
                (llama, ("--block", 4), ["--block = 4", "--objective diffusion"]),
                (llama, ("--objective", "diffusion", "--block", 5), ["--seq = 16", "block, 5"]),
                (driver.REFERENCE / "gpt2", ("--objective", "diffusion"), "learned positions"),
                (driver.REFERENCE / "sdar", ("--objective", "ar"), "this is a diffusion model")):
            self.fails(2, "bench", "train", model, *shape, *part, says=says)

    def test_train_errors(self):
        llama = driver.REFERENCE / "llama2"
        self.fails(2, "bench", "train", says="MODEL is required")
        self.fails(2, "bench", "train", llama, "--batch", "many", "--seq", 16, says="--batch")
        # On a CPU a batch that fills its memory would take too long.
        self.fails(2, "bench", "train", llama, "--batch", "auto", "--seq", 16, "--device", "cpu",
                   says=["--batch = auto", "GPU", "--batch 8"])
        self.fails(2, "bench", "train", llama, "--recompute", "some", says="--recompute")
        self.fails(2, "bench", "train", "random:gpt2", "--seq", 2048, says="context of 1024")
        self.fails(3, "bench", "train", "random:llama-2-7b", "--batch", 4096, "--seq", 4096,
                   "--device", "cpu", says="activations")

    def test_parts_can_be_switched_off(self):
        words = ("fuse", "add-in-product", "add-in-norm", "norms-together", "graph",
                 "dependent-launch", "batch-products", "resident-attention", "persistent", "loop",
                 "head-records", "repack")
        few = ("--prompt", 4, "-n", 2, "--reps", 1, "--warmup", 0)
        self.ok("bench", "decode", MODEL, *few, "--disable", ",".join(words))
        self.ok("bench", "decode", "--disable", "fuse", MODEL, *few)  # takes one word
        profiled = self.ok("profile", "-p", "Once", "-n", 2, "--disable", "repack,graph").out
        self.assertLess(profiled.index("prefill:"), profiled.index("decode:"))
        for command in (("bench", "decode", MODEL), ("bench", "prefill", MODEL),
                        ("bench", "load", MODEL), ("profile", "-p", "Once")):
            self.fails(2, *command, "--disable", "fuse,frobnicate",
                       says=["--disable", "frobnicate", *words])
            help_of = self.ok(*[part for part in command[:2] if part != "-p"], "--help-all").out
            self.assertIn("--disable LIST", help_of)
        self.fails(2, "bench", "decode", MODEL, "--disable", ",fuse", says=["--disable", *words])
        # No other command has the option, and the seven older ones are gone.
        for command in ("run", "chat", "eval", "info"):
            text = self.ok(command, "--help-all").out
            self.assertNotIn("--disable", text, command)
            for word in words:
                self.assertNotIn(f"--no-{word}", text, command)
        self.fails(2, "run", "-p", "Once", "--disable", "fuse", says="--disable")
        self.fails(2, "run", "-p", "Once", "--no-graph", says="--no-graph")

    def test_errors(self):
        self.fails(2, "bench", says="decode")
        self.fails(2, "bench", "decode", MODEL, "--reps", 0, says="--reps")
        failed = self.fails(2, "bench", "decode", "random:llama-9000b", says="llama-2-7b")
        shapes = failed.err.strip().split("use one of ")[1].split(", ")
        self.assertGreater(len(shapes), 10)
        shown = self.ok("bench", "--help").out
        for shape in shapes:
            self.assertIn(shape, shown)
        self.fails(2, "bench", "decode", "random:gpt2:q9_9", says="q9_9")
        self.fails(1, "bench", "decode", MODEL, "--ctx", 8, says="--ctx")
        # More positions than the table has: refused before a weight is made.
        self.fails(1, "bench", "decode", "random:gpt2", "--prompt", 1000, "-n", 128, says="1024")


if __name__ == "__main__":
    driver.main()
