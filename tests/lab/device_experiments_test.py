"""millrace-lab on a GPU; experiments_test.py has it on the CPU. Skips without a GPU, and fails there if
MILLRACE_REQUIRE_GPU=1 (driver.need_gpu)."""
import os

import driver

os.environ["MILLRACE_DEVICE"] = "cuda"  # where a test names no device

CUDA = ("--device", "cuda")
SMALL = "random:stories-42m:bf16"
STORYTELLER = driver.SOURCE / "models" / "storyteller.gguf"


class Experiments(driver.GpuTest):
    def positive(self, got, *keys):
        for key in keys:
            self.assertGreater(got[key], 0, key)

    def test_precision(self):
        ask = (driver.LAB, "precision", driver.REFERENCE / "gpt2", "--batch", 4, "--seq", 16, "--steps",
               12, "--cpu-steps", 6, *CUDA)
        got = self.ok_json(*ask)
        self.assertEqual((got["gpu"], got["absent"]), (self.gpu["name"], []))
        ways = got["ways"]
        self.assertEqual([(way["way"], way["steps"], way["products"]) for way in ways],
                         [("f32", 6, "f32"), ("f32-nearest", 6, "f32"), ("f32-stochastic", 6, "f32"),
                          ("bf16", 12, "bf16"), ("bf16-stochastic", 12, "bf16")])
        for way in ways:
            # A loss of 5.7 from GEMMs whose inputs have 8 bits.
            self.assertAlmostEqual(way["difference"], 0, delta=0.02)
            self.assertAlmostEqual(way["grad_norm_at_cpu_steps"], ways[0]["grad_norm_at_cpu_steps"],
                                   delta=0.1)
        # 2 bytes per parameter instead of 6, except for norms and biases.
        self.assertLess(ways[4]["memory"]["weights"], ways[3]["memory"]["weights"] / 2)
        table = self.ok(*ask).out
        self.assertIn("loss@12", table)
        self.assertNotIn("absent", table)

    def test_sample(self):
        got = self.ok_json(driver.LAB, "sampler", "--vocab", 32000, "--rows", "1,3", *CUDA)
        self.assertEqual(got["engine"], "cuda")
        self.assertEqual([size["rows"] for size in got["sizes"]], [1, 3])
        for size in got["sizes"]:
            self.positive(size, "us", "cached_us", "floor_us", "times_floor")
        got = self.ok_json(driver.LAB, "sampler", "random:llama-2-7b:bf16", "--rows", 1, *CUDA)
        self.assertEqual(got["vocab"], 32000)

    def test_streams(self):
        page = self.folder / "page.html"
        ask = (driver.LAB, "streams", "--size", 1000003, "--streams", "1,4", "--chunks", "5,9", "--reps",
               3, "--html", page)
        got = self.ok_json(*ask)
        self.assertEqual((got["experiment"], got["device"]), ("streams", self.gpu["name"]))
        self.assertEqual((got["size"], got["bytes"]), (1000003, 4000012))
        self.assertEqual([(rung["rung"], rung["streams"], rung["chunks"], rung["memory"])
                          for rung in got["rungs"]],
                         [("synchronous", 1, 1, "pageable"), ("1 stream", 1, 1, "pageable"),
                          ("4 streams", 4, 4, "pageable"), ("1 stream", 1, 1, "pinned"),
                          ("4 streams", 4, 4, "pinned"), ("a stream per direction", 3, 5, "pinned"),
                          ("a stream per direction", 3, 9, "pinned"),
                          *((name, streams, got["rungs"][-1]["chunks"], "pinned")
                            for name, streams in (("a stream per direction, 2 for kernels", 4),
                                                  ("a stream per direction, as a graph", 3),
                                                  ("copy and compute stream", 2),
                                                  ("depth-first", 4), ("breadth-first in rounds", 4),
                                                  ("breadth-first", 4)))])
        for rung in got["rungs"]:
            self.positive(rung, "ms", "ms_best", "speed_up", "of_limit")
            self.assertTrue(rung["same_bits"])
            self.assertLess(rung["of_limit"], 1.2)  # no schedule is faster than its longest part
            self.assertAlmostEqual(rung["of_limit"], got["parts"]["limit_ms"] / rung["ms"])
        self.assertEqual(got["rungs"][0]["speed_up"], 1)
        self.assertEqual(got["best"]["ms"], min(rung["ms"] for rung in got["rungs"]))
        parts = got["parts"]
        for name in ("copy_in", "copy_in_three_streams", "copy_out", "duplex_in", "duplex_out"):
            self.positive(parts[name], "ms", "gb_s")
        self.assertEqual(parts["limit_ms"], max(parts[name]["ms"] for name in
                                                ("duplex_in", "compute", "duplex_out")))
        self.assertEqual(got["log"]["speed_up"], 2.52)
        alone, same, high = got["short_job"]
        self.assertEqual(alone["long_ms"], 0)
        for job in (same, high):
            self.positive(job, "us", "long_ms")
        shown = driver.Page(page)
        self.assertEqual(len(shown.sections("timeline")), len(got["rungs"]) + 1 + 3)
        self.assertEqual(shown.elsewhere, [])
        text = self.ok(*ask).out
        for part in ("of the limit", "2.52x", "high priority", "while copies in run", "page: "):
            self.assertIn(part, text)
        self.fails(1, driver.LAB, "streams", "--size", 1000, "--html", self.folder / "none" / "page.html",
                   says="none")

    def test_overlap(self):
        ask = (driver.LAB, "overlap", "random:gpt2", "--batch", 2, "--seq", 128, "--ranks", 4, "--link",
               "20GB/s,200GB/s", "--bucket", 8, "--occupy", "0,4", "--steps", 2, "--warmup", 1)
        got = self.ok_json(*ask)
        self.assertEqual((got["experiment"], got["device"], got["ranks"]),
                         ("overlap", self.gpu["name"], 4))
        self.assertEqual([(link["link_gb_s"], link["copies"]) for link in got["links"]],
                         [(20, "to the host and back"), (200, "on the device")])
        self.assertLess(got["ready_before_last_op_bytes"], got["gradient_bytes"])
        for link in got["links"]:
            self.positive(link, "compute_ms", "communication_ms", "both_ms", "reached_gb_s",
                          "communication_before_last_op_ms", "communication_of_last_op_ms")
            self.assertTrue(link["same_bits"])
            # All except the own share, out and back; each direction at most at the link's rate.
            self.assertAlmostEqual(link["sent_bytes"] / got["gradient_bytes"], 2 * 3 / 4, delta=0.01)
            self.assertLess(link["reached_gb_s"], 1.02 * link["link_gb_s"])
            least = min(link["compute_ms"], link["communication_ms"])
            self.assertAlmostEqual(link["hidden"], (link["compute_ms"] + link["communication_ms"] -
                                                    link["both_ms"]) / least)
        self.assertEqual([row["multiprocessors"] for row in got["occupied"]], [0, 4])
        self.assertEqual(got["occupied"][0]["occupied_ms"], 0)
        self.positive(got["occupied"][1], "step_ms", "occupied_ms")
        text = self.ok(*ask).out
        for part in ("t_compute", "t_communication", "t_both", "cannot hide", "the same bits",
                     "4 of "):
            self.assertIn(part, text)
        self.fails(2, driver.LAB, "overlap", "random:gpt2", "--occupy", 1000, says="--occupy")

    def test_norm(self):
        got = self.ok_json(driver.LAB, "norms", "--hidden", 64, "--tokens", "1,3")
        self.assertEqual(got["device"], self.gpu["name"])
        self.assertEqual([size["tokens"] for size in got["sizes"]], [1, 3])
        for size in got["sizes"]:
            self.positive(size, "graph_us", "launched_us", "floor_us", "gb_s")
        for model, shape in (("random:llama-2-7b:bf16", (4096, "bf16", "rms")),
                             ("random:gpt2:f16", (768, "f16", "layer")),
                             ("random:gpt2:q8_0", (768, "bf16", "layer"))):
            got = self.ok_json(driver.LAB, "norms", model, "--tokens", 1)
            self.assertEqual((got["hidden"], got["type"], got["kind"]), shape)

    def test_norm_errors(self):
        got = self.ok_json(driver.LAB, "norms", "--tokens", 1)
        most = {"f32": (4e-6, 4e-7), "f16": (4e-3, 4e-4)}  # half a unit in the last place of 5
        self.assertEqual(len(got["errors"]), 4 * 3)  # f32 on both, f16 on the GPU
        for error in got["errors"]:
            largest, relative = most[error["type"]]
            self.assertGreater(error["largest"], 0, error)
            self.assertLess(error["largest"], largest, error)
            self.assertLess(error["relative"], relative, error)
        self.assertEqual({(e["batch"], e["tokens"]) for e in got["errors"] if e["on"] == "GPU"},
                         {(2, 128), (1, 1), (4, 256), (1, 2048)})
        # 2048 rows with and without the kernel for many rows.
        self.assertEqual(self.ok_json(driver.LAB, "norms", "--tokens", 1, "--no-many-rows")["errors"],
                         got["errors"])

    QUICK = ("--prompt", 8, "-n", 4, "--reps", 1, "--warmup", 0, "--score", 24)

    def fusion(self, model, *arguments, **kwargs):
        got = self.ok_json(driver.LAB, "fusion", model, *self.QUICK, *arguments, **kwargs)
        self.assertEqual((got["experiment"], got["device"]), ("fusion", self.gpu["name"]))
        for one in got["types"]:
            # Inputs of 8 bits make sums round: with so few tokens the third digit may differ.
            if one["type"] in ("f32", "f16"):
                self.assertTrue(one["nll_same"], one)
            self.assertEqual(len(one["rungs"]), 8)
            there = [rung for rung in one["rungs"] if "absent" not in rung]
            for rung in there:
                self.positive(rung, "ms_per_token", "kernels_per_token", "launches_per_token",
                              "bytes_per_token", "nll")
            for before, rung in zip(there, there[1:]):
                self.assertLessEqual(rung["launches_per_token"], before["launches_per_token"])
                self.assertEqual(rung["counts"], rung["gain_percent"] >= 5)
            self.assertIsNone(there[0]["gain_percent"])
            self.assertEqual(there[-1]["launches_per_token"], 1)
        return got

    def test_fusion(self):
        got = self.fusion("random:stories-42m:bf16", "--types", "f32,f16")
        self.assertEqual([(one["type"], one["scored_tokens"]) for one in got["types"]],
                         [("f32", 22), ("f16", 22)])
        absent = [{rung["rung"] for rung in one["rungs"] if "absent" in rung}
                  for one in got["types"]]
        self.assertLessEqual({"both norms in one pass", "norm in the product", "one kernel"},
                             absent[0])
        self.assertIn("both norms in one pass", absent[1])
        self.assertEqual(self.fusion("random:stories-42m:q8_0")["types"][0]["type"], "q8_0")
        # A fusion that is switched off is not a rung.
        got = self.fusion("random:stories-42m", "--types", "bf16",
                          env={"MILLRACE_DISABLE": "persistent"})
        self.assertEqual(got["types"][0]["rungs"][-1],
                         {"rung": "one kernel", "absent": "it is switched off"})

    def test_context(self):
        got = self.ok_json(driver.LAB, "context", "random:stories-42m:bf16", "--tokens", 400, "--cap",
                           128, "--timed", 32, "--sample", 3)
        self.assertEqual(got["device"], self.gpu["name"])
        self.assertEqual([way["prune"] for way in got["ways"]], [0, 1, 16, 64, 128, 0])
        for way in got["ways"]:
            self.positive(way, "ms_per_token", "forward_ms", "wall_ms", "times_ring")
        for way in got["ways"][1:5]:
            self.positive(way, "upkeep_ms", "upkeep_bytes")

    def test_fusion_of_a_file_and_a_text(self):
        text = self.folder / "text.txt"
        text.write_text("Once upon a time there was a little girl who had a red ball. " * 4)
        nll = [self.fusion(*arguments)["types"][0]["rungs"][0]["nll"]
               for arguments in ((driver.SOURCE / "models" / "storyteller.gguf",),
                                 (driver.SOURCE / "models" / "storyteller.gguf", "--text", text))]
        self.assertGreater(nll[0], nll[1] + 0.1)  # a story's words are likelier than a mill's
        text.write_text("a")
        self.fails(1, driver.LAB, "fusion", "random:stories-42m", "--types", "bf16", "--text", text,
                   says="3 tokens")
        printed = self.ok(driver.LAB, "fusion", driver.REFERENCE / "gpt-neox", *self.QUICK).out
        for part in ("separate kernels", "launches", "MB/token", "all against none", "the same"):
            self.assertIn(part, printed)

    def test_fusion_with_a_peer(self):
        peer = self.folder / "python"
        peer.write_text(f"""#!/bin/sh
echo $@ > '{self.folder}/asked'
echo a warning
echo '{{"part": "about", "torch": "9.9", "transformers": "9"}}'
echo '{{"part": "eager", "ms_per_token": 20.0}}'
echo '{{"part": "compiled", "error": "no compiler"}}'
""")
        peer.chmod(0o755)
        neox = (driver.REFERENCE / "gpt-neox", "--peer", "torch")
        got = self.fusion(*neox, env={"MILLRACE_PYTHON": str(peer)})["types"][0]["torch"]
        self.assertEqual((got["torch"], got["eager"]["ms_per_token"], got["compiled"]["error"]),
                         ("9.9", 20.0, "no compiler"))
        self.assertRegex((self.folder / "asked").read_text(),
                         r"--parts eager,compiled --shape neox(:\d+){7}:1 --type f\d+ --prompt 8 ")
        gone = self.fusion(*neox, env={"MILLRACE_PYTHON": "/bin/false"})["types"][0]["torch"]
        self.assertIn("MILLRACE_PYTHON", gone["error"])
        self.fails(2, driver.LAB, "fusion", SMALL, "--types", "bf16", "--peer", "torch",
                   says=["--peer", "GPT-NeoX"])

    def test_ladder(self):
        got = self.ok_json(driver.LAB, "ladder", "random:stories-42m", "--prompt", 4, "-n", 4,
                           "--reps", 1, "--check", 3, *CUDA)
        self.assertTrue(got["passed"], got["rungs"])
        self.assertEqual(got["absent"], [])
        self.assertEqual([rung["rung"] for rung in got["rungs"]],
                         ["0", "host", "1", "2", "3", "4", "5", "5", "6", "7", "8", "9", "9"])
        for rung in got["rungs"]:
            self.assertGreater(rung["tok_s"], 0)
            moved = (rung["host_to_device_bytes_per_token"],
                     rung["device_to_host_bytes_per_token"])
            if rung["rung"] in ("0", "host"):
                self.assertEqual(moved, (0, 0), rung)
            elif int(rung["rung"]) >= 4:  # everything is on the GPU: only an id comes back
                self.assertEqual(moved, (0, 16), rung)
            else:
                self.assertGreater(min(moved), 0, rung)
            if "check" in rung:
                self.assertTrue(rung["check"]["passed"], rung)

    def attention(self, *arguments):
        got = self.ok_json(driver.LAB, "attention", *arguments)
        self.assertEqual(got["experiment"], "attention")
        self.assertGreater(got["matrix_tflop_s"], 0)
        return got

    def test_attention_of_plain_tensors(self):
        rows = self.attention("--only", "plain", "--tokens", "256,512")["plain"]
        self.assertEqual(
            [(r["head_dim"], r["mask"], r["tokens"], r["batch"], r["heads"]) for r in rows],
            [(dim, mask, tokens, 16384 // tokens, 2048 // dim) for dim in (128, 64)
             for mask in ("full", "causal") for tokens in (256, 512)])
        for r in rows:
            for key in ("forward_us", "forward_tflop_s", "forward_percent_of_matrix_peak"):
                self.assertGreater(r[key], 0, r)
            pairs = r["tokens"] ** 2 * (0.5 if r["mask"] == "causal" else 1)
            flops = 4 * r["batch"] * r["heads"] * r["head_dim"] * pairs
            self.assertAlmostEqual(r["forward_tflop_s"] * r["forward_us"] * 1e6 / flops, 1, 6)
        forward = self.attention("--only", "plain", "--tokens", "512", "--no-backward")["plain"]
        for r in forward:
            self.assertNotIn("backward_us", r)
            # Only the log-sum-exp.
            self.assertEqual(r["extra_bytes"], 4 * r["heads"] * r["batch"] * r["tokens"])

    def test_attention_over_pages_counts_what_a_window_leaves(self):
        got = self.attention("--only", "paged", "--heads", 2, "--kv-heads", 1, "--head-dim", 64,
                             "--keys", 300, "--prefill", 256, "--chunk", 128, "--window", 32,
                             "--sinks", 4)
        self.assertEqual((got["window"], got["sinks"]), (32, 4))
        # Keys and values of one head, q and out of two.
        self.assertEqual(got["decode"][0]["bytes"], 2 * (2 * 36 * 64 + 2 * 2 * 64))
        prefill, = got["prefill"]
        self.assertEqual((prefill["tokens"], prefill["keys"]), (128, 256))
        flops = 4 * 128 * 36 * 2 * 64
        self.assertAlmostEqual(prefill["tflop_s"] * prefill["us"] * 1e6 / flops, 1, 6)

    def test_attention_of_named_shapes(self):
        shapes = {  # and the visible pairs of queries and keys
            "2:256:4:2:80:causal:f16": 2 * 256 ** 2 / 2,
            "1:100+300:4:1:64:full:bf16": 100 ** 2 + 300 ** 2,
            "1:200:2:2:256:causal:bf16": 200 ** 2 / 2,
            "1:128:2:2:96:block-causal/32:bf16": 32 ** 2 * (1 + 2 + 3 + 4),
            "1:128:2:2:64:window/16:f32": 16 * 17 / 2 + (128 - 16) * 16,
            "1:128:2:2:128:window/16/4:bf16": 16 * 17 / 2 + (128 - 16) * 16
                                              + sum(min(i - 15, 4) for i in range(16, 128)),
        }
        rows = self.attention("--only", "plain", "--shape", ",".join(shapes))["plain"]
        self.assertEqual(len(rows), len(shapes))
        for (text, pairs), r in zip(shapes.items(), rows):
            batch, tokens, heads, kv_heads, dim, mask, kind = text.split(":")
            self.assertEqual((r["heads"], r["kv_heads"], r["head_dim"], r["mask"], r["type"]),
                             (int(heads), int(kv_heads), int(dim), mask, kind))
            if "+" in tokens:
                self.assertEqual(r["lengths"], [int(x) for x in tokens.split("+")])
            else:
                self.assertEqual((r["batch"], r["tokens"]), (int(batch), int(tokens)))
            flops = 4 * pairs * int(heads) * int(dim)
            self.assertAlmostEqual(r["forward_tflop_s"] * r["forward_us"] * 1e6 / flops, 1, 6)
            self.assertEqual("backward_us" in r, int(dim) <= 128, r)

    def test_attention_in_turns_with_a_peer(self):
        # A program that answers like bench/peers/torch_attention.py, with other output between.
        peer = self.folder / "python"
        asked = self.folder / "asked"
        peer.write_text(f"""#!/bin/sh
while read line; do
    echo $line >> '{asked}'
    echo a warning
    case $line in
    end) echo '{{"shape": "", "cudnn": {{"forward": 1, "backward": null}}, "flash": {{}}}}' ;;
    *) echo '{{"shape": ""}}' ;;
    esac
done
""")
        peer.chmod(0o755)
        arguments = ("--only", "plain", "--tokens", "256", "--no-backward", "--peer", "torch")
        got = self.ok_json(driver.LAB, "attention", *arguments, env={"MILLRACE_PYTHON": str(peer)})
        for r in got["plain"]:
            self.assertEqual(r["torch"]["cudnn"]["forward"], 1)
        lines = asked.read_text().split()
        self.assertEqual(len([x for x in lines if x.startswith("64:256:")]), 4)
        self.assertEqual((lines.count("round"), lines.count("end")), (4 * 9, 4))
        # Rows are printed as they come, so a failing peer fails below the table's head.
        gone = driver.millrace(driver.LAB, "attention", *arguments,
                               env={"MILLRACE_PYTHON": "/bin/false"})
        self.assertEqual((gone.code, gone.err.count("\n")), (1, 1), gone.err)
        self.assertIn("--peer", gone.err)
        # Shapes in its notation; a backward that does not exist is not requested.
        shapes = "1:9+8:4:2:256:causal:bf16,1:16:2:2:64:window/8:f16"
        self.ok_json(driver.LAB, "attention", "--only", "plain", "--peer", "torch", "--shape", shapes,
                     env={"MILLRACE_PYTHON": str(peer)})
        asked = set(asked.read_text().split())
        self.assertIn("1:9+8:4:2:256:causal:bf16:forward", asked)
        self.assertIn("1:16:2:2:64:window/8:f16", asked)

    def test_attention_over_the_grid(self):
        rows = self.attention("--grid", "cs336", "--tokens", "128,1024")["cs336"]
        self.assertEqual([(r["type"], r["head_dim"], r["tokens"]) for r in rows],
                         [(kind, dim, tokens) for kind in ("bf16", "f32")
                          for dim in (16, 32, 64, 128) for tokens in (128, 1024)])
        for r in rows:
            self.assertEqual((r["batch"], r["heads"], r["mask"]), (1, 1, "causal"))
            self.assertGreater(r["forward_us"], 0)
            self.assertGreater(r["unfused"]["forward_us"], 0)
            self.assertGreater(r["unfused"]["backward_us"], 0)
            size = 2 if r["type"] == "bf16" else 4
            self.assertGreaterEqual(r["unfused"]["extra_bytes"], 3 * size * r["tokens"] ** 2)
        text = self.ok(driver.LAB, "attention", "--grid", "cs336", "--tokens", "128").out
        self.assertIn("unfused fwd", text)
        self.assertIn("of peak", text)
        self.assertEqual(len([line for line in text.splitlines() if "%" in line]), 8, text)

    def test_attention_says_which_cells_have_no_memory(self):
        # 400,000 tokens squared are 320 GB in bf16: more than a GPU has. The fused version needs
        # hardly any memory, and every cell is measured.
        tokens = 400_000
        arguments = ("--grid", "cs336", "--tokens", tokens, "--type", "bf16", "--no-backward")
        rows = self.attention(*arguments)["cs336"]
        self.assertEqual([(r["type"], r["head_dim"], r["tokens"]) for r in rows],
                         [("bf16", dim, tokens) for dim in (16, 32, 64, 128)])
        for r in rows:
            self.assertEqual(r["unfused"], {"error": "no memory"})
            self.assertNotIn("error", r)
            self.assertGreater(r["forward_us"], 0)
            self.assertGreater(r["forward_percent_of_matrix_peak"], 0)
            self.assertNotIn("backward_us", r)
        text = self.ok(driver.LAB, "attention", *arguments).out
        self.assertEqual(text.count("no memory"), 8, text)  # forward and backward


if __name__ == "__main__":
    driver.main()
