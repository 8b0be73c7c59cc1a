#!/usr/bin/env python3
"""Pack the peers' programs with their launchers and libraries: packing.py FILE.tar.gz BUILD-FOLDER

tools/compare --peers-from takes the unpacked folder on a machine that has none of these packages; a peer that is not
installed here is left out, with a line that says why. bin/ has launchers and programs, lib/ the libraries and in
folders of their own the plug-ins of Open MPI and UCX, share/ and etc/ what Open MPI reads, pmix/ the plug-ins of PMIx.
"""
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

from libraries import PROGRAMS, Unavailable, build, programs_folder

OF_THE_SYSTEM = ("linux-vdso", "ld-linux", "libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libgcc_s",
                 "libresolv.so", "libutil.so")


def needed_libraries(paths):
    """What the loader takes for these files, but for the C library's own."""
    done = subprocess.run(["ldd", *map(str, paths)], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow and rest.startswith("/") and not name.startswith(OF_THE_SYSTEM):
            yield name, pathlib.Path(rest.split(" (")[0])


def copy_stripped(files, target):
    """`files`: {name in the target: path}."""
    for name, path in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / name)
        with open(path, "rb") as file:
            is_elf = file.read(4) == b"\x7fELF"
        if is_elf:
            subprocess.run(["strip", "--strip-unneeded", str(target / name)], capture_output=True)


def launchers(names):
    for name in names:
        path = shutil.which(name)
        if not path:
            raise Unavailable(f"{name} is not installed")
        yield f"bin/{name}", pathlib.Path(path)


def below(folder, name, pattern="*"):
    return {f"{name}/{path.relative_to(folder)}": path for path in folder.rglob(pattern) if path.is_file()}


def files_of_open_mpi():
    files = dict(launchers(["mpirun.openmpi", "orted"]))
    told = subprocess.run(["ompi_info", "--path", "all", "--parsable"], capture_output=True, text=True).stdout
    folders = {line.split(":")[1]: pathlib.Path(line.split(":", 2)[2]) for line in told.splitlines()
               if line.startswith("path:")}
    files.update(below(folders["pkglibdir"], "lib/openmpi", "*.so"))
    files.update(below(folders["pkgdatadir"], "share/openmpi"))
    files.update(below(folders["sysconfdir"], "etc/openmpi"))
    return files


def plugins(libraries):
    """Of what the peers are linked with: {name: path}."""
    for name, path in libraries.items():
        folder = path.resolve().parent
        if name.startswith("libpmix.so"):
            yield from below(folder / "pmix", "pmix/lib/pmix", "*.so").items()
            yield from below(folder.parent / "share", "pmix/share").items()
        elif name.startswith("libucs.so"):
            yield from below(folder / "ucx", "lib/ucx", "*.so*").items()


OTHERS = {"openmpi": files_of_open_mpi, "mpich": lambda: dict(launchers(["mpiexec.mpich", "hydra_pmi_proxy"])),
          "gloo": dict}


def pack_peers(target, build_folder):
    """Write the archive; the names of the peers that are in it."""
    packed, files = [], {}
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        folder = pathlib.Path(folder)
        for name, arguments in PROGRAMS.items():
            try:
                program = build(programs_folder(build_folder, folder), name, *arguments)
                files.update(OTHERS[name]())
                files[f"bin/{name}"] = pathlib.Path(program)
                packed.append(name)
            except Unavailable as reason:
                print(f"leaving out {name}: {reason}", flush=True)
        code = [path for name, path in files.items() if name.startswith("bin/") or ".so" in name]
        libraries = dict(needed_libraries(code)) if code else {}
        more = dict(plugins(libraries))
        libraries.update(needed_libraries([path for name, path in more.items() if ".so" in name]) if more else {})
        files.update(more)
        files.update({f"lib/{name}": path for name, path in libraries.items()})
        tree = folder / "tree"
        tree.mkdir()
        copy_stripped(files, tree)
        with tarfile.open(target, "w:gz", compresslevel=6) as archive:
            for path in sorted(tree.iterdir()):
                archive.add(path, path.name)
    return packed


if __name__ == "__main__":
    print("packed:", ", ".join(pack_peers(sys.argv[1], sys.argv[2])) or "no peer")
