#!/usr/bin/env python3
"""Checks that where sanitizers are missing CMake configures, so that `make run` builds, and that a test
fails instead, unless MILLRACE_ALLOW_NO_SANITIZERS is set."""
import subprocess
import sys
import tempfile


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def main():
    root, cmake, ctest = sys.argv[1:]
    wrong = []
    with tempfile.TemporaryDirectory(prefix="millrace-sanitizers-") as build:
        for allowed, failing in (("OFF", ("sanitizers.missing.address", "sanitizers.missing.thread")),
                                 ("ON", ())):
            status, said = run(cmake, "-S", root, "-B", build, "-DMILLRACE_CUDA=OFF",
                               "-DMILLRACE_SANITIZERS_RUN=OFF", "-DMILLRACE_TSAN_LINKS=OFF",
                               f"-DMILLRACE_ALLOW_NO_SANITIZERS={allowed}")
            if status != 0:
                return f"without sanitizers CMake does not configure:\n{said}"
            status, said = run(ctest, "--test-dir", build, "-R", "sanitizers.missing", "-V")
            wrong += [f"{name} does not fail:\n{said}" for name in failing
                      if f"{name} " not in said.split("The following tests FAILED")[-1]
                      or "MILLRACE_ALLOW_NO_SANITIZERS=ON" not in said]
            if not failing and "No tests were found" not in said:
                wrong.append(f"a sanitizer is missed that need not be there:\n{said}")
    print("sanitizers are missed by a test, not by the configure")
    return "\n".join(wrong) or 0


if __name__ == "__main__":
    sys.exit(main())
