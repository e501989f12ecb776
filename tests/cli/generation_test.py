#!/usr/bin/env python3
"""Generation settings in a model's files: end tokens, and sampling."""
import json
import shutil

import driver

MODEL = driver.REFERENCE / "llama2"


class Generation(driver.CliTest):
    def setUp(self):
        super().setUp()
        self.model = self.folder / "model"
        shutil.copytree(MODEL, self.model)

    def advise(self, **values):
        (self.model / "generation_config.json").write_text(json.dumps(values))

    def ids(self, *more, tokens=24):
        return self.ok_json("run", self.model, "-p", "Once", "-n", tokens, "--seed", 7, *more)["ids"]

    def test_ends_of_the_files_end_a_text(self):
        made = self.ids("--temp", 0)
        self.assertEqual(len(made), 24)
        end = next(id for i, id in enumerate(made) if i > 3 and id not in made[:i])
        self.advise(eos_token_id=[287, end])
        short = self.ids("--temp", 0)
        self.assertEqual(short, made[:made.index(end) + 1])
        self.assertEqual(self.ids("--temp", 0, "--ignore-eos"), made)
        gguf = self.folder / "m.gguf"
        self.ok("convert", self.model, gguf)
        said = self.ok_json("run", gguf, "-p", "Once", "-n", 24, "--temp", 0)
        self.assertEqual((said["ids"], said["stop_reason"]), (short, "end_of_text"))
        self.assertIn(end, self.ok_json("info", gguf)["model"]["generation"]["ends"])
        self.assertIn(f"{end} ", self.ok("info", gguf).out)

    def test_sampling_of_the_files_is_the_default(self):
        greedy = self.ids("--temp", 0)
        self.assertNotEqual(self.ids("--temp", 1.5, "--top-k", 0), greedy)
        self.advise(do_sample=False, temperature=1.5)
        self.assertEqual(self.ids(), greedy)
        wild = ["--temp", 1.5, "--top-k", 3, "--top-p", 0.9, "--min-p", 0.01]
        self.advise(temperature=1.5, top_k=3, top_p=0.9, min_p=0.01)
        self.assertEqual(self.ids(), self.ids(*wild))
        # Given options take precedence.
        self.assertEqual(self.ids("--temp", 0), greedy)
        self.assertEqual(self.ids("--top-k", 1), greedy)
        said = self.ok_json("info", self.model)["model"]["generation"]
        self.assertEqual((said["temperature"], said["top_k"]), (1.5, 3))
        self.assertIn("--temp 1.5 --top-k 3 --top-p 0.9 --min-p 0.01", self.ok("info", self.model).out)

    def test_repetition_penalty_of_the_files_covers_the_whole_text(self):
        plain = self.ids("--temp", 0, tokens=60)
        self.advise(repetition_penalty=1.3)
        penalised = self.ids("--temp", 0, tokens=60)
        self.assertNotEqual(penalised, plain)
        self.assertEqual(penalised, self.ids("--temp", 0, "--repeat-penalty", 1.3,
                                             "--repeat-window", 100000, tokens=60))
        self.assertNotEqual(penalised, self.ids("--temp", 0, "--repeat-window", 2, tokens=60))
        self.assertIn("--repeat-penalty 1.3 over the whole text", self.ok("info", self.model).out)

    def test_chat_takes_them_too(self):
        def answer(*more):
            return self.ok("chat", self.model, "-n", 16, "--seed", 3, *more,
                           stdin=b"Once\n").out
        greedy = answer("--temp", 0)
        self.assertNotEqual(answer("--temp", 1.5, "--top-k", 0), greedy)
        self.advise(do_sample=False)
        self.assertEqual(answer(), greedy)

    def test_profile_takes_them_too(self):
        def ids(*more):
            return self.ok_json("profile", self.model, "-p", "Once", "-n", 24, "--seed", 7,
                                *more)["ids"]
        greedy = self.ids("--temp", 0)
        self.assertNotEqual(ids(), greedy)
        self.advise(do_sample=False)
        self.assertEqual(ids(), greedy)
        self.assertNotEqual(ids("--temp", 1.5, "--top-k", 0), greedy)

    def test_unknown_keys_of_a_configuration_are_named(self):
        config = json.loads((self.model / "config.json").read_text())
        (self.model / "config.json").write_text(json.dumps({**config, "a_key_of_tomorrow": 1}))
        self.fails(1, "run", self.model, "-p", "x", says="--ignore-key a_key_of_tomorrow")
        for command in (["run", self.model, "-p", "x", "-n", 2], ["info", self.model],
                        ["convert", self.model, self.folder / "m.gguf"]):
            self.ok(*command, "--ignore-key", "a_key_of_tomorrow")


if __name__ == "__main__":
    driver.main()
