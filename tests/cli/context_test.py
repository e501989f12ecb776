#!/usr/bin/env python3
"""--context streaming: texts that are longer than any context, and what they cost in perplexity."""
import driver

MODEL = driver.REFERENCE / "llama2"  # a context of 64


class Context(driver.CliTest):
    def test_a_text_goes_on_past_the_context(self):
        run = ["run", MODEL, "-p", "Once upon", "-n", 300, "--temp", 0, "--ignore-eos"]
        self.assertLess(len(self.ok_json(*run)["ids"]), 64)
        made = self.ok_json(*run, "--context", "streaming", "--window", 40)
        self.assertEqual(len(made["ids"]), 300)
        self.assertEqual(made["evicted"], made["prompt_tokens"] + 300 - 1 - 44)
        self.assertIn(f"{made['evicted']} tokens left the window",
                      self.ok(*run, "--context", "streaming", "--window", 40).err)
        # As long as nothing leaves, it is the text of a full context.
        short = ["run", MODEL, "-p", "Once upon", "-n", 30, "--temp", 0, "--ignore-eos"]
        self.assertEqual(self.ok_json(*short, "--context", "streaming")["ids"],
                         self.ok_json(*short)["ids"])

    def test_several_texts_stream_side_by_side(self):
        run = ["run", MODEL, "-p", "Once", "-n", 100, "--temp", 1.2, "--ignore-eos", "--context",
               "streaming", "--window", 30, "--json"]
        many = [driver.json.loads(line) for line in
                self.ok(*run, "--count", 3, "--seed", 5).out.splitlines()]
        for i, text in enumerate(many):
            self.assertEqual(text["ids"], self.ok(*run, "--seed", 5 + i).json()["ids"])

    def test_eval_in_every_mode(self):
        text = self.folder / "text.txt"
        text.write_text("Once upon a time there was a mill. " * 12)
        said = {mode: self.ok_json("eval", MODEL, "--text", text, "--context", mode, "--sinks", 4,
                                   "--window", 28)
                for mode in ("full", "window", "streaming", "recompute")}
        tokens = said["streaming"]["tokens"]
        self.assertEqual(said["window"]["tokens"], tokens)
        self.assertEqual(said["recompute"]["tokens"], tokens)
        self.assertEqual(said["streaming"]["evicted"], tokens - 32)
        self.assertEqual(len({one["nll"] for one in said.values()}), 4)
        few = self.ok_json("eval", MODEL, "--text", text, "--context", "recompute", "--window", 28,
                           "--sample", 7)
        self.assertEqual(few["tokens"], 7)

    def test_what_cannot_be_is_one_line(self):
        run = ["run", MODEL, "-p", "x", "--context", "streaming"]
        self.fails(2, *run, "--sinks", 50, "--window", 40, says="--sinks")
        self.fails(2, *run, "--sinks", 64, says="--sinks")
        self.fails(2, *run, "--window", -1, says="--window")
        self.fails(2, *run, "--window", 40, "--pool", 32, says="--pool")
        self.fails(2, "run", MODEL, "-p", "x", "--context", "endless", says="--context")
        self.fails(1, "run", driver.REFERENCE / "gpt2", "-p", "x", "--context", "streaming",
                   says="learned positions")
        self.fails(3, *run, "--window", 1 << 29, says="memory")


if __name__ == "__main__":
    driver.main()
