"""Model files of every kind, good and bad, with every command."""
import json
import shutil
import struct

import driver

MODEL = driver.REFERENCE / "llama2"
FAMILIES = {"llama2": "llama", "llama3": "llama", "mistral": "mistral", "qwen2": "qwen2",
            "qwen3": "qwen3", "gpt2": "gpt2", "gpt-neox": "gpt-neox", "sdar": "sdar",
            "sdar-llama": "sdar", "fast-dllm": "fast-dllm", "llada": "llada", "dream": "dream"}


class Models(driver.CliTest):
    def test_info_names_the_family(self):
        for folder, family in FAMILIES.items():
            got = self.ok_json("info", driver.REFERENCE / folder)
            self.assertEqual(got["model"]["family"], family)
            self.assertGreater(got["model"]["parameters"], 1000)
            self.assertEqual(got["memory_plan"]["total_bytes"],
                             sum(item["bytes"] for item in got["memory_plan"]["items"]))

    def test_info_says_how_tokens_are_filled_in(self):
        self.assertIsNone(self.ok_json("info", MODEL)["model"]["diffusion"])
        self.assertNotIn("diffusion", self.ok("info", MODEL).out)
        for model, mask, block, part, shifted, line in (
                (driver.REFERENCE / "sdar", 47, 16, 0, False, "mask token 47, blocks of 16, logits aligned"),
                (driver.REFERENCE / "fast-dllm", 47, 32, 8, True,
                 "mask token 47, blocks of 32 in parts of 8, logits shifted by one"),
                (driver.REFERENCE / "llada", 47, 0, 0, False, "mask token 47, full attention, logits aligned"),
                (driver.REFERENCE / "dream", 47, 0, 0, True,
                 "mask token 47, full attention, logits shifted by one")):
            self.assertEqual(self.ok_json("info", model)["model"]["diffusion"],
                             {"mask": mask, "block": block, "sub_block": part, "shifted": shifted})
            self.assertIn(f"diffusion   {line}\n", self.ok("info", model).out)

    def test_bad_models_that_fill_in_tokens(self):
        for name, key, value, says in (
                ("sdar", "mask_token_id", None, ["mask_token_id", "missing"]),
                ("sdar", "mask_token_id", 48, ["mask token", "48"]),
                ("sdar", "block_size", 0, ["block_size", "at least 1"]),
                ("sdar", "block_size", 65, ["block = 65", "the context, 64"]),
                ("fast-dllm", "sub_block_size", 5, ["sub-block = 5", "the block of 32"]),
                ("llada", "architectures", ["LLaDAMoEModelLM"], ["LLaDAMoEModelLM", "not supported"])):
            folder = self.folder / f"{name}-{key}-{value if key != 'architectures' else 'moe'}"
            shutil.copytree(driver.REFERENCE / name, folder)
            config = json.loads((folder / "config.json").read_text())
            config[key] = value
            (folder / "config.json").write_text(json.dumps(config))
            failed = self.fails(1, "info", folder, says=says)
            self.assertEqual(failed.err.count("\n"), 1)

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
        # A bad file gives the same error in every command.
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

    def test_bundled_models_have_short_names(self):
        for name in ("storyteller", "storyteller-diffusion"):
            path = driver.SOURCE / "models" / f"{name}.gguf"
            self.assertEqual(self.ok_json("info", name)["model"], self.ok_json("info", path)["model"])
            ask = ["-p", "Once", "-n", 8, "--seed", 1, "-q"]
            self.assertEqual(self.ok("run", name, *ask).out, self.ok("run", path, *ask).out)
            self.ok("convert", name, self.folder / f"{name}-f16.gguf", "--type", "f16")

    def test_a_name_that_is_none_lists_the_bundled_ones(self):
        said = ["storyteler: no file, folder or bundled model has this name", "did you mean storyteller?"]
        self.fails(1, "info", "nosuch", says=("nosuch: no file, folder or bundled model has this name",
                                              "storyteller, storyteller-diffusion"))
        for command in (["run", "storyteler", "-p", "x"], ["info", "storyteler"],
                        ["bench", "decode", "storyteler"], [driver.LAB, "norms", "storyteler"],
                        ["convert", "storyteler", self.folder / "o.gguf"]):
            self.fails(1, *command, says=said)
        self.fails(1, "info", says=said, env={"MILLRACE_MODEL": "storyteler"})
        self.fails(1, "run", MODEL, "--tokenizer", "storyteler",
                   says=["--tokenizer = storyteler: ", said[1]])
        # A path, or another kind of name, is reported as such.
        self.fails(1, "info", "./storyteler", says=["./storyteler: cannot be opened", "check the path"])
        self.assertNotIn("bundled", self.fails(2, "info", "random:storyteler").err)

    def test_a_tokenizer_has_a_short_name_too(self):
        path = driver.SOURCE / "models" / "storyteller.gguf"
        want = self.ok("tokenize", "--text", "Once upon", "--tokenizer", path).out
        self.assertEqual(self.ok("tokenize", "--text", "Once upon", "--tokenizer", "storyteller").out,
                         want)
        packed = self.folder / "packed"
        texts = self.folder / "texts.txt"
        texts.write_text("Once there was a cat.<|endoftext|>A dog ran home.<|endoftext|>")
        self.ok("data", "pack", "--data", texts, "--tokenizer", "storyteller", "--out", packed)
        self.assertEqual(self.ok("tokenize", "--text", "Once upon", "--tokenizer",
                                 packed / "tokenizer.json").out, want)

    def test_a_path_comes_before_a_bundled_model(self):
        bundled = str(driver.SOURCE / "models" / "storyteller.gguf")
        hides = ["millrace: ./storyteller: ", "; ./storyteller was taken for the path, the bundled "
                 f"model of that name is {bundled}"]
        place = self.folder / "storyteller"
        place.write_bytes(b"no model")
        self.fails(1, "info", "storyteller", cwd=self.folder, says=hides)
        self.fails(1, "tokenize", "--text", "x", "--tokenizer", "storyteller", cwd=self.folder,
                   says=hides[1])
        place.unlink()
        place.mkdir()
        self.fails(1, "run", "storyteller", "-p", "x", cwd=self.folder, says=hides)
        place.rmdir()
        place.symlink_to("nowhere")
        self.fails(1, "info", "storyteller", cwd=self.folder, says=hides)
        place.unlink()
        shutil.copytree(MODEL, place)
        self.assertEqual(self.ok_json("info", "storyteller", cwd=self.folder)["model"]["family"],
                         "llama")
        # Nothing is added for a path without such a name.
        self.assertNotIn("bundled", self.fails(1, "info", "./missing", cwd=self.folder).err)


if __name__ == "__main__":
    driver.main()
