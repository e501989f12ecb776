"""The command line on a GPU: the same commands, the same answers. Skips where there is none."""
import json
import os
import subprocess
import unittest

BIN = os.environ["MILLRACE_BIN"]


def millrace(*args, **kwargs):
    env = {k: v for k, v in os.environ.items() if k != "MILLRACE_DEVICE"}
    return subprocess.run([BIN, *args], capture_output=True, text=True, timeout=120, env=env,
                          **kwargs)


def has_gpu():
    return millrace("run", "--device", "cuda", "-p", "Once", "-n", "1").returncode == 0


class NoDevice(unittest.TestCase):
    def test_cuda_without_a_gpu_is_one_line_and_exit_3(self):
        if has_gpu():
            self.skipTest("there is a GPU")
        done = millrace("run", "--device", "cuda", "-p", "Once")
        self.assertEqual(done.returncode, 3)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        self.assertIn("--device cpu", done.stderr)


@unittest.skipUnless(has_gpu(), "no GPU")
class Device(unittest.TestCase):
    def test_the_story_is_the_cpus(self):
        args = ("run", "-p", "Once upon a time", "-n", "60", "--temp", "0", "-q")
        self.assertEqual(millrace(*args, "--device", "cuda").stdout.split()[:20],
                         millrace(*args, "--device", "cpu").stdout.split()[:20])

    def test_switches_change_nothing(self):
        args = ("run", "-p", "Once upon a time", "-n", "60", "--temp", "0", "-q", "--device", "cuda")
        text = millrace(*args).stdout
        for switch in ("--no-graph", "--no-dependent-launch", "--check-nan",
                       "--no-batch-products", "--no-persistent"):
            self.assertEqual(millrace(*args, switch).stdout, text, switch)

    def test_a_token_moves_nothing_to_the_device(self):
        done = millrace("run", "-p", "Once upon a time", "-n", "64", "--ignore-eos", "--json",
                        "--device", "cuda")
        self.assertEqual(done.returncode, 0, done.stderr)
        ledger = json.loads(done.stdout)["ledger"]["decode"]
        self.assertLess(ledger["host_to_device_bytes"], 64 * 16, ledger)

    def test_eval_is_close_to_the_cpus(self):
        with open("/tmp/millrace-eval.txt", "w") as f:
            f.write("Once upon a time, there was a kind girl named Lily. She had a red ball.\n" * 20)
        ppl = [json.loads(millrace("eval", "--text", "/tmp/millrace-eval.txt", "--json", "--device",
                                   device).stdout)["ppl"] for device in ("cpu", "cuda")]
        self.assertLess(abs(ppl[0] / ppl[1] - 1), 0.02)

    def test_a_context_that_cannot_fit_is_refused_with_numbers(self):
        done = millrace("run", "random:llama-2-7b:bf16", "--ctx", "4000000", "-p", "x", "--device",
                        "cuda")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("--ctx", done.stderr)

    def attention(self, *arguments):
        done = millrace("bench", "attention", *arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        got = json.loads(done.stdout)
        self.assertEqual(got["bench"], "attention")
        self.assertGreater(got["matrix_tflop_s"], 0)
        return got

    def test_bench_attention_of_plain_tensors(self):
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
            # The log-sum-exp and nothing else.
            self.assertEqual(r["extra_bytes"], 4 * r["heads"] * r["batch"] * r["tokens"])

    def test_bench_attention_over_the_grid(self):
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
        text = millrace("bench", "attention", "--grid", "cs336", "--tokens", "128")
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertIn("unfused fwd", text.stdout)


if __name__ == "__main__":
    unittest.main()
