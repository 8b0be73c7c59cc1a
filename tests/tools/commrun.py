#!/usr/bin/env python3
"""commrun's promises, tried on real processes: commrun.py COMMRUN WORLDS. Each run has a time limit of its own."""
import os
import pty
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

COMMRUN, WORLDS = sys.argv[1:3]
LIMIT_S = 30


def start(*arguments, **options):
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.Popen([COMMRUN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def finish(process, data=None):
    try:
        out, err = process.communicate(data, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err.decode()


def run(*arguments, data=None, **options):
    if data is not None:
        options["stdin"] = subprocess.PIPE
    return finish(start(*arguments, **options), data)


HAS_PROC = os.path.exists("/proc/self/stat")  # a bare chroot has none


def alive(pid):
    try:
        if not HAS_PROC:
            os.kill(pid, 0)
            return True
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids):
    end = time.monotonic() + LIMIT_S
    while any(alive(pid) for pid in pids):
        if time.monotonic() > end:
            left = [pid for pid in pids if alive(pid)]
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"processes {left} were left behind")
        time.sleep(0.01)


def core_of(processor):
    try:
        with open(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list") as siblings:
            return siblings.read()
    except OSError:
        return str(processor)


def read_pids(process, count):
    """The first `count` lines of stdout are pids, with or without a prefix."""
    return [int(process.stdout.readline().split()[-1]) for _ in range(count)]


# Rank 0 ends, then a process that is not commrun's gets its number, and a group of its own.
STRANGER = r"""
import os, subprocess, sys, time
commrun, folder, how = sys.argv[1:]
ranks = "[ $RANK = 0 ] && { echo $$ > pid; exit 0; }; until [ -e end ]; do sleep 0.01; done"
run = subprocess.Popen([commrun, "-n", "2", "sh", "-c", ranks], cwd=folder)
def content():
    try:
        return open(folder + "/pid").read().strip()
    except FileNotFoundError:
        return ""
def is_there(pid):
    return os.path.exists(f"/proc/{pid}")
while not content() or is_there(content()):
    time.sleep(0.01)
wanted, pid = int(content()), 0
question, answer = os.pipe(), os.pipe()
while pid != wanted:
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(wanted - 1))
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.close(question[1])
        if os.getpid() == wanted:
            os.write(answer[1], os.read(question[0], 1))
        os._exit(0)
os.close(answer[1])
while os.getpgid(wanted) != wanted:
    time.sleep(0.01)
if how == "end":
    open(folder + "/end", "w").close()
else:
    run.kill()
run.wait()
def is_at_work(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            text = stat.read()
    except OSError:
        return False
    return "(commrun" in text and text.rsplit(")", 1)[1].split()[0] not in "ZX"
while any(is_at_work(p) for p in os.listdir("/proc") if p.isdigit()):
    time.sleep(0.01)
os.write(question[1], b"?")
print("let be" if os.read(answer[0], 1) else "killed")
"""


class Output(unittest.TestCase):
    def test_ranks_know_their_place_and_lines_their_rank(self):
        status, out, err = run("-n", "3", "sh", "-c",
                               "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE; echo e >&2")
        self.assertEqual((status, sorted(out.split(b"\n"))), (0, [b"", b"[0] 0/3 0/3", b"[1] 1/3 1/3", b"[2] 2/3 2/3"]))
        self.assertEqual(sorted(err.split("\n")), ["", "[0] e", "[1] e", "[2] e"])

    def test_binary_long_and_partial_lines_stay_whole(self):
        program = ("import sys; w = sys.stdout.buffer; "
                   "w.write(b'a\\0\\xff\\r\\n' + b'x' * 300000 + b'\\n\\npart'); w.flush()")
        status, out, _ = run("-n", "2", sys.executable, "-c", program)
        self.assertEqual(status, 0)
        for rank in (b"0", b"1"):
            mine = [line for line in out.split(b"\n") if line.startswith(b"[" + rank + b"]")]
            self.assertEqual(mine, [b"[%s] %s" % (rank, t) for t in (b"a\0\xff\r", b"x" * 300000, b"", b"part")])

    def test_much_output_comes_whole(self):
        program = "import sys; [sys.stdout.write('%07d\\n' % i) for i in range(300000)]"
        status, out, _ = run("-n", "2", sys.executable, "-c", program)
        self.assertEqual(status, 0)
        for rank in (b"[0] ", b"[1] "):
            mine = [int(line[4:]) for line in out.splitlines() if line.startswith(rank)]
            self.assertEqual(mine, list(range(300000)))

    def test_a_line_without_an_end_comes_in_pieces(self):
        program = "import sys; sys.stdout.write('x' * (5 << 20))"
        status, out, _ = run("-n", "1", sys.executable, "-c", program)
        lines = out.split(b"\n")
        self.assertEqual((status, lines[-1]), (0, b""))
        self.assertTrue(all(line.startswith(b"[0] x") and len(line) < 3 << 20 for line in lines[:-1]))
        self.assertEqual(sum(len(line) - 4 for line in lines[:-1]), 5 << 20)

    def test_ranks_that_close_their_output_go_on(self):
        status, out, err = run("-n", "2", "--keep-going", "sh", "-c",
                               "exec 1>&-; echo still here >&2; exec 2>&-; exit $((5 * RANK))")
        self.assertEqual((status, out, err.count("still here\n")), (5, b"", 3))  # once more as rank 1's last words

    def test_no_prefix_and_log_dir(self):
        with tempfile.TemporaryDirectory() as folder:
            status, out, _ = run("-n", "2", "--no-prefix", "--log-dir", folder + "/l", "sh", "-c", "echo hi $RANK")
            self.assertEqual((status, sorted(out.split())), (0, [b"0", b"1", b"hi", b"hi"]))
            with open(folder + "/l/rank-1.log") as log:
                self.assertEqual(log.read(), "hi 1\n")

    def test_stdin_goes_to_rank_0_only(self):
        status, out, _ = run("-n", "2", "cat", data=b"words\n")
        self.assertEqual((status, out), (0, b"[0] words\n"))

    def test_a_reader_that_leaves_ends_the_run(self):
        process = start("-n", "2", "yes")
        process.stdout.readline()
        process.stdout.close()
        try:
            self.assertEqual(process.wait(LIMIT_S), 128 + signal.SIGPIPE)
        finally:
            process.stderr.close()

    def test_colours_on_a_terminal_only(self):
        try:
            master, slave = pty.openpty()
        except OSError as error:
            self.skipTest(f"no terminal to be had here: {error}")
        process = subprocess.Popen([COMMRUN, "-n", "1", "echo", "hi"], stdin=subprocess.DEVNULL, stdout=slave,
                                   env={**os.environ, "TERM": "xterm", "NO_COLOR": ""})
        os.close(slave)
        self.assertEqual(process.wait(LIMIT_S), 0)
        self.assertIn(b"\x1b[36m[0]\x1b[0m hi", os.read(master, 1000))
        os.close(master)


class Failures(unittest.TestCase):
    def test_the_failed_rank_is_named_once_and_last_with_its_words(self):
        status, _, err = run("-n", "3", "sh", "-c", "[ $RANK = 1 ] || exec sleep 100; echo bad news >&2; exit 7")
        self.assertEqual(status, 7)
        self.assertRegex(err, r"(?s)commrun: rank 1 \(pid \d+\) exited with status 7; its last words on stderr:\n"
                         r"  bad news\n$")
        self.assertEqual(err.count("commrun: "), 1)

    def test_ranks_that_left_too_early_are_named(self):
        # rank 1 waits until commrun has reaped rank 0
        program = ("[ $RANK = 0 ] && { echo $$ > %s; exit 0; }; "
                   "until [ -s %s ] && ! kill -0 $(cat %s) 2>&-; do :; done; exit 4")
        with tempfile.TemporaryDirectory() as folder:
            file = folder + "/pid"
            status, _, err = run("-n", "2", "sh", "-c", program % (file, file, file))
        self.assertEqual(status, 4)
        self.assertRegex(err, r"rank 1 \(pid \d+\) exited with status 4, after rank 0 had ended with status 0\n$")

    def test_who_waits_in_comm_init_for_one_that_has_ended_is_told(self):
        code, _, err = run("-n", "3", "sh", "-c", f"[ $RANK = 0 ] || exec {WORLDS}",
                           env=dict(os.environ, COMM_TIMEOUT_MS="600000"))
        self.assertEqual(code, 1)
        words = r"rank 0 \(pid \d+\) ended with status 0 while (2 others wait|1 other waits) for it in comm_init"
        self.assertRegex(err, "commrun: " + words)
        self.assertRegex(err, r"\[[12]\] comm_init: comm_init of world 'world' \(rank [12] of 3\): " + words)

    def test_with_keep_going_who_waits_for_one_that_has_failed_is_told(self):
        for how, words in (("exit 7", "ended with status 7"), ("kill -9 $$", "was killed by signal 9")):
            code, _, err = run("-n", "3", "--keep-going", "sh", "-c", f"[ $RANK = 0 ] && {how}; exec {WORLDS}",
                               env=dict(os.environ, COMM_TIMEOUT_MS="600000"))
            self.assertEqual(code, 7 if how == "exit 7" else 137)
            words = r"rank 0 \(pid \d+\) " + words + r" while (2 others wait|1 other waits) for it in comm_init"
            for rank in (1, 2):
                self.assertRegex(err, rf"\[{rank}\] comm_init: .* \(rank {rank} of 3\): " + words)

    def test_a_rank_that_ends_while_others_work_is_no_news(self):
        code, _, err = run("-n", "2", "sh", "-c", f"[ $RANK = 0 ] || sleep 2.5")
        self.assertEqual((code, err), (0, ""))

    def test_a_killed_rank_gives_128_and_its_signal(self):
        status, _, err = run("-n", "3", "sh", "-c", "[ $RANK = 2 ] && kill -9 $$; exec sleep 100")
        self.assertEqual(status, 137)
        self.assertRegex(err, r"rank 2 \(pid \d+\) was killed by signal 9 \(SIGKILL\)\n$")

    def test_a_process_that_has_the_number_of_an_ended_rank_is_let_be(self):
        inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
        if not shutil.which("unshare") or subprocess.run([*inside, "test", "-w", "/proc/sys/kernel/ns_last_pid"],
                                                         capture_output=True).returncode:
            self.skipTest("no process name spaces here")
        for how in ("end", "kill"):  # commrun itself sweeps, or its guard
            with tempfile.TemporaryDirectory() as folder:
                program = [*inside, sys.executable, "-c", STRANGER, os.path.abspath(COMMRUN), folder, how]
                status, out, err = finish(subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                                           stderr=subprocess.PIPE))
                self.assertEqual((status, out), (0, b"let be\n"), err)

    def test_a_program_that_is_not_there_is_one_error(self):
        status, out, err = run("-n", "4", "no-such-program")
        self.assertEqual((status, out, err),
                         (127, b"", "commrun: cannot start 'no-such-program': No such file or directory\n"))
        status, _, err = run("-n", "4", "/etc/passwd")
        self.assertEqual((status, err), (126, "commrun: cannot start '/etc/passwd': Permission denied\n"))

    def test_a_missing_interpreter_is_explained(self):
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/p"
            with open(path, "w") as script:
                script.write("#!/no/such/interpreter\n")
            os.chmod(path, 0o755)
            status, _, err = run("-n", "2", path)
            self.assertEqual((status, err.count("\n")), (127, 1))
            self.assertIn("interpreter", err)

    def test_too_many_ranks_for_the_limit_of_files_is_one_error(self):
        status, out, err = finish(start("-n", "1000", "true",
                                        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))))
        self.assertEqual((status, out), (1, b""))
        self.assertRegex(err, r"^commrun: 1000 ranks need \d+ open files, and the limit is 256; "
                         r"raise it with `ulimit -n`\n$")

    def test_ranks_keep_the_limit_of_files_and_commrun_does_not(self):
        program = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        status, out, err = finish(start("-n", "40", sys.executable, "-c", program,
                                        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (32, hard))))
        self.assertEqual((status, {line.split()[1] for line in out.splitlines()}), (0, {b"32"}), err)

    def test_a_timeout_ends_the_ranks(self):
        status, _, err = run("-n", "2", "--timeout", "0.3", "sleep", "100")
        self.assertEqual(status, 124)
        self.assertIn("commrun: ranks 0, 1 did not end within --timeout 0.3 s", err)

    def test_keep_going_lets_the_others_finish(self):
        status, out, _ = run("-n", "2", "--keep-going", "sh", "-c", "[ $RANK = 0 ] && exit 3; sleep 0.3; echo done")
        self.assertEqual((status, out), (3, b"[1] done\n"))

    def test_after_a_failure_with_keep_going_the_run_has_its_limits_still(self):
        program = ["sh", "-c", "[ $RANK = 0 ] && exit 3; exec sleep 100"]
        status, _, err = run("-n", "2", "--keep-going", "--timeout", "1", *program)
        self.assertEqual(status, 124)
        self.assertRegex(err, r"commrun: rank 1 did not end within --timeout 1 s\n$")
        process = start("-n", "2", "--keep-going", "sh", "-c", "[ $RANK = 0 ] && exit 3; exec yes")
        process.stdout.readline()
        time.sleep(0.2)  # for rank 0 to have failed, most likely; else the test is easier
        process.stdout.close()
        try:
            self.assertEqual(process.wait(LIMIT_S), 128 + signal.SIGPIPE)
        finally:
            process.kill()
            process.stderr.close()

    def test_after_a_failure_with_keep_going_a_signal_still_asks_first(self):
        program = "[ $RANK = 0 ] && exit 3; trap 'echo asked; exit 0' INT; echo up; while :; do sleep 0.05; done"
        process = start("-n", "2", "-v", "--keep-going", "--no-prefix", "sh", "-c", program)
        said = b""
        while b"exited with status 3" not in said:
            said += process.stderr.readline()
        self.assertEqual(process.stdout.readline(), b"up\n")
        process.send_signal(signal.SIGINT)
        status, out, err = finish(process)
        self.assertEqual((status, out), (128 + signal.SIGINT, b"asked\n"), err)

    def test_wrong_options_are_refused(self):
        for arguments in ([], ["-n", "0", "true"], ["-n", "-1", "true"], ["-n", "65537", "true"], ["--bogus", "true"],
                          ["-n", "x", "true"], ["true"], ["-n", "2"],
                          ["-n", "1", "--nnodes", "2", "true"], ["-n", "1", "--node-rank", "1", "true"],
                          ["-n", "1", "--bind", "socket", "true"], ["-n", "1", "--env", "X", "true"]):
            self.assertEqual(run(*arguments)[0], 2, arguments)

    def test_help_and_version(self):
        status, out, err = run("--help")
        self.assertEqual((status, err), (0, ""))
        for word in (b"--ranks", b"--nnodes", b"--rendezvous", b"--timeout", b"SIGKILL"):
            self.assertIn(word, out)
        self.assertRegex(run("--version")[1], rb"^\d+\.\d+\.\d+\n$")

    def test_the_program_s_options_are_its_own(self):
        self.assertEqual(run("-n", "1", "echo", "-n", "2", "--help")[1], b"[0] 2 --help\n")
        self.assertEqual(run("-n", "1", "--", "echo", "-v")[1], b"[0] -v\n")

    def test_a_loopback_interface_that_is_down_is_named(self):
        inside = ["unshare", "--user", "--map-root-user", "--net"]
        if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True).returncode:
            self.skipTest("no network name spaces here")
        status, _, err = finish(subprocess.Popen([*inside, COMMRUN, "-n", "2", "true"], stdin=subprocess.DEVNULL,
                                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        self.assertEqual(status, 1)
        self.assertRegex(err, r"^commrun: serving .*: the loopback interface is down: `ip link set lo up`\n$")


class Environment(unittest.TestCase):
    def test_a_secret_is_taken_whole_or_refused(self):
        with tempfile.NamedTemporaryFile() as file:
            def said(content):
                file.seek(0)
                file.truncate()
                file.write(content)
                file.flush()
                status, out, err = run("-n", "1", "--no-prefix", "--secret-file", file.name, "sh", "-c",
                                       "printf %s $COMM_SECRET")
                return out.rstrip() if status == 0 else err
            for good in (b"word", b"\n word\r\n\n", b"x" * 128, "g\u00e4ste".encode()):
                self.assertEqual(said(good), good.strip())
            for bad, why in ((b"", "it is empty"), (b" \n", "it is empty"), (b"two words", "it is not one word"),
                             (b"\0word", "it is not one word"), (b"wo\0rd", "it is not one word"),
                             (b"x" * 129, "longer than 128 bytes"), (b"x" * 5000, "longer than 128 bytes")):
                self.assertIn(why, said(bad))
        status, _, err = run("-n", "1", "true", env={**os.environ, "COMM_SECRET": "x" * 129})
        self.assertEqual((status, err), (1, "commrun: COMM_SECRET has 129 bytes; at most 128\n"))

    def test_variables_are_set_and_other_launchers_cleared(self):
        surroundings = {**os.environ, "OMPI_COMM_WORLD_RANK": "5", "RANK": "9", "COMM_SECRET": ""}
        status, out, _ = run("-n", "1", "--env", "MINE=a=b", "env", env=surroundings)
        lines = out.decode().replace("[0] ", "").split("\n")
        self.assertEqual(status, 0)
        for wanted in ("RANK=0", "WORLD_SIZE=1", "COMM_LAUNCHER=commrun", "MINE=a=b", "MASTER_ADDR=127.0.0.1"):
            self.assertEqual(lines.count(wanted), 1, wanted)
        self.assertNotIn("OMPI_COMM_WORLD_RANK", out.decode())
        self.assertRegex(out.decode(), r"COMM_SECRET=[0-9a-f]{64}\n")

    def test_a_secret_that_is_given_is_kept(self):
        self.assertEqual(run("-n", "1", "sh", "-c", "echo $COMM_SECRET", env={**os.environ, "COMM_SECRET": "s"})[1],
                         b"[0] s\n")

    def test_binding_divides_the_cores(self):
        allowed = os.sched_getaffinity(0)
        program = "import os; print(*sorted(os.sched_getaffinity(0)))"
        status, out, _ = run("-n", "2", "--bind", "core", sys.executable, "-c", program)
        sets = [{int(n) for n in line.split()[1:]} for line in out.decode().splitlines()]
        self.assertEqual(status, 0)
        self.assertEqual(len(sets), 2)
        self.assertTrue(all(s and s <= allowed for s in sets))
        if len(allowed) >= 4:
            self.assertFalse(sets[0] & sets[1])

    def test_more_ranks_than_cores_are_dealt_out_where_that_is_even(self):
        of_cores = {core_of(number): number for number in sorted(os.sched_getaffinity(0))}
        if len(of_cores) < 2:
            self.skipTest("one core")
        allowed = sorted(of_cores.values())[:2]
        program = "import os; print(*sorted(os.sched_getaffinity(0)))"
        for ranks, bind, expected in ((2, [], [allowed] * 2), (3, [], [allowed] * 3),
                                      (4, [], [[allowed[0]], [allowed[1]]] * 2), (4, ["--bind", "none"], [allowed] * 4),
                                      (3, ["--bind", "core"], [[allowed[0]], [allowed[1]], [allowed[0]]])):
            with self.subTest(ranks=ranks, bind=bind):
                status, out, _ = run("-n", str(ranks), *bind, sys.executable, "-c", program,
                                     preexec_fn=lambda: os.sched_setaffinity(0, allowed))
                lines = sorted(out.decode().splitlines())
                self.assertEqual(status, 0)
                self.assertEqual([[int(n) for n in line.split()[1:]] for line in lines], expected)


class Signals(unittest.TestCase):
    def test_ending_signals_reach_the_ranks(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = start("-n", "2", "sh", "-c",
                            f"trap 'echo heard; exit 0' {number.name[3:]}; echo $$; while :; do sleep 0.05; done")
            pids = read_pids(process, 2)
            process.send_signal(number)
            status, out, err = finish(process)
            self.assertEqual((status, out.count(b"heard")), (128 + number, 2), err)
            wait_until_gone(pids)

    def test_user_signals_are_passed_on(self):
        process = start("-n", "2", "sh", "-c", "trap 'echo heard; exit 0' USR1; echo $$; while :; do sleep 0.05; done")
        read_pids(process, 2)
        process.send_signal(signal.SIGUSR1)
        status, out, _ = finish(process)
        self.assertEqual((status, out.count(b"heard")), (0, 2))

    def test_a_second_interrupt_kills(self):
        process = start("-n", "2", "sh", "-c", "trap '' INT; echo $$; while :; do sleep 0.05; done")
        pids = read_pids(process, 2)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        status, _, _ = finish(process)
        self.assertIn(status, (130, 143))
        wait_until_gone(pids)

    def test_it_ends_at_once_while_it_waits_for_other_nodes(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:  # a node 0 that does not answer
            at = f"127.0.0.1:{silent.getsockname()[1]}"
            for number in (signal.SIGINT, signal.SIGTERM):
                process = start("-n", "2", "--nnodes", "2", "--node-rank", "1", "--rendezvous", at, "true")
                connection = silent.accept()[0]
                process.send_signal(number)
                status, _, err = finish(process)
                connection.close()
                self.assertEqual((status, err), (128 + number, f"commrun: ended by {number.name} before a rank was "
                                                 f"started, while waiting for the other nodes at {at}\n"))

    def test_a_timeout_counts_while_it_waits_for_other_nodes(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            at = f"127.0.0.1:{free.getsockname()[1]}"
        for node in "0", "1":
            status, _, err = run("--timeout", "0.3", "-n", "2", "--nnodes", "2", "--node-rank", node,
                                 "--rendezvous", at, "true")
            self.assertEqual(status, 124)
            self.assertIn("commrun: --timeout 0.3 s passed before a rank was started, while waiting for the", err)


class NobodyStays(unittest.TestCase):
    GRANDCHILDREN = "sleep 1000 & echo $!; setsid sleep 1000 & echo $!; echo $$; "

    def test_grandchildren_end_with_a_good_run(self):
        process = start("-n", "2", "sh", "-c", self.GRANDCHILDREN)
        pids = read_pids(process, 6)
        self.assertEqual(finish(process)[0], 0)
        wait_until_gone(pids)

    def test_grandchildren_end_when_a_rank_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(folder + "/ready")  # rank 1 fails when rank 0 has started its children, or there would be none
            process = start("-n", "2", "sh", "-c", self.GRANDCHILDREN +
                            f"[ $RANK = 1 ] && {{ read word <{folder}/ready; exit 1; }}; echo go >{folder}/ready; wait")
            pids = read_pids(process, 6)
            self.assertEqual(finish(process)[0], 1)
        wait_until_gone(pids)

    @unittest.skipUnless(HAS_PROC, "without /proc, commrun's guard does not find processes in sessions of their own")
    def test_nobody_outlives_a_commrun_that_is_killed(self):
        process = start("-n", "2", "sh", "-c", self.GRANDCHILDREN + "wait")
        pids = read_pids(process, 6)
        process.kill()
        process.wait(LIMIT_S)
        wait_until_gone(pids)
        process.stdout.close()
        process.stderr.close()

    def test_a_stopped_rank_ends_too(self):
        process = start("-n", "2", "sh", "-c", "echo $$; [ $RANK = 0 ] && kill -STOP $$; sleep 0.2; exit 4")
        pids = read_pids(process, 2)
        self.assertEqual(finish(process)[0], 4)
        wait_until_gone(pids)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
