"""README.md is true: its program is examples/hello.c, as is the one in comm.h; its ratios are those of its columns;
its links lead somewhere. readme.py SOURCE-FOLDER
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
README = (ROOT / "README.md").read_text()
RATIO = re.compile(r"([0-9.]+) \(([0-9.]+)x\)$")
problems = []


def body(program):
    """Without the comment at its top."""
    return program[program.index("#include"):].strip()


def check_hello():
    hello = body((ROOT / "examples/hello.c").read_text())
    if body(README.split("```c\n")[1].split("```")[0]) != hello:
        problems.append("README.md: the program under Hello is not examples/hello.c")
    header = (ROOT / "include/comm/comm.h").read_text().split("*/")[0]
    if hello not in re.sub(r"(?m)^ \*(     )?", "", header):
        problems.append("include/comm/comm.h: the program at the top is not examples/hello.c")


def check_ratios():
    """Every "TIME (RATIOx)" in a table: TIME over that of the column libcomm, to the digit that is printed."""
    ratios, column = 0, None
    for number, line in enumerate(README.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if "libcomm" in cells:
            column = cells.index("libcomm")
        for found in filter(None, map(RATIO.search, cells)):
            ratios += 1
            quotient = float(found[1]) / float(cells[column])
            if found[2] != f"{quotient:.1f}":
                problems.append(f"README.md:{number}: {found[0]}, but the columns give {quotient:.1f}x")
    if not ratios:
        problems.append("README.md: no table has a ratio")
    return ratios


def check_links():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if "://" not in target and not (ROOT / target).exists():
            problems.append(f"README.md: there is no {target}")


check_hello()
count = check_ratios()
check_links()
print("\n".join(problems))
print(f"{count} ratios, {len(problems)} problems")
sys.exit(bool(problems))
