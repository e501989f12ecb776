"""The command line on a GPU: the same commands, the same answers. Skips if there is none, and fails
if MILLRACE_REQUIRE_GPU=1 (driver.need_gpu)."""
import json
import re
import shutil
import signal

import driver
from train_test import QUIET, bits, checkpoints, metrics, pack_stories, shape

CUDA = ("--device", "cuda")
# After these 24 words the bundled model's best token leads the second by at least 0.057 at each of
# the next 34 tokens, in f32.
STORY = ("run", "-p", "Once upon a time, in a forest where bluebells grew, there lived a clever young "
         "boy named Enzo. Enzo always wore a green scarf.", "-n", 60, "--temp", 0, "--ignore-eos",
         "-q")


class NoDevice(driver.CliTest):
    """Messages if there is no GPU, or if it is hidden."""
    # The option takes precedence over the environment, too.
    HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "MILLRACE_DEVICE": "cpu"}

    def test_cuda_without_a_gpu_is_one_line_and_exit_3(self):
        for command in (("run", "-p", "Once", *CUDA), ("bench", "decode", *CUDA),
                        ("bench", "prefill", *CUDA), ("bench", "load", *CUDA),
                        (driver.LAB, "sampler", *CUDA), (driver.LAB, "norms", *CUDA)):
            self.fails(3, *command, says="--device cpu", env=self.HIDDEN)
        self.fails(3, driver.LAB, "norms", says="millrace info", env=self.HIDDEN)
        self.fails(3, driver.LAB, "streams", says="millrace info", env=self.HIDDEN)
        self.fails(3, driver.LAB, "overlap", "random:gpt2", says="millrace info", env=self.HIDDEN)

    def test_auto_takes_the_cpu(self):
        got = self.ok_json("run", "-p", "Once", "-n", 1, "--device", "auto", env=self.HIDDEN)
        self.assertEqual(len(got["ids"]), 1)
        machine = self.ok_json("info", "--device", "auto", env=self.HIDDEN)["machine"]
        self.assertIsNone(machine["gpu"])
        self.assertGreater(len(machine["why_no_gpu"]), 10)


class Text(driver.GpuTest):
    def test_the_story_is_the_cpus_and_switches_change_nothing(self):
        text = self.ok(*STORY, *CUDA).out
        self.assertGreater(len(text.split()), 50)
        # The weights are 8-bit: both round activations alike, except for the prompt's.
        self.assertEqual(text.split()[:45], self.ok(*STORY, "--device", "cpu").out.split()[:45])
        self.assertEqual(self.ok(*STORY, *CUDA, "--check-nan").out, text)
        for switch in ("graph", "dependent-launch", "batch-products", "resident-attention",
                       "persistent"):
            self.assertEqual(self.ok(*STORY, *CUDA, env={"MILLRACE_DISABLE": switch}).out, text,
                             switch)
        ids = self.ok_json(*STORY, *CUDA)["ids"]
        profiled = self.ok_json("profile", *STORY[1:-1], *CUDA, "--disable", "graph,persistent")
        self.assertEqual(profiled["ids"], ids)

    def test_the_penalty_looks_back_as_far_as_it_is_told(self):
        near, far, all_of_it = (
            self.ok("run", "-p", "Once upon a time", "-n", 200, "--temp", 0, "--ignore-eos", "-q",
                    "--repeat-penalty", 4, "--repeat-window", window, *CUDA).out
            for window in (64, 1000, 1000000))
        self.assertEqual(far, all_of_it)  # the text is shorter than either
        self.assertNotEqual(near, far)

    def test_eval_is_close_to_the_cpus(self):
        text = self.folder / "text.txt"
        text.write_text("Once upon a time, there was a kind girl named Lily. She had a red ball.\n"
                        * 20)
        cpu, cuda = (self.ok_json("eval", "--text", text, "--device", device)["ppl"]
                     for device in ("cpu", "cuda"))
        self.assertGreater(cpu, 1)
        self.assertLess(abs(cpu / cuda - 1), 0.02)

    def test_a_context_that_cannot_fit_is_refused_with_numbers(self):
        refused = self.fails(3, "run", "random:llama-2-7b:bf16", "--ctx", 4000000, "-p", "x", *CUDA,
                             says="--ctx")
        self.assertRegex(refused.err, r"\d [GT]iB.*\d [GT]iB")


class Account(driver.GpuTest):
    def test_a_token_moves_nothing_to_the_device_and_16_bytes_back(self):
        # Both have 3 pages of 32 positions, whose numbers are sent before the first token; so the
        # difference is 30 more tokens.
        few, many = (self.ok_json("run", "-p", "Once upon a time", "-n", tokens, "--ignore-eos",
                                  *CUDA) for tokens in (60, 90))
        self.assertEqual((len(few["ids"]), len(many["ids"])), (60, 90))
        few, many = few["ledger"]["decode"], many["ledger"]["decode"]
        self.assertEqual(many["host_to_device_bytes"], few["host_to_device_bytes"])
        self.assertEqual(many["device_to_host_bytes"] - few["device_to_host_bytes"], 30 * 16)

    def test_roofline(self):
        result = self.ok("run", "-p", "Once upon a time", "-n", 8, "--ignore-eos", "--roofline",
                         *CUDA)
        self.assertNotIn("all stages", result.out)
        decode = result.err.split("decode: ")[1]
        for part in ("7 steps", "qkv", "attention", "out", "mlp up", "down", "head", "sample",
                     "all stages", "between stages", "GB/s read", "TFLOP/s",
                     "host to device 0 B per token, device to host 16 B per token"):
            self.assertIn(part, decode)

    def test_profile_writes_a_trace_and_a_page(self):
        trace, page = self.folder / "out.json", self.folder / "out.html"
        got = self.ok_json("profile", "-p", "Once upon a time", "-n", 8, "--ignore-eos", "--trace",
                           trace, "--html", page, *CUDA)
        self.assertEqual(len(got["ids"]), 8)
        decode = got["roofline"]["decode"]
        self.assertEqual((decode["steps"], decode["tokens"]), (7, 7))
        self.assertEqual(decode["host_to_device_bytes_per_token"], 0)
        self.assertEqual(decode["device_to_host_bytes_per_token"], 16)
        for key in ("read_gb_s", "copy_gb_s", "to_device_gb_s", "to_host_gb_s"):
            self.assertGreater(decode["ceilings"][key], 1, key)

        parsed = json.loads(trace.read_text())
        self.assertNotEqual(parsed["otherData"]["device"], "cpu")
        timed = [event for event in parsed["traceEvents"] if event["ph"] != "M"]
        self.assertEqual(timed, sorted(timed, key=lambda event: event["ts"]))
        host, stages = ([event for event in timed if event["ph"] == "X" and event["tid"] == track]
                        for track in (1, 2))
        self.assertEqual(sum(event["name"] == "decode" for event in host), 7)
        # One pass over the prompt and seven steps, each through all layers.
        layers = self.ok_json("info", "--device", "cpu")["model"]["layers"]
        for name in ("qkv", "attention", "out", "mlp up", "down"):
            mine = [event for event in stages if event["name"] == name]
            self.assertEqual(len(mine), 8 * layers, name)
            self.assertEqual({event["args"]["layer"] for event in mine}, set(range(layers)), name)
            self.assertGreater(sum(event["dur"] for event in mine), 0, name)
        for event in stages:
            self.assertGreaterEqual(event["dur"], 0, event)
            self.assertLess(event["dur"], 1e5, event)  # us
            self.assertGreater(event["args"]["bytes_read"], 0, event)
        shown = driver.Page(page)
        self.assertEqual([one["phase"] for one in shown.sections("roofline")], ["prefill", "decode"])
        self.assertIn("Once upon a time", shown.text)
        self.assertEqual(shown.elsewhere, [])


class Training(driver.GpuTest):
    def train(self, run, *more, device="cuda", **kwargs):
        return driver.millrace("train", *shape(dim=64, batch=4), *QUIET, "--device", device,
                               "--steps", 6, "--save-every", 3, "--data", self.folder / "data", "--out", run,
                               *more, **kwargs)

    def test_samples_are_the_gpus_and_change_nothing(self):
        pack_stories(self.folder)
        quiet, run = self.folder / "quiet", self.folder / "run"
        self.assertEqual(self.train(quiet).code, 0)
        for masters, seed in (("f32", 1), ("bf16", 7)):
            shutil.rmtree(run, ignore_errors=True)
            said = self.ok("train", *shape(dim=64, batch=4), "--eval-every", 0, "--eval-batches", 1,
                           "--steps", 6, "--save-every", 3, "--data", self.folder / "data", "--out",
                           run, "--sample-every", 2, "--sample-tokens", 20, "--prompt", "Once upon",
                           "--seed", seed, "--masters", masters, *CUDA).err
            self.assertRegex(said, r"memory .*, samples \d")
            self.assertNotIn("from the CPU", said)
            texts = re.findall(r"--- a sample after step (\d+):\n(.*?)\n---\n", said, re.S)
            self.assertEqual([step for step, _ in texts], ["2", "4", "6"])
            # Equal bit for bit to the checkpoint in the type of its training.
            bf16 = self.folder / "bf16.gguf"
            self.ok("convert", run, bf16, "--type", "bf16", "--force")
            text = self.ok("run", bf16, "-p", "Once upon", "-n", 20, "--seed", seed, "-q", *CUDA).out
            self.assertEqual(text, texts[-1][1] + "\n", masters)
            if masters == "f32":
                self.assertEqual(bits(run, 6), bits(quiet, 6))
                self.assertEqual(metrics(run), metrics(quiet))

    def test_runs_that_are_repeated_resumed_or_killed_have_the_same_bits(self):
        pack_stories(self.folder)
        whole = self.folder / "whole"
        self.assertEqual(self.train(whole, "--keep", 0).code, 0)
        lines = metrics(whole)
        self.assertEqual([m["step"] for m in lines], [1, 2, 3, 4, 5, 6])
        self.assertLess(lines[-1]["loss"], lines[0]["loss"])
        self.assertIn("% of peak", self.train(self.folder / "again", "--keep", 0).err)
        self.assertEqual(metrics(self.folder / "again"), lines)
        resumed = self.folder / "resumed"
        shutil.copytree(whole, resumed)
        shutil.rmtree(resumed / "checkpoints" / "step-000006")
        self.ok("train", "--resume", resumed, *CUDA, "--prefetch", 0, "--recompute", "full")
        killed = self.folder / "killed"
        code = self.train(killed, program=driver.FAULTY,
                          env={"MILLRACE_FAULT": "save:12"}).code
        self.assertEqual(code, -signal.SIGKILL)
        whole_ones = [name for name in checkpoints(killed) if name.startswith("step-")]
        self.assertLess(len(whole_ones), 2)  # killed before the second was complete
        if whole_ones:
            self.ok("train", "--resume", killed, *CUDA)
        else:
            self.assertEqual(self.train(killed).code, 0)
        for run in (self.folder / "again", resumed, killed):
            self.assertEqual(bits(run, 6), bits(whole, 6), run.name)
            self.assertEqual(metrics(run), lines, run.name)
        # Both devices run the GPU's checkpoint; and the CPU's training gives nearly the same.
        texts = [self.ok_json("run", whole, "-p", "Once", "-n", 4, "--temp", 0, "--device",
                              device)["ids"] for device in ("cpu", "cuda")]
        self.assertEqual(*texts)
        cpu = self.folder / "cpu"
        self.assertEqual(self.train(cpu, device="cpu").code, 0)
        for gpu_line, cpu_line in zip(lines, metrics(cpu)):
            self.assertAlmostEqual(gpu_line["loss"], cpu_line["loss"], delta=0.02)

    def test_models_that_fill_in_blocks(self):
        pack_stories(self.folder)
        # Blocks with a specialised kernel, and longer blocks.
        for block in (4, 16, 96):
            of = (*shape(dim=64, layers=2, batch=4, seq=96), "--objective", "diffusion", "--block", block,
                  "--eval-every", 0, "--eval-batches", 1, "--steps", 6, "--save-every", 3, "--keep",
                  0, "--data", self.folder / "data")
            runs = [self.folder / f"{name}-{block}" for name in ("whole", "resumed", "cpu")]
            whole, resumed, cpu = runs
            said = self.ok("train", *of, "--out", whole, "--sample-every", 3, "--sample-tokens", 21,
                           "--prompt", "Once upon", *CUDA).err
            self.assertRegex(said, r"memory .*, samples \d")
            self.assertNotIn("from the CPU", said)
            texts = re.findall(r"--- a sample after step (\d+):\n(.*?)\n---\n", said, re.S)
            self.assertEqual([step for step, _ in texts], ["3", "6"])
            if block <= 64:  # the decoder's limit
                bf16 = self.folder / f"{block}.gguf"
                self.ok("convert", whole, bf16, "--type", "bf16")
                text = self.ok("run", bf16, "-p", "Once upon", "-n", 21, "--temp", 0.8, "--top-k",
                               40, "--seed", 1, "-q", *CUDA).out
                self.assertEqual(text, texts[-1][1] + "\n", block)
            shutil.copytree(whole, resumed)
            shutil.rmtree(resumed / "checkpoints" / "step-000006")
            self.ok("train", "--resume", resumed, *CUDA, "--prefetch", 0, "--recompute", "full",
                    "--sample-tokens", 0)
            self.assertEqual(bits(resumed, 6), bits(whole, 6), block)
            self.assertEqual(metrics(resumed), metrics(whole), block)
            self.ok("train", *of, "--out", cpu, "--sample-tokens", 0, "--device", "cpu")
            for one, other in zip(metrics(whole), metrics(cpu)):
                self.assertAlmostEqual(one["loss"], other["loss"], delta=0.1)
                self.assertEqual(one["masked"], other["masked"])

    def test_bf16_masters_repeat_and_resume_with_the_same_bits(self):
        pack_stories(self.folder)
        half = ("--masters", "bf16")
        runs = [self.folder / name for name in ("whole", "again", "resumed", "f32")]
        whole, again, resumed, f32 = runs
        for run, more in ((whole, half), (again, half), (f32, ())):
            result = self.train(run, "--keep", 0, *more)
            self.assertEqual(result.code, 0, result.err)
        shutil.copytree(whole, resumed)
        shutil.rmtree(resumed / "checkpoints" / "step-000006")
        self.ok("train", "--resume", resumed, *CUDA, "--prefetch", 0, "--recompute", "light")
        for run in (again, resumed):
            self.assertEqual(bits(run, 6), bits(whole, 6), run.name)
            self.assertEqual(metrics(run), metrics(whole), run.name)
        # Different from the run with f32 masters, but with nearly its losses.
        self.assertNotEqual(bits(whole, 6), bits(f32, 6))
        for one, other in zip(metrics(whole), metrics(f32)):
            self.assertAlmostEqual(one["loss"], other["loss"], delta=0.05)
        self.fails(2, "train", "--resume", whole, *CUDA, "--masters", "f32", says="--masters")

    def test_planned_and_taken_memory_are_told(self):
        pack_stories(self.folder)
        run = self.folder / "run"
        told = self.train(run).err.splitlines()[-1]
        self.assertRegex(told, r"done after step 6: .* of memory planned and .* taken")
        self.assertIn("taken, by the driver's account", driver.Page(run / "report.html").text)


if __name__ == "__main__":
    driver.main()
