"""The packages of this build, unpacked elsewhere: the same text, the version in every name, and no
library that the .deb does not ask for. scripts/check-package.sh installs them into bare systems."""
import os
import pathlib
import platform
import re
import shutil
import subprocess
import unittest

import driver

CPACK = pathlib.Path(shutil.which(os.environ.get("MILLRACE_CMAKE", "cmake"))).with_name("cpack")
RUN = ["run", "-p", "Once upon a time", "-n", "30", "--seed", "1", "-q", "--device", "cpu"]


def said(*command, **given):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=250, **given)
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: {done.returncode}\n{text}")
    return text


@unittest.skipIf(os.environ.get("MILLRACE_SANITIZE"), "a sanitizer's libraries are not packed")
class Package(driver.CliTest):
    def pack(self, kind):
        """The program's package, uncompressed where the format allows it."""
        folder = self.folder / kind
        said(CPACK, "--config", driver.BUILD / "CPackConfig.cmake", "-G", kind, "-B", folder,
             "-D", "CPACK_COMPONENTS_ALL=program", "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=none")
        [made] = [path for path in folder.iterdir() if path.is_file()]
        return made

    def version(self):
        return (driver.BUILD / "version" / "version.txt").read_text().strip()

    def runs(self, program):
        """`program` elsewhere, without an environment, does what the build's does."""
        bare = {"env": {}, "cwd": "/"}
        expected = said(driver.BIN, *RUN, **bare)
        self.assertGreater(len(expected), 60)
        self.assertEqual(said(program, *RUN, **bare), expected)
        model = driver.Result(0, said(program, "info", "storyteller", "--json", "--device", "cpu",
                                      **bare).encode(), b"").json()["model"]
        self.assertEqual(pathlib.Path(model["source"]),
                         program.parents[1] / "share" / "millrace" / "models" / "storyteller.gguf")
        self.assertEqual(said(program, "--version", **bare).split()[1].rstrip(","), self.version())

    def test_the_archive(self):
        archive = self.pack("TGZ")
        name = f"millrace-{self.version()}-linux-{platform.machine()}"
        self.assertRegex(archive.name, re.escape(name) + r"(-cuda\d+)?\.tar\.gz$")
        said("tar", "-xzf", archive, "-C", self.folder)
        root = self.folder / archive.name[:-len(".tar.gz")]
        self.runs(root / "bin" / "millrace")
        self.assertEqual((root / "bin" / "millrace-pull").exists(),
                         (driver.BUILD / "millrace-pull").exists())
        share = root / "share"
        for file in ("doc/millrace/LICENSE", "doc/millrace/README.md", "man/man1/millrace.1",
                     "bash-completion/completions/millrace", "millrace/models/storyteller.gguf",
                     "millrace/models/storyteller-diffusion.gguf"):
            self.assertTrue((share / file).exists(), file)
        self.assertIn(self.version(), (share / "man/man1/millrace.1").read_text())

    @unittest.skipUnless(shutil.which("dpkg-shlibdeps"), "no dpkg-shlibdeps (Debian: dpkg-dev)")
    def test_the_deb(self):
        try:
            deb = self.pack("DEB")
        except AssertionError as failed:
            if "no dependency information found" not in str(failed):
                raise
            self.skipTest(f"a library here is not from a package:\n{failed}")
        fields = dict(re.findall(r"^([A-Z][\w-]*): (.*)$", said("dpkg-deb", "-f", deb), re.MULTILINE))
        self.assertEqual(fields["Version"], self.version())
        self.assertEqual(fields["Architecture"],
                         said("dpkg", "--print-architecture").strip())
        self.assertEqual(deb.name, f"{fields['Package']}_{fields['Version']}_"
                                   f"{fields['Architecture']}.deb")
        root = self.install(deb)
        program = root / "usr" / "bin" / "millrace"
        self.runs(program)
        wanted = {word.split()[0] for word in re.split(r"[,|]\s*", fields["Depends"])}
        self.assertIn("libc6", wanted)
        for one in program.parent.iterdir():
            for library in re.findall(r"\(NEEDED\).*\[(.+)\]", said("readelf", "-d", one)):
                self.assertIn(self.owner(library, one), wanted, f"{one.name}: {library}")

    def install(self, deb):
        """By dpkg itself where we are root, against what is installed here; else unpacked."""
        root = self.folder / "root"
        if os.geteuid() != 0:
            said("dpkg-deb", "-x", deb, root)
            return root
        admin = root / "var" / "lib" / "dpkg"
        for folder in ("info", "updates"):
            (admin / folder).mkdir(parents=True)
        shutil.copy("/var/lib/dpkg/status", admin / "status")
        said("dpkg", f"--root={root}", "--log=/dev/null", "--install", deb)
        return root

    def owner(self, library, program):
        """The package with the file that the loader takes for `library`."""
        for line in said("ldd", program).splitlines():
            words = line.split()
            if words and pathlib.Path(words[0]).name == library:
                path = words[2] if "=>" in words else words[0]
                for place in (os.path.realpath(path), path, f"/usr{path}"):
                    owner = subprocess.run(["dpkg", "-S", place], stdout=subprocess.PIPE,
                                           stderr=subprocess.DEVNULL, text=True)
                    if owner.returncode == 0:
                        return owner.stdout.split(":")[0]
        return f"no package has {library}"


if __name__ == "__main__":
    driver.main()
