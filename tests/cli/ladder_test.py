"""millrace bench ladder: the rungs that need no GPU, and its messages about the others."""
import driver

MODEL = driver.REFERENCE / "llama2"
QUICK = ("--device", "cpu", "-n", 3, "--reps", 1, "--check", 4)


class Ladder(driver.CliTest):
    def test_the_plain_forward_is_checked_and_the_rest_is_absent(self):
        got = self.ok_json("bench", "ladder", MODEL, *QUICK)
        self.assertTrue(got["passed"])
        cpu, host = got["rungs"]
        self.assertEqual([cpu["rung"], host["rung"]], ["0", "host"])
        self.assertNotIn("check", cpu)
        self.assertIsNone(cpu["gain"])
        for rung in cpu, host:
            self.assertGreater(rung["tok_s"], 0)
            self.assertAlmostEqual(rung["us_per_token"] * rung["tok_s"], 1e6, delta=1)
            self.assertEqual(rung["host_to_device_bytes_per_token"], 0)
        check = host["check"]
        self.assertTrue(check["passed"])
        self.assertEqual(check["by"], "largest")
        self.assertLessEqual(check["largest"], check["largest_limit"])
        self.assertEqual(check["same_tokens"], 4)
        self.assertEqual(sorted({rung["rung"] for rung in got["absent"]}), list("123456789"))
        self.assertIn("--device cpu", got["why_absent"])

    def test_text(self):
        text = self.ok("bench", "ladder", MODEL, *QUICK)
        self.assertEqual(text.err, "")
        for word in ("tok/s", "plain forward", "ok: largest", "4/4 tokens", "copy per matmul",
                     "not run"):
            self.assertIn(word, text.out)

    def test_rungs(self):
        got = self.ok_json("bench", "ladder", MODEL, *QUICK, "--rungs", "host,9")
        self.assertEqual([rung["rung"] for rung in got["rungs"]], ["host"])
        self.assertEqual([rung["name"] for rung in got["absent"]],
                         ["quantised, q8_0", "quantised, q4_0"])

    def test_quantised_models_are_taken_as_f32(self):
        file = self.folder / "m.gguf"
        self.ok("convert", MODEL, file, "--type", "q4_0")
        got = self.ok_json("bench", "ladder", file, *QUICK)
        self.assertTrue(got["rungs"][1]["check"]["passed"])

    def test_errors(self):
        self.fails(2, "bench", "ladder", MODEL, "--rungs", "10", says=("--rungs", "10"))
        self.fails(2, "bench", "ladder", MODEL, "--rungs", "4-", says="--rungs")
        self.fails(2, "bench", "ladder", MODEL, "--reps", 0, says="--reps")
        for family, why in (("gpt2", "LayerNorm"), ("qwen3", "norms of q and k"),
                            ("qwen2", "biases")):
            self.fails(2, "bench", "ladder", driver.REFERENCE / family, says=why)
        self.fails(2, "bench", "ladder", "random:pythia-2.8b", says="LayerNorm")


if __name__ == "__main__":
    driver.main()
