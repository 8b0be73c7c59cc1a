"""comm-backend-check finds each planted fault and names the rule that it breaks, and finds nothing in good backends.

check.py PROGRAM PLUGIN-FOLDERS SLICE/OF | check.py PROGRAM PLUGIN-FOLDERS good
"""
import concurrent.futures
import json
import os
import subprocess
import sys

PROGRAM, FOLDERS, WHAT = sys.argv[1:4]
SANITIZED = len(sys.argv) > 4

# Fault of planted.c: (rules of which one must be named, cases, ranks, words of the text)
FAULTS = {
    "twice": ("complete_once", "local.submit", 2, "completed a work twice"),
    "never": ("complete_always", "local.submit", 2, "has not been completed"),
    "wrong_block": ("result", "local.submit", 2, "all_gather"),
    "flipped_bit": ("result", "random.programs", 2, "broadcast"),
    "late_data": ("complete_visible complete_late", "random.collectives", 2, ""),
    "late_write": ("complete_late", "random.collectives", 2, ""),
    "late_read": ("complete_late", "random.collectives", 2, "reads byte"),
    "late_counts": ("arrays", "random.collectives", 2, "counts"),
    "bad_status": ("status", "local.submit", 2, "12345"),
    "ok_with_error": ("status", "local.submit", 2, "all is lost"),
    "no_text": ("say_why", "local.submit", 2, "no text"),
    "submit_silent": ("say_why", "local.submit", 2, "gather"),
    "submit_status": ("slot_status", "local.submit", 2, "777"),
    "supports_silent": ("say_why", "table.facts", 2, "without a text"),
    "world_silent": ("say_why", "table.facts", 2, "world_open"),
    "submit_sleeps": ("submit_blocks", "local.submit", 2, "slept"),
    "submit_naps": ("submit_blocks", "local.submit", 2, "slept"),
    "submit_spins": ("submit_blocks", "local.submit", 2, "busy"),
    "submit_waits": ("submit_blocks", "local.submit", 2, "submit of"),
    "refused_but_done": ("submit_call", "faults.dropped_works", 2, "was completed"),
    "changes_op": ("submit_const crash", "local.submit", 2, "was changed"),
    "keeps_op": ("submit_const", "random.collectives", 2, "the comm_op of"),
    "reads_past_op": ("struct_bytes", "local.submit", 2, "which has 232"),
    "supports_flips": ("supports_blocks", "table.facts", 2, "asked twice"),
    "supports_by_rank": ("supports_alike", "random.collectives", 2, "rank 1 refuses it"),
    "supports_threads": ("supports_blocks", "table.facts", 2, "side effects"),
    "world_null": ("world_open_null", "table.facts", 2, "NULL"),
    "group_null": ("group_open_null", "local.group_open", 2, "NULL"),
    "world_open_waits": ("world_open_local", "local.world_open", 2, "world_open on rank"),
    "group_open_waits": ("group_open_local", "local.group_open", 2, "has not returned"),
    "locks": ("locks", "local.callback", 2, "callback"),
    "progress_fails": ("progress_ok", "local.submit", 2, "progress"),
    "progress_sleeps": ("progress_short", "local.submit", 2, "slept"),
    "run_sleeps": ("run_spins", "random.collectives", 2, "slept"),
    "abort_sleeps": ("slot_blocks", "faults.abort", 2, "group_abort"),
    "abort_ignored": ("abort_ends", "faults.abort", 2, "group_abort"),
    "close_leaves": ("close_leaves", "faults.close", 2, "group_close"),
    "deadlines_not_kept": ("keeps_deadlines", "faults.missing_rank", 2, "the core had to end"),
    "loss_as_backend": ("loss", "faults.killed_rank", 2, "COMM_ERR_BACKEND"),
    "mismatch_as_protocol": ("mismatch", "faults.mismatch", 2, "COMM_ERR_PROTOCOL"),
    "no_facts": ("received", "local.messages", 2, "work_received"),
    "fork_hangs": ("fork", "faults.fork", 2, "does not get out"),
    "fork_crashes": ("fork", "faults.fork", 2, "signal"),
    "query_threads": ("query_effects", "table.facts", 2, "has started"),
    "query_handler": ("no_handlers", "table.facts", 2, "signal"),
    "entry_threads": ("query_effects", "table.facts", 2, "loading it"),
    "signal_mask": ("slot_thread", "local.submit", 2, "blocked"),
    "threads_left": ("lets_go", "state.left_behind", 2, "threads"),
    "descriptors_left": ("lets_go", "state.left_behind", 2, "descriptors"),
    "memory_left": ("lets_go", "state.memory", 2, "bytes"),
    "submit_crashes": ("crash", "local.submit", 2, "signal 6"),
    "no_version": ("table", "table.facts", 2, "version"),
}
# Sanitizers have memory and signals of their own.
NOT_SANITIZED = {"memory_left", "reads_past_op", "late_read", "late_write", "late_counts", "keeps_op", "late_data"}
# Found by the time that they take.
HANGS = {"never", "submit_waits", "world_open_waits", "group_open_waits", "locks", "abort_sleeps", "fork_hangs"}
GOOD = {"tcp": [], "shm": [], "skeleton": [], "planted": [], "cpu:delay?microseconds=200": [],
        "cpu:chaos?of=tcp&delay_ms=2": [], "loopback_same": ["--threads"]}


def check(backend, *arguments, fault=""):
    environment = dict(os.environ, COMM_PLUGIN_PATH=FOLDERS, COMM_PLANTED_FAULT=fault)
    run = subprocess.run([PROGRAM, "--json", *arguments, backend], capture_output=True, text=True, timeout=110,
                         env=environment)
    try:
        return run.returncode, json.loads(run.stdout)
    except ValueError:
        sys.exit(f"{backend} {arguments} {fault}: exit status {run.returncode}\n{run.stdout}\n{run.stderr}")


def find(fault):
    rules, case, ranks, words = FAULTS[fault]
    patience = "2.5" if fault in HANGS else "10"
    status, report = check("planted", "--seed", "7", "-n", str(ranks), "--only", case, "--patience", patience,
                           fault=fault)
    found = [f for f in report["findings"] if f["rule"] in rules.split() and words in f["text"]]
    if status == 1 and found and found[0]["again"].startswith("comm-backend-check -n "):
        return ""
    told = "\n".join(f"    {f['rule']}: {f['text']}" for f in report["findings"])
    return f"{fault}: status {status}, and none of these is '{rules}' with '{words}':\n{told}"


def is_good(backend):
    status, report = check(backend, "--seed", "7", "-n", "2", *GOOD[backend])
    told = "\n".join(f"    {f['case']}: {f['rule']}: {f['text']}" for f in report["findings"])
    return "" if status == 0 else f"{backend}: status {status}\n{told}"


if WHAT == "good":
    jobs = [(is_good, backend) for backend in GOOD]
else:
    index, of = map(int, WHAT.split("/"))
    faults = sorted(fault for fault in FAULTS if not (SANITIZED and fault in NOT_SANITIZED))
    jobs = [(find, fault) for fault in faults[index - 1::of]]
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    problems = [problem for problem in pool.map(lambda job: job[0](job[1]), jobs) if problem]
print("\n".join(problems))
print(f"{len(jobs)} runs, {len(problems)} problems")
sys.exit(bool(problems))
