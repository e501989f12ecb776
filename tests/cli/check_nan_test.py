"""--check-nan: damage in a model is traced to its layer; a healthy model gives the same text."""
import json
import shutil
import struct

import driver

MODEL = driver.REFERENCE / "llama2"
NAN, INFINITY = float("nan"), float("inf")


class CheckNan(driver.CliTest):
    def damaged(self, tensor, value, element=7):
        """A copy of the model with one element of a tensor set."""
        folder = self.folder / "damaged"
        shutil.copytree(MODEL, folder, dirs_exist_ok=True)
        file = folder / "model.safetensors"
        data = bytearray(file.read_bytes())
        size = struct.unpack_from("<Q", data)[0]
        entry = json.loads(data[8:8 + size])[tensor]
        dtype, at = entry["dtype"], 8 + size + entry["data_offsets"][0]
        if dtype == "F32":
            struct.pack_into("<f", data, at + 4 * element, value)
        else:
            bits = struct.unpack("<I", struct.pack("<f", value))[0] >> 16
            half = struct.pack("<e", value) if dtype == "F16" else struct.pack("<H", bits)
            data[at + 2 * element:at + 2 * element + 2] = half
        file.write_bytes(data)
        (folder / "chat_template.jinja").write_text("{{ messages[-1].content }}")  # chat goes without a word
        return folder

    def commands(self, folder):
        text = self.folder / "text.txt"
        text.write_text("Once upon a time there was a mill.")
        return {"run": (["run", folder, "-p", "Once upon", "-n", 4, "-q"], b""),
                "chat": (["chat", folder, "-n", 4], b"Hello\n"),
                "eval": (["eval", folder, "--text", text], b""),
                "bench": (["bench", "decode", folder, "--prompt", 4, "-n", 4, "--reps", 1,
                           "--warmup", 0], b"")}

    def test_every_command_names_layer_stage_and_position(self):
        for tensor, place in (("layers.1.self_attn.o_proj", "layer 1, after attention (out)"),
                              ("layers.0.mlp.down_proj", "layer 0, after mlp (down)"),
                              ("norm", "logits (final norm and head)")):
            folder = self.damaged(f"model.{tensor}.weight", NAN)
            for command, stdin in self.commands(folder).values():
                self.fails(1, *command, "--check-nan", stdin=stdin,
                           says=[f"{folder}: {place} = NaN", "token position", "damaged"])
            shutil.rmtree(folder)

    def test_infinity_too(self):
        folder = self.damaged("model.layers.0.mlp.down_proj.weight", INFINITY)
        self.fails(1, "run", folder, "-p", "Once", "--check-nan",
                   says=["layer 0, after mlp (down) = infinity", "token position 0"])

    def test_without_it_the_error_names_it(self):
        folder = self.damaged("model.layers.1.self_attn.o_proj.weight", NAN)
        for name, (command, stdin) in self.commands(folder).items():
            self.fails(1, *command, stdin=stdin, says=["damaged", "--check-nan"])

    def test_a_healthy_model_says_the_same(self):
        arguments = ["run", MODEL, "-p", "Once upon", "-n", 12, "--seed", 3, "-q"]
        self.assertEqual(self.ok(*arguments, "--check-nan").out, self.ok(*arguments).out)
        ledger = [self.ok_json(*arguments, *more)["ledger"]["decode"]
                  for more in ([], ["--check-nan"])]
        self.assertNotIn("check", ledger[0])
        self.assertGreater(ledger[1]["check"]["calls"], 0)
        for name in ("run", "chat", "eval"):
            self.assertIn("--check-nan", self.ok(name, "--help-all").out)


if __name__ == "__main__":
    driver.main()
