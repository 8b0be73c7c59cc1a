"""What tools/demo shows once libcomm is built: demo.py CLAIM DEMO_RUN BUILD-FOLDER. The time limit is meson's."""
import os
import pty
import re
import subprocess
import sys

SMALL = ["2", "--steps", "40", "--batch", "16", "--hidden", "32", "--sample", "200"]


def in_a_pipe_there_is_no_bar(demo):
    result = subprocess.run([*demo, *SMALL], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    complete(result.returncode, result.stdout)
    if "\r" in result.stdout or "\033" in result.stdout or not re.search(r"(?m)^\[0\] +40 +\d", result.stdout):
        sys.exit(f"a bar, or no line of the last step\n{result.stdout}")


def on_a_terminal_there_is_one(demo):
    try:
        pid, terminal = pty.fork()
    except OSError as error:
        print(f"skipped: no pseudo-terminal: {error}")
        sys.exit(77)
    if pid == 0:
        os.execv(demo[0], [*demo, *SMALL])
    output = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError: # the other end is closed
            break
        if not piece:
            break
        output += piece
    text = output.decode(errors="replace")
    complete(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text)
    if f"[{'=' * 40}] step 40 of 40, loss " not in text or "step 8 of 40" not in text:
        sys.exit(f"no bar, or not to its end\n{text}")


def complete(status, text):
    """The model has written, and the table has its rows."""
    rows = re.findall(r"(?m)^  .*\((cpu:\w+)\) +[\d.]+ ms +[\d.]+ ms\r?$", text)
    if status != 0 or rows[:2] != ["cpu:shm", "cpu:tcp"] or "---- the model writes:" not in text:
        sys.exit(f"exit status {status}, rows {rows}\n{text}")


def a_failure_is_the_exit_status(demo):
    result = subprocess.run([*demo, "2", "/no/such/file"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode == 0 or "Summing" in result.stdout or "No such file" not in result.stderr:
        sys.exit(f"exit status {result.returncode}\n{result.stdout}{result.stderr}")


CLAIMS = [in_a_pipe_there_is_no_bar, on_a_terminal_there_is_one, a_failure_is_the_exit_status]

if __name__ == "__main__":
    {claim.__name__: claim for claim in CLAIMS}[sys.argv[1]](sys.argv[2:])
