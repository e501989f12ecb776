"""millrace chat: piped and on a terminal."""
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import time

import driver

MODEL = driver.REFERENCE / "llama2"
TALK = ("chat", MODEL, "--chat-template", "plain")  # it has none, and would continue texts


class Chat(driver.CliTest):
    def test_piped_lines_are_turns(self):
        result = self.ok(*TALK, "-n", 8, "--temp", 0, "--json",
                         stdin=b"Hello there\n\nHow are you?\n/clear\nHello there\n")
        self.assertEqual(result.err, "")
        answers = [json.loads(line) for line in result.out.splitlines()]
        self.assertEqual(len(answers), 3)
        self.assertEqual({a["role"] for a in answers}, {"assistant"})
        self.assertGreater(answers[1]["prompt_tokens"], answers[0]["prompt_tokens"])
        self.assertEqual(answers[2]["content"], answers[0]["content"])  # no history: equal

    def test_a_model_without_a_template_continues_texts(self):
        lines = b"Once upon a time\nThe dog\nOnce upon a time\n"
        result = self.ok("chat", MODEL, "-n", 8, "--temp", 0, "--json", stdin=lines)
        # In a pipe a message says so, too.
        self.assertRegex(result.err, r"^note: .*llama2 has no chat template.*continues.*--chat-template.*\n$")
        texts = [json.loads(line) for line in result.out.splitlines()]
        for text, words in zip(texts, ("Once upon a time", "The dog", "Once upon a time")):
            run = self.ok_json("run", MODEL, "-p", words, "-n", 8, "--temp", 0)
            self.assertEqual((text["content"], text["prompt_tokens"]),
                             (run["text"], len(run["prompt_ids"])))
        plain = self.ok("chat", MODEL, "-n", 8, "--temp", 0, stdin=lines).out
        self.assertEqual(plain, "".join(text["content"] + "\n" for text in texts))
        # The bundled one, without a name.
        story = self.ok("chat", "-n", 12, "--temp", 0, stdin=b"Once upon a time\n").out
        self.assertEqual("Once upon a time" + story,
                         self.ok("run", "-p", "Once upon a time", "-n", 12, "--temp", 0, "-q").out)
        self.fails_last("--system", "Be brief.", says=("system prompt", "continues", "--chat-template"))

    def fails_last(self, *arguments, says):
        result = driver.millrace("chat", MODEL, *arguments, stdin=b"Hello\n")
        self.assertEqual((result.code, result.out), (2, ""))
        for words in says:
            self.assertIn(words, result.err.splitlines()[-1])

    def test_a_format_is_named(self):
        told = {}
        for name in ("plain", "chatml", "llama2"):
            [told[name]], err = self.prompt_tokens(MODEL, "--chat-template", name)
            self.assertEqual(err, "")
        self.assertGreater(told["chatml"], told["plain"])
        self.assertEqual(len(set(told.values())), 3)

    def test_several_lines_are_a_message(self):
        def said(lines, count=1):
            path = self.folder / "talk.json"
            path.unlink(missing_ok=True)
            self.ok(*TALK, "-n", 1, stdin=lines + f"\n/save {path}\n".encode())
            messages = json.loads(path.read_text())["messages"]
            self.assertEqual(len(messages), 2 * count)
            return messages[-2]["content"]

        self.assertEqual(said(b"one\\\ntwo\\\n\\\nthree"), "one\ntwo\n\nthree")
        self.assertEqual(said(b"a \\\\"), "a \\\\")  # as LaTeX ends a line
        self.assertEqual(said(b'"""\none\n\n/exit\ntwo\\\n"""'), "one\n\n/exit\ntwo\\")
        self.assertEqual(said(b'"""one\ntwo"""'), "one\ntwo")
        self.assertEqual(said(b'"""one"""'), "one")
        self.assertEqual(said(b'""""one" he said"""'), '"one" he said')
        self.assertEqual(said(b'"""\n\n"""\nlast'), "last")  # an empty one is none
        self.assertEqual(said(b'a """quoted""" word'), 'a """quoted""" word')
        self.assertEqual(said(b"/usr\\\n/bin"), "/usr\n/bin")  # two lines are no command
        # Commands take such a text, too.
        self.assertIn("\nBe brief. Be kind.\n", self.ok(
            *TALK, "-n", 1, stdin=b'/system """\nBe brief.\nBe kind.\n"""\n/help\n/system\n').err)
        # The end of the input ends a message.
        for lines in (b"one\\", b'"""one', b'"""\none\n'):
            self.assertEqual(len(self.ok(*TALK, "-n", 1, "--json", stdin=lines).out.splitlines()), 1)

    def test_plain_output_and_a_last_line_without_newline(self):
        self.assertTrue(self.ok("chat", MODEL, "-n", 4, "--temp", 0, stdin=b"Hello").out)
        self.assertEqual(self.ok("chat", MODEL, stdin=b"").out, "")

    def test_input_without_an_end(self):
        with open("/dev/zero", "rb") as zero:
            done = subprocess.run([driver.BIN, "chat", str(MODEL)], stdin=zero, timeout=driver.HANG,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertEqual(done.stderr, b"millrace: standard input: is a device, not a text; give a file "
                                      b"or a pipe\n")

    def test_a_line_has_a_bound(self):
        for line in (b"a" * ((16 << 20) + 1), b"a" * (40 << 20) + b"\n"):
            result = driver.millrace("chat", MODEL, stdin=b"/seed\n" + line)
            self.assertEqual((result.code, result.out), (1, ""))
            self.assertEqual(result.err.splitlines()[-1], "millrace: standard input: a line is longer "
                             "than 16 MiB; end every message with a newline")
        # A line below the limit is read whole, and later lines are separate.
        lines = b"/clear" + b" " * (15 << 20) + b"\nHello\n" + b"/help" + b" " * (15 << 20) + b"\n/seed\n"
        result = self.ok("chat", MODEL, "-n", 1, "--seed", 3, "--json", stdin=lines)
        self.assertEqual(len(result.out.splitlines()), 1)
        self.assertTrue(result.err.endswith("\nseed 3\n"), result.err[-500:])

    def test_old_turns_are_forgotten(self):
        lines = b"Tell me a story about a cat and a dog, please.\n" * 12
        result = self.ok(*TALK, "-n", 8, "--temp", 0, "--json", "--ctx", 256, stdin=lines)
        answers = [json.loads(line) for line in result.out.splitlines()]
        self.assertEqual(len(answers), 12)
        self.assertGreater(answers[-1]["forgotten_turns"], 0)

    def test_a_message_that_cannot_fit(self):
        result = driver.millrace("chat", MODEL, "--ctx", 64, stdin=b"word " * 400 + b"\n")
        self.assertEqual(result.code, 1)
        self.assertRegex(result.err.splitlines()[-1], r"^millrace: .*--ctx")

    def model_with(self, template):
        """A copy of the model with `template`."""
        folder = self.folder / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(MODEL, folder)
        (folder / "chat_template.jinja").write_text(template)
        return folder

    def prompt_tokens(self, *arguments, says=b"Hello\n"):
        result = self.ok("chat", *arguments, "-n", 1, "--temp", 0, "--json", stdin=says)
        return [json.loads(line)["prompt_tokens"] for line in result.out.splitlines()], result.err

    TEMPLATE = ("{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}"
                "{% endfor %}{{ extra }}")

    def test_the_models_own_template_is_executed(self):
        short, err = self.prompt_tokens(self.model_with(self.TEMPLATE))
        self.assertEqual(err, "")
        long, err = self.prompt_tokens(self.model_with("A long prompt of its own. " + self.TEMPLATE))
        self.assertEqual(err, "")
        self.assertGreater(long[0], short[0] + 5)

    def test_a_template_from_a_file_and_its_variables(self):
        template = self.folder / "t.jinja"
        template.write_text(self.TEMPLATE)
        model = self.model_with("Something else, and longer. " + self.TEMPLATE)
        short, err = self.prompt_tokens(model, "--chat-template", template)
        self.assertEqual(err, "")
        own, _ = self.prompt_tokens(model)
        self.assertGreater(own[0], short[0])
        more, _ = self.prompt_tokens(model, "--chat-template", template,
                                     "--template-arg", "extra=some more words at the end")
        self.assertGreater(more[0], short[0])
        self.fails(2, "chat", model, "--template-arg", "nothing", says=("--template-arg", "NAME=VALUE"),
                   stdin=b"Hello\n")

    def test_a_template_file_that_is_wrong_is_an_error(self):
        template = self.folder / "t.jinja"
        template.write_text("{% for m in messages %}\n{{ m | shout }}\n{% endfor %}")
        self.fails(1, "chat", MODEL, "--chat-template", template, stdin=b"Hello\n",
                   says=(str(template), "line 2", "'shout'"))
        self.fails(1, "chat", MODEL, "--chat-template", self.folder / "none.jinja", stdin=b"Hello\n",
                   says="none.jinja")

    def test_a_model_template_that_is_wrong_is_said_and_passed_over(self):
        for template, problem in (("\n{% include 'x' %}", "'include'"), ("\n{{ shout(messages) }}", "'shout'")):
            tokens, err = self.prompt_tokens(self.model_with(template))
            self.assertEqual(len(tokens), 1)
            self.assertRegex(err, rf"^note: .*/chat_template\.jinja: chat template: line 2: .*{problem}"
                                  r".*using the plain .*\n$")

    def test_the_file_of_a_wrong_template_is_named(self):
        model = self.model_with("")
        (model / "chat_template.jinja").unlink()
        path = model / "tokenizer_config.json"
        config = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**config, "chat_template": "{% include 'x' %}"}))
        self.assertIn(f"{path}: chat template: line 1", self.prompt_tokens(model)[1])
        # A GGUF file contains it.
        file = self.folder / "model.gguf"
        self.ok("convert", model, file)
        self.assertIn(f"{file}: chat template: line 1", self.prompt_tokens(file)[1])

    def test_a_template_that_refuses(self):
        model = self.model_with("{% if messages[0].role == 'system' %}"
                                "{{ raise_exception('System role not supported') }}{% endif %}"
                                "{{ messages[0].content }}")
        self.assertEqual(self.prompt_tokens(model)[1], "")
        self.fails(1, "chat", model, "--system", "Be brief.", stdin=b"Hello\n",
                   says=("chat template", "line 1", "System role not supported"))

    def test_special_tokens_come_from_the_template(self):
        model = self.model_with("{{ bos_token }}{{ messages[-1].content }}")
        text, _ = self.prompt_tokens(model, says=b"<s><s><s>\n")
        ids, _ = self.prompt_tokens(model, "--parse-special", says=b"<s><s><s>\n")
        self.assertEqual(ids[0], 4)
        self.assertGreater(text[0], 4)

    def test_turns_with_a_template_find_their_beginning_in_the_cache(self):
        tokens, _ = self.prompt_tokens(self.model_with(self.TEMPLATE), says=b"Hello\nAnd you?\n/clear\nHello\n")
        self.assertGreater(tokens[1], tokens[0])
        self.assertEqual(tokens[2], tokens[0])

    def terminal(self, *arguments):
        """A pseudo-terminal for millrace chat: the process, our end, and a function to wait for
        output."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [driver.BIN, "chat", *map(str, arguments)],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**os.environ, "TERM": "dumb"},
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
        # A slow model, so that the second Ctrl-C comes before the first is handled.
        process, ours, wait_for = self.terminal("random:stories-110m:f32", "-n", -1, "--ignore-eos")
        try:
            wait_for(lambda s: s.endswith(b"> "))
            os.write(ours, b"Hello\n")
            wait_for(lambda s: len(s.partition(b"Hello\r\n")[2]) > 10)
            for _ in range(2):
                process.send_signal(signal.SIGINT)
                time.sleep(0.002)
            wait_for(lambda s: s.partition(b"Hello\r\n")[2].endswith(b"> "))
            self.assertIsNone(process.poll())
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=driver.HANG), 143)
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
            self.assertEqual(process.wait(timeout=driver.HANG), 0)
        finally:
            process.kill()
            process.wait()
            os.close(ours)


if __name__ == "__main__":
    driver.main()
