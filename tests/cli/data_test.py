"""millrace data pack."""
import json
import os
import shutil
import signal
import struct
import subprocess
import time

import driver


class Data(driver.CliTest):
    def prepare(self):
        stories, tok = self.folder / "stories.txt", self.folder / "tok"
        self.ok(driver.LAB, "story", "write", "--stories", 30, "--seed", 5, "--out", stories)
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

    def test_pack_lines(self):
        stories, tok = self.prepare()
        got = self.ok_json("data", "pack", "--data", stories, "--split", "\\n", "--tokenizer", tok, "--out",
                           self.folder / "lines")
        self.assertGreater(got["train"]["documents"], 60)

    def packed(self, name, *arguments, tokenizer=None):
        """The ids of the training and the validation split, and what was said."""
        data = self.folder / name
        said = self.ok_json("data", "pack", "--tokenizer", tokenizer or self.folder / "tok", "--out",
                            data, *arguments)
        ids = []
        for split in ("train", "val"):
            raw = b"".join(path.read_bytes()[64:] for path in sorted(data.glob(f"{split}-*.bin")))
            ids.append(list(struct.unpack(f"<{len(raw) // 2}H", raw)))
        shutil.rmtree(data)
        return ids[0], ids[1], said

    def text_of(self, ids):
        return self.ok_json("tokenize", "--tokenizer", self.folder / "tok", "--decode",
                            " ".join(map(str, ids)))["text"]

    def write(self, name, what):
        path = self.folder / name
        path.write_bytes(what if isinstance(what, bytes) else what.encode())
        return path

    def test_pack_json_lines(self):
        self.prepare()
        texts = ["A first text.", 'With "quotes", a \\ and\nlines.', "", "\u00e9\u4e2d\U0001f600", "last"]
        want = self.packed("a", "--data", self.write("a.txt", "<e>".join(texts)), "--split", "<e>",
                           "--val", 0)
        self.assertEqual(want[2]["train"]["documents"], 4)
        for name in ("b.jsonl", "b.ndjson", "b.json", "b.JSONL", "b.jsonlines", "b.jl", "b.txt", "records"):
            lines = "\n\n".join(json.dumps({"id": 1, "text": text}) for text in texts)
            got = self.packed("b", "--data", self.write(name, lines), "--val", 0)
            self.assertEqual(got[:2], want[:2], name)
            self.assertEqual(got[2]["train"]["bytes"], want[2]["train"]["bytes"])
        crlf = "\ufeff" + "".join(json.dumps({"text": text}) + "\r\n" for text in texts)
        self.assertEqual(self.packed("c", "--data", self.write("c.jsonl", crlf), "--val", 0)[:2], want[:2])
        pairs = "\n".join(json.dumps({"prompt": text[:4], "completion": text[4:]}) for text in texts)
        self.assertEqual(self.packed("d", "--data", self.write("d.jsonl", pairs), "--val", 0)[:2], want[:2])
        # A folder and a glob with both kinds; documents are held out as of texts.
        self.assertEqual(self.packed("e", "--data", self.folder / "[bd].jsonl", "--val", 0)[2]["train"]["documents"],
                         8)
        self.assertEqual(self.packed("f", "--data", self.folder / "b.jsonl", "--val", 0.5, "--seed", 3)[:2],
                         self.packed("g", "--data", self.folder / "a.txt", "--split", "<e>", "--val", 0.5,
                                     "--seed", 3)[:2])
        # Of other keys, too, under any name; and a list.
        for name in ("bad.txt", "bad.JSONL", "bad.jl", "bad"):
            for line, says in (('{"instruction": "a", "output": "b"}\n', "its keys: instruction, output"),
                               ('[{"text": "a"}]\n', "jq -c"), ('[ {"text": "a"},\n{"text": "b"}]\n', "jq -c")):
                self.fails(1, "data", "pack", "--data", self.write(name, line), "--tokenizer",
                           self.folder / "tok", "--out", self.folder / "x", says=(name, says))
        for line in ("[Illustration]", "{a brace", "[1] Of whales.", "{}{}", "{\n"):  # texts
            self.assertEqual(self.packed("h", "--data", self.write("a.txt", line + "\nA text."), "--val", 0)
                             [2]["train"]["documents"], 1)
        for line, says in (("{\"text\": 3}", ("line 1", "its keys: text")), ("{\"text\": \"a\"}\n{}", ("line 2", "none")),
                           ("{\"text\": \"a\"}\n{\"text\":", "line 2"), ("[{\"text\": \"a\"}]", "jq -c"),
                           ("{\n\"text\": \"a\"}", "jq -c"), ("\n{\"text\": \"\\ud800\"}", "line 2"),
                           ("{\"text\": \"a\"}{\"text\": \"b\"}", "line 1"), ("3", "per line"),
                           ("{\"prompt\": \"a\", \"completion\": null}", "of one kind"),
                           ("{\"instruction\": \"a\", \"output\": \"b\"}", "instruction, output"),
                           ("{\"messages\": [{\"content\": \"a\"}]}", ("line 1", "role")),
                           ("{\"messages\": [{\"role\": \"user\", \"content\": 3}]}", "content")):
            self.fails(1, "data", "pack", "--data", self.write("bad.jsonl", line), "--tokenizer",
                       self.folder / "tok", "--out", self.folder / "x", says=says)

    def test_pack_conversations(self):
        self.prepare()
        talk = [{"role": "user", "content": "Hi <|endoftext|>"}, {"role": "assistant", "content": "Hello"}]
        path = self.write("talk.jsonl", json.dumps({"messages": talk}) + "\n" +
                          json.dumps({"prompt": talk[:1], "completion": talk[1:]}))
        self.fails(1, "data", "pack", "--data", path, "--tokenizer", self.folder / "tok", "--out",
                   self.folder / "x", says=("talk.jsonl", "no chat template"))
        chat = self.folder / "chat"
        shutil.copytree(self.folder / "tok", chat)
        (chat / "chat_template.jinja").write_text(
            "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>{% endfor %}")
        train, _, said = self.packed("a", "--data", path, "--val", 0, tokenizer=chat)
        self.assertEqual(said["train"]["documents"], 2)
        ids = lambda text, *more: self.ok_json("tokenize", "--tokenizer", chat, "--no-special", "--text", text,
                                               *more)["ids"]
        # What users wrote stays text; the template's tokens are tokens, one of them at the end.
        one = ids("[user]") + ids("Hi <|endoftext|>", "--plain") + [0] + ids("[assistant]") + ids("Hello") + [0]
        self.assertEqual(train, [0] + one + one)
        # A template that cannot be executed is not replaced by another format; one that refuses says where.
        for template, says in (("{{ messages | nosuchfilter }}", ("nosuchfilter", "own template")),
                               ("{% if messages | length > 1 %}{{ raise_exception('too long') }}{% endif %}",
                                ("talk.jsonl, line 1", "too long"))):
            (chat / "chat_template.jinja").write_text(template)
            self.fails(1, "data", "pack", "--data", path, "--tokenizer", chat, "--out", self.folder / "x",
                       says=("talk.jsonl", *says))
        # What a template writes of the date is the same on every day.
        (chat / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') }}{{ messages[0].content }}")
        self.assertIn("01 Jan 2025", self.text_of(self.packed("d", "--data", path, "--val", 0, tokenizer=chat)[0]))
        # A tokenizer learns from the contents.
        made = self.ok_json("tokenizer", "train", "--data", path, "--vocab", 270, "--out", self.folder / "t2")
        self.assertLess(made["words"], 20)

    def test_pack_compressed(self):
        self.prepare()
        text = self.write("a.txt", "One text.\n<|endoftext|>\nAnother.\n<|endoftext|>\n")
        records = self.write("b.jsonl", '{"text": "One text."}\n{"text": "Another."}\n')
        want = self.packed("a", "--data", text, "--val", 0)[0]
        programs = [("gzip", ".gz")] + [("zstd", ".zst")] * (shutil.which("zstd") is not None)
        for program, ending in programs:
            for path in (text, records):
                packed = self.write(path.name + ending, subprocess.run([program, "-c"], input=path.read_bytes(),
                                                                       stdout=subprocess.PIPE, check=True).stdout)
                self.assertEqual(self.packed("b", "--data", packed, "--val", 0)[0], want)
                self.assertEqual(self.packed("b", "--data", packed, "--val", 0.5)[1],
                                 self.packed("b", "--data", path, "--val", 0.5)[1])
            whole = packed.read_bytes()
            self.fails(1, "data", "pack", "--data", self.write("cut" + ending, whole[:-6]), "--tokenizer",
                       self.folder / "tok", "--out", self.folder / "x", says=("cut", "cannot be unpacked"))
            # A frame for other programs before it, as pzstd writes.
            if program == "zstd":
                skipped = self.write("s.zst", b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + whole)
                self.assertEqual(self.packed("s", "--data", skipped, "--val", 0)[0], want)
            self.fails(1, "eval", driver.REFERENCE / "llama2", "--text", packed, says="packed by " + program)
            nothing = subprocess.run([program, "-c"], input=b"", stdout=subprocess.PIPE, check=True).stdout
            self.fails(1, "data", "pack", "--data", self.write("none" + ending, nothing), "--tokenizer",
                       self.folder / "tok", "--out", self.folder / "x", says="contains no text")
        self.fails(1, "data", "pack", "--data", self.folder / "a.txt.gz", "--tokenizer", self.folder / "tok",
                   "--out", self.folder / "x", env={"PATH": str(self.folder)}, says=("gzip", "install"))
        self.fails(1, "data", "pack", "--data", self.folder / "a.txt.gz", "--tokenizer", self.folder / "tok",
                   "--out", self.folder / "x", env={"TMPDIR": str(self.folder / "none")}, says="TMPDIR")

    def test_unpacking_is_interrupted(self):
        stories, tok = self.prepare()
        packed = self.write("a.txt.gz", b"\x1f\x8b" + bytes(100))
        slow = self.folder / "bin" / "gzip"
        slow.parent.mkdir()
        slow.write_text(f"#!/bin/sh\ntouch {self.folder}/started\nexec sleep 100\n")
        slow.chmod(0o755)
        for whom in (os.kill, os.killpg):  # the program alone, or all of them, as a terminal does
            process = subprocess.Popen(
                [driver.BIN, "data", "pack", "--data", packed, "--tokenizer", tok, "--out", self.folder / "x"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                env={**os.environ, "PATH": f"{slow.parent}:{os.environ['PATH']}"})
            self.assertTrue(driver.eventually((self.folder / "started").exists))
            whom(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=driver.HANG)
            self.assertEqual((process.returncode, out), (130, b""), err)
            self.assertNotIn(b"unpacked", err)
            (self.folder / "started").unlink()
            self.assertFalse((self.folder / "x").exists())

    def test_pack_foreign_files(self):
        self.prepare()
        text = "A text that is long enough.\n" * 200
        tar = b"name".ljust(257, b"x") + b"ustar"
        for name, what, says in (("a.parquet", b"PAR1" + bytes(8), ("Parquet", "Python")),
                                 ("a.txt.xz", b"\xfd7zXZ\0" + bytes(9), "xz"), ("a.bz2", b"BZh91AY&SY", "bzip2"),
                                 ("a.zip", b"PK\3\4" + bytes(9), "ZIP"), ("a.pdf", b"%PDF-1.7\n", "PDF"),
                                 ("a.tar", tar, "tar"), ("a.gguf", b"GGUF\3" + bytes(9), "GGUF"),
                                 ("utf16.txt", text.encode("utf-16"), ("UTF-16", "iconv")),
                                 ("zero.bin", b"ab\0cd", "zero bytes"),
                                 ("latin1.txt", (text + "caf\u00e9\n").encode("latin-1"),
                                  ("not UTF-8", "0xe9", "line 201", "iconv"))):
            for command in (("data", "pack", "--tokenizer", self.folder / "tok", "--out", self.folder / "x"),
                            ("tokenizer", "train", "--out", self.folder / "x")):
                self.fails(1, *command, "--data", self.write(name, what), says=[name] + list(
                    [says] if isinstance(says, str) else says))
            (self.folder / name).unlink()
        for word in ("GGUF is a format.", "BZh was here."):  # a text may begin as a file does
            self.packed("b", "--data", self.write("a.txt", word), "--val", 0)
        self.fails(1, "eval", "--text", self.write("latin1.txt", "caf\u00e9".encode("latin-1")), says="not UTF-8")

    def test_line_ends_and_marks_are_no_text(self):
        self.prepare()
        text = "One text,\n<|endoftext|>\nand another.\n<|endoftext|>\n"
        want = self.packed("a", "--data", self.write("a.txt", text), "--val", 0)[0]
        nll = lambda path: self.ok_json("eval", "--text", path, "--split", "<|endoftext|>")["nll"]
        for other in (text.replace("\n", "\r\n"), "\ufeff" + text, "\ufeff" + text.replace("\n", "\r\n")):
            path = self.write("b.txt", other)
            self.assertEqual(self.packed("b", "--data", path, "--val", 0)[0], want)
            self.assertEqual(nll(path), nll(self.folder / "a.txt"))

    def test_one_text_is_cut_for_validation(self):
        self.prepare()
        lines = [f"Line {i} of a text that is one document.\n" for i in range(200)]
        path = self.write("one.txt", "".join(lines))
        whole = self.packed("a", "--data", path, "--split", "", "--val", 0)[0]
        train, val, said = self.packed("b", "--data", path, "--split", "", "--val", 0.1)
        # Whole lines: the last tenth, and no more than as much again.
        self.assertEqual(train[1:-1] + val[1:-1], whole[1:-1])
        self.assertIn(said["val"]["bytes"], [len("".join(lines[i:])) for i in range(200)])
        self.assertGreaterEqual(said["val"]["bytes"], 0.1 * len("".join(lines)))
        self.assertLess(said["val"]["bytes"], 0.11 * len("".join(lines)))
        # Without lines, between words; a text too short to be cut stays whole, and that is said.
        path.write_text("word " * 1000)
        train, val, said = self.packed("c", "--data", path, "--split", "", "--val", 0.25)
        self.assertGreater(len(val), 100)
        path.write_text("a")
        self.assertIn("nothing is held out", self.ok("data", "pack", "--data", path, "--split", "", "--tokenizer",
                                                     self.folder / "tok", "--out", self.folder / "d").err)
        self.assertEqual(self.packed("e", "--data", path, "--split", "", "--val", 0)[1], [])

    def test_a_text_that_is_most_of_the_corpus_is_not_held_out_whole(self):
        self.prepare()
        large = self.write("large.txt", "".join(f"Line {i} of a long text.\n" for i in range(2000)))
        small = self.write("small.txt", "A short text.\n")
        bytes_ = large.stat().st_size + small.stat().st_size
        for seed in range(4):  # whichever of them is drawn
            said = self.packed("a", "--data", large, small, "--split", "", "--seed", seed)[2]
            self.assertGreater(said["val"]["bytes"], 0, seed)
            self.assertLess(said["val"]["bytes"], 0.02 * bytes_, seed)
        # Asked for by number, or by a share of that size, it is.
        drawn = {self.packed("a", "--data", large, small, "--split", "", "--seed", seed, "--val-docs", 1)
                 [2]["val"]["bytes"] for seed in range(8)}
        self.assertEqual(drawn, {large.stat().st_size, small.stat().st_size})
        # A vocabulary whose texts cannot be cut within a line, cut between words.
        if (llama := driver.DATA / "tokenizers" / "llama2").exists():
            words = self.write("words.txt", "word " * 1000)
            self.assertGreater(len(self.packed("l", "--data", words, "--split", "", "--val", 0.25,
                                               tokenizer=llama)[1]), 100)

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
        self.fails(2, "data", says="pack")


if __name__ == "__main__":
    driver.main()
