"""Other versions of backend.h: grow.py HEADER more|fewer OUTPUT writes it with one more or one fewer field in comm_op.
"""
import pathlib
import sys

LAST = "    const char *label; /* may be NULL */\n} comm_op;\n"
ENDS = {"more": LAST.replace("} comm_op;", "    uint64_t added[3]; /* what a later libcomm might bring */\n} comm_op;"),
        "fewer": "} comm_op;\n"}


def main(header, which, output):
    text = pathlib.Path(header).read_text()
    if text.count(LAST) != 1:
        sys.exit(f"{header}: comm_op does not end with {LAST!r}; a field was appended? Then change grow.py")
    pathlib.Path(output).write_text(text.replace(LAST, ENDS[which]))


if __name__ == "__main__":
    main(*sys.argv[1:])
