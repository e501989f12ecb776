#!/usr/bin/env python3
"""Checks scripts/jobs.sh: the limits of control groups count, of both versions, on all the way up."""
import os
import pathlib
import subprocess
import sys
import tempfile

GB = 10**9


def main() -> int:
    script = pathlib.Path(sys.argv[1]) / "scripts" / "jobs.sh"
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tools = folder / "bin"
        tools.mkdir()
        (tools / "nproc").write_text("#!/bin/sh\necho 64\n")
        (tools / "nproc").chmod(0o755)

        memory = folder / "meminfo"

        def jobs(groups, files, free=1000 * GB):
            memory.write_text(f"MemTotal: 99 kB\nMemAvailable:   {free // 1000} kB\n")
            with tempfile.TemporaryDirectory(dir=folder) as mount:
                for path, text in files.items():
                    file = pathlib.Path(mount) / path
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(text + "\n")
                (folder / "groups").write_text(groups)
                done = subprocess.run(
                    ["sh", script, folder / "groups", mount, memory], check=True, text=True,
                    capture_output=True,
                    env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})
                return int(done.stdout)

        v2, v1 = "0::/a/b\n", "5:cpu,cpuacct:/a\n4:memory:/a\n1:name=x:/\n"
        cases = [
            (v2, {"a/cpu.max": "100000 100000"}, 1),
            (v2, {"a/b/cpu.max": "max 100000", "cpu.max": "250000 100000"}, 2),
            (v2, {"a/b/cpu.max": "50000 100000"}, 1),
            (v2, {"a/b/cpu.max": "max 100000", "a/memory.max": "max"}, 64),
            (v2, {"a/memory.max": str(4 * GB)}, 2),
            (v2, {"memory.max": str(GB)}, 1),
            (v1, {"cpu/a/cpu.cfs_quota_us": "100000", "cpu/a/cpu.cfs_period_us": "100000"}, 1),
            (v1, {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, 64),
            (v1, {"memory/memory.limit_in_bytes": str(GB)}, 1),
            (v1, {"memory/a/memory.limit_in_bytes": "9223372036854771712"}, 64),
        ]
        for free, want in ((1000 * GB, 64), (16 * GB, 10), (GB, 1)):
            if jobs("", {}, free) != want:
                wrong.append(f"{free} bytes free: {jobs('', {}, free)}, not {want}")
        for groups, files, want in cases:
            got = jobs(groups, files)
            if got != want:
                wrong.append(f"{groups!r} {files}: {got}, not {want}")
    print("\n".join(wrong) or "scripts/jobs.sh keeps to the limits of control groups")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
