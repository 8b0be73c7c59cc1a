"""README.md is true: its programs are files of examples/, which the suite "examples" runs, and comm.h has hello.c; its
ratios, and those of docs/performance.md, are those of their columns. The links of all texts lead somewhere.
readme.py SOURCE-FOLDER
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
README = (ROOT / "README.md").read_text()
RATIO = re.compile(r"([0-9.]+) \(([0-9.]+)x\)$")
problems = []


def body(name):
    """A program of examples/ without the comment at its top."""
    program = (ROOT / "examples" / name).read_text()
    return re.search(r"(?ms)^(#include|import) .*", program)[0].strip()


def check_programs():
    """The blocks of C and Python are four files, in this order."""
    blocks = [block.strip() for block in re.findall(r"(?s)```(?:c|python)\n(.*?)```", README)]
    names = ["hello.c", "async.c", "store.c", "hello.py"]
    if len(blocks) != len(names):
        problems.append(f"README.md: {len(blocks)} programs in place of {len(names)}")
    for name, block in zip(names, blocks):
        if block != body(name):
            problems.append(f"README.md: the program that should be examples/{name} differs from it")
    hello = body("hello.c")
    header = (ROOT / "include/comm/comm.h").read_text().split("*/")[0]
    if hello not in re.sub(r"(?m)^ \*(     )?", "", header):
        problems.append("include/comm/comm.h: the program at the top is not examples/hello.c")


def check_ratios(name):
    """Every "TIME (RATIOx)" in a table: TIME over that of the column libcomm before it, as it is printed."""
    ratios, columns = 0, []
    for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        named = [place for place, cell in enumerate(cells) if re.search(r"\blibcomm$", cell)]
        columns = named or columns
        for place, found in enumerate(map(RATIO.search, cells)):
            if not found:
                continue
            ratios += 1
            quotient = float(found[1]) / float(cells[max(column for column in columns if column < place)])
            if found[2] != f"{quotient:.1f}":
                problems.append(f"{name}:{number}: {found[0]}, but the columns give {quotient:.1f}x")
    if not ratios:
        problems.append(f"{name}: no table has a ratio")
    return ratios


def anchors(text):
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.*)", text)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def check_links():
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("*/*/README.md")]
    for path in texts:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", path.read_text()):
            to = path.parent / target if target else path
            if "://" in target:
                continue
            if not to.exists() or anchor and anchor not in anchors(to.read_text()):
                problems.append(f"{path.relative_to(ROOT)}: the link {target}#{anchor} leads nowhere")


check_programs()
count = check_ratios("README.md") + check_ratios("docs/performance.md")
check_links()
print("\n".join(problems))
print(f"{count} ratios, {len(problems)} problems")
sys.exit(bool(problems))
