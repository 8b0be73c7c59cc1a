"""Compile the native layer for the PyTorch that is installed: python3 -m torch_libcomm.build

The result is kept in the user's cache, one for each release of PyTorch. Needs g++ and PyTorch's headers, which its
wheels have.
"""
import atexit
import ctypes
import functools
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import zlib

import torch

from . import futures, library_path, world

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE / "backend.cc"
MODULE = "torch_libcomm_native"
VERSION = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])


@functools.lru_cache(maxsize=None)
def target():
    """The file of this source, PyTorch and Python."""
    cache = pathlib.Path(os.environ.get("TORCH_LIBCOMM_CACHE") or
                         os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
                                      "torch_libcomm"))
    source = zlib.crc32(SOURCE.read_bytes())
    return cache / f"torch{torch.__version__}-{sys.implementation.cache_tag}-{source:08x}" / f"{MODULE}.so"


def built():
    return target().exists()


@functools.lru_cache(maxsize=None)
def load():
    """The module. It finds libcomm's functions among those that are loaded."""
    ctypes.CDLL(library_path(), mode=ctypes.RTLD_GLOBAL)
    spec = importlib.util.spec_from_file_location(MODULE, target())
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.Work.get_future = futures.of_native
    futures.tell_native = module.set_thread_level
    atexit.register(lambda: module.close_all(world.ended_by()))
    return module


def parent(options):
    """The backend that a group can be made from, if it is one of ours: the default group's for the CPU, or None. The
    debug level DETAIL has put a wrapper around it."""
    default = world.default_group(options)
    try:
        backend = default and default._get_backend(torch.device("cpu"))
    except RuntimeError:  # it has none
        return None
    while hasattr(backend, "wrapped_pg"):
        backend = backend.wrapped_pg
    return backend


def headers():
    """libcomm's: those of this package, else those of the source tree."""
    own = HERE / "include"
    return own if own.exists() else HERE.parents[2] / "include"


def command(output, source=SOURCE):
    from torch.utils import cpp_extension
    includes = [headers(), *cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    libraries = os.path.join(os.path.dirname(torch.__file__), "lib")
    flags = ["-O2", "-fPIC", "-shared", "-std=c++20" if VERSION >= (2, 10) else "-std=c++17",
             f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
    for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI"):  # pybind11's, before PyTorch 2.9
        value = getattr(torch._C, f"_PYBIND11_{name}", None)
        if value is not None:
            flags.append(f'-DPYBIND11_{name}="{value}"')
    return [os.environ.get("CXX", "g++"), *flags, *[f"-isystem{path}" for path in includes], str(source), "-o",
            str(output), f"-L{libraries}", "-lc10", "-ltorch_cpu", "-ltorch_python"]


def build():
    """Compile, and give the path. Several processes may do so at the same time."""
    if VERSION < (2, 1):
        raise RuntimeError(f"libcomm: the native layer needs PyTorch 2.1 or newer, not {torch.__version__}")
    target().parent.mkdir(parents=True, exist_ok=True)
    part = target().with_suffix(f".{os.getpid()}")
    try:
        subprocess.run(command(part), check=True)
        part.rename(target())
    finally:
        if part.exists():
            part.unlink()
    return target()


if __name__ == "__main__":
    print(build())
