"""millrace chat --context streaming: conversations longer than any context."""
import json
import os
import pty
import select
import signal
import subprocess

import driver

MODEL = driver.SOURCE / "models" / "storyteller.gguf"  # the bundled one
TALK = ("chat", MODEL, "--chat-template", "plain")  # it has none, and would continue texts
STREAM = (*TALK, "--context", "streaming", "--window", 40)
LEFT = "note: the first words have left the window: the model sees the first 4 tokens and the " \
       "latest 40 (--sinks, --window)"


class Streaming(driver.CliTest):
    def chat(self, *lines, options=STREAM, tokens=12):
        result = self.ok(*options, "-n", tokens, "--temp", 0, "--json",
                         stdin="".join(line + "\n" for line in lines).encode())
        return [json.loads(line) for line in result.out.splitlines()], result.err

    def test_it_goes_on_past_the_window(self):
        answers, err = self.chat(*(f"Tell me of cat number {i}." for i in range(30)))
        self.assertEqual(len(answers), 30)
        self.assertNotIn("left the window", err)  # the JSON answers say it
        self.assertEqual(sum(answer["first_left"] for answer in answers), 1)
        for before, answer in zip(answers, answers[1:]):
            self.assertGreater(answer["prompt_tokens"], before["prompt_tokens"])
            self.assertLess(answer["fed_tokens"], 40)  # independent of the history's length
            self.assertGreaterEqual(answer["evicted"], before["evicted"])
        self.assertGreater(answers[-1]["prompt_tokens"], 600)
        self.assertEqual(answers[-1]["evicted"],
                         answers[-1]["prompt_tokens"] + answers[-1]["tokens"] - 1 - 44)
        self.assertEqual({answer["forgotten_turns"] for answer in answers}, {0})
        self.assertNotIn("context_full", {answer["stop_reason"] for answer in answers})

    def test_a_line_says_once_what_left(self):
        lines = b"Tell me of a cat and of a dog.\n" * 6
        said = self.ok(*STREAM, "-n", 12, stdin=lines).err.splitlines()
        self.assertEqual(said.count(LEFT), 1)
        self.assertEqual([line for line in said if "forgotten" in line], [])
        # Once per conversation.
        said = self.ok(*STREAM, "-n", 12, stdin=lines + b"/clear\n" + lines).err.splitlines()
        self.assertEqual(said.count(LEFT), 2)
        # Never in one that fits.
        self.assertNotIn("left the window", self.ok(*TALK, "--context", "streaming", "-n", 12,
                                                    stdin=b"Hello\n").err)

    def test_as_long_as_nothing_leaves_it_is_the_full_context(self):
        full, _ = self.chat("Hello", "And you?", options=TALK)
        streaming, _ = self.chat("Hello", "And you?", options=(*TALK, "--context", "streaming"))
        for one, other in zip(full, streaming):
            self.assertEqual(one["content"], other["content"])
            self.assertEqual(other["evicted"], 0)
            self.assertEqual(set(other) - set(one), {"fed_tokens", "evicted", "first_left"})
            self.assertEqual(one.keys() - other.keys(), set())

    def test_commands(self):
        path = self.folder / "talk.json"
        long = [f"Tell me of cat number {i}." for i in range(8)]
        answers, err = self.chat(*long, f"/save {path}", "Go on", "/clear", long[0], "/stats",
                                 f"/load {path}", "Go on", "/stats")
        self.assertEqual(answers[9]["content"], answers[0]["content"])
        self.assertEqual(answers[9]["evicted"], answers[0]["evicted"])
        self.assertEqual(len(json.loads(path.read_text())["messages"]), 16)  # all of them
        self.assertGreater(answers[10]["fed_tokens"], 100)  # all of it was fed again
        self.assertTrue(answers[10]["first_left"])
        self.assertIn("in view are the first 4 tokens and the latest 40, "
                      f"{answers[10]['evicted']} left the window", err)

    def test_a_message_longer_than_any_context(self):
        answers, _ = self.chat("once upon a time " * 600, "And then?")
        self.assertGreater(answers[0]["evicted"], 2000)
        self.assertLess(answers[1]["fed_tokens"], 40)

    def test_what_cannot_be_is_one_line(self):
        self.fails(1, "chat", driver.REFERENCE / "gpt2", "--context", "streaming", stdin=b"Hello\n",
                   says="learned positions")
        self.fails(2, *STREAM, "--sinks", 50, stdin=b"Hello\n", says="--sinks")
        self.fails(2, "chat", MODEL, "--context", "window", says="--context")

    def test_ctrl_c_ends_an_answer_that_has_no_end(self):
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        process = subprocess.Popen(
            [driver.BIN, *map(str, STREAM), "-n", "-1", "--ignore-eos", "--json"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=theirs)
        os.close(theirs)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        process.stdin.write(b"Hello\n")
        process.stdin.flush()
        self.let_work(process, 1)
        self.assertEqual(select.select([process.stdout], [], [], 0)[0], [])
        process.send_signal(signal.SIGINT)
        first = json.loads(process.stdout.readline())
        self.assertEqual(first["stop_reason"], "cancelled")
        self.assertGreater(first["tokens"], 100)
        process.stdin.write(b"And then?\n")
        process.stdin.flush()
        self.let_work(process, 0.5)
        process.send_signal(signal.SIGINT)
        second = json.loads(process.stdout.readline())
        self.assertEqual(second["stop_reason"], "cancelled")
        self.assertGreater(second["prompt_tokens"], 44)
        self.assertGreater(second["evicted"], 0)
        process.stdin.close()
        self.assertEqual(process.wait(timeout=driver.HANG), 0)


if __name__ == "__main__":
    driver.main()
