"""`info` of models of every size: it describes them, and plans for them, without their weights."""
import json
import math
import os
import re
import subprocess

import driver

GIB = 1 << 30


def write_sparse(folder, gib, odd):
    """A Hugging Face folder of a Llama of `gib` GiB or more, of which the disk holds only the header.
    `odd`: the tensors begin at an odd address, so that they cannot be used in place."""
    dim, hidden, vocab = 8192, 16384, 4096
    matrices = {"self_attn.q_proj": (dim, dim), "self_attn.k_proj": (dim, dim),
                "self_attn.v_proj": (dim, dim), "self_attn.o_proj": (dim, dim),
                "mlp.gate_proj": (hidden, dim), "mlp.up_proj": (hidden, dim),
                "mlp.down_proj": (dim, hidden), "input_layernorm": (dim,),
                "post_attention_layernorm": (dim,)}
    layers = math.ceil(gib * GIB / sum(2 * math.prod(shape) for shape in matrices.values()))
    shapes = {"model.embed_tokens": (vocab, dim), "model.norm": (dim,)}
    for layer in range(layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in matrices.items()}
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + 2 * math.prod(shape)
        header[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (64 - (8 + len(text)) % 64 + odd)
    folder.mkdir()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": dim,
        "intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 64,
        "num_key_value_heads": 64, "vocab_size": vocab, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True}))
    return at


class Info(driver.CliTest):
    def measured(self, *arguments):
        """The output, and the program's peak memory in bytes."""
        process = subprocess.Popen([driver.BIN, "info", *map(str, arguments)],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        process.stderr.close()
        self.assertEqual(process.returncode, 0, err)
        return out.decode(), usage.ru_maxrss * 1024

    def test_a_shape_needs_no_memory_for_its_weights(self):
        for shape, weights in (("llama-3-8b", 8_030_261_248 * 2), ("llama-3-70b:q8_0", 74.9e9),
                               ("gpt3-175b:f32", 701e9)):
            out, peak = self.measured(f"random:{shape}", "--json")
            got = json.loads(out)
            self.assertLess(peak, GIB, shape)
            self.assertAlmostEqual(got["model"]["weights_copied_bytes"] / weights, 1, 2, shape)
            self.assertEqual(len(got["what_fits"]["rows"]), 10)

    def test_a_file_that_is_larger_than_the_memory_is_described(self):
        memory = self.ok_json("info")["machine"]["memory_bytes"]
        for odd in (0, 1):
            folder = self.folder / f"large-{odd}"
            size = write_sparse(folder, memory // GIB + 1, odd)
            out, peak = self.measured(folder, "--json")
            self.assertFalse(json.loads(out)["memory_plan"]["fits"])
            got = json.loads(out)["model"]
            self.assertLess(peak, GIB)
            self.assertGreater(got["weights_copied_bytes" if odd else "weights_mapped_bytes"],
                               0.99 * size)
            self.fails(3, "run", folder, "--tokenizer", "storyteller", "-p", "x", says="memory")

    def test_a_pool_that_is_cut_says_so(self):
        ask = ["info", "--ctx", 1 << 20, "--batch", 4096]  # 32 TiB of keys and values
        plan = self.ok_json(*ask)["memory_plan"]
        self.assertTrue(plan["fits"])
        self.assertLessEqual(plan["total_bytes"], plan["available_bytes"])
        self.assertEqual(plan["whole_pool"], 4096 << 20)
        self.assertLess(plan["pool"], plan["whole_pool"])
        text = self.ok(*ask).out
        self.assertRegex(text, r"--pool \d+ \(cut to what fits; 4096 x 1048576 tokens need "
                               r"4294967296\)\n")
        self.assertNotIn("does not fit", text)
        small = self.ok_json("info", "--ctx", 64, "--batch", 3)["memory_plan"]
        self.assertEqual((small["pool"], small["whole_pool"]), (192, 192))
        self.assertNotIn("cut to", self.ok("info", "--ctx", 64, "--batch", 3).out)

    def test_a_plan_that_does_not_fit_says_so(self):
        memory = self.ok("info").out.split(" of memory")[0].rsplit(", ", 1)[1]  # "23.50 GiB"
        for given in (["--pool", 1 << 29], ["--ctx", 1 << 29], ["--ctx", 1 << 29, "--batch", 4]):
            plan = self.ok_json("info", *given)["memory_plan"]
            self.assertFalse(plan["fits"], given)
            self.assertGreater(plan["total_bytes"], plan["available_bytes"])
            text = self.ok("info", *given).out
            self.assertIn(f" in all; does not fit into {memory} of memory\n", text)
            self.assertNotIn("cut to", text)
        self.assertNotIn("does not fit", self.ok("info").out)

    def test_the_bytes_of_the_weights_add_up(self):
        # qwen2.5's and the storyteller's tables are tied: some CPUs keep a second copy for the head.
        for model, type_ in (("random:qwen2.5-0.5b:q8_0", "q8_0"), ("storyteller", "q8_0"),
                             ("random:stories-42m:q4_0", "q4_0"), ("random:gpt2", "bf16")):
            for off in ("", "repack"):
                got = self.ok_json("info", model, env={"MILLRACE_DISABLE": off})
                held = (got["model"]["weights_mapped_bytes"] +
                        got["model"]["weights_copied_bytes"])
                plan = sum(item["bytes"] for item in got["memory_plan"]["items"]
                           if item["name"].startswith("weights"))
                [fit] = {row["weight_bytes"] for row in got["what_fits"]["rows"]
                         if row["weights"] == type_}
                self.assertEqual(plan, held)
                # Except for padding: 64 bytes per tensor.
                for total in (sum(got["model"]["weight_bytes_by_type"].values()), fit):
                    self.assertAlmostEqual(total / held, 1, 4, (model, off))

    def test_figures_are_short(self):
        for model, parameters, weights in (("storyteller", "6.95 M", "7.4 MB"),
                                           ("random:llama-3-8b", "8.03 B", "15.01 GB"),
                                           ("random:gpt2", "124 M", "247.6 MB")):
            text = self.ok("info", model).out
            self.assertIn(f", {parameters} parameters\n", text)
            # 1.77, 56.2, 6745
            self.assertRegex(text, r"\nlight speed (\d\.\d\d|\d\d\.\d|\d{3,}) tok/s: " +
                             re.escape(f"{weights} of weights per token at "))


if __name__ == "__main__":
    driver.main()
