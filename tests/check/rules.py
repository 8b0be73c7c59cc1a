"""The rules of comm-backend-check are words of comm/backend.h. rules.py PROGRAM SOURCE-FOLDER"""
import pathlib
import re
import subprocess
import sys

program, source = sys.argv[1:]
header = (pathlib.Path(source) / "include/comm/backend.h").read_text()
header = re.sub(r"\s+", " ", re.sub(r"\n +\*(?!/)", "\n ", header))
listed = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout
rules = re.findall(r'^(\w+) +section (.*?): "(.*)"$', listed, re.M)
problems = [f"{name}: the header does not say: {words}" for name, _, words in rules if words not in header]
for name, section, _ in rules:
    number, _, rest = section.partition(" ")
    title, _, part = rest.partition(", ")
    if not re.search(rf"---- {number} {title}", header, re.I):
        problems.append(f"{name}: there is no section {number} {title}")
    if part and f" {part} - " not in header and f" {part} * - " not in header:
        problems.append(f"{name}: section {number} has no part '{part}'")
print("\n".join(problems))
print(f"{len(rules)} rules, {len(problems)} problems")
sys.exit(bool(problems) or not rules)
