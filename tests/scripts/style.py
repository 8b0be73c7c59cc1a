"""What the sources look like: lines of at most 120 columns, no tabs in C, no blanks at the end of a line, a newline at
the end of a file, no goto, no notes of work to be done, and (if ctags is there) functions of at most 70 lines.
style.py SOURCE-FOLDER
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

COLUMNS, FUNCTION_LINES = 120, 70
# A switch with a case per lie that a rank may tell.
LONG = {"tell_lie"}
C = {".c", ".h", ".def", ".cc"}
OTHERS = {".py", ".sh"}
NOTES = re.compile(r"(/\*|//|#) *(TODO|FIXME|XXX)\b")


def checked(path):
    if path.suffix in C | OTHERS or path.name in ("meson.build", "meson_options.txt"):
        return True
    if path.suffix:
        return False
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def sources(root):
    """All but what git does not know: build folders, hidden folders."""
    for folder in [root] + sorted(path for path in root.iterdir() if path.is_dir()):
        if folder.name.startswith((".", "build", "shared")):
            continue
        for path in sorted(folder.iterdir() if folder == root else folder.rglob("*")):
            if path.is_file() and checked(path):
                yield path


def without_comments_and_texts(text):
    return re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.S)


def check_lines(path, text):
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        wrong = [f"{len(line)} columns"] if len(line) > COLUMNS else []
        if line != line.rstrip():
            wrong.append("blanks at its end")
        if path.suffix in C and "\t" in line:
            wrong.append("a tab")
        if NOTES.search(line):
            wrong.append("a note of work to be done")
        if line.startswith(("<" * 7, ">" * 7)):
            wrong.append("what a merge left")
        problems += [f"{number}: {what}" for what in wrong]
    if text and not text.endswith("\n"):
        problems.append("no newline at its end")
    if path.suffix in C:
        code = without_comments_and_texts(text)
        problems += [f"{code[:found.start()].count(chr(10)) + 1}: goto" for found in re.finditer(r"\bgoto\b", code)]
    return [f"{path}:{problem}" for problem in problems]


def check_functions(paths):
    run = subprocess.run(["ctags", "--output-format=json", "--fields=+ne", "--kinds-C=f", "--kinds-C++=f", "-f", "-",
                          *map(str, paths)], check=True, capture_output=True, text=True)
    tags = [json.loads(line) for line in run.stdout.splitlines()]
    lines = {(tag["path"], tag["name"], tag["line"]): tag["end"] - tag["line"] + 1 for tag in tags if "end" in tag}
    # ctags takes rows of a macro for a function: their names are in capitals.
    return [f"{path}:{line}: {name} has {length} lines" for (path, name, line), length in lines.items()
            if length > FUNCTION_LINES and not name.isupper() and name not in LONG]


def check_all(paths):
    problems = [problem for path in paths for problem in check_lines(path, path.read_text())]
    return problems + (check_functions([path for path in paths if path.suffix in (".c", ".h")]) if CTAGS else [])


def check_itself():
    """Each rule can be broken."""
    bodies = ["/*\n" + "<" * 7 + " HEAD\n*/\n", "/* " + "x" * COLUMNS + " */\n", "int a; \n", "\tint b;\n",
              "int c; /* " "TODO */\n", "int d;", "void e(void) {\n    goto out;\nout:;\n}\n"]
    bodies += ["void f(void)\n{" + "\n" * FUNCTION_LINES + "}\n"] if CTAGS else []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "broken.c")
        for body in bodies:
            path.write_text(body)
            if len(check_all([path])) != 1:
                return [f"this test does not notice, or notices twice: {body!r}"]
    return []


# Exuberant ctags knows neither JSON nor where a function ends.
CTAGS = shutil.which("ctags") and "json" in subprocess.check_output(["ctags", "--list-features"], text=True)
root = pathlib.Path(sys.argv[1])
paths = list(sources(root))
problems = check_itself() + check_all(paths)
print("\n".join(problems))
print(f"{len(paths)} files, {len(problems)} problems"
      + ("" if CTAGS else "; no universal-ctags: functions were not measured"))
sys.exit(bool(problems) or not paths)
