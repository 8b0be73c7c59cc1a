#!/bin/bash
# The archive of packaging/tarball works where it is unpacked, and again where that is moved to:
# tarball.sh BUILD-FOLDER SOURCE-FOLDER VERSION
set -u
build=$1 source=$2 version=$3
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

fail()
{
    echo "failed: $*"
    exit 1
}

for tool in make pkg-config; do
    command -v $tool >/dev/null || { echo "skipped: there is no $tool"; exit 77; }
done
archive=$("$source/packaging/tarball" "$build" "$work") || fail "$archive"
try()
{
    local place=$1 launched
    [ "$(env -i "$place/bin/comm-info" --version 2>&1)" = "$version" ] || fail "$place: comm-info does not start"
    env -i "$place/bin/comm-info" | grep -q "$place/bin/../lib/comm/libcomm_nccl\.so" ||
        fail "$place: no plugin is found"
    launched=$(env -i "$place/bin/commrun" -n 2 "$place/bin/comm-bench" barrier --repeats 1 2>&1) ||
        fail "$place: $launched"
    PKG_CONFIG_PATH=$place/lib/pkgconfig make -s -C "$place/share/doc/libcomm/examples" clean hello >"$work/log" 2>&1 ||
        fail "$place: $(cat "$work/log")"
    launched=$(env -i LD_LIBRARY_PATH="$place/lib" "$place/bin/commrun" -n 2 \
        "$place/share/doc/libcomm/examples/hello" 2>&1) || fail "$place: $launched"
    [ "$(grep -c 'the ranks add up to 1' <<<"$launched")" = 2 ] || fail "$place: hello says $launched"
}

mkdir "$work/one" && tar -C "$work/one" -xzf "$archive" || fail "unpacking $archive"
unpacked=$(echo "$work"/one/*)
grep -q 'libuv\.so' "$unpacked/INSTALL" || fail "INSTALL does not name what is needed: $(cat "$unpacked/INSTALL")"
try "$unpacked"
mkdir "$work/two" && mv "$unpacked" "$work/two/another-name"
try "$work/two/another-name"
