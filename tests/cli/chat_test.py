"""millrace chat: piped and on a terminal."""
import json
import os
import pty
import select
import subprocess
import time

import driver

MODEL = driver.REFERENCE / "llama2"


class Chat(driver.CliTest):
    def test_piped_lines_are_turns(self):
        result = self.ok("chat", MODEL, "-n", 8, "--temp", 0, "--json",
                         stdin=b"Hello there\n\nHow are you?\n/clear\nHello there\n")
        self.assertEqual(result.err, "")
        answers = [json.loads(line) for line in result.out.splitlines()]
        self.assertEqual(len(answers), 3)
        self.assertEqual({a["role"] for a in answers}, {"assistant"})
        self.assertGreater(answers[1]["prompt_tokens"], answers[0]["prompt_tokens"])
        self.assertEqual(answers[2]["content"], answers[0]["content"])  # forgotten, so the same

    def test_plain_output_and_a_last_line_without_newline(self):
        self.assertTrue(self.ok("chat", MODEL, "-n", 4, "--temp", 0, stdin=b"Hello").out)
        self.assertEqual(self.ok("chat", MODEL, stdin=b"").out, "")

    def test_old_turns_are_forgotten(self):
        lines = b"Tell me a story about a cat and a dog, please.\n" * 12
        result = self.ok("chat", MODEL, "-n", 8, "--temp", 0, "--json", "--ctx", 256, stdin=lines)
        answers = [json.loads(line) for line in result.out.splitlines()]
        self.assertEqual(len(answers), 12)
        self.assertGreater(answers[-1]["forgotten_turns"], 0)

    def test_a_message_that_cannot_fit(self):
        result = driver.millrace("chat", MODEL, "--ctx", 64, stdin=b"word " * 400 + b"\n")
        self.assertEqual(result.code, 1)
        self.assertRegex(result.err, r"^millrace: .*--ctx.*\n$")

    def test_ctrl_c_stops_the_answer_not_the_program(self):
        # A terminal of our own: standard input, output and error.
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [driver.BIN, "chat", str(MODEL), "-n", "-1", "--ctx", "100000", "--ignore-eos"],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0))
        os.close(theirs)
        seen = b""

        def wait_for(condition, seconds=60):
            nonlocal seen
            end = time.time() + seconds
            while time.time() < end:
                if condition(seen):
                    return
                ready, _, _ = select.select([ours], [], [], 0.1)
                if ready:
                    try:
                        seen += os.read(ours, 65536)
                    except OSError:
                        break
            self.assertTrue(condition(seen), seen[-500:])

        try:
            wait_for(lambda s: s.endswith(b"> "))
            os.write(ours, b"Hello\n")
            wait_for(lambda s: len(s.partition(b"Hello\r\n")[2]) > 200)
            os.write(ours, b"\x03")
            wait_for(lambda s: s.endswith(b"> ") and b"tok/s" in s)
            os.write(ours, b"\x03")
            wait_for(lambda s: s.endswith(b"> ") and b"again" in s)
            self.assertIsNone(process.poll())
            os.write(ours, b"\x04")
            self.assertEqual(process.wait(timeout=60), 0)
        finally:
            process.kill()
            process.wait()
            os.close(ours)


if __name__ == "__main__":
    driver.main()
