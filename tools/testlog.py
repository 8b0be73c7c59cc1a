"""Count what `meson test` really did: testlog.py [--failed] BUILD-FOLDER...

Reads meson-logs/testlog.json (one JSON object per test) of each folder, names what failed and what was skipped, also
within a test that passed, and ends with one line, `N passed, N failed, N skipped`. The exit status is 1 if anything
failed, or if no test ran. What failed and was tried again (tools/test --try-again, again.json) counts as it ended,
and is named. With --failed it prints the names of the tests that failed, as `meson test` takes them, and nothing
else.
"""
import json
import pathlib
import sys

PASSED = {"OK", "EXPECTEDFAIL"}
SKIPPED = {"SKIP"}  # every other result is a failure: FAIL, TIMEOUT, ERROR, INTERRUPT, UNEXPECTEDPASS ...


def read_log(folder, name):
    """All tests of one run; one that left no log counts as none."""
    log = pathlib.Path(folder) / "meson-logs" / name
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text(errors="replace").splitlines() if line.strip()]


def has_failed(test):
    return test["result"] not in PASSED | SKIPPED


def results(folder):
    """All tests of one build folder, those that were tried again as they ended then."""
    again = {test["name"]: test for test in read_log(folder, "again.json")}
    tests = read_log(folder, "testlog.json")
    for i, first in enumerate(tests):
        if has_failed(first) and first["name"] in again:
            tests[i] = again[first["name"]]
            if not has_failed(tests[i]):
                print(f"passed at the second try: {first['name']} "
                      f"(first: {first['result']}, {pathlib.Path(folder).name})")
    return tests


def last_words(test):
    """A skipped test prints its reason; the last line of its output is the likeliest."""
    text = (test.get("stdout") or "") + (test.get("stderr") or "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def skipped_parts(test):
    """A test that passed, but left some of it out, prints a line for each part."""
    return [line.strip() for line in (test.get("stdout") or "").splitlines() if line.startswith("skipped in part: ")]


def main(folders):
    passed = failed = skipped = 0
    healthy = True
    for folder in folders:
        tests = results(folder)
        for test in tests:
            if test["result"] in PASSED:
                passed += 1
                for part in skipped_parts(test):
                    print(f"{test['name']}: {part}")
            elif test["result"] in SKIPPED:
                skipped += 1
                print(f"skipped: {test['name']}: {last_words(test)}")
            else:
                failed += 1
                print(f"failed: {test['name']}: {test['result']} ({pathlib.Path(folder).name})")
        if not any(test["result"] not in SKIPPED for test in tests):
            healthy = False
            print(f"{folder}: no test was run")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if healthy and failed == 0 else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--failed"]:
        for failed_test in filter(has_failed, read_log(sys.argv[2], "testlog.json")):
            print(failed_test["name"].split(" / ", 1)[-1])
        sys.exit(0)
    sys.exit(main(sys.argv[1:]))
