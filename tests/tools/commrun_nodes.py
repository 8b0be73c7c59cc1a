#!/usr/bin/env python3
"""commrun on two hosts, which are network namespaces: commrun_nodes.py COMMRUN PLACE. Skips (77) where it may not make any."""
import os
import subprocess
import sys
import unittest

COMMRUN, PLACE = sys.argv[1:3]
LIMIT_S = 40
NAMES = [f"comm{os.getpid()}-{i}" for i in range(2)]
AT = "10.211.7.1:7901"  # inside the namespaces, so nobody else can have it


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def make_hosts():
    for name in NAMES:
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    ip("link", "add", "veth0", "netns", NAMES[0], "type", "veth", "peer", "name", "veth0", "netns", NAMES[1])
    for i, name in enumerate(NAMES):
        ip("-n", name, "address", "add", f"10.211.7.{i + 1}/24", "dev", "veth0")
        ip("-n", name, "link", "set", "veth0", "up")


def remove_hosts():
    for name in NAMES:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def node(rank, count, *program, nnodes=2):
    return subprocess.Popen(["ip", "netns", "exec", NAMES[rank], COMMRUN, "-n", str(count), "--nnodes", str(nnodes),
                             "--node-rank", str(rank), "--rendezvous", AT, *program],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(*nodes):
    try:
        return [(n.communicate(timeout=LIMIT_S), n.returncode) for n in nodes]
    finally:
        for n in nodes:
            n.kill()


class Nodes(unittest.TestCase):
    def test_the_hosts_form_one_world(self):
        (a, a_status), (b, b_status) = finish(node(0, 1, PLACE), node(1, 2, PLACE))
        self.assertEqual((a_status, b_status), (0, 0), (a, b))
        self.assertEqual(a[0], "[0] commrun 0/3\n")
        self.assertEqual(sorted(b[0].split("\n")), ["", "[1] commrun 1/3", "[2] commrun 2/3"])

    def test_all_hosts_have_one_secret(self):
        nodes = finish(*(node(i, 1, "--no-prefix", "sh", "-c", "echo $COMM_SECRET") for i in range(2)))
        self.assertEqual(nodes[0][0][0], nodes[1][0][0])
        self.assertEqual(len(nodes[0][0][0]), 65)

    def test_a_failure_is_known_everywhere(self):
        program = ["sh", "-c", "[ $RANK = 2 ] && { echo oops >&2; exit 9; }; exec sleep 1000"]
        for (_, err), status in finish(node(0, 2, *program), node(1, 1, *program)):
            self.assertEqual(status, 9)
            self.assertRegex(err, r"commrun: rank 2 on node 1 .* exited with status 9")

    def test_a_lost_commrun_is_noticed(self):
        other, lost = node(0, 1, "sleep", "1000"), node(1, 1, "sh", "-c", "echo up; exec sleep 1000")
        lost.stdout.readline()
        lost.kill()
        (_, err), status = finish(other)[0]
        self.assertEqual(status, 1)
        self.assertIn("node 1", err)
        finish(lost)

    def test_different_ideas_of_the_number_of_hosts_are_refused(self):
        nodes = finish(node(0, 1, "true", nnodes=2), node(1, 1, "true", nnodes=3))
        self.assertIn("--nnodes 3, this one with --nnodes 2", nodes[0][0][1])
        self.assertEqual(nodes[0][1], 1)


if __name__ == "__main__":
    try:
        make_hosts()
    except (OSError, subprocess.CalledProcessError) as reason:
        remove_hosts()
        print("skipped: no network namespaces:", getattr(reason, "stderr", reason))
        sys.exit(77)
    try:
        unittest.main(argv=[sys.argv[0], "-v"])
    finally:
        remove_hosts()
