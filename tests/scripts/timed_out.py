"""Errors about a time limit say "timed out", so that a user can search for the words: timed_out.py SOURCE-FOLDER

This looks at the texts in the sources; CHECK_STATUS and GIVES look at those that come out when the tests run.
"""
import pathlib
import re
import sys

CALL = re.compile(r'\b(?:comm__fail|group_fail)\([^;"]*\bCOMM_ERR_(?:TIMEOUT|DEADLINE)\s*,\s*'
                  r'((?:"(?:[^"\\]|\\.)*"|\s|PRI\w+)+)')

root = pathlib.Path(sys.argv[1])
calls, problems = 0, []
FOLDERS = ("core", "store", "backend_tcp", "backend_shm", "backend_nccl", "backend_mpi")
for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.c")):
    text = path.read_text()
    for call in CALL.finditer(text):
        words = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', call[1]))
        calls += bool(words)
        if words and "timed out" not in words:
            problems.append(f"{path.relative_to(root)}:{text.count(chr(10), 0, call.start()) + 1}: '{words}'")
print("\n".join(problems))
print(f"{calls} texts, {len(problems)} without 'timed out'")
sys.exit(bool(problems) or not calls)
