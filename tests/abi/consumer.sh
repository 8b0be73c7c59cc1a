#!/bin/bash
# Install into a fresh folder, and build and run a program against it as a stranger would:
# consumer.sh pkg-config|cmake BUILD-FOLDER PREFIX SOURCE-FOLDER VERSION PROGRAM...
set -u
how=$1 build=$2 prefix=$3 source=$4 version=$5
shift 5
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

# The installation is moved by DESTDIR, so what finds the library must not depend on the prefix.
command -v "$how" >/dev/null || skip "there is no $how"
DESTDIR="$work" meson install -C "$build" --no-rebuild >"$work/log" 2>&1 || fail "$(cat "$work/log")"
installed=$work$prefix
library=$(find "$installed" -name libcomm.so.0) && [ -n "$library" ] || fail "no libcomm.so.0 was installed"
libdir=${library%/*}
for program in "$@"; do
    [ -x "$installed/bin/$program" ] || fail "$program was not installed"
    # Nothing but the installation itself leads to the library: the loader knows neither this folder nor the prefix.
    [ "$(env -i "$installed/bin/$program" --version 2>&1)" = "$version" ] ||
        fail "$program does not start by itself: $(env -i "$installed/bin/$program" --version 2>&1)"
done
env -i "$installed/bin/commrun" -n 2 -- "$installed/bin/comm-bench" barrier --repeats 1 >"$work/output" 2>&1 ||
    fail "the installed programs: $(cat "$work/output")"
# The plugin for GPUs is found beside the library, and nothing is linked to CUDA or NCCL.
env -i "$installed/bin/comm-info" | grep -q '^  nccl .*/comm/libcomm_nccl\.so' ||
    fail "comm-info does not find the plugin: $(env -i "$installed/bin/comm-info" | grep -A3 '^backends')"
for object in "$libdir/libcomm.so.0" "$libdir/comm/libcomm_nccl.so"; do
    ! readelf -d "$object" | grep NEEDED | grep -qE 'cuda|cudart|nccl' || fail "$object needs CUDA or NCCL"
done
for program in "$@"; do
    [ ! -e "$build/packaging/$program.1" ] && continue # a build without Python has none
    for page in "man/man1/$program.1" "bash-completion/completions/$program" "zsh/site-functions/_$program"; do
        [ -s "$installed/share/$page" ] || fail "share/$page was not installed"
    done
done
for text in "$source"/LICENSE "$source"/README.md "$source"/docs/*.md; do
    [ -s "$(find "$installed" -path "*/doc/libcomm/${text##*/}")" ] || fail "$text was not installed"
done
export LD_LIBRARY_PATH=$libdir
others=$(nm -g --defined-only "$libdir/libcomm.a" | awk 'NF == 3 && $3 !~ /^comm_[a-z]/ { print $3 }')
[ -z "$others" ] || fail "libcomm.a shows symbols that a program might have too:" $others

# run PROGRAM shared|static: it must work on 2 ranks, and need libcomm.so only if it is the shared one.
run()
{
    if readelf -d "$1" | grep -q 'NEEDED.*libcomm\.so\.0'; then
        [ "$2" = shared ] || fail "$1 needs libcomm.so, but should be static"
    else
        [ "$2" = static ] || fail "$1 does not need libcomm.so.0"
    fi
    "$installed/bin/commrun" -n 2 -- "$1" >"$work/output" 2>&1 || fail "$2: $(cat "$work/output")"
    [ "$(grep -c 'the ranks add up to 1' "$work/output")" = 2 ] || fail "$2: $(cat "$work/output")"
    echo "$how, $2: $(head -1 "$work/output")"
}

cp "$source/examples/hello.c" "$work/hello.c"
cd "$work" || exit 1
if [ "$how" = pkg-config ]; then
    export PKG_CONFIG_PATH=$libdir/pkgconfig
    # pkgconf finds the prefix from where the .pc file lies.
    flags() { pkg-config --define-prefix "$@" libcomm; }
    [ "$(pkg-config --modversion libcomm)" = "$version" ] || fail "pkg-config has another version than $version"
    libdir_flag=-L$libdir
    gcc -std=c11 -Wall -Wextra -Werror hello.c -I"$installed/include" $libdir_flag $(flags --cflags --libs) -o shared ||
        fail "linking with the shared library"
    gcc -std=c11 -Wall -Wextra -Werror hello.c -I"$installed/include" $libdir_flag \
        $(flags --static --cflags --libs | sed 's/-lcomm\>/-l:libcomm.a/') -o static ||
        fail "linking with the static library"
    # A plugin, as docs/backends.md says: the headers only.
    gcc -std=c11 -O2 -Wall -Wextra -Werror -fPIC -shared $(flags --cflags) -I"$installed/include" \
        "$installed"/share/doc/libcomm/backend_skeleton.c -o libcomm_skeleton.so -pthread ||
        fail "compiling the example backend"
    COMM_PLUGIN_PATH=$work "$installed/bin/commrun" -n 2 -- "$installed/bin/comm-bench" all_reduce \
        --backend 'cpu:skeleton?most_bytes=64K' --bytes 64 --iterations 2 --repeats 1 >"$work/output" 2>&1 ||
        fail "the example backend: $(cat "$work/output")"
    "$installed/bin/comm-backend-check" -n 2 --only local ./libcomm_skeleton.so >"$work/output" 2>&1 ||
        fail "the example backend: $(cat "$work/output")"
else
    cat >CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.16)
project(consumer C)
find_package(libcomm 0.1 CONFIG REQUIRED)
add_executable(shared hello.c)
target_link_libraries(shared PRIVATE libcomm::shared)
add_executable(static hello.c)
target_link_libraries(static PRIVATE libcomm::static)
find_package(libcomm 9 CONFIG QUIET)
if(libcomm_FOUND)
  message(FATAL_ERROR "a request for version 9 was met")
endif()
CMAKE
    cmake -G Ninja -S . -B . -DCMAKE_PREFIX_PATH="$installed" >log 2>&1 && cmake --build . >>log 2>&1 ||
        fail "$(cat log)"
fi
run ./shared shared
run ./static static
