#!/usr/bin/env python3
"""A virtual environment with a PyTorch from PyPI that can be imported on a machine without CUDA.

    pypi_torch.py FOLDER [VERSION]

PyPI's wheels for Linux are linked to gigabytes of CUDA libraries, of which a program that uses the CPU calls nothing.
So PyTorch is installed without its dependencies but those that are Python, and in place of the CUDA libraries stands
one small library that has their names: each function in it returns 100, "no device". Needs gcc and readelf.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import venv

PYTHON_PACKAGES = ["filelock", "typing-extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec",
                   "numpy", "setuptools", "expecttest", "meson-python", "meson", "pyproject-metadata", "packaging"]
# These return a text, and are called when another one has failed.
TEXTS = ("cudaGetErrorString", "cudaGetErrorName")


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def needed(library):
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", library)))


def symbols(library):
    """Names with their versions: those that the library looks for, and those that it has."""
    wanted, owned = set(), set()
    for line in readelf("--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[0].rstrip(":").isdigit() and fields[4] in ("GLOBAL", "WEAK", "UNIQUE"):
            (wanted if fields[6] == "UND" else owned).add(fields[7].replace("@@", "@"))
    return wanted, owned


def resolved(library):
    """The libraries that the loader finds for this one, by their names."""
    text = subprocess.run(["ldd", str(library)], capture_output=True, text=True).stdout
    return dict(re.findall(r"(\S+) => (/\S+)", text))


def stand_in(folder):
    """Put the stand-in where the libraries of PyTorch in `folder` look first, under each CUDA library's name."""
    libraries = sorted((folder / "lib").glob("*.so*"))
    own = {library.name for library in libraries}
    names = {name for library in libraries for name in needed(library) if name not in own}
    cuda = {name for name in names if re.match(r"lib(cu|nv|nccl)", name)} - {"libcuda.so.1"}
    wanted, owned = set(), set()
    for library in libraries:
        more_wanted, more_owned = symbols(library)
        wanted, owned = wanted | more_wanted, owned | more_owned
        for name, path in resolved(library).items():
            if name in names - cuda:
                owned |= symbols(path)[1]
    plain = {symbol.split("@")[0] for symbol in owned}
    missing = {symbol for symbol in wanted if symbol.split("@")[0] not in plain}
    by_version = {}
    for symbol in missing:
        name, _, version = symbol.partition("@")
        by_version.setdefault(version, set()).add(name)
    place = folder.parent / "nvidia" / "stand_in"
    rpath = re.search(r"RPATH.*\[(.*)\]", readelf("-d", folder / "lib/libtorch_cpu.so"))
    for entry in (rpath[1].split(":") if rpath else []):
        if "nvidia" in entry:
            place = pathlib.Path(os.path.normpath(entry.replace("$ORIGIN", str(folder / "lib"))))
            break
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        build_stand_in(pathlib.Path(work), by_version, place / "libcuda_stand_in.so")
    for name in cuda:
        link = place / name
        if not link.exists():
            link.symlink_to("libcuda_stand_in.so")


def build_stand_in(work, by_version, output):
    names = sorted(set().union(*by_version.values()))
    lines = [".data", "cuda_stand_in_text: .zero 64", ".text"]
    for name in names:
        lines += [f".globl {name}", f".type {name}, @function", f"{name}:"]
        lines += ["lea cuda_stand_in_text(%rip), %rax"] if name in TEXTS else ["mov $100, %eax"]
        lines += ["ret"]
    (work / "all.s").write_text("\n".join(lines + ['.section .note.GNU-stack,"",@progbits', ""]))
    nodes = [f"{version} {{ global: {'; '.join(sorted(found))}; }};"
             for version, found in by_version.items() if version]
    (work / "all.map").write_text("\n".join(nodes))
    script = [f"-Wl,--version-script={work}/all.map"] if nodes else []
    subprocess.run(["gcc", "-shared", "-nostdlib", "-Wl,-soname,libcuda_stand_in.so", *script, "-o", str(output),
                    str(work / "all.s")], check=True)


def make(folder, version=""):
    """The environment's Python."""
    folder = pathlib.Path(folder).absolute()
    python = folder / "bin/python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    requirement = f"torch=={version}" if version else "torch"
    subprocess.run([python, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-compile", "--no-deps",
                    requirement, *PYTHON_PACKAGES], check=True)
    site = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_paths()['platlib'])"], check=True,
                          capture_output=True, text=True).stdout.strip()
    stand_in(pathlib.Path(site) / "torch")
    return python


if __name__ == "__main__":
    print(make(*sys.argv[1:]))
