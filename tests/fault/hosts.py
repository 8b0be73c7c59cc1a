#!/usr/bin/env python3
"""Ranks on two hosts, and what can go wrong between these: hosts.py HOST_RANK."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import two_hosts  # noqa: E402

RANK = sys.argv[1]
LIMIT_S = 60


class Hosts(two_hosts.TwoHosts):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.ranks = []
        self.addCleanup(self.end)

    def end(self):
        for rank in self.ranks:
            rank.kill()
            rank.communicate()

    def start(self, host, rank, size, *more, **environment):
        process = subprocess.Popen(self.on(host, RANK, f"file://{self.folder}/meet", str(rank), str(size), *more),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=dict(os.environ, COMM_PROGRESS_LOG_MS="100", **environment))
        self.ranks.append(process)
        return process

    def ended(self, rank, since, most_s):
        """What the rank said last."""
        text = rank.communicate(timeout=LIMIT_S)[0].strip().split("\n")[-1]
        took = time.monotonic() - since
        print(f"{took:.1f} s: {text}")
        self.assertLess(took, most_s, text)
        return text

    def test_a_host_that_is_gone_is_noticed(self):
        ranks = [self.start(i, i, 2) for i in range(2)]
        for rank in ranks:
            self.assertEqual([rank.stdout.readline() for _ in range(2)], ["open\n", "connected\n"])
        self.cut()
        since = time.monotonic()
        for i, rank in enumerate(ranks):
            text = self.ended(rank, since, 12)
            self.assertIn("COMM_ERR_PEER_LOST", text)
            self.assertRegex(text, rf"rank {1 - i} \(.*10\.211\.8\.{2 - i}:\d+\) gives no sign of life")

    def test_how_soon_is_a_parameter(self):
        ranks = [self.start(i, i, 2, COMM_TCP_SILENCE_MS=["2000", "60000"][i]) for i in range(2)]
        for rank in ranks:
            self.assertEqual([rank.stdout.readline() for _ in range(2)], ["open\n", "connected\n"])
        self.cut()
        self.assertIn("gives no sign of life", self.ended(ranks[0], time.monotonic(), 6))

    def test_a_time_limit_passes_before_the_silence_is_long_enough(self):
        ranks = [self.start(i, i, 2, "5000", COMM_TCP_SILENCE_MS="60000") for i in range(2)]
        for rank in ranks:
            self.assertEqual([rank.stdout.readline() for _ in range(2)], ["open\n", "connected\n"])
        self.cut()
        text = self.ended(ranks[0], time.monotonic(), LIMIT_S)
        self.assertRegex(text, r"COMM_ERR_DEADLINE .*rank 1 \(.*\) has not answered within \d+ ms: "
                         r"its host does not acknowledge what it is sent: it is down, or cut off")

    def test_a_pair_of_which_one_reaches_the_other(self):
        for words in ("link add pub type veth peer name pub1", "link set pub up", "link set pub1 up",
                      "address add 10.211.9.2/24 dev pub"):
            self.ip_on(1, *words.split())
        self.lose(0, "10.211.8.77")
        self.ip_on(0, "route", "add", "10.211.9.0/24", "via", "10.211.8.77", "dev", "veth0")
        ranks = [self.start(i, i, 2, COMM_TCP_INTERFACE=["", "=pub"][i]) for i in range(2)]
        self.assertEqual(ranks[0].stdout.readline(), "open\n")
        since = time.monotonic()
        self.assertEqual(ranks[0].stdout.readline(), "connected\n")
        took = time.monotonic() - since
        print(f"{took:.1f} s: connected")
        self.assertLess(took, 5)

    def join_two_of_three(self):
        ranks = [self.start(i, i, 3) for i in range(2)]
        said = 0
        while said < 5:  # a rank that says so has looked after the others each time
            said += "2 of 3 ranks have joined, missing: 2" in ranks[0].stderr.readline()
        return ranks

    def test_a_rank_that_dies_while_others_are_missing(self):
        ranks = self.join_two_of_three()
        ranks[1].kill()
        text = self.ended(ranks[0], time.monotonic(), 4)
        self.assertRegex(text, r"COMM_ERR_PEER_LOST .*rank 1 \(host .*\) has ended, or has given up, "
                         r"before all ranks had joined")

    def test_a_host_that_goes_while_others_are_missing(self):
        ranks = self.join_two_of_three()
        self.cut()
        text = self.ended(ranks[0], time.monotonic(), 9)
        self.assertRegex(text, r"COMM_ERR_PEER_LOST .*rank [01] \(host .*\) has ended")


if __name__ == "__main__":
    two_hosts.main()
