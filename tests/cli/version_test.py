"""cmake/version.cmake in clones, archives and trees of its own; and the changelog beside the tags."""
import os
import pathlib
import re
import shutil
import subprocess

import driver

CMAKE = os.environ.get("MILLRACE_CMAKE", "cmake")
HEADING = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", re.MULTILINE)


def said(*command, cwd=None):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, cwd=cwd)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.stderr}")
    return done.stdout.strip()


def version(tree, *options):
    return said(CMAKE, *options, "-P", tree / "cmake" / "version.cmake")


class Version(driver.CliTest):
    def tree(self, name="tree"):
        """The files that decide the version, in a folder of their own."""
        tree = self.folder / name
        (tree / "cmake").mkdir(parents=True)
        shutil.copy(driver.SOURCE / "cmake" / "version.cmake", tree / "cmake")
        for file in (".git_archival.txt", ".gitattributes"):
            shutil.copy(driver.SOURCE / file, tree)
        (tree / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-01-02\n"
                                           "\n## [1.2.2] - 2026-01-01\n")
        return tree

    def clone(self):
        if not shutil.which("git"):
            self.skipTest("no git")
        tree = self.tree()

        def git(*words):
            return said("git", "-c", "user.name=A", "-c", "user.email=a@example.org",
                        "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false", *words, cwd=tree)

        git("init", "-q")
        git("add", ".")
        git("commit", "-q", "-m", "one")
        return tree, git, lambda: git("rev-parse", "--short=9", "HEAD")

    def test_a_clone(self):
        tree, git, head = self.clone()
        self.assertEqual(version(tree), f"1.2.3+g{head()}")  # no tag: the changelog and the commit
        git("tag", "v1.2.3")
        self.assertEqual(version(tree), "1.2.3")
        git("tag", "v1.3.0-rc1")  # no version that all packages have a word for
        git("commit", "-q", "--allow-empty", "-m", "two")
        self.assertEqual(version(tree), f"1.2.3+1.g{head()}")
        (tree / "CHANGELOG.md").write_text("# Changelog\n\n## [1.3.0] - 2026-01-03\n")
        git("commit", "-q", "-a", "-m", "three")
        self.assertEqual(version(tree), f"1.2.3+2.g{head()}")  # the tag decides
        git("tag", "-a", "v1.3.0", "-m", "1.3.0")
        self.assertEqual(version(tree), "1.3.0")

    def test_an_archive(self):
        tree, git, head = self.clone()

        def archived(name):
            place = self.folder / name
            git("archive", "-o", f"{place}.tar", "--prefix", f"{name}/", "HEAD")
            said("tar", "-xf", f"{place}.tar", "-C", self.folder)
            return version(place)

        self.assertEqual(archived("none"), f"1.2.3+g{head()}")
        git("tag", "v1.2.3")
        self.assertEqual(archived("tagged"), "1.2.3")
        git("commit", "-q", "--allow-empty", "-m", "two")
        described = git("describe", "--tags").rpartition("-")[2]
        self.assertEqual(archived("later"), f"1.2.3+1.{described}")

    def test_trees_without_history(self):
        tree = self.tree()
        self.assertEqual(version(tree), "1.2.3+unknown")
        self.assertEqual(version(tree, "-DMILLRACE_VERSION=2.0.0"), "2.0.0")
        with self.assertRaisesRegex(AssertionError, "'2.0' is not a version"):
            version(tree, "-DMILLRACE_VERSION=2.0")
        (tree / "PKG-INFO").write_text("Metadata-Version: 2.2\nName: millrace\nVersion: 1.2.4+5.gabc\n")
        self.assertEqual(version(tree), "1.2.4+5.gabc")

    def test_files_stay_as_they_are_until_the_version_changes(self):
        tree = self.tree()
        made = [self.folder / "made" / name for name in ("version.cpp", "version.txt")]
        times = []
        for _ in range(2):
            self.assertEqual(version(tree, f"-DFOLDER={made[0].parent}"), "")
            times.append([file.stat().st_mtime_ns for file in made])
        self.assertEqual(times[0], times[1])
        self.assertEqual(made[1].read_text(), "1.2.3+unknown\n")
        self.assertIn('"1.2.3+unknown"', made[0].read_text())

    def test_this_build_says_one_version(self):
        full = (driver.BUILD / "version" / "version.txt").read_text().strip()
        number = full.split("+")[0]
        self.assertEqual(self.ok("--version").out.split()[1].rstrip(","), full)
        self.assertEqual(self.ok_json("info")["machine"]["version"], full)
        self.assertIn(f"millrace {full}", (driver.BUILD / "pages" / "millrace.1").read_text())
        self.assertIn(f'set(PACKAGE_VERSION "{number}")',
                      (driver.BUILD / "millraceConfigVersion.cmake").read_text())

    def test_the_changelog_is_not_behind_the_tags(self):
        def parts(number):
            return [int(part) for part in number.split(".")]

        headings = HEADING.findall((driver.SOURCE / "CHANGELOG.md").read_text())
        self.assertGreaterEqual(len(headings), 2)
        self.assertEqual(sorted(headings, key=parts, reverse=True), headings)
        newest = version(driver.SOURCE)  # of the tag within reach, or else of the changelog
        self.assertGreaterEqual(parts(headings[0]), parts(newest.split("+")[0]))


if __name__ == "__main__":
    driver.main()
