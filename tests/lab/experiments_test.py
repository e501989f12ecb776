"""millrace-lab on the CPU; device_experiments_test.py has it on a GPU."""
import math
import os

import driver

MODEL = driver.REFERENCE / "llama2"


class Experiments(driver.CliTest):
    def test_sample(self):
        args = (driver.LAB, "sampler", "--device", "cpu", "--vocab", 2000, "--rows", "1,3")
        got = self.ok_json(*args)
        self.assertEqual([size["rows"] for size in got["sizes"]], [1, 3])
        for size in got["sizes"]:
            for key in ("us", "cached_us", "floor_us", "times_floor"):
                self.assertGreater(size[key], 0, key)
        self.assertIn("x floor", self.ok(*args).out)
        penalty = self.ok_json(*args, "--repeat-penalty", 1.2, "--repeat-window", 3000)
        self.assertEqual((penalty["repeat_window"], len(penalty["sizes"])), (3000, 2))

    def test_sample_takes_the_vocabulary_of_a_model(self):
        for args, vocab in ((("random:llama-2-7b:bf16",), 32000),  # none of its 13 GB is allocated
                            ((MODEL,), self.ok_json("info", MODEL)["model"]["vocab"]),
                            (("random:gpt2", "--vocab", 777), 777)):
            got = self.ok_json(driver.LAB, "sampler", *args, "--rows", 1, "--device", "cpu")
            self.assertEqual((got["model"], got["vocab"]), (str(args[0]), vocab))
        self.fails(2, driver.LAB, "sampler", "random:llama-9000b", says="llama-2-7b")
        self.fails(1, driver.LAB, "sampler", self.folder / "none.gguf", says="none.gguf")

    def test_norm(self):
        self.fails(3, driver.LAB, "norms", env={"CUDA_VISIBLE_DEVICES": ""},
                   says=["norms: measures a GPU", "millrace info"])
        self.fails(3, driver.LAB, "norms", "random:llama-2-7b:bf16", env={"CUDA_VISIBLE_DEVICES": ""})
        self.fails(2, driver.LAB, "norms", "random:llama-9000b", says="llama-2-7b")
        self.fails(2, driver.LAB, "norms", "--type", "q8_0", says="--type")
        self.fails(2, driver.LAB, "norms", "--tokens", "0", says="--tokens")

    def test_norm_errors_of_the_cpu(self):
        for kind, hidden in (("layer", 2560), ("rms", 64)):
            got = self.ok_json(driver.LAB, "norms", "--device", "cpu", "--kind", kind, "--hidden", hidden)
            self.assertEqual((got["device"], got["sizes"]), ("cpu", []))
            self.assertEqual([(e["batch"], e["tokens"], e["type"], e["on"]) for e in got["errors"]],
                             [(2, 128, "f32", "CPU"), (1, 1, "f32", "CPU"), (4, 256, "f32", "CPU"),
                              (1, 2048, "f32", "CPU")])
            for error in got["errors"]:
                self.assertGreater(error["largest"], 0)
                self.assertLess(error["largest"], 4e-6)
                self.assertLess(error["relative"], 4e-7)
        text = self.ok(driver.LAB, "norms", "--device", "auto", "--hidden", 64,
                       env={"CUDA_VISIBLE_DEVICES": ""}).out
        self.assertRegex(text, r"\[4,256\] +f32 +CPU +[0-9.]+e-0[678]")
        self.fails(3, driver.LAB, "norms", "--device", "cuda", env={"CUDA_VISIBLE_DEVICES": ""})
        self.fails(2, driver.LAB, "norms", "--device", "tpu", says="--device")

    def test_fusion_is_refused_without_a_gpu(self):
        hidden = {"CUDA_VISIBLE_DEVICES": "", "MILLRACE_DEVICE": "auto"}
        for arguments in (("random:pythia-2.8b:f16",), ("random:pythia-2.8b", "--peer", "torch"),
                          (MODEL,), ("random:gpt2", "--device", "cuda", "--json")):
            self.fails(3, driver.LAB, "fusion", *arguments, env=hidden, says=["GPU", "millrace info"])
        for given, env in ((("--device", "cpu"), {}), ((), {"MILLRACE_DEVICE": "cpu"})):
            self.fails(2, driver.LAB, "fusion", "random:pythia-2.8b:f16", *given, env=env,
                       says=["--device", "bench decode"])

    def test_streams_is_refused_without_a_gpu(self):
        hidden = {"CUDA_VISIBLE_DEVICES": ""}
        page = self.folder / "page.html"
        for arguments in ((), ("--size", 1000, "--streams", "1,2"), ("--json", "--html", page)):
            self.fails(3, driver.LAB, "streams", *arguments, env=hidden,
                       says=["streams", "GPU", "millrace info"])
        self.assertFalse(page.exists())

    def test_streams_errors(self):
        for arguments, says in ((("--size", 0), "--size: must be from 1 to 268435456, not 0"),
                                (("--size", 268435457), "--size"),
                                (("--size", "large"), "--size: 'large' is not a number"),
                                (("--streams", "1,0"), "--streams: must be from 1 to 64, not 0"),
                                (("--streams", "1,65"), "--streams: must be from 1 to 64, not 65"),
                                (("--streams", ""), "--streams"),
                                (("--chunks", "16,-1"), "--chunks: must be from 1 to 4096, not -1"),
                                (("--reps", 0), "--reps"),
                                (("--html", ""), "--html: is empty"),
                                (("--device", "cpu"), "--device")):
            self.fails(2, driver.LAB, "streams", *arguments, says=says)
        text = self.ok(driver.LAB, "streams", "--help").out
        for part in ("--size N", "(4194304)", "--streams N,...", "(1,2,4,8,16)", "--chunks N,...",
                     "--html FILE", "--json", "docs/streams.md"):
            self.assertIn(part, text)

    def test_overlap_is_refused_without_a_gpu(self):
        hidden = {"CUDA_VISIBLE_DEVICES": ""}
        for arguments in ((), ("--link", "50GB/s,400Gb/s", "--json"),
                          ("--ranks", 2, "--bucket", 1, "--occupy", 0, "--steps", 1)):
            self.fails(3, driver.LAB, "overlap", "random:gpt2", *arguments, env=hidden,
                       says=["overlap", "GPU", "millrace info"])

    def test_overlap_errors(self):
        """Reported before looking for a GPU."""
        overlap = (driver.LAB, "overlap")
        self.fails(2, *overlap, says="MODEL is required")
        self.fails(2, *overlap, "random:llama-9000b", says="llama-2-7b")
        self.fails(2, *overlap, "random:sdar-4b", says=["model", "is a diffusion model"])
        for arguments, says in (
                (("--link", "50"), ["--link", "no unit"]),
                (("--link", "50GB/s,fast"), ["--link", "fast", "above 0"]),
                (("--link", "0GB/s"), ["--link", "above 0"]),
                (("--link", "50furlongs/s"), ["--link", "unknown unit"]),
                (("--link", ""), "--link"),
                (("--ranks", 3), ["--ranks", "3", "power of two"]),
                (("--ranks", 1), "--ranks: must be from 2 to 64, not 1"),
                (("--ranks", 128), "--ranks"),
                (("--seq", 1025), ["--seq", "context of 1024"]),
                (("--batch", 0), "--batch"),
                (("--bucket", 0), "--bucket: must be from 1 to 65536, not 0"),
                (("--occupy", "0,-1"), "--occupy: must be from 0 to 1024, not -1"),
                (("--steps", 0), "--steps"),
                (("--warmup", 0), "--warmup"),
                (("--device", "cpu"), "--device")):
            self.fails(2, *overlap, "random:gpt2", *arguments, says=says)
        text = self.ok(*overlap, "--help").out
        for part in ("--link RATE,...", "(50GB/s,400GB/s)", "--ranks N", "(8)", "--bucket N", "(25)",
                     "--occupy N,...", "(0,8,16,32)", "--steps N", "--json", "t_both",
                     "docs/streams.md"):
            self.assertIn(part, text)

    def test_fusion_errors(self):
        fusion = (driver.LAB, "fusion")
        self.fails(2, *fusion, "random:llama-9000b", says="llama-2-7b")
        self.fails(2, *fusion, "random:gpt2", "--types", "f16,q8_0", says=["--types", "q8_0"])
        self.fails(2, *fusion, MODEL, "--types", "f16", says=["--types", "convert"])
        self.fails(2, *fusion, "random:gpt2", "--score", 2, says="--score")
        self.fails(2, *fusion, "random:gpt2", "--reps", 0, says="--reps")
        self.fails(2, *fusion, "random:gpt2", "--peer", "jax", says="--peer")
        self.fails(2, *fusion, "random:gpt2", env={"MILLRACE_DISABLE": "fuse,frobnicate"},
                   says=["MILLRACE_DISABLE", "frobnicate", "norms-together"])
        text = self.ok(*fusion, "--help").out
        for part in ("--types", "--score", "--text FILE", "--peer torch", "4 digits"):
            self.assertIn(part, text)

    def test_context(self):
        ask = (driver.LAB, "context", MODEL, "--tokens", 90, "--cap", 32, "--prune", "4,8", "--sample",
               3, "--timed", 6)
        got = self.ok_json(*ask)
        self.assertEqual((got["experiment"], got["device"]), ("context", "cpu"))
        self.assertEqual([got[key] for key in ("tokens", "cap", "sinks", "window", "samples")],
                         [90, 32, 4, 28, 3])
        ways = got["ways"]
        self.assertEqual([(way["way"], way["prune"], way["timed_tokens"]) for way in ways],
                         [("recompute", 0, 3), ("published", 1, 6), ("pruned every 4", 4, 8),
                          ("pruned every 8", 8, 8), ("ring", 0, 6)])
        for way in ways:
            for key in ("ms_per_token", "forward_ms", "wall_ms", "times_ring"):
                self.assertGreater(way[key], 0, (way["way"], key))
            self.assertAlmostEqual(way["ms_per_token"], way["forward_ms"] + way["upkeep_ms"])
            self.assertNotIn("nll", way)  # no text was given
        moved = [way["upkeep_bytes"] for way in ways]
        self.assertGreater(moved[1], moved[2])
        self.assertGreater(moved[2], moved[3])
        self.assertEqual((moved[0], moved[4], ways[4]["times_ring"]), (0, 0, 1))
        table = self.ok(*ask).out.splitlines()
        self.assertEqual([line.split("  ")[1] for line in table[3:]], [way["way"] for way in ways])
        self.assertNotIn("NLL", table[2])

    def test_context_of_a_text(self):
        text = self.folder / "text.txt"
        text.write_text("Once upon a time there was a mill by the river. " * 20)
        ask = ("--text", text, "--tokens", 120, "--cap", 48, "--prune", "16", "--sample", 5,
               "--timed", 4)
        ways = {way["way"]: way for way in self.ok_json(driver.LAB, "context", *ask)["ways"]}
        self.assertEqual(len(ways), 4)
        self.assertNotIn("nll", ways["recompute"])
        self.assertAlmostEqual(ways["published"]["nll"], ways["ring"]["nll"], delta=0.02)
        self.assertAlmostEqual(ways["published"]["sample_nll"], ways["ring"]["sample_nll"],
                               delta=0.05)
        self.assertGreater(ways["recompute"]["sample_nll"], 0)
        # With f32 weights the two modes that see the same tokens give the same.
        exact = self.ok_json(driver.LAB, "context", MODEL, *ask)["ways"]
        self.assertAlmostEqual(exact[1]["nll"], exact[3]["nll"], delta=1e-4)
        self.assertEqual(exact[3]["perplexity"], math.exp(exact[3]["nll"]))
        self.assertIn("perplexity", self.ok(driver.LAB, "context", MODEL, *ask).out)

    def test_context_errors(self):
        context = (driver.LAB, "context")
        self.fails(2, *context, MODEL, "--sinks", 32, "--cap", 32, says=["--sinks", "--cap"])
        self.fails(2, *context, MODEL, "--sinks", 20, "--cap", 32, says=["--sinks", "window of 12"])
        self.fails(2, *context, MODEL, "--tokens", 32, "--cap", 32, says=["--tokens", "32 keys"])
        self.fails(2, *context, MODEL, "--prune", "16,1", says="--prune")
        self.fails(2, *context, MODEL, "--sample", 0, says="--sample")
        text = self.folder / "short.txt"
        text.write_text("A mill.")
        self.fails(1, *context, MODEL, "--text", text, "--cap", 32, says="nothing of it is evicted")
        self.fails(2, *context, "random:stories-42m", "--text", text, says=["--text", "random"])
        self.fails(1, *context, MODEL, "--text", self.folder / "none.txt", says="none.txt")
        self.fails(1, *context, driver.REFERENCE / "gpt2", "--tokens", 60, "--cap", 32,
                   says="learned positions")
        self.fails(1, *context, driver.REFERENCE / "mistral", "--tokens", 60, "--cap", 32,
                   says="window of its own")

    def test_attention(self):
        self.fails(3, driver.LAB, "attention", env={"CUDA_VISIBLE_DEVICES": ""})
        self.fails(2, driver.LAB, "attention", "--heads", 6, "--kv-heads", 4, says="--kv-heads")
        self.fails(2, driver.LAB, "attention", "--head-dim", 36, says="--head-dim")
        self.fails(2, driver.LAB, "attention", "--keys", "128,0", says="--keys")
        self.fails(2, driver.LAB, "attention", "--sinks", 4, says="--sinks")
        self.fails(2, driver.LAB, "attention", "--chunk", -1, says="--chunk")
        self.fails(2, driver.LAB, "attention", "--tokens", "512,0", says="--tokens")
        self.fails(2, driver.LAB, "attention", "--only", "half", says="--only")
        self.fails(2, driver.LAB, "attention", "--peer", "nobody", says="--peer")
        self.fails(2, driver.LAB, "attention", "--grid", "cs337", says="--grid")
        # Options that would be ignored are refused.
        for part in (["--only", "plain"], ["--peer", "torch"]):
            self.fails(2, driver.LAB, "attention", "--grid", "cs336", *part, says=part[0])
        self.fails(2, driver.LAB, "attention", "--only", "paged", "--peer", "torch", says="--peer")
        for part in (["--shapes", "wide"], ["--shape", "1:64:1:1:64:causal"]):
            self.fails(2, driver.LAB, "attention", "--grid", "cs336", *part, says=part[0])
            self.fails(2, driver.LAB, "attention", "--tokens", "512", *part, says=part[0])
            self.fails(2, driver.LAB, "attention", "--only", "paged", *part, says=part[0])
        # The error names the wrong part of a shape.
        for shape, says in (
                ("1:64:1:1:64", "5 parts"), ("1:64:1:1:64:causal:bf16:x", "8 parts"),
                ("0:64:1:1:64:causal", "the batch '0'"), ("1::1:1:64:causal", "tokens ''"),
                ("1:64x:1:1:64:causal", "tokens '64x'"), ("2:64+64:1:1:64:causal", "packed"),
                ("1:64+:1:1:64:causal", "a length ''"), ("1:64:6:4:64:causal", "divide"),
                ("1:64:1:1:60:causal", "multiple of 8"), ("1:64:1:1:512:causal", "a head size"),
                ("1:64:1:1:64:diagonal", "diagonal"), ("1:64:1:1:64:window", "window"),
                ("1:64:1:1:64:window/9/9/9", "window/9/9/9"),
                ("1:64:1:1:64:block-causal/0", "the block '0'"),
                ("65536:1048576:1:1:64:full", "16,777,216"), ("1:64:1:1:64:full:q8_0", "q8_0")):
            self.fails(2, driver.LAB, "attention", "--shape", "1:64:1:1:64:full:f16," + shape,
                       says=says)
        for part in (("--grid", "cs336"), ("--only", "plain"), ("--only", "plain", "--peer", "torch"),
                     ("--shapes", "wide"),
                     ("--shape", "1:3+5:4:2:64:window/16/4:f16,2:9:2:1:80:block-causal/4"),
                     ("--only", "paged"), ("--json",)):
            self.fails(3, driver.LAB, "attention", *part, env={"CUDA_VISIBLE_DEVICES": ""},
                       says="measures a GPU")

    def test_without_a_gpu_they_say_that_there_is_none(self):
        for name in ("attention", "gemm", "streams"):
            result = self.fails(3, driver.LAB, name, env={"CUDA_VISIBLE_DEVICES": ""},
                                says=f"{name}: measures a GPU")
            self.assertNotIn("--device", result.err)

    def test_errors(self):
        self.fails(2, driver.LAB, "ladr", says="millrace-lab ladder")
        self.fails(2, driver.LAB, "attention", "--disable", "fuse", says="resident-attention")
        self.fails(2, driver.LAB, "gemm", "--n", 64, says="--k")
        self.fails(2, driver.LAB, "gemm", "--n", 64, "--k", 33, "--type", "q8_0", says="--k")

    def test_old_names_say_the_new_ones(self):
        for old, new in (("attention", "attention"), ("comm", "comm"), ("context", "context"),
                         ("fusion", "fusion"), ("gemm", "gemm"), ("ladder", "ladder"), ("norm", "norms"),
                         ("overlap", "overlap"), ("precision", "precision"), ("sample", "sampler"),
                         ("streams", "streams")):
            self.fails(2, "bench", old, "--json", says=("laboratory", f"'millrace-lab {new}'"))
        self.fails(2, "data", "storybook", "--out", "x", says="'millrace-lab story write'")
        self.fails(2, "data", "check", "x", says="'millrace-lab story check'")


if __name__ == "__main__":
    driver.main()
