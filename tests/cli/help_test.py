"""The program's own texts: help, suggestions, completions, the man page, the version."""
import re
import shutil
import subprocess

import driver


def commands_of(text):
    """The commands listed in a help text."""
    if "\nCommands:\n" not in text:
        return []
    lines = text.split("\nCommands:\n")[1].split("\n\n")[0].splitlines()
    return [line.split()[0] for line in lines if re.match(r"  \S", line)]


class Help(driver.CliTest):
    def every(self, path=()):
        """The path of every command, the program itself first."""
        found = [path]
        for name in commands_of(self.ok(*path, "--help").out):
            found += self.every((*path, name))
        return found

    def test_every_help_reads_as_a_person_wrote_it(self):
        paths = self.every()
        self.assertIn(("bench", "decode"), paths)
        self.assertIn(("data", "pack"), paths)
        self.assertGreater(len(paths), 22)
        for path in paths:
            for option in ("--help", "--help-all"):
                text = self.ok(*path, option).out
                plain = text.replace('"""', "")  # chat's quotes of a text of several lines
                for wrong in (" INT", "TEXT", "FLOAT", "UINT", "Excludes", "REQUIRED", " WORD ",
                              " WORD...", "Env:", "[]", '""'):
                    self.assertNotIn(wrong, plain, (path, option))
                self.assertNotRegex(text, r" in \[|\w+:\w+ in ", (path, option))
                for line in text.splitlines():
                    self.assertLessEqual(len(line), 100, (path, line))
                    self.assertEqual(line, line.rstrip(), path)
                self.assertIn(f"Usage: {' '.join(('millrace', *path))} ", text)
                self.assertIn("\n  -h, --help ", text, path)

    def test_options_are_named_and_grouped(self):
        text = self.ok("run", "--help").out
        self.assertIn("\n  -n, --tokens N            generate at most N tokens; -1: until the context is "
                      "full (256)\n", text)
        self.assertIn("\n      --temp X ", text)
        self.assertRegex(text, r"\n      --device auto\|cpu\|cuda\n +where to compute.* \(auto\)\n")
        order = [text.index(f"\n{group}:\n") for group in
                 ("Prompt", "Sampling", "Output", "Machine", "Help", "Examples")]
        self.assertEqual(order, sorted(order))

    def test_the_rare_ones_are_under_help_all(self):
        few, all_ = self.ok("run", "--help").out, self.ok("run", "--help-all").out
        for name in ("--kv-type", "--check-nan", "--repeat-window", "--tokenizer", "--max-tokens",
                     "MILLRACE_DEVICE", "; also -m,"):
            self.assertNotIn(name, few)
            self.assertIn(name, all_)
        self.assertIn("'millrace run --help-all' has more options.", few)
        self.assertNotIn("has more options", all_)
        self.assertNotIn("has more options", self.ok(driver.LAB, "story", "check", "--help").out)
        self.assertIn("\n  bench decode ", self.ok("--help-all").out)

    def test_an_option_that_is_not_there(self):
        for wrong, near in (("--tempp", "--temp"), ("--promt", "--prompt"), ("--sed=4", "--seed"),
                            ("--max_tokens", "--max-tokens")):
            name = wrong.split("=")[0]
            self.fails(2, "run", wrong, "1",
                       says=f"{name}: unknown option; did you mean {near}?\n")
        # Only options of this command are suggested, and none if none is near. A missing argument
        # is reported only if nothing is misspelt.
        self.fails(2, "info", "--promt", "x", says=("unknown option", "'millrace info --help'"))
        self.fails(2, "eval", "--txt", "x", says="--txt: unknown option; did you mean --text?")
        self.fails(2, "eval", "--zyxwvu", says=("--zyxwvu: unknown option; 'millrace eval"))
        # A single letter is near every short name, so it gives no suggestion.
        for wrong in ("-m", "--m", "-x"):
            self.fails(2, "train", wrong, "llama",
                       says=f"{wrong}: unknown option; 'millrace train --help'")
        self.fails(2, "data", "pack", "--tokeniser", "x", says="did you mean --tokenizer?")
        self.fails(2, "bench", "decod", says="did you mean 'millrace bench decode'?")
        self.fails(2, "bench", says=("name a command: ", "decode, ", "or train"))
        self.fails(2, "data", says="name a command: pack;")
        self.fails(2, "rum", says="rum: unknown command; did you mean 'millrace run'?")
        self.fails(2, "run", "a", "b", "c", says=("not expected: c", "millrace run --help"))

    def test_values_that_are_none(self):
        for arguments, problem in (
                (("run", "-n", "abc"), "millrace: -n: 'abc' is not a number"),
                (("run", "-n", ""), "-n: '' is not a number"),
                (("run", "-n", "1.5"), "-n: '1.5' is not a whole number"),
                (("run", "-n", "0x10"), "-n: '0x10' is not a number"),
                (("run", "-n", "99999999999"), "-n: '99999999999' is a number of too many"),
                (("run", "-n", "-2"), "-n: must be -1 or more, not -2"),
                (("run", "--temp", "hot"), "--temp: 'hot' is not a number"),
                (("run", "--temp", "nan"), "--temp: 'nan' is not a number"),
                (("run", "--temp", "inf"), "--temp: 'inf' is not a number"),
                (("run", "--top-p", "1.5"), "--top-p: must be from 0 to 1, not 1.5"),
                (("run", "--seed", "-1"), "--seed: must not be negative, as '-1' is"),
                (("info", "--threads", "2000"), "--threads: must be from 0 to 1024, not 2000"),
                ((driver.LAB, "gemm", "--type", "q8_0,q9"), "--type: 'q9' is not a choice; use f32"),
                (("run", "-n"), "millrace: -n: needs a value (N)"),
                (("run", "-ngl", "99"), "-ngl: is not an option here: the whole model runs on one device"),
                (("tokenize", "-ngl", "99"), "-ngl: unknown option"),
                (("run", "-p", "-nglish", "--tokns", "5"), "--tokns: unknown option"),
                (("run", "--bogus", "--", "-ngl"), "--bogus: unknown option"),
                (("run", "-nabc"), "millrace: -n: 'abc' is not a number"),
                (("run", "--tokens=abc"), "millrace: --tokens: 'abc' is not a number"),
                (("run", "--max-tokens", "abc"), "millrace: --max-tokens: 'abc' is not a number"),
                (("run", "--temperature", "hot"), "millrace: --temperature: 'hot' is not a number"),
                (("run", ""), "millrace: MODEL: is empty"),
                (("run", "-m", ""), "millrace: -m: is empty"),
                (("run", "--device"), "--device: needs a value (auto|cpu|cuda)"),
                (("run", "--temp", "1", "--temperature", "2"), "--temp: is given more than once"),
                (("eval",), "--text is required"),
                (("convert", "storyteller"), "millrace: OUT is required"),
                (("bench", "train"), "millrace: MODEL is required"),
                (("run", "-p", "x", "--prompt-file", "y"), "millrace: -p excludes --prompt-file")):
            self.fails(2, *arguments, says=problem)

    def test_numbers_are_decimal(self):
        # A leading zero is not octal, and a plus is accepted.
        made = self.ok_json("run", driver.REFERENCE / "llama2", "-p", "a", "-n", "+010",
                            "--ignore-eos", "--seed", "007")
        self.assertEqual((len(made["ids"]), made["seed"]), (10, 7))

    def test_version(self):
        text = self.ok("--version").out
        self.assertRegex(text, r"^millrace \d+\.\d+\.\d+(\+[a-z0-9.]+)?(, commit [0-9a-f]{7,}(-dirty)?)?, "
                               r"\w+ \d+\.\d+[.\d]*, "
                               r"(CUDA \d+\.\d+[.\d]*( \(kernels not optimised\))?|without CUDA)\n$")
        if (driver.SOURCE / ".git").exists() and shutil.which("git"):
            self.assertIn(", commit ", text)

    def test_man_page(self):
        page = self.ok("man").out
        self.assertTrue(page.startswith(".\\\""))
        for path in self.every()[1:]:
            name = " ".join(("millrace", *path)).replace("-", "\\-")
            self.assertIn(f"\n.SS {name}\n", page)
        self.assertIn("\\fB\\-n\\fR, \\fB\\-\\-tokens\\fR, \\fB\\-\\-max\\-tokens\\fR \\fIN\\fR\n", page)
        self.assertNotIn("man", commands_of(self.ok("--help").out))
        # Only requests begin with a dot.
        for line in page.splitlines():
            if line.startswith("."):
                self.assertRegex(line, r'^\.(\\"|TH |SH |SS |TP$|PP$|nf$|fi$)')
        if groff := shutil.which("groff"):
            done = subprocess.run([groff, "-man", "-ww", "-z", "-Tutf8"], input=page.encode(),
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertEqual((done.returncode, done.stdout), (0, b""))


class Completion(driver.CliTest):
    def script(self, shell):
        path = self.folder / f"millrace.{shell}"
        path.write_text(self.ok("completion", shell).out)
        return path

    def run_shell(self, shell, *arguments):
        program = shutil.which(shell)
        if not program:
            self.skipTest(f"there is no {shell}")
        done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, timeout=60,
                              stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout.decode().split("\n")

    CASES = (
        (("",), {"run", "chat", "bench", "completion"}, {"man", "decode", "--help"}),
        (("ru",), {"run"}, {"chat"}),
        (("--ver",), {"--version"}, {"--help"}),
        (("bench", "de"), {"decode"}, {"data", "load"}),
        (("run", "--te"), {"--temp", "--temperature"}, {"--top-k"}),
        (("run", "model.gguf", "--st"), {"--stop", "--steps"}, {"--save-every"}),
        (("train", "--st"), {"--steps"}, {"--stop"}),
        (("bench", "decode", "random:gpt2", "--che"), {"--check-nan"}, set()),
        (("run", "--device", "c"), {"cpu", "cuda"}, {"chat", "auto"}),
        (("completion", ""), {"bash", "zsh", "fish"}, {"run"}),
        (("tokenizer", "train", "--vo"), {"--vocab"}, set()),
        (("run", "-p", "bench", "--cou"), {"--count"}, set()),
    )

    def test_bash(self):
        script = self.script("bash")
        for words, some, none in self.CASES:
            quoted = " ".join(f"'{word}'" for word in ("millrace", *words))
            got = set(self.run_shell("bash", "--norc", "-c", (
                f"source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _millrace; "
                "printf '%s\\n' \"${COMPREPLY[@]}\"; complete -p millrace")))
            self.assertLessEqual(some, got, words)
            self.assertFalse(none & got, words)
            self.assertIn("complete -o default -F _millrace millrace", got)
        # --device=c, which bash splits.
        got = self.run_shell("bash", "--norc", "-c", (
            f"source {script}; COMP_WORDS=(millrace run --device = c); COMP_CWORD=4; _millrace; "
            "echo ${COMPREPLY[@]}"))
        self.assertEqual(got[0], "cpu cuda")

    def test_bash_has_every_option(self):
        text = self.script("bash").read_text()
        for path in (("run",), ("train",), ("bench", "decode")):
            line = re.search(rf'^ +/{"/".join(path)}\) options="([^"]*)"', text, re.M)[1].split()
            wanted = re.findall(r"(?<![\w-])--[a-z][\w-]+", "\n".join(
                entry for entry in self.ok(*path, "--help-all").out.split("\n")
                if re.match(r"  (-\w, |    )--", entry)))
            self.assertGreater(len(wanted), 10)
            self.assertLessEqual(set(wanted), set(line))

    def test_fish(self):
        script = self.script("fish")
        for words, some, none in self.CASES:
            got = {line.split("\t")[0] for line in self.run_shell(
                "fish", "--no-config", "-c",
                f"source {script}; complete -C 'millrace {' '.join(words)}'")}
            self.assertLessEqual(some, got, words)
            self.assertFalse(none & got, words)

    def test_zsh(self):
        script = self.script("zsh")
        for words, some, none in self.CASES:
            # The words for zsh's completion system.
            quoted = " ".join(f"'{word}'" for word in ("millrace", *words))
            got = {line.split(":")[0] for line in self.run_shell(
                "zsh", "-f", "-c",
                "compdef() { : }; _describe() { print -l -- ${(P)2} }; _files() { print files }; "
                "compadd() { shift; print -l -- $@ }; "
                f"source {script}; words=({quoted}); CURRENT={len(words) + 1}; "
                f"PREFIX='{words[-1]}'; _millrace")}
            self.assertLessEqual(some, got, words)
            # zsh itself selects those that begin with PREFIX.
            begins = {word for word in got if word.startswith(words[-1])}
            self.assertFalse(none & begins, words)


if __name__ == "__main__":
    driver.main()
