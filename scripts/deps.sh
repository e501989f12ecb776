#!/bin/sh
# Installs the packages the build needs, and only those that are missing. If all are there, it needs
# neither network nor root.
# usage: deps.sh [--program]     --program: without what only tests and MPI need
set -u

case "$*" in
    "") program_only= ;;
    --program) program_only=1 ;;
    *)
        echo "usage: deps.sh [--program]" >&2
        exit 2
        ;;
esac

missing=
wanted= # missing, but the build works without
want() { # arguments as for need
    package=$1
    shift
    "$@" >/dev/null 2>&1 || wanted="$wanted $package"
}
need() { # PACKAGE, then a command that succeeds if it is installed
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
header() { # searches the compiler's usual folders
    for folder in /usr/include /usr/local/include; do
        [ -e "$folder/$1" ] && return 0
    done
    return 1
}
at_least() { # COMMAND VERSION: whether the first x.y in its --version is at least VERSION
    found=$("$1" --version 2>/dev/null | grep -oE '[0-9]+\.[0-9]+' | head -n 1)
    [ -n "$found" ] && [ "$(printf '%s\n%s\n' "$2" "$found" | sort -V | head -n 1)" = "$2" ]
}

need g++ command -v "${CXX:-c++}"
need cmake at_least cmake 3.25
need ninja-build command -v ninja
need libcli11-dev header CLI/CLI.hpp
need nlohmann-json3-dev header nlohmann/json.hpp
need libfmt-dev header fmt/core.h
# For HTTP in `millrace serve`.
need libboost-dev header boost/beast/http/parser.hpp
# For line editing in `millrace chat`.
want libedit-dev header histedit.h
want pkg-config command -v pkg-config
# For `millrace pull`, by a program of its own.
want libcurl4-openssl-dev command -v curl-config
want libssl-dev header openssl/evp.h
if [ -z "$program_only" ]; then
    need python3 command -v python3
    need libgtest-dev header gtest/gtest.h
    # For training one model with several processes (ranks).
    want libopenmpi-dev command -v mpicxx
    want openmpi-bin command -v mpirun
fi

[ -n "$missing$wanted" ] || exit 0

fail() {
    if [ -z "$required" ]; then
        echo "deps: optional packages missing:$wanted (line editing in chat, millrace pull, MPI)" >&2
        exit 0
    fi
    echo "deps: $1$required" >&2
    exit 1
}
required=$missing
missing="$missing$wanted"

command -v apt-get >/dev/null 2>&1 || fail "no apt-get here; install by hand what Debian calls:"
root=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || fail "not root, and no sudo; as root: apt-get install"
    root="sudo -n"
    [ -t 0 ] && [ -n "$required" ] && root="sudo" # may ask for a password
fi
echo "deps: installing$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The package lists may be old or absent: try with the present ones, then with fresh ones.
install() {
    # shellcheck disable=SC2086 # $root and $missing are lists of words
    $root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends $missing >"$log" 2>&1 </dev/null
}
if ! install; then
    # shellcheck disable=SC2086
    $root apt-get update >/dev/null 2>&1 </dev/null
    if ! install; then
        missing=$required
        if [ -z "$required" ] || ! install; then
            tail -n 5 "$log" >&2
            fail "apt-get could not install:"
        fi
    fi
fi
