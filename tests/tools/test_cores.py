"""tools/test-cores from a packed folder, with the peers installed here: test_cores.py TEST-GPU BUILD-FOLDER"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

TEST_GPU, BUILD = sys.argv[1:3]
BARE = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
HAS_SYS = pathlib.Path("/sys/class/net").exists()  # MPICH's UCX finds no network without; a chroot may have none


def run(*words, env=BARE):
    done = subprocess.run([str(word) for word in words], env=env, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=100)
    if done.returncode != 0:
        sys.exit(f"{words}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def expect(text, *patterns):
    for pattern in patterns:
        if not re.search(pattern, text, re.M):
            sys.exit(f"there is no '{pattern}' in\n{text}")


def cores(folder, *words):
    return run(folder / "test-cores", "--ranks", "2", "--ops", "all_reduce", "--bytes", "64", "--rounds", "1",
               "--roofline-bytes", "64K", "--no-tails", *words)


with tempfile.TemporaryDirectory() as folder:
    packed, moved, rows = (pathlib.Path(folder) / name for name in ("packed", "moved", "rows"))
    said = run(TEST_GPU, "--build", BUILD, "--pack", packed)
    peers = re.search(r"^peers for test-cores: (.*)$", said, re.M)[1].split(", ")
    packed.rename(moved)
    # No launcher of the system's can be found: the packed ones are used, or none.
    tools = pathlib.Path(folder) / "tools"
    tools.mkdir()
    for name in ("sh", "taskset", "cut", "python3", "env"):
        found = next(path for place in BARE["PATH"].split(":") if (path := pathlib.Path(place) / name).exists())
        (tools / name).symlink_to(found)
    BARE["PATH"] = str(tools)
    out = cores(moved, "--save", rows)
    expect(out, r"^passed .* libcomm$", r"^passed .*roofline, 2 ranks, registered", r"^\| all_reduce \| 64 B \|",
           rf"^\d+ passed, 0 failed, {'0' if HAS_SYS else '[01]'} skipped$")
    for name in ("openmpi", "mpich"):
        if name in peers:
            expect(out, rf"^passed .* {name}$")
            if HAS_SYS or name != "mpich":
                expect(out, rf"^passed .* {name}-tcp$")
        else:
            expect(out, f"leaving out {name}")
            print(f"{name} is not installed here: its part was skipped")
    expect((rows / "2-ranks.csv").read_text(), r"^all_reduce,64,libcomm,2,")
    run(moved / "plot", rows / "2-ranks.csv", rows)
    if not (rows / "all_reduce-latency.svg").exists():
        sys.exit("plot has drawn nothing")
    late = cores(moved, "--minutes", "0.02", "--peers", "openmpi")
    expect(late, r"^skipped .* libcomm: rows left out: the time is up",
           r"^2 ranks: no rows of libcomm's, all left out$",
           r"^0 passed, 0 failed, \d skipped$")
    print(out)
