"""What `make check` does for a list of changed files. No file is read or run here but to find tests."""
import pathlib
import re

CODE = (".h", ".cpp", ".cu", ".cuh")
# Modules whose tests are one program, test_MODULE (cmake/tests.cmake).
MODULES = ("core", "observe", "ops", "formats", "hub", "text", "model", "decode", "train", "serve")
# Tests of the command line by what they drive, the first line that matches: tests/cli/NAME_test.py.
# Those that take long are left to `make test`.
DRIVERS = (
    ("src/serve/page/", ()),
    ("src/serve/", ("serve", "serve_limits")),
    ("src/train/parallel/", ("ranks",)),
    ("src/train/plan/", ("plan",)),
    ("src/train/", ("train",)),
    ("src/decode/", ("run", "generation")),
    ("src/model/io/", ("convert", "folders")),
    ("src/text/", ("tokenize",)),
    ("src/observe/", ("profile",)),
    ("src/cli/bench/", ("bench",)),
    ("src/cli/chat/", ("chat", "chat_commands")),
)
# Names in a plan that stand for all tests which begin with them.
GROUPS = ("docs", "house", "example.learn", "lab")
# The suites of a file of tests.
SUITE = re.compile(r"^(?:TEST|TEST_F|TEST_P)\((\w+),", re.M)


class Plan:
    def __init__(self):
        self.format, self.tidy, self.cuda = [], [], []
        self.programs = {}  # test program -> suites, or None for all
        self.ctest = set()  # names of tests
        self.targets = set()  # to build besides the test programs
        self.left_out = []  # "what: why"

    def add_program(self, program, suites):
        before = self.programs.get(program, set())
        self.programs[program] = None if suites is None or before is None else before | suites

    def lines(self):
        """The plan as text, one step per line."""
        out = [f"format {name}" for name in self.format]
        out += [f"tidy {name}" for name in self.tidy]
        out += [f"nvcc {name}" for name in self.cuda]
        out += [f"build {name}" for name in sorted(self.targets | set(self.programs))]
        for program, suites in sorted(self.programs.items()):
            out.append(f"test {program} " + ("all" if suites is None else " ".join(sorted(suites))))
        out += [f"ctest {name}" for name in sorted(self.ctest)]
        return out + [f"not done: {what}" for what in self.left_out]


def suites_in(paths):
    found = set()
    for path in paths:
        found |= set(SUITE.findall(path.read_text(errors="replace")))
    return found


def module_tests(root, name):
    """The suites that belong to a file of a module, or None: all of the module."""
    path = pathlib.PurePath(name)
    parts = path.parts
    if name.endswith("_test.cpp") and (root / name).exists():
        return suites_in([root / name])
    if parts[:2] == ("src", "ops"):  # one folder is one operation
        beside = [p for p in (root / path.parent).glob("*_test.cpp") if not p.name.endswith("_cuda_test.cpp")]
        return suites_in(beside) or None
    if parts[0] == "src":
        stem = re.sub(r"_(cuda|kernels|mpi)$", "", path.stem)
        same = root / "tests" / parts[1] / f"{stem}_test.cpp"
        if same.exists():
            return suites_in([same])
    return None


def add_cli(plan, names, root):
    for name in names:
        if (root / "tests" / "cli" / f"{name}_test.py").exists():
            plan.ctest.add(f"cli.{name}")
            plan.targets |= {"millrace_cli", "millrace_faulty", "millrace_kill_at"}


def add_page(plan):
    plan.ctest.add("page.quick")
    plan.targets |= {"page_print", "millrace_cli"}


def add_docs(plan):
    plan.ctest.add("docs")
    plan.targets.add("millrace_cli")  # which runs the commands of the pages


def add_module(plan, root, name, module):
    if name.endswith("_fuzz.cpp"):
        plan.left_out.append(f"{name}: a fuzz target; ctest -R fuzz runs it")
    elif name.endswith((".cu", ".cuh", "_cuda.cpp", "_cuda.h", "_cuda_test.cpp")):
        if name.endswith((".cu", "_cuda.cpp", "_cuda_test.cpp")):
            plan.cuda.append(name)
        plan.left_out.append(f"{name}: needs a GPU; `make test-gpu`")
    else:
        plan.add_program(f"test_{module}", module_tests(root, name))


def add_file(plan, root, name):
    parts = pathlib.PurePath(name).parts
    exists = (root / name).exists()
    if name.endswith(CODE) and exists:
        plan.format.append(name)
    if name.endswith(".cpp") and exists and parts[0] == "src" and \
            not re.search(r"_(kernels|test|bench|fuzz|cuda|mpi)\.cpp$", name):
        plan.tidy.append(name)
    elif name.endswith(".h") and parts[0] == "src" and (root / name[:-2]).with_suffix(".cpp").exists():
        plan.tidy.append(name[:-2] + ".cpp")
    if parts[0] == "src" and parts[1] in MODULES or parts[0] == "tests" and parts[1] in MODULES:
        if name.startswith("src/serve/page/"):
            add_page(plan)
        elif name.endswith(CODE):
            add_module(plan, root, name, parts[1])
        else:
            plan.add_program(f"test_{parts[1]}", None)  # data of its tests
    elif parts[0] == "src" and parts[1] == "cli":
        plan.targets.add("millrace_cli")
        add_cli(plan, [re.sub(r"_(options|screen|report|command)$", "", pathlib.PurePath(name).stem)], root)
        add_cli(plan, ["help"], root)
    elif parts[0] == "src" and parts[1] == "pull":
        add_cli(plan, ["pull"], root)
    elif parts[:2] == ("tests", "cli"):
        stem = parts[-1].removesuffix("_test.py")
        if parts[-1].endswith("_test.py"):
            add_cli(plan, [stem], root)
        else:
            plan.left_out.append(f"{name}: many tests of the command line share it; ctest -R '^cli'")
    elif parts[:2] == ("tests", "lab"):
        plan.ctest.add("lab")
        plan.targets |= {"millrace_cli", "millrace_lab"}
    elif parts[:2] == ("tests", "compat"):
        add_cli(plan, ["compat"], root)  # it reads the records and the cases there
        plan.left_out.append(f"{name}: transformers is installed to compare with it; `make test-compat`")
    elif parts[:2] == ("tests", "gpu") or parts[0] in ("bench", "lab") and name.endswith((".cu", ".cuh")):
        if name.endswith((".cu", ".cpp")):
            plan.cuda.append(name)
        plan.left_out.append(f"{name}: needs a GPU; `make test-gpu`")
    elif parts[0] in ("bench", "lab") and name.endswith(CODE):
        plan.add_program(f"test_{parts[0]}", None)
        if parts[0] == "lab":
            plan.targets.add("millrace_lab")
    elif parts[:2] == ("tests", "house"):
        pass  # they run in any case
    elif parts[:2] == ("tests", "contributing") or name.startswith("scripts/check"):
        plan.ctest.add("contributing.pages")
        plan.ctest.add("contributing.check")
    elif parts[:2] == ("docs", "contributing"):
        add_docs(plan)
        plan.ctest.add(f"contributing.{pathlib.PurePath(name).stem}")
    elif name.endswith((".md", ".svg")) or parts[:2] == ("tests", "docs"):
        add_docs(plan)
    elif parts[:2] == ("examples", "learn"):
        plan.ctest.add("example.learn")
    elif parts[:2] == ("tests", "page"):
        add_page(plan)
    elif parts[0] == "python" or parts[:2] == ("tests", "clients"):
        plan.left_out.append(f"{name}: a wheel is built for it; `make test-python`")
    elif parts[0] in ("cmake", "Makefile", "CMakeLists.txt", "CMakePresets.json"):
        plan.left_out.append(f"{name}: the build itself; `make test`")
    else:
        plan.left_out.append(f"{name}: no test is known for it; `make test`")
    for prefix, names in DRIVERS:
        if name.startswith(prefix) and name.endswith(CODE):
            add_cli(plan, names, root)
            break


def plan_for(root, names):
    """The plan for changed files, paths from the root of the tree; those that are gone may be among them."""
    root = pathlib.Path(root)
    plan = Plan()
    for name in sorted(set(names)):
        add_file(plan, root, name)
    plan.ctest.add("house")
    plan.tidy = sorted(set(plan.tidy))
    return plan
