"""millrace-lab ladder: the rungs that need no GPU, and its messages about the others."""
import json

import driver

MODEL = driver.REFERENCE / "llama2"
QUICK = ("--device", "cpu", "-n", 3, "--reps", 1, "--check", 4)


class Ladder(driver.CliTest):
    def test_the_plain_forward_is_checked_and_the_rest_is_absent(self):
        got = self.ok_json(driver.LAB, "ladder", MODEL, *QUICK)
        self.assertTrue(got["passed"])
        cpu, scalar, host, copies, resident = got["rungs"]
        self.assertEqual([rung["rung"] for rung in got["rungs"]], ["0", "scalar", "host", "process", "process"])
        self.assertNotIn("check", cpu)
        self.assertIsNone(cpu["gain"])
        for rung in got["rungs"]:
            self.assertGreater(rung["tok_s"], 0)
            self.assertAlmostEqual(rung["us_per_token"] * rung["tok_s"], 1e6, delta=1)
        for rung in scalar, host, copies, resident:
            check = rung["check"]
            self.assertTrue(check["passed"])
            self.assertEqual(check["by"], "largest")
            self.assertLessEqual(check["largest"], check["largest_limit"])
            self.assertEqual(check["same_tokens"], 4)
        # The second process computes with the plain forward's own products.
        self.assertEqual(copies["check"]["largest"], host["check"]["largest"])
        self.assertEqual(resident["check"]["largest"], host["check"]["largest"])
        for rung in cpu, scalar, host:
            self.assertEqual(rung["host_to_device_bytes_per_token"], 0)
            self.assertNotIn("share", rung)
        for rung in copies, resident:
            self.assertGreater(rung["share"]["copies"], 0)
            self.assertLess(rung["share"]["copies"] + rung["share"]["kernels"], 1)
            self.assertEqual(rung["share"]["device_memory"], 0)

    def test_the_bytes_that_cross_are_those_of_the_model(self):
        """By hand, from the shape: 7 products a layer, and the head."""
        with open(MODEL / "config.json") as file:
            config = json.load(file)
        dim, hidden, vocab = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
        heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
        head = config.get("head_dim") or dim // heads
        products = [(heads * head, dim), (kv * head, dim), (kv * head, dim), (dim, heads * head), (hidden, dim),
                    (hidden, dim), (dim, hidden)] * config["num_hidden_layers"] + [(vocab, dim)]
        got = self.ok_json(driver.LAB, "ladder", MODEL, *QUICK, "--rungs", "process")
        copies, resident = got["rungs"]
        inputs, outputs = (4 * sum(shape[i] for shape in products) for i in (1, 0))
        weights = 4 * sum(n * k for n, k in products)
        self.assertEqual(copies["host_to_device_bytes_per_token"], weights + inputs)
        self.assertEqual(resident["host_to_device_bytes_per_token"], inputs)
        for rung in copies, resident:
            self.assertEqual(rung["device_to_host_bytes_per_token"], outputs)

    def test_what_is_absent_without_a_gpu(self):
        got = self.ok_json(driver.LAB, "ladder", MODEL, *QUICK, "--rungs", "0-9")
        self.assertEqual(sorted({rung["rung"] for rung in got["absent"]}), list("123456789"))
        self.assertIn("--device cpu", got["why_absent"])

    def test_text(self):
        text = self.ok(driver.LAB, "ladder", MODEL, *QUICK)
        self.assertEqual(text.err, "")
        for word in ("tok/s", "plain forward", "one thread", "ok: largest", "4/4 tokens", "copy per matmul",
                     "not run"):
            self.assertIn(word, text.out)

    def test_rungs(self):
        got = self.ok_json(driver.LAB, "ladder", MODEL, *QUICK, "--rungs", "host,9")
        self.assertEqual([rung["rung"] for rung in got["rungs"]], ["host"])
        self.assertEqual([rung["name"] for rung in got["absent"]],
                         ["quantised, q8_0", "quantised, q4_0"])

    def test_quantised_models_are_taken_as_f32(self):
        file = self.folder / "m.gguf"
        self.ok("convert", MODEL, file, "--type", "q4_0")
        got = self.ok_json(driver.LAB, "ladder", file, *QUICK)
        self.assertTrue(got["rungs"][1]["check"]["passed"])

    def test_errors(self):
        self.fails(2, driver.LAB, "ladder", MODEL, "--rungs", "10", says=("--rungs", "10"))
        self.fails(2, driver.LAB, "ladder", MODEL, "--rungs", "4-", says="--rungs")
        self.fails(2, driver.LAB, "ladder", MODEL, "--reps", 0, says="--reps")
        for family, why in (("gpt2", "LayerNorm"), ("qwen3", "norms of q and k"),
                            ("qwen2", "biases")):
            self.fails(2, driver.LAB, "ladder", driver.REFERENCE / family, says=why)
        self.fails(2, driver.LAB, "ladder", "random:pythia-2.8b", says="LayerNorm")


if __name__ == "__main__":
    driver.main()
