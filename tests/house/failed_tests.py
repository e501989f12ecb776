"""scripts/failed_tests.py shows the end of what each failed test printed.

usage: failed_tests.py SOURCE CTEST"""
import pathlib
import subprocess
import sys
import tempfile

source, ctest = pathlib.Path(sys.argv[1]), sys.argv[2]
TESTS = """add_test(passes sh -c "echo fine")
add_test(fails sh -c "seq 1000 1060; echo the cause; exit 3")
add_test(silent false)
add_test(no_such_program /no/such/program)
"""


def shown(folder):
    return subprocess.run([sys.executable, "-B", source / "scripts" / "failed_tests.py", folder],
                          capture_output=True, text=True, check=True).stdout


with tempfile.TemporaryDirectory() as folder:
    assert shown(folder).startswith("the failed tests are not known: "), shown(folder)
    pathlib.Path(folder, "CTestTestfile.cmake").write_text(TESTS)
    assert subprocess.run([ctest, "--test-dir", folder], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode != 0
    said = shown(folder)
    assert "==== fails, the last 40 lines\n1022\n" in said and "\n1060\nthe cause\n\n" in said, said
    assert "\n==== silent\n(no output)\n" in said, said
    assert "\n==== no_such_program\n" in said and "passes" not in said and "fine" not in said, said
