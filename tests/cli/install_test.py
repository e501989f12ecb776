"""An install tree used by another project: find_package, ten lines, run."""
import os
import pathlib
import subprocess

import driver

CMAKE = os.environ.get("MILLRACE_CMAKE", "cmake")


class Install(driver.CliTest):
    def command(self, *arguments):
        done = subprocess.run([str(a) for a in arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=280)
        self.assertEqual(done.returncode, 0, done.stdout.decode("utf-8", "replace"))
        return done.stdout.decode("utf-8", "replace")

    def test_the_installed_package(self):
        prefix = self.folder / "prefix"
        self.command(CMAKE, "--install", driver.BUILD, "--prefix", prefix)
        # Without the fault-injection program, which is only for tests.
        programs = ["millrace", "millrace-lab"]
        if (pathlib.Path(driver.BUILD) / "millrace-pull").exists():  # built with libcurl
            programs.append("millrace-pull")
        self.assertEqual(sorted(path.name for path in (prefix / "bin").iterdir()), programs)
        self.assertTrue((prefix / "include" / "millrace" / "millrace.h").exists())
        self.assertTrue(list(prefix.glob("lib*/**/libmillrace.a")))
        if (pathlib.Path(driver.BUILD) / "libmillrace_kernels.a").exists():  # built with nvcc
            self.assertTrue((prefix / "include" / "millrace" / "attention.h").exists())
            self.assertTrue(list(prefix.glob("lib*/**/libmillrace_kernels.a")))
        for page in ("man/man1/millrace.1", "bash-completion/completions/millrace",
                     "zsh/site-functions/_millrace", "fish/vendor_completions.d/millrace.fish"):
            self.assertIn("decode", (prefix / "share" / page).read_text(), page)
        version = self.command(prefix / "bin" / "millrace", "--version")
        self.assertTrue(version.startswith("millrace "), version)

        flags = []
        if sanitizers := os.environ.get("MILLRACE_SANITIZE"):
            flags = [f"-DCMAKE_CXX_FLAGS=-fsanitize={sanitizers}"]
        build = self.folder / "build"
        self.command(CMAKE, "-S", driver.SOURCE / "examples" / "hello", "-B", build, "-G", "Ninja",
                     f"-DCMAKE_PREFIX_PATH={prefix}",
                     f"-DCMAKE_CXX_COMPILER={os.environ.get('MILLRACE_CXX', 'c++')}", *flags)
        self.command(CMAKE, "--build", build)
        hello = build / "hello"
        text = self.command(hello, driver.REFERENCE / "llama2")
        self.assertGreater(len(text), 10)

        done = subprocess.run([str(hello), "missing.gguf"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"missing.gguf", done.stderr)


if __name__ == "__main__":
    driver.main()
