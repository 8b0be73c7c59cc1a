"""docs/mapping.md is true: its functions exist, its tests exist and call them, and nothing exported is missing.

mapping.py SOURCE-FOLDER LIBRARY ROWS-PROGRAM
"""
import pathlib
import re
import subprocess
import sys

FUNCTION = re.compile(r"\bcomm_[a-z][a-z0-9_]*\b")
CODE = re.compile(r"`[^`]*`")


def table_rows(text):
    """(line number, cells) of all rows of all tables, without headings and rulers."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.startswith("|") or line.startswith("|---"):
            continue
        if number < len(lines) and lines[number].startswith("|---"):
            continue
        yield number, [cell.strip() for cell in line.strip("|").split("|")]


def functions_in(cell):
    """The calls that a cell names in code; types and fields of options are not calls."""
    names = set()
    for code in CODE.findall(cell):
        if "." in code:  # comm_op_options.premul
            continue
        names.update(FUNCTION.findall(code))
    return names


class Tests:
    def __init__(self, root, rows):
        self.root = root
        self.cases = subprocess.run([rows, "--list"], check=True, capture_output=True, text=True).stdout.split()
        self.sources = {path: path.read_text() for path in sorted((root / "tests/rows").glob("*.c"))}
        self.named = set()

    def source(self, name):
        """The source of the test that is called `name`, or None."""
        if name.startswith("rows/"):
            case = name[len("rows/"):]
            self.named.add(case)
            found = [text for text in self.sources.values() if re.search(rf"^static void {case}\(", text, re.M)]
            return found[0] if case in self.cases and found else None
        file, _, function = name.partition(":")
        path = self.root / "tests" / file
        if not path.is_file():
            return None
        text = path.read_text()
        return text if not function or re.search(rf"\b{function}\(", text) else None


def main(root, library, rows):
    root = pathlib.Path(root)
    sys.path.insert(0, str(root / "tests/abi"))
    import symbols
    exported = symbols.exported(library)
    declared = symbols.declared(root / "include")
    headers = "".join(path.read_text() for path in sorted((root / "include/comm").glob("*.h")))
    text = (root / "docs/mapping.md").read_text()
    tests = Tests(root, rows)
    problems, shown = [], set()
    for number, cells in table_rows(text):
        where = f"docs/mapping.md:{number}"
        names = functions_in(cells[-2])
        sources = {}
        for test in (t.strip() for t in cells[-1].split(",")):
            sources[test] = tests.source(test)
            if sources[test] is None:
                problems.append(f"{where}: there is no test '{test}'")
        for name in sorted(names):
            if name not in declared and re.search(rf"\b{name};|\btypedef .*\b{name};", headers):
                continue  # a type
            if name not in declared or name not in exported:
                problems.append(f"{where}: there is no function {name}")
            elif not any(source and name in source for source in sources.values()):
                problems.append(f"{where}: none of {', '.join(sources)} calls {name}")
            else:
                shown.add(name)
    for line in text.splitlines():  # outside the tables, too
        for name in functions_in(line):
            if name not in declared and not re.search(rf"\b{name};", headers):
                problems.append(f"docs/mapping.md names {name}, which does not exist")
    problems += [f"docs/mapping.md has no row for {name}" for name in sorted(declared - shown)]
    problems += [f"docs/mapping.md has no row for rows/{case}" for case in tests.cases if case not in tests.named]
    print("\n".join(problems))
    print(f"{len(shown)} functions, {len(tests.named)} cases of rows, {len(problems)} problems")
    return 1 if problems or not shown else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
