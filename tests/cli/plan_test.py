"""millrace plan: its output and errors, and published runs."""
import importlib.util
import json
import pathlib

import driver

CLUSTER = ("random:llama-3-70b", "--gpus", 1024, "--node", 8, "--link-node", "900GB/s",
           "--link-net", "400Gb/s")


def published():
    """bench/plan/published.py, whose table is in docs/parallel.md."""
    path = pathlib.Path(__file__).parents[2] / "bench" / "plan" / "published.py"
    spec = importlib.util.spec_from_file_location("published", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Plan(driver.CliTest):
    def test_the_parts_add_up(self):
        got = self.ok_json("plan", *CLUSTER, "--tokens", "15e12", "--layouts", 2)
        self.assertEqual((got["gpus"], got["node"], got["device"]), (1024, 8, "h100"))
        # NVLink's rate is for both directions, the network's for one.
        self.assertEqual((got["link_node_bytes_s"], got["link_net_bytes_s"]), (450e9, 50e9))
        self.assertEqual(len(got["layouts"]), 2)
        for layout in got["layouts"]:
            self.assertEqual(layout["data"] * layout["pipeline"], 1024)
            self.assertEqual(layout["tensor"], 1)
            self.assertEqual(layout["data"] * layout["micro_batches"] * layout["micro_batch"],
                             got["batch"])
            self.assertAlmostEqual(sum(layout["seconds"].values()), layout["step_seconds"], 6)
            self.assertLess(layout["step_seconds_low"], layout["step_seconds"])
            self.assertGreater(layout["step_seconds_high"], layout["step_seconds"])
            self.assertAlmostEqual(layout["tok_s"],
                                   got["tokens_per_step"] / layout["step_seconds"], 0)
            self.assertAlmostEqual(layout["gpu_hours"],
                                   15e12 / layout["tok_s"] * 1024 / 3600, -2)
            for stage in layout["stages"]:
                parts = sum(size for name, size in stage.items()
                            if name.endswith("_bytes") and name != "total_bytes")
                self.assertLessEqual(abs(parts - stage["total_bytes"]), 8)
                self.assertLessEqual(stage["total_bytes"], 0.95 * got["memory_bytes"])
            self.assertEqual(sum(stage["layers"] for stage in layout["stages"]), 80)
        steps = [layout["step_seconds"] for layout in got["layouts"]]
        self.assertEqual(steps, sorted(steps))

    def test_text(self):
        text = self.ok("plan", *CLUSTER, "--layouts", 4).out
        for part in ("70.55 B parameters", "activations", "backward", "tok/s", "MFU", "bound by",
                     "GPU-hours", "error", "links by 30%", "has not been measured"):
            self.assertIn(part, text)
        # Features that train lacks are reported; on one GPU there are none.
        asked = self.ok("plan", "random:llama-3-8b", "--gpus", 16, "--tensor", 8).out
        self.assertIn("neither --tensor nor --interleave", asked)
        for part in ("not counted", "restarts after failures", "1.7 to"):
            self.assertIn(part, text)
        self.assertNotIn("note", self.ok("plan", "random:gpt2", "--batch", 8).out)

    def test_what_the_hours_leave_out(self):
        """docs/parallel.md: published totals beside the plan's hours of steps alone."""
        for model, device, tokens, seq, batch, published in (
                ("llama-2-7b", "a100", 2e12, 4096, 1024, 184320),
                ("llama-3-8b", "h100", 15e12, 8192, 1024, 1.3e6),
                ("llama-3-70b", "h100", 15e12, 8192, 2048, 6.4e6)):
            with self.subTest(model=model):
                got = self.ok_json("plan", f"random:{model}", "--device", device, "--gpus", 1024,
                                   "--seq", seq, "--batch", batch, "--tokens", tokens,
                                   "--reduce", "fast")
                self.assertIn("restarts after failures", got["gpu_hours_not_counted"])
                times = published / got["layouts"][0]["gpu_hours"]
                self.assertTrue(1.65 <= times <= 3.5, times)

    def test_a_layout_that_is_given(self):
        got = self.ok_json("plan", "random:llama-3-8b", "--gpus", 16, "--pipeline", 4, "--zero", 1,
                           "--micro-batches", 8, "--recompute", "full", "--batch", 64, "--seq",
                           4096)["layouts"][0]
        self.assertEqual((got["data"], got["pipeline"], got["zero"], got["micro_batches"],
                          got["micro_batch"], got["recompute"]), (4, 4, 1, 8, 2, "full"))
        self.assertAlmostEqual(got["bubble_share"], 3 / 11)

    def test_published_runs_are_inside_of_the_band(self):
        """Except for torchtitan's absolute figures: eager PyTorch, at 500 W and 2.4 TB/s; its
        scaling is tested."""
        seen = 0
        for program, name, figure, _, band, _, paced, _ in published().predictions(driver.BIN):
            seen += 1
            with self.subTest(program=program, run=name):
                if program != "torchtitan":
                    self.assertTrue(band[0] <= figure <= band[1], (band, figure))
                # The plan's own uncertainty after one measurement: 10%.
                self.assertLess(abs(paced / figure - 1), 0.10, (paced, figure))
        self.assertEqual(seen, 13)

    def test_calibration_by_a_measured_step(self):
        bench = {"bench": "train", "model": "random:gpt2", "device": "NVIDIA H200", "type": "bf16",
                 "batch": 32, "seq": 1024, "accumulate": 1, "objective": "ar",
                 "recompute": "none", "masters": "f32", "ms_per_step": 109.0}
        file = self.folder / "bench.json"
        file.write_text(json.dumps(bench))
        same = ("plan", "random:gpt2", "--batch", 32, "--micro-batches", 1, "--recompute", "none")
        got = self.ok_json(*same, "--measured", file)
        self.assertEqual(got["device"], "h200")
        self.assertAlmostEqual(got["layouts"][0]["step_seconds"], 0.109, 6)
        plain = self.ok_json(*same, "--device", "h200")
        self.assertLess(got["compute_uncertainty"], plain["compute_uncertainty"])
        # Only the GPU's pace was measured: links are as uncertain as before.
        self.assertEqual(got["link_uncertainty"], plain["link_uncertainty"])
        self.fails(1, *same, "--measured", file, "--device", "a100", says=["H200", "a100"])
        for key, value in (("bench", "decode"), ("type", "f32"), ("device", "Neoverse-N1"),
                           ("ms_per_step", 0), ("objective", "diffusion")):
            file.write_text(json.dumps({**bench, key: value}))
            self.fails(1, *same, "--measured", file, says=["bench.json", key])
        self.fails(1, *same, "--measured", self.folder / "none.json", says="none.json")

    def test_what_a_cpu_measured_is_refused(self):
        file = self.folder / "cpu.json"
        file.write_text(self.ok("bench", "train", driver.REFERENCE / "llama2", "--batch", 1,
                                "--seq", 16, "--steps", 1, "--warmup", 0, "--json").out)
        self.fails(1, "plan", "random:gpt2", "--measured", file, says=["cpu.json", "type", "f32"])

    def test_bad_input(self):
        model = "random:gpt2"
        for arguments, says in (
                ((model, "--gpus", 0), "--gpus"),
                ((model, "--gpus", 8, "--data", 3), "--gpus is 8"),
                ((model, "--gpus", 16, "--pipeline", 16), "more than the 12 layers"),
                ((model, "--gpus", 8, "--pipeline", 8, "--micro-batches", 1),
                 ["train' refuses it", "a pipeline needs at least two grains"]),
                ((model, "--gpus", 8, "--pipeline", 2, "--zero", 2),
                 ["train' refuses it: --zero 2", "0 or 1 with --pipeline"]),
                ((model, "--gpus", 8, "--pipeline", 2, "--zero", 3), "--zero 3"),
                ((model, "--gpus", 16384, "--data", 16384, "--batch", 16384), "at most 4096"),
                ((model, "--gpus", 8, "--pipeline", 3), "--pipeline 3"),
                ((model, "--gpus", 8, "--batch", 12, "--data", 8), "--batch 12 is not a multiple"),
                ((model, "--gpus", 8, "--micro-batches", 3, "--batch", 24), "power of two"),
                ((model, "--gpus", 13, "--batch", 13), "power of two"),
                ((model, "--gpus", 13, "--batch", 13, "--reduce", "fast"), "power of two"),
                ((model, "--device", "abacus"), ["abacus", "h100, h200"]),
                ((model, "--link-net", "400"), ["--link-net", "no unit"]),
                ((model, "--link-net", "400furlongs/s"), ["--link-net", "unknown unit"]),
                ((model, "--link-node", "0GB/s"), ["--link-node", "above 0"]),
                ((model, "--link-node", "fast"), ["--link-node", "900GB/s"]),
                ((model, "--zero", 4), "--zero"),
                ((model, "--seq", 2048), "context of 1024"),
                ((model, "--recompute", "some"), "--recompute"),
                (("random:llama-9000b",), "llama-3-70b"),
                (("random:sdar-4b",), "is a diffusion model"),
                ((), "MODEL is required")):
            with self.subTest(arguments=arguments):
                self.fails(2, "plan", *arguments, says=says)
        # 18 bytes of 70 billion parameters are 1.15 TiB.
        self.fails(3, "plan", "random:llama-3-70b", says=["needs 1.2", "GPUs of 1.26 TiB"])

    def test_rates(self):
        def net(text):
            return self.ok_json("plan", "random:gpt2", "--link-net", text)["link_net_bytes_s"]
        self.assertEqual(net("400Gb/s"), 50e9)
        self.assertEqual(net("50GB/s"), 50e9)
        self.assertEqual(net("2GiB/s"), 2 * 2**30)
        self.assertEqual(net("1.5TB/s"), 1.5e12)


if __name__ == "__main__":
    driver.main()
