#!/bin/sh
# Installed with the library: make the static one show what the shared one does, no more. Its objects become one
# object whose hidden symbols are local, so that a function of a program that links it may be called link_up or
# group_create, too.
#     hide_symbols.sh LIBDIR
set -eu
case $1 in
    /*) archive=${DESTDIR-}$1/libcomm.a ;;
    *) archive=$MESON_INSTALL_DESTDIR_PREFIX/$1/libcomm.a ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
${LD:-ld} -r --whole-archive "$archive" -o "$work/libcomm.o"
${OBJCOPY:-objcopy} --localize-hidden "$work/libcomm.o"
rm -f "$archive"
${AR:-ar} rcs "$archive" "$work/libcomm.o"
