"""docs/backends.md is true: its C blocks are examples/backend_skeleton.c's, its C++ block is a backend, its commands
compile both, and comm-backend-check finds nothing in either. guide.py PROGRAM SOURCE-FOLDER CC CXX|- [sanitized]
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

program, source, cc, cxx = os.path.abspath(sys.argv[1]), *sys.argv[2:5]
sanitized = len(sys.argv) > 5
source = pathlib.Path(source)
guide = (source / "docs/backends.md").read_text()
skeleton = (source / "examples/backend_skeleton.c").read_text()
problems = []


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", guide, re.M | re.S)


def command(compiler):
    """The guide's command line, with the compiler of this build and the headers of this tree."""
    line = next(line for block in blocks("sh") for line in block.splitlines() if line.startswith(compiler + " "))
    return shlex.split(line.replace("$(pkg-config --cflags libcomm)", f"-I {source / 'include'}"))[1:]


def run(arguments, folder):
    result = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=200)
    if result.returncode != 0 or (result.stderr and arguments[0] != program):
        problems.append(f"{' '.join(map(str, arguments))}: {result.returncode}\n{result.stdout}{result.stderr}")


def check_links():
    titles = re.findall(r"^## (.*)$", guide, re.M)
    anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
    for anchor in re.findall(r"\]\(#(.*?)\)", guide):
        if anchor not in anchors and anchor + "-paths-variants-versions" not in anchors:
            problems.append(f"docs/backends.md: no title for #{anchor}")


for block in blocks("c"):
    if block not in skeleton:
        problems.append(f"not in examples/backend_skeleton.c:\n{block}")
check_links()
header = (source / "include/comm/backend.h").read_text() + (source / "include/comm/comm.h").read_text()
for name in sorted(set(re.findall(r"\b(?:COMM_[A-Z_]+|comm_[a-z_]+)\b", guide))):
    known = name in header or name in ("COMM_PLUGIN_PATH", "COMM_LOG", "COMM_SKELETON_MAX_BYTES")
    if not known:
        problems.append(f"docs/backends.md names {name}, which the headers do not have")
for call in sorted(set(re.findall(r"host->(\w+)", guide))):
    if f"(*{call})" not in header:
        problems.append(f"docs/backends.md names host->{call}, which there is not")
with tempfile.TemporaryDirectory() as folder:
    for name, text, first, compiler in (("backend_skeleton.c", skeleton, "cc", cc),
                                        ("moves.cc", "".join(blocks("cpp")), "c++", cxx)):
        if compiler == "-":
            continue
        pathlib.Path(folder, name).write_text(text)
        run([*compiler.split(), "-Werror", *command(first)], folder)
        library = "libcomm_skeleton.so" if first == "cc" else "libcomm_moves.so"
        if not problems and not sanitized:
            run([program, "-n", "2", "--seed", "3", f"./{library}"], folder)
print("\n".join(problems))
print(f"{len(blocks('c'))} blocks of C, {len(blocks('cpp'))} of C++, {len(problems)} problems")
sys.exit(bool(problems) or not blocks("c") or not blocks("cpp"))
