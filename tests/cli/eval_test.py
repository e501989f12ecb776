"""millrace eval."""
import math
import os

import driver

MODEL = driver.REFERENCE / "llama2"


class Eval(driver.CliTest):
    def test_json_and_text_agree(self):
        text = self.folder / "text.txt"
        text.write_text("Once upon a time there was a cat.<|endoftext|>\nThe end.\n")
        got = self.ok_json("eval", MODEL, "--text", text, "--split", "<|endoftext|>")
        self.assertEqual(got["documents"], 2)
        self.assertGreater(got["tokens"], 4)
        self.assertAlmostEqual(got["ppl"], math.exp(got["nll"]), delta=1e-6 * got["ppl"])
        plain = self.ok("eval", MODEL, "--text", text, "--split", "<|endoftext|>")
        self.assertIn(f"{got['nll']:.4f}", plain.out)
        self.assertEqual(plain.err, "")
        self.assertEqual(
            self.ok_json("eval", MODEL, "--text", text, "--split", "<|endoftext|>", "--limit",
                         1)["documents"], 1)
        self.assertEqual(self.ok_json("eval", MODEL, "--text", "-", stdin=text.read_bytes())
                         ["documents"], 1)

    def test_ends_of_documents(self):
        stories = self.folder / "stories.txt"
        self.ok(driver.LAB, "story", "write", "--stories", 3, "--seed", 5, "--out", stories)
        bundled = driver.SOURCE / "models" / "storyteller.gguf"
        ask = ["eval", bundled, "--text", stories, "--split", "<|endoftext|>"]
        without, got = self.ok_json(*ask), self.ok_json(*ask, "--ends")
        self.assertNotIn("document_nats", without)
        self.assertEqual(got["tokens"], without["tokens"] + 3)  # one end each
        self.assertEqual(got["bytes"], without["bytes"])
        self.assertAlmostEqual(got["nats_per_document"] * 3, got["nll"] * got["tokens"], delta=1e-6)
        self.assertEqual(len(got["document_nats"]), 3)
        self.assertAlmostEqual(sum(got["document_nats"]) / 3, got["nats_per_document"], delta=1e-6)
        # A story that is cut off has no end.
        cut = self.ok_json(*ask, "--ends", "--ctx", 64)
        self.assertEqual((cut["cut"], "document_nats" in cut), (3, False))

    def test_a_pipe_is_a_text_too(self):
        read, write = os.pipe()
        os.write(write, b"Once upon a time")
        os.close(write)
        self.addCleanup(os.close, read)
        self.assertGreater(self.ok_json("eval", MODEL, "--text", f"/dev/fd/{read}",
                                        pass_fds=[read])["tokens"], 3)

    def test_errors(self):
        empty = self.folder / "empty.txt"
        empty.write_text("")
        self.fails(2, "eval", MODEL, says="--text")
        full = self.folder / "full.txt"
        full.write_text("Once upon a time")
        self.fails(1, "eval", MODEL, "--text", full, "--ctx", 1, says="--ctx")
        self.assertGreater(self.ok_json("eval", MODEL, "--text", full, "--ctx", 2)["tokens"], 3)
        self.fails(1, "eval", MODEL, "--text", empty)
        self.fails(1, "eval", MODEL, "--text", self.folder, says=str(self.folder))
        self.fails(1, "eval", MODEL, "--text", self.folder / "no.txt", says="no.txt")
        self.fails(2, "eval", MODEL, "--text", full, "--plot", full,
                   says="full.txt: this file exists and is not a report")
        self.assertEqual(full.read_text(), "Once upon a time")
        binary = self.folder / "model.bin"
        binary.write_bytes(b"GGUF\3\0\0\0")
        self.fails(1, "eval", MODEL, "--text", binary, says="model.bin: is not text: it is a GGUF file")
        binary.write_bytes(b"words\0\0\0")
        self.fails(1, "eval", MODEL, "--text", binary, says="model.bin: is not text: it has zero bytes")
        self.fails(2, "eval", MODEL, "--text", full, "--limit", 5, says="--limit: only applies with --split")
        for option in ("--window", "--sinks"):
            self.fails(2, "eval", MODEL, "--text", full, option, 9, says=f"{option}: only applies with --context")
        self.fails(1, "eval", driver.REFERENCE / "mistral", "--text", "-", stdin=b"some text",
                   says="--tokenizer")

    def test_stories260k_on_real_stories(self):
        # Reference figures from the data's README: llama2.c's own forward pass.
        got = self.ok_json("eval", *self.stories(), "--text",
                           driver.DATA / "text" / "tinystories_1000.txt", "--split",
                           "<|endoftext|>", "--limit", 50)
        self.assertEqual(got["tokens"], 16993)
        self.assertAlmostEqual(got["nll"], 1.3180, delta=0.00005)


if __name__ == "__main__":
    driver.main()
