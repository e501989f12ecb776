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

        def jobs(groups, files):
            with tempfile.TemporaryDirectory(dir=folder) as mount:
                for path, text in files.items():
                    file = pathlib.Path(mount) / path
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(text + "\n")
                (folder / "groups").write_text(groups)
                done = subprocess.run(
                    ["sh", script, folder / "groups", mount], check=True, text=True,
                    capture_output=True,
                    env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})
                return int(done.stdout)

        free = jobs("", {})  # by the machine's own memory
        if not 1 <= free <= 64:
            wrong.append(f"without limits: {free}")
        v2, v1 = "0::/a/b\n", "5:cpu,cpuacct:/a\n4:memory:/a\n1:name=x:/\n"
        cases = [
            (v2, {"a/cpu.max": "100000 100000"}, 1),
            (v2, {"a/b/cpu.max": "max 100000", "cpu.max": "250000 100000"}, min(free, 2)),
            (v2, {"a/b/cpu.max": "50000 100000"}, 1),
            (v2, {"a/b/cpu.max": "max 100000", "a/memory.max": "max"}, free),
            (v2, {"a/memory.max": str(4 * GB)}, min(free, 2)),
            (v2, {"memory.max": str(GB)}, 1),
            (v1, {"cpu/a/cpu.cfs_quota_us": "100000", "cpu/a/cpu.cfs_period_us": "100000"}, 1),
            (v1, {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, free),
            (v1, {"memory/memory.limit_in_bytes": str(GB)}, 1),
            (v1, {"memory/a/memory.limit_in_bytes": "9223372036854771712"}, free),
        ]
        for groups, files, want in cases:
            got = jobs(groups, files)
            if got != want and not (want == free and got >= 1):  # other programs use memory, too
                wrong.append(f"{groups!r} {files}: {got}, not {want}")
    print("\n".join(wrong) or "scripts/jobs.sh keeps to the limits of control groups")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
