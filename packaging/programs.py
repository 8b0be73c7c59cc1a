#!/usr/bin/env python3
"""Write a program's man page, and its completion for bash and for zsh, from what it says to --help.

    programs.py VERSION PROGRAM LIBCOMM.SO MAN-PAGE BASH-COMPLETION ZSH-COMPLETION

The programs' options are written down once, in the programs. Here is what --help does not have: the line under NAME,
examples, and what can stand in the place of an argument.
"""
import dataclasses
import datetime
import os
import pathlib
import re
import subprocess
import sys


@dataclasses.dataclass
class Page:
    summary: str
    examples: list  # (command, what it does)
    see_also: list


PAGES = {
    "commrun": Page("start the ranks of a libcomm world", [
        ("commrun -n 4 ./program argument", "Four ranks on this host."),
        ("commrun -n 4 --nnodes 2 --node-rank 0 --rendezvous node0:29500 ./program",
         "The first four of eight ranks on two hosts. On the other host the same command with --node-rank 1 starts the "
         "rest."),
        ("commrun -n 2 --timeout 60 --log-dir logs ./program",
         "End the ranks after a minute, and write what each of them says to a file, too."),
    ], ["comm-bench", "comm-info"]),
    "comm-bench": Page("measure the collectives and stores of libcomm", [
        ("comm-bench all_reduce -n 4 --bytes 8:64M", "One operation with four ranks on this host, in 13 sizes."),
        ("commrun -n 2 comm-bench all --backend cpu:tcp --csv", "All operations over TCP, as rows for other programs."),
        ("comm-bench --tune -n 4 -o rules", "Rules for the environment variable COMM_TUNING."),
    ], ["commrun", "comm-info"]),
    "comm-store": Page("serve a key-value store of libcomm or PyTorch, or call one", [
        ("comm-store serve --port 29500", "Serve until SIGINT or SIGTERM."),
        ("comm-store --store tcp://node0:29500 set key value", "Store a value."),
        ("comm-store --store tcp://node0:29500 get key", "Wait for the key, and print its value."),
    ], ["commrun"]),
    "comm-info": Page("show what libcomm is and what it finds on this machine", [
        ("comm-info", "Version, launcher, backends and parameters."),
        ("mpirun -n 2 comm-info", "Which launcher libcomm sees there."),
        ("comm-info --routes", "Which algorithm each backend takes for which sizes."),
    ], ["commrun", "comm-bench"]),
    "comm-backend-check": Page("check a backend against the rules of comm/backend.h", [
        ("comm-backend-check ./libcomm_mine.so", "A plugin, with 1 to 4 ranks."),
        ("comm-backend-check -n 2 --only local 'cpu:mine?option=value'",
         "Some of the cases with two ranks, and an option of the backend."),
    ], ["comm-bench", "comm-info"]),
}

# The rest of a command line.
BACKENDS = ["tcp", "shm", "shm-tcp", "mpi", "nccl", "chaos"]
BENCH_MODES = ["all", "store", "groups", "kernels", "core"]


@dataclasses.dataclass
class Option:
    names: list
    argument: str  # "" if it takes none
    text: str
    group: str

    def choices(self):
        return self.argument.split("|") if "|" in self.argument else []


@dataclasses.dataclass
class Help:
    name: str
    usage: list
    before: list  # paragraphs
    options: list
    after: list

    def valued(self):
        return [name for option in self.options if option.argument for name in option.names]


# ---- Reading --help, as argp writes it ----

OPTION = re.compile(r" {1,6}(-\S.*?)(?: {2,}(.*))?$")


def ask(program, library):
    # Without /proc, as in a bare chroot, the loader does not find the library beside the program.
    environment = {**os.environ, "LD_LIBRARY_PATH": str(pathlib.Path(library).resolve().parent),
                   "ARGP_HELP_FMT": "rmargin=10000,no-dup-args-note,opt-doc-col=80"}
    return subprocess.run([program, "--help"], check=True, capture_output=True, text=True, env=environment).stdout


def read_option(names, text, group):
    """Of "-n, --ranks=N": both names, and N."""
    argument = ""
    found = []
    for part in names.split(", "):
        name, _, value = part.partition("=") if part.startswith("--") else part.partition(" ")
        found.append(name)
        argument = argument or value
    return Option(found, argument, text or "", group)


def paragraphs(lines):
    text = "\n".join(lines).strip("\n")
    return [paragraph.split("\n") for paragraph in re.split(r"\n{2,}", text)] if text else []


def read_help(name, text):
    lines = text.splitlines()
    uses = [line for line in lines if re.match(r"Usage: |  or:  ", line)]
    rest = lines[len(uses):]
    first = next(i for i, line in enumerate(rest) if OPTION.match(line) or re.match(r" \S.*:$", line))
    options, group, end = [], "", first
    for i, line in enumerate(rest[first:], first):
        option = OPTION.match(line)
        if option:
            options.append(read_option(option[1], option[2], group))
        elif re.match(r" \S.*:$", line):
            group = line.strip().rstrip(":")
        elif line.strip():
            break
        elif options and options[-1].group == group:
            group = ""
        end = i + 1
    return Help(name, [use[7:].strip() for use in uses], paragraphs(rest[:first]), options, paragraphs(rest[end:]))


def operations(help_):
    """Those of comm-bench, from "OP is one of ..."."""
    text = " ".join(line for paragraph in help_.after for line in paragraph)
    return re.search(r"OP is one of ([a-z_ ]+),", text)[1].split()


def commands(help_):
    """Those of comm-store, from the table under "Commands:"."""
    table = next(paragraph for paragraph in help_.after if paragraph[0] == "Commands:")
    return [line.split()[0] for line in table[1:] if re.match(r"  [a-z]", line)]


# ---- A man page ----

def roff(text):
    text = text.replace("\\", "\\e")
    text = re.sub(r"(?<![\w-])-{1,2}(?=\w)[\w-]*|\bcomm-[a-z-]+", lambda found: found[0].replace("-", "\\-"), text)
    return re.sub(r"(?m)^([.'])", r"\\&\1", text)


def code(text):
    return "\\fB" + text.replace("\\", "\\e").replace("-", "\\-") + "\\fR"


def option_heading(option):
    names = []
    for name in option.names:
        glue = "=" if name.startswith("--") else " "
        names.append(code(name) + (f"{glue}\\fI{roff(option.argument)}\\fR" if option.argument else ""))
    return ", ".join(names)


def prose(page, paragraph):
    """A paragraph; one of several lines is a table and keeps them."""
    if len(paragraph) == 1:
        page += [".PP", roff(paragraph[0])]
        return
    if paragraph[0].endswith(":"):
        page += [".PP", roff(paragraph[0])]
        paragraph = paragraph[1:]
    page += [".PP", ".nf", ".RS 2", *(roff(line.removeprefix("  ")) for line in paragraph), ".RE", ".fi"]


def man(help_, version):
    about = PAGES[help_.name]
    # The packager gives the time of the release, so that two builds give the same page.
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    day = (datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc) if seconds else
           datetime.datetime.now(datetime.timezone.utc)).date()
    page = [f'.TH {help_.name.upper().replace("-", chr(92) + "-")} 1 "{day}" "libcomm {version}" "libcomm"',
            ".ad l", ".SH NAME", f"{roff(help_.name)} \\- {roff(about.summary)}", ".SH SYNOPSIS", ".nf"]
    for use in help_.usage:
        name, _, rest = use.partition(" ")
        page.append(f"{code(name)} {roff(rest)}")
    page += [".fi", ".SH DESCRIPTION"]
    exit_status = [p for p in help_.after if p[0].startswith("Exit status: ")]
    body = help_.before + [p for p in help_.after if p not in exit_status]
    for paragraph in body:
        prose(page, paragraph)
    page.remove(".PP")  # a section needs none at its begin
    page.append(".SH OPTIONS")
    group = ""
    for option in help_.options:
        if option.group != group:
            group = option.group
            page.append(f".SS {roff(group)}" if group else ".SS General")
        page += [".TP", option_heading(option), roff(option.text)]
    for paragraph in exit_status:
        page += [".SH EXIT STATUS", roff(paragraph[0].removeprefix("Exit status: "))]
    page.append(".SH EXAMPLES")
    for command, text in about.examples:
        page += [".TP", code(command), roff(text)]
    page += [".SH ENVIRONMENT",
             code("comm-info") + " shows the variables that libcomm reads, and their values.",
             ".SH SEE ALSO", " ,\n".join(f".BR {roff(name)} (1)" for name in about.see_also)]
    return "\n".join(page) + "\n"


# ---- Completion ----

def value_in_bash(option):
    if option.choices():
        return f'mapfile -t COMPREPLY < <(compgen -W "{" ".join(option.choices())}" -- "$word");'
    return "compopt -o default 2>/dev/null;" if option.argument in ("FILE", "DIR") else ""


ORDERED_IN_BASH = """
    ((COMP_CWORD <= first)) || options=no"""

REST_IN_BASH = {
    "commrun": """
    if ((COMP_CWORD > first)); then # the arguments of PROGRAM
        ! declare -F _command_offset >/dev/null || _command_offset "$first"
        return
    fi
    mapfile -t COMPREPLY < <(compgen -c -- "$word"; compgen -d -S / -- "$word")
    compopt -o default 2>/dev/null""",
    "comm-bench": """
    local before=""
    [[ $word != *,* ]] || before=${word%,*},
    mapfile -t COMPREPLY < <(compgen -P "$before" -W "@operations@" -- "${word##*,}")
    [[ -n $before ]] || mapfile -t COMPREPLY < <(compgen -W "@operations@ @modes@" -- "$word")""",
    "comm-store": """
    ((COMP_CWORD > first)) || mapfile -t COMPREPLY < <(compgen -W "@commands@" -- "$word")""",
    "comm-backend-check": """
    mapfile -t COMPREPLY < <(compgen -W "@backends@" -- "$word")
    compopt -o default 2>/dev/null""",
    "comm-info": "",
}

BASH = """# bash completion for @name@, written by packaging/programs.py from `@name@ --help`.
_@function@()
{
    local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]} first=1 options=yes
    COMPREPLY=()
    # bash makes three words of --option=value.
    [[ $word != "=" ]] || word=""
    [[ $option != "=" ]] || option=${COMP_WORDS[COMP_CWORD - 2]}
    # `first` becomes the index of the first word that is no option and no option's value.
    while ((first < COMP_CWORD)); do
        case ${COMP_WORDS[first]} in
        --)
            options=no
            ((first++))
            break
            ;;
        @valued@)
            [[ ${COMP_WORDS[first + 1]-} != "=" ]] || ((first++))
            ((first += 2))
            ;;
        = | -*) ((first++)) ;;
        *) break ;;
        esac
    done@ordered@
    if [[ $options == yes ]]; then
        case $option in@values@
        esac
        if [[ $word == -* ]]; then
            mapfile -t COMPREPLY < <(compgen -W "@options@" -- "$word")
            [[ ${#COMPREPLY[@]} != 1 || ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2>/dev/null
            return
        fi
    fi@rest@
}
complete -F _@function@ @name@
"""


def fill(text, **words):
    for name, value in words.items():
        text = text.replace(f"@{name}@", value)
    return text


def bash(help_):
    offered, values = [], []
    for option in help_.options:
        for name in option.names:
            offered.append(name + "=" if option.argument and name.startswith("--") else name)
        if option.argument:
            values.append(f"\n        {' | '.join(option.names)}) {value_in_bash(option)} return ;;")
    rest = fill(REST_IN_BASH[help_.name], modes=" ".join(BENCH_MODES), backends=" ".join(BACKENDS),
                operations=" ".join(operations(help_)) if help_.name == "comm-bench" else "",
                commands=" ".join(commands(help_)) if help_.name == "comm-store" else "")
    return fill(BASH, name=help_.name, function=help_.name.replace("-", "_"), rest=rest, values="".join(values),
                valued=" | ".join(help_.valued()) or "''", options=" ".join(offered),
                ordered=ORDERED_IN_BASH if help_.name == "commrun" else "")


def rest_in_zsh(help_):
    words = {"commrun": ["1:program:_command_names -e", "*::argument:_normal"],
             "comm-backend-check": ["1:backend:_alternative 'names:backend:(" + " ".join(BACKENDS) +
                                    ")' 'files:plugin:_files'"],
             "comm-info": []}
    if help_.name == "comm-bench":
        return [f"1:operation:_sequence compadd - {' '.join(operations(help_) + BENCH_MODES)}"]
    if help_.name == "comm-store":
        return [f"1:command:({' '.join(commands(help_))})", "*:argument:"]
    return words[help_.name]


def zsh(help_):
    def quoted(text):
        return "'" + text.replace("'", "'\\''") + "'"
    specs = []
    for option in help_.options:
        text = re.sub(r"([\[\]:\\])", r"\\\1", option.text)
        action = ""
        if option.argument:
            what = (f"({' '.join(option.choices())})" if option.choices() else
                    {"FILE": "_files", "DIR": "_files -/"}.get(option.argument, ""))
            action = ":" + option.argument.replace(":", "\\:") + ":" + what
        others = " ".join(option.names)
        for name in option.names:
            mark = "" if not option.argument else "=" if name.startswith("--") else "+"
            repeated = "*" if "may be repeated" in option.text else f"({others})"
            specs.append(quoted(f"{repeated}{name}{mark}[{text}]{action}"))
    specs += [quoted(rest) for rest in rest_in_zsh(help_)]
    return (f"#compdef {help_.name}\n# Written by packaging/programs.py from `{help_.name} --help`.\n"
            "_arguments " + " \\\n  ".join(specs) + "\n")


def main(version, program, library, *outputs):
    help_ = read_help(pathlib.Path(program).name, ask(program, library))
    for text, output in zip([man(help_, version), bash(help_), zsh(help_)], outputs, strict=True):
        pathlib.Path(output).write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
