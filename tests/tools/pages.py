"""The man pages and completions that are built from --help: they have each option, and the tools that read them do not
complain. pages.py FOLDER-OF-PAGES PROGRAM...; the programs' --help is read here once more, in another way."""
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

FOLDER, PROGRAMS = pathlib.Path(sys.argv[1]), {pathlib.Path(program).name: program for program in sys.argv[2:]}


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, **more)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done


def options(name):
    """All options, with = behind those that take an argument and are long."""
    usage = run(PROGRAMS[name], "--help").stdout
    found = set()
    for line in re.findall(r"(?m)^ {2,6}(-\S.*)", usage):
        for word in re.split(r" {2,}", line)[0].split(", "):
            long = re.match(r"--[\w-]+=?", word)
            found.add(long[0] if long else word[:2])
    return found


def complete(name, *words):
    """What bash offers for the last word; as bash does it, "=" is a word of its own."""
    script = ('source "$1"; shift; function=$1; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); "$function"; '
              'printf "%s\\n" "${COMPREPLY[@]}"')
    out = run("bash", "-u", "-c", script, "-", str(FOLDER / name), "_" + name.replace("-", "_"), name, *words).stdout
    return [line for line in out.splitlines() if line]


class Pages(unittest.TestCase):
    def test_bash_offers_all_options_and_no_others(self):
        for name in PROGRAMS:
            self.assertGreater(len(options(name)), 5, name)
            self.assertEqual(set(complete(name, "-")), options(name), name)

    def test_bash_offers_values_operations_and_commands(self):
        self.assertEqual(complete("commrun", "--bind", "=", "c"), ["core"])
        self.assertEqual(complete("commrun", "--bind", ""), ["auto", "none", "core"])
        self.assertEqual(complete("commrun", "--bind", "="), ["auto", "none", "core"])
        self.assertEqual(complete("commrun", "-n", ""), [])
        self.assertEqual(complete("comm-bench", "-n", "2", "--bytes", "=", "8", "bro"), ["broadcast"])
        self.assertEqual(complete("comm-bench", "barrier,all_"),
                         ["barrier,all_reduce", "barrier,all_gather", "barrier,all_to_all"])
        self.assertIn("store", complete("comm-bench", "s"))
        self.assertEqual(complete("comm-store", "-s", "file:///x", "co"), ["compare-set"])
        self.assertEqual(complete("comm-store", "set", "co"), [])
        self.assertEqual(complete("comm-backend-check", "sh"), ["shm", "shm-tcp"])

    def test_a_program_s_own_arguments_are_its_own(self):
        self.assertIn("printf", complete("commrun", "-n", "2", "print"))
        for words in (["-n", "2", "ls", "--b"], ["--", "--b"], ["--", "ls", "--b"]):
            self.assertEqual([word for word in complete("commrun", *words) if word == "--bind="], [], words)

    def test_zsh_is_told_all_options(self):
        if not shutil.which("zsh"):
            print("skipped in part: there is no zsh")
            return
        script = '_arguments() { print -l -- "$@" }; source "$1"'
        for name in PROGRAMS:
            told = run("zsh", "-f", "-c", script, "-", str(FOLDER / ("_" + name))).stdout
            found = re.findall(r"(?m)^(?:\([^)]*\)|\*)(-[^\[]+)\[", told)
            self.assertEqual({option.rstrip("+") for option in found}, options(name), name)

    def test_man_pages_have_all_options_and_no_mistakes(self):
        for name in PROGRAMS:
            page = FOLDER / (name + ".1")
            text = re.sub(r"\\f.|\\&", "", page.read_text()).replace("\\-", "-")
            heads = [line for line in text.splitlines() if line.startswith("-")]
            found = set(re.findall(r"--[\w-]+=?", " ".join(heads)))
            self.assertEqual(found, {option for option in options(name) if option.startswith("--")}, name)
            for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "SEE ALSO"):
                self.assertIn(f".SH {section}\n", text, name)
            if shutil.which("man"):
                said = run("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(page)).stderr
                self.assertEqual(said, "", name)
            if shutil.which("mandoc"):
                run("mandoc", "-T", "lint", "-W", "warning", str(page))
        for tool in ("man", "mandoc"):
            if not shutil.which(tool):
                print(f"skipped in part: there is no {tool}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
