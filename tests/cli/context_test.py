#!/usr/bin/env python3
"""--context streaming: texts longer than any context, and their perplexity."""
import os
import signal
import subprocess
import time

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
        # As long as nothing is evicted, it is the text of a full context.
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

    def test_texts_without_an_end_are_printed_in_their_order(self):
        run = ["run", MODEL, "-p", "Once", "-n", -1, "--temp", 1.2, "--ignore-eos", "--stop", "e",
               "--context", "streaming", "--window", 30, "--no-echo", "-q"]
        alone = [self.ok(*run, "--seed", 5 + i).out for i in range(3)]
        many = self.ok(*run, "--seed", 5, "--count", 3).out
        self.assertEqual(many, "".join(text + "<|endoftext|>\n" for text in alone))

    def peak(self, *arguments):
        """The program's peak memory in bytes."""
        process = subprocess.Popen([driver.BIN, *map(str, arguments)], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        return usage.ru_maxrss * 1024

    def test_memory_does_not_grow_with_the_text(self):
        run = ["run", MODEL, "-p", "Once", "--ignore-eos", "--context", "streaming", "--window", 30,
               "--roofline", "--threads", 1]
        # The stages of 6,000 more steps would take 20 MB.
        self.assertLess(self.peak(*run, "-n", 8000), self.peak(*run, "-n", 2000) + (4 << 20))

    def test_the_memory_plan_is_that_of_the_window(self):
        ask = ["info", "random:stories-42m:q8_0", "--context", "streaming", "--window", 252]
        plan = self.ok_json(*ask)["memory_plan"]
        self.assertEqual((plan["sinks"], plan["window"], plan["ring"]), (4, 252, (17 + 1) * 32))
        self.assertNotIn("ctx", plan)
        self.assertEqual(plan["pool"], (17 + 1) * 32)
        cache = {item["name"]: item["bytes"] for item in plan["items"]}["KV cache"]
        full = self.ok_json(*ask[:2])["memory_plan"]
        self.assertNotIn("window", full)
        whole = {item["name"]: item["bytes"] for item in full["items"]}["KV cache"]
        self.assertEqual(cache * full["pool"], whole * plan["pool"])
        self.assertEqual(self.ok_json(*ask, "--batch", 3)["memory_plan"]["pool"], 3 * plan["pool"])
        self.assertIn("for --context streaming --sinks 4 --window 252 --batch 1 --pool 576",
                      self.ok(*ask).out)
        self.fails(2, *ask[:2], "--window", 252, says=("--window", "--context streaming"))
        self.fails(1, "info", driver.REFERENCE / "gpt2", "--context", "streaming",
                   says="learned positions")

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

    def test_eval_of_several_modes(self):
        text = self.folder / "a <b> & c.txt"
        text.write_text("Once upon a time there was a mill. " * 12)
        page = self.folder / "out.html"
        ask = ["eval", MODEL, "--text", text, "--window", 28]
        modes = ["full", "window", "streaming", "recompute"]
        lines = [driver.json.loads(line) for line in
                 self.ok(*ask, "--context", ",".join(modes), "--json", "--plot", page)
                 .out.splitlines()]
        self.assertEqual([line["context"] for line in lines], modes)
        for line in lines:
            alone = self.ok_json(*ask, "--context", line["context"])
            self.assertEqual(alone.keys(), line.keys())
            for key in ("nll", "tokens", "bytes", "evicted", "ctx", "sinks", "window", "cut"):
                self.assertEqual(alone[key], line[key], (line["context"], key))
            self.assertAlmostEqual(line["tpot_ms"], 1e3 * line["seconds"] / line["tokens"], places=9)
        shown = driver.Page(page)
        self.assertEqual([one["name"] for one in shown.sections("chart")[0]["curves"]], modes)
        for line, row in zip(lines, shown.table("Modes"), strict=True):
            self.assertEqual([row["context"], row["tokens"], row["mean NLL"]],
                             [line["context"], line["tokens"], line["nll"]])
        self.assertIn("a <b> & c.txt", shown.data["lines"][0])
        self.assertEqual(shown.elsewhere, [])
        # As text: a row each, and each mode once.
        table = self.ok(*ask, "--context", "streaming,window,streaming").out.splitlines()
        self.assertEqual([line.split()[0] for line in table], ["context", "streaming", "window"])
        self.assertEqual(table[2].split()[2], f"{lines[1]['nll']:.4f}")
        one = self.ok(*ask, "--context", "streaming", "--plot", page).out
        self.assertIn(f"evicted tokens     {lines[2]['evicted']}\n", one)
        self.assertRegex(one, r"time per token     \d+\.\d{4} ms")
        self.assertEqual([row["context"] for row in driver.Page(page).table("Modes")], ["streaming"])

    def test_samples_are_the_same_in_every_mode(self):
        text = self.folder / "text.txt"
        text.write_text("Once upon a time there was a mill. " * 12)
        ask = ["eval", MODEL, "--text", text, "--window", 28, "--sample", 9]
        lines = [driver.json.loads(line) for line in
                 self.ok(*ask, "--context", "streaming,recompute", "--json").out.splitlines()]
        self.assertEqual([line["sample_tokens"] for line in lines], [9, 9])
        self.assertEqual(lines[1]["sample_nll"], lines[1]["nll"])
        self.assertNotEqual(lines[0]["sample_nll"], lines[0]["nll"])
        self.assertIn("at samples", self.ok(*ask, "--context", "streaming,recompute").out)
        # A mode that cuts documents predicts fewer sampled tokens, and shows no mean for them.
        cut = self.ok(*ask, "--split", "<none>", "--ctx", 64, "--context", "full,recompute").out
        full = next(line for line in cut.splitlines() if line.startswith("full"))
        self.assertEqual(full.split()[3], "-", cut)
        self.fails(2, *ask, "--context", "streaming", says=("--sample", "recompute"))

    def test_a_page_that_cannot_be_written_is_told_at_once(self):
        text = self.folder / "text.txt"
        text.write_text("Once upon a time there was a mill. " * 12)
        self.fails(1, "eval", MODEL, "--text", text, "--plot", self.folder / "no" / "out.html",
                   says="out.html")
        self.fails(2, "eval", MODEL, "--text", text, "--context", "full,endless",
                   says="'endless' is not a choice")
        # An error in one mode is reported before the first one runs.
        self.fails(2, "eval", MODEL, "--text", text, "--context", "full,streaming", "--sinks", 64,
                   says="--sinks")
        self.fails(1, "eval", driver.REFERENCE / "gpt2", "--text", text, "--context",
                   "full,streaming", "--plot", self.folder / "out.html", says="learned positions")
        self.assertEqual(list(self.folder.iterdir()), [text])

    def test_ctrl_c_ends_an_evaluation_in_the_middle_of_a_document(self):
        text = self.folder / "text.txt"
        text.write_text("Once upon a time there was a mill. " * 100000)
        for mode in ("streaming", "recompute"):
            process = subprocess.Popen(
                [driver.BIN, "eval", str(MODEL), "--text", str(text), "--context", mode, "--window", "28",
                 "--plot", str(self.folder / "out.html")],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            try:
                end = time.time() + 60  # wait until it evaluates: the page is created just before
                while not list(self.folder.glob("out.html*")) and time.time() < end:
                    time.sleep(0.01)
                self.let_work(process, 0.2)
                process.send_signal(signal.SIGINT)
                out, _ = process.communicate(timeout=driver.HANG)
            finally:
                process.kill()
                process.communicate()
            self.assertEqual((process.returncode, out), (130, b""), mode)
            self.assertEqual(list(self.folder.iterdir()), [text])

    def test_what_cannot_be_is_one_line(self):
        run = ["run", MODEL, "-p", "x", "--context", "streaming"]
        self.fails(2, *run, "--sinks", 50, "--window", 40, says="--sinks")
        self.fails(2, *run, "--sinks", 64, says="--sinks")
        self.fails(2, *run, "--window", -1, says="--window")
        self.fails(2, *run, "--window", 0, says="--window")
        for option in ("--sinks", "--window"):
            self.fails(2, "run", MODEL, "-p", "x", option, 8, says=(option, "--context streaming"))
        self.fails(2, *run, "--window", 40, "--pool", 32, says="--pool")
        self.fails(2, "run", MODEL, "-p", "x", "--context", "endless", says="--context")
        self.fails(1, "run", driver.REFERENCE / "gpt2", "-p", "x", "--context", "streaming",
                   says="learned positions")
        self.fails(3, *run, "--window", 1 << 29, says="memory")


if __name__ == "__main__":
    driver.main()
