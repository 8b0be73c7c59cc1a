#!/bin/bash
# Each public header compiles alone, as C11 and as C++17, without a warning: headers.sh INCLUDE-FOLDER
set -u
include=$1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

tried=0
failed=0
# try COMPILER LANGUAGE STANDARD HEADER; an absent compiler is left out.
try()
{
    command -v "$1" >/dev/null || return 0
    tried=$((tried + 1))
    # Twice, because a header must also bear being included again.
    printf '#include <comm/%s>\n#include <comm/%s>\n' "$4" "$4" >"$work/alone.c"
    if ! "$1" -x "$2" -std="$3" -Wall -Wextra -Werror -pedantic -I"$include" -fsyntax-only "$work/alone.c"; then
        echo "comm/$4 does not compile alone as $3 with $1"
        failed=$((failed + 1))
    fi
}

for header in "$include"/comm/*.h; do
    header=${header##*/}
    try gcc c c11 "$header"
    try clang c c11 "$header"
    try g++ c++ c++17 "$header"
    try clang++ c++ c++17 "$header"
done
# A backend in C++, as an author would compile it.
for compiler in g++ clang++; do
    command -v $compiler >/dev/null || continue
    tried=$((tried + 1))
    $compiler -std=c++17 -Wall -Wextra -Wpedantic -Werror -I"$include" -fsyntax-only "${0%/*}/mine.cc" ||
        failed=$((failed + 1))
done
echo "$tried compilations, $failed failed"
[ $tried -gt 0 ] && [ $failed = 0 ]
