"""millrace bench on a GPU; bench_test.py has it on the CPU. Skips without a GPU, and fails there if
MILLRACE_REQUIRE_GPU=1 (driver.need_gpu)."""
import os

import driver

os.environ["MILLRACE_DEVICE"] = "cuda"  # where a test names no device

CUDA = ("--device", "cuda")
SMALL = "random:stories-42m:bf16"
STORYTELLER = driver.SOURCE / "models" / "storyteller.gguf"


class Bench(driver.GpuTest):
    def positive(self, got, *keys):
        for key in keys:
            self.assertGreater(got[key], 0, key)

    def test_decode(self):
        got = self.ok_json("bench", "decode", SMALL, "--prompt", 8, "-n", 8, "--reps", 2, *CUDA)
        self.assertEqual(got["device"], self.gpu["name"])
        self.assertEqual(len(got["seconds"]), 2)
        self.positive(got, "tok_s", "gb_s", "read_bandwidth_gb_s", "percent_of_bandwidth")
        self.assertGreaterEqual(got["bytes_per_token"], got["weight_bytes_per_token"])

    def test_prefill(self):
        got = self.ok_json("bench", "prefill", SMALL, "--prompt", 256, "--reps", 2, *CUDA)
        self.assertEqual((got["device"], got["prompt"]), (self.gpu["name"], 256))
        self.positive(got, "gflop_s")

    def test_train(self):
        got = {}
        for masters in ("f32", "bf16"):
            got[masters] = self.ok_json("bench", "train", "random:gpt2", "--batch", 8, "--seq", 1024,
                                        "--steps", 3, "--warmup", 2, "--masters", masters, *CUDA)
            self.positive(got[masters], "tok_s", "tflop_s", "percent_of_matrix_peak")
            # By the driver's account a run takes its plan, plus a few per cent (code, the driver's
            # own).
            plan, taken = got[masters]["memory_bytes"], got[masters]["memory_taken_bytes"]
            self.assertGreaterEqual(taken, 0.99 * plan)
            self.assertLess(taken, 1.03 * plan + (256 << 20))
        # 124 M parameters without an f32 copy, except for norms and biases.
        saved = got["f32"]["memory_bytes"] - got["bf16"]["memory_bytes"]
        self.assertGreater(saved, 4 * 123e6)
        self.assertLess(saved, 4 * 125e6)
        self.assertAlmostEqual(got["bf16"]["last_loss"], got["f32"]["last_loss"], delta=0.05)

    def test_bench_diffusion_times_every_stage(self):
        for model in ("storyteller-diffusion", driver.REFERENCE / "llada"):
            got = self.ok_json("bench", "diffusion", model, "--prompt", 8, "-n", 12, "--blocks", 4,
                               "--reps", 1, *CUDA)
            rungs = got["rungs"]
            samplers = [rung["sampler"] for rung in rungs]
            self.assertEqual(samplers[:3], ["host", "sorted", "engine"])
            self.assertEqual(set(samplers[3:]), {"block"}, model)
            for rung in rungs:
                a_pass = rung["pass"]
                alone = rung["sampler"] == "block"
                self.assertEqual(a_pass["copies_ms"] == 0, alone, rung)
                self.assertEqual(a_pass["forward_alone_ms"] > 0, alone, rung)
                for stage in ("forward_ms", "head_ms", "sampling_ms"):
                    self.assertGreater(a_pass[stage], 0, rung)

    def test_train_to_fill_in_blocks(self):
        got = self.ok_json("bench", "train", STORYTELLER, "--objective", "diffusion", "--block", 4,
                           "--batch", 16, "--seq", 512, "--steps", 3, "--warmup", 2, *CUDA)
        self.assertEqual([got["objective"], got["block"], got["tokens_per_step"]],
                         ["diffusion", 4, 16 * 512])
        self.positive(got, "tok_s", "tflop_s", "percent_of_matrix_peak")

    def test_load(self):
        got = self.ok_json("bench", "load", driver.REFERENCE / "llama2", *CUDA)
        self.positive(got, "sent_bytes", "percent_of_pinned")
        self.assertGreaterEqual(got["weight_bytes"], got["sent_bytes"])
        # Random matrices are made on the device.
        made = self.ok_json("bench", "load", "random:stories-42m:q8_0", *CUDA)
        self.assertLess(made["sent_bytes"], 1 << 20)
        self.assertGreater(made["weight_bytes"], 40e6)


if __name__ == "__main__":
    driver.main()
