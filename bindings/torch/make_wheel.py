#!/usr/bin/env python3
"""Make a wheel that can be installed on other machines: make_wheel.py FOLDER [WHEEL]

Of the wheel that pip builds here, or of the given one: what libcomm.so needs beside the C library is put next to it,
and the tags say any Python 3 and the oldest glibc that will do. Needs readelf and ldd.
"""
import base64
import hashlib
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
# What every machine with glibc has (the profile manylinux allows more, of which libcomm needs nothing).
OF_THE_SYSTEM = re.compile(r"lib(c|m|dl|rt|pthread)\.so|ld-linux")


def output(*command):
    return subprocess.run([*map(str, command)], check=True, capture_output=True, text=True).stdout


def needed(library):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", library))


def bundle(library):
    """Copy what it needs, directly or not; gives all the libraries, itself too."""
    found = dict(re.findall(r"(\S+) => (/\S+)", output("ldd", library)))
    libraries = [library]
    for one in libraries:
        for name in needed(one):
            target = library.parent / name
            if OF_THE_SYSTEM.match(name) or target in libraries:
                continue
            shutil.copy(pathlib.Path(found[name]).resolve(), target)
            libraries.append(target)
    return libraries


def glibc(libraries):
    """The version that they ask for."""
    text = "".join(output("readelf", "-VW", library) for library in libraries)
    return max(tuple(map(int, version)) for version in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", text))


def record(folder, file):
    data = file.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{file.relative_to(folder)},sha256={digest},{len(data)}\n"


def make(wheel, target, work):
    """The same wheel as `target`/NAME-VERSION-py3-none-manylinux_..., unpacked in `work` meanwhile."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(work)
    tag = "py3-none-manylinux_{}_{}_{}".format(*glibc(bundle(work / "torch_libcomm/libcomm.so")), platform.machine())
    info = next(work.glob("*.dist-info"))
    text = (info / "WHEEL").read_text()
    (info / "WHEEL").write_text(re.sub(r"Tag: .*", f"Tag: {tag}", text))
    files = sorted(file for file in work.rglob("*") if file.is_file() and file.name != "RECORD")
    (info / "RECORD").write_text("".join(record(work, file) for file in files) +
                                 f"{info.name}/RECORD,,\n")
    target.mkdir(parents=True, exist_ok=True)
    made = target / f"{'-'.join(wheel.name.split('-')[:2])}-{tag}.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in [*files, info / "RECORD"]:
            archive.write(file, file.relative_to(work))
    return made


def main(target, wheel=None):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if not wheel:
            subprocess.run([sys.executable, "-m", "pip", "-q", "wheel", "--no-deps", "-w", folder, HERE], check=True)
            wheel = next(folder.glob("*.whl"))
        print(make(pathlib.Path(wheel), pathlib.Path(target), folder / "work"))


if __name__ == "__main__":
    main(*sys.argv[1:])
