"""A folder of the library can include its own headers, core/common/base and the public headers (backends also
core/exec), and nothing else: the compiler, with the include path that the build gives a folder, is asked for every
header by every name that it could have. includes.py SOURCE-FOLDER BUILD-FOLDER
"""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

SOURCE, BUILD = (pathlib.Path(folder).resolve() for folder in sys.argv[1:])
BASE = "core/common/base"
EXEC = "core/exec"
FOLDERS = [BASE, "store", "core", EXEC, "backend_tcp", "backend_shm"]
STAND_ON_EXEC = (EXEC, "backend_tcp", "backend_shm")
HEADERS = [path.relative_to(SOURCE) for folder in (BASE, "store", "core", "backend_tcp", "backend_shm")
           for path in sorted((SOURCE / folder).rglob("*.h")) if folder != "core" or "common" not in path.parts]
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def names(header):
    """wire.h, store/wire.h: every end of the header's path."""
    return ["/".join(header.parts[i:]) for i in range(len(header.parts))]


def expected(folder):
    """The names of our headers that a source of the folder can include."""
    own = {str(header.relative_to(folder)) for header in HEADERS if header.is_relative_to(folder)}
    if folder == "core": # lies above common/, and the compiler looks beside the source first
        own |= {f"common/base/{header.name}" for header in HEADERS if str(header.parent) == BASE}
    if folder in STAND_ON_EXEC:
        own |= {header.name for header in HEADERS if str(header.parent) == EXEC}
    return own | {f"base/{header.name}" for header in HEADERS if str(header.parent) == BASE}


def compiler(folder):
    """The build's compiler and include path for the folder's sources, without the system's error.h and limits.h."""
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        directory = pathlib.Path(entry["directory"])
        if (directory / entry["file"]).resolve().parent == SOURCE / folder:
            words = shlex.split(entry["command"])
            start = 1 if os.path.basename(words[0]) == "ccache" else 0
            paths = [word[2:] for word in words if word.startswith("-I")]
            return [words[start], "-std=c11", "-nostdinc", *(f"-I{(directory / path).resolve()}" for path in paths)]
    sys.exit(f"{BUILD}/compile_commands.json: nothing of {folder}")


def reachable(folder, more=()):
    """The names of our headers that the compiler finds for a source in the folder."""
    asked = sorted({name for header in HEADERS for name in names(header)})
    program = "".join(f'#if __has_include("{name}")\nFOUND "{name}"\n#endif\n' for name in asked)
    run = subprocess.run([*compiler(folder), *more, "-E", "-P", "-"], input=program, cwd=SOURCE / folder, check=True,
                         capture_output=True, text=True)
    return set(re.findall(r'FOUND "(.*)"', run.stdout))


def check_folder(folder, more=()):
    wanted, found = expected(folder), reachable(folder, more)
    return ([f"{folder}: a source can include {name}" for name in sorted(found - wanted)] +
            [f"{folder}: a source cannot include {name}" for name in sorted(wanted - found)])


def check_sources(folder):
    """No way around the include path; algorithms know plans only."""
    problems = []
    for path in sorted((SOURCE / folder).rglob("*.[ch]")):
        within = [other for other in FOLDERS if path.is_relative_to(SOURCE / other)]
        if max(within, key=len) != folder:
            continue
        for name in INCLUDE.findall(path.read_text()):
            if ".." in name or name.startswith("/"):
                problems.append(f"{path.relative_to(SOURCE)}: includes {name}: "
                                "a header is named as the include path has it")
            if folder == "core" and name.split("/")[0] in ("exec", "common"):
                problems.append(f"{path.relative_to(SOURCE)}: includes {name}: "
                                "core does not use exec, and names base/ so")
            if path.parent.name == "algo" and name != "plan.h":
                problems.append(f"{path.relative_to(SOURCE)}: includes {name}: an algorithm includes plan.h only")
    return problems


problems = [problem for folder in FOLDERS for problem in check_folder(folder) + check_sources(folder)]
# It can fail: with one more folder on the include path, headers of others are found.
for folder in FOLDERS:
    if not check_folder(folder, [f"-I{SOURCE}"]):
        problems.append(f"{folder}: this test does not notice an include path that is too long")
print("\n".join(problems))
print(f"{len(HEADERS)} headers, {len(FOLDERS)} folders, {len(problems)} problems")
sys.exit(bool(problems))
