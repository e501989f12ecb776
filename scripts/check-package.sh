#!/bin/sh
# Installs a .deb into bare systems, made for it and thrown away, and runs the program there as a
# user without rights or environment. Its text has to be the one that it writes here.
# usage: check-package.sh DEB [SUITE...]     SUITE: bookworm noble, if none is given
# Needs mmdebstrap, and root or user namespaces. MIRROR: a mirror, or a whole line for sources.list,
# e.g. MIRROR='deb [trusted=yes] http://MIRROR/ubuntu noble main' where Ubuntu's keys are not here.
set -eu
deb=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- bookworm noble

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 777 "$work" # in a user namespace we are someone else
story='run -p "Once upon a time" -n 30 --seed 1 -q --device cpu'

dpkg-deb -x "$deb" "$work/here"
(cd / && eval "env -i $work/here/usr/bin/millrace $story") >"$work/expected"
[ -s "$work/expected" ]

failed=0
for suite in "$@"; do
    echo "== $suite"
    cp "$deb" "$work/package.deb"
    # shellcheck disable=SC2016 # "$1" is the hook's: the folder of the new system
    if mmdebstrap --quiet --variant=apt --customize-hook="copy-in $work/package.deb /tmp" \
        --customize-hook='chroot "$1" apt-get install -qq -y --no-install-recommends /tmp/package.deb' \
        --customize-hook='chroot "$1" sh -c ". /etc/os-release; echo \$PRETTY_NAME; ldd /usr/bin/millrace"' \
        --customize-hook='cd /; chroot --userspec=65534:65534 "$1" /usr/bin/env -i /usr/bin/millrace '"$story >$work/$suite" \
        --customize-hook='chroot "$1" apt-get purge -qq -y "millrace*" && test ! -e "$1/usr/bin/millrace"' \
        "$suite" /dev/null ${MIRROR:+"$MIRROR"} && cmp "$work/expected" "$work/$suite"; then
        echo "$suite: the same text:"
        cat "$work/$suite"
    else
        echo "$suite: failed" >&2
        failed=1
    fi
done
exit $failed
