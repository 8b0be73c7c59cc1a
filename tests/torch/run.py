#!/usr/bin/env python3
"""Run programs of this folder as ranks, with a PyTorch.

    run.py PYTORCH LAYER LIBRARY COMMRUN WORK-FOLDER [RANKS PROGRAM [ARGUMENT...]]

PYTORCH is "debian", that of /usr/bin/python3 and the sources of the binding as they are; or "pypi", a virtual
environment in WORK-FOLDER with a release from PyPI and with the binding installed from its wheel. LAYER is "python"
or "native". RANKS is a list such as 2,4; 0 is for a program that starts its ranks itself. Without a PROGRAM, only what
other runs need is made. Skips (77) and says why where there is no such PyTorch, or where it cannot be used.
"""
import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zlib

HERE = pathlib.Path(__file__).resolve().parent
BINDING = HERE.parent.parent / "bindings/torch"


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def debian(library, folder):
    """The sources of the binding; and what PyTorch's own tests import, which Debian does not have, fetched once."""
    python = "/usr/bin/python3"
    if not os.access(python, os.X_OK) or subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        skip("Debian's PyTorch is not installed (python3-torch)")
    packages = folder / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (packages / "expecttest").exists():
            subprocess.run([python, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-deps",
                            "--target", str(packages), "expecttest<0.2"], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
    return python, {"PYTHONPATH": f"{BINDING}:{packages}", "TORCH_LIBCOMM_LIBRARY": library}


def pypi(library, folder):
    """The environment is made once, and the binding installed when it or libcomm has changed. Programs that are started
    at the same time wait for the first one."""
    import pypi_torch
    folder.mkdir(parents=True, exist_ok=True)
    sources = [library, *sorted(BINDING.glob("torch_libcomm/*.*")), BINDING / "meson.build",
               BINDING / "make_wheel.py"]
    state = f"{zlib.crc32(b''.join(pathlib.Path(source).read_bytes() for source in sources)):x}"
    made = folder / "made"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            try:
                pypi_torch.make(folder / "venv", os.environ.get("TORCH_LIBCOMM_TEST_VERSION", ""))
            except (OSError, subprocess.CalledProcessError) as error:
                skip(f"no PyTorch from PyPI: {error}")
            made.write_text("")
        python = folder / "venv/bin/python"
        # Without its bytecode each process compiles PyTorch's 1000 modules, which is two thirds of what it computes.
        variables = {"TORCH_LIBCOMM_CACHE": str(folder / "venv/native"),
                     "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
        if made.read_text() != state:
            install(folder / "venv")
            # The ranks of several programs begin at the same time, and each would compile them.
            subprocess.run([python, "-c", "import torch.distributed.fsdp, torch.distributed.tensor, torch_libcomm"],
                           env={**os.environ, **variables}, capture_output=True)
            made.write_text(state)
    return python, variables


def install(venv):
    """The wheel as it would be published, but that libcomm is compiled sooner and runs slower; and then the native
    layer, if there is a compiler."""
    environment = {**os.environ, "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",  # the build takes this meson
                   "CFLAGS": f"{os.environ.get('CFLAGS', '')} -O0",
                   "TORCH_LIBCOMM_CACHE": str(venv / "native"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def python(*arguments):
        subprocess.run([venv / "bin/python", "-m", *map(str, arguments)], check=True, env=environment)

    sys.path.insert(0, str(BINDING))
    import make_wheel
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        python("pip", "-q", "wheel", "--no-deps", "--no-build-isolation", "-w", folder, BINDING)
        wheel = make_wheel.make(next(folder.glob("*.whl")), folder / "made", folder / "work")
        python("pip", "-q", "install", "--no-deps", "--force-reinstall", wheel)
    if shutil.which("g++"):
        python("torch_libcomm.build")


def main(pytorch, layer, library, commrun, folder, ranks="", program="", *arguments):
    with open(library, "rb") as file:
        content = file.read()
    if b"libasan" in content or b"libtsan" in content:
        skip("a sanitized library cannot be loaded into a Python that is not")
    if not os.path.exists("/proc/cpuinfo"):
        skip("PyTorch itself needs /proc")
    if layer == "native" and not shutil.which("g++"):
        skip("no g++ to compile the native layer with")
    folder = pathlib.Path(folder)
    python, variables = debian(library, folder) if pytorch == "debian" else pypi(library, folder)
    environment = {**os.environ, **variables, "TORCH_LIBCOMM_LAYER": layer, "OMP_NUM_THREADS": "1"}
    for count in filter(None, ranks.split(",")):
        start = [commrun, "-n", count, "--"] if count != "0" else []
        command = [*start, str(python), str(HERE / program), *arguments]
        print(f"{pytorch}, {layer} layer, {count} ranks: {program} {' '.join(arguments)}", flush=True)
        status = subprocess.run(command, env=environment, timeout=1200).returncode
        if status != 0:
            return 77 if status == 77 else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
