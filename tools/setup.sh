# What tools/demo, tools/test and .ci/run share; sourced, never run. The caller has set `root` to the source folder.
#
# The package lists are the only place that says what libcomm needs. Everything else here asks dpkg what is missing, and
# runs meson.

# To build the library, the programs and the example.
needed_packages="gcc libc6-dev meson ninja-build pkg-config libuv1-dev libsodium-dev libxxhash-dev libjansson-dev"

# To build the tests at all.
test_packages="libcmocka-dev"

# To run all of the tests: those that need an absent one of these skip and say so.
optional_packages="g++ clang cmake binutils iproute2 gnuplot-nox openmpi-bin libopenmpi-dev mpich libmpich-dev \
python3-torch python3-pip python3-venv python3-dev universal-ctags man-db mandoc zsh make \
build-essential debhelper lintian"

say()
{
    printf '%s: %s\n' "${0##*/}" "$*"
}

die()
{
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# missing PACKAGE...: print those that dpkg does not have installed.
missing()
{
    local package
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || printf '%s ' "$package"
    done
}

# obtainable PACKAGE...: print those that the archive has, so that one unknown name does not spoil the rest.
obtainable()
{
    local package
    for package in "$@"; do
        apt-cache policy "$package" 2>/dev/null | grep -q 'Candidate: [^(]' && printf '%s ' "$package"
    done
}

apt_get()
{
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 "$@" </dev/null
}

# install_packages NEEDED [OPTIONAL]: install what is missing. As another user than root, say what to type; without a
# needed package that is the end, without an optional one some tests will skip.
install_packages()
{
    local needed optional
    if ! command -v dpkg-query >/dev/null; then
        say "this is not a Debian system, so nothing is installed; needed are, by their Debian names: $1"
        return
    fi
    needed=$(missing $1)
    optional=$(missing ${2-})
    [ -n "$needed$optional" ] || return 0
    if [ "$(id -u)" != 0 ]; then
        say "some packages are missing; please type:"
        printf '    sudo apt-get install --no-install-recommends %s\n' "$needed$optional"
        [ -z "$needed" ] || exit 1
        say "going on without; the tests that need them will skip"
        return
    fi
    say "about to install these Debian packages: $needed$optional"
    apt_get update || say "apt-get update failed; trying with the package lists that are there"
    optional=$(obtainable $optional)
    if [ -n "$needed" ]; then
        apt_get install --no-install-recommends $needed || die "apt-get could not install: $needed"
    fi
    if [ -n "$optional" ]; then
        apt_get install --no-install-recommends $optional ||
            say "apt-get could not install: $optional(the tests that need them will skip)"
    fi
}

# build FOLDER [MESON-OPTION...]: configure (or reconfigure) a build folder, and compile everything in it.
build()
{
    local folder=$1
    shift
    # Programs find the library beside them, for which the loader asks /proc; a bare chroot may have none.
    [ -e /proc/self/exe ] || export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    if [ -e "$folder/build.ninja" ]; then
        [ $# = 0 ] || meson configure "$folder" "$@" || return
    else
        meson setup "$folder" "$root" "$@" || return
    fi
    meson compile -C "$folder"
}
