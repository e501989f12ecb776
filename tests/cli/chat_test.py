"""millrace chat: piped and on a terminal."""
import json
import os
import pty
import select
import signal
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

    def terminal(self, *arguments):
        """A terminal of its own for millrace chat: the process, our end, and a waiter."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [driver.BIN, "chat", *map(str, arguments)],
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

        return process, ours, wait_for

    def test_ctrl_c_twice_stops_the_answer_only(self):
        # A model slow enough for the second to come while the first is not yet seen.
        process, ours, wait_for = self.terminal("random:stories-110m:f32", "-n", -1, "--ignore-eos")
        try:
            wait_for(lambda s: s.endswith(b"> "))
            os.write(ours, b"Hello\n")
            wait_for(lambda s: len(s.partition(b"Hello\r\n")[2]) > 10)
            for _ in range(2):
                process.send_signal(signal.SIGINT)
                time.sleep(0.002)
            wait_for(lambda s: s.endswith(b"> ") and b"tok/s" in s)
            self.assertIsNone(process.poll())
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=60), 143)
        finally:
            process.kill()
            process.wait()
            os.close(ours)

    def test_ctrl_c_stops_the_answer_not_the_program(self):
        process, ours, wait_for = self.terminal(MODEL, "-n", "-1", "--ctx", "100000",
                                                "--ignore-eos")
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
