"""millrace chat: slash commands, and line editing."""
import json
import os
import signal
import stat
import termios
import time

import driver
import typed_chat
from typed_chat import CHAT, MODEL, PLAIN


class Commands(driver.CliTest):
    def chat(self, *lines, options=(), code=0, sampled=False):
        """The answers, and standard error after the notes at the beginning."""
        start = (*CHAT[:4], *CHAT[6:], "--temp", 3, "--top-k", 0, "--min-p", 0, "--top-p", 1)
        result = driver.millrace(*(start if sampled else CHAT), *options,
                                 *(() if "--chat-template" in options else PLAIN), "--json",
                                 stdin="\n".join(lines).encode() + b"\n")
        self.assertEqual(result.code, code, result.err)
        err = [line for line in result.err.splitlines()
               if "no chat template" not in line and not line.startswith("note: --ctx")]
        return [json.loads(line) for line in result.out.splitlines()], err

    def test_help_lists_what_there_is(self):
        answers, err = self.chat("/help")
        self.assertEqual(answers, [])
        for word in ("/help", "/exit", "/bye", "/clear", "/save FILE", "/load FILE", "/system", "/seed",
                     "/stats", "//"):
            self.assertIn(word, "\n".join(err))

    def test_leaving(self):
        for word in ("/exit", "/bye", "/exit now"):
            self.assertEqual(len(self.chat("Hello", word, "Hello")[0]), 1)

    def test_an_unknown_word_is_explained_and_not_sent(self):
        for line, says in (("/claer", "/claer: unknown command; did you mean /clear?; /help lists them"),
                           ("/", "/: unknown command; /help lists them"),
                           ("/usr/bin is a folder", "/usr/bin: unknown command; /help lists them")):
            answers, err = self.chat(line, "Hello", code=2)  # a pipe ends there
            self.assertEqual(answers, [])
            self.assertEqual(len(err), 1)
            self.assertIn(says, err[0])
        # A message that begins with two slashes loses one.
        two, _ = self.chat("//usr")
        self.assertEqual(len(two), 1)
        plain, _ = self.chat("xusr")
        self.assertEqual(two[0]["prompt_tokens"], plain[0]["prompt_tokens"])

    def test_words_after_a_command_that_takes_none(self):
        for line in ("/undo 2", "/clear x", "/regen now", "/stats all", "/help me"):
            answers, err = self.chat("Hello", line, "Hello", code=2)
            self.assertEqual(len(answers), 1)
            word, words = line.split()
            self.assertIn(f"{word} = {words}: the command takes no words; enter {word} alone", err[-1])

    def test_the_home_folder_in_names_of_files(self):
        home = {"HOME": str(self.folder)}
        for stdin in (b"Hello\n/save ~/talk.json\n", b"/load ~/talk.json\n/undo\n"):
            result = self.ok(*CHAT, *PLAIN, stdin=stdin, env=home)
        self.assertIn("took back: Hello", result.err)
        self.assertIn(f"2 messages of {self.folder}/talk.json", result.err)
        self.assertIn(f"{self.folder}/nosuch", driver.millrace(*CHAT, *PLAIN, stdin=b"/model ~/nosuch\n", env=home).err)

    def test_system(self):
        want, _ = self.chat("Hello", options=("--system", "Be brief."))
        got, err = self.chat("/system", "/system Be brief.", "/system", "Hello")
        self.assertEqual(got[0]["content"], want[0]["content"])
        self.assertEqual(got[0]["prompt_tokens"], want[0]["prompt_tokens"])
        self.assertEqual(err, ["there is no system prompt", "Be brief."])

    def test_a_system_prompt_that_the_template_refuses(self):
        template = self.folder / "t.jinja"
        template.write_text("{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}"
                            "{% endif %}{{ messages[0].content }}")
        options = ("--chat-template", template)
        _, err = self.chat("/system Be brief.", options=options, code=1)
        self.assertIn("no system role", err[-1])
        path = self.folder / "talk.json"
        path.write_text(json.dumps({"messages": [{"role": "system", "content": "Be brief."}]}))
        self.assertIn("no system role", self.chat(f"/load {path}", options=options, code=1)[1][-1])

    def test_seed(self):
        answers, err = self.chat("/seed 5", "Hello", "/clear", "/seed 6", "Hello", "/clear", "/seed 5",
                                 "/seed", "Hello", sampled=True)
        texts = [answer["content"] for answer in answers]
        self.assertEqual(texts[0], texts[2])
        self.assertNotEqual(texts[0], texts[1])
        self.assertEqual(err, ["seed 5"])
        self.assertIn("/seed = x: is not a whole number", self.chat("/seed x", code=2)[1][-1])

    def test_stats(self):
        _, err = self.chat("Hello", "And you?", "/stats")
        self.assertIn("2 turns in the history", err[0])
        self.assertIn("of 512", err[0])
        self.assertRegex(err[1], r"^2 answers, 12 tokens, \d+\.\d tok/s; seed \d+$")

    def test_save_and_load(self):
        path = self.folder / "talk of ours.json"
        want, err = self.chat("Hello", f"/save {path}", "And you?", options=("--system", "Be brief."))
        self.assertEqual(err, [f"saved {path}"])
        self.assertEqual(path.stat().st_mode & 0o777, 0o600, "a conversation is private")
        saved = json.loads(path.read_text())
        self.assertEqual(saved["model"], str(MODEL))
        self.assertEqual([m["role"] for m in saved["messages"]], ["system", "user", "assistant"])
        self.assertEqual(saved["messages"][2]["content"], want[0]["content"])
        got, err = self.chat("Something else", f"/load {path}", "And you?")
        self.assertEqual(got[1]["content"], want[1]["content"])
        self.assertIn("3 messages", err[0])
        # It may overwrite its own file; a file that is not a conversation is not replaced.
        self.chat("Hello", "And you?", f"/save {path}")
        self.assertEqual(len(json.loads(path.read_text())["messages"]), 4)
        other = self.folder / "other.txt"
        other.write_text("dear diary")
        _, err = self.chat("Hello", f"/save {other}", code=1)
        self.assertIn("is not a saved conversation", err[-1])
        self.assertEqual(other.read_text(), "dear diary")
        self.assertIn("needs the name of a file", self.chat("/save", code=2)[1][-1])

    def test_files_that_are_no_conversation(self):
        path = self.folder / "talk.json"
        turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        for text, problem in (
                ("", "is empty"), ("{", "JSON"), ("[1]", "messages"), ('{"messages": 3}', "messages"),
                ('{"messages": [1]}', "messages[0]"), ('{"messages": [{"role": "user"}]}', "content"),
                ('{"messages": [{"role": 1, "content": "x"}]}', "role"),
                (json.dumps({"messages": turn[:1]}), "no answer"),
                (json.dumps({"messages": turn[1:]}), "messages[0].role"),
                (json.dumps({"messages": turn + turn[1:]}), "messages[2].role"),
                (json.dumps({"messages": [{"role": "tool", "content": ""}, *turn]}), "messages[0].role"),
                ('{"messages": ' + "[" * 100000 + "]" * 100000 + "}", "nested"),
                ('{"messages": [], "messages": []}', "twice")):
            path.write_text(text)
            _, err = self.chat(f"/load {path}", code=1)
            self.assertEqual(len(err), 1, err)
            self.assertIn("talk.json", err[0])
            self.assertIn(problem, err[0])
        self.assertIn("none.json", self.chat(f"/load {self.folder}/none.json", code=1)[1][-1])
        self.assertEqual(self.chat(f"/load {self.folder}", code=1)[0], [])

    def test_what_no_longer_fits_is_said(self):
        lines = b"".join(b"Question %d: tell me of a cat and a dog, please.\n" % i for i in range(12))
        result = self.ok("chat", MODEL, *PLAIN, "-n", 8, "--temp", 0, "-c", 256, stdin=lines)
        said = [line for line in result.err.splitlines() if "was forgotten" in line]
        self.assertGreater(len(said), 1)
        self.assertRegex(said[0], r'^note: 256 tokens of context are full: "Question 0: tell me of '
                                  r'a cat and a dog, please\." was forgotten with its answer$')
        self.assertIn('"Question 1', "".join(said[1:]))


class Typed(typed_chat.TypedTest):
    """On a pseudo-terminal."""

    def test_lines_are_edited(self):
        self.need_editing()
        self.start()
        # Ctrl-A goes to the beginning, Ctrl-E to the end, Ctrl-W deletes a word.
        self.type(b"ystem Be wrong\x17brief.\x01/s\x05\r")
        self.wait_for(b"> ")
        self.type(b"/system\r")
        self.wait_for(b"\nBe brief.")
        self.wait_for(b"> ")
        self.leave()

    def test_ctrl_c_on_a_half_typed_line_throws_only_that_away(self):
        self.need_editing()
        self.start()
        for typed in (b"par", b"x"):
            self.type(typed)
            self.wait_for(typed)
            self.type(b"\x03")
            self.assertNotIn(b"again", self.wait_for(b"> "))
        self.type(b"\x03")  # on an empty line
        self.wait_for(b"(Ctrl-C again or Ctrl-D leaves)")
        self.wait_for(b"> ")
        self.type(b"y")  # and one on a non-empty line, between the two
        self.wait_for(b"y")
        self.type(b"\x03")
        self.wait_for(b"> ")
        self.type(b"/seed 7\r")  # nothing of them is left
        self.wait_for(b"> ")
        self.type(b"/seed\r")
        self.wait_for(b"\nseed 7")
        self.wait_for(b"> ")
        for _ in range(2):
            self.assertIsNone(self.process.poll())
            self.type(b"\x03")
            self.wait_for(b"\n")
        self.assertEqual(self.process.wait(timeout=60), 0)

    def test_lines_are_edited_after_ctrl_z(self):
        self.need_editing()
        self.start()
        self.process.send_signal(signal.SIGSTOP)
        raw = termios.tcgetattr(self.ours)
        self.assertFalse(raw[3] & termios.ICANON)
        termios.tcsetattr(self.ours, termios.TCSANOW, self.modes)  # as the shell does
        self.process.send_signal(signal.SIGCONT)
        end = time.time() + 30
        while termios.tcgetattr(self.ours)[3] & termios.ICANON and time.time() < end:
            time.sleep(0.02)
        self.type(b"ystem Be brief.\x01/s\r")
        self.wait_for(b"\n")
        self.wait_for(b"> ")
        self.type(b"/system\r")
        self.wait_for(b"\nBe brief.")
        self.wait_for(b"> ")
        self.leave()

    def test_history(self):
        self.need_editing()
        self.start()
        self.type("/system Grüße 日本\r".encode())
        self.wait_for(b"> ")
        self.type(b"/system\r")
        self.wait_for("\nGrüße 日本".encode())
        self.wait_for(b"> ")
        self.leave()
        self.assertEqual(self.history.read_text(), "/system Grüße 日本\n/system\n")
        self.assertEqual(stat.S_IMODE(self.history.stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(self.history.parent.stat().st_mode), 0o700)
        # In another conversation, the arrow up twice, and enter.
        self.start()
        self.type(b"\x1b[A\x1b[A")
        self.wait_for("日本".encode())
        self.type(b"\r")
        self.wait_for(b"\n")
        self.wait_for(b"> ")
        self.type(b"/system\r")
        self.wait_for("\nGrüße 日本".encode())
        self.wait_for(b"> ")
        self.leave()

    def test_a_long_history_is_cut_and_a_strange_one_is_no_error(self):
        self.need_editing()
        self.history.parent.mkdir(parents=True)
        self.history.write_text("".join(f"line {i}\n" for i in range(2500)))
        self.start()
        self.type(b"/seed\r")
        self.wait_for(b"\nseed ")
        self.wait_for(b"> ")
        self.leave()
        lines = self.history.read_text().splitlines()
        self.assertEqual((len(lines), lines[-1], lines[0]), (1001, "/seed", "line 1500"))
        self.assertEqual(stat.S_IMODE(self.history.stat().st_mode), 0o600)
        # Not during a conversation: another one may be adding lines.
        self.history.write_text("".join(f"line {i}\n" for i in range(1999)))
        self.start()
        self.type(b"/seed\r")
        self.wait_for(b"\nseed ")
        self.wait_for(b"> ")
        self.leave()
        self.assertEqual(len(self.history.read_text().splitlines()), 2000)
        self.history.unlink()
        os.mkfifo(self.history)
        self.start()
        self.type(b"/seed\r")
        self.wait_for(b"\nseed ")
        self.wait_for(b"> ")
        self.leave()

    def test_a_pipe_leaves_no_history(self):
        self.ok(*CHAT, *PLAIN, stdin=b"Hello\n", env={"XDG_STATE_HOME": str(self.state)})
        self.assertFalse(self.state.exists())

    def test_an_error_does_not_end_it_and_the_terminal_is_put_back(self):
        self.start()
        self.type(f"/load {self.folder}/none.json\r".encode())
        self.wait_for(b"cannot be opened")
        self.wait_for(b"> ")
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(timeout=60), 143)
        self.assertEqual(termios.tcgetattr(self.ours)[3], self.modes[3])  # echo, lines, signals


if __name__ == "__main__":
    driver.main()
