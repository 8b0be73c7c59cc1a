"""tools/test-gpu: a packed folder, run from elsewhere on the stand-in: test_gpu.py TEST-GPU BUILD-FOLDER"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

TEST_GPU, BUILD = sys.argv[1:3]
BARE = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME") or name.endswith("SAN_OPTIONS")}


def run(*words, status=0, env=None):
    done = subprocess.run(words, env={**BARE, **(env or {})}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=200)
    if done.returncode != status:
        sys.exit(f"{words}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def expect(text, *patterns):
    for pattern in patterns:
        if not re.search(pattern, text, re.M):
            sys.exit(f"there is no '{pattern}' in\n{text}")


with tempfile.TemporaryDirectory() as folder:
    packed = pathlib.Path(folder) / "packed"
    expect(run(TEST_GPU, "--build", BUILD, "--pack", packed, "--no-peers"), r"^\d+ files, [\d.]+ MiB")
    expect(run(TEST_GPU, "--build", BUILD, "--pack", packed, status=1), "is not empty")
    for library in ("libcomm.so", "libuv.so", "libsodium.so", "libxxhash.so", "libjansson.so"):
        if not list((packed / "lib").glob(f"{library}*")):
            sys.exit(f"{library} was not packed")
    for file in ("cards.py", "tensors.py", "calls.py", "torch_libcomm/backend.cc", "torch_libcomm/include/comm/comm.h"):
        if not (packed / "torch" / file).exists():
            sys.exit(f"torch/{file} was not packed")
    moved = pathlib.Path(folder) / "moved"
    packed.rename(moved)
    out = run(moved / "test-gpu", "--standin", "--short")
    expect(out, r"^passed .*collectives on cuda:nccl, 2 ranks as hosts", r"^\| NCCL \| 2\.32\.3",
           r"^passed .*collectives on cuda:nccl, 2 ranks, NCCL_MULTI_RANK_GPU_ENABLE",
           r"^passed .*train_bytes --device cuda, 2 ranks", r"^all_reduce, ON_STREAM, 1 rank:",
           r"^\| 65536 \|( +[-+\d.]+( %| us)? +\|){6}$", r"^[1-9]\d+ passed, 0 failed, \d+ skipped$")
    old = run(moved / "test-gpu", "--standin", "--standin-version", "21805", "--short", "--only", "train_bytes")
    expect(old, r"^\| NCCL \| 2\.18\.5", r"^2 passed, 0 failed, 0 skipped$")
    none = run(moved / "test-gpu", env={"COMM_NCCL_LIBRARY": "/no/such/libnccl.so"})
    expect(none, "cannot be used: ", r"^0 passed, 0 failed, 1 skipped$")
    late = run(moved / "test-gpu", "--standin", "--short", "--minutes", "0.05", "--only", "comm-info")
    expect(late, r"comm-info: the time is up", r"^0 passed, 0 failed, 1 skipped$")
    print(out)
