#!/usr/bin/env python3
"""The two-level algorithms on hosts that are network name spaces: hosts.py COMM-BENCH. Nothing but the name space tells
the ranks which of them share a host. Skips (77) where none may be made. comm-bench checks the results."""
import os
import subprocess
import sys
import unittest

COMM_BENCH = sys.argv[1]
LIMIT_S = 200  # under ThreadSanitizer on a loaded machine it takes over 60
HOSTS = 3
SWITCH = f"comml{os.getpid()}"
NAMES = [f"{SWITCH}-{i}" for i in range(HOSTS)]
OPS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "barrier"]
TWO_LEVEL = ",".join(f"{op}:two_level" for op in OPS)
BARE = {name: value for name, value in os.environ.items()
        if name in ("PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR") or name.endswith("SAN_OPTIONS")}


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def make_hosts():
    ip("netns", "add", SWITCH)
    ip("-n", SWITCH, "link", "add", "br0", "type", "bridge")
    ip("-n", SWITCH, "link", "set", "br0", "up")
    for i, name in enumerate(NAMES):
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", "veth0", "netns", name, "type", "veth", "peer", "name", f"port{i}", "netns", SWITCH)
        ip("-n", name, "address", "add", f"10.211.10.{i + 1}/24", "dev", "veth0")
        ip("-n", name, "link", "set", "veth0", "up")
        ip("-n", SWITCH, "link", "set", f"port{i}", "master", "br0", "up")


def remove_hosts():
    for name in [*NAMES, SWITCH]:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def crossed():
    """Bytes that the hosts have sent to each other."""
    counters = [["ip", "netns", "exec", name, "cat", "/sys/class/net/veth0/statistics/tx_bytes"] for name in NAMES]
    return sum(int(subprocess.run(words, check=True, capture_output=True, text=True).stdout) for words in counters)


class Hosts(unittest.TestCase):
    def setUp(self):
        make_hosts()
        self.addCleanup(remove_hosts)
        self.port = 29500

    def bench(self, layout, *words, **environment):
        """Run comm-bench with a rank on each host of the layout; gives its rows."""
        self.port += 1  # in name spaces of our own
        ranks = []
        for rank, host in enumerate(layout):
            place = {"RANK": str(rank), "WORLD_SIZE": str(len(layout)), "MASTER_PORT": str(self.port),
                     "MASTER_ADDR": f"10.211.10.{layout[0] + 1}"}  # where rank 0 is
            command = ["ip", "netns", "exec", NAMES[host], COMM_BENCH, *words, "--csv", "--repeats=1", "--bind=none"]
            ranks.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, text=True, env={**BARE, **place, **environment}))
        try:
            said = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        self.assertEqual([rank.returncode for rank in ranks], [0] * len(ranks), said)
        return [line.split(",") for line in said[0][0].splitlines()[1:]]

    def test_results(self):
        for layout in ([0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2], [2, 0, 0, 1, 0], [1, 1]):
            rows = self.bench(layout, ",".join(OPS), "--bytes=4,40000,3000000", "--iterations=2",
                              COMM_TCP_ALGO=TWO_LEVEL)
            self.assertEqual(sorted({row[0] for row in rows}), sorted(OPS))
            self.assertEqual({row[9] for row in rows}, {"0"}, rows)
            self.assertEqual({row[1] for row in rows}, {"cpu:shm" if len(set(layout)) == 1 else "cpu:shm-tcp"})

    def test_less_crosses_from_host_to_host(self):
        """6 ranks on 3 hosts in turn: a ring crosses with every step, 10 times the vector; two levels 4 times."""
        def cross(backend="cpu:tcp", **environment):
            before = crossed()
            self.bench([0, 1, 2, 0, 1, 2], "all_reduce", "--bytes=1000000", "--iterations=20", "--backend=" + backend,
                       **environment)
            return crossed() - before
        ring, two_level = [cross(COMM_TCP_ALGO="all_reduce:" + name) for name in ("ring", "two_level")]
        chosen = cross()
        by_auto = cross("cpu:auto")
        one_host = cross(COMM_HOST_ID="the same")
        print(f"MB: ring {ring / 1e6:.0f}, two levels {two_level / 1e6:.0f}, by the rules {chosen / 1e6:.0f}, "
              f"on auto {by_auto / 1e6:.0f}, as if on one host {one_host / 1e6:.0f}")
        self.assertGreater(ring, 2.2 * two_level)
        self.assertLess(chosen, 1.1 * two_level)
        self.assertLess(by_auto, 1.1 * two_level)
        self.assertGreater(one_host, 2.2 * two_level)


if __name__ == "__main__":
    try:
        make_hosts()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no network name spaces here: {error}")
        remove_hosts()
        sys.exit(77)
    remove_hosts()
    unittest.main(argv=[sys.argv[0]])
