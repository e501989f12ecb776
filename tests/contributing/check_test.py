#!/usr/bin/env python3
"""What `make check` would do for a change (scripts/check_plan.py), on the files of this tree."""
import pathlib
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "scripts"))
from check_plan import plan_for  # noqa: E402


def lines(*names):
    return plan_for(SOURCE, names).lines()


class Plan(unittest.TestCase):
    def test_a_file_of_the_server(self):
        self.assertEqual(lines("src/serve/desk.cpp"), [
            "format src/serve/desk.cpp", "tidy src/serve/desk.cpp", "build millrace_cli",
            "build millrace_faulty", "build millrace_kill_at", "build test_serve",
            "test test_serve DeskTest", "ctest cli.serve", "ctest cli.serve_limits", "ctest house"])

    def test_an_operation_runs_the_tests_of_its_folder(self):
        got = lines("src/ops/add/add.cpp", "src/ops/rope/rope_kernels.cpp")
        self.assertIn("tidy src/ops/add/add.cpp", got)
        self.assertNotIn("tidy src/ops/rope/rope_kernels.cpp", got)
        self.assertEqual([line for line in got if line.startswith("build")], ["build test_ops"])
        tested = next(line for line in got if line.startswith("test ")).split()
        self.assertIn("Add", tested)
        self.assertNotIn("Activation", tested)

    def test_a_header_is_checked_through_its_source(self):
        self.assertIn("tidy src/ops/add/add.cpp", lines("src/ops/add/add.h"))
        self.assertEqual(sum("tidy" in line for line in lines("src/ops/add/add.h", "src/ops/add/add.cpp")), 1)

    def test_a_file_without_a_test_of_its_name_runs_the_module(self):
        self.assertIn("test test_core all", lines("src/core/arena.cpp", "src/core/lost_map.cpp"))

    def test_docs(self):
        self.assertEqual(lines("docs/server.md"), ["build millrace_cli", "ctest docs", "ctest house"])
        self.assertIn("ctest example.learn", lines("examples/learn/overlap.py"))
        self.assertIn("ctest contributing.op", lines("docs/contributing/op.md"))

    def test_the_gpu(self):
        got = lines("src/ops/add/add.cu", "src/ops/activation/activation.cuh")
        self.assertIn("nvcc src/ops/add/add.cu", got)
        self.assertTrue(all(any(line.startswith(f"not done: {name}") and "make test-gpu" in line for line in got)
                            for name in ("src/ops/add/add.cu", "src/ops/activation/activation.cuh")))
        self.assertFalse([line for line in got if line.startswith("test ")])

    def test_commands(self):
        got = lines("src/cli/tokenize.cpp", "tests/cli/eval_test.py")
        for name in ("cli.tokenize", "cli.help", "cli.eval"):
            self.assertIn(f"ctest {name}", got)

    def test_records_of_transformers(self):
        for name in ("tests/compat/recorded.json", "tests/compat/models.py"):
            self.assertEqual(lines(name), [
                "build millrace_cli", "build millrace_faulty", "build millrace_kill_at",
                "ctest cli.compat", "ctest house",
                f"not done: {name}: transformers is installed to compare with it; `make test-compat`"])

    def test_what_is_not_known_is_said(self):
        for name in ("LICENSE", "cmake/modules.cmake", "python/millrace/ops.py", "tests/cli/driver.py"):
            self.assertTrue([line for line in lines(name) if line.startswith(f"not done: {name}: ")], name)

    def test_a_file_that_is_gone(self):
        got = lines("src/ops/add/gone.cpp")
        self.assertFalse([line for line in got if line.startswith(("format", "tidy"))])
        self.assertIn("build test_ops", got)

    def test_every_test_it_names_is_there(self):
        everything = subprocess.run(["git", "-C", str(SOURCE), "ls-files", "src", "tests"],
                                    stdout=subprocess.PIPE).stdout.decode().split()
        if not everything:
            self.skipTest("not a clone")
        plan = plan_for(SOURCE, everything)
        for name in plan.ctest:
            kind, _, rest = name.partition(".")
            if kind == "cli":
                self.assertTrue((SOURCE / "tests" / "cli" / f"{rest}_test.py").exists(), name)
        self.assertLessEqual({"cli.serve", "cli.train", "cli.convert", "cli.tokenize", "cli.run"}, plan.ctest)

    def test_the_script_lists(self):
        done = subprocess.run([sys.executable, "-B", str(SOURCE / "scripts" / "check.py"), "--list", "README.md"],
                              stdout=subprocess.PIPE, check=True)
        self.assertEqual(done.stdout.decode(), "check: 1 changed files\nbuild millrace_cli\nctest docs\nctest house\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
