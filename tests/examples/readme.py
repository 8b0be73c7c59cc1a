"""The programs of README.md, run as it says: readme.py CLAIM COMMRUN SOURCE-FOLDER LIBRARY HELLO ASYNC STORE MISTAKES
"""
import os
import pathlib
import re
import subprocess
import sys


class Readme:
    def __init__(self, commrun, source, library, hello, asynchronous, store, mistakes):
        self.commrun, self.source, self.library = commrun, pathlib.Path(source), pathlib.Path(library)
        self.programs = {"hello": hello, "async": asynchronous, "store": store, "mistakes": mistakes}

    def run(self, ranks, *command):
        folders = f"{self.library.resolve().parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        return subprocess.run([self.commrun, "-n", str(ranks), "--", *command], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=25,
                              env={**os.environ, "LD_LIBRARY_PATH": folders})

    def prints(self, ranks, expected, *command):
        """The program succeeds, and each rank prints the line, in which RANK stands for its number."""
        result = self.run(ranks, *command)
        lines = sorted(f"[{rank}] " + expected.replace("RANK", str(rank)) for rank in range(ranks))
        if result.returncode != 0 or sorted(result.stdout.splitlines()) != lines or result.stderr:
            sys.exit(f"{command}: exit status {result.returncode}, expected {lines}\n{result.stdout}{result.stderr}")

    def fails(self, mistake, begin):
        """Each rank that still speaks (commrun ends the others) says, from `begin` on, what README.md shows."""
        result = self.run(3, self.programs["mistakes"], mistake)
        name = "COMM_ERR_" + mistake.upper()
        block = re.search(rf"(?sm)^\[\d\] {name}: .*?^```", (self.source / "README.md").read_text())[0]
        shown = parts(" ".join(block.strip("`").split()), begin)
        said = [parts(line, begin) for line in result.stderr.splitlines() if re.match(rf"\[\d\] {name}: ", line)]
        if result.returncode == 0 or not said or any(one != shown for one in said):
            sys.exit(f"exit status {result.returncode};\nREADME.md has {shown}\nthe ranks say\n"
                     f"{result.stderr}")


def parts(text, begin):
    """The phrases of an error, sorted: which rank is named first depends on which one is the first to notice. Left out
    are its process and the rank that an algorithm makes another one wait for."""
    text = text[text.index(begin):]
    text = re.sub(r"\((\S+) (pid \d+|[\d.]+:\d+)\)", "(HOST)", text)
    text = re.sub(r"rank [01]\b|waits for rank \d", "RANK", text)
    return sorted(part.strip() for part in re.split("[,;:]", text))


CLAIMS = {
    "hello": lambda readme: readme.prints(4, "the ranks add up to 6", readme.programs["hello"]),
    "async": lambda readme: readme.prints(4, "layer 3 has the average 3", readme.programs["async"]),
    "store": lambda readme: readme.prints(4, "rank RANK of 4: rank 0 is at 10.0.0.1:7000", readme.programs["store"]),
    "hello_py": lambda readme: readme.prints(4, "the ranks add up to 6", sys.executable,
                                             str(readme.source / "examples/hello.py")),
    "deadline": lambda readme: readme.fails("deadline", "timed out: "),
    "mismatch": lambda readme: readme.fails("mismatch", "the ranks of group "),
}

if __name__ == "__main__":
    CLAIMS[sys.argv[1]](Readme(*sys.argv[2:]))
