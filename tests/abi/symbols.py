"""The shared library exports the functions that the public headers declare, and nothing else; plugins need none of
them, so that static programs can open them, too.

symbols.py LIBRARY INCLUDE-FOLDER [PLUGIN ...]
"""
import pathlib
import re
import subprocess
import sys


def declared(folder):
    """Names of all functions marked COMM_API in the headers, without comments and preprocessor lines."""
    names = set()
    for header in sorted(pathlib.Path(folder, "comm").glob("*.h")):
        text = re.sub(r"/\*.*?\*/", " ", header.read_text(), flags=re.S)
        text = re.sub(r"^\s*#.*?(?<!\\)$", " ", text, flags=re.S | re.M)
        found = re.findall(r"\bCOMM_API\b[^;(]*?\b(\w+)\s*\(", text)
        if len(found) != len(re.findall(r"\bCOMM_API\b", text)):
            sys.exit(f"{header}: this test does not understand every use of COMM_API")
        names.update(found)
    return names


def exported(library):
    output = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in output.splitlines()]
    # The version node itself shows as an absolute symbol.
    return {row[2].split("@")[0] for row in rows if len(row) == 3 and row[1] != "A"}


def needed(plugin):
    output = subprocess.run(["nm", "-D", "--undefined-only", plugin], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in output.splitlines()}


def main(library, folder, *plugins):
    wanted, there = declared(folder), exported(library)
    faults = [f"declared, but not exported: {name}" for name in sorted(wanted - there)]
    faults += [f"exported, but in no public header: {name}" for name in sorted(there - wanted)]
    for plugin in plugins:
        faults += [f"{plugin} needs {name}: it has the host's table" for name in sorted(wanted & needed(plugin))]
    print("\n".join([*faults, f"{len(wanted)} declared, {len(there)} exported, {len(plugins)} plugins"]))
    return 1 if faults or not wanted else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
