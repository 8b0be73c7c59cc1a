"""comm-backend-check as a user calls it. cli.py PROGRAM COMMRUN PLUGIN-FOLDERS SKELETON-PATH"""
import json
import os
import subprocess
import sys

PROGRAM, COMMRUN, FOLDERS, SKELETON = sys.argv[1:]
problems = []


def run(*arguments, program=(PROGRAM,), **environment):
    return subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=100,
                          env=dict(os.environ, COMM_PLUGIN_PATH=FOLDERS, **environment))


def expect(result, status, *words):
    for word in words:
        if word not in result.stdout + result.stderr:
            problems.append(f"{result.args}: no '{word}' in\n{result.stdout}{result.stderr}")
    if result.returncode != status:
        problems.append(f"{result.args}: exit status {result.returncode}\n{result.stdout}{result.stderr}")
    return result


expect(run("--help"), 0, "--only", "Exit status", "mpirun")
expect(run("--list"), 0, "local      submit", "complete_once", "Complete a work: exactly once.")
expect(run(), 2, "which backend?")
expect(run("tcp", "skeleton"), 2, "one backend at a time")
expect(run("--only", "nothing", "tcp"), 2, "there is no such case")
expect(run("-n", "0", "tcp"), 2, "not a number")
expect(run("-n", "99", "tcp"), 2, "too many ranks")
expect(run("cuda:nccl"), 2, "memory of the CPU")
expect(run("nobody"), 2, "there is no backend 'nobody'")
expect(run("./nowhere.so"), 2, "nowhere.so")

# By name, by path, in a backend string, with options.
for backend, most in ("skeleton", "1048576"), (SKELETON, "1048576"), ("cpu:skeleton?max_bytes=4K", "4096"):
    text = expect(run("--only", "table", backend), 0, "CHECKS_SIGNATURES", "broadcast all_reduce all_gather barrier",
                  "premul_sum", f"about {most} B").stdout
    report = json.loads(expect(run("--json", "--only", "table", backend), 0).stdout)
    if report["table"]["traits"] != "CHECKS_SIGNATURES" or report["findings"] or len(report["cases"]) != 1:
        problems.append(f"{backend}: {report}")

# A finding: what, on which rank, the rule with its words, the command for just that, which finds it again.
found = expect(run("--seed", "11", "--only", "local", "-n", "2", "planted", COMM_PLANTED_FAULT="wrong_block"), 1,
               "FOUND in local.submit, rank ", "all_gather of 100 i32", "rule 'result'", "What is to be done.",
               "again: comm-backend-check -n 2 --seed 11 --only local.submit 'planted'")
again = found.stdout.split("again: comm-backend-check ")[1].splitlines()[0].replace("'", "").split()
expect(run(*again, COMM_PLANTED_FAULT="wrong_block"), 1, "FOUND in local.submit")

# One that hangs tells what each rank was doing.
expect(run("--only", "local.submit", "-n", "2", "--patience", "2", "planted", COMM_PLANTED_FAULT="never"), 1,
       "rank 0: ", "rank 1: ", "pending for")

# Ranks that a launcher has started.
launched = (COMMRUN, "-n", "3", "--", PROGRAM, "--as-rank")
expect(run("--seed", "5", "tcp", program=launched), 0, "0 findings")
expect(run("--seed", "5", "--only", "local", "skeleton", program=launched), 0, "0 findings")
expect(run("--seed", "5", "--only", "local", "planted", program=launched, COMM_PLANTED_FAULT="bad_status"), 1,
       "FOUND in local.", "12345")
expect(run("--as-rank", "tcp"), 2, "a launcher has started")
expect(run("--threads", "-n", "2", "tcp"), 0, "threads", "0 findings")

print("\n".join(problems))
print(f"{len(problems)} problems")
sys.exit(bool(problems))
