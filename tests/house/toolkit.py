#!/usr/bin/env python3
"""Checks what cmake/cuda.cmake does with an nvcc that is too old, new enough, or named: toolkits
made of a script that prints a version, and empty files."""
import os
import pathlib
import subprocess
import sys
import tempfile

# enable_language(CUDA) would compile something with the script. Nothing else is compiled either: what
# CMake finds out about the C++ compiler does not matter here, and takes most of the time.
PROJECT = """cmake_minimum_required(VERSION 3.25)
set(CMAKE_CXX_COMPILER_ID_RUN TRUE)
set(CMAKE_CXX_COMPILER_FORCED TRUE)
set(CMAKE_HAVE_LIBC_PTHREAD TRUE)
project(toolkit LANGUAGES CXX)
macro(enable_language)
endmacro()
include({root}/cmake/cuda.cmake)
message(STATUS "has: ${{MILLRACE_HAS_CUDA}}, compiler: ${{CMAKE_CUDA_COMPILER}}, "
               "headers: ${{CUDAToolkit_INCLUDE_DIRS}}")
"""


def toolkit(folder, version):
    for path, text in (("bin/nvcc", f"#!/bin/sh\necho 'release {version[:4]}, V{version}'\n"),
                       ("include/cuda_runtime.h", ""), ("lib64/libcudart.so", "")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "bin/nvcc").chmod(0o755)
    return folder


def main():
    root, cmake = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    wrong = []
    with tempfile.TemporaryDirectory(prefix="millrace-toolkit-") as name:
        folder = pathlib.Path(name)
        (folder / "source").mkdir()
        (folder / "source/CMakeLists.txt").write_text(PROJECT.format(root=root))
        kits = {version: toolkit(folder / version, version)
                for version in ("12.0.140", "12.4.131", "12.5.40", "13.0.88")}

        def expect(what, words, version, *options, build="", fails=False, named=None):
            """Configures with the nvcc of `version` first on PATH; the output has all words."""
            env = dict(os.environ, PATH=f"{kits[version]}/bin:{os.environ['PATH']}")
            for other in ("CUDACXX", "CUDA_PATH", "CUDAToolkit_ROOT"):
                env.pop(other, None)
            if named:
                env["CUDACXX"] = str(kits[named] / "bin/nvcc")
            tree = folder / (build or f"build-{what.replace(' ', '-')}")
            done = subprocess.run([cmake, "-S", folder / "source", "-B", tree, *options], env=env,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            said = " ".join(done.stdout.split())  # CMake breaks the lines of an error
            missing = [word for word in words if word not in said]
            if missing or fails != (done.returncode != 0):
                wrong.append(f"{what}: status {done.returncode}, without {missing}:\n{done.stdout}")

        for version in ("12.0.140", "12.4.131"):
            expect(f"{version} is too old",
                   (f"{kits[version]}/bin/nvcc is {version}, which is too old (12.5 or later is "
                    "needed); the CPU engine alone is built", "has: FALSE"), version)
        expect("ON fails with 12.0", ("MILLRACE_CUDA=ON", "too old", "12.5", "CUDACXX="), "12.0.140",
               "-DMILLRACE_CUDA=ON", fails=True)
        for version in ("12.5.40", "13.0.88"):
            expect(f"{version} is used",
                   ("has: TRUE", f"compiler: {kits[version]}/bin/nvcc", f"CUDA: {version}"), version)
        # The same build folder, after a newer one was installed.
        expect("old", ("has: FALSE",), "12.0.140", build="later")
        expect("new", ("has: TRUE",), "13.0.88", build="later")
        # A compiler that is named brings its toolkit, whatever PATH has.
        new = (f"compiler: {kits['13.0.88']}/bin/nvcc", f"headers: {kits['13.0.88']}/include")
        expect("CUDACXX", ("has: TRUE", *new), "12.0.140", named="13.0.88")
        expect("CMAKE_CUDA_COMPILER", ("has: TRUE", *new), "12.0.140",
               f"-DCMAKE_CUDA_COMPILER={kits['13.0.88']}/bin/nvcc")
        expect("CUDACXX is too old", ("has: FALSE", "12.0.140, which is too old"), "13.0.88",
               named="12.0.140")
    print("\n".join(wrong) or "a toolkit that is too old is not used")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
