"""The shared library exports the functions that the public headers declare, and nothing else.

symbols.py LIBRARY INCLUDE-FOLDER
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


def main(library, folder):
    wanted, there = declared(folder), exported(library)
    for name in sorted(wanted - there):
        print(f"declared, but not exported: {name}")
    for name in sorted(there - wanted):
        print(f"exported, but in no public header: {name}")
    print(f"{len(wanted)} declared, {len(there)} exported")
    return 0 if wanted and wanted == there else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
