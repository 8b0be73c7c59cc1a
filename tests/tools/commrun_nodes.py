#!/usr/bin/env python3
"""commrun on two hosts: commrun_nodes.py COMMRUN PLACE."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import two_hosts  # noqa: E402

COMMRUN, PLACE = sys.argv[1:3]
LIMIT_S = 40
AT = two_hosts.ADDRESS[0] + ":7901"


def finish(*nodes):
    try:
        return [(n.communicate(timeout=LIMIT_S), n.returncode) for n in nodes]
    finally:
        for n in nodes:
            n.kill()


class Nodes(two_hosts.TwoHosts):
    def node(self, rank, count, *program, nnodes=2, **more):
        return subprocess.Popen(self.on(rank, COMMRUN, "-n", str(count), "--nnodes", str(nnodes), "--node-rank",
                                        str(rank), "--rendezvous", AT, *program), env={**os.environ, **more},
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_the_hosts_form_one_world(self):
        (a, a_status), (b, b_status) = finish(self.node(0, 1, PLACE), self.node(1, 2, PLACE))
        self.assertEqual((a_status, b_status), (0, 0), (a, b))
        self.assertEqual(a[0], "[0] commrun 0/3\n")
        self.assertEqual(sorted(b[0].split("\n")), ["", "[1] commrun 1/3", "[2] commrun 2/3"])

    def test_all_hosts_have_one_secret(self):
        nodes = finish(*(self.node(i, 1, "--no-prefix", "sh", "-c", "echo $COMM_SECRET") for i in range(2)))
        self.assertEqual(nodes[0][0][0], nodes[1][0][0])
        self.assertEqual(len(nodes[0][0][0]), 65)

    def test_an_empty_secret_is_none(self):
        nodes = finish(*(self.node(i, 1, "--no-prefix", "sh", "-c", "echo $COMM_SECRET", COMM_SECRET="")
                         for i in range(2)))
        self.assertEqual(nodes[0][0][0], nodes[1][0][0], nodes)
        self.assertEqual(len(nodes[0][0][0]), 65)

    def test_who_cannot_reach_node_0_ends_its_ranks_all_the_same(self):
        first = self.node(0, 1, "sleep", "1000")
        second = self.node(1, 1, "sh", "-c", "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done")
        self.assertEqual(second.stdout.readline(), "[1] up\n")
        time.sleep(1)
        self.cut()
        began = time.monotonic()
        second.send_signal(signal.SIGTERM)
        self.assertEqual(second.stdout.readline(), "[1] asked\n")
        self.assertLess(time.monotonic() - began, 10)
        (_, err), status = finish(second)[0]
        self.assertLess(time.monotonic() - began, 30)
        self.assertEqual(status, 128 + signal.SIGTERM, err)
        first.terminate()
        finish(first)

    def test_a_failure_is_known_everywhere(self):
        program = ["sh", "-c", "[ $RANK = 2 ] && { echo oops >&2; exit 9; }; exec sleep 1000"]
        for (_, err), status in finish(self.node(0, 2, *program), self.node(1, 1, *program)):
            self.assertEqual(status, 9)
            self.assertRegex(err, r"commrun: rank 2 on node 1 .* exited with status 9")

    def test_a_lost_commrun_is_noticed(self):
        other, lost = self.node(0, 1, "sleep", "1000"), self.node(1, 1, "sh", "-c", "echo up; exec sleep 1000")
        lost.stdout.readline()
        lost.kill()
        (_, err), status = finish(other)[0]
        self.assertEqual(status, 1)
        self.assertIn("node 1", err)
        finish(lost)

    def test_the_last_node_ends_while_node_0_does_not_answer(self):
        with tempfile.TemporaryDirectory() as folder:
            end = pathlib.Path(folder, "end")
            first = self.node(0, 1, "echo", "up")
            second = self.node(1, 1, "sh", "-c", f"echo up; until [ -e {end} ]; do sleep 0.05; done")
            self.assertEqual((first.stdout.readline(), second.stdout.readline()), ("[0] up\n", "[1] up\n"))
            first.send_signal(signal.SIGSTOP)
            end.touch()
            time.sleep(5)  # what is asked of the store waits for 3 s
            first.send_signal(signal.SIGCONT)
            for (_, err), status in finish(first, second):
                self.assertEqual((status, err), (0, ""))

    def test_different_ideas_of_the_number_of_hosts_are_refused(self):
        nodes = finish(self.node(0, 1, "true", nnodes=2), self.node(1, 1, "true", nnodes=3))
        self.assertIn("--nnodes 3, this one with --nnodes 2", nodes[0][0][1])
        self.assertEqual(nodes[0][1], 1)


if __name__ == "__main__":
    two_hosts.main()
