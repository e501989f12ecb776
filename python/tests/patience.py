"""For tests that wait: their outcome must not depend on how busy this machine is."""
import os
import pathlib
import time

import millrace as mr

# The most seconds that a test waits for what must happen: only what hangs takes them.
HANG = 120


def threads():
    """Those of this process. One that was joined may be seen for a moment."""
    return set(os.listdir("/proc/self/task"))


def eventually(condition):
    end = time.monotonic() + HANG
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class Engine:
    """A model and the threads that it computes with. Their processor time says how much work was
    done; unlike the clock, other programs do not use it up."""

    def __init__(self, *given, **options):
        before = threads()
        self.model = mr.Model(*given, **options)
        self.threads = threads() - before

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.model.close()

    def seconds(self):
        ticks = 0
        for thread in self.threads & threads():
            # TID (NAME) STATE ...
            words = pathlib.Path(f"/proc/self/task/{thread}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(words[11]) + int(words[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def seconds_of(self, work):
        begin = self.seconds()
        work()
        return self.seconds() - begin

    def wait_for(self, seconds):
        """Waits until the threads have had this much processor time in all."""
        assert eventually(lambda: self.seconds() >= seconds), "the engine does not work"
