#!/usr/bin/env python3
"""LightGBM over libcomm beside LightGBM over its own sockets, launched in turn: the figures of README.md.

    python3 bench.py COMMRUN [-n RANKS] [--repeats N] [--only WORDS]
"""
import argparse
import pathlib
import random
import re
import statistics
import subprocess
import sys

SHAPES = {
    "1,000 rows, 10 features, 7 leaves": ["--rows", "1000", "--features", "10", "--leaves", "7", "--rounds", "500"],
    "20,000 rows, 20 features": ["--rows", "20000", "--features", "20", "--rounds", "200"],
    "2,000 rows, 1,000 features": ["--rows", "2000", "--features", "1000", "--rounds", "6"],
}
TRAIN = pathlib.Path(__file__).resolve().parent / "train.py"


def milliseconds(commrun, ranks, words, own_sockets=False):
    """What a tree took. LightGBM's ports may be taken: then others."""
    for _ in range(5):
        port = ["--sockets", str(random.randrange(10000, 32000))] if own_sockets else []
        done = subprocess.run([commrun, "-n", str(ranks), "--", sys.executable, str(TRAIN), *words, *port],
                              capture_output=True, text=True)
        found = re.search(r"trees, ([\d.]+) ms", done.stdout)
        if found:
            return float(found[1])
        if "Binding port" not in done.stderr:
            break
    sys.exit(f"{words}: {done.stdout}{done.stderr}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("commrun")
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="rows of the table that have these words")
    arguments = parser.parse_args()
    print(f"| {arguments.ranks} ranks, milliseconds per tree | libcomm | own sockets |\n|---|---:|---:|")
    for name, words in ((name, words) for name, words in SHAPES.items() if arguments.only in name):
        ours, own = [], []
        for _ in range(arguments.repeats):
            ours.append(milliseconds(arguments.commrun, arguments.ranks, words))
            own.append(milliseconds(arguments.commrun, arguments.ranks, words, own_sockets=True))
        a, b = statistics.median(ours), statistics.median(own)
        print(f"| {name} | {a:.2f} | {b:.2f} ({b / a:.1f}x) |", flush=True)


if __name__ == "__main__":
    main()
