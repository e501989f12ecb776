"""millrace chat on a pseudo-terminal, for tests that type."""
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

import driver
import screen

MODEL = driver.REFERENCE / "llama2"
PLAIN = ("--chat-template", "plain")  # the model has none, and would continue texts
CHAT = ("chat", MODEL, "-n", 6, "--temp", 0, "-c", 512, "--ignore-eos")
PASTE_MODE = re.compile(rb"\x1b\[\?2004[hl]")
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


class TypedTest(driver.CliTest):
    def setUp(self):
        super().setUp()
        self.state = self.folder / "state"
        self.history = self.state / "millrace" / "chat_history"

    def start(self, *options, command=(*CHAT, *PLAIN), columns=80, ready=b"> ", **environment):
        """Waits until `ready` is shown. `environment`: beside NO_COLOR=1 and TERM=xterm."""
        self.ours, theirs = pty.openpty()
        self.modes = termios.tcgetattr(theirs)
        self.resize(columns)
        environment = {**os.environ, "XDG_STATE_HOME": str(self.state), "TERM": "xterm",
                       "LC_ALL": "C.UTF-8", "HOME": str(self.folder), "NO_COLOR": "1", **environment}
        self.process = subprocess.Popen(
            driver.command_of([*command, *options]), stdin=theirs, stdout=theirs,
            stderr=theirs, start_new_session=True, env=environment,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(theirs)
        self.addCleanup(os.close, self.ours)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        self.seen = self.all = b""  # what was not waited for yet, and everything
        if ready:
            self.wait_for(ready)

    def resize(self, columns, rows=24):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        if not select.select([self.ours], [], [], seconds)[0]:
            return False
        try:
            piece = os.read(self.ours, 65536)
        except OSError:  # the program has ended
            return False
        self.all += piece
        self.seen = PASTE_MODE.sub(b"", self.seen + piece)
        return bool(piece)

    def wait_for(self, what, seconds=60):
        """Waits until it is shown; earlier output is dropped."""
        end = time.time() + seconds
        while what not in self.seen and time.time() < end:
            self.read(0.1)
        self.assertIn(what, self.seen)
        before, _, self.seen = self.seen.partition(what)
        return before

    def settle(self, seconds=0.4):
        """Reads until nothing has come for a while."""
        while self.read(seconds):
            pass

    def screen(self, columns=80):
        """What the terminal shows now, since it began."""
        return screen.Screen(columns).feed(self.all.decode("utf-8", "replace"))

    def type(self, keys):
        os.write(self.ours, keys)

    def say(self, keys):
        """A line, and the prompt after it."""
        self.read(0)
        self.seen = b""
        self.type(keys + b"\r")
        self.wait_for(b"\n")
        return self.wait_for(b"> ")

    def messages(self):
        """The conversation."""
        path = self.folder / "typed.json"
        path.unlink(missing_ok=True)
        self.say(f"/save {path}".encode())
        return json.loads(driver.eventually(path.read_text))["messages"]

    def questions(self):
        return [one["content"] for one in self.messages() if one["role"] == "user"]

    def leave(self):
        self.type(b"\x04")
        self.assertEqual(self.process.wait(timeout=60), 0)

    def need_editing(self):
        linked = subprocess.run(["ldd", driver.BIN], stdout=subprocess.PIPE).stdout
        if b"libedit" not in linked:
            self.skipTest("the build has no libedit")
