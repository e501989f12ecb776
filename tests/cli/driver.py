"""Runs the built program as a user would. Paths come from the environment (cmake/cli_tests.cmake)."""
import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

SOURCE = pathlib.Path(os.environ.get("MILLRACE_SOURCE", pathlib.Path(__file__).parents[2]))
BUILD = pathlib.Path(os.environ.get("MILLRACE_BUILD", SOURCE / "build" / "release"))
BIN = os.environ.get("MILLRACE_BIN", str(BUILD / "millrace"))
# As the first argument of a call it is the program that is called.
LAB = os.environ.get("MILLRACE_LAB", str(BUILD / "millrace-lab"))
# The program with MILLRACE_FAULT (faulty.cpp).
FAULTY = os.environ.get("MILLRACE_FAULTY", str(BUILD / "millrace_faulty"))
# Kills a program at a system call (kill_at.cpp).
KILL_AT = os.environ.get("MILLRACE_KILL_AT", str(BUILD / "millrace_kill_at"))
DATA = pathlib.Path(os.environ.get("MILLRACE_DATA", SOURCE / ".." / "shared" / "data"))
REFERENCE = SOURCE / "tests" / "reference"
STORIES = DATA / "models" / "stories260K.bin"
STORIES_TOKENIZER = DATA / "models" / "tok512.bin"
# Measuring the memory takes 0.1 s of every core in each of hundreds of runs. Tests of the
# measurement pass MEASURED as their environment.
os.environ.setdefault("MILLRACE_READ_RATE", "20GB/s")
MEASURED = {"MILLRACE_READ_RATE": ""}


# The most seconds that a test waits for what must happen: only a program that hangs takes them.
HANG = 120


def eventually(condition, seconds=HANG):
    """The value of condition() once it is true, or its last one."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return value


def cpu_seconds(pid):
    """Processor time that a process has used. Unlike the clock, other programs do not use it up."""
    with open(f"/proc/{pid}/stat") as stat:  # PID (NAME) STATE ...
        words = stat.read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Result:
    def __init__(self, code, out, err):
        self.code, self.raw, self.err = code, out, err.decode("utf-8", "replace")
        self.out = out.decode("utf-8", "replace")

    def json(self):
        return json.loads(self.raw.decode("utf-8"))


def command_of(arguments, program=BIN):
    """The words of a call: of `program`, or of the laboratory's if it is the first."""
    words = [str(word) for word in arguments]
    return words if LAB in words[:1] else [program, *words]


def millrace(*arguments, stdin=b"", env=None, timeout=HANG, program=BIN, **kwargs):
    done = subprocess.run(command_of(arguments, program), input=stdin, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=timeout,
                          env={**os.environ, **(env or {})}, **kwargs)
    return Result(done.returncode, done.stdout, done.stderr)


@functools.lru_cache(maxsize=None)
def gpu():
    """The GPU in `info`: its entry, or none and why. A program that fails gives no answer: a GPU on
    which commands fail is still one."""
    result = millrace("info", "--device", "auto", "--json")
    if result.code != 0:
        raise AssertionError(f"millrace info: exit code {result.code}: {result.err}")
    machine = result.json()["machine"]
    return machine["gpu"], machine.get("why_no_gpu", "")


def need_gpu():
    """The GPU's entry of `info`. Without one the tests skip, or fail if one is required."""
    found, why = gpu()
    if found is None and os.environ.get("MILLRACE_REQUIRE_GPU") == "1":
        raise AssertionError(f"MILLRACE_REQUIRE_GPU=1, and no GPU: {why}")
    if found is None:
        raise unittest.SkipTest(f"no GPU: {why}")
    return found


class Page:
    """A page that --html, --plot or train wrote. Its data is JSON inside of it."""
    def __init__(self, path):
        html = pathlib.Path(path).read_text()
        self.data = json.loads(html.split('<script type="application/json" id="data">')[1]
                               .split("</script>")[0])
        # The name of SVG's namespace is the one address; nothing is fetched from it.
        fixed = html.replace("http://www.w3.org/2000/svg", "")
        self.elsewhere = re.findall(r"https?:|src=|href=|@import|url\(", fixed)
        self.text = "\n".join(self.texts(self.data))

    def texts(self, value):
        if isinstance(value, (list, dict)):
            for one in value.values() if isinstance(value, dict) else value:
                yield from self.texts(one)
        elif isinstance(value, str):
            yield value

    def sections(self, kind):
        return [one for one in self.data["sections"] if one["kind"] == kind]

    def table(self, title):
        """The rows of a table by the names of its columns."""
        [found] = [one for one in self.sections("table") if one["title"] == title]
        names = [column["name"] for column in found["columns"]]
        return [dict(zip(names, row["cells"])) for row in found["rows"]]


class CliTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="millrace-cli-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def let_work(self, process, seconds):
        """Waits until it has had so many more seconds of processor time."""
        end = cpu_seconds(process.pid) + seconds

        def worked():
            self.assertIsNone(process.poll(), "it ended by itself")
            return cpu_seconds(process.pid) >= end

        self.assertTrue(eventually(worked), "it does not work")

    def ok(self, *arguments, **kwargs):
        result = millrace(*arguments, **kwargs)
        self.assertEqual(result.code, 0, f"millrace {arguments}: {result.err}")
        return result

    def ok_json(self, *arguments, **kwargs):
        return self.ok(*arguments, "--json", **kwargs).json()

    def fails(self, code, *arguments, says=(), **kwargs):
        """Exit code `code`, nothing on standard output, and one line on standard error that begins
        with the program's name and has every string of `says`."""
        result = millrace(*arguments, **kwargs)
        self.assertEqual(result.code, code, f"millrace {arguments}: {result.out!r} {result.err!r}")
        self.assertEqual(result.out, "", f"millrace {arguments}")
        name = "millrace-lab: " if LAB in arguments[:1] else "millrace: "
        self.assertTrue(result.err.startswith(name), result.err)
        self.assertTrue(result.err.endswith("\n"), result.err)
        self.assertEqual(result.err.count("\n"), 1, result.err)
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, result.err)
        return result

    def stories(self):
        """The arguments for stories260K; skips if the data is absent."""
        if not STORIES.exists():
            self.skipTest(f"no {STORIES}: set MILLRACE_DATA")
        return [str(STORIES), "--tokenizer", str(STORIES_TOKENIZER)]


class GpuTest(CliTest):
    """Skips without a GPU, or fails there (need_gpu)."""

    @classmethod
    def setUpClass(cls):
        cls.gpu = need_gpu()


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main(verbosity=2)
