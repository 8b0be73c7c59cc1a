#!/usr/bin/env python3
"""Plant the faults of faults.py in the library, one at a time, and say which test notices each.

    tests/mutants/mutants.py                      all faults; takes hours
    tests/mutants/mutants.py --class a,b --jobs 2
    tests/mutants/mutants.py 'credit_*'           those whose names match
    tests/mutants/mutants.py --list               what there is
    tests/mutants/mutants.py --check              is every place still there, and each member that it names?
                                                  (a test in tests/scripts)

A fault is a place in a file, as a text that must be there exactly once, and what to write instead. The faults are
planted in a copy of the source folder, in build-mutants/, never in the folder itself; each worker has a copy and a
build of its own.

The tests that are likely to notice a fault are run first, then all suites, until one test fails. A hang counts when the
test's own limit ends it. What fails without any fault is left out of the evidence. With --likely, no more than the
likely tests are run.
"""
import argparse
import fnmatch
import json
import os
import pathlib
import queue
import re
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))
import faults  # noqa: E402

SUITES = ["unit", "kernels", "simulate", "conformance", "store", "differential", "short_io", "fault", "abi", "fuzz",
          "examples", "tools", "scripts", "compat", "mpi"]
GOOD = ("OK", "SKIP", "EXPECTEDFAIL")


class Broken(Exception):
    """The fault cannot be tried: its place is not there, or it does not compile."""


def plant(text, fault):
    found = text.count(fault.old)
    if found != 1:
        raise Broken(f"{fault.name}: the place is {found} times in {fault.file}, not once")
    if fault.old == fault.new:
        raise Broken(f"{fault.name}: changes nothing")
    return text.replace(fault.old, fault.new)


def source_files():
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-coz", "--exclude-standard"], check=True,
                            capture_output=True)
    return [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


class Workspace:
    """A copy of the sources and a build of it."""

    def __init__(self, folder, options):
        self.source, self.build, self.options = folder / "source", folder / "build", options
        self.copy()
        if not (self.build / "build.ninja").exists():
            self.call(["meson", "setup", str(self.build), str(self.source), "-Dtests=enabled", *options.meson],
                      check=True)
        self.flaky = set()

    def copy(self):
        """Only what differs, so that ninja has little to do."""
        names = source_files()
        for name in names:
            theirs, ours = ROOT / name, self.source / name
            data = theirs.read_bytes()
            if not ours.exists() or ours.read_bytes() != data:
                ours.parent.mkdir(parents=True, exist_ok=True)
                ours.write_bytes(data)
                ours.chmod(theirs.stat().st_mode & 0o777)
        for path in list(self.source.rglob("*")):
            if path.is_file() and str(path.relative_to(self.source)) not in set(names):
                path.unlink()

    def call(self, command, check=False):
        done = subprocess.run([*self.options.before, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace")
        if check and done.returncode != 0:
            raise Broken(f"{' '.join(command[:4])} failed:\n{done.stdout[-3000:]}")
        return done

    def test(self, *what):
        """Build what these tests need, and run them until one fails; [(name, result, last words)] of those that ran."""
        log = self.build / "meson-logs/testlog.json"
        log.unlink(missing_ok=True)
        done = self.call(["meson", "test", "-C", str(self.build), "--maxfail", "1", "--num-processes", "1",
                          "--timeout-multiplier", str(self.options.timeout_multiplier), *what])
        if not log.exists():
            raise Broken(f"meson test {' '.join(what)} left no log:\n{done.stdout[-2000:]}")
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        return [(row["name"].split(" / ", 1)[-1], row["result"], last_words(row)) for row in rows
                if row["result"] != "INTERRUPT"]

    def failing(self, *what):
        """The first test that fails, but for those that fail anyway; None if all pass."""
        for name, result, words in self.test(*what):
            if result not in GOOD and name not in self.flaky:
                return name, result, words
        return None

    def try_fault(self, fault):
        """(test, result, words) of the test that noticed it, or None."""
        path = self.source / fault.file
        right = path.read_text()
        try:
            path.write_text(plant(right, fault))
            found = self.failing(*fault.tests)
            for suite in [] if self.options.likely else SUITES:
                found = found or self.failing("--suite", suite)
            return found
        finally:
            path.write_text(right)

    def learn_flaky(self, tests):
        while tests:
            found = self.failing(*tests)
            if not found:
                break
            self.flaky.add(found[0])
            tests = [test for test in tests if test != found[0]]
        return self.flaky


def last_words(row):
    """The line that says most of why a test failed."""
    lines = [line.strip() for line in (row.get("stdout", "") + "\n" + row.get("stderr", "")).splitlines()
             if line.strip()]
    telling = [line for line in lines
               if any(word in line for word in (": ../", "is not so", "Error", "rror:", "ERROR", "signal"))]
    return (telling or lines or ["no output"])[0 if telling else -1][:160]


def chosen(options):
    classes = options.classes.split(",") if options.classes else None
    for fault in faults.FAULTS:
        if classes and fault.kind not in classes:
            continue
        if options.names and not any(fnmatch.fnmatch(fault.name, pattern) for pattern in options.names):
            continue
        yield fault


def introspect(what, build):
    return json.loads(subprocess.run(["meson", "introspect", what, build], check=True, capture_output=True).stdout)


def sanitizes(build):
    return any(row["name"] == "b_sanitize" and row["value"] != "none" for row in introspect("--buildoptions", build))


def code(text):
    """Without comments and texts."""
    return re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', " ", text, flags=re.S)


def words(text):
    return set(re.findall(r"\b[A-Za-z_]\w*", code(text)))


def unknown_members(right, wrong, declared):
    """Members of structs that the fault names, and that are nowhere: they have another name by now."""
    named = set(re.findall(r"(?:->|\.)([A-Za-z_]\w*)", code(wrong)))
    return sorted(named - words(right) - declared)


def check(build):
    """Every place and every name is there once, and no fault names what is not there; every likely test exists, if a
    build folder says which do."""
    problems, names, texts = [], set(), {}
    tests, declared = set(), set()
    for folder in {"include"} | {fault.file.split("/")[0] for fault in faults.FAULTS}:
        for header in (ROOT / folder).rglob("*.h"):
            declared |= words(header.read_text())
    if build and not sanitizes(build):  # which leaves some tests out
        tests = {row["name"] for row in introspect("--tests", build)}
    for fault in faults.FAULTS:
        if fault.name in names:
            problems.append(f"{fault.name}: there are two of them")
        names.add(fault.name)
        try:
            right = texts.setdefault(fault.file, (ROOT / fault.file).read_text())
            problems += [f"{fault.name}: there is no '{member}'"
                         for member in unknown_members(right, plant(right, fault), declared)]
        except (OSError, Broken) as reason:
            problems.append(str(reason))
        problems += [f"{fault.name}: there is no test '{test}'" for test in fault.tests if tests and test not in tests]
    print("\n".join(problems))
    print(f"{len(faults.FAULTS)} faults, {len(problems)} problems")
    return bool(problems)


class Run:
    def __init__(self, options):
        self.options, self.lock, self.results = options, threading.Lock(), {}
        self.work = queue.Queue()
        for fault in chosen(options):
            self.work.put(fault)
        self.count = self.work.qsize()

    def worker(self, number):
        folder = pathlib.Path(self.options.folder).resolve() / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        workspace = Workspace(folder, self.options)
        if not self.options.no_baseline:
            tests = sorted({test for fault in chosen(self.options) for test in fault.tests})
            for test in workspace.learn_flaky(tests):
                self.say(f"fails without any fault, and is no evidence: {test}")
        while True:
            try:
                fault = self.work.get_nowait()
            except queue.Empty:
                return
            began = time.monotonic()
            try:
                found = workspace.try_fault(fault)
                problem = None
            except Broken as reason:
                found, problem = None, str(reason)
            self.tell(fault, found, problem, time.monotonic() - began)

    def say(self, text):
        with self.lock:
            print(text, flush=True)

    def tell(self, fault, found, problem, seconds):
        if problem:
            said, result = f"BROKEN    {problem}", "broken"
        elif found:
            said, result = f"noticed   {found[0]} ({found[1]}): {found[2]}", "noticed"
        else:
            said, result = "SURVIVED", "survived"
        with self.lock:
            self.results[fault.name] = (fault, result)
            print(f"{fault.kind} {fault.name:<44} {seconds:4.0f} s  {said}", flush=True)

    def start(self):
        threads = [threading.Thread(target=self.worker, args=(i,)) for i in range(self.options.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.report()

    def report(self):
        of = {result: [name for name, (_, r) in self.results.items() if r == result]
              for result in ("noticed", "survived", "broken")}
        print()
        for kind in sorted({fault.kind for fault, _ in self.results.values()}):
            mine = [result for fault, result in self.results.values() if fault.kind == kind]
            print(f"class {kind}: {mine.count('noticed')} of {len(mine)}")
        tried = len(of["noticed"]) + len(of["survived"])
        print(f"noticed: {len(of['noticed'])} of {tried} ({100 * len(of['noticed']) / (tried or 1):.0f} %)")
        for result in "survived", "broken":
            if of[result]:
                print(f"{result}: {', '.join(of[result])}")
        return bool(of["survived"] or of["broken"] or len(self.results) < self.count)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="patterns; default: all faults")
    parser.add_argument("--class", dest="classes", help="with commas; faults.py says what they are")
    parser.add_argument("--jobs", type=int, default=1, help="workers, each with a copy and a build")
    parser.add_argument("--likely", action="store_true", help="run the likely tests only")
    parser.add_argument("--no-baseline", action="store_true",
                        help="do not look first which of the likely tests fail anyway")
    parser.add_argument("--timeout-multiplier", type=float, default=1, help="of every test's own limit")
    parser.add_argument("--folder", default=str(ROOT / "build-mutants"), help="for the copies and builds")
    parser.add_argument("--meson", action="append", default=[],
                        help="an option for meson setup, such as --meson=-Dbuildtype=debug")
    parser.add_argument("--before", default="", help="words before every build and test command, such as 'nice -n 10'")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", nargs="?", const="", metavar="BUILD", help="look at the places and tests only")
    options = parser.parse_args()
    options.before = options.before.split()
    if options.check is not None:
        return check(options.check)
    if options.list:
        for fault in chosen(options):
            print(f"{fault.kind} {fault.name:<44} {fault.file}: {'; '.join(fault.tests)}")
        return 0
    return Run(options).start()


if __name__ == "__main__":
    sys.exit(main())
