"""Ranks of a job: mpirun starts them, `millrace-lab comm` exchanges their data and checks every result
against a plain sum. Skips if the build or the machine has no MPI."""
import atexit
import json
import os
import shutil
import signal
import subprocess
import tempfile
import unittest

import driver

MODULE = driver.BUILD / "millrace_mpi.so"
# Every mpirun of a user has its files in one folder, makes and removes it, and fails if another one does so
# at that moment. Tests run at the same time: each has a folder of its own, of a short name for sockets in it.
SESSIONS = tempfile.TemporaryDirectory(prefix="mr-mpi-")
atexit.register(SESSIONS.cleanup)
# More ranks than cores, as root; Open MPI 5 reads PRTE_..., earlier ones OMPI_...
LAUNCH = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
          "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
          "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
          "OMPI_MCA_orte_tmpdir_base": SESSIONS.name, "PRTE_MCA_prte_tmpdir_base": SESSIONS.name}


def mpirun(ranks, *arguments, **kwargs):
    return subprocess.run(["mpirun", "-n", str(ranks), *driver.command_of(arguments)],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=driver.HANG, env={**os.environ, **LAUNCH}, **kwargs)


class Alone(driver.CliTest):
    def test_one_process_sends_nothing(self):
        got = self.ok_json(driver.LAB, "comm", "--size", "0,1,1000", "--reps", 1)
        self.assertEqual(got["ranks"], 1)
        self.assertEqual({m["bytes_sent"] for m in got["measured"]}, {0})

    def test_bad_numbers_are_one_line(self):
        self.assertEqual(self.ok(driver.LAB, "comm").out,
                         "comm: 1 rank, which sends nothing: start it with mpirun -n N\n")
        self.fails(2, driver.LAB, "comm", "--reps", 0, says="--reps")
        self.fails(2, driver.LAB, "comm", "--comm-timeout", -1, says="--comm-timeout")

    @unittest.skipIf(MODULE.exists(), "the build has MPI")
    def test_ranks_without_mpi_are_refused(self):
        self.fails(2, driver.LAB, "comm", says="without MPI", env={"OMPI_COMM_WORLD_SIZE": "2"})


@unittest.skipUnless(MODULE.exists() and shutil.which("mpirun"), "no MPI here")
class Ranks(driver.CliTest):
    def test_every_collective_is_right_on_2_to_4_ranks(self):
        for ranks in (2, 3, 4):
            done = mpirun(ranks, driver.LAB, "comm", "--size", "0,1,7,100003", "--reps", 2, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            got = json.loads(done.stdout)
            self.assertEqual(got["ranks"], ranks)
            self.assertEqual(len(got["measured"]), 16)
            sent = {(m["what"], m["bytes"]): m["bytes_sent"] for m in got["measured"]}
            # The first rank sends what it does not own, once to be summed and once as sums.
            self.assertGreater(sent["all-reduce", 400012], 400012 * 2 * (ranks - 1) // ranks - 400)
            self.assertLess(sent["all-reduce", 400012], 400012 * 2 * (ranks - 1) // ranks + 400)

    def start(self, timeout):
        """Two ranks that exchange for a long time, and the process of each."""
        floats = 4_000_000
        job = subprocess.Popen(["mpirun", "-n", "2", driver.LAB, "comm", "--size", str(floats),
                                "--reps", "1000", "--comm-timeout", str(timeout)],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env={**os.environ, **LAUNCH})
        self.addCleanup(job.kill)

        def exchanging():
            """The ranks, once each has its data: MPI has started then, and every wait has its bound."""
            ranks = self.ranks_of(job.pid)
            return len(ranks) == 2 and all(self.own_bytes(pid) >= 4 * floats for pid in ranks) and ranks

        ranks = driver.eventually(exchanging)
        self.assertTrue(ranks, "the ranks did not start")
        return job, ranks

    @classmethod
    def ranks_of(cls, parent):
        """The processes of the ranks that an mpirun has started."""
        return sorted(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if cls.is_rank(pid, parent))

    @staticmethod
    def own_bytes(pid):
        """Memory that a process has written itself; a rank without data has about 4 MB."""
        with open(f"/proc/{pid}/status") as status:
            return next((int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:")), 0)

    @staticmethod
    def is_rank(pid, parent):
        try:
            with open(f"/proc/{pid}/stat") as stat:  # PID (NAME) STATE PARENT ...
                name, rest = stat.read().split("(", 1)[1].rsplit(")", 1)
            return name in ("millrace", "millrace-lab") and int(rest.split()[1]) == parent
        except OSError:  # it has ended
            return False

    @staticmethod
    def number(pid):
        """The rank of a process."""
        with open(f"/proc/{pid}/environ", "rb") as environ:
            words = dict(word.split(b"=", 1) for word in environ.read().split(b"\0") if b"=" in word)
        return int(words[b"OMPI_COMM_WORLD_RANK"])

    def test_a_rank_that_hangs_is_named_and_ends_all(self):
        job, ranks = self.start(5)  # on a busy machine a rank that works may be silent for seconds
        stopped = self.number(ranks[1])
        os.kill(ranks[1], signal.SIGSTOP)
        _, err = job.communicate(timeout=driver.HANG)
        self.assertNotEqual(job.returncode, 0)
        # mpirun wakes the stopped rank to end it, and then it may print something, too.
        self.assertIn(f"millrace-lab: rank {1 - stopped} of 2: rank {stopped} has not answered for 5 s", err)

    def test_a_rank_that_dies_ends_all(self):
        job, ranks = self.start(10 * driver.HANG)  # a rank that waits does not give up before the test does
        os.kill(ranks[0], signal.SIGKILL)
        job.communicate(timeout=driver.HANG)
        self.assertNotEqual(job.returncode, 0)

    def test_a_module_that_is_not_there_is_told(self):
        place = self.folder / "millrace"
        shutil.copy(driver.LAB, place)
        done = subprocess.run([place, "comm"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, env={**os.environ, "OMPI_COMM_WORLD_SIZE": "2"})
        self.assertEqual(done.returncode, 2)
        self.assertIn("MPI: cannot be loaded: millrace_mpi.so is not beside the program", done.stderr)


if __name__ == "__main__":
    driver.main()
