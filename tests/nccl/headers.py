"""headers.c compiles with the headers of CUDA and NCCL: those of this machine, and those of PyPI's packages.

headers.py SOURCE-FOLDER CACHE-FOLDER COMPILER...

Without more, of PyPI's the oldest and the newest; COMM_TEST_HEADERS=all takes all of them, COMM_TEST_HEADERS=here none.
pip says where a package is; only the headers are fetched, and kept in the cache folder. What is not there is skipped,
with the reason.
"""
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import urllib.request
import zipfile

SOURCE, CACHE, COMPILER = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
WANTED = os.environ.get("COMM_TEST_HEADERS", "some")
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wno-unused-const-variable", "-Wno-unused-parameter",
         "-Werror", "-fsyntax-only"]
# NCCL, the CUDA runtime, and whether every run takes them. None: the newest.
PAIRS = [
    (("nvidia-nccl-cu12", "2.18.3"), ("nvidia-cuda-runtime-cu11", "11.8.89"), True),
    (("nvidia-nccl-cu12", "2.19.3"), ("nvidia-cuda-runtime-cu12", "12.0.146"), False),
    (("nvidia-nccl-cu12", "2.22.3"), ("nvidia-cuda-runtime-cu12", "12.4.127"), False),
    (("nvidia-nccl-cu12", "2.24.3"), ("nvidia-cuda-runtime-cu12", "12.8.90"), False),
    (("nvidia-nccl-cu12", "2.27.7"), ("nvidia-cuda-runtime-cu12", None), False),
    (("nvidia-nccl-cu13", "2.28.9"), ("nvidia-cuda-runtime", "13.0.96"), False),
    (("nvidia-nccl-cu13", "2.30.7"), ("nvidia-cuda-runtime", "13.2.75"), False),
    (("nvidia-nccl-cu13", None), ("nvidia-cuda-runtime", None), True),
]
TIMEOUT_S = 60


class Missing(Exception):
    pass


class Remote(io.RawIOBase):
    """A file at a URL, read in pieces, so that of a wheel of 300 MB only the headers travel."""

    PIECE = 1 << 16

    def __init__(self, url):
        self.url, self.at, self.pieces = url, 0, {}
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Range": "bytes=0-0"}),
                                    timeout=TIMEOUT_S) as answer:
            if answer.status == 206:
                self.size = int(answer.headers["Content-Range"].split("/")[1])
            else:
                data = answer.read()
                self.size = len(data)
                self.pieces = {i // self.PIECE: data[i:i + self.PIECE] for i in range(0, len(data), self.PIECE)}

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=0):
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def piece(self, index):
        if index not in self.pieces:
            first = index * self.PIECE
            last = min(first + self.PIECE, self.size) - 1
            request = urllib.request.Request(self.url, headers={"Range": f"bytes={first}-{last}"})
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                self.pieces[index] = answer.read()
        return self.pieces[index]

    def readinto(self, buffer):
        index, begin = divmod(self.at, self.PIECE)
        data = self.piece(index)[begin:begin + len(buffer)] if self.at < self.size else b""
        buffer[:len(data)] = data
        self.at += len(data)
        return len(data)


def pip():
    for command in ([sys.executable, "-m", "pip"], ["pip3"], ["pip"]):
        if shutil.which(command[0]) and subprocess.run([*command, "--version"], capture_output=True).returncode == 0:
            return command
    raise Missing("there is no pip")


def url_of(package, version):
    """Where pip would fetch it from; nothing is installed."""
    report = CACHE / f"{package}.json"
    done = subprocess.run([*pip(), "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps",
                           "--use-feature=fast-deps", "--only-binary=:all:", "--retries", "1", "--timeout", "15",
                           "--report", str(report), f"{package}=={version}" if version else package],
                          capture_output=True, text=True, timeout=4 * TIMEOUT_S)
    if done.returncode != 0:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no reason"]
        raise Missing(f"pip does not find {package}: {reasons[-1]}")
    return json.loads(report.read_text())["install"][0]["download_info"]["url"]


def fetch(package, version):
    """The folder with the package's headers."""
    folder = CACHE / f"{package}-{version or 'newest'}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(folder.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        with zipfile.ZipFile(io.BufferedReader(Remote(url_of(package, version)), Remote.PIECE)) as wheel:
            for name in wheel.namelist():
                _, found, below = name.partition("/include/")
                if found and below.endswith(".h"):
                    (partial / below).parent.mkdir(parents=True, exist_ok=True)
                    (partial / below).write_bytes(wheel.read(name))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{package} cannot be fetched: {error}") from error
    partial.rename(folder)
    return folder


def shim():
    """NCCL's header includes all of CUDA's for C++ and the device; what it uses of them in C is the runtime's API."""
    folder = CACHE / "shim"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"cuda_runtime.h": "#include <cuda_runtime_api.h>\n", "cuda_fp16.h": "", "cuda_bf16.h": "",
                       "cuda_fp8.h": ""}.items():
        (folder / name).write_text(text)
    return folder


def compile_with(folders, *more, source=SOURCE / "tests/nccl/headers.c"):
    includes = [word for folder in folders for word in ("-isystem", str(folder))]
    return subprocess.run([*COMPILER, *FLAGS, *more, "-I", str(SOURCE), *includes, str(source)], capture_output=True,
                          text=True)


def version_of(folders):
    probe = CACHE / "version.c"
    probe.write_text("#include <cuda_runtime_api.h>\n#include <nccl.h>\nversions NCCL_VERSION_CODE CUDART_VERSION\n")
    done = compile_with(folders, "-E", "-P", source=probe)
    words = done.stdout.split()[-3:] if done.returncode == 0 else []
    if len(words) != 3 or words[0] != "versions":
        return None
    nccl, cuda = int(words[1]), int(words[2])
    return f"NCCL {nccl // 10000}.{nccl // 100 % 100}.{nccl % 100} with CUDA {cuda // 1000}.{cuda % 1000 // 10}"


def here():
    CACHE.mkdir(parents=True, exist_ok=True)
    for folders in ([], ["/usr/local/cuda/include"]):
        if version_of(folders):
            return folders
    raise Missing("this machine has no headers of CUDA and NCCL")


def sets():
    yield "this machine", here
    for nccl, cuda, always in PAIRS:
        if WANTED == "all" or (WANTED == "some" and always):
            yield "PyPI", lambda nccl=nccl, cuda=cuda: [shim(), fetch(*cuda), fetch(*nccl)]


def must_differ(folders):
    """The comparison sees a difference: a number, a layout and a prototype that are not the headers'."""
    for what in ("-DNCCL_IN_PROGRESS=70", "-Dsplit_share=a,split_share", "-Dnccl_redop=float"):
        if compile_with(folders, what).returncode == 0:
            sys.exit(f"failed: {what} goes unnoticed")


def main():
    compared = 0
    for origin, find in sets():
        try:
            folders = find()
        except Missing as reason:
            print(f"skipped, {origin}: {reason}")
            continue
        done = compile_with(folders)
        print(f"{version_of(folders)} ({origin}): {'the same' if done.returncode == 0 else 'different'}", flush=True)
        if done.returncode != 0:
            sys.exit(f"failed:\n{done.stderr}")
        must_differ(folders)
        compared += 1
    sys.exit(0 if compared else 77)


main()
