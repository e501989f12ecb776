"""millrace chat on a terminal: what is typed and pasted, and how answers look."""
import json
import re
import signal
import termios
import time

import driver
import typed_chat
from screen import Screen
from typed_chat import CHAT, COLOUR, MODEL, PLAIN

STORY = ("chat", "-n", 120, "--temp", 0, "-c", 512)
SAMPLING = ("tokens", "temp", "top-k", "top-p", "min-p", "repeat-penalty", "repeat-window", "seed", "stop",
            "stop-id", "min-tokens", "ignore-eos")


class Settings(driver.CliTest):
    """In a pipe: /set, /regen, /undo, /model, /?."""

    def chat(self, *lines, options=(), code=0, command=(*CHAT, *PLAIN)):
        result = driver.millrace(*command, *options, "--json", stdin="\n".join(lines).encode() + b"\n")
        self.assertEqual(result.code, code, result.err)
        said = [line for line in result.err.splitlines() if not line.startswith("note: --ctx")]
        return [json.loads(line) for line in result.out.splitlines()], said

    def test_question_mark_is_help(self):
        _, asked = self.chat("/?")
        self.assertEqual(asked, self.chat("/help")[1])
        text = "\n".join(asked)
        for word in ("/regen", "/undo", "/set", "/model", '"""', "Tab"):
            self.assertIn(word, text)

    def test_set_shows_every_sampling_option(self):
        _, shown = self.chat("/set", options=("--seed", 7, "--stop", "###", "--top-p", 0.5))
        values = {line.split()[0]: line.split()[1] for line in shown}
        self.assertEqual(tuple(values), SAMPLING)
        # Every option of that group of the command line is one of them.
        help_text = self.ok("chat", "--help-all").out
        group = re.search(r"\nSampling:?\n(.*?)\n\n", help_text, re.S)[1]
        self.assertEqual({name for name in re.findall(r"--([a-z-]+)", group)}
                         - {"max-tokens", "temperature", "repetition-penalty", "repeat-last-n"} - set(SAMPLING), set())
        self.assertEqual((values["tokens"], values["temp"], values["top-p"], values["seed"], values["stop"],
                          values["ignore-eos"]), ("6", "0", "0.5", "7", '"###"', "on"))

    def test_set_is_as_on_the_command_line(self):
        for name, value, option in (("temperature", "2", "--temp"), ("temp", "1.5", "--temp"),
                                    ("top_k", "3", "--top-k"), ("--top-p", "0.3", "--top-p"),
                                    ("min-p", "0.2", "--min-p"), ("repeat-penalty", "1.7", "--repeat-penalty"),
                                    ("seed", "11", "--seed"), ("n", "3", "-n"), ("max-tokens", "4", "-n")):
            base = ["chat", MODEL, *PLAIN, "-c", 512, "--ignore-eos"]
            given = {"--temp": 1.2, "-n": 20, "--seed": 5, "--top-k": 0}
            flat = [word for pair in given.items() for word in pair]
            asked = [word for pair in {**given, option: value}.items() for word in pair]
            [want], _ = self.chat("Hello", command=(*base, *asked))
            for line in (f"/set {name} {value}", f"/set {name}={value}"):
                [got], said = self.chat(line, "Hello", command=(*base, *flat))
                self.assertEqual(got["content"], want["content"], line)
                self.assertIn(value, said[-1])
            [other], _ = self.chat("Hello", command=(*base, *flat))
            if name not in ("min-p",):  # it may change nothing
                self.assertNotEqual(other["content"], want["content"], name)

    def test_set_words(self):
        _, said = self.chat("/set stop", '/set stop "a b"', "/set stop c", '/set stop ""', "/set stop-id 5",
                            "/set stop-id 7", '/set stop-id ""', "/set ignore-eos off", "/set ignore_eos")
        self.assertEqual([line.split()[0] for line in said], ["stop"] * 4 + ["stop-id"] * 3 + ["ignore-eos"] * 2)
        for line, value in zip(said, ('""', '"a b"', '"a b" "c"', '""', "5", "5 7", '""', "off", "off")):
            self.assertIn(f" {value} ", line)
        [whole] = self.chat("/set n 60", "Hello")[0]
        [stop, *_] = [c for c in whole["content"] if c.isascii() and c.isalnum()]
        [ended] = self.chat("/set n 60", f"/set stop {stop}", "Hello")[0]
        self.assertEqual(ended["content"], whole["content"].partition(stop)[0])
        self.assertEqual(ended["stop_reason"], "stop_string")
        # -1: until the context is full.
        answers, _ = self.chat("/set n -1", "Hello")
        self.assertEqual(answers[0]["stop_reason"], "context_full")

    def test_what_cannot_be_set_is_explained(self):
        for line, says in (("/set temprature 1", "unknown setting; did you mean temperature?; /set shows"),
                           ("/set top-p 7", "/set top-p: must be from 0 to 1, not 7"),
                           ("/set top-k 1.5", "'1.5' is not a whole number"),
                           ("/set temp hot", "/set temp: 'hot' is not a number"),
                           ("/set ignore-eos maybe", "/set ignore-eos = maybe: is not off or on"),
                           ("/set stop-id 999999", "/set stop-id = 999999: is not a token of the model; its tokens"),
                           ("/set stop_id -1", "/set stop-id = -1: is not a token of the model"),
                           ("/regen", "/regen: there is no answer yet"),
                           ("/undo", "/undo: there is no turn")):
            answers, said = self.chat(line, "Hello", code=2)
            self.assertEqual(answers, [])
            self.assertIn(says, said[-1])

    def test_a_stop_id_is_a_token_of_the_model(self):
        vocab = json.loads(self.ok("info", MODEL, "--json").out)["model"]["vocab"]
        answers, said = self.chat(f"/set stop-id {vocab - 1}", "Hello", f"/set stop-id {vocab}", code=2)
        self.assertEqual(len(answers), 1)
        self.assertIn(f"its tokens are 0 to {vocab - 1}", said[-1])
        # Another model with fewer tokens goes on without it.
        answers, said = self.chat(f"/set stop-id {vocab}", "/set n 3", f"/model {MODEL}", "Hello",
                                  command=("chat", "storyteller", "--temp", 0, "--ignore-eos", "-c", 512))
        self.assertEqual(answers[0]["tokens"], 3)
        self.assertIn(f"note: /set stop-id = {vocab}: is not a token of the model; its tokens are 0 to {vocab - 1}",
                      said)

    def test_regen_is_another_answer_to_the_same(self):
        path = self.folder / "talk.json"
        sampled = ("--seed", 3)
        lines = ("Hello", "And you?", "/regen", "/regen", f"/save {path}", "Go on")
        base = ("chat", MODEL, *PLAIN, "-n", 6, "--temp", 2, "--top-k", 0, "-c", 512, "--ignore-eos")
        answers, _ = self.chat(*lines, options=sampled, command=base)
        contents = [answer["content"] for answer in answers]
        self.assertEqual(len(set(contents[1:4])), 3)
        self.assertEqual({answer["prompt_tokens"] for answer in answers[1:4]}, {answers[1]["prompt_tokens"]})
        messages = [one["content"] for one in json.loads(path.read_text())["messages"]]
        self.assertEqual(messages, ["Hello", contents[0], "And you?", contents[3]])
        # The seed counts on, so that every answer can be had again.
        again, _ = self.chat("Hello", "/seed 5", "And you?", options=sampled, command=base)
        self.assertEqual(again[1]["content"], contents[3])

    def test_undo_takes_the_last_turn_back(self):
        want, _ = self.chat("Hello", "And you?")
        got, said = self.chat("Hello", "Something else", "/undo", "And you?", "/undo", "/undo", "Hello")
        self.assertEqual(got[2]["content"], want[1]["content"])
        self.assertEqual(got[2]["prompt_tokens"], want[1]["prompt_tokens"])
        self.assertEqual(got[3]["prompt_tokens"], want[0]["prompt_tokens"])
        self.assertEqual(said, ["took back: Something else", "took back: And you?", "took back: Hello"])

    def test_model(self):
        other = self.folder / "other.gguf"
        self.ok("convert", MODEL, other, "--type", "q8_0")
        template = self.folder / "model"
        self.ok("convert", MODEL, template)
        (template / "chat_template.jinja").write_text(
            "{{ bos_token }}{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}")
        # The conversation stays, and the new model answers in its own format. What was set stays.
        path = self.folder / "talk.json"
        answers, said = self.chat("/set seed 9", "/set n 3", "Hello", f"/model {template}", "/model", "And you?",
                                  "/set seed", f"/save {path}", options=("--system", "Be brief."))
        self.assertEqual(len(answers), 2)
        self.assertEqual(answers[1]["tokens"], 3)
        self.assertIn(f"{template}: its own template", said)
        self.assertIn("seed", said[-2])
        self.assertIn(" 9 ", said[-2])
        saved = json.loads(path.read_text())
        self.assertEqual(saved["model"], str(template))
        self.assertEqual([m["content"] for m in saved["messages"]],
                         ["Be brief.", "Hello", answers[0]["content"], "And you?", answers[1]["content"]])
        # As if the other model had been told the conversation.
        again, _ = self.chat(f"/load {path}", "/undo", "And you?", options=("-n", 3),
                             command=("chat", template, "--temp", 0, "-c", 512, "--ignore-eos"))
        self.assertEqual(again[0]["content"], answers[1]["content"])
        # A model that continues texts has no conversation to go on with.
        _, said = self.chat("Hello", f"/model {other}", "/stats")
        self.assertIn("note: the conversation is cleared: a text is not one", said)
        self.assertIn("0 turns in the history", said[-2])
        # In a pipe a model that is not there ends the program.
        _, said = self.chat("Hello", "/model nosuch", "Hello", code=1)
        self.assertIn("nosuch: no file, folder or bundled model", said[-1])


class Typing(typed_chat.TypedTest):
    def setUp(self):
        super().setUp()
        self.need_editing()

    def pastes_are_marked(self):
        """What the terminal was told last."""
        return self.all.rfind(b"\x1b[?2004h") > self.all.rfind(b"\x1b[?2004l")

    def paste(self, text):
        self.type(b"\x1b[200~" + text + b"\x1b[201~" if self.pastes_are_marked() else text)

    def ask_slowly(self):
        """Stops the program while it answers."""
        self.start(command=("chat", MODEL, *PLAIN, "-n", 1000, "--temp", 0, "-c", 20000, "--ignore-eos"))
        self.type(b"Hello\r")
        self.wait_for(b"Hello\r\n")
        self.assertTrue(driver.eventually(lambda: self.read(0.1) and self.seen))
        self.process.send_signal(signal.SIGSTOP)
        self.settle(0.2)
        self.assertNotIn(b"tok/s", self.seen)

    # ---- messages of several lines ----

    def test_what_is_pasted_is_one_message(self):
        self.start()
        self.assertTrue(self.pastes_are_marked())
        self.paste("first 日本\r\tsecond\r/exit\n\nlast\r".encode())
        self.settle()
        self.assertIn(b"second", self.seen)
        self.assertNotIn(b"tok/s", self.seen)  # nothing was sent
        self.type(b", and typed")
        self.say(b"")
        self.assertEqual(self.questions(), ["first 日本\n\tsecond\n/exit\n\nlast, and typed"])
        self.paste(b"one line\n")
        self.say(b"")
        self.assertEqual(self.questions()[1:], ["one line"])
        self.leave()

    def test_what_is_pasted_has_no_marks(self):
        self.start()
        texts = ['"""Docstring."""\n\nimport os', '"""Docstring."""', "C:\\Users\\me\\",
                 "#define TWO \\\n  2 \\", '/system """\nBe brief.\n"""', 'f("""\na"""']
        for text in texts:
            self.paste(text.encode().replace(b"\n", b"\r"))
            self.say(b"")
        self.assertEqual(self.questions(), texts)
        self.leave()

    def test_typed_marks_beside_what_is_pasted(self):
        self.start()
        self.type(b'"""')
        self.paste(b'a\rb')
        self.type(b"\r")
        self.wait_for(b"... ")
        self.paste(b'c"""')
        self.type(b"\r")
        self.wait_for(b"... ")
        self.say(b'"""')
        self.paste(b"d\re")
        self.type(b"\\\r")
        self.wait_for(b"... ")
        self.say(b"f")
        self.paste(b'"""g')
        self.type(b'\x15"""\r')  # Ctrl-U clears the line
        self.wait_for(b"... ")
        self.say(b'h"""')
        self.assertEqual(self.questions(), ['a\nb\nc"""', "d\ne\nf", "h"])
        self.leave()

    def test_a_message_that_looks_marked_is_recalled_as_it_was(self):
        self.start()
        texts = ['"""Docstring."""\n\nimport os', "C:\\Users\\me\\"]
        for text in texts:
            self.paste(text.encode().replace(b"\n", b"\r"))
            self.say(b"")
            self.type(b"\x1b[A")  # arrow up
            self.say(b"")
        self.assertEqual(self.questions(), [texts[0], texts[0], texts[1], texts[1]])
        self.leave()

    def test_a_paste_during_an_answer_is_one_message(self):
        text = "first\nsecond\n" + "x" * 5000 + "\n\x04last"
        self.ask_slowly()
        self.paste(text.encode().replace(b"\n", b"\r"))
        self.settle(0.2)
        self.process.send_signal(signal.SIGCONT)
        answer = self.wait_for(b"tok/s")
        self.assertEqual(answer.count(b"first"), 0)  # it waits for the prompt
        self.wait_for(b"last")
        self.type(b"!")
        self.say(b"")
        self.assertEqual(self.questions(), ["Hello", text.replace("\x04", "") + "!"])
        self.leave()

    def test_the_terminal_is_put_back(self):
        def exits(code):
            self.assertEqual(self.process.wait(timeout=60), code)
            self.settle()
            self.assertFalse(self.pastes_are_marked())
            self.assertEqual(termios.tcgetattr(self.ours)[3], self.modes[3])  # echo, lines, signals

        for keys in ((b"\x04",), (b"/exit\r",), (b"\x03", b"\x03")):
            self.start()
            for key in keys:
                self.type(key)
                self.settle()
            exits(0)
        self.start()
        self.process.send_signal(signal.SIGTERM)
        exits(143)
        self.ask_slowly()
        self.assertTrue(self.pastes_are_marked())
        self.process.send_signal(signal.SIGTERM)
        self.process.send_signal(signal.SIGCONT)
        exits(143)

    def test_a_paste_is_text_and_nothing_that_a_terminal_obeys(self):
        self.start()
        self.paste(b"a\x1b[31mb\x07\x08c\xff\xfed\x01")
        self.say(b"")
        self.assertEqual(self.questions(), ["a[31mbc\ufffd\ufffdd"])
        self.paste(b"/undo")  # a command is one, however it came
        self.say(b"")
        self.assertEqual(self.questions(), [])
        self.leave()

    def test_a_long_paste(self):
        self.start(command=("chat", MODEL, *PLAIN, "-n", 4, "--context", "streaming"))
        lines = [f"line {i} of many" for i in range(300)]
        self.paste("\r".join(lines).encode())
        self.say(b"")
        self.assertEqual(self.questions(), ["\n".join(lines)])
        self.leave()

    def test_lines_go_on(self):
        self.start()
        self.type(b"one\\\r")
        self.wait_for(b"... ")
        self.say(b"two")
        self.assertEqual(self.questions(), ["one\ntwo"])
        self.type(b'"""\r')
        self.wait_for(b"... ")
        self.type(b"/exit\r")
        self.wait_for(b"... ")
        self.say(b'end"""')
        self.assertEqual(self.questions()[1:], ["/exit\nend"])
        # Ctrl-C throws all of it away, also at an empty line, and says nothing of leaving.
        self.type(b"three\\\r")
        self.wait_for(b"... ")
        self.type(b"\x03")
        self.assertNotIn(b"again", self.wait_for(b"> "))
        self.say(b"four")
        self.assertEqual(self.questions()[2:], ["four"])
        self.leave()

    def test_the_history_has_messages(self):
        self.start()
        self.paste(b"one\rtwo")
        self.say(b"")
        self.leave()
        self.assertEqual(self.history.read_bytes().splitlines()[0:2], [b"one", b"two"])
        self.assertEqual(self.history.read_bytes().split(b"\n")[0], b"one\rtwo")
        self.start()
        self.type(b"\x1b[A")
        self.wait_for(b"two")
        self.say(b"!")
        self.assertEqual(self.questions(), ["one\ntwo!"])
        self.leave()

    # ---- Tab ----

    def completed(self, typed):
        """The line after Tab."""
        self.type(typed + b"\t")
        self.settle()
        line = self.screen().text().splitlines()[-1]
        self.type(b"\x15")  # Ctrl-U clears it
        self.settle(0.2)
        return line

    def test_tab_completes(self):
        self.start()
        self.assertEqual(self.completed(b"/he"), "> /help")
        self.assertEqual(self.completed(b"/re"), "> /regen")
        self.assertEqual(self.completed(b"/set temper"), "> /set temperature")
        self.assertEqual(self.completed(b"/set ignore-eos on"), "> /set ignore-eos on")
        self.assertEqual(self.completed(b"/set to"), "> /set to")  # tokens, top-k, top-p
        self.assertEqual(self.completed(b"/set repeat"), "> /set repeat-")  # as far as they agree
        self.assertEqual(self.completed(b"/model storyteller-"), "> /model storyteller-diffusion")
        (self.folder / "a folder of mine").mkdir()
        (self.folder / "a folder of mine" / "größe.gguf").write_text("")
        (self.folder / "a folder of mine" / ".hidden").write_text("")
        for command in ("model", "load", "save"):
            line = f"/{command} {self.folder}/a f"
            self.assertTrue(self.completed(line.encode()).endswith("a folder of mine/"))
            self.assertTrue(self.completed(f"{line}older of mine/".encode()).endswith("/größe.gguf"))
        self.assertEqual(self.completed(b"/load ~/a f"), "> /load ~/a folder of mine/")
        self.assertEqual(self.completed(b"words"), "> words")  # nothing is known of them
        self.assertEqual(self.completed(b"/nosuch"), "> /nosuch")
        self.leave()

    def test_tab_lists_what_there_is(self):
        self.start()
        self.type(b"/s\t")
        self.settle()
        rows = self.screen().text().splitlines()
        self.assertEqual(rows[-1], "> /s")
        self.assertEqual(rows[-2].split(), ["/save", "/seed", "/set", "/stats", "/system"])
        self.type(b"et seed 5\r")  # the line goes on
        self.wait_for(b"> ")
        self.say(b"/seed")
        self.assertIn(b"seed 5", self.all)
        self.leave()

    # ---- models ----

    def test_another_model(self):
        self.start()
        self.say(b"Hello")
        self.assertIn(str(MODEL).encode(), self.say(b"/model"))
        self.assertIn(b"nosuch: no file", self.say(b"/model nosuch"))
        self.assertEqual(self.questions(), ["Hello"])  # nothing has changed
        broken = self.folder / "broken"
        self.ok("convert", MODEL, broken)
        weights = broken / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        said = self.say(f"/model {broken}".encode())
        self.assertIn(b"model.safetensors", said)
        self.assertIn(str(MODEL).encode(), self.say(b"/model"))
        self.assertEqual(self.questions(), ["Hello"])
        # To one that continues texts.
        said = self.say(b"/model storyteller")
        self.assertIn(b"continues texts", said)
        self.assertIn(b"cleared", said)
        self.assertEqual(self.questions(), [])
        self.leave()

    # ---- a model that continues texts ----

    def test_beginnings_are_offered(self):
        self.start(command=STORY, columns=200)
        self.assertIn(b"continues texts", self.all)
        self.assertIn(b"no chat template", self.all)
        beginnings = re.findall(rb"\n  (\S[^\r]*)", self.all)
        self.assertGreater(len(beginnings), 2)
        self.assertEqual(self.completed(beginnings[0][:6]), "> " + beginnings[0].decode())
        self.type(b"\t")  # all of them
        self.settle()
        rows = self.screen(200).text().splitlines()
        for beginning in beginnings:
            self.assertIn(beginning.decode(), "\n".join(rows[-6:]))
        # The text is shown from its beginning on.
        self.say(beginnings[1])
        shown = self.screen(200).text()
        self.assertIn("\n" + beginnings[1].decode() + " ", shown)
        run = self.ok("run", "-p", beginnings[1].decode(), *STORY[1:], "-q").out
        [text] = [m["content"] for m in self.messages() if m["role"] == "assistant"]
        self.assertEqual(beginnings[1].decode() + text, run.rstrip("\n"))
        self.leave()

    # ---- the look of answers ----

    def answer_rows(self, columns, **environment):
        """The rows of an answer, and the words of the text."""
        self.start(command=STORY, columns=columns, **environment)
        self.say(b"Once upon a time")
        self.settle(0.2)
        rows = self.screen(columns).text().splitlines()
        [text] = [m["content"] for m in self.messages() if m["role"] == "assistant"]
        self.leave()
        begin = max(i for i, row in enumerate(rows) if row == "> Once upon a time")
        end = max(i for i, row in enumerate(rows) if "tok/s" in row)
        return rows[begin + 1:end], "Once upon a time" + text

    def test_answers_are_broken_between_words(self):
        for columns in (30, 57):
            rows, text = self.answer_rows(columns)
            want = []
            for line in text.split("\n"):
                want.append("")
                for word in line.split():
                    fits = len(want[-1]) + 1 + len(word) <= columns
                    if want[-1] and not fits:
                        want.append(word)
                    else:
                        want[-1] += (" " if want[-1] else "") + word
            while want and not want[-1]:
                want.pop()
            self.assertGreater(len(want), 5)
            self.assertEqual([row for row in rows if "tok/s" not in row][:len(want)], want)

    def test_nothing_is_broken_elsewhere(self):
        path = self.folder / "out"
        story = self.ok("run", "-p", "Once upon a time", *STORY[1:], "-q").out
        self.ok("/bin/sh", "-c", f"echo Once upon a time | {driver.BIN} " + " ".join(map(str, STORY))
                + f" > {path}", program="/usr/bin/env", env={"TERM": "xterm", "COLUMNS": "30"})
        self.assertEqual("Once upon a time" + path.read_text(), story)
        # A terminal that moves no cursor breaks its rows itself.
        self.start(command=STORY, columns=30, TERM="dumb")
        self.say(b"Once upon a time")
        self.settle(0.2)
        [text] = [m["content"] for m in self.messages() if m["role"] == "assistant"]
        self.assertIn(text.strip().encode().replace(b"\n", b"\r\n"), self.all)
        self.leave()

    def test_colours(self):
        self.start(NO_COLOR="", ready=b"\x1b[1;32m>\x1b[0m ")
        self.type(b"/load nosuch\r")
        self.wait_for(b"\x1b[1;31mmillrace:\x1b[0m")
        self.settle()
        self.type(b"Hello\r")
        self.wait_for(b"\x1b[2m[")  # the line of figures
        self.settle()
        self.assertEqual(self.screen().text().splitlines()[-1], ">")
        self.process.kill()

    def test_no_colours(self):
        for environment in ({"NO_COLOR": "1"}, {"NO_COLOR": "", "TERM": "dumb"}, {"NO_COLOR": "", "TERM": ""}):
            self.start(**environment)
            self.say(b"/load nosuch")
            self.say(b"Hello")
            self.settle()
            self.assertEqual(COLOUR.findall(self.all), [], environment)
            if environment.get("TERM", "xterm") != "xterm":
                self.assertNotIn(b"\x1b[?2004h", self.all)
            self.leave()
        # Not into a pipe either.
        result = driver.millrace(*CHAT, *PLAIN, stdin=b"/load nosuch\n", env={"TERM": "xterm", "NO_COLOR": ""})
        self.assertNotIn("\x1b", result.err + result.out)

    # ---- another size ----

    def resized(self, text, columns, terminal=Screen, pasted=False):
        """The terminal after it was resized while a line was on it, and as if there were no line."""
        self.start(columns=columns[0])
        self.settle(0.2)
        shown, empty = terminal(columns[0]), terminal(columns[0])
        empty.feed(self.all.decode("utf-8", "replace"))
        self.paste(text) if pasted else self.type(text)
        for width in columns[1:]:
            self.settle()
            shown.feed(self.all.decode("utf-8", "replace"))
            self.all = b""
            shown.resize(width)
            empty.resize(width)
            self.resize(width)
        self.settle()
        shown.feed(self.all.decode("utf-8", "replace"))
        self.all = b""
        return shown, empty

    def drawn_once(self, text, columns, **how):
        """Its rows; nothing else may have changed."""
        shown, empty = self.resized(text.encode(), columns, pasted=True, **how)
        seen, before = shown.text(), empty.text()
        self.type(b"\x15")  # Ctrl-U
        self.settle(0.2)
        self.assertEqual(shown.feed(self.all.decode("utf-8", "replace")).text(), before, (columns, seen))
        self.assertTrue(seen.startswith(before))
        self.leave()
        return seen[len(before) - 1:].splitlines()

    def test_resizing_draws_the_line_anew(self):
        text = b"a line that is longer than the narrow one of the terminals, by words"
        for columns in ((80, 30), (30, 80), (80, 30, 50), (30, 21, 100)):
            rows = self.resized(text, columns)[0].text().splitlines()
            self.say(b"")
            self.assertEqual(self.questions(), [text.decode()])
            self.leave()
            line = "> " + text.decode()
            want = [line[i:i + columns[-1]].rstrip() for i in range(0, len(line), columns[-1])]
            self.assertEqual(rows[-len(want):], want, columns)
            self.assertEqual(sum("> a line" in row for row in rows), 1, columns)
        wide = "日本語の行がある。" * 5
        rows = self.resized(wide.encode(), (80, 31))[0].text().splitlines()
        self.assertEqual("".join(rows[-4:]).count("日本語の行がある。"), 5)
        self.assertEqual(sum("> 日" in row for row in rows), 1)

    def test_resizing_leaves_no_stale_rows(self):
        class Keeps(Screen):
            """Does not break rows anew."""

            def resize(self, columns):
                self.columns = columns
                return self

        class Saves(Screen):
            """Scrolls what it is told to clear from its first place on, as tmux does."""

            def obey(self, numbers, letter, single):
                if letter == "J" and (self.row, self.column) == (self.top(), 0):
                    self.lines += [[] for _ in range(self.rows)]
                    self.row = self.top()
                super().obey(numbers, letter, single)

        for terminal in (Screen, Keeps):
            rows = self.drawn_once("日本語" * 10, (25, 60), terminal=terminal)
            self.assertEqual(rows, ["> " + "日本語" * 9 + "日本", "語"])
            words = "a few words, of which some end where a row does"
            for columns in ((21, 60), (14, 15, 17)):
                rows = self.drawn_once(words, columns, terminal=terminal)
                line = "> " + words
                self.assertEqual(rows, [line[i:i + columns[-1]].rstrip() for i in range(0, len(line), columns[-1])])
        # The last one fills the screen when it is broken anew.
        for first, n, terminal in ((51, 1, Screen), (51, 58, Screen), (51, 120, Screen), (76, 179, Saves)):
            lines = ["a" * first, "b" * n, "c" * 45, "d" * n]
            for columns in ((60, 25, 60), (60, 40, 61)):
                rows = self.drawn_once("\r".join(lines), columns, terminal=terminal)
                want = [line[i:i + columns[-1]] for line in ["> " + lines[0], *lines[1:]]
                        for i in range(0, len(line) + 1, columns[-1])]  # libedit ends a full row
                self.assertEqual(rows, want[:-1] if want[-1] == "" else want, (n, columns))


class Progress(typed_chat.TypedTest):
    """A model that takes seconds to read a prompt."""

    SLOW = ("random:stories-110m:f32", "--device", "cpu", "-t", 1)

    def test_reading_the_prompt(self):
        words = "word " * 150  # 750 bytes, of which each is a token
        for command, keys in ((("chat", *self.SLOW, "-n", 2, *PLAIN), words.encode() + b"\r"),
                              (("run", *self.SLOW, "-n", 2, "-p", words), b""),
                              (("profile", *self.SLOW, "-n", 2, "-p", words), b"")):
            self.start(command=command, ready=b"> " if keys else b"")
            self.type(keys)
            self.wait_for(b"tok/s")
            told = re.findall(rb"\x1b\[Kreading the prompt (\d+%|\.\.\.)", self.all)
            parts = [int(part[:-1]) for part in told if part.endswith(b"%")]
            self.assertGreater(len(parts), 0, self.all[-400:])
            self.assertEqual(parts, sorted(parts))
            self.assertLess(parts[0], 100)
            # It is gone before the answer begins.
            after = self.all.rpartition(b"reading the prompt")[2]
            self.assertRegex(after, rb"^[^\x1b]*\r\x1b\[K")
            self.assertNotIn("reading", self.screen().text())
            self.process.kill()

    def test_undo_takes_back_a_message_without_an_answer(self):
        self.need_editing()
        self.start(command=("chat", *self.SLOW, "-n", 2, "--temp", 0, "-c", 1024, *PLAIN))
        self.say(b"Hello")

        def cancelled():
            self.type(b"word " * 150 + b"\r")
            self.wait_for(b"reading the prompt")
            self.type(b"\x03")
            self.assertNotIn(b"tok/s", self.wait_for(b"> "))  # there is nothing to measure

        cancelled()
        self.assertIn(b"took back: word word", self.say(b"/undo"))
        self.assertEqual(self.questions(), ["Hello"])
        cancelled()  # it is forgotten where another conversation is loaded
        self.say(f"/load {self.folder}/typed.json".encode())
        self.assertIn(b"took back: Hello", self.say(b"/undo"))
        self.assertIn(b"there is no turn", self.say(b"/undo"))
        self.leave()

    def test_not_into_a_pipe(self):
        result = self.ok("run", *self.SLOW, "-n", 2, "-p", "word " * 60)
        self.assertNotIn("reading", result.err + result.out)

    def test_what_takes_long_is_named(self):
        """A program that sleeps while it works has taken long, whatever the work."""
        for command, names in ((("run", *self.SLOW, "-n", 1, "-p", "a"), rb"preparing weights|opening the model"),
                               ((driver.LAB, "story", "write", "--stories", 200000, "--out", self.folder / "stories"),
                                rb"writing stories|preparing")):
            self.start(command=command, ready=b"")
            time.sleep(0.05)
            self.process.send_signal(signal.SIGSTOP)
            time.sleep(1)
            self.process.send_signal(signal.SIGCONT)
            self.assertTrue(driver.eventually(
                lambda: self.read(0.1) and re.search(rb"\r\x1b\[K(" + names + rb")", self.all)), self.all)
            self.process.kill()

    def test_the_line_fits_a_narrow_terminal(self):
        self.start(command=("run", *self.SLOW, "-n", 1, "-p", "word " * 150), columns=12, ready=b"")
        self.wait_for(b"tok/s")
        lines = re.findall(rb"\r\x1b\[K([^\r\x1b]+)(?=\r\x1b\[K)", self.all)
        self.assertTrue(any(re.fullmatch(rb"reading \d+%", line) for line in lines), lines)
        self.assertLess(max(map(len, lines)), 12)
        self.assertNotIn("reading", self.screen(12).text())


if __name__ == "__main__":
    driver.main()
