#!/bin/bash
# Install into a fresh folder, and build and run the examples against it as a stranger would:
# consumer.sh pkg-config|cmake BUILD-FOLDER PREFIX SOURCE-FOLDER VERSION PROGRAM...
set -u
how=$1 build=$2 prefix=$3 source=$4 version=$5
shift 5
examples=()
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
command -v make >/dev/null || [ "$how" != pkg-config ] || skip "there is no make"
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

cp -R "$installed/share/doc/libcomm/examples" "$work/examples"
for example in "$source"/examples/*.c "$source"/examples/*.py; do
    [ -e "$work/examples/${example##*/}" ] || fail "$example was not installed"
    [[ $example == *.py || $example == *train_* ]] || examples+=("$(basename "$example" .c)")
done
cd "$work/examples" || exit 1
if [ "$how" = pkg-config ]; then
    export PKG_CONFIG_PATH=$libdir/pkgconfig
    # pkgconf finds the prefix from where the .pc file lies.
    flags() { pkg-config --define-prefix "$@" libcomm; }
    [ "$(pkg-config --modversion libcomm)" = "$version" ] || fail "pkg-config has another version than $version"
    strict="-O2 -Wall -Wextra -Werror"
    make PKG_CONFIG="pkg-config --define-prefix" CFLAGS="$strict -I$installed/include" LDFLAGS="-L$libdir" \
        >"$work/log" 2>&1 || fail "make: $(cat "$work/log")"
    gcc -std=c11 $strict hello.c -I"$installed/include" "-L$libdir" \
        $(flags --static --cflags --libs | sed 's/-lcomm\>/-l:libcomm.a/') -o hello_static ||
        fail "linking with the static library"
    # Nothing is shared; the linker warns that names are resolved by what is.
    gcc -std=c11 $strict -static hello.c $(flags --static --cflags --libs) -o "$installed/bin/hello_bare" \
        2>"$work/log" || fail "linking statically: $(cat "$work/log")"
    [ -z "$(readelf -d "$installed/bin/hello_bare" | grep NEEDED)" ] || fail "a static program needs libraries"
    run "$installed/bin/hello_bare" static
else
    cmake -G Ninja -S . -B . -DCMAKE_PREFIX_PATH="$installed" >"$work/log" 2>&1 && cmake --build . >>"$work/log" 2>&1 ||
        fail "$(cat "$work/log")"
    mkdir "$work/later" && cat >"$work/later/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.16)
project(later C)
find_package(libcomm 9 CONFIG QUIET)
if(libcomm_FOUND)
  message(FATAL_ERROR "a request for version 9 was met")
endif()
CMAKE
    cmake -G Ninja -S "$work/later" -B "$work/later" -DCMAKE_PREFIX_PATH="$installed" >"$work/log" 2>&1 ||
        fail "$(cat "$work/log")"
fi
for example in "${examples[@]}"; do
    [ -e "$example" ] || [ -e "libcomm_${example#*_}.so" ] || fail "$example was not built"
done
run ./hello shared
run ./hello_static static
# A program that has libcomm in itself finds the plugins from where it lies, also if it is called by its bare name.
cp hello_static "$installed/bin/hello_static"
env -i PATH="$installed/bin:$PATH" COMM_BACKEND='cpu:chaos?of=tcp' commrun -n 2 -- hello_static >"$work/output" 2>&1 ||
    fail "a plugin for a static program: $(cat "$work/output")"
"$installed/bin/commrun" -n 2 -- ./train_bytes --steps 2 hello.c >"$work/output" 2>&1 ||
    fail "train_bytes: $(cat "$work/output")"
readelf -d libcomm_lightgbm.so | grep -q 'NEEDED.*libcomm\.so\.0' || fail "the adapter for LightGBM needs no libcomm"
COMM_PLUGIN_PATH=$PWD "$installed/bin/commrun" -n 2 -- "$installed/bin/comm-bench" all_reduce \
    --backend 'cpu:skeleton?max_bytes=64K' --bytes 64 --iterations 2 --repeats 1 >"$work/output" 2>&1 ||
    fail "the example backend: $(cat "$work/output")"
"$installed/bin/comm-backend-check" -n 2 --only local ./libcomm_skeleton.so >"$work/output" 2>&1 ||
    fail "the example backend: $(cat "$work/output")"
