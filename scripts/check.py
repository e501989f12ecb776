#!/usr/bin/env python3
"""`make check`: format and clang-tidy of changed files, and the tests that the change touches.

    scripts/check.py                what differs from main, committed or not
    scripts/check.py FILE...        these files
    scripts/check.py --list [FILE...]   says what it would do

Changed are the files that differ from the merge base with main, and new files that git does not ignore;
on main itself with nothing uncommitted, those of the last commit. Everything that is left out is said,
with the command that does it. It is meant to end within 3 minutes: where the build would take longer,
it is left out.
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from check_plan import GROUPS, plan_for

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Seconds: when no further file is begun, and what a build may take.
MOST_TIDY, MOST_BUILD = 60, 90


def git(*words):
    done = subprocess.run(["git", "-C", str(ROOT), *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout.decode() if done.returncode == 0 else ""


def changed_files():
    """Names, and what they were compared with."""
    main = next((name for name in ("origin/main", "main") if git("rev-parse", "--verify", "-q", name)), "HEAD")
    head = git("rev-parse", "HEAD").strip()
    base = git("merge-base", "HEAD", main).strip() or head
    dirty = git("status", "--porcelain").strip()
    if base == head and not dirty:
        base = git("rev-parse", "HEAD~1").strip() or head
    names = git("diff", "--name-only", "-z", base).split("\0")
    names += git("ls-files", "-zo", "--exclude-standard").split("\0")
    return sorted({name for name in names if name}), base[:10]


class Check:
    def __init__(self, build):
        self.build, self.failed, self.left_out = build, [], []
        self.begin = time.monotonic()

    def part(self, name, words, about="", env=None):
        """Runs a command and says how long it took; what it says itself only where it fails."""
        begin = time.monotonic()
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**os.environ, **(env or {})})
        good = done.returncode == 0
        print(f"{name:<8} {time.monotonic() - begin:6.1f} s  {'ok    ' if good else 'FAILED'} {about}", flush=True)
        if not good:
            print(done.stdout.decode("utf-8", "replace")[-8000:])
            self.failed.append(name)
        return good

    def leave(self, what):
        self.left_out.append(what)

    def tool(self, *names):
        found = next((name for name in names if shutil.which(name)), None)
        if not found:
            self.leave(f"{names[-1]}: it is not installed")
        return found

    def format(self, names):
        if names and (tool := self.tool("clang-format-14", "clang-format")):
            self.part("format", [tool, "--dry-run", "-Werror", *names], f"{len(names)} files")

    def tidy(self, names, jobs):
        """As many files at a time as there are jobs, until the time for it is over."""
        if not names or not (tool := self.tool("clang-tidy-14", "clang-tidy")):
            return
        end = time.monotonic() + MOST_TIDY
        for at in range(0, len(names), int(jobs)):
            if time.monotonic() > end:
                rest = " ".join(names[at:])
                self.leave(f"tidy: {MOST_TIDY} s were over; `make tidy FILES='{rest}'`")
                return
            some = names[at:at + int(jobs)]
            self.part("tidy", ["scripts/tidy.sh", tool, jobs, *some], " ".join(some))

    def steps_of(self, targets):
        """Objects that the build would make, and about how many seconds of one core that takes."""
        # Under its own name it would say that cmake comes first, and no more.
        copy = self.build / "check.ninja"
        shutil.copy(self.build / "build.ninja", copy)
        done = subprocess.run(["ninja", "-C", str(self.build), "-f", copy.name, "-n", *targets],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        copy.unlink()
        if done.returncode != 0:
            return None, done.stdout.decode("utf-8", "replace")
        text = done.stdout.decode("utf-8", "replace")
        made = re.findall(r"^\[\d+/\d+\] (?:Building|Linking) .*? (\S+)$", text, re.M)
        took = {}
        for line in (self.build / ".ninja_log").read_text().splitlines()[1:]:
            start, end, _, name, _ = line.split("\t")
            took[name] = (int(end) - int(start)) / 1000
        known = [took[name] for name in made if name in took]
        usual = sum(known) / len(known) if known else 10
        return made, sum(took.get(name, usual) for name in made)

    def make(self, targets, jobs):
        """Builds; False where that failed or would take too long."""
        if not (self.build / "build.ninja").exists():
            self.leave(f"build and tests: there is no build in {self.build}; `make build`")
            return False
        # New files: cmake looks for them again.
        if not self.part("cmake", ["ninja", "-C", str(self.build), "build.ninja"], "new files"):
            return False
        made, seconds = self.steps_of(targets)
        if made is None:
            print(seconds)
            self.failed.append("build")
            return False
        seconds = seconds / int(jobs)
        if seconds > MOST_BUILD:
            self.leave(f"build and tests: {len(made)} objects have to be made, about {seconds / 60:.0f} "
                       "minutes; `make test`")
            return False
        return self.part("build", ["cmake", "--build", str(self.build), "-j", jobs, "--target", *targets],
                         f"{len(made)} steps for " + " ".join(targets))

    def nvcc(self, names):
        if not names:
            return
        known = (self.build / "compile_commands.json").read_text() if self.build.exists() else ""
        joined = {path: path.read_text() for path in (self.build / "together").glob("*.cu")}
        for name in names:
            # A short file of kernels is compiled as a part of another (millrace_kernels_together).
            parts = [path for path, text in joined.items() if f'"{ROOT / name}"' in text]
            file = parts[0] if parts else ROOT / name
            if f'"{file}"' in known:
                self.part("nvcc", ["ninja", "-C", str(self.build), f"{file}^"], name)
            else:
                self.leave(f"{name}: this build is without CUDA, so it was not compiled")

    def tests(self, plan):
        for program, suites in sorted(plan.programs.items()):
            words = [str(self.build / program), "--gtest_brief=1"]
            if suites is not None:
                words.append("--gtest_filter=" + ":".join(f"{s}.*:*/{s}.*" for s in sorted(suites)))
            self.part("test", words, f"{program} {'all' if suites is None else ' '.join(sorted(suites))}",
                      {"MILLRACE_DEVICE": "cpu"})

    def ctest(self, names, jobs):
        """By name; those of GROUPS are all tests that begin with it."""
        pattern = "|".join(rf"{re.escape(n)}\." if n in GROUPS else f"{re.escape(n)}$" for n in sorted(names))
        self.part("ctest", ["ctest", "--test-dir", str(self.build), "--output-on-failure", "-j", jobs, "-R",
                            f"^({pattern})"], " ".join(sorted(names)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--list", action="store_true", help="say what would be done")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("-j", "--jobs", default=str(os.cpu_count() or 1))
    options = parser.parse_args()
    names, base = (options.files, "") if options.files else changed_files()
    plan = plan_for(ROOT, names)
    print(f"check: {len(names)} changed files" + (f" since {base}" if base else ""), flush=True)
    if options.list:
        print("\n".join(plan.lines()))
        return 0
    check = Check(options.build.resolve())
    check.format(plan.format)
    check.tidy(plan.tidy, options.jobs)
    targets = sorted(plan.targets | set(plan.programs))
    built = not targets or check.make(targets, options.jobs)
    if built:
        check.nvcc(plan.cuda)
        check.tests(plan)
    if (options.build / "CTestTestfile.cmake").exists():
        check.ctest(plan.ctest if built else plan.ctest & set(GROUPS), options.jobs)
    left_out = plan.left_out + check.left_out
    for what in left_out:
        print(f"not done: {what}")
    verdict = "passed but for what was not done" if left_out else "passed"
    if check.failed:
        verdict = "failed: " + ", ".join(check.failed)
    print(f"check {verdict}, {time.monotonic() - check.begin:.0f} s")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
