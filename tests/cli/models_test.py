"""Model files of every kind, good and bad, as every command meets them."""
import struct

import driver

MODEL = driver.REFERENCE / "llama2"
FAMILIES = {"llama2": "llama", "llama3": "llama", "mistral": "mistral", "qwen2": "qwen2",
            "qwen3": "qwen3", "gpt2": "gpt2", "gpt-neox": "gpt-neox"}


class Models(driver.CliTest):
    def test_info_names_the_family(self):
        for folder, family in FAMILIES.items():
            got = self.ok_json("info", driver.REFERENCE / folder)
            self.assertEqual(got["model"]["family"], family)
            self.assertGreater(got["model"]["parameters"], 1000)
            self.assertEqual(got["memory_plan"]["total_bytes"],
                             sum(item["bytes"] for item in got["memory_plan"]["items"]))

    def test_info_text_and_plan(self):
        text = self.ok("info", MODEL, "--ctx", 64, "--batch", 3).out
        for word in ("machine", "model", "shape", "tokenizer", "memory", "KV cache", "--batch 3"):
            self.assertIn(word, text)
        small = self.ok_json("info", MODEL, "--ctx", 64)["memory_plan"]["total_bytes"]
        large = self.ok_json("info", MODEL, "--ctx", 64, "--batch", 8)["memory_plan"]["total_bytes"]
        self.assertGreater(large, small)
        # A plan that does not fit is shown, not refused.
        self.ok("info", MODEL, "--ctx", (1 << 30) - 1)
        self.fails(2, "info", MODEL, "--ctx", 1 << 30, says="--ctx")

    def bad_files(self):
        good = self.folder / "good.gguf"
        self.ok("convert", MODEL, good, "--type", "q8_0")
        data = good.read_bytes()
        good.unlink()

        def write(name, content):
            path = self.folder / name
            path.write_bytes(content)
            return path
        yield write("empty.gguf", b"")
        yield write("empty.bin", b"")
        yield write("text.gguf", b"this is not a model\n" * 10)
        yield write("magic.gguf", data[:4])
        yield write("header.gguf", data[:100])
        yield write("half.gguf", data[:len(data) // 2])
        yield write("version.gguf", data[:4] + b"\xff\xff\xff\x7f" + data[8:])
        yield write("counts.gguf", data[:8] + b"\xff" * 16 + data[24:])
        yield write("zeros.bin", bytes(4096))
        yield write("noise.bin", bytes(range(256)) * 16)
        folder = self.folder / "folder"
        folder.mkdir()
        yield folder
        hollow = self.folder / "hollow"
        hollow.mkdir()
        (hollow / "config.json").write_text("{}")
        yield hollow
        broken = self.folder / "broken"
        broken.mkdir()
        (broken / "config.json").write_text('{"model_type": "llama", ')
        yield broken
        alien = self.folder / "alien"
        alien.mkdir()
        (alien / "config.json").write_text('{"model_type": "mamba"}')
        yield alien
        yield self.folder / "missing.gguf"
        yield "/dev/null"

    def test_int8_checkpoints_of_llama2c_are_expanded(self):
        _, option, tokenizer = self.stories()
        dim, hidden, vocab, group = 8, 16, 512, 8
        weights = [vocab * dim] + 4 * [dim * dim] + 3 * [dim * hidden]
        data = struct.pack("<Ii7iBi", 0x616B3432, 2, dim, hidden, 1, 2, 2, vocab, 64, 1, group)
        data = data.ljust(256, b"\0") + bytes(4 * 3 * dim)  # norms
        for count in weights:
            data += bytes(count) + bytes(4 * (count // group))
        model = self.folder / "int8.bin"
        model.write_bytes(data)
        got = self.ok_json("info", model, option, tokenizer)["model"]
        self.assertEqual(got["weights_mapped_bytes"], 0)
        self.assertGreaterEqual(got["weights_copied_bytes"], 4 * sum(weights))

    def test_bad_files_give_one_line_and_exit_1(self):
        for path in self.bad_files():
            with self.subTest(path=str(path)):
                self.fails(1, "run", path, "-p", "x", says=str(path))
                self.fails(1, "info", path)
        # Nothing about a command changes what a bad file is.
        bad = self.folder / "half.gguf"
        self.fails(1, "chat", bad, stdin=b"hello\n")
        self.fails(1, "eval", bad, "--text", "-", stdin=b"hello")
        self.fails(1, "convert", bad, self.folder / "o.gguf")
        self.fails(1, "bench", "decode", bad)
        self.assertFalse((self.folder / "o.gguf").exists())

    def test_no_bundled_model_is_said(self):
        if (driver.SOURCE / "models").exists():
            self.ok("run", "-n", 5)
        else:
            self.fails(2, "run", "-p", "x", says=["MODEL", "MILLRACE_MODEL"],
                       env={"MILLRACE_MODEL": ""})


if __name__ == "__main__":
    driver.main()
