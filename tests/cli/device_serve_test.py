"""The server on a GPU: answers do not depend on load, and grammars bind them. Skips where there is
none, and fails there where MILLRACE_REQUIRE_GPU=1."""
import os

os.environ["MILLRACE_DEVICE"] = "cuda"  # for the servers that the tests below start

import driver
import serve_load_test
import serve_structure_test


def load_tests(loader, tests, pattern):
    tests = loader.suiteClass()
    for module in (serve_load_test, serve_structure_test):
        tests.addTests(loader.loadTestsFromModule(module))
    return tests


def setUpModule():
    driver.need_gpu()


if __name__ == "__main__":
    driver.main()
