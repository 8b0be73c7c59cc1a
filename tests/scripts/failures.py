"""docs/failures.md quotes what libcomm says: each text in its tables, "..." aside, is in a string of the sources.
failures.py SOURCE-FOLDER
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
FOLDERS = ["core", "store", "backend_tcp", "backend_shm", "backend_mpi", "backend_nccl", "tools"]
STRING = r'"(?:[^"\\\n]|\\.)*"'
PIECES = re.compile(rf"{STRING}(?:\s*(?:PRI\w+)?\s*{STRING})*")
CONVERSION = re.compile(r"'?%[-0-9.*]*(?:hh|ll|[hlztj])*[a-zA-Z]?'?")
HOLE = "\0"


def strings():
    """Every string literal, neighbours joined, each conversion (with quotes around it) a hole."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.c")):
            source = re.sub(r"(?s)/\*.*?\*/", " ", path.read_text())
            for found in PIECES.finditer(source):
                text = "".join(piece[1:-1] for piece in re.findall(STRING, found[0]))
                yield CONVERSION.sub(HOLE, text)


def pattern(quote):
    """What follows a hole may come soon or late, but in the same string."""
    return re.compile(f"[^{HOLE}]*{HOLE}+".join(re.escape(piece) for piece in quote.split("...")), re.S)


def main():
    known = list(strings())
    text = (ROOT / "docs/failures.md").read_text()
    tables = re.findall(r"(?m)^\| Text \|.*\n((?:\|.*\n)+)", text)
    quotes = [quote for table in tables for quote in re.findall(r"(?m)^\| `([^`]*)` ", table)]
    missing = [quote for quote in quotes if not any(pattern(quote).search(one) for one in known)]
    for quote in missing:
        print(f"docs/failures.md: libcomm does not say: {quote}")
    print(f"{len(quotes)} texts, {len(missing)} of them unknown; {len(known)} strings")
    sys.exit(bool(missing) or not quotes)


if __name__ == "__main__":
    main()
