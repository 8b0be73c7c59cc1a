"""tools/testlog.py, which says whether the tests passed, must not be fooled: counting.py SOURCE-FOLDER"""
import json
import pathlib
import subprocess
import sys
import tempfile

# Results of each run (None: no log was left), the last line, and the exit status.
CASES = [
    ([["OK", "OK", "SKIP"]], "2 passed, 0 failed, 1 skipped", 0),
    ([["OK", "EXPECTEDFAIL"]], "2 passed, 0 failed, 0 skipped", 0),
    ([["OK", "FAIL"]], "1 passed, 1 failed, 0 skipped", 1),
    ([["TIMEOUT", "ERROR", "INTERRUPT", "UNEXPECTEDPASS", "OK"]], "1 passed, 4 failed, 0 skipped", 1),
    ([["A RESULT THAT MESON WILL HAVE ONE DAY", "OK"]], "1 passed, 1 failed, 0 skipped", 1),
    ([["SKIP", "SKIP"]], "0 passed, 0 failed, 2 skipped", 1),
    ([[]], "0 passed, 0 failed, 0 skipped", 1),
    ([None], "0 passed, 0 failed, 0 skipped", 1),
    ([["OK"], ["OK", "SKIP"], ["OK"]], "3 passed, 0 failed, 1 skipped", 0),
    ([["OK"], None, ["OK"]], "2 passed, 0 failed, 0 skipped", 1),
]


def try_case(script, runs, last_line, status):
    with tempfile.TemporaryDirectory() as work:
        folders = []
        for number, results in enumerate(runs):
            folder = pathlib.Path(work, f"build-{number}")
            (folder / "meson-logs").mkdir(parents=True)
            folders.append(str(folder))
            if results is not None:
                rows = [json.dumps({"name": f"test {i}", "result": r, "stdout": "a reason\n"})
                        for i, r in enumerate(results)]
                (folder / "meson-logs" / "testlog.json").write_text("".join(row + "\n" for row in rows))
        done = subprocess.run([sys.executable, script, *folders], capture_output=True, text=True)
    if done.stdout.splitlines()[-1] != last_line or done.returncode != status or done.stderr:
        sys.exit(f"{runs}: exit status {done.returncode}, expected {status} and '{last_line}'\n"
                 f"{done.stdout}{done.stderr}")


def what_was_tried_again_counts_as_it_ended(script):
    with tempfile.TemporaryDirectory() as work:
        logs = pathlib.Path(work, "meson-logs")
        logs.mkdir()
        for log, rows in {"testlog.json": {"a / good": "OK", "a / odd": "FAIL", "a / bad": "TIMEOUT"},
                          "again.json": {"a / odd": "OK", "a / bad": "FAIL"}}.items():
            (logs / log).write_text("".join(json.dumps({"name": n, "result": r}) + "\n" for n, r in rows.items()))
        done = subprocess.run([sys.executable, script, work], capture_output=True, text=True)
        names = subprocess.run([sys.executable, script, "--failed", work], capture_output=True, text=True)
    if "passed at the second try: a / odd" not in done.stdout or done.returncode != 1 \
            or done.stdout.splitlines()[-1] != "2 passed, 1 failed, 0 skipped" or names.stdout != "odd\nbad\n":
        sys.exit(f"tried again: {done.stdout}{done.stderr}{names.stdout}")


def parts_that_were_skipped_are_named(script):
    with tempfile.TemporaryDirectory() as work:
        logs = pathlib.Path(work, "meson-logs")
        logs.mkdir()
        row = {"name": "partly", "result": "OK", "stdout": "begins\nskipped in part: queues: not here\nends\n"}
        (logs / "testlog.json").write_text(json.dumps(row) + "\n")
        done = subprocess.run([sys.executable, script, work], capture_output=True, text=True)
    if done.stdout != "partly: skipped in part: queues: not here\n1 passed, 0 failed, 0 skipped\n" or done.returncode:
        sys.exit(f"a part that was skipped is not named:\n{done.stdout}{done.stderr}")


for case in CASES:
    try_case(pathlib.Path(sys.argv[1], "tools", "testlog.py"), *case)
parts_that_were_skipped_are_named(pathlib.Path(sys.argv[1], "tools", "testlog.py"))
what_was_tried_again_counts_as_it_ended(pathlib.Path(sys.argv[1], "tools", "testlog.py"))
print(f"{len(CASES)} cases")
