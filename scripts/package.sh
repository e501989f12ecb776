#!/bin/sh
# Makes the packages of docs/packages.md in out/: archives, .deb packages, a wheel.
# usage: package.sh [CMAKE OPTION...]     e.g. -DMILLRACE_CUDA=OFF
set -eu
cd "$(dirname "$0")/.."
build=build/package
jobs=$(scripts/jobs.sh)

cmake --preset package "$@"
cmake --build $build -j "$jobs"

rm -rf out/packages.new
mkdir -p out/packages.new
kinds=TGZ
if command -v dpkg-shlibdeps >/dev/null; then
    kinds="TGZ;DEB"
else
    echo "package: no .deb without dpkg-shlibdeps (Debian: dpkg-dev)" >&2
fi
cpack --config $build/CPackConfig.cmake -G "$kinds" -B "$PWD/out/packages.new"
rm -rf out/packages.new/_CPack_Packages

# pip fetches what builds the wheel (pyproject.toml); the engine's objects are those of the build.
wheel() {
    if ! [ -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; then
        echo "package: no wheel without Python.h (Debian: python3-dev)" >&2
    elif ! { [ -x $build/venv/bin/pip ] || python3 -m venv $build/venv; }; then
        echo "package: no wheel without a virtual environment (Debian: python3-venv)" >&2
    else
        $build/venv/bin/pip wheel . --no-deps --disable-pip-version-check -w out/packages.new \
            --config-settings "build-dir=$build/python" \
            --config-settings "cmake.define.MILLRACE_BUILD_DIR=$PWD/$build" # -C: not in pip 23.0
    fi
}
status=0
wheel || status=1 # the other packages are good

(cd out/packages.new && sha256sum -- *) >out/SHA256SUMS
mv out/SHA256SUMS out/packages.new
rm -rf out/packages
mv out/packages.new out/packages
ls -l out/packages
exit $status
