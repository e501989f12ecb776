"""Builds one program of a changed copy of the tree with the objects of a finished build.

An object is stale where its source, or a header that it includes, has changed (ninja knows both). No
stale object is linked. Those with changed sources are compiled again, and so is every other stale one
that the program turns out to need: the linker is asked until it misses nothing. Fresh objects are
compiled with the flags of the build but for -O0.

An object of several sources, of which some have changed and no header has, stays: the changed ones are
compiled alone and linked first, and the linker takes the first definition of a name. This needs GCC's -fPIC
without hidden visibility: GCC then does not inline a global function, which another object may replace, into
its neighbours. clang does.
"""
import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

from pages import Outdated

DECLARATION = re.compile(r"^(?!return |throw |else |delete )(?:[\w:<>&*,]+ )+[\w:]+\([^{}]*\);\s*(//.*)?$")


def run(words, cwd):
    done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout.decode("utf-8", "replace")


def declares_only(steps):
    """Whether edits of a header add nothing but functions of new names, which changes no file that does
    not call them."""
    return all(step.kind in ("after", "before") and
               all(not line.strip() or line.lstrip().startswith("//") or DECLARATION.match(line.strip())
                   for line in step.text.splitlines()) for step in steps)


class QuickBuild:
    def __init__(self, source, build, tree, page, new, changed):
        self.source, self.build, self.tree = map(pathlib.Path, (source, build, tree))
        self.objects_folder = self.tree / ".objects"
        self.objects_folder.mkdir()
        self.compiled = 0
        self.commands = {}  # object -> the words that compile it
        for entry in json.loads((self.build / "compile_commands.json").read_text()):
            words = shlex.split(entry["command"])
            self.commands[words[words.index("-o") + 1]] = (words, entry["file"])
        self.deps = self.read_deps()
        declared = {path for path in changed if path.endswith(".h") and declares_only(
            [step for step in page.steps if step.path == path])}
        self.new = [path for path in new if path.endswith(".cpp")]
        self.changed_sources = [path for path in changed if path.endswith((".cpp", ".cu"))]
        self.touched = {str(self.source / path) for path in changed if path not in declared}
        self.stale, self.patched = set(), {}  # objects; object -> its changed sources, in `source`
        for name, files in self.deps.items():
            touched = self.touched & set(files)
            if self.is_behind(name, files):
                self.stale.add(name)
            elif touched and self.is_joined(name) and all(path.endswith(".cpp") for path in touched):
                self.patched[name] = sorted(touched)
            elif touched:
                self.stale.add(name)

    def read_deps(self):
        """Object -> absolute paths of all that was read to compile it."""
        code, text = run(["ninja", "-C", str(self.build), "-n", "-t", "deps"], self.build)
        if code != 0:
            raise RuntimeError(f"ninja -t deps: {text}")
        deps, name = {}, None
        for line in text.splitlines():
            if line.startswith("    "):
                deps[name].append(os.path.normpath(self.build / line.strip()))
            elif ": #deps" in line:
                name = line.split(": #deps")[0]
                deps[name] = []
        return deps

    def is_joined(self, name):
        """Whether the object has several sources."""
        return name in self.commands and "/Unity/" in self.commands[name][1]

    def is_behind(self, name, files):
        """Whether a source of the tree has changed since the build."""
        if not (self.build / name).exists():
            return True
        made = (self.build / name).stat().st_mtime
        return any(self.mtime(file) > made for file in files
                   if file.startswith(f"{self.source}/") and not file.startswith(f"{self.build}/"))

    @functools.lru_cache(maxsize=None)
    def mtime(self, file):
        return os.stat(file).st_mtime if os.path.exists(file) else float("inf")

    def moved(self, word):
        """A word of a command with the tree for the source. The build's own folder stays."""
        kept = word.replace(str(self.build), "\0")
        return kept.replace(str(self.source), str(self.tree)).replace("\0", str(self.build))

    def compile(self, words, file, out):
        """`words`: a command of the build, whose file and object are replaced."""
        words = [self.moved(word) for word in words]
        words[words.index("-o") + 1] = str(out)
        words[words.index("-c") + 1] = str(file)
        words = [word for word in words if not re.fullmatch(r"-O\d|-Winvalid-pch", word)]  # made with -O3
        if "ccache" not in words[0] and shutil.which("ccache"):
            words.insert(0, "ccache")
        code, text = run(words + ["-O0", "-ffunction-sections", "-fdata-sections"], self.build)
        if code != 0:
            raise Outdated(f"{file} does not compile:\n{text}")
        self.compiled += 1
        return str(out)

    def again(self, name):
        """A stale object, from the sources in the tree."""
        words, file = self.commands[name]
        if file.endswith(".cu") or words[0].endswith("nvcc"):
            raise RuntimeError(f"{name} is stale and would take nvcc")
        out = self.objects_folder / name.replace("/", "_")
        if "/Unity/" in file:
            unity = out.with_suffix(".cxx")
            unity.write_text(re.sub(r'"([^"]+)"', lambda m: f'"{self.moved(m[1])}"',
                                    pathlib.Path(file).read_text()))
            return self.compile(words, unity, out)
        return self.compile(words, self.moved(file), out)

    def target_of(self, path):
        """The targets that compile a new file, as cmake/ has them."""
        name = pathlib.Path(path).name
        module = path.split("/")[1]
        if name.endswith("_test.cpp"):
            return [f"test_{module}"]
        if name.endswith("_kernels.cpp"):
            return sorted({n.split(".dir/")[0].split("/")[-1] for n in self.commands if "mr_isa_" in n})
        return ["mr_cli" if module == "cli" else "millrace"]

    def like(self, target):
        """The command of some C++ file of a target."""
        for name, (words, file) in self.commands.items():
            if f"CMakeFiles/{target}.dir/" in name and not name.endswith(".gch") and \
                    file.endswith((".cpp", ".cxx")) and "-o" in words:
                return words
        raise Outdated(f"the build has no target {target}")

    def new_object(self, path, target):
        out = self.objects_folder / f"{target}_{path.replace('/', '_')}.o"
        return self.compile(self.like(target), self.tree / path, out)

    def tests_of(self, target):
        """New and changed test files that belong to the target."""
        paths = self.new + self.changed_sources
        return [path for path in paths if path.endswith("_test.cpp") and target in self.target_of(path)]

    def link_words(self, target):
        """The words that link a program, without what its build does after that."""
        code, text = run(["ninja", "-C", str(self.build), "-n", "-t", "commands", target], self.build)
        links = [line for line in text.splitlines() if " -o " in line and " -c " not in line]
        if code != 0 or not links:
            raise Outdated(f"the build has no program {target}")
        return shlex.split(links[-1].split(" && ")[1])

    def archive_without(self, archive, stale):
        """An archive without its stale objects: a copy, or itself where none is stale."""
        target = pathlib.Path(archive).stem.removeprefix("lib")
        owners = ("CMakeFiles/millrace.dir/", "CMakeFiles/mr_isa_") if target == "millrace" else (
            f"CMakeFiles/{target}.dir/",)
        members = {pathlib.Path(name).name for name in stale if any(owner in name for owner in owners)}
        if not members:
            return archive
        out = self.objects_folder / pathlib.Path(archive).name
        shutil.copy(self.build / archive, out)
        while True:  # kernels have one name in several instruction paths: all of them go
            left = members & set(run(["ar", "t", str(out)], self.build)[1].split())
            if not left:
                return str(out)
            code, text = run(["ar", "d", str(out), *sorted(left)], self.build)
            if code != 0:
                raise RuntimeError(f"ar: {text}")

    def first_objects(self, target, stale):
        """What is compiled in any case: new sources, the tests of the example, changed sources."""
        fresh = {}
        for path in self.new + self.tests_of(target):
            for owner in self.target_of(path):
                if (path, owner) not in fresh and (owner == target or not owner.startswith("test_")):
                    fresh[(path, owner)] = self.new_object(path, owner)
        changed = {str(self.source / path) for path in self.changed_sources}
        for name in stale:
            if changed & set(self.deps[name]):
                fresh[name] = self.again(name)
        for name in self.owned(self.patched, target):
            for path in self.patched[name]:
                out = self.objects_folder / f"{name.replace('/', '_')}_{pathlib.Path(path).stem}.o"
                fresh[(name, path)] = self.compile(self.commands[name][0], self.moved(path), out)
        return fresh

    def owned(self, objects, target):
        """Those that the program may be linked of. Test programs have the example's tests alone."""
        owners = {"millrace", "mr_cli", "mr_bench", "mr_lab"} | (set() if target.startswith("test_") else {target})
        parts = [f"CMakeFiles/{owner}.dir/" for owner in owners] + ["CMakeFiles/mr_isa_"]
        return {name for name in objects if name in self.commands and any(part in name for part in parts)}

    def program(self, target):
        """Links `target` and returns its path."""
        stale = self.owned(self.stale, target)
        fresh = self.first_objects(target, stale)
        out = self.objects_folder / target
        words = []
        for word in self.link_words(target):
            if word in stale or target.startswith("test_") and f"{target}.dir/" in word:
                continue
            ours = word.endswith(".a") and not word.startswith("/")
            words.append(self.archive_without(word, stale) if ours else word)
        at = words.index("-o")
        words[at + 1] = str(out)
        while True:
            code, text = run([words[0], *fresh.values(), *words[1:], "-Wl,--gc-sections",
                              "-Wl,--allow-multiple-definition"], self.build)
            if code == 0:
                return str(out)
            missing = set(re.findall(r"undefined reference to `([^']+)'", text))
            more = self.defining(missing, stale - set(fresh))
            if not more:
                raise Outdated(f"{target} does not link:\n{text[-3000:]}")
            for name in more:
                fresh[name] = self.again(name)

    def defining(self, symbols, objects):
        """Those of the stale objects of the build that define one of the symbols."""
        found = []
        for name in sorted(objects):
            code, text = run(["nm", "-C", "--defined-only", name], self.build)
            have = {line.split(" ", 2)[2] for line in text.splitlines() if line.count(" ") >= 2}
            if have & symbols:
                found.append(name)
        return found
