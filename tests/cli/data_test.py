"""millrace data storybook, data check and data pack."""
import json
import shutil
import struct
import subprocess
import time

import driver


class Data(driver.CliTest):
    def test_stories(self):
        target = self.folder / "stories.txt"
        got = self.ok_json("data", "storybook", "--stories", 20, "--seed", 5, "--out", target)
        text = target.read_text()
        self.assertEqual(got["bytes"], len(text))
        self.assertEqual(text.count("<|endoftext|>"), 20)
        self.assertGreater(got["entropy_nats_per_story"], 1)
        self.assertGreater(got["grammar"]["words"], 3000)
        again = self.ok("data", "storybook", "--stories", 20, "--seed", 5, "--out", "-")
        self.assertEqual(again.out, text)
        self.assertIn("entropy", again.err)
        other = self.ok("data", "storybook", "--stories", 20, "--seed", 6, "--out", "-")
        self.assertNotEqual(other.out, text)
        # A file is only replaced with --force.
        self.fails(2, "data", "storybook", "--stories", 1, "--out", target,
                   says=["stories.txt: this file already exists", "--force"])
        self.assertEqual(target.read_text(), text)
        self.assertIn("entropy", self.ok("data", "storybook", "--stories", 1, "--out", target,
                                         "--force").out)
        self.assertLess(len(target.read_text()), len(text))

    def test_check(self):
        target = self.folder / "stories.txt"
        made = self.ok_json("data", "storybook", "--stories", 30, "--seed", 5, "--out", target)
        got = self.ok_json("data", "check", target)
        self.assertEqual([got[k] for k in ("stories", "well_formed", "by_grammar")], [30, 30, 30])
        self.assertAlmostEqual(got["mean_nats_by_grammar"], made["mean_nats_per_story"], places=6)
        self.assertEqual(got["bad"], [])
        stories = target.read_text().split("\n<|endoftext|>\n")
        stories[3] = stories[3][:200]
        target.write_text("\n<|endoftext|>\n".join(stories))
        got = self.ok_json("data", "check", target)
        self.assertEqual([got[k] for k in ("stories", "well_formed", "by_grammar")], [30, 29, 29])
        self.assertEqual(got["faults"]["unfinished"], 1)
        self.assertEqual(got["bad"][0]["story"], 3)
        text = self.ok("data", "check", target).out
        self.assertIn("29 well-formed (96.67%)", text)
        self.assertIn("story 3: unfinished", text)

    def test_check_errors(self):
        blank = self.folder / "blank.txt"
        blank.write_text("\n<|endoftext|>\n")
        self.fails(1, "data", "check", blank, says="no story")
        self.fails(1, "data", "check", self.folder / "none.txt", says="none.txt")
        self.fails(1, "data", "check", self.folder, says="directory")
        self.fails(2, "data", "check", says="FILE is required")

    def prepare(self):
        stories, tok = self.folder / "stories.txt", self.folder / "tok"
        self.ok("data", "storybook", "--stories", 30, "--seed", 5, "--out", stories)
        self.ok("tokenizer", "train", "--data", stories, "--vocab", 300, "--out", tok)
        return stories, tok

    def test_pack(self):
        stories, tok = self.prepare()
        (tok / "special_tokens_map.json").write_text("{}")
        data = self.folder / "data"
        got = self.ok_json("data", "pack", "--data", stories, "--tokenizer", tok, "--out", f"{data}/",
                           "--val-docs", 4)
        self.assertEqual((got["train"]["documents"], got["val"]["documents"]), (26, 4))
        texts = [t.strip() for t in stories.read_text().split("<|endoftext|>") if t.strip()]
        self.assertEqual(got["train"]["bytes"] + got["val"]["bytes"], sum(map(len, texts)))
        self.assertEqual({p.name for p in data.iterdir()}, {
            "data.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json",
            "train-00000.bin", "val-00000.bin"})
        # Reads the shard independently: documents between end tokens, as texts.
        raw = (data / "val-00000.bin").read_bytes()
        magic, version, width, count, vocab = struct.unpack_from("<8sIIQI", raw)
        self.assertEqual((magic, version, width, count, vocab),
                         (b"MRTOKENS", 1, 2, got["val"]["tokens"], 300))
        ids = struct.unpack_from(f"<{count}H", raw, 64)
        self.assertEqual((ids[0], ids[-1], ids.count(0)), (0, 0, 5))
        first = ids[1:ids.index(0, 1)]
        back = self.ok_json("tokenize", "--tokenizer", tok, "--decode", " ".join(map(str, first)))["text"]
        self.assertIn(back, texts)
        index = json.loads((data / "data.json").read_text())
        self.assertEqual(index["val"]["tokens"], count)
        # Packing again needs --force and gives the same; the old folder stays until the new one is
        # whole.
        again = ("data", "pack", "--data", stories, "--tokenizer", tok, "--out", data)
        self.fails(1, *again, says="--force")
        self.fails(1, *again, "--force", "--val-docs", 30, says="leaves nothing")
        self.assertEqual((data / "val-00000.bin").read_bytes(), raw)
        self.assertIn("\nvalidation  3 documents, ", self.ok(*again, "--force", "--val", 0.1).out)
        self.assertRegex(self.ok(*again, "--force", "--val-docs", 1).out,
                         r"\nvalidation  1 document, \d+ tokens, \d+ bytes of text \([\d.]+ per token\), 1 shard\n$")
        self.assertEqual({p.name for p in self.folder.iterdir()}, {"data", "stories.txt", "tok"})

    def test_pack_killed(self):
        """Killed at any moment, the folder is whole or absent, and the next run cleans up."""
        stories, tok = self.prepare()
        stories.write_bytes(stories.read_bytes() * 40)
        data = self.folder / "data"
        command = [driver.BIN, "data", "pack", "--data", str(stories), "--tokenizer", str(tok), "--out",
                   str(data), "--shard-tokens", "10000"]
        for wait in (0.01, 0.03, 0.06, 0.1):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(wait)
            process.kill()
            process.wait()
            if data.exists():
                index = json.loads((data / "data.json").read_text())
                for shard in index["train"]["shards"] + index["val"]["shards"]:
                    self.assertEqual((data / shard["file"]).stat().st_size, 64 + 2 * shard["tokens"])
                shutil.rmtree(data)
        self.ok(*command[1:])
        self.assertEqual({p.name for p in self.folder.iterdir()}, {"data", "stories.txt", "tok"})

    def test_pack_one_document(self):
        stories, tok = self.prepare()
        result = self.ok("data", "pack", "--data", stories, "--split", "", "--tokenizer", tok, "--out",
                         self.folder / "one")
        self.assertIn("nothing is held out", result.err)
        got = self.ok_json("data", "pack", "--data", stories, "--split", "\\n", "--tokenizer", tok, "--out",
                           self.folder / "lines")
        self.assertGreater(got["train"]["documents"], 60)

    def test_pack_errors(self):
        stories, tok = self.prepare()
        out = self.folder / "data"
        self.fails(2, "data", "pack", "--data", stories, "--out", out, says="--tokenizer")
        self.fails(2, "data", "pack", "--data", stories, "--tokenizer", tok, "--out", out, "--val", 1.5, says="--val")
        self.fails(2, "data", "pack", "--data", stories, "--tokenizer", tok, "--out", out, "--val", 0.1,
                   "--val-docs", 3, says="--val")
        self.fails(1, "data", "pack", "--data", stories, "--tokenizer", stories, "--out", out, says="tokenizer")
        self.fails(1, "data", "pack", "--data", self.folder / "x", "--tokenizer", tok, "--out", out)
        self.fails(1, "data", "pack", "--data", stories, "--tokenizer", tok, "--out", tok, says="has no data.json")
        self.assertEqual({p.name for p in self.folder.iterdir()}, {"stories.txt", "tok"})

    def test_errors(self):
        self.fails(2, "data", says=("storybook", "pack"))
        self.fails(2, "data", "storybook", says="--out")
        self.fails(2, "data", "storybook", "--stories", "0", "--out", "x", says="--stories")
        self.fails(1, "data", "storybook", "--stories", "3", "--out", self.folder, says="directory")
        self.fails(1, "data", "storybook", "--stories", "3", "--out", self.folder / "no" / "x")
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    driver.main()
