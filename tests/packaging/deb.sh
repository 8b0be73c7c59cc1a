#!/bin/bash
# The packages of packaging/deb: their files are all there, and work when they are unpacked:
# deb.sh SOURCE-FOLDER VERSION
set -u
source=$1 version=$2
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

skip()
{
    echo "skipped: $*"
    exit 77
}

fail()
{
    echo "failed: $*"
    exit 1
}

command -v dpkg-buildpackage >/dev/null && command -v dh >/dev/null || skip "there is no debhelper"
missing=$(dpkg-checkbuilddeps "$source/packaging/debian/control" 2>&1) || skip "$missing"
[ "$(dpkg-parsechangelog -l "$source/packaging/debian/changelog" -S Version)" = "$version" ] ||
    fail "packaging/debian/changelog is not about version $version"
# Only whether they can be built is asked here: no debugging information, no optimisation.
env -u CFLAGS DEB_BUILD_OPTIONS="noautodbgsym parallel=$(nproc)" DEB_CFLAGS_APPEND="-O0 -g0" \
    "$source/packaging/deb" "$work/debs" >"$work/log" 2>&1 || fail "$(tail -40 "$work/log")"
names=$(cd "$work/debs" && printf '%s\n' *.deb | sed 's/_.*//' | sort | tr '\n' ' ')
plugins="libcomm-plugin-chaos libcomm-plugin-mpich libcomm-plugin-nccl libcomm-plugin-openmpi"
[ "$names" = "libcomm-dev $plugins libcomm-tools libcomm0 " ] || fail "the packages are $names"
for package in "$work"/debs/*.deb; do
    dpkg-deb -x "$package" "$work/root" || fail "unpacking $package"
done
libdir=$(dirname "$(find "$work/root" -name libcomm.so.0)")
usr=$work/root/usr
for file in "$libdir/libcomm.so" "$libdir/libcomm.a" "$libdir/comm/libcomm_nccl.so" "$usr/include/comm/comm.h" \
    "$usr/share/man/man1/commrun.1.gz" "$usr/share/bash-completion/completions/commrun"; do
    [ -e "$file" ] || fail "no package has ${file#"$usr"}"
done
readelf -d "$usr/bin/commrun" | grep -qE 'RPATH|RUNPATH' && fail "an installed program has a search path"
export LD_LIBRARY_PATH=$libdir
[ "$("$usr/bin/comm-info" --version 2>&1)" = "$version" ] || fail "comm-info does not start"
"$usr/bin/commrun" -n 2 "$usr/bin/comm-bench" barrier --backend 'cpu:chaos?of=tcp' --repeats 1 \
    >"$work/log" 2>&1 || fail "$(cat "$work/log")"
if command -v lintian >/dev/null; then
    # The packager of libcomm gives the address of the maintainers.
    tags=bogus-mail-host,initial-upload-closes-no-bugs
    complaints=$(lintian --fail-on error --suppress-tags $tags "$work"/debs/*.deb 2>&1) || fail "$complaints"
else
    echo "skipped in part: there is no lintian"
fi
