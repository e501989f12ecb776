"""The package's version, for scikit-build-core: what cmake/version.cmake says."""
import pathlib
import shutil
import subprocess

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "cmake" / "version.cmake"


def dynamic_metadata(field, settings=None, project=None):
    if field != "version":
        raise ValueError(f"{field}: only the version is known")
    said = subprocess.run(["cmake", "-P", str(SCRIPT)], check=True, stdout=subprocess.PIPE, text=True)
    return said.stdout.strip()


def get_requires_for_dynamic_metadata(settings=None):
    return [] if shutil.which("cmake") else ["cmake>=3.25"]
