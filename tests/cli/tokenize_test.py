"""millrace tokenize: ids, pieces, and back."""
import json

import driver


class Tokenize(driver.CliTest):
    def test_vectors_of_the_reference_tokenizers(self):
        for name in ("llama2", "gpt2"):
            folder = driver.REFERENCE / name
            vectors = json.loads((folder / "tokenizer_vectors.json").read_text())
            for vector in vectors[:12]:
                got = self.ok_json("tokenize", folder, "--file", "-", "--no-special",
                                   stdin=vector["text"].encode())
                self.assertEqual(got["ids"], vector["ids_without_special"], vector["text"])
                got = self.ok_json("tokenize", folder, "--file", "-", stdin=vector["text"].encode())
                self.assertEqual(got["ids"], vector["ids"], vector["text"])

    def test_random_models_have_bytes(self):
        got = self.ok_json("tokenize", "random:gpt2", "--text", "abc")
        self.assertEqual((got["count"], got["vocab"], got["round_trip"]), (3, 50257, True))
        self.fails(2, "tokenize", "random:none", "--text", "abc", says="not a known shape")

    def test_forms_of_output(self):
        model = driver.REFERENCE / "llama2"
        got = self.ok_json("tokenize", model, "--text", "Once upon a time")
        ids = " ".join(map(str, got["ids"]))
        self.assertEqual(got["count"], len(got["pieces"]))
        self.assertTrue(got["round_trip"])
        self.assertEqual(self.ok("tokenize", model, "--text", "Once upon a time", "--ids").out,
                         ids + "\n")
        self.assertEqual(len(self.ok("tokenize", model, "--text", "Once upon a time").out
                             .splitlines()), got["count"])
        plain = self.ok_json("tokenize", model, "--text", "Once upon a time", "--no-special")
        self.assertEqual(self.ok("tokenize", model, "--decode",
                                 " ".join(map(str, plain["ids"]))).out.strip(), "Once upon a time")
        self.assertEqual(self.ok_json("tokenize", model, "--text", "")["text"], "")

    def test_special_tokens_in_the_text(self):
        model = driver.REFERENCE / "llama2"
        self.assertEqual(self.ok_json("tokenize", model, "--no-special", "--text", "<s>")["ids"],
                         [1])
        plain = self.ok_json("tokenize", model, "--no-special", "--plain", "--text", "<s>")
        self.assertGreater(len(plain["ids"]), 1)
        self.assertEqual(plain["text"], "<s>")

    def test_errors(self):
        model = driver.REFERENCE / "llama2"
        self.fails(2, "tokenize", model, says="--text")
        self.fails(2, "tokenize", model, "--text", "x", "--decode", "1")
        self.fails(2, "tokenize", model, "--decode", "1 x", says="--decode")
        self.fails(2, "tokenize", model, "--decode", "99999999", says="--decode")
        self.fails(1, "tokenize", self.folder / "none.gguf", "--text", "x", says="none.gguf")
        self.fails(1, "tokenize", driver.REFERENCE / "mistral", "--text", "x", says="tokenizer")

    def test_vocabulary_only_gguf(self):
        files = sorted((driver.DATA / "tokenizers" / "gguf").glob("*.gguf"))
        if not files:
            self.skipTest("no vocabulary files: set MILLRACE_DATA")
        for file in files[:2]:
            got = self.ok_json("tokenize", file, "--text", "Hello world", "--no-special")
            self.assertIn("Hello world", got["text"])

    def test_llama2c(self):
        model, _, tokenizer = self.stories()
        got = self.ok_json("tokenize", model, "--tokenizer", tokenizer, "--text", "Once upon")
        self.assertEqual(got["vocab"], 512)
        self.assertTrue(got["round_trip"])


if __name__ == "__main__":
    driver.main()
