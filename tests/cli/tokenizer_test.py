"""millrace tokenizer train."""
import json

import driver

TEXT = "Once upon a time a cat sat by the mill.\n<|endoftext|>\nThe cat saw the water, and the mill.\n" * 20


class Tokenizer(driver.CliTest):
    def setUp(self):
        super().setUp()
        self.text = self.folder / "text.txt"
        self.text.write_text(TEXT)

    def test_train(self):
        tok = self.folder / "deep" / "tok"
        got = self.ok_json("tokenizer", "train", "--data", self.text, "--vocab", 280, "--out", f"{tok}/")
        self.assertEqual((got["vocab"], got["merges"], got["bytes"]), (280, 23, len(TEXT)))
        written = json.loads((tok / "tokenizer.json").read_text())
        self.assertEqual(len(written["model"]["vocab"]), 280)
        self.assertEqual(written["model"]["vocab"]["<|endoftext|>"], 0)
        # Our own reader: text and back, with the end token first.
        ids = self.ok_json("tokenize", "--tokenizer", tok, "--text", "The cat, na\u00efve \U0001f600")
        self.assertTrue(ids["round_trip"])
        self.assertEqual(ids["ids"][0], 0)
        self.assertEqual(ids["vocab"], 280)
        # Only the texts matter: not the files they come in, nor the threads.
        parts = self.folder / "parts"
        parts.mkdir()
        for i, part in enumerate(TEXT.split("<|endoftext|>")):
            (parts / f"{i:03}.txt").write_text(part)
        again = self.folder / "again.json"
        self.ok("tokenizer", "train", "--data", parts, "--vocab", 280, "--threads", 1, "--out", again)
        self.assertEqual(again.read_text(), (tok / "tokenizer.json").read_text())
        globbed = self.folder / "globbed"
        self.ok("tokenizer", "train", "--data", f"{parts}/*.txt", "--vocab", 280, "--out", globbed)
        self.assertEqual((globbed / "tokenizer.json").read_text(), again.read_text())

    def test_fewer_tokens_than_asked(self):
        result = self.ok("tokenizer", "train", "--data", self.text, "--vocab", 5000, "--out", self.folder / "t")
        self.assertIn("fewer than the 5000", result.err)
        self.assertEqual(self.ok_json("tokenizer", "train", "--data", self.text, "--vocab", 5000, "--out",
                                      self.folder / "t2")["wanted"], 5000)

    def test_errors(self):
        def fails(code, *arguments, says):
            self.fails(code, "tokenizer", "train", *arguments, says=says)
            self.assertEqual({p.name for p in self.folder.iterdir()}, {"text.txt"})
        out = self.folder / "tok"
        self.fails(2, "tokenizer", says="train")
        fails(2, "--out", out, says="--data")
        fails(2, "--data", self.text, says="--out")
        fails(2, "--data", self.text, "--out", out, "--vocab", 200, says="--vocab = 200")
        fails(2, "--data", self.text, "--out", out, "--special", "x", says="--special = x")
        fails(1, "--data", self.folder / "no.txt", "--out", out, says="no.txt")
        fails(1, "--data", self.folder / "*.md", "--out", out, says="no file matches")
        fails(1, "--data", "/dev/null", "--out", out, says="not a regular file")
        fails(1, "--data", self.text, "--out", self.text, says="text.txt")
        self.text.write_text("")
        fails(1, "--data", self.text, "--out", out, says="no text")
        self.text.write_bytes(b"a\0b")
        fails(1, "--data", self.text, "--out", out, says="is not text")


if __name__ == "__main__":
    driver.main()
